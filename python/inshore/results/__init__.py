"""Results: lazy answers of verbs, and the ways to their rows.

A `Result` is lazy, like a relation of DuckDB or a lazy frame of Polars. The facts about a run are two plain
dictionaries: the *summary* of the answer, and the *report* of the cost.

- `result`: `Result`, the ways to the rows, and its look in a notebook.
- `run`: a run in native code, one batch after the other.
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
