"""Searching texts, counting their words and telling their languages.

These are functions and not methods of a `Store`, since most of what they read lies in files; where a store is
needed, ``store`` says which.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, overload

import pyarrow as pa

from inshore import _native
from inshore.errors import InputError, SkippedWarning
from inshore.results import StrPath, with_facts, with_report
from inshore.store import Store
from inshore.tables import ArrowStream, Source, Written, deliver, paths_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

# The path of a dataset begins with it.
_STORED = "store:"


class SearchOptions(TypedDict, total=False):
    """What `search` and `search_count` have in common.

    How patterns are read: ``fixed``, ``ignore_case``, ``smart_case``, ``words``, ``lines``, ``invert`` and
    ``crlf``. Which files are searched, and how: ``globs``, ``types``, ``types_not``, ``hidden``,
    ``no_ignore``, ``follow``, ``max_depth``, ``unpack``, ``text`` and ``errors``. What is given:
    ``max_count``. Where and with what: ``store``, ``memory`` and ``threads``. See `search`.
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
    store: Store | StrPath | None
    memory: str | int | None
    threads: int | None


@overload
def search(
    patterns: str | Iterable[str],
    paths: StrPath | Iterable[StrPath] | None = None,
    *,
    spans: bool = False,
    as_bytes: bool = False,
    output: None = None,
    stream: Literal[False] = False,
    **options: Unpack[SearchOptions],
) -> pa.Table: ...
@overload
def search(
    patterns: str | Iterable[str],
    paths: StrPath | Iterable[StrPath] | None = None,
    *,
    spans: bool = False,
    as_bytes: bool = False,
    output: None = None,
    stream: Literal[True],
    **options: Unpack[SearchOptions],
) -> pa.RecordBatchReader: ...
@overload
def search(
    patterns: str | Iterable[str],
    paths: StrPath | Iterable[StrPath] | None = None,
    *,
    spans: bool = False,
    as_bytes: bool = False,
    output: StrPath,
    stream: Literal[False] = False,
    **options: Unpack[SearchOptions],
) -> Written: ...
def search(
    patterns: str | Iterable[str],
    paths: StrPath | Iterable[StrPath] | None = None,
    *,
    spans: bool = False,
    as_bytes: bool = False,
    output: StrPath | None = None,
    stream: bool = False,
    **options: Unpack[SearchOptions],
) -> pa.Table | pa.RecordBatchReader | Written:
    r"""Search files and folders for lines that match a pattern.

    Folders are searched as ``inshore search`` and ripgrep do: with the rules of .gitignore, .ignore and
    .rgignore, and without hidden files. A large file is searched by all threads. Rows come in the order of
    paths and lines, whatever the number of threads.

    Parameters
    ----------
    patterns : str or strs
        Regular expressions, of which any may match. Their syntax is that of ripgrep: no look-around and no
        back-references.
    paths : path or paths, optional
        Files, folders, and ``"store:NAME"`` for a dataset of the store, which come last; by default the
        current folder.
    spans : bool, default False
        Give the places of the matches too.
    as_bytes : bool, default False
        Give lines as the bytes that they are, and places in bytes. Else lines are text, with U+FFFD where
        they are no UTF-8, and places count characters, so that ``line[start:end]`` is a match.
    output : path, optional
        Write to this file (``.parquet``, ``.arrow``, or without `spans` ``.csv``) and return a `Written`.
    stream : bool, default False
        Return a reader that gives rows as they are found, and holds only some of them. The search waits
        while nobody reads, and ends when the reader goes (``del reader``): `close` of pyarrow's readers does
        not reach it.
    **options
        As in `SearchOptions`:

        - ``fixed``: patterns are texts and not regular expressions.
        - ``ignore_case``, ``smart_case``: case makes no difference; to patterns without a capital letter.
        - ``words``, ``lines``: match whole words, or whole lines, only.
        - ``invert``: the lines that do not match.
        - ``crlf``: a carriage return before the line feed belongs to the line's end.
        - ``max_count``: so many lines of each file at most.
        - ``globs``: files whose paths match, or with ``!`` before it do not.
        - ``types``, ``types_not``: files of a type such as ``"rust"`` or ``"csv"``, or not of it.
        - ``hidden``, ``no_ignore``, ``follow``: hidden files too; heed no .gitignore and the like; follow
          symbolic links.
        - ``max_depth``: so many folders down at most.
        - ``unpack``: gzip, bzip2, zstd and lz4, known by their first bytes.
        - ``text``: search binary files as text. Else a file ends before the line with its first NUL byte,
          and gives nothing if that is among the first 64 KiB.
        - ``errors``: ``"raise"`` (the default) for an exception at a file that cannot be read, once the rows
          of the files before it were given; ``"warn"`` to pass over it with a `SkippedWarning`.
        - ``store``: whose datasets are meant, a `Store` or its path; by default that of habit.
        - ``memory``, ``threads``: the budget; see `Graph`.

    Returns
    -------
    pyarrow.Table, pyarrow.RecordBatchReader or Written
        Columns ``path``, ``line_number`` (from 1), ``offset`` (bytes of the file before the line), ``line``
        (without its end), and with `spans` lists of ``start`` and ``end``.

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
    >>> inshore.search("cat", "notes.txt", spans=True, memory="16MiB").to_pylist()
    [{'path': 'notes.txt', 'line_number': 2, 'offset': 9, 'line': 'feed cat and cat',
      'spans': [{'start': 5, 'end': 8}, {'start': 13, 'end': 16}]}]
    >>> for batch in inshore.search(["milk", "eggs"], ".", stream=True, fixed=True, max_depth=1):
    ...     print(batch.column("line").to_pylist())
    ['buy milk']
    """
    shape: dict[str, Any] = {"columns": "lines", "spans": spans, "as_bytes": as_bytes, "include_zero": False}
    return _search(patterns, paths, shape, options, output=output, stream=stream)


@overload
def search_count(
    patterns: str | Iterable[str],
    paths: StrPath | Iterable[StrPath] | None = None,
    *,
    matches: bool = False,
    include_zero: bool = False,
    output: None = None,
    stream: Literal[False] = False,
    **options: Unpack[SearchOptions],
) -> pa.Table: ...
@overload
def search_count(
    patterns: str | Iterable[str],
    paths: StrPath | Iterable[StrPath] | None = None,
    *,
    matches: bool = False,
    include_zero: bool = False,
    output: None = None,
    stream: Literal[True],
    **options: Unpack[SearchOptions],
) -> pa.RecordBatchReader: ...
@overload
def search_count(
    patterns: str | Iterable[str],
    paths: StrPath | Iterable[StrPath] | None = None,
    *,
    matches: bool = False,
    include_zero: bool = False,
    output: StrPath,
    stream: Literal[False] = False,
    **options: Unpack[SearchOptions],
) -> Written: ...
def search_count(
    patterns: str | Iterable[str],
    paths: StrPath | Iterable[StrPath] | None = None,
    *,
    matches: bool = False,
    include_zero: bool = False,
    output: StrPath | None = None,
    stream: bool = False,
    **options: Unpack[SearchOptions],
) -> pa.Table | pa.RecordBatchReader | Written:
    r"""Count the lines of each file that match a pattern.

    Parameters
    ----------
    patterns, paths, output, stream, **options
        As in `search`.
    matches : bool, default False
        Count matches, of which a line may have several.
    include_zero : bool, default False
        Give files without a match too.

    Returns
    -------
    pyarrow.Table, pyarrow.RecordBatchReader or Written
        Columns ``path`` and ``count``. Of a binary file there is nothing unless ``text`` is given, or the
        file was named itself and not a folder that it lies in.

    Raises
    ------
    InshoreError
        As `search`.

    Examples
    --------
    >>> _ = Path("notes.txt").write_text("buy milk\nfeed cat and cat\n")
    >>> inshore.search_count("cat", globs="*.txt", memory="16MiB").to_pydict()
    {'path': ['notes.txt'], 'count': [1]}
    >>> inshore.search_count("cat", "notes.txt", matches=True, memory="16MiB")["count"].to_pylist()
    [2]
    """
    shape: dict[str, Any] = {"columns": "match_counts" if matches else "line_counts", "spans": False}
    shape |= {"as_bytes": False, "include_zero": include_zero}
    return _search(patterns, paths, shape, options, output=output, stream=stream)


def _search(
    patterns: str | Iterable[str],
    paths: StrPath | Iterable[StrPath] | None,
    shape: dict[str, Any],
    options: SearchOptions,
    *,
    output: StrPath | None,
    stream: bool,
) -> pa.Table | pa.RecordBatchReader | Written:
    if output is not None and stream:
        raise InputError("output and stream are both given: expected one of them")
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    if not wanted:
        raise InputError("patterns is empty: expected at least one")
    places = [] if paths is None else listed(paths, "paths")
    given, budget = filled(options)
    if output is not None:
        _native.check_output(output)
    is_stored = any(os.fspath(path).startswith(_STORED) for path in places)
    with _job(options.get("store"), budget) if is_stored else _native.Job.plain(*budget) as job:
        found = _native.search(job, wanted, places, cast("Any", shape | given))
        return deliver_found(job, found, output, stream)


def deliver_found(
    job: _native.Job, found: _native.Search, output: StrPath | None, stream: bool
) -> pa.Table | pa.RecordBatchReader | Written:
    """Give the rows of a search as the caller wants them."""
    if output is not None:
        rows, skipped = found.write(output)
        _warn(skipped)
        return Written(Path(output), rows, json.loads(found.summary), json.loads(job.report()))
    schema: pa.Schema = with_report(pa.schema(cast("Any", found)), job.report())
    reader = pa.RecordBatchReader.from_batches(schema, _batches(found))
    if stream:
        return reader
    try:
        table = reader.read_all()
    finally:
        found.close()
    return with_facts(table, found.summary, job.report())


def filled(options: SearchOptions) -> tuple[dict[str, Any], tuple[str | int | None, int | None]]:
    """Give all options that the native half asks for, and the budget."""
    unknown = sorted(set(options) - set(SearchOptions.__annotations__))
    if unknown:
        raise TypeError(f"got an unexpected keyword argument {unknown[0]!r}")
    flags = ["fixed", "ignore_case", "smart_case", "words", "lines", "invert", "crlf"]
    flags += ["hidden", "no_ignore", "follow", "unpack", "text"]
    given: dict[str, Any] = {flag: options.get(flag, False) for flag in flags}
    given |= {"max_count": options.get("max_count"), "max_depth": options.get("max_depth")}
    for names in ("globs", "types", "types_not"):
        value: str | Iterable[str] = cast("Any", options.get(names, ()))
        given[names] = [value] if isinstance(value, str) else list(value)
    given["skip"] = _skips(options.get("errors", "raise"))
    return given, (options.get("memory"), options.get("threads"))


def _skips(errors: str) -> bool:
    if errors not in {"raise", "warn"}:
        raise InputError(f"errors is {errors!r}: expected 'raise' or 'warn'")
    return errors == "warn"


def _batches(found: _native.Search) -> Iterator[pa.RecordBatch]:
    # Not through Arrow's C stream: so Ctrl-C, our own exceptions and warnings come through.
    try:
        while (piece := found.next_batch()) is not None:
            if isinstance(piece, str):
                _warn([piece])
            else:
                yield pa.record_batch(piece)
    finally:
        found.close()


def _warn(skipped: Iterable[str]) -> None:
    for what in skipped:
        warnings.warn(what, SkippedWarning, stacklevel=4)


def _job(store: Store | StrPath | None, budget: tuple[str | int | None, int | None]) -> _native.Job:
    """Start a job on a store."""
    opened = store if isinstance(store, Store) else Store(store)
    return opened._native.job(*budget)


def listed(paths: StrPath | Iterable[StrPath], name: str) -> list[StrPath]:
    """Give one or several as a list, which is not empty."""
    if isinstance(paths, (str, os.PathLike)):
        return [paths]
    listed = list(paths)
    if not listed:
        raise InputError(f"{name} is empty: expected at least one path")
    return listed


@overload
def count_words(
    paths: StrPath | Iterable[StrPath],
    *,
    split: bool = False,
    ignore_case: bool = False,
    min_count: int = 1,
    top: int | None = None,
    output: None = None,
    store: Store | StrPath | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
) -> pa.Table: ...
@overload
def count_words(
    paths: StrPath | Iterable[StrPath],
    *,
    split: bool = False,
    ignore_case: bool = False,
    min_count: int = 1,
    top: int | None = None,
    output: StrPath,
    store: Store | StrPath | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
) -> Written: ...
def count_words(
    paths: StrPath | Iterable[StrPath],
    *,
    split: bool = False,
    ignore_case: bool = False,
    min_count: int = 1,
    top: int | None = None,
    output: StrPath | None = None,
    store: Store | StrPath | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
) -> pa.Table | Written:
    r"""Count the words of texts, however many different ones there are.

    Parameters
    ----------
    paths : path or paths
        Texts to read together; they may be compressed (``.gz``, ``.zst``). ``"store:NAME"`` is a dataset of
        the store.
    split : bool, default False
        Take whatever stands between white space for a word, as ``str.split`` does, instead of words as
        Unicode has them (UAX #29) that have a letter or digit.
    ignore_case : bool, default False
        Count words that differ in case only as one, in lower case.
    min_count : int, default 1
        Only words that are there so often.
    top : int, optional
        Only the most frequent words, the most frequent first. With `output`, which has all words, they are
        in ``summary["top"]``.
    output : path, optional
        Write to this file (``.parquet``, ``.arrow`` or ``.csv``) and return a `Written`.
    store : Store or path, optional
        Whose datasets are meant, and where words wait that do not fit the memory; by default that of habit.
    memory, threads
        The budget; see `Graph`.

    Returns
    -------
    pyarrow.Table or Written
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
    >>> inshore.count_words("rhyme.txt", memory="16MiB", threads=1).to_pydict()
    {'word': ['The', 'cat', 'end', 'hat', 'the'], 'count': [2, 1, 1, 1, 1]}
    >>> inshore.count_words("rhyme.txt", ignore_case=True, top=1, memory="16MiB", threads=1).to_pylist()
    [{'word': 'the', 'count': 3}]
    """
    if top is not None and top < 1:
        raise InputError(f"top is {top}: expected at least 1")
    texts = listed(paths, "paths")
    if output is not None:
        _native.check_output(output)
    with _job(store, (memory, threads)) as job:

        def run(path: StrPath | None) -> str:
            return _native.count_words(job, texts, path, split, ignore_case, min_count, top or 0)

        if top is None or output is not None:
            return deliver(job, run, output, "written")
        return most_frequent(job, run(None))


def most_frequent(job: _native.Job, summary: str) -> pa.Table:
    """Give the most frequent words of a summary as a table."""
    best: list[tuple[str, int]] = json.loads(summary)["top"]
    columns = [[word for word, _ in best], pa.array([count for _, count in best], pa.uint64())]
    fields: list[pa.Field[Any]] = [pa.field("word", pa.string(), False)]
    fields.append(pa.field("count", pa.uint64(), False))
    return with_facts(pa.table(columns, schema=pa.schema(fields)), summary, job.report())


def language_train(
    samples: Mapping[str, StrPath | Iterable[StrPath]] | Iterable[StrPath],
    *,
    name: str,
    grams: int = 5000,
    store: Store | StrPath | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
) -> dict[str, int]:
    r"""Learn languages from samples of text.

    For each label the byte sequences of length 4 that are most frequent in its samples are kept. 50 KB of
    text for each language suffice; samples of about the same size and kind are best.

    Parameters
    ----------
    samples : dict or paths
        For each label its file or files; or files whose names up to the first dot are the labels. Up to 64
        labels. gzip, bzip2, zstd and lz4 are unpacked.
    name : str
        Name of the set of profiles in the store.
    grams : int, default 5000
        Byte sequences that each profile has at most. More of them need more text.
    store : Store or path, optional
        Where they are kept; by default the store of habit.
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
    labelled: list[tuple[str, list[StrPath]]] = []
    if isinstance(samples, Mapping):
        labelled = [(label, listed(paths, f"samples[{label!r}]")) for label, paths in samples.items()]
    else:
        labelled = [(Path(path).name.split(".")[0], [path]) for path in listed(samples, "samples")]
    for label, paths in labelled:
        if not label:
            raise InputError(f"{paths[0]}: its name says no label: expected a dict of labels and files")
    with _job(store, (memory, threads)) as job:
        return dict(_native.language_train(job, labelled, name, grams))


@overload
def language_identify(
    source: Source,
    *,
    profiles: str,
    lines: bool = False,
    column: str | None = None,
    errors: Literal["raise", "warn"] = "raise",
    output: None = None,
    store: Store | StrPath | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
) -> pa.Table: ...
@overload
def language_identify(
    source: Source,
    *,
    profiles: str,
    lines: bool = False,
    column: str | None = None,
    errors: Literal["raise", "warn"] = "raise",
    output: StrPath,
    store: Store | StrPath | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
) -> Written: ...
def language_identify(
    source: Source,
    *,
    profiles: str,
    lines: bool = False,
    column: str | None = None,
    errors: Literal["raise", "warn"] = "raise",
    output: StrPath | None = None,
    store: Store | StrPath | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
) -> pa.Table | Written:
    r"""Tell which language texts are in: files, lines, or rows of a column.

    Parameters
    ----------
    source : path, paths or Arrow data
        Texts, which may be compressed (``.gz``, ``.zst``); with `column` tables, or Arrow data (see
        `ArrowStream`). ``"store:NAME"`` is a dataset of the store.
    profiles : str
        The set of profiles, as `language_train` made it.
    lines : bool, default False
        Tell the language of each line that is not empty.
    column : str, optional
        Tell the language of each row of this column of text.
    errors : str, default "raise"
        ``"raise"`` for an exception at a text that cannot be read, ``"warn"`` to pass over it with a
        `SkippedWarning`. A table that cannot be read is always an exception.
    output : path, optional
        Write to this file (``.parquet``, ``.arrow`` or ``.csv``) and return a `Written`.
    store : Store or path, optional
        Where the profiles are; by default the store of habit.
    memory, threads
        The budget; see `Graph`.

    Returns
    -------
    pyarrow.Table or Written
        Columns ``source``, then ``line`` (from 1) or ``row`` (from 0), ``language`` and ``confidence``: by
        which part the next language is behind, from 0 to 1. Both are null where no profile has anything of a
        text. In order.

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
    >>> table = pa.table({"body": ["the dog", "der Hund"]})
    >>> told = inshore.language_identify(table, profiles="two", column="body", memory="16MiB", threads=1)
    >>> told["language"].to_pylist()
    ['en', 'de']
    """
    if lines and column is not None:
        raise InputError("lines and column are both given: expected one of them")
    if isinstance(source, ArrowStream) and column is None:
        raise InputError("the source is Arrow data: expected the name of a column of text")
    skip = _skips(errors)
    if output is not None:
        _native.check_output(output)
    with _job(store, (memory, threads)) as job:
        paths = paths_of(job, source, None if column is None else [column])

        def run(path: StrPath) -> str:
            text, skipped = _native.language_identify(job, paths, path, profiles, lines, column, skip)
            _warn(skipped)
            return text

        return deliver(job, run, output, "texts")
