"""Replacement scans: a query names variables of its caller as tables, as in DuckDB.

A name of the query is first looked for among the local variables of the caller, then among its global ones. A
variable is a table if it holds Arrow data: a data frame of pandas or Polars, a table, batch or reader of
pyarrow, a relation of DuckDB, or a `Result`. Other variables are passed over, but an error names them.

SQL converts names to lower case unless they are quoted. A name in lower case therefore also finds a variable
that differs in case only, if there is no exact match among the same variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any, cast

import pyarrow as pa

from inshore.errors import InputError
from inshore.sources.inputs import ArrowStream


class FoundTables:
    """The variables of a frame that a query names.

    Attributes
    ----------
    tables : dict
        The Arrow data by the name in the query. The variables may change afterwards without effect.
    others : dict
        The types of variables that are no tables, by their names.
    """

    def __init__(self, names: Iterable[str], frame: FrameType | None) -> None:
        self.tables: dict[str, ArrowStream] = {}
        self.others: dict[str, str] = {}
        if frame is None:
            return
        scopes = [frame.f_locals] if frame.f_locals is frame.f_globals else [frame.f_locals, frame.f_globals]
        for name in names:
            for scope in scopes:
                table = self._find(name, scope)
                if table is not None:
                    self.tables[name] = table
                    break

    def _find(self, name: str, scope: Mapping[str, Any]) -> ArrowStream | None:
        """Return the table of a name among some variables, and note a variable that is not a table."""
        if name in scope:
            if is_table(scope[name]):
                return cast("ArrowStream", scope[name])
            self.others.setdefault(name, type(scope[name]).__name__)
        alike = [each for each in list(scope) if each != name and each.lower() == name]
        found = [each for each in alike if is_table(scope[each])]
        if len(found) > 1:
            raise InputError(
                f"the query names {name}, which may be the variable {found[0]} or {found[1]}: expected a "
                f'name in quotes, FROM "{found[0]}"'
            )
        return cast("ArrowStream", scope[found[0]]) if found else None


def is_table(value: object) -> bool:
    """Tell whether an object holds the rows of a table: Arrow data with several columns, not one column.

    >>> is_table(pa.table({"size": [1]})), is_table(pa.chunked_array([[1]])), is_table(pa.Table), is_table(1)
    (True, False, False, False)
    """
    # Classes, and columns of pandas or Polars, have the method of `ArrowStream` too, but are not tables.
    is_column = isinstance(value, pa.ChunkedArray) or type(value).__name__ == "Series"
    return isinstance(value, ArrowStream) and not isinstance(value, type) and not is_column
