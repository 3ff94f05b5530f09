"""Tests of nearest neighbours. The answers must equal those of NumPy."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inshore


@pytest.mark.parametrize(("name", "element"), [("f32", np.float32), ("u8", np.uint8), ("i8", np.int8)])
def test_answers_equal_brute_force(tmp_path: Path, name: str, element: type) -> None:
    rng = np.random.default_rng(1)
    base: npt.NDArray[np.generic] = rng.normal(40, 20, (500, 33)).astype(element)
    queries = base[:20]
    store = inshore.Store(tmp_path / "store")
    assert store.import_vectors(base, name="base", memory="16MiB")["element"] == name
    found = store.nearest("base", queries, k=7, memory="16MiB").table()
    x, q = base.astype(np.float64), queries.astype(np.float64)
    squares = ((q[:, None] - x[None]) ** 2).sum(2)
    ids = np.argsort(squares, axis=1, kind="stable")[:, :7]
    assert (found["id"].to_numpy().reshape(20, 7) == ids).all()
    wanted = np.sqrt(np.take_along_axis(squares, ids, 1)).astype(np.float32)
    assert np.allclose(found["distance"].to_numpy().reshape(20, 7), wanted, rtol=1e-6)
    np.save(tmp_path / "queries.npy", queries)
    again = store.nearest("base", tmp_path / "queries.npy", k=7, memory="16MiB", threads=1).table()
    assert again.equals(found)


class Sliced:
    """An array that only slices reach, as a dataset of h5py."""

    def __init__(self, array: npt.NDArray[np.generic]) -> None:
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.rows_max = 0

    def __getitem__(self, rows: slice) -> npt.NDArray[np.generic]:
        part = self.array[rows]
        self.rows_max = max(self.rows_max, len(part))
        return part


def test_arrays_on_file_are_read_in_blocks(tmp_path: Path) -> None:
    base = np.random.default_rng(7).normal(size=(9000, 64)).astype(np.float32)
    store = inshore.Store(tmp_path / "store")
    on_file, queries = Sliced(base), Sliced(base[:5])
    assert store.import_vectors(on_file, name="sliced", memory="16MiB")["vectors"] == 9000
    assert on_file.rows_max == (1 << 20) // 256
    store.import_vectors(base, name="base", memory="16MiB")
    answers = [store.nearest(name, queries, k=3, memory="16MiB").table() for name in ("sliced", "base")]
    assert answers[0].equals(answers[1])
    with pytest.raises(inshore.InputError):
        store.import_vectors(Sliced(base.astype(np.complex64)), name="complex", memory="16MiB")


def test_hdf5_files_of_ann_benchmarks(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    base = np.random.default_rng(8).normal(size=(300, 16)).astype(np.float32)
    with h5py.File(tmp_path / "made-16-euclidean.hdf5", "w") as file:
        file["train"], file["test"] = base, base[:4]
    store = inshore.Store(tmp_path / "store")
    with h5py.File(tmp_path / "made-16-euclidean.hdf5") as file:
        store.import_vectors(file["train"], name="made", memory="16MiB")
        found = store.nearest("made", file["test"], k=1, memory="16MiB").table()
    assert found["id"].to_pylist() == [0, 1, 2, 3]


def test_an_index_finds_most_neighbours(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    near = rng.normal(0, 4, (20, 16))[rng.integers(0, 20, 8000)]
    base = (near + rng.normal(0, 1, (8000, 16))).astype(np.float32)
    queries = base[:50] + np.float32(0.1)
    store = inshore.Store(tmp_path / "store")
    store.import_vectors(base, name="base", memory="64MiB")
    exact = store.nearest("base", queries, memory="64MiB").table()
    assert store.nearest("base", queries, recall=0.9, memory="64MiB").table().equals(exact)
    index = store.index_vectors("base", lists=80, seed=3, memory="64MiB")
    assert index["lists"] <= 90
    found = store.nearest("base", queries, recall=0.9, memory="64MiB").table()
    pairs = set(zip(exact["query"].to_pylist(), exact["id"].to_pylist(), strict=True))
    common = pairs & set(zip(found["query"].to_pylist(), found["id"].to_pylist(), strict=True))
    assert len(common) >= 0.8 * len(pairs)
    assert store.measure_recall("base", queries, sample=20, memory="64MiB")["queries"] == 20
    for strategy in ("single", "batch"):
        again = store.nearest("base", queries, probes=10**6, strategy=strategy, memory="64MiB").table()
        assert again.equals(exact)
    index = store.index_vectors("base", lists=80, copies=3, memory="64MiB")
    assert 8000 < index["copies"]["vectors"] <= 3 * 8100
    assert index["copies"]["recall"]["points"]
    again = store.nearest("base", queries, probes=10**6, strategy="single", memory="64MiB").table()
    assert again.equals(exact)
    index = store.index_vectors("base", lists=80, codes=4, memory="64MiB")
    assert index["codes"]["bits"] == 4
    assert index["codes"]["recall"]["points"]
    again = store.nearest("base", queries, probes=40, strategy="single", memory="64MiB").table()
    pairs = set(zip(again["query"].to_pylist(), again["id"].to_pylist(), strict=True))
    other = store.nearest("base", queries, probes=40, strategy="batch", memory="64MiB").table()
    common = pairs & set(zip(other["query"].to_pylist(), other["id"].to_pylist(), strict=True))
    assert len(common) >= 0.95 * len(pairs)
    with pytest.raises(inshore.InputError, match="copies"):
        store.index_vectors("base", codes=1, copies=3, memory="64MiB")
    with pytest.raises(inshore.InputError, match="the index of base was built"):
        store.nearest("base", queries, metric="ip", recall=0.9, memory="64MiB").table()


def test_hash_tables_find_most_neighbours(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    prototypes = rng.integers(0, 256, (20, 32), dtype=np.uint8)
    base = prototypes[rng.integers(0, 20, 4000)]
    noise = rng.random(base.shape) < 0.1
    base = np.where(noise, rng.integers(0, 256, base.shape, dtype=np.uint8), base)
    store = inshore.Store(tmp_path / "store")
    store.import_vectors(base, name="base", memory="64MiB")
    exact = store.nearest("base", base[:40], metric="hamming", memory="64MiB").table()
    built = store.index_vectors("base", metric="hamming", lsh=True, tables=6, bits=8, seed=2, memory="64MiB")
    assert (built["family"], built["tables"], built["bits"], built["buckets"]) == ("bit_sampling", 6, 8, 256)
    described = store.describe_vectors("base")
    assert (described["index"], described["lsh"]["tables"]) == (None, 6)
    found = store.nearest("base", base[:40], metric="hamming", recall=0.9, memory="64MiB").table()
    distances = found["distance"].to_numpy().reshape(40, 10)
    wanted = exact["distance"].to_numpy().reshape(40, 10)
    assert (distances >= wanted).all()
    assert (distances == wanted).mean() >= 0.8
    everything = store.nearest("base", base[:40], metric="hamming", probes=10**6, memory="64MiB").table()
    assert everything.equals(exact)
    assert store.measure_recall("base", base[:40], sample=20, memory="64MiB")["queries"] == 20
    with pytest.raises(inshore.InputError, match="tables: found without lsh"):
        store.index_vectors("base", tables=4, memory="64MiB")
    with pytest.raises(inshore.InputError, match="lists: found 8 beside lsh"):
        store.index_vectors("base", lsh=True, lists=8, memory="64MiB")


def test_joins_graphs_and_duplicates_equal_brute_force(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    base = rng.integers(0, 8, (300, 5)).astype(np.uint8)
    store = inshore.Store(tmp_path / "store")
    store.import_vectors(base, name="base", memory="16MiB")
    store.import_vectors(base[:40].astype(np.float32), name="some", memory="16MiB")
    joined = store.join_vectors("some", "base", k=7, memory="16MiB").table()
    assert joined.equals(store.nearest("base", base[:40], k=7, memory="16MiB").table())
    squares = ((base[:, None].astype(np.int64) - base[None]) ** 2).sum(2)
    without = squares + np.where(np.eye(300, dtype=bool), 10**6, 0)
    ids = np.argsort(without, axis=1, kind="stable")[:, :7]
    graph = store.neighbour_graph("base", k=7, memory="8MiB", threads=1)
    assert (graph.table()["id"].to_numpy().reshape(300, 7) == ids).all()
    graph.write(tmp_path / "graph.parquet")
    pairs = store.near_duplicates("base", radius=2.0, memory="16MiB").table()
    found = list(zip(pairs["id"].to_pylist(), pairs["duplicate"].to_pylist(), strict=True))
    assert found == [tuple(pair) for pair in np.argwhere(np.triu(squares <= 4, 1)).tolist()]
    groups = store.near_duplicates("base", radius=2.0, groups=True, memory="16MiB").table()
    labels = np.arange(300)
    for _ in range(300):
        for one, other in found:
            labels[one] = labels[other] = min(labels[one], labels[other])
    assert groups["id"].to_pylist() == np.unique(np.array(found)).tolist()
    assert groups["group"].to_pylist() == labels[groups["id"].to_numpy()].tolist()
    with pytest.raises(inshore.InputError, match="expected a radius or a cosine"):
        store.near_duplicates("base", memory="16MiB").table()
    with pytest.raises(inshore.NotFoundError):
        store.join_vectors("none", "base", memory="16MiB").table()


def test_packed_bits_and_half_floats(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    store = inshore.Store(tmp_path / "store")
    bits = rng.integers(0, 2, (200, 128))
    packed = np.packbits(bits, axis=1)
    told = store.import_vectors(packed, name="bits", bits=True, memory="16MiB")
    assert (told["element"], told["dimensions"]) == ("bits", 128)
    found = store.nearest("bits", packed[:5], k=9, metric="hamming", memory="16MiB").table()
    counts = (bits[:5, None] != bits[None]).sum(2)
    ids = np.argsort(counts, axis=1, kind="stable")[:, :9]
    assert (found["id"].to_numpy().reshape(5, 9) == ids).all()
    half = rng.normal(0, 1, (200, 24)).astype(np.float16)
    assert store.import_vectors(half, name="half", memory="16MiB")["element"] == "f16"
    queries = rng.normal(0, 1, (5, 24)).astype(np.float32)
    found = store.nearest("half", queries, k=9, memory="16MiB").table()
    squares = ((queries[:, None].astype(np.float64) - half[None].astype(np.float64)) ** 2).sum(2)
    assert (found["id"].to_numpy().reshape(5, 9) == np.argsort(squares, axis=1)[:, :9]).all()


def test_refusals_name_the_place(tmp_path: Path) -> None:
    store = inshore.Store(tmp_path / "store")
    bad = np.ones((3, 2), np.float32)
    bad[2, 1] = np.nan
    with pytest.raises(inshore.InputError, match="vector 2, dimension 1: found NaN"):
        store.import_vectors(bad, name="bad", memory="16MiB")
    with pytest.raises(inshore.NotFoundError):
        store.nearest("bad", bad[:2], memory="16MiB").table()
    store.import_vectors(bad[:2], name="good", memory="16MiB")
    with pytest.raises(inshore.InputError, match="dimensions"):
        store.nearest("good", np.ones((1, 3), np.float32), memory="16MiB").table()
    with pytest.raises(inshore.InputError):
        store.nearest("good", bad[:1], k=0, memory="16MiB").table()


def test_arguments_are_refused_when_the_verb_is_called(tmp_path: Path) -> None:
    store = inshore.Store(tmp_path / "store")
    good = np.ones((2, 2), np.float32)
    store.import_vectors(good, name="good", memory="16MiB")
    integers = "queries: found an array of int64, expected one of float32, .*astype"
    with pytest.raises(inshore.InputError, match=integers):
        store.nearest("good", np.ones((1, 2), np.int64), memory="16MiB")
    with pytest.raises(inshore.InputError, match="vectors: found an array of int64"):
        store.import_vectors(np.ones((1, 2), np.int64), name="more", memory="16MiB")
    lists: Any = [[1.0, 1.0]]
    with pytest.raises(inshore.InputError, match="queries: found a list of list, expected an array of NumPy"):
        store.nearest("good", lists, memory="16MiB")
    with pytest.raises(inshore.InputError, match="vectors: found a list of list, expected an array of NumPy"):
        store.import_vectors(lists, name="more", memory="16MiB")
    with pytest.raises(inshore.InputError, match=r"select is the text 'title': expected .* \['title'\]"):
        store.nearest("good", good, select="title", memory="16MiB")
    metric: Any = "euclid"
    with pytest.raises(inshore.InputError, match="metric is 'euclid': expected l2, ip"):
        store.nearest("good", good, metric=metric, memory="16MiB")
    with pytest.raises(inshore.InputError, match="metric is 'euclid'"):
        store.neighbour_graph("good", metric=metric, memory="16MiB")
    with store.vectors("good", memory="24MiB") as searcher:
        with pytest.raises(inshore.InputError, match=integers):
            searcher.search(np.ones((1, 2), np.int64))
        with pytest.raises(inshore.InputError, match="queries: found a list: "):
            searcher.search([[1.0], [1.0, 2.0]])
        with pytest.raises(inshore.InputError, match="select is the text"):
            searcher.search([1.0, 1.0], select="title")


def test_vectors_are_listed_described_and_removed(tmp_path: Path) -> None:
    store = inshore.Store(tmp_path / "store")
    base = np.random.default_rng(3).normal(size=(300, 8)).astype(np.float32)
    store.import_vectors(base, name="plain", memory="32MiB")
    store.import_vectors(base, name="indexed", memory="32MiB")
    built = store.index_vectors("indexed", metric="ip", memory="32MiB")
    indexed, plain = store.list_vectors()
    assert (plain["name"], plain["index"], plain["bytes"]) == ("plain", None, 300 * 8 * 4 + 8 * 4)
    described = store.describe_vectors("indexed")
    sizes = described.pop("list_sizes")
    assert described.pop("imported_from") == "vectors"
    assert 0 < sizes["largest"] <= 300
    assert sizes["planned"] > 0
    assert indexed == described
    assert indexed["index"] == {key: value for key, value in built.items() if key in indexed["index"]}
    store.remove_vectors("indexed", index=True)
    assert store.describe_vectors("indexed")["index"] is None
    with pytest.raises(inshore.InputError, match="indexed has no index"):
        store.remove_vectors("indexed", index=True)
    store.index_vectors("indexed", memory="32MiB")
    store.remove_vectors("indexed")
    assert [each["name"] for each in store.list_vectors()] == ["plain"]
    with pytest.raises(inshore.NotFoundError, match="indexed"):
        store.remove_vectors("indexed")
    with pytest.raises(inshore.NotFoundError, match="indexed"):
        store.describe_vectors("indexed")


def test_vectors_are_added_replaced_removed_and_compacted(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    store = inshore.Store(tmp_path / "store")
    base = rng.normal(0, 1, (50, 8)).astype(np.float32)
    more = rng.normal(0, 1, (10, 8)).astype(np.float32)
    store.import_vectors(base, name="base", memory="16MiB")
    assert store.add_vectors("base", more, memory="16MiB")["first_id"] == 50
    changed = store.upsert_vectors("base", more[:2], ids=np.array([3, 70]), memory="16MiB")
    assert (changed["replaced"], changed["added"], changed["next_id"]) == (1, 1, 71)
    (tmp_path / "ids.txt").write_text("5\n6\n")
    assert store.remove_from_vectors("base", tmp_path / "ids.txt", memory="16MiB")["taken"] == 2
    assert store.remove_from_vectors("base", [5], memory="16MiB")["absent"] == 1
    live = {number: base[number] for number in range(50) if number not in (5, 6)}
    live |= {50 + number: row for number, row in enumerate(more)} | {3: more[0], 70: more[1]}
    for removed in (3, 0):
        described = store.describe_vectors("base")
        assert (described["vectors"], described["removed"]) == (len(live), removed)
        found = store.nearest("base", base[:7], k=5, memory="16MiB").table()["id"].to_numpy().reshape(7, 5)
        for query, ids in zip(base[:7].astype(np.float64), found, strict=True):
            far = sorted((((query - live[number]) ** 2).sum(), number) for number in live)
            assert ids.tolist() == [number for _, number in far[:5]]
        store.compact_vectors("base", memory="16MiB")
    with pytest.raises(inshore.InputError, match="ids is 71"):
        store.remove_from_vectors("base", [71], memory="16MiB")


def test_vectors_of_a_table_are_selected_and_shown_with_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    base = rng.normal(size=(300, 4)).astype(np.float32)
    lang = ["en" if row % 3 else "de" for row in range(300)]
    ids = [f"d{row}" for row in range(300)]
    table = pa.table({"doc": ids, "v": list(base), "lang": lang})
    store = inshore.Store(tmp_path / "store")
    made = store.import_vectors(table, name="docs", id="doc", memory="32MiB")
    assert (made["vectors"], made["columns"]) == (300, ["doc", "lang"])
    pq.write_table(table, tmp_path / "docs.parquet")
    store.import_vectors(tmp_path / "docs.parquet", name="again", column="v", id="doc", memory="32MiB")
    described = store.describe_vectors("docs")
    assert (described["imported_from"], described["id_column"]) == ("table", "doc")
    assert described["columns"] == ["doc", "lang", "_row"]
    german = np.array([name == "de" for name in lang])
    squares = ((base[:7, None] - base[None]).astype(np.float64) ** 2).sum(2)
    squares[:, ~german] = np.inf
    rows = np.argsort(squares, axis=1, kind="stable")[:, :5].ravel()
    for name in ["docs", "again"]:
        found = store.nearest(
            name, base[:7], k=5, where="lang = 'de'", select=["lang"], memory="64MiB"
        ).table()
        assert found.column_names == ["query", "rank", "id", "distance", "lang"]
        assert found["id"].to_pylist() == [ids[row] for row in rows]
        assert set(found["lang"].to_pylist()) == {"de"}
    with pytest.raises(inshore.InputError, match="twice"):
        store.import_vectors(table, name="more", id="lang", memory="32MiB")


def test_tables_are_added_and_replace_rows_by_their_ids(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)

    def table(rows: range) -> pa.Table:
        vectors = rng.normal(size=(len(rows), 4)).astype(np.float32)
        ids = [f"d{row}" for row in rows]
        return pa.table({"doc": ids, "v": list(vectors), "year": [2000 + row % 7 for row in rows]})

    store = inshore.Store(tmp_path / "store")
    base, more, changed = table(range(100)), table(range(100, 130)), table(range(90, 140))
    store.import_vectors(base, name="docs", id="doc", memory="32MiB")
    added = store.add_vectors("docs", more.select(["year", "v", "doc"]), column="v", memory="32MiB")
    assert (added["added"], added["first_id"]) == (30, None)
    with pytest.raises(inshore.InputError, match=r"row 0, column 'doc': found \"d100\""):
        store.add_vectors("docs", more, memory="32MiB")
    done = store.upsert_vectors("docs", changed, memory="32MiB")
    assert (done["replaced"], done["added"]) == (40, 10)
    with pytest.raises(inshore.InputError, match="the column 'doc' of the table has the ids"):
        store.upsert_vectors("docs", changed, ids=list(range(50)), memory="32MiB")
    other = changed.set_column(2, "year", pa.array(["x"] * 50))
    with pytest.raises(inshore.InputError, match="column 'year': found Utf8, expected Int64"):
        store.upsert_vectors("docs", other, memory="32MiB")
    rows = pa.concat_tables([base.slice(0, 90), changed])
    whole = np.array(rows["v"].to_pylist(), np.float32)
    for _ in range(2):
        found = store.nearest("docs", whole[:20], k=3, where="year < 2004", select=["year"], memory="32MiB")
        squares = ((whole[:20, None] - whole[None]).astype(np.float64) ** 2).sum(2)
        squares[:, rows["year"].to_numpy() >= 2004] = np.inf
        places = np.argsort(squares, axis=1, kind="stable")[:, :3].ravel()
        expected = rows.take(places)
        assert found.table()["id"].to_pylist() == expected["doc"].to_pylist()
        assert found.table()["year"].to_pylist() == expected["year"].to_pylist()
        assert store.compact_vectors("docs", memory="32MiB")["vectors"] == 140
    assert store.remove_from_vectors("docs", ["d3", "d139"], memory="32MiB")["taken"] == 2
    assert store.remove_from_vectors("docs", ["d3"], memory="32MiB")["absent"] == 1
    with pytest.raises(inshore.InputError, match='ids is "d999"'):
        store.remove_from_vectors("docs", ["d4", "d999"], memory="32MiB")
    assert store.add_vectors("docs", base.slice(3, 1), memory="32MiB")["added"] == 1


def test_open_vectors_answer_as_nearest(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    base = rng.normal(0, 1, (3000, 16)).astype(np.float32)
    queries = base[:30] + np.float32(0.01)
    store = inshore.Store(tmp_path / "store")
    store.import_vectors(base, name="base", memory="32MiB")
    store.index_vectors("base", lists=60, metric="cosine", memory="64MiB")
    exact = store.nearest("base", queries, k=5, metric="cosine", memory="32MiB").table()
    for in_memory in (False, True):
        with store.vectors("base", in_memory=in_memory, memory="40MiB", threads=2) as searcher:
            assert (len(searcher), searcher.dimensions, searcher.element) == (3000, 16, "f32")
            assert (searcher.metric, searcher.in_memory, searcher.calls) == ("cosine", in_memory, 2)
            found = searcher.search(queries, k=5, exact=True)
            assert found.table.equals(exact)
            assert found.ids.dtype == np.int64
            assert found.ids.shape == found.distances.shape == (30, 5)
            assert (found.ids.ravel() == exact["id"].to_numpy()).all()
            near = store.nearest("base", queries, k=5, metric="cosine", recall=0.8, memory="32MiB").table()
            assert searcher.search(queries, k=5, recall=0.8).table.equals(near)
            # One query as an array, a list, and an Arrow array; float64 is rounded.
            one = found.ids[:1]
            arrow = pa.array([queries[0].tolist()], pa.list_(pa.float32(), 16))
            for query in (queries[0], queries[0].tolist(), arrow, queries[:1].astype(np.float64)):
                assert (searcher.search(query, 5, exact=True).ids == one).all()
            # Fewer neighbours than k.
            few = searcher.search(queries[:2], k=4000, exact=True, radius=0.05)
            assert few.ids.shape == (2, 3000)
            assert few.ids[0, 0] == 0
            assert few.ids[0, -1] == -1
            assert np.isnan(few.distances[0, -1])
            with pytest.raises(inshore.InputError, match="the index of base was built"):
                searcher.search(queries, metric="ip")
            assert searcher.search(queries, metric="ip", exact=True).ids.shape == (30, 10)
            with pytest.raises(inshore.InputError, match="3 dimensions"):
                searcher.search([1.0, 2.0, 3.0])
            with pytest.raises(inshore.InputError, match="vector 0, dimension 1"):
                searcher.search([0.0, float("nan"), *[0.0] * 14])
            with pytest.raises(inshore.InputError, match="lists of one length"):
                searcher.search(pa.array([[1.0, 2.0], [3.0]]))
        with pytest.raises(inshore.InputError, match="open the vectors base again"):
            searcher.search(queries)


def test_open_vectors_are_a_snapshot_until_they_are_refreshed(tmp_path: Path) -> None:
    store = inshore.Store(tmp_path / "store")
    base = np.arange(400, dtype=np.float32).reshape(100, 4)
    store.import_vectors(base, name="base", memory="16MiB")
    searcher = store.vectors("base", memory="24MiB")
    far = np.full(4, 1e4, np.float32)
    assert not searcher.refresh()
    store.add_vectors("base", far[None], memory="16MiB")
    assert searcher.search(far, k=1).ids == [[99]]
    assert searcher.refresh()
    assert searcher.search(far, k=1).ids == [[100]]
    store.remove_from_vectors("base", [100], memory="16MiB")
    assert searcher.refresh()
    assert searcher.search(far, k=1).ids == [[99]]
    assert len(searcher) == 100
    store.index_vectors("base", lists=4, memory="32MiB")
    assert searcher.refresh()
    assert "probes" in searcher.search(far, k=1).facts
    store.remove_vectors("base")
    with pytest.raises(inshore.NotFoundError):
        searcher.refresh()
    assert searcher.search(far, k=1).ids == [[99]]
    store.import_vectors(base[:7], name="base", memory="16MiB")
    assert searcher.refresh()
    assert len(searcher) == 7
    searcher.close()
    searcher.close()
    for call in (searcher.refresh, lambda: searcher.search(far)):
        with pytest.raises(inshore.InputError, match="open the vectors base again"):
            call()
    with pytest.raises(inshore.NotFoundError):
        store.vectors("others", memory="24MiB")
    with pytest.raises(inshore.InputError, match="calls is 0"):
        store.vectors("base", calls=0)


def test_open_vectors_select_by_columns_again_and_again(tmp_path: Path) -> None:
    store = inshore.Store(tmp_path / "store")
    rng = np.random.default_rng(8)
    base = rng.normal(0, 1, (2000, 8)).astype(np.float32)
    names = [f"n{number}" for number in range(2000)]
    table = pa.table({"at": list(base), "year": pa.array(range(2000)), "name": names})
    store.import_vectors(table, name="base", id="name", memory="64MiB")
    with store.vectors("base", memory="96MiB", threads=2) as searcher:
        for least in (1000, 1900, 1000, 1999):
            where = f"year >= {least}"
            again = store.nearest("base", base[:3], k=4, where=where, select=["year"], memory="64MiB")
            expected = again.table()
            found = searcher.search(base[:3], k=4, where=where, select=["year"])
            assert found.table.equals(expected)
            assert found.ids.shape == (3, 4)
        assert found.ids[0].tolist() == ["n1999", None, None, None]
        with pytest.raises(inshore.InputError):
            searcher.search(base[:1], where="no_such_column = 1")
    with (
        store.vectors("base", memory="24MiB", threads=2) as searcher,
        pytest.raises(inshore.BudgetError, match="in 24 MiB: the smallest budget that works is 25 MiB"),
    ):
        searcher.search(base[:1], where="year >= 1000")
    with store.vectors("base", memory="25MiB", threads=2) as searcher:
        assert len(searcher.search(base[:1], k=4, where="year >= 1000").ids[0]) == 4


def test_threads_search_open_vectors_at_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    base = rng.normal(0, 1, (4000, 16)).astype(np.float32)
    store = inshore.Store(tmp_path / "store")
    store.import_vectors(base, name="base", memory="32MiB")
    store.index_vectors("base", lists=60, memory="64MiB")
    with store.vectors("base", memory="48MiB", threads=2) as searcher:
        expected = searcher.search(base[:40], probes=10**6).ids
        assert (expected[:, 0] == np.arange(40)).all()

        def work(number: int) -> bool:
            query = number % 40
            found = searcher.search(base[query], probes=10**6, exact=number % 3 == 0).ids
            return bool((found[0] == expected[query]).all())

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(work, range(240)))


def test_vectors_in_memory_need_a_budget_that_has_room(tmp_path: Path) -> None:
    store = inshore.Store(tmp_path / "store")
    base = np.zeros((20_000, 256), np.float32)
    store.import_vectors(base, name="base", memory="32MiB")
    with pytest.raises(inshore.BudgetError, match="held in memory"):
        store.vectors("base", in_memory=True, memory="16MiB")
    with store.vectors("base", in_memory=True, memory="64MiB") as searcher:
        assert searcher.search(base[0], k=3).ids.tolist() == [[0, 1, 2]]
