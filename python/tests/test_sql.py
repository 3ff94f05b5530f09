"""SQL, against pyarrow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import inshore


@pytest.fixture
def table() -> pa.Table:
    random = np.random.default_rng(5)
    name = pa.array([f"n{value}" for value in random.integers(0, 40, 50_000)])
    return pa.table({"number": random.integers(0, 30_000, 50_000), "name": name})


def test_answers_are_those_of_pyarrow(store: inshore.Store, table: pa.Table, tmp_path: Path) -> None:
    expected = table.group_by("number").aggregate([("name", "count")]).sort_by("number")
    query = "SELECT number, count(name) AS name_count FROM t GROUP BY number ORDER BY number"
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(table, path)
    for source in (table, table.to_reader(max_chunksize=999), path, [path]):
        result = store.sql(query, tables={"t": source}, memory="32MiB")
        found = result.table()
        assert found.column("number").equals(expected.column("number"))
        assert found.column("name_count").equals(expected.column("name_count"))
    assert result.report["memory_budget_bytes"] == 32 << 20
    named = inshore.sql(f"SELECT count(*) AS n FROM '{path}'", memory="32MiB").table()
    assert isinstance(named, pa.Table)
    assert named.to_pydict() == {"n": [50_000]}


def test_rows_come_as_a_file_or_a_stream(store: inshore.Store, table: pa.Table, tmp_path: Path) -> None:
    query = "SELECT DISTINCT name FROM t"
    output = tmp_path / "names.parquet"
    written = store.sql(query, tables={"t": table}, memory="32MiB").write(output)
    assert (written.rows, written.summary["rows"]) == (40, 40)
    assert written.summary["operators"][0]["ways"] == ["in memory"]
    assert pa.parquet.read_table(output).num_rows == 40
    reader = store.sql("SELECT * FROM t", tables={"t": table}, memory="32MiB").reader()
    assert sum(batch.num_rows for batch in reader) == 50_000
    abandoned = store.sql("SELECT * FROM t ORDER BY name", tables={"t": table}, memory="32MiB").reader()
    abandoned.read_next_batch()
    del abandoned
    assert [entry.name for entry in (store.path / "scratch").iterdir()] == ["lock"]


def test_what_cannot_be_answered_is_told(store: inshore.Store, tmp_path: Path) -> None:
    with pytest.raises(inshore.InputError, match="there is no table called nothing"):
        store.sql("SELECT * FROM nothing", memory="32MiB").table()
    with pytest.raises(inshore.InputError, match="only queries"):
        store.sql("CREATE TABLE t AS SELECT 1", memory="32MiB").table()
    with pytest.raises(inshore.BudgetError, match="24 MiB"):
        store.sql("SELECT 1", memory="8MiB").table()
    with pytest.raises(inshore.FileError, match="missing"):
        store.sql("SELECT * FROM 'missing.csv'", memory="32MiB").table()
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(inshore.InputError, match=r"bad\.parquet"):
        store.sql(f"SELECT * FROM '{bad}'", memory="32MiB").table()


IN_MODULE = pa.table({"n": [10, 20]})


def test_variables_are_tables(store: inshore.Store) -> None:
    arrow = pa.table({"n": [1, 2, 3]})
    kinds: dict[str, Any] = {
        "a table": arrow,
        "a batch": arrow.to_batches()[0],
        "a reader": arrow.to_reader(),
        "a data frame of pandas": arrow.to_pandas(),
        "a data frame of Polars": pytest.importorskip("polars").from_arrow(arrow),
        "a relation of DuckDB": pytest.importorskip("duckdb").sql("SELECT * FROM arrow"),
        "a result": store.sort(arrow, by="n", memory="16MiB"),
    }
    for kind, numbers in kinds.items():
        # `numbers` and IN_MODULE are variables of this function and of its module.
        result = store.sql("SELECT sum(n) AS n FROM numbers", memory="32MiB")
        assert result.table()["n"].to_pylist() == [6], (kind, numbers)
        both = 'SELECT count(*) AS n FROM numbers CROSS JOIN "IN_MODULE"'
        if kind != "a reader":
            assert inshore.sql(both, memory="32MiB").table()["n"].to_pylist() == [6], kind

    def within() -> Any:
        numbers = pa.table({"n": [7]})  # noqa: F841
        return inshore.sql("SELECT sum(n) AS n FROM numbers", memory="32MiB").table()["n"].to_pylist()

    assert within() == [7]


def test_a_query_keeps_the_object_that_a_variable_held() -> None:
    numbers = pa.table({"n": [1]})
    result = inshore.sql("SELECT sum(n) AS n FROM numbers", memory="32MiB")
    numbers = pa.table({"n": [2]})
    assert result.table()["n"].to_pylist() == [1]
    assert numbers.num_rows == 1


def test_arguments_win_over_variables_and_variables_over_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pa.parquet.write_table(pa.table({"n": [3]}), "numbers")
    given = pa.table({"n": [1]})
    numbers = pa.table({"n": [2]})  # noqa: F841
    query = "SELECT sum(n) AS n FROM numbers"

    def sums(query: str, **options: Any) -> Any:
        numbers = pa.table({"n": [2]})  # noqa: F841
        return inshore.sql(query, memory="32MiB", **options).table()["n"].to_pylist()

    assert sums(query) == [2]
    assert sums(query, tables={"numbers": given}) == [1]
    pa.parquet.write_table(pa.table({"n": [4]}), "numbers.parquet")
    assert sums("SELECT sum(n) AS n FROM 'numbers.parquet'") == [4]


def test_only_names_of_tables_are_looked_for() -> None:
    """A reader that a query does not name as a table is not read."""
    t = pa.table({"n": [1]}).to_reader()
    generate_series = t
    for query in (
        "WITH t AS (SELECT 5 AS n) SELECT n FROM t",
        "SELECT max(value) AS n FROM generate_series(1, 5)",
        "SELECT n FROM (VALUES (5)) AS t (n)",
        "SELECT 5 AS n -- FROM t",
    ):
        found = inshore.sql(query, memory="32MiB").table()
        assert found["n"].to_pylist() == [5], query
    assert generate_series.read_all().num_rows == 1


def test_names_in_lower_case_find_variables_that_differ_in_case() -> None:
    Days = pa.table({"n": [1]})  # noqa: N806
    assert inshore.sql("SELECT sum(n) AS n FROM Days", memory="32MiB").table()["n"].to_pylist() == [1]
    days = pa.table({"n": [2]})
    assert inshore.sql("SELECT sum(n) AS n FROM Days", memory="32MiB").table()["n"].to_pylist() == [2]
    assert inshore.sql('SELECT sum(n) AS n FROM "Days"', memory="32MiB").table()["n"].to_pylist() == [1]
    del days
    DAYS = Days  # noqa: F841, N806
    with pytest.raises(inshore.InputError, match="may be the variable Days or DAYS"):
        inshore.sql("SELECT * FROM days", memory="32MiB")


def test_a_name_without_a_table_is_told(store: inshore.Store) -> None:
    numbers = [1, 2]  # noqa: F841
    table = pa.table({"n": [1]})
    for options, told in (
        ({}, r"\(the variable numbers is a list\), or a file in quotes, FROM 'numbers.parquet'"),
        ({"tables": {"t": table}}, r"a table of tables={\.\.\.} \(there are t\)"),
        ({"replacement_scans": False}, "replacement_scans=True for a variable with a data frame"),
    ):
        with pytest.raises(inshore.InputError, match="there is no table called numbers") as raised:
            store.sql("SELECT * FROM numbers", memory="32MiB", **options).table()
        assert re.search(told, str(raised.value)), raised.value
    with pytest.raises(inshore.InputError, match="there is no table called table"):
        store.sql('SELECT * FROM "table"', replacement_scans=False, memory="32MiB").table()
    assert store.sql('SELECT * FROM "table"', memory="32MiB").table() == table
    assert [entry.name for entry in (store.path / "scratch").iterdir()] == ["lock"]
