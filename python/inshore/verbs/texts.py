"""Verbs on texts: search, word counts and language identification."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from inshore.display.progress import Watch
from inshore.errors import InputError
from inshore.results import Result, StrPath, drained
from inshore.sources import Inputs, Source, listed
from inshore.verbs.target import Target, passes_over

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MATCHING = ["fixed", "ignore_case", "smart_case", "words", "lines", "invert", "crlf"]
_WALK = ["hidden", "no_ignore", "follow"]
_CHOICES = ["globs", "types", "types_not"]
_GRAMS_MAX = 100_000


class SearchOptions(TypedDict, total=False):
    """The common options of `search` and `search_count`.

    Options of patterns: ``fixed``, ``ignore_case``, ``smart_case``, ``words``, ``lines``, ``invert`` and
    ``crlf``. Options of files: ``globs``, ``types``, ``types_not``, ``hidden``, ``no_ignore``, ``follow``,
    ``max_depth``, ``unpack``, ``text`` and ``errors``. Option of rows: ``max_count``. Options of the budget:
    ``memory`` and ``threads``. See `TextVerbs.search`.

    Examples
    --------
    >>> _ = Path("notes.txt").write_text("Feed cat")
    >>> options: inshore.SearchOptions = {"ignore_case": True, "memory": "16MiB"}
    >>> inshore.search_count("feed", "notes.txt", **options).table()["count"].to_pylist()
    [1]
    """

    fixed: bool
    ignore_case: bool
    smart_case: bool
    words: bool
    lines: bool
    invert: bool
    crlf: bool
    max_count: int | None
    globs: str | Iterable[str]
    types: str | Iterable[str]
    types_not: str | Iterable[str]
    hidden: bool
    no_ignore: bool
    follow: bool
    max_depth: int | None
    unpack: bool
    text: bool
    errors: Literal["raise", "warn"]
    memory: str | int | None
    threads: int | None


class TextVerbs(Target):
    """Verbs on texts."""

    def search(
        self,
        patterns: str | Iterable[str],
        paths: StrPath | Iterable[StrPath] | None = None,
        *,
        spans: bool = False,
        as_bytes: bool = False,
        **options: Unpack[SearchOptions],
    ) -> Result:
        r"""Search files and folders for lines that match a pattern.

        Folders are searched as in ``inshore search`` and ripgrep: by the rules of .gitignore, .ignore and
        .rgignore, and without hidden files. All threads share a large file. Rows are in the order of paths
        and lines, for any number of threads.

        Parameters
        ----------
        patterns : str or strs
            Regular expressions; a line matches if one of them matches. The syntax is that of ripgrep: no
            look-around and no back-references.
        paths : path or paths, optional
            Files, folders, and ``"store:NAME"`` for a dataset of the store; datasets come last. By default
            the current folder. On nodes: datasets.
        spans : bool, default False
            Return the offsets of matches too. A CSV file cannot hold them.
        as_bytes : bool, default False
            Return lines as bytes, and offsets in bytes. Otherwise lines are text, with U+FFFD for invalid
            UTF-8, and offsets count characters, so that ``line[start:end]`` is a match.
        **options
            The options of `SearchOptions`:

            - ``fixed``: patterns are literal strings, not regular expressions.
            - ``ignore_case``, ``smart_case``: ignore case; ignore case for patterns without a capital letter.
            - ``words``, ``lines``: match whole words, or whole lines, only.
            - ``invert``: return the lines that do not match.
            - ``crlf``: a carriage return before the line feed belongs to the line's end.
            - ``max_count``: the maximal number of lines of each file.
            - ``globs``: files whose paths match, or do not match a glob after ``!``. Not on nodes, and
              neither are ``types``, ``types_not``, ``max_depth`` and ``unpack``.
            - ``types``, ``types_not``: files of a type such as ``"rust"`` or ``"csv"``, or of all other
              types.
            - ``hidden``, ``no_ignore``, ``follow``: include hidden files; disregard .gitignore and similar
              files; follow symbolic links.
            - ``max_depth``: the maximal depth of folders.
            - ``unpack``: decompress gzip, bzip2, zstd and lz4, detected by the first bytes.
            - ``text``: search binary files as text. Otherwise a file ends before the line with its first NUL
              byte, and has no rows if the first 64 KiB contain a NUL byte.
            - ``errors``: ``"raise"`` (the default) raises an exception for an unreadable file, after the rows
              of all earlier files; ``"warn"`` skips the file with a `SkippedWarning`.
            - ``memory``, ``threads``: the budget; see `Graph`.

        Returns
        -------
        Result
            Columns ``path``, ``line_number`` (from 1), ``offset`` (bytes of the file before the line),
            ``line`` (without its end), and with `spans` lists of ``start`` and ``end``.

        Raises
        ------
        InputError
            For an invalid pattern, glob or type.
        FileError, DamagedError, NotFoundError
            For an unreadable file; see ``errors``.
        BudgetError
            Also for a line that exceeds a thread's share of the memory.

        Examples
        --------
        >>> _ = Path("notes.txt").write_text("buy milk\nfeed cat and cat\n")
        >>> inshore.search("cat", "notes.txt", spans=True, memory="16MiB").table().to_pylist()
        [{'path': 'notes.txt', 'line_number': 2, 'offset': 9, 'line': 'feed cat and cat',
          'spans': [{'start': 5, 'end': 8}, {'start': 13, 'end': 16}]}]
        >>> for batch in inshore.search(["milk", "eggs"], ".", fixed=True, max_depth=1):
        ...     print(batch.column("line").to_pylist())
        ['buy milk']
        """
        rows = {"columns": "lines_with_spans" if spans else "lines", "as_bytes": as_bytes}
        return self._search(patterns, paths, rows, options)

    def search_count(
        self,
        patterns: str | Iterable[str],
        paths: StrPath | Iterable[StrPath] | None = None,
        *,
        matches: bool = False,
        include_zero: bool = False,
        **options: Unpack[SearchOptions],
    ) -> Result:
        r"""Count the lines of each file that match a pattern.

        Parameters
        ----------
        patterns, paths, **options
            As in `search`.
        matches : bool, default False
            Count matches instead of lines; a line may have several matches.
        include_zero : bool, default False
            Return files without a match too.

        Returns
        -------
        Result
            Columns ``path`` and ``count``. A binary file has no row unless ``text`` is set, or the path names
            the file itself rather than its folder.

        Raises
        ------
        InshoreError
            The errors of `search`.

        Examples
        --------
        >>> _ = Path("notes.txt").write_text("buy milk\nfeed cat and cat\n")
        >>> inshore.search_count("cat", globs="*.txt", memory="16MiB").table().to_pydict()
        {'path': ['notes.txt'], 'count': [1]}
        >>> found = inshore.search_count("cat", "notes.txt", matches=True, memory="16MiB")
        >>> found.table()["count"].to_pylist()
        [2]
        """
        rows = {"columns": "match_counts" if matches else "line_counts", "include_zero": include_zero}
        return self._search(patterns, paths, rows, options)

    def _search(
        self,
        patterns: str | Iterable[str],
        paths: StrPath | Iterable[StrPath] | None,
        rows: dict[str, Any],
        options: SearchOptions,
    ) -> Result:
        unknown = sorted(set(options) - set(SearchOptions.__annotations__))
        if unknown:
            raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}")
        wanted = [patterns] if isinstance(patterns, str) else list(patterns)
        if not wanted:
            raise InputError("patterns is empty: expected at least one")
        rows["text"] = options.get("text", False)
        if (most := options.get("max_count")) is not None:
            if most < 1:
                raise InputError(f"max_count is {most}: expected at least 1")
            rows["max_count"] = most
        walk: dict[str, Any] = {flag: options.get(flag, False) for flag in _WALK}
        walk["max_depth"] = options.get("max_depth")
        for names in _CHOICES:
            value: str | Iterable[str] = cast("Any", options.get(names, ()))
            walk[names] = [value] if isinstance(value, str) else list(value)
        matching = {flag: options.get(flag, False) for flag in _MATCHING}
        fields: dict[str, Any] = {"patterns": wanted, "matching": matching, "rows": rows, "walk": walk}
        fields["unpack"] = options.get("unpack", False)
        return self._result(
            "search",
            fields,
            None if paths is None else Inputs(paths, "paths"),
            (options.get("memory"), options.get("threads")),
            gives="rows",
            skip=passes_over(options.get("errors", "raise")),
        )

    def count_words(
        self,
        paths: StrPath | Iterable[StrPath],
        *,
        split: bool = False,
        ignore_case: bool = False,
        min_count: int = 1,
        top: int | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        r"""Count the words of texts, with any number of distinct words.

        Parameters
        ----------
        paths : path or paths
            Texts to read together; they may be compressed (``.gz``, ``.zst``). ``"store:NAME"`` is a dataset
            of the store. On nodes: datasets.
        split : bool, default False
            Split text at white space, like ``str.split``, instead of at Unicode word boundaries (UAX #29),
            where a word has a letter or digit.
        ignore_case : bool, default False
            Convert words to lower case before counting.
        min_count : int, default 1
            The smallest count of a word in the result.
        top : int, optional
            Return only this number of most frequent words, in descending order of counts.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Result
            Columns ``word`` and ``count``, in the order of the words' bytes.

        Raises
        ------
        FileError, NotFoundError
            For the first text that cannot be read.
        BudgetError, InputError
            See `inshore.errors`. No partial file is left.

        Examples
        --------
        >>> _ = Path("rhyme.txt").write_text("The cat, the hat.\nThe end.\n")
        >>> inshore.count_words("rhyme.txt", memory="16MiB", threads=1).table().to_pydict()
        {'word': ['The', 'cat', 'end', 'hat', 'the'], 'count': [2, 1, 1, 1, 1]}
        >>> best = inshore.count_words("rhyme.txt", ignore_case=True, top=1, memory="16MiB", threads=1)
        >>> best.table().to_pylist()
        [{'word': 'the', 'count': 3}]
        """
        if top is not None and top < 1:
            raise InputError(f"top is {top}: expected at least 1")
        fields = {"split": split, "ignore_case": ignore_case, "min_count": min_count, "top": top or 0}
        inputs, budget = Inputs(paths, "paths"), (memory, threads)
        if top is not None:
            return self._result("count words", fields, inputs, budget, gives="rows")
        return self._result("count words", fields, inputs, budget, counted="written")

    def language_train(
        self,
        samples: Mapping[str, StrPath | Iterable[StrPath]] | Iterable[StrPath],
        *,
        name: str,
        grams: int = 5000,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, int]:
        r"""Train profiles of languages with samples of text, and keep them in the store.

        This verb runs at once. Samples on nodes are counted on the nodes.

        A profile holds the most frequent byte sequences of length 4 in the samples of a label. 50 KB of text
        for each language suffice; samples of about the same size and kind are best.

        Parameters
        ----------
        samples : dict or paths
            The file or files of each label; or files whose names up to the first dot are the labels. At most
            64 labels. gzip, bzip2, zstd and lz4 are decompressed.
        name : str
            The name of the set of profiles in the store.
        grams : int, default 5000
            The maximal number of byte sequences in each profile. More sequences need more text.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            The number of byte sequences in the profile of each label.

        Raises
        ------
        ExistsError
            If a dataset of that name exists already.
        InputError
            For samples without words, and for too many labels.
        FileError, BudgetError
            See `inshore.errors`. No partial dataset is left.

        Examples
        --------
        >>> _ = Path("en.txt").write_text("The quick brown fox jumps over the lazy dog.\n")
        >>> _ = Path("de.txt").write_text("Der schnelle Fuchs springt über den Hund.\n")
        >>> inshore.language_train(["en.txt", "de.txt"], name="two", memory="16MiB", threads=1)
        {'de': 40, 'en': 40}
        """
        labelled: list[tuple[str, StrPath]] = []
        if isinstance(samples, Mapping):
            for label, paths in samples.items():
                labelled += [(label, path) for path in listed(paths, f"samples[{label!r}]")]
        else:
            labelled = [(Path(path).name.split(".")[0], path) for path in listed(samples, "samples")]
        for label, path in labelled:
            if not label:
                raise InputError(f"{path}: the file name has no label: expected a dict of labels and files")
        if not 1 <= grams <= _GRAMS_MAX:
            raise InputError(f"grams is {grams}: expected 1 to {_GRAMS_MAX}")
        fields = {"name": name, "labels": [label for label, _ in labelled], "grams": grams}
        with self._store().job(memory, threads) as job, Watch(job, f"language train of {name!r}") as watch:
            run = self._start(job, "language train", fields, [path for _, path in labelled])
            return dict(drained(run, watch)["summary"]["grams"])

    def language_identify(
        self,
        source: Source,
        *,
        profiles: str,
        lines: bool = False,
        column: str | None = None,
        errors: Literal["raise", "warn"] = "raise",
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        r"""Identify the languages of texts: files, lines, or rows of a column.

        Parameters
        ----------
        source : path, paths or Arrow data
            Texts, which may be compressed (``.gz``, ``.zst``); with `column` tables, or Arrow data (see
            `ArrowStream`). ``"store:NAME"`` is a dataset of the store. On nodes: datasets.
        profiles : str
            The set of profiles in the local store, from `language_train`.
        lines : bool, default False
            Identify the language of each non-empty line.
        column : str, optional
            Identify the language of each row of this column of text. Not on nodes.
        errors : str, default "raise"
            ``"raise"`` raises an exception for an unreadable text, ``"warn"`` skips the text with a
            `SkippedWarning`. An unreadable table always raises an exception.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Result
            Columns ``source``, then ``line`` (from 1) or ``row`` (from 0), ``language`` and ``confidence``:
            the relative distance of the second-best language, from 0 to 1. Language and confidence are null
            if no profile has a sequence of the text. Rows keep the order of texts.

        Raises
        ------
        NotFoundError
            If the profiles do not exist.
        InputError
            If the dataset holds no profiles; if `lines` and `column` are both set.
        FileError, BudgetError
            See `inshore.errors`. No partial file is left.

        Examples
        --------
        >>> _ = Path("en.txt").write_text("The quick brown fox jumps over the lazy dog.\n")
        >>> _ = Path("de.txt").write_text("Der schnelle Fuchs springt über den Hund.\n")
        >>> _ = inshore.language_train(["en.txt", "de.txt"], name="two", memory="16MiB", threads=1)
        >>> bodies = pa.table({"body": ["the dog", "der Hund"]})
        >>> told = inshore.language_identify(bodies, profiles="two", column="body", memory="16MiB")
        >>> told.table()["language"].to_pylist()
        ['en', 'de']
        """
        if lines and column is not None:
            raise InputError("lines and column are both given: expected one of them")
        inputs = Inputs(source, columns=None if column is None else [column])
        if inputs.is_data and column is None:
            raise InputError("the source is Arrow data: expected the name of a column of text")
        fields = {"profiles": profiles, "lines": lines, "column": column}
        skip = passes_over(errors)
        budget = (memory, threads)
        return self._result("language identify", fields, inputs, budget, counted="texts", skip=skip)
