"""How rows reach the user."""

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
        assert_type(graph.pagerank(), pa.Table)
        assert_type(graph.bfs(1, output=None, stream=False), pa.Table)
        assert_type(graph.components(stream=True), pa.RecordBatchReader)
        assert_type(graph.betweenness(output="rows.csv"), inshore.Result)
        assert_type(graph.pagerank(output=Path("rows.csv"), memory=1 << 26).rows, int)


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


def call(graph: inshore.Graph, algorithm: str, **options: Any) -> Any:
    return getattr(graph, algorithm)(**ALGORITHMS[algorithm], **options)


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
    table = call(graph, algorithm, memory="16MiB")
    assert isinstance(table, pa.Table)
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == SCHEMAS[algorithm]
    assert table.num_rows == graph.info.vertices

    reader = call(graph, algorithm, memory="16MiB", stream=True)
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema.equals(table.schema)
    batches = list(reader)
    assert len(batches) > 1
    assert_equal(pa.Table.from_batches(batches), table)

    path = tmp_path / "rows.parquet"
    result = call(graph, algorithm, memory="16MiB", output=path)
    assert (result.path, result.rows) == (path, table.num_rows)
    assert_equal(pa.parquet.read_table(path), table)
    assert result.summary == inshore.summary(table) == inshore.summary(reader)
    assert result.report["memory_budget_bytes"] == 16 << 20


@pytest.mark.parametrize("ending", ["parquet", "arrow", "csv"])
def test_the_ending_chooses_the_format(graph: inshore.Graph, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    graph.components(output=str(path))
    if ending == "parquet":
        table = pa.parquet.read_table(path)
    elif ending == "arrow":
        table = pa.ipc.open_file(str(path)).read_all()
    else:
        table = pa.csv.read_csv(path)
    expected = graph.components()
    assert_equal(table.cast(expected.schema), expected)


def test_rows_come_and_go_without_a_copy(graph: inshore.Graph) -> None:
    before = pa.total_allocated_bytes()
    table = graph.pagerank()
    ranks = [chunk.to_numpy(zero_copy_only=True) for chunk in table["rank"].chunks]
    assert pa.total_allocated_bytes() - before < 4096
    assert np.concatenate(ranks).sum() == pytest.approx(1)
    del table
    assert np.concatenate(ranks).sum() == pytest.approx(1)  # the arrays keep the rows alive


def working(store: inshore.Store) -> list[str]:
    names = (entry.name for entry in (store.path / "scratch").iterdir())
    return sorted(name for name in names if not name.startswith("reader-"))


def test_a_reader_that_is_dropped_hands_its_scratch_back(graph: inshore.Graph, store: inshore.Store) -> None:
    reader = graph.pagerank(stream=True)
    reader.read_next_batch()
    assert len(working(store)) == 2  # the lock, and the job's
    del reader
    assert working(store) == ["lock"]


def test_a_table_tells_what_it_cost(graph: inshore.Graph) -> None:
    table = graph.pagerank(iterations=3, memory=32 << 20, threads=1)
    cost = inshore.report(table)
    # What only a measured drive has may be absent.
    assert inshore.Report.__required_keys__ <= set(cost) <= set(inshore.Report.__annotations__)
    assert set(inshore.summary(table)) <= set(inshore.Summary.__annotations__)
    assert inshore.summary(table)["supersteps"] == 3
    assert (cost["threads"], cost["memory_budget_bytes"]) == (1, 32 << 20)
    assert 0 < cost["memory_reserved_bytes_max"] <= 32 << 20
    assert cost["bytes_read"] > 0
    assert {frozenset(phase) for phase in cost["phases"]} == {frozenset(inshore.PhaseReport.__annotations__)}
    levels = {frozenset(level) for level in cost["levels"]}
    assert levels <= {frozenset(inshore.LevelReport.__annotations__)}


def test_a_table_from_elsewhere_has_no_facts() -> None:
    table = pa.table({"x": [1]})
    with pytest.raises(inshore.InputError, match="expected a table that Inshore made"):
        inshore.summary(table)
    with pytest.raises(inshore.InputError, match="expected a table that Inshore made"):
        inshore.report(table.replace_schema_metadata({"other": "thing"}))


def test_output_and_stream_exclude_each_other(graph: inshore.Graph) -> None:
    with pytest.raises(inshore.InputError, match="expected one of them"):
        graph.components(output="x.parquet", stream=True)  # type: ignore[call-overload]


def test_an_output_that_cannot_be_is_refused_at_once(graph: inshore.Graph, tmp_path: Path) -> None:
    with pytest.raises(inshore.InputError, match=r"rows\.xlsx"):
        graph.betweenness(sources=1 << 40, output=tmp_path / "rows.xlsx")
    with pytest.raises(inshore.FileError, match="no"):
        graph.betweenness(sources=1 << 40, output=tmp_path / "no" / "rows.csv")
    with pytest.raises(inshore.InputError, match="ending"):
        graph.betweenness(sources=1 << 40, output="-")  # no standard output here
    assert list(tmp_path.glob("rows*")) == []
