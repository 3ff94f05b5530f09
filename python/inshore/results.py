"""Results: lazy answers of verbs, and the ways to their rows.

A `Result` is lazy, like a relation of DuckDB or a lazy frame of Polars. The facts about a run are two plain
dictionaries: the *summary* of the answer, and the *report* of the cost.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import pyarrow as pa

from inshore import _native
from inshore.errors import InputError, SkippedWarning

StrPath = str | os.PathLike[str]


class _SummaryOfAll(TypedDict):
    supersteps: int
    edges_traversed: int
    state: str
    strategy: str


class Summary(_SummaryOfAll, total=False):
    """The summary of a run on a graph.

    All algorithms have ``supersteps``, ``edges_traversed``, ``state`` (the place of vertex state:
    ``"memory"`` or ``"flash"``) and ``strategy`` (the combination of updates: ``"columns"``, ``"dense"``,
    ``"merge"``, several of them, or ``"look-up"`` and ``"union-find"`` without updates). The other fields
    depend on the algorithm; ``edges_held`` is true if memory also held the edges; ``sources`` are the sampled
    sources of betweenness, absent if every vertex was a source.
    """

    edges_held: bool
    reached: int
    levels: int
    components: int
    triangles: int
    last_change: float
    error_max: float
    sources: list[int]
    notice: str


class PhaseReport(TypedDict):
    """The time that one phase of a job took."""

    phase: str
    seconds: float


class LevelReport(TypedDict):
    """The records that entered and left one level of sort-reduce."""

    level: int
    records_in: int
    records_out: int


class DriveFloor(TypedDict):
    """The time of the drive alone in seconds, at the best rates measured by ``inshore store bench``."""

    read_seconds: float
    write_seconds: float


class _ReportOfAll(TypedDict):
    seconds: float
    cpu_seconds: float
    memory_budget_bytes: int
    memory_reserved_bytes_max: int
    memory_resident_bytes_max: int
    threads: int
    bytes_read: int
    bytes_written: int
    repairs: int
    direct_io: bool
    io: str
    phases: list[PhaseReport]
    levels: list[LevelReport]


class Report(_ReportOfAll, total=False):
    """The cost of a job.

    ``cpu_seconds`` and ``memory_resident_bytes_max`` count the whole Python process since its start. For a
    query, ``memory_resident_bytes_max`` counts the child process that ran the query.
    """

    drive_floor: DriveFloor


@dataclass(frozen=True)
class Written:
    """A written file.

    Attributes
    ----------
    path : pathlib.Path
        The file.
    rows : int
        The number of rows, lines or records in the file.
    summary : dict
        The summary, as ``--json`` of the command line prints.
    report : Report
        The cost of the job.
    """

    path: Path
    rows: int
    summary: dict[str, Any]
    report: Report


def drained(run: _native.Run) -> dict[str, Any]:
    """Run to the end without rows, and return the facts of the run."""
    for _ in _pieces(run):
        pass
    facts: dict[str, Any] = json.loads(run.facts())
    return facts


def _pieces(run: _native.Run) -> Generator[Any]:
    # Python calls, rather than Arrow's C stream, let Ctrl-C, exceptions and warnings pass. The rows
    # themselves are not copied.
    try:
        while (piece := run.next()) is not None:
            if isinstance(piece, str):
                warnings.warn(piece, SkippedWarning, stacklevel=4)
            elif isinstance(piece, _native.Columns):
                yield pa.schema(cast("Any", piece))
            else:
                yield pa.record_batch(piece)
    finally:
        run.close()


class Result:
    """Rows that a verb computes when somebody asks for them.

    Every way to the rows runs the job, each time anew: `table`, `reader`, `write`, `to_pandas`, `to_polars`,
    iteration over batches, and ``__arrow_c_stream__``, by which pyarrow, Polars and DuckDB take a result as
    it is. To use the rows twice, keep the table, or a file. A `pyarrow.RecordBatchReader` that was handed
    over can be read in one run only.

    A run has the budget of the verb, and scratch files in the store until the last row was read. The run ends
    with its reader: after all rows, or when the reader is deleted (``del reader``; `close` of pyarrow's
    readers does not reach the run). A run without reads waits.

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

    def __init__(
        self,
        what: str,
        job: Callable[[], _native.Job],
        start: Callable[[_native.Job, StrPath | None], _native.Run],
        *,
        counted: str | None = None,
        gives: Literal["rows", "file", "bytes"] = "rows",
    ) -> None:
        # `counted` is the key of the summary with the number of rows. `gives` is "rows" for a run that
        # returns rows one batch after the other, "file" for a run that writes a table, "bytes" for a run that
        # writes another file.
        self._what = what
        self._job = job
        self._start = start
        self._counted = counted
        self._gives = gives
        self._facts: dict[str, Any] | None = None

    def __repr__(self) -> str:
        """Show the verb with its arguments."""
        return f"<inshore.Result: {self._what}, {'not run yet' if self._facts is None else 'has run'}>"

    @property
    def summary(self) -> dict[str, Any]:
        """Facts about the answer of the last complete run, as ``--json`` of the command line has them.

        An algorithm on graphs gives a `Summary`. `InputError` where nothing has run yet.
        """
        return cast("dict[str, Any]", self._ended()["summary"])

    @property
    def report(self) -> Report:
        """Cost of the last complete run; `InputError` where nothing has run yet."""
        return cast("Report", self._ended()["report"])

    def table(self) -> pa.Table:
        """Run, and return all rows as a table, whose memory comes on top of the budget."""
        with closing(self._stream()) as pieces:
            schema = next(pieces)
            return pa.Table.from_batches(pieces, schema=schema)

    def reader(self) -> pa.RecordBatchReader:
        """Run, and return a reader of batches of some thousand rows, within the budget."""
        pieces = self._stream()
        schema = next(pieces)
        return pa.RecordBatchReader.from_batches(schema, pieces)

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
        """
        with self._job() as job:
            self._facts = facts = drained(self._start(job, path))
        rows = facts["rows"] if self._counted is None else facts["summary"][self._counted]
        return Written(Path(path), rows, facts["summary"], facts["report"])

    def to_pandas(self) -> Any:
        """Run, and return all rows as a data frame of pandas."""
        return self.table().to_pandas()

    def to_polars(self) -> Any:
        """Run, and return all rows as a data frame of Polars."""
        import polars  # noqa: PLC0415

        return polars.from_arrow(self.table())

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Run, and return an iterator over batches."""
        pieces = self._stream()
        next(pieces)
        return pieces

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Run, and return rows as an Arrow stream."""
        return cast("Any", self.reader()).__arrow_c_stream__(requested_schema)

    def _ended(self) -> dict[str, Any]:
        if self._facts is None:
            raise InputError(f"{self._what}: the result has not run yet: call table() or write(path)")
        return self._facts

    def _stream(self) -> Generator[Any]:
        """Run, and yield the columns and then batches of rows."""
        if self._gives == "bytes":
            raise InputError(f"{self._what}: the result is not a table: call write(path)")
        with self._job() as job:
            if self._gives == "rows":
                run = self._start(job, None)
                yield from _pieces(run)
                self._facts = json.loads(run.facts())
                return
            path = job.scratch_path("result.arrow")
            self._facts = drained(self._start(job, path))
            with pa.OSFile(str(path), "rb") as file, pa.ipc.open_file(file) as reader:
                yield reader.schema
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)
