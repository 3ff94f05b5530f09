"""The lazy result of a verb."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast

import pyarrow as pa

from inshore import _native
from inshore.display import html
from inshore.display.progress import Watch
from inshore.errors import InputError
from inshore.results.facts import Report, StrPath, Written, cost
from inshore.results.run import drained, pieces

# First rows that take more than this number of bytes are not kept for a notebook.
_FIRST_BYTES_MAX = 256 << 10

# A notebook reads at least this number of batches, so that it also finds the end of an answer with one batch.
_BATCHES_SHOWN_MAX = 2

Start = Callable[[_native.Job, StrPath | None], _native.Run]
Gives = Literal["rows", "file", "bytes"]


class _LastRun:
    """The facts, and the first rows or the file, of the last complete run of a result."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] | None = None
        self.first: pa.Table | None = None
        self.path: Path | None = None

    def end(
        self, facts: dict[str, Any], *, first: pa.Table | None = None, path: Path | None = None
    ) -> dict[str, Any]:
        """Set the facts of a run that ended, its first rows or its file, and return the facts."""
        self.facts, self.first, self.path = facts, first, path
        return facts


class Result:
    """Rows that a verb computes when a method needs them.

    Every method that returns rows runs the job again: `table`, `reader`, `write`, `to_pandas`, `to_polars`,
    iteration over batches, and ``__arrow_c_stream__``, by which pyarrow, Polars and DuckDB read a result
    directly. To use the rows twice, keep the table, or write a file. If the input is a
    `pyarrow.RecordBatchReader`, only one run can read the input.

    A run has the budget of the verb, and scratch files in the store until the last row was read. The run ends
    after all rows, or when its reader is deleted (``del reader``; the `close` method of pyarrow's readers
    does not end the run). A run whose rows are not read waits.

    A notebook shows the first rows. If nothing has run yet, the notebook runs the job until these rows are
    complete. The next method that returns rows, except `write`, continues this run instead of running the job
    again. At most one such run waits: that of the result shown last. After a complete run, a notebook shows
    rows that were kept, and starts no run.

    Examples
    --------
    >>> result = store.sort(pa.table({"size": [3, 1, 2]}), by="size", memory="16MiB")
    >>> result
    <inshore.Result: sort of Arrow data in inshore.Store(...), not run yet>
    >>> result.table().to_pydict()
    {'size': [1, 2, 3]}
    >>> result.summary["rows"], result.report["memory_budget_bytes"]
    (3, 16777216)
    >>> result.write("sorted.parquet").rows
    3
    >>> pa.table(result).num_rows
    3
    """

    # The result that a notebook showed last, if its run waits.
    _shown_last: weakref.ref[Result] | None = None

    def __init__(
        self,
        what: str,
        job: Callable[[], _native.Job],
        start: Start,
        *,
        counted: str | None = None,
        gives: Gives = "rows",
        is_query: bool = False,
    ) -> None:
        # `counted` is the key of the summary with the number of rows. `gives` is "rows" for a run that
        # returns rows one batch after the other, "file" for a run that writes a table, "bytes" for a run that
        # writes another file. A query runs in a process of its own.
        self._what = what
        self._job = job
        self._start = start
        self._counted = counted
        self._gives: Gives = gives
        self._is_query = is_query
        self._last = _LastRun()
        # The generator of a run that a notebook began, and the first rows of this run.
        self._begun: Generator[Any] | None = None
        self._shown: pa.Table | None = None

    def __repr__(self) -> str:
        """Show the verb with its arguments; runs nothing."""
        return f"<inshore.Result: {self._what}, {'not run yet' if self._last.facts is None else 'has run'}>"

    @property
    def summary(self) -> dict[str, Any]:
        """Facts about the answer of the last complete run, as ``--json`` of the command line has them.

        For an algorithm on graphs, the facts are a `Summary`. Raises `InputError` if nothing has run yet.

        Examples
        --------
        >>> result = inshore.sql("SELECT * FROM (VALUES (1), (2))", memory="32MiB")
        >>> _ = result.table()
        >>> result.summary["rows"]
        2
        """
        return cast("dict[str, Any]", self._ended()["summary"])

    @property
    def report(self) -> Report:
        """Cost of the last complete run; raises `InputError` if nothing has run yet.

        Examples
        --------
        >>> result = path_of_three.bfs(3, memory="16MiB")
        >>> result.report
        Traceback (most recent call last):
        inshore.errors.InputError: bfs of graph 'path': the result has not run yet: ...
        >>> _ = result.table()
        >>> result.report["memory_reserved_bytes_max"] <= 16 << 20
        True
        """
        return cast("Report", self._ended()["report"])

    def table(self) -> pa.Table:
        """Run, and return all rows as a table, whose memory is not part of the budget.

        Examples
        --------
        >>> path_of_three.bfs(3, memory="16MiB").table()["level"].to_pylist()
        [0, 1, 2]
        """
        with closing(self._stream()) as stream:
            schema = next(stream)
            return pa.Table.from_batches(stream, schema=schema)

    def reader(self) -> pa.RecordBatchReader:
        """Run, and return a reader of batches of some thousand rows, within the budget.

        Examples
        --------
        >>> reader = path_of_three.bfs(3, memory="16MiB").reader()
        >>> reader.schema.names
        ['vertex', 'parent', 'level']
        >>> sum(batch.num_rows for batch in reader)
        3
        """
        stream = self._stream()
        schema = next(stream)
        return pa.RecordBatchReader.from_batches(schema, stream)

    def write(self, path: StrPath) -> Written:
        """Run, and write all rows to a file, within the budget.

        Parameters
        ----------
        path : path
            The file, which appears complete or not at all. Its ending chooses the format: ``.parquet``,
            ``.arrow`` or ``.csv``.

        Returns
        -------
        Written
            The file, with its number of rows.

        Raises
        ------
        InputError
            For another ending.
        FileError
            If the file cannot be written.

        Examples
        --------
        >>> path_of_three.bfs(3, memory="16MiB").write("levels.csv").rows
        3
        >>> pa.csv.read_csv("levels.csv")["level"].to_pylist()
        [0, 1, 2]
        """
        self._end_begun()
        with self._job() as job, Watch(job, self._what) as watch:
            facts = self._last.end(drained(self._start(job, path), watch), path=Path(path))
        return Written(Path(path), self._count(facts), facts["summary"], facts["report"])

    def to_pandas(self) -> Any:
        """Run, and return all rows as a data frame of pandas.

        Examples
        --------
        >>> path_of_three.bfs(3, memory="16MiB").to_pandas()["level"].sum()
        np.uint64(3)
        """
        return self.table().to_pandas()

    def to_polars(self) -> Any:
        """Run, and return all rows as a data frame of Polars.

        Examples
        --------
        >>> path_of_three.bfs(3, memory="16MiB").to_polars().shape
        (3, 3)
        """
        import polars  # noqa: PLC0415

        return polars.from_arrow(self.table())

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Run, and return an iterator over batches."""
        stream = self._stream()
        next(stream)
        return stream

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Run, and return rows as an Arrow stream."""
        return cast("Any", self.reader()).__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        """Show the first rows, their number and the cost in a notebook; see the class."""
        if self._gives == "bytes" and self._last.facts is None:
            return html.panel(
                "Result", self._what, html.note("not run yet, and no table: write(path) runs it")
            )
        if self._last.facts is None and self._begun is None:
            self._begin()
        facts = self._last.facts
        shown = self._shown if facts is None else self._last.first
        parts = [] if shown is None else [html.first_rows(shown)]
        if facts is None:
            more = "the first rows; table(), reader() and iteration continue this run, write(path) runs anew"
            return html.panel("Result", self._what, *parts, html.note(more))
        rows = self._count(facts)
        counted = html.count(rows, "row")
        if shown is not None and shown.num_rows < rows:
            counted = f"{shown.num_rows} of {counted}"
        if self._last.path is not None:
            counted = f"{counted} in {self._last.path}"
        report = cost(facts["report"], is_query=self._is_query)
        return html.panel("Result", self._what, *parts, html.note(counted), html.note(report))

    def _begin(self) -> None:
        """Begin a run and take its first rows. The run then waits with the rest, unless it has ended."""
        stream = self._stream()
        schema = next(stream)
        batches: list[pa.RecordBatch] = []
        rows = 0
        is_open = True
        while len(batches) < _BATCHES_SHOWN_MAX or rows <= html.ROWS_MAX:
            batch = next(stream, None)
            if batch is None:
                is_open = False
                break
            batches.append(batch)
            rows += batch.num_rows
        if is_open:
            other = None if Result._shown_last is None else Result._shown_last()
            if other is not None and other is not self:
                other._end_begun()
            Result._shown_last = weakref.ref(self)
        self._begun = _again(schema, batches, stream)
        self._shown = pa.Table.from_batches(batches, schema=schema).slice(0, html.ROWS_MAX)

    def _take_begun(self) -> Generator[Any] | None:
        begun, self._begun, self._shown = self._begun, None, None
        return begun

    def _end_begun(self) -> None:
        """End a run that a notebook began."""
        begun = self._take_begun()
        if begun is not None:
            begun.close()

    def _count(self, facts: dict[str, Any]) -> int:
        rows: int = facts["rows"] if self._counted is None else facts["summary"][self._counted]
        return rows

    def _ended(self) -> dict[str, Any]:
        if self._last.facts is None:
            raise InputError(f"{self._what}: the result has not run yet: call table() or write(path)")
        return self._last.facts

    def _stream(self) -> Generator[Any]:
        """Run, or continue a run that a notebook began, and return the columns and then batches of rows."""
        begun = self._take_begun()
        if begun is not None:
            return begun
        if self._gives == "bytes":
            raise InputError(f"{self._what}: the result is not a table: call write(path)")
        return _stream(self._what, self._job, self._start, self._gives, self._last)


def _stream(
    what: str, start_job: Callable[[], _native.Job], start: Start, gives: Gives, last: _LastRun
) -> Generator[Any]:
    """Run, and yield the columns and then batches of rows. The generator does not keep its result alive."""
    with start_job() as job, Watch(job, what) as watch:
        if gives == "rows":
            run = start(job, None)
            kept = _FirstRows()
            for piece in pieces(run, watch):
                kept.add(piece)
                yield piece
            last.end(json.loads(run.facts()), first=kept.table())
            return
        path = job.scratch_path("result.arrow")
        facts = drained(start(job, path), watch)
        kept = _FirstRows()
        with pa.OSFile(str(path), "rb") as file, pa.ipc.open_file(file) as reader:
            kept.add(reader.schema)
            if reader.num_record_batches:
                kept.add(reader.get_batch(0))
            last.end(facts, first=kept.table())
            yield reader.schema
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


def _again(schema: pa.Schema, batches: list[pa.RecordBatch], rest: Generator[Any]) -> Generator[Any]:
    """Yield the items taken from a stream, and then its rest; the stream is closed with this generator."""
    with closing(rest):
        yield from chain([schema], batches, rest)


class _FirstRows:
    """Copies of the first rows of a run, for a notebook."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._batches: list[pa.RecordBatch] = []
        self._missing = html.ROWS_MAX

    def add(self, piece: pa.Schema | pa.RecordBatch) -> None:
        """Add the columns, or a batch."""
        if isinstance(piece, pa.Schema):
            self._schema = piece
        elif self._missing > 0 and piece.num_rows:
            part = piece.slice(0, self._missing)
            self._missing -= part.num_rows
            if part.nbytes <= _FIRST_BYTES_MAX:
                # A slice would keep the whole batch in memory.
                self._batches.append(_copy(part))
            else:
                self._missing = 0

    def table(self) -> pa.Table | None:
        """Return the rows."""
        return None if self._schema is None else pa.Table.from_batches(self._batches, schema=self._schema)


def _copy(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy of all values of a batch, of any type, in memory that is just as large."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.ipc.open_stream(sink.getvalue().to_pybytes()) as reader:
        return reader.read_next_batch()
