"""Sorting, grouping and counting: how sources come to files, and results back from them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from inshore import _native
from inshore.errors import InputError
from inshore.results import Report, StrPath, with_facts

# The size of the pieces in which Arrow data goes through a file. A job must hold one of them at once, and
# import refuses what is larger than a quarter of its budget: 2 MiB of the smallest.
_PIECE_BYTES = 1 << 20


@runtime_checkable
class ArrowStream(Protocol):
    """Anything that gives Arrow data as a stream.

    A `pyarrow.Table`, `pyarrow.RecordBatchReader` or `pyarrow.RecordBatch`, and the data frames of Polars,
    pandas (from 2.2 on) and DuckDB.
    """

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Give a capsule called ``arrow_array_stream``."""


# One file, several files, or Arrow data.
Source = StrPath | Iterable[StrPath] | ArrowStream


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


def paths_of(
    job: _native.Job, source: Source, named: Sequence[str] | None = None, *, resume: bool = False
) -> list[StrPath]:
    """Give the files of a source; Arrow data is written to one, of its columns only those `named`."""
    if isinstance(source, ArrowStream):
        if resume:
            raise InputError("expected files to resume with: Arrow data cannot be had again")
        path = job.scratch_path("source.arrow")
        spill(source, path, named)
        return [path]
    if isinstance(source, (str, os.PathLike)):
        return [source]
    paths = list(source)
    if not paths:
        raise InputError("source is empty: expected at least one file")
    return paths


def named_tables(job: _native.Job, tables: Mapping[str, Source] | None) -> list[tuple[str, list[StrPath]]]:
    """Give the files of each table of a query; Arrow data is written to one each."""
    files: list[tuple[str, list[StrPath]]] = []
    for number, (name, source) in enumerate((tables or {}).items()):
        if isinstance(source, ArrowStream):
            path = job.scratch_path(f"table-{number}.arrow")
            spill(source, path, None)
            files.append((name, [path]))
        else:
            files.append((name, paths_of(job, source)))
    return files


def spill(source: ArrowStream, path: Path, named: Sequence[str] | None) -> None:
    """Write columns of `source`, or all of them, as an Arrow stream, a piece at a time."""
    # A reader is not wrapped again: so an exception of the caller's generator comes through as it is.
    reader = source if isinstance(source, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(source)
    fields = list(reader.schema)
    wanted = [at for at, field in enumerate(fields) if named is None or field.name in named]
    with pa.ipc.new_stream(str(path), pa.schema([fields[at] for at in wanted])) as writer:
        for batch in reader:
            part = batch.select(wanted)
            rows = max(1, _PIECE_BYTES * part.num_rows // max(1, part.nbytes))
            for start in range(0, part.num_rows, rows):
                writer.write_batch(part.slice(start, rows))


def deliver(
    job: _native.Job, run: Callable[[StrPath], str], output: StrPath | None, rows: str
) -> pa.Table | Written:
    """Run `run`, which writes a file and gives a summary with the number of `rows`.

    Without `output` the rows are read from that file.
    """
    if output is not None:
        text = run(output)
        summary: dict[str, Any] = json.loads(text)
        return Written(Path(output), summary[rows], summary, json.loads(job.report()))
    path = job.scratch_path("result.arrow")
    text = run(path)
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_file(file) as reader:
        table = reader.read_all()
    return with_facts(table, text, job.report())


def keys_of(by: str | Sequence[str | tuple[str, str]]) -> list[tuple[str, bool]]:
    """Give the columns to sort by, each with whether the greatest comes first."""
    keys = []
    for key in [by] if isinstance(by, str) else by:
        column, order = (key, "ascending") if isinstance(key, str) else key
        if order not in {"ascending", "descending"}:
            raise InputError(f"by is {order!r} for {column!r}: expected 'ascending' or 'descending'")
        keys.append((column, order == "descending"))
    if not keys:
        raise InputError("by is empty: expected at least one column")
    return keys
