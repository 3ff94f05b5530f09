"""SQL, against pyarrow."""

from __future__ import annotations

from pathlib import Path

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
