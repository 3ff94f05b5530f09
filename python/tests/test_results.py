"""The methods that return rows to the user."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import inshore

if TYPE_CHECKING:
    from typing_extensions import assert_type

    def what_a_type_checker_sees(graph: inshore.Graph) -> None:
        assert_type(graph.pagerank(), inshore.Result)
        assert_type(graph.bfs(1).table(), pa.Table)
        assert_type(graph.components().reader(), pa.RecordBatchReader)
        assert_type(graph.betweenness().write("rows.csv"), inshore.Written)
        assert_type(graph.pagerank(memory=1 << 26).write(Path("rows.csv")).rows, int)
        assert_type(inshore.search("x"), inshore.Result)
        assert_type(inshore.Store().sql("SELECT 1"), inshore.Result)


ALGORITHMS: dict[str, dict[str, Any]] = {
    "pagerank": {},
    "bfs": {"source": 0},
    "components": {},
    "communities": {},
    "clustering": {},
    "betweenness": {},
}
SCHEMAS: dict[str, dict[str, pa.DataType]] = {
    "pagerank": {"vertex": pa.uint64(), "rank": pa.float64()},
    "bfs": {"vertex": pa.uint64(), "parent": pa.uint64(), "level": pa.uint32()},
    "components": {"vertex": pa.uint64(), "component": pa.uint64()},
    "communities": {"vertex": pa.uint64(), "community": pa.uint64()},
    "clustering": {"vertex": pa.uint64(), "coefficient": pa.float64()},
    "betweenness": {"vertex": pa.uint64(), "centrality": pa.float64()},
}


@pytest.fixture
def graph(store: inshore.Store) -> inshore.Graph:
    return store.generate_kronecker(scale=15, edge_factor=4, name="kron")


@pytest.fixture(params=ALGORITHMS)
def algorithm(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def call(graph: inshore.Graph, algorithm: str, **options: Any) -> inshore.Result:
    result: inshore.Result = getattr(graph, algorithm)(**ALGORITHMS[algorithm], **options)
    return result


def assert_equal(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema.equals(expected.schema)
    for column, other in zip(found.columns, expected.columns, strict=True):
        if pa.types.is_floating(column.type):  # sums, whose order depends on the threads
            np.testing.assert_allclose(column.to_numpy(), other.to_numpy(), rtol=1e-9)
        else:
            assert column.equals(other)


def test_a_reader_and_a_file_hold_the_rows_of_the_table(
    graph: inshore.Graph, algorithm: str, tmp_path: Path
) -> None:
    result = call(graph, algorithm, memory="16MiB")
    table = result.table()
    assert isinstance(table, pa.Table)
    summary = result.summary
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == SCHEMAS[algorithm]
    assert table.num_rows == graph.info.vertices

    reader = result.reader()
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema.equals(table.schema)
    batches = list(reader)
    assert len(batches) > 1
    assert_equal(pa.Table.from_batches(batches), table)

    path = tmp_path / "rows.parquet"
    assert result.summary == summary
    written = result.write(path)
    assert (written.path, written.rows) == (path, table.num_rows)
    assert_equal(pa.parquet.read_table(path), table)
    assert written.summary == summary == result.summary
    assert written.report["memory_budget_bytes"] == 16 << 20


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv"])
def test_the_ending_chooses_the_format(graph: inshore.Graph, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    graph.components().write(str(path))
    if ending == "parquet":
        table = pa.parquet.read_table(path)
    elif ending == "arrow":
        table = pa.ipc.open_file(str(path)).read_all()
    else:
        table = pa.csv.read_csv(path)
    expected = graph.components().table()
    assert_equal(table.cast(expected.schema), expected)


def test_rows_come_and_go_without_a_copy(graph: inshore.Graph) -> None:
    before = pa.total_allocated_bytes()
    table = graph.pagerank().table()
    ranks = [chunk.to_numpy(zero_copy_only=True) for chunk in table["rank"].chunks]
    assert pa.total_allocated_bytes() - before < 4096
    assert np.concatenate(ranks).sum() == pytest.approx(1)
    del table
    assert np.concatenate(ranks).sum() == pytest.approx(1)  # the arrays keep the rows alive


def working(store: inshore.Store) -> list[str]:
    names = (entry.name for entry in (store.path / "scratch").iterdir())
    return sorted(name for name in names if not name.startswith("reader-"))


def test_a_reader_that_is_dropped_hands_its_scratch_back(graph: inshore.Graph, store: inshore.Store) -> None:
    reader = graph.pagerank().reader()
    reader.read_next_batch()
    assert len(working(store)) == 2  # the lock, and the job's folder
    del reader
    assert working(store) == ["lock"]


def test_a_result_tells_what_it_cost(graph: inshore.Graph) -> None:
    result = graph.pagerank(iterations=3, memory=32 << 20, threads=1)
    result.table()
    cost = result.report
    # Fields of a measured drive may be absent.
    assert inshore.Report.__required_keys__ <= set(cost) <= set(inshore.Report.__annotations__)
    assert set(result.summary) <= set(inshore.Summary.__annotations__)
    assert result.summary["supersteps"] == 3
    assert (cost["threads"], cost["memory_budget_bytes"]) == (1, 32 << 20)
    assert 0 < cost["memory_reserved_bytes_max"] <= 32 << 20
    assert cost["bytes_read"] > 0
    assert {frozenset(phase) for phase in cost["phases"]} == {frozenset(inshore.PhaseReport.__annotations__)}
    levels = {frozenset(level) for level in cost["levels"]}
    assert levels <= {frozenset(inshore.LevelReport.__annotations__)}


def test_nothing_runs_before_its_rows_are_asked_for(graph: inshore.Graph, store: inshore.Store) -> None:
    result = graph.pagerank(memory="1MiB")
    assert repr(result) == "<inshore.Result: pagerank of graph 'kron', not run yet>"
    for facts in ("summary", "report"):
        with pytest.raises(inshore.InputError, match="the result has not run yet"):
            getattr(result, facts)
    with pytest.raises(inshore.BudgetError, match="8 MiB"):
        result.table()
    assert working(store) == ["lock"]
    result = store.sort("missing.csv", by="x", memory="16MiB")
    assert repr(result) == f"<inshore.Result: sort of 'missing.csv' in {store!r}, not run yet>"
    with pytest.raises(inshore.FileError, match=r"missing\.csv"):
        result.table()
    assert "not run yet" in repr(result)


def test_every_way_to_the_rows_gives_the_same(store: inshore.Store) -> None:
    expected = pa.table({"size": [1, 2, 3], "name": ["c", "a", "b"]})
    handed = pa.table({"size": [3, 1, 2], "name": ["b", "c", "a"]})
    results = [
        store.sort(handed, by="size", memory="16MiB"),
        store.sql("SELECT * FROM t ORDER BY size", tables={"t": handed}, memory="32MiB"),
    ]
    for result in results:
        for _ in range(2):  # every call runs anew
            assert result.table().equals(expected)
        assert result.reader().read_all().equals(expected)
        assert pa.Table.from_batches(result).equals(expected)
        assert pa.table(result).equals(expected)
        assert result.to_pandas().to_dict("list") == expected.to_pydict()
        polars = pytest.importorskip("polars")
        for frame in (result.to_polars(), polars.DataFrame(result)):
            assert frame.to_dict(as_series=False) == expected.to_pydict()
        duckdb = pytest.importorskip("duckdb")
        assert duckdb.sql("SELECT sum(size) FROM result").fetchall() == [(6,)]
        # The next verb accepts a result as a table.
        again = store.sort(result, by=[("size", "descending")], memory="16MiB").table()
        assert again["size"].to_pylist() == [3, 2, 1]
        assert "has run" in repr(result)
    assert working(store) == ["lock"]


def test_a_reader_that_was_handed_over_can_be_read_in_one_run(store: inshore.Store) -> None:
    result = store.sort(pa.table({"k": [2, 1]}).to_reader(), by="k", memory="16MiB")
    assert result.table()["k"].to_pylist() == [1, 2]
    with pytest.raises(inshore.InputError, match="the reader was read already"):
        result.table()


def test_lines_are_no_table(store: inshore.Store, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("b\na\n")
    result = store.sort_lines(tmp_path / "lines.txt", memory="16MiB")
    with pytest.raises(inshore.InputError, match=r"call write\(path\)"):
        result.table()


def test_an_output_that_cannot_be_is_refused_at_once(graph: inshore.Graph, tmp_path: Path) -> None:
    with pytest.raises(inshore.InputError, match=r"rows\.xlsx"):
        graph.betweenness(sources=1 << 40).write(tmp_path / "rows.xlsx")
    with pytest.raises(inshore.FileError, match="no"):
        graph.betweenness(sources=1 << 40).write(tmp_path / "no" / "rows.csv")
    with pytest.raises(inshore.InputError, match="extension"):
        graph.betweenness(sources=1 << 40).write("-")  # no standard output here
    assert list(tmp_path.glob("rows*")) == []
