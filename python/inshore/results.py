"""Results: lazy answers of verbs, and the ways to their rows.

A `Result` is lazy, as a relation of DuckDB or a lazy frame of Polars is. The facts about a run are two plain
dictionaries: the *summary* of what was found, and the *report* of what it cost.
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
    """Facts about a run on a graph and what it found.

    Every algorithm gives ``supersteps``, ``edges_traversed``, ``state`` (where vertex state was kept:
    ``"memory"`` or ``"flash"``) and ``strategy`` (how updates were combined: ``"columns"``, ``"dense"``,
    ``"merge"``, several of them, or ``"look-up"`` and ``"union-find"`` where there were none). The others
    are there where they mean something; ``edges_held`` where edges lay in memory too; ``sources`` are those
    of betweenness, unless every vertex was one.
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
    """Seconds of the drive alone, at the best rates that ``inshore store bench`` measured."""

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
    """What a job cost.

    ``cpu_seconds`` and ``memory_resident_bytes_max`` are those of the whole Python process since it started.
    A query tells ``memory_resident_bytes_max`` of the process in which it ran.
    """

    drive_floor: DriveFloor


@dataclass(frozen=True)
class Written:
    """A file that was written.

    Attributes
    ----------
    path : pathlib.Path
        The file.
    rows : int
        Rows, lines or records in it.
    summary : dict
        What was done, as ``--json`` of the command line has it.
    report : Report
        What it cost.
    """

    path: Path
    rows: int
    summary: dict[str, Any]
    report: Report


def drained(run: _native.Run) -> dict[str, Any]:
    """Let a run come to its end, which gives no rows, and give its facts."""
    for _ in _pieces(run):
        pass
    facts: dict[str, Any] = json.loads(run.facts())
    return facts


def _pieces(run: _native.Run) -> Generator[Any]:
    # Through Python and not through Arrow's C stream: so Ctrl-C, our own exceptions and warnings come
    # through. The rows themselves are not copied.
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

    A run has the budget that the verb was given, and scratch files in the store until the last row was read.
    It ends with its reader: when all rows were read, or when the reader goes (``del reader``; `close` of
    pyarrow's readers does not reach it). Where nobody reads, it waits.

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
        # `counted` is the key of the summary with the number of rows. `gives` is "rows" where the run gives
        # them as they come, "file" where it writes them to one, "bytes" where that is no table.
        self._what = what
        self._job = job
        self._start = start
        self._counted = counted
        self._gives = gives
        self._facts: dict[str, Any] | None = None

    def __repr__(self) -> str:
        """Show what it would do."""
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
        """Run it, and give all rows as a table, which comes on top of the budget."""
        with closing(self._stream()) as pieces:
            schema = next(pieces)
            return pa.Table.from_batches(pieces, schema=schema)

    def reader(self) -> pa.RecordBatchReader:
        """Run it, and give rows as they come, some thousands at a time, within the budget."""
        pieces = self._stream()
        schema = next(pieces)
        return pa.RecordBatchReader.from_batches(schema, pieces)

    def write(self, path: StrPath) -> Written:
        """Run it, and write all rows to a file, within the budget.

        Parameters
        ----------
        path : path
            The file, which appears whole or not at all. Its ending chooses the format: ``.parquet``,
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
        """Run it, and give all rows as a data frame of pandas."""
        return self.table().to_pandas()

    def to_polars(self) -> Any:
        """Run it, and give all rows as a data frame of Polars."""
        import polars  # noqa: PLC0415

        return polars.from_arrow(self.table())

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Run it, and give batches as they come."""
        pieces = self._stream()
        next(pieces)
        return pieces

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Run it, and give rows as they come, for whatever takes streams of Arrow data."""
        return cast("Any", self.reader()).__arrow_c_stream__(requested_schema)

    def _ended(self) -> dict[str, Any]:
        if self._facts is None:
            raise InputError(f"{self._what}: nothing has run yet: expected a call of table, write or another")
        return self._facts

    def _stream(self) -> Generator[Any]:
        """Run it, and give columns and then rows."""
        if self._gives == "bytes":
            raise InputError(f"{self._what}: this is no table: expected write(path)")
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
