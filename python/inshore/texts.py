"""Verbs on texts: searching, counting words and telling languages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from inshore.errors import InputError
from inshore.results import Result, StrPath, drained
from inshore.sources import Inputs, Source, listed
from inshore.target import Target, passes_over

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MATCHING = ["fixed", "ignore_case", "smart_case", "words", "lines", "invert", "crlf"]
_WALK = ["hidden", "no_ignore", "follow"]
_CHOICES = ["globs", "types", "types_not"]
_GRAMS_MAX = 100_000


class SearchOptions(TypedDict, total=False):
    """What `search` and `search_count` have in common.

    How patterns are read: ``fixed``, ``ignore_case``, ``smart_case``, ``words``, ``lines``, ``invert`` and
    ``crlf``. Which files are searched, and how: ``globs``, ``types``, ``types_not``, ``hidden``,
    ``no_ignore``, ``follow``, ``max_depth``, ``unpack``, ``text`` and ``errors``. What is given:
    ``max_count``. With what: ``memory`` and ``threads``. See `TextVerbs.search`.
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
    """What can be asked of texts."""

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

        Folders are searched as ``inshore search`` and ripgrep do: with the rules of .gitignore, .ignore and
        .rgignore, and without hidden files. A large file is searched by all threads. Rows come in the order
        of paths and lines, whatever the number of threads.

        Parameters
        ----------
        patterns : str or strs
            Regular expressions, of which any may match. Their syntax is that of ripgrep: no look-around and
            no back-references.
        paths : path or paths, optional
            Files, folders, and ``"store:NAME"`` for a dataset of the store, which come last; by default the
            current folder. On nodes: datasets.
        spans : bool, default False
            Give the places of the matches too. A CSV file cannot have them.
        as_bytes : bool, default False
            Give lines as the bytes that they are, and places in bytes. Else lines are text, with U+FFFD where
            they are no UTF-8, and places count characters, so that ``line[start:end]`` is a match.
        **options
            As in `SearchOptions`:

            - ``fixed``: patterns are texts and not regular expressions.
            - ``ignore_case``, ``smart_case``: case makes no difference; to patterns without a capital letter.
            - ``words``, ``lines``: match whole words, or whole lines, only.
            - ``invert``: the lines that do not match.
            - ``crlf``: a carriage return before the line feed belongs to the line's end.
            - ``max_count``: so many lines of each file at most.
            - ``globs``: files whose paths match, or with ``!`` before it do not. Not on nodes, as ``types``,
              ``types_not``, ``max_depth`` and ``unpack`` are not either.
            - ``types``, ``types_not``: files of a type such as ``"rust"`` or ``"csv"``, or not of it.
            - ``hidden``, ``no_ignore``, ``follow``: hidden files too; heed no .gitignore and the like; follow
              symbolic links.
            - ``max_depth``: so many folders down at most.
            - ``unpack``: gzip, bzip2, zstd and lz4, known by their first bytes.
            - ``text``: search binary files as text. Else a file ends before the line with its first NUL byte,
              and gives nothing if that is among the first 64 KiB.
            - ``errors``: ``"raise"`` (the default) for an exception at a file that cannot be read, once the
              rows of the files before it were given; ``"warn"`` to pass over it with a `SkippedWarning`.
            - ``memory``, ``threads``: the budget; see `Graph`.

        Returns
        -------
        Result
            Columns ``path``, ``line_number`` (from 1), ``offset`` (bytes of the file before the line),
            ``line`` (without its end), and with `spans` lists of ``start`` and ``end``.

        Raises
        ------
        InputError
            For a pattern, glob or type that is none.
        FileError, DamagedError, NotFoundError
            For what cannot be read; see ``errors``.
        BudgetError
            Also for a line that is too long for a thread's share of the memory.

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
            Count matches, of which a line may have several.
        include_zero : bool, default False
            Give files without a match too.

        Returns
        -------
        Result
            Columns ``path`` and ``count``. Of a binary file there is nothing unless ``text`` is given, or the
            file was named itself and not a folder that it lies in.

        Raises
        ------
        InshoreError
            As `search`.

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
        r"""Count the words of texts, however many different ones there are.

        Parameters
        ----------
        paths : path or paths
            Texts to read together; they may be compressed (``.gz``, ``.zst``). ``"store:NAME"`` is a dataset
            of the store. On nodes: datasets.
        split : bool, default False
            Take whatever stands between white space for a word, as ``str.split`` does, instead of words as
            Unicode has them (UAX #29) that have a letter or digit.
        ignore_case : bool, default False
            Count words that differ in case only as one, in lower case.
        min_count : int, default 1
            Only words that are there so often.
        top : int, optional
            Only the most frequent words, the most frequent first.
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
            See `inshore.errors`. Nothing half made is left.

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
        r"""Learn languages from samples of text, and keep them in the store.

        It runs at once. Samples on nodes are counted there.

        For each label the byte sequences of length 4 that are most frequent in its samples are kept. 50 KB of
        text for each language suffice; samples of about the same size and kind are best.

        Parameters
        ----------
        samples : dict or paths
            For each label its file or files; or files whose names up to the first dot are the labels. Up to
            64 labels. gzip, bzip2, zstd and lz4 are unpacked.
        name : str
            Name of the set of profiles in the store.
        grams : int, default 5000
            Byte sequences that each profile has at most. More of them need more text.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            For each label how many byte sequences its profile has.

        Raises
        ------
        ExistsError
            If there is a dataset of that name.
        InputError
            For samples without a word, and too many labels.
        FileError, BudgetError
            See `inshore.errors`. Nothing half made is left.

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
                raise InputError(f"{path}: its name says no label: expected a dict of labels and files")
        if not 1 <= grams <= _GRAMS_MAX:
            raise InputError(f"grams is {grams}: expected 1 to {_GRAMS_MAX}")
        fields = {"name": name, "labels": [label for label, _ in labelled], "grams": grams}
        with self._store().job(memory, threads) as job:
            run = self._start(job, "language train", fields, [path for _, path in labelled])
            return dict(drained(run)["summary"]["grams"])

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
        r"""Tell which language texts are in: files, lines, or rows of a column.

        Parameters
        ----------
        source : path, paths or Arrow data
            Texts, which may be compressed (``.gz``, ``.zst``); with `column` tables, or Arrow data (see
            `ArrowStream`). ``"store:NAME"`` is a dataset of the store. On nodes: datasets.
        profiles : str
            The set of profiles in the store of this machine, as `language_train` made it.
        lines : bool, default False
            Tell the language of each line that is not empty.
        column : str, optional
            Tell the language of each row of this column of text. Not on nodes.
        errors : str, default "raise"
            ``"raise"`` for an exception at a text that cannot be read, ``"warn"`` to pass over it with a
            `SkippedWarning`. A table that cannot be read is always an exception.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Result
            Columns ``source``, then ``line`` (from 1) or ``row`` (from 0), ``language`` and ``confidence``:
            by which part the next language is behind, from 0 to 1. Both are null where no profile has
            anything of a text. In order.

        Raises
        ------
        NotFoundError
            If there are no such profiles.
        InputError
            If they are none; if `lines` and `column` are both given.
        FileError, BudgetError
            See `inshore.errors`. Nothing half made is left.

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
