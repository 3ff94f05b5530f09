"""Results: lazy answers of verbs (functions like `sort`), and the methods that return their rows.

A `Result` is lazy, like a relation of DuckDB or a lazy frame of Polars. The facts about a run are two plain
dictionaries: the *summary* of the answer, and the *report* of the cost.

- `result`: `Result`, the methods that return rows, and its display in a notebook.
- `run`: reads the batches of a run in native code, one after the other.
- `facts`: `Summary`, `Report` and `Written`.
"""

from inshore.results.facts import (
    DriveFloor,
    LevelReport,
    PhaseReport,
    Report,
    StrPath,
    Summary,
    Written,
    cost,
)
from inshore.results.result import Result
from inshore.results.run import drained

__all__ = [
    "DriveFloor",
    "LevelReport",
    "PhaseReport",
    "Report",
    "Result",
    "StrPath",
    "Summary",
    "Written",
    "cost",
    "drained",
]
