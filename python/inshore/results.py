"""How rows reach the user: as a table, as a reader, or as a file; each with its facts.

The facts are two plain dictionaries: the *summary* of what was found, and the *report* of what it cost. A
`Result` has them as attributes. A table or reader carries them as JSON in its schema's metadata, under the
keys ``inshore.summary`` and ``inshore.report``; `summary` and `report` read them there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

import pyarrow as pa

from inshore import _native
from inshore.errors import InputError

StrPath = str | os.PathLike[str]

_SUMMARY = b"inshore.summary"
_REPORT = b"inshore.report"


class _SummaryOfAll(TypedDict):
    supersteps: int
    edges_traversed: int
    state: str
    strategy: str


class Summary(_SummaryOfAll, total=False):
    """Facts about a run and what it found.

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
class Result:
    """A file of rows that was written.

    Attributes
    ----------
    path : pathlib.Path
        The file.
    rows : int
        Rows in it.
    summary : Summary
        What was found.
    report : Report
        What it cost.
    """

    path: Path
    rows: int
    summary: Summary
    report: Report


def summary(table: pa.Table | pa.RecordBatchReader) -> Summary:
    """Read the facts about the run that made `table`.

    Parameters
    ----------
    table : pyarrow.Table or pyarrow.RecordBatchReader
        What an algorithm of a `Graph` returned.

    Returns
    -------
    Summary
        The facts.

    Raises
    ------
    InputError
        If it is from elsewhere, or has lost its metadata.

    Examples
    --------
    >>> table = path_of_three.components()
    >>> inshore.summary(table)["components"]
    1
    """
    return cast("Summary", _read(table, _SUMMARY))


def report(table: pa.Table | pa.RecordBatchReader) -> Report:
    """Read the counters of the job that made `table`.

    Those of a reader were taken when its first row was ready.

    Parameters
    ----------
    table : pyarrow.Table or pyarrow.RecordBatchReader
        What an algorithm of a `Graph` returned.

    Returns
    -------
    Report
        The counters.

    Raises
    ------
    InputError
        If it is from elsewhere, or has lost its metadata.

    Examples
    --------
    >>> table = path_of_three.components(memory="16MiB")
    >>> inshore.report(table)["memory_budget_bytes"] == 16 << 20
    True
    """
    return cast("Report", _read(table, _REPORT))


def _read(table: pa.Table | pa.RecordBatchReader, key: bytes) -> object:
    text = (table.schema.metadata or {}).get(key)
    if text is None:
        raise InputError(f"no {key.decode()} in the schema's metadata: expected a table that Inshore made")
    return json.loads(text)


def with_facts(table: pa.Table, summary: str, report: str) -> pa.Table:
    """Give the same table with its facts, both JSON, in the schema's metadata."""
    return table.replace_schema_metadata({_SUMMARY: summary, _REPORT: report})


def with_report(schema: pa.Schema, report: str) -> pa.Schema:
    """Give the same schema with a report, as JSON, in its metadata."""
    return schema.with_metadata({_REPORT: report})


def deliver(
    job: _native.Job,
    run: Callable[[], _native.Answer | _native.Query],
    output: StrPath | None,
    stream: bool,
) -> pa.Table | pa.RecordBatchReader | Result:
    """Run an algorithm or a query and give its rows as the caller wants them."""
    if output is not None:
        if stream:
            raise InputError("output and stream are both given: expected one of them")
        _native.check_output(output)
        answer = run()
        # A query was told at its start where to write.
        rows = answer.write(output) if isinstance(answer, _native.Answer) else answer.write()
        return Result(Path(output), rows, json.loads(answer.summary), json.loads(_cost(answer, job)))
    answer = run()
    reader = pa.RecordBatchReader.from_batches(_schema(answer, job), _batches(answer))
    if stream:
        return reader
    try:
        table = reader.read_all()
    finally:
        answer.close()  # a traceback would keep the job's scratch otherwise
    return with_facts(table, answer.summary, _cost(answer, job))


def _cost(answer: _native.Answer | _native.Query, job: _native.Job) -> str:
    # A query runs in a process of its own, which has counters, too.
    return job.report() if isinstance(answer, _native.Answer) else answer.report()


def _schema(answer: _native.Answer | _native.Query, job: _native.Job) -> pa.Schema:
    schema: pa.Schema = pa.schema(cast("Any", answer))
    return schema.with_metadata({_SUMMARY: answer.summary, _REPORT: _cost(answer, job)})


def _batches(answer: _native.Answer | _native.Query) -> Iterator[pa.RecordBatch]:
    # Through Python and not through Arrow's C stream: so Ctrl-C and our own exceptions come through. The rows
    # themselves are not copied.
    try:
        while (batch := answer.next_batch()) is not None:
            yield pa.record_batch(batch)
    finally:
        answer.close()
