"""The verb `sql`: queries over files, datasets and tables in memory."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from inshore import _native
from inshore.errors import InputError
from inshore.results import Result, StrPath
from inshore.sources import FoundTables, Inputs, Source
from inshore.verbs.target import Target

# A name that contains one of these characters is a path, a pattern of paths or a dataset of a store.
_PATH_CHARACTERS = frozenset("/.*:")

# Matches the beginning of a statement that only reads tables; other statements have errors of their own.
_READS = re.compile(r"[\s(]*(select|with|from|explain|values)\b", re.IGNORECASE)


class SqlVerbs(Target):
    """The verb `sql`."""

    def sql(
        self,
        query: str,
        *,
        tables: Mapping[str, Source] | None = None,
        replacement_scans: bool = True,
        text: Sequence[str] = (),
        header: bool | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Query tables in SQL. Tables may be larger than memory.

        Grouping, sorting and joins spill with sort-reduce when memory is short. The dialect is DataFusion's.

        A name in the query is, in this order, a table of `tables`, a variable of the caller that holds a
        table, or a file. Variables are found as in DuckDB, first among the local and then among the global
        variables of the calling function. A variable may hold a data frame of pandas or Polars, a table,
        batch or reader of pyarrow, a relation of DuckDB, or a result of Inshore. The call takes the object
        that a variable holds at that time. A name in single quotes is always a file.

        The query runs in a child process whose memory limit is the budget and 40 MiB more. The process is
        another interpreter (``sys.executable``, or the program named by ``INSHORE_PYTHON``), which loads only
        the extension, with empty standard input. The process ends with the run. Tables in memory are written
        to scratch files of the store first, once for each run: the cost is their size, written and read.

        Parameters
        ----------
        query : str
            One SELECT, EXPLAIN or VALUES. The query names files in quotes: ``FROM 'sales.parquet'``; on nodes
            datasets, as ``'store:sales.parquet'``.
        tables : dict, optional
            The tables by their names in the query: a path (also a folder, or with ``*``), paths, or Arrow
            data.
        replacement_scans : bool, default True
            False if no variables are looked for, so that the query depends on its arguments only. On nodes,
            whose datasets have names too, variables are never looked for.
        text : list of str, optional
            Columns of CSV and JSON lines that are text even if their values look like numbers.
        header : bool, optional
            As in `sort`.
        memory, threads
            The budget, at least 24 MiB; see `Graph`.

        Returns
        -------
        Result
            The rows.

        Raises
        ------
        InputError
            For an invalid query, and for a name that is neither a table, a variable nor a file; the message
            names all three.
        BudgetError
            Also if an operator that cannot spill needs more memory (a cross join, a window over all rows),
            and if the process would exceed its limit.
        FileError, DamagedError
            See `inshore.errors`. No partial file is left.

        Examples
        --------
        A table in a variable:

        >>> days = pa.table({"city": ["Oslo", "Bonn", "Oslo"], "rain": [3, 5, 4]})
        >>> query = "SELECT city, sum(rain) AS rain FROM days GROUP BY city ORDER BY city"
        >>> inshore.sql(query, memory="64MiB").table().to_pydict()
        {'city': ['Bonn', 'Oslo'], 'rain': [5, 7]}

        The same table by an argument, which wins over variables:

        >>> store.sql("SELECT count(*) AS n FROM t", tables={"t": days}, memory="64MiB").table().to_pydict()
        {'n': [3]}
        >>> inshore.sql("SELECT * FROM days", replacement_scans=False, memory="64MiB").table()
        Traceback (most recent call last):
        inshore.errors.InputError: there is no table called days: expected ...
        """
        named = {name: Inputs(source, f"tables[{name!r}]") for name, source in (tables or {}).items()}
        missing = [name for name in _native.table_names(query) if name not in named]
        is_scanned = replacement_scans and self._nodes is None
        # This frame is that of the caller, since no target wraps this method.
        found = FoundTables(missing, sys._getframe(1) if is_scanned else None)
        named |= {name: Inputs(table) for name, table in found.tables.items()}
        missing = [name for name in missing if name not in named]
        fields = {"query": query, "text": list(text), "header": header}

        def start(job: _native.Job, output: StrPath | None) -> _native.Run:
            if self._nodes is None and _READS.match(query):
                _check_files(missing, list(tables or {}), found, is_scanned=is_scanned)
            files = enumerate(named.items())
            paths = [(name, inputs.paths(job, f"table-{number}.arrow")) for number, (name, inputs) in files]
            return self._start(job, "sql", fields, [], output, tables=paths)

        what = f"{' '.join(query.split())!r} in {self!r}"
        return Result(what, lambda: self._store().job(memory, threads), start, counted="rows", is_query=True)


def _check_files(names: list[str], tables: list[str], found: FoundTables, *, is_scanned: bool) -> None:
    """Raise an exception for the first name that is not a name of files either."""
    for name in names:
        if not _PATH_CHARACTERS.isdisjoint(name) or Path(name).exists():
            continue
        known = f" (there are {', '.join(sorted(tables))})" if tables else ""
        variable = "a variable with a data frame, an Arrow table or reader, or a result"
        if not is_scanned:
            variable = f"replacement_scans=True for {variable}"
        elif name in found.others:
            variable = f"{variable} (the variable {name} is a {found.others[name]})"
        raise InputError(
            f"there is no table called {name}: expected a table of tables={{...}}{known}, {variable}, or a "
            f"file in quotes, FROM '{name}.parquet'"
        )
