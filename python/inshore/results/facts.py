"""Facts about a run: the summary of its answer, the report of its cost, and the file that it wrote."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from inshore.display import html

StrPath = str | os.PathLike[str]

# The memory that a process may take in addition to the budget of its job, and the memory that the process of
# a query may take in addition to its budget.
_BESIDE_BYTES = 64 << 20
_BESIDE_QUERY_BYTES = 40 << 20


class _SummaryOfAll(TypedDict):
    supersteps: int
    edges_traversed: int
    state: str
    strategy: str


class Summary(_SummaryOfAll, total=False):
    """The summary of a run on a graph.

    All algorithms have ``supersteps``, ``edges_traversed``, ``state`` (the location of vertex state:
    ``"memory"`` or ``"flash"``) and ``strategy`` (the method that combines updates: ``"columns"``,
    ``"dense"``, ``"merge"``, several of them, or ``"look-up"`` and ``"union-find"`` without updates). The
    other fields depend on the algorithm; ``edges_held`` is true if the edges were in memory too; ``sources``
    are the sampled sources of betweenness, absent if every vertex was a source.

    Examples
    --------
    >>> result = path_of_three.bfs(3, memory="16MiB")
    >>> _ = result.table()
    >>> result.summary["reached"], result.summary["state"]
    (3, 'memory')
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
    """The time that one phase of a job took.

    Examples
    --------
    >>> result = path_of_three.pagerank(iterations=2, memory="16MiB")
    >>> _ = result.table()
    >>> sorted(result.report["phases"][0])
    ['phase', 'seconds']
    """

    phase: str
    seconds: float


class LevelReport(TypedDict):
    """The records that entered and left one level of sort-reduce.

    Examples
    --------
    A graph whose updates fit in memory needs no levels:

    >>> result = path_of_three.pagerank(memory="16MiB")
    >>> _ = result.table()
    >>> [level["records_out"] for level in result.report["levels"]]
    []
    """

    level: int
    records_in: int
    records_out: int


class DriveFloor(TypedDict):
    """The time in seconds that the drive alone takes at its best rates (``inshore store bench``)."""

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

    Examples
    --------
    >>> result = path_of_three.bfs(3, memory="16MiB", threads=1)
    >>> _ = result.table()
    >>> report = result.report
    >>> report["memory_reserved_bytes_max"] <= report["memory_budget_bytes"], report["threads"]
    (True, 1)
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

    Examples
    --------
    >>> written = path_of_three.bfs(3, memory="16MiB").write("levels.csv")
    >>> written.path, written.rows
    (PosixPath('levels.csv'), 3)
    """

    path: Path
    rows: int
    summary: dict[str, Any]
    report: Report

    def _repr_html_(self) -> str:
        """Show the file, its number of rows and the cost."""
        return html.panel(
            "Written", str(self.path), html.note(html.count(self.rows, "row")), html.note(cost(self.report))
        )


def cost(report: Report, *, is_query: bool = False) -> str:
    """Return the time, the bytes and the memory of a job in one line, with the limit of the memory.

    The process of a query has its own limit. Other jobs run in the Python process, whose peak says little
    about one job. For such a job, the line has the memory that the job reserved.
    """
    budget = report["memory_budget_bytes"]
    beside = _BESIDE_QUERY_BYTES if is_query else _BESIDE_BYTES
    limit = html.format_bytes(budget + beside)
    parts = f"budget {html.format_bytes(budget)} + {html.format_bytes(beside)}"
    if is_query:
        peak = html.format_bytes(report["memory_resident_bytes_max"])
        memory = f"peak memory of the query's process {peak} of at most {limit} ({parts})"
    else:
        reserved = html.format_bytes(report["memory_reserved_bytes_max"])
        memory = f"reserved at most {reserved}, the process grows by at most {limit} ({parts})"
    read, written = html.format_bytes(report["bytes_read"]), html.format_bytes(report["bytes_written"])
    return f"{report['seconds']:.1f} s, read {read} from the store, wrote {written} to it, {memory}"
