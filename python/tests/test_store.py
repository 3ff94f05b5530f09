"""Stores, imports, and refused imports."""

from __future__ import annotations

import errno
import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import inshore


def edges_of(graph: inshore.Graph, tmp_path: Path) -> list[tuple[int, ...]]:
    path = tmp_path / "edges-of.parquet"
    count = graph.export(path)
    columns = pa.parquet.read_table(path).columns
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    assert len(rows) == count == graph.info.edges
    return rows


def scratch(store: inshore.Store) -> list[str]:
    """Return the entries of processes that work on a store, without those of open graphs."""
    names = (entry.name for entry in (store.path / "scratch").iterdir())
    return sorted(name for name in names if not name.startswith("reader-"))


def test_the_default_store_is_where_the_environment_says(store_path: Path) -> None:
    store = inshore.Store()
    assert store.path == store_path.resolve()
    assert repr(store) == f"inshore.Store({str(store.path)!r})"


def test_a_store_lists_opens_and_removes(store: inshore.Store, edges: pa.Table) -> None:
    made = store.import_edges(edges, name="b")
    store.generate_kronecker(scale=3, name="a")
    assert [info.name for info in store.graphs()] == ["a", "b"]
    opened = store.graph("b")
    assert opened.info == made.info == store.graphs()[1]
    assert (opened.name, opened.report) == ("b", None)
    assert made.report is not None
    assert made.report["bytes_written"] > 0
    store.remove("b")
    assert [info.name for info in store.graphs()] == ["a"]
    assert opened.components().table().num_rows == made.info.vertices  # the graph has its files open
    assert scratch(store) == ["lock"]


@pytest.mark.parametrize(
    "form",
    [
        lambda table: table,
        lambda table: table.combine_chunks().to_batches()[0],
        lambda table: table.to_reader(max_chunksize=100),
        lambda table: table.cast(pa.schema([("source", pa.int64()), ("target", pa.int64())])),
        lambda table: pa.chunked_array(table.to_struct_array().chunks),
    ],
    ids=["table", "batch", "reader", "int64", "any-stream"],
)
def test_arrow_data_of_any_form_is_imported(
    store: inshore.Store, edges: pa.Table, tmp_path: Path, form: Callable[[pa.Table], Any]
) -> None:
    graph = store.import_edges(form(edges), name="g", memory="16MiB")
    expected = set(zip(edges["source"].to_pylist(), edges["target"].to_pylist(), strict=True))
    assert edges_of(graph, tmp_path) == sorted(expected)
    assert scratch(store) == ["lock"]


def test_files_of_any_format_are_imported(store: inshore.Store, edges: pa.Table, tmp_path: Path) -> None:
    pairs = list(zip(edges["source"].to_pylist(), edges["target"].to_pylist(), strict=True))
    lines = [f"{source}\t{target}\n" for source, target in pairs]
    (tmp_path / "a.txt").write_text("# some comment\n" + "".join(lines[:2000]))
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.writelines(lines[2000:])
    (tmp_path / "c.bak").write_text("source,target\n" + "".join(lines).replace("\t", ","))
    pa.parquet.write_table(edges, tmp_path / "d.parquet")
    graphs = [
        store.import_edges([tmp_path / "a.txt", str(tmp_path / "b.txt.gz")], name="text"),
        store.import_edges(tmp_path / "c.bak", name="csv", format="csv"),
        store.import_edges(str(tmp_path / "d.parquet"), name="parquet"),
    ]
    for graph in graphs:
        assert edges_of(graph, tmp_path) == sorted(set(pairs))


def test_columns_and_weights_are_chosen_by_name(store: inshore.Store, tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": ["a", "b", "c"],
            "to": [2, 3, 2],
            "from": [1, 2, 1],
            "cost": [0.5, 2.0, 0.25],
        }
    )
    graph = store.import_edges(
        table, name="g", source_column="from", target_column="to", weight_column="cost"
    )
    assert graph.info.weighted
    assert edges_of(graph, tmp_path) == [(1, 2, 0.25), (2, 3, 2.0)]  # the smaller of two weights is kept
    with pytest.raises(inshore.InputError, match="of"):
        store.import_edges(table, name="h", source_column="of", target_column="to")


def test_options_change_the_graph(store: inshore.Store) -> None:
    table = pa.table({"source": [1, 2, 2, 3], "target": [2, 1, 2, 1]})
    plain = store.import_edges(table, name="plain").info
    assert (plain.edges, plain.self_loops, plain.directed, plain.reverse) == (4, 1, True, False)
    assert plain.in_degree_max is None
    changed = store.import_edges(table, name="u", undirected=True, drop_loops=True).info
    assert (changed.edges, changed.self_loops, changed.directed) == (2, 0, False)
    both = store.import_edges(table, name="r", reverse=True).info
    assert (both.reverse, both.in_degree_max) == (True, 2)


def test_the_exception_says_what_is_wrong(store: inshore.Store, tmp_path: Path) -> None:
    graph = store.generate_kronecker(scale=3, name="kron")
    bad = tmp_path / "bad.txt"
    bad.write_text("1 2\n3 foo\n")
    cases: list[tuple[type[Exception], type[Exception], str, Callable[[], object]]] = [
        (inshore.NotFoundError, LookupError, '"web"', lambda: store.graph("web")),
        (inshore.NotFoundError, LookupError, '"web"', lambda: store.remove("web")),
        (inshore.NotFoundError, LookupError, "kron has no vertex 99", lambda: graph.bfs(99).table()),
        (inshore.ExistsError, Exception, '"kron"', lambda: store.import_edges(bad, name="kron")),
        (inshore.InputError, ValueError, r"bad\.txt:2.*foo", lambda: store.import_edges(bad, name="g")),
        (inshore.InputError, ValueError, "bad name", lambda: store.import_edges(bad, name="../g")),
        (inshore.InputError, ValueError, "format", lambda: store.import_edges(bad, name="g", format="xml")),
        (inshore.InputError, ValueError, "bad size", lambda: graph.bfs(0, memory="many").table()),
        (inshore.InputError, ValueError, "memory is -1", lambda: graph.bfs(0, memory=-1).table()),
        (inshore.InputError, ValueError, "threads is -1", lambda: graph.bfs(0, threads=-1).table()),
        (inshore.InputError, ValueError, "threads is 0", lambda: graph.bfs(0, threads=0).table()),
        (inshore.InputError, ValueError, "source is -1", lambda: graph.bfs(-1).table()),
        (inshore.InputError, ValueError, "iterations is", lambda: graph.pagerank(iterations=1 << 32).table()),
        (inshore.InputError, ValueError, "damping", lambda: graph.pagerank(damping=1.5).table()),
        (inshore.InputError, ValueError, "vertex_tolerance", graph.pagerank(vertex_tolerance=0.2).table),
        (inshore.InputError, ValueError, "scale", lambda: store.generate_kronecker(scale=99, name="g")),
        (inshore.InputError, ValueError, "not an Inshore store", lambda: inshore.Store(tmp_path)),
        (inshore.BudgetError, Exception, "8 MiB", lambda: graph.pagerank(memory="1MiB").table()),
        (inshore.FileError, OSError, "no.txt", lambda: store.import_edges(tmp_path / "no.txt", name="g")),
    ]
    for expected, builtin, message, provoke in cases:
        with pytest.raises(inshore.InshoreError, match=message) as caught:
            provoke()
        assert caught.type is expected, message
        assert isinstance(caught.value, builtin)
    assert [info.name for info in store.graphs()] == ["kron"]
    assert scratch(store) == ["lock"]


def test_wrong_types_are_type_errors(store: inshore.Store) -> None:
    graph = store.generate_kronecker(scale=3, name="kron")
    mistakes: list[Callable[[], object]] = [
        lambda: graph.bfs("0").table(),  # type: ignore[arg-type]
        lambda: graph.bfs(0, memory=1.5).table(),  # type: ignore[arg-type]
        lambda: graph.pagerank(iterations=1.5).table(),  # type: ignore[arg-type]
        lambda: store.import_edges(7, name="g"),  # type: ignore[arg-type]
    ]
    for provoke in mistakes:
        with pytest.raises(TypeError):
            provoke()


def test_a_file_error_has_the_number_of_the_system(store: inshore.Store, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"no\.txt") as caught:
        store.import_edges(tmp_path / "no.txt", name="g")
    assert caught.value.errno == errno.ENOENT
    assert str(caught.value).endswith("(os error 2)")


def test_damage_is_found_and_named(store: inshore.Store) -> None:
    graph = store.generate_kronecker(scale=12, name="kron")
    # Headers, superblock and log are in the first extents; some bits of each later extent are set.
    with (store.path / "segment-00000000").open("r+b") as file:
        for extent in range(6, file.seek(0, 2) // (2 << 20) + 1):
            file.seek(extent * (2 << 20) + 100)
            file.write(b"\xff\xff")
    with pytest.raises(inshore.DamagedError, match=r"kron/out\.index"):
        graph.pagerank().table()


def test_an_error_in_the_users_reader_comes_through(store: inshore.Store, edges: pa.Table) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from edges.to_batches(max_chunksize=100)[:3]
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        store.import_edges(pa.RecordBatchReader.from_batches(edges.schema, batches()), name="g")
    assert store.graphs() == []
    assert scratch(store) == ["lock"]


def test_arrow_data_has_no_format(store: inshore.Store, edges: pa.Table) -> None:
    with pytest.raises(inshore.InputError, match="expected none"):
        store.import_edges(edges, name="g", format="csv")


def test_numpy_numbers_are_numbers(store: inshore.Store) -> None:
    graph = store.generate_kronecker(scale=np.int64(4), name="g", seed=np.uint8(3))  # type: ignore[arg-type]
    result = graph.bfs(np.uint64(0), memory=np.int64(16 << 20))  # type: ignore[arg-type]
    assert result.table().num_rows == 16


def test_without_a_home_the_path_must_be_named() -> None:
    bare = {
        name: value
        for name, value in os.environ.items()
        if name not in {"INSHORE_STORE", "XDG_DATA_HOME", "HOME"}
    }
    code = "import inshore\ntry: inshore.Store()\nexcept inshore.InputError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True, check=True)
    assert "expected a folder" in done.stdout
