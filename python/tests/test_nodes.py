"""Nodes, against the same work on the local machine."""

from __future__ import annotations

import gzip
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import inshore

BUDGET = "64MiB"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    random = np.random.default_rng(5)
    drawn = random.integers(0, 50, (20_000, 6))
    path = tmp_path / "words.txt"
    path.write_text("".join(" ".join(f"w{word}" for word in line) + "\n" for line in drawn))
    return path


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[inshore.Nodes]:
    with ExitStack() as agents:
        addresses = [
            agents.enter_context(inshore.serve(tmp_path / f"node{number}", memory=BUDGET, threads=1)).address
            for number in range(3)
        ]
        yield inshore.connect(addresses)


def test_what_is_put_is_searched_and_counted_as_here(
    text: Path, tmp_path: Path, nodes: inshore.Nodes
) -> None:
    loaded = nodes.put(text, piece="64KiB", copies=2, memory=BUDGET)
    assert loaded["bytes"] == text.stat().st_size
    (listed,) = nodes.ls()
    assert (listed["name"], listed["copies"], len(listed["nodes"])) == ("store:words.txt", 2, 3)
    here = inshore.search(r"\bw7\b", text, spans=True, memory=BUDGET).table()
    there = nodes.search(r"\bw7\b", "words.txt", spans=True, memory=BUDGET).table()
    assert there.drop_columns("path").equals(here.drop_columns("path"))
    assert set(there["path"].to_pylist()) == {"store:words.txt"}
    streamed = nodes.search(r"\bw7\b", ["store:words.txt"], spans=True, memory=BUDGET)
    assert streamed.reader().read_all().equals(there)
    for options in ({"invert": True}, {"max_count": 3}, {"ignore_case": True, "words": True}):
        mine = inshore.search_count("W7", text, include_zero=True, memory=BUDGET, **options).table()
        theirs = nodes.search_count("W7", "words.txt", include_zero=True, memory=BUDGET, **options).table()
        assert theirs["count"].to_pylist() == mine["count"].to_pylist()
    written = nodes.search("w7", "words.txt", memory=BUDGET).write(tmp_path / "found.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "found.parquet").num_rows == written.rows
    words = nodes.count_words("words.txt", memory=BUDGET)
    assert words.table().equals(inshore.count_words(text, memory=BUDGET).table())
    best = nodes.count_words("words.txt", top=3, memory=BUDGET)
    assert best.table().equals(inshore.count_words(text, top=3, memory=BUDGET).table())
    words.write(tmp_path / "words.csv")
    inshore.count_words(text, memory=BUDGET).write(tmp_path / "here.csv")
    assert (tmp_path / "words.csv").read_text() == (tmp_path / "here.csv").read_text()
    assert nodes.get("words.txt", tmp_path / "again", memory=BUDGET) == text.stat().st_size
    assert (tmp_path / "again").read_bytes() == text.read_bytes()
    assert nodes.rm("words.txt") == 3
    assert nodes.ls() == []
    assert [node["status"]["name"] for node in nodes.status()] == ["python"] * 3
    # A WebAssembly module needs a helper process, and Python is not one.
    assert "wasm" not in nodes.status()[0]["status"]["kinds"]


@pytest.fixture
def files(tmp_path: Path, text: Path) -> dict[str, Path]:
    """Write a table, records of six bytes and sequences, in addition to the text."""
    random = np.random.default_rng(6)
    table = pa.table({"name": [f"n{number % 40}" for number in range(20_000)]})
    table = table.append_column("size", pa.array(random.integers(-999, 999, 20_000)))
    pa.csv.write_csv(table, tmp_path / "t.csv")
    (tmp_path / "r.bin").write_bytes(random.integers(0, 9, 60_000, dtype=np.uint8).tobytes())
    lines = ["".join(random.choice(list("ACGT"), 60)) for _ in range(2000)]
    (tmp_path / "s.fa").write_text("".join(f">s{number}\n{line}\n" for number, line in enumerate(lines)))
    return {
        "table": tmp_path / "t.csv",
        "text": text,
        "records": tmp_path / "r.bin",
        "reads": tmp_path / "s.fa",
    }


# Verbs over one file, for any target. The result of each is a table.
ASKED: dict[str, tuple[str, Callable[[inshore.Verbs, Any], inshore.Result]]] = {
    "sort": ("table", lambda to, path: to.sort(path, by=[("size", "descending"), "name"], memory=BUDGET)),
    "sort unique": ("table", lambda to, path: to.sort(path, by="name", unique=True, memory=BUDGET)),
    "reduce": (
        "table",
        lambda to, path: to.reduce(
            path, by="name", aggregates=["count", ("size", "sum"), ("size", "max")], memory=BUDGET
        ),
    ),
    "count values": ("table", lambda to, path: to.count_values(path, column="name", memory=BUDGET)),
    "sql": (
        "table",
        lambda to, path: to.sql(
            "SELECT name, sum(size) AS n FROM t GROUP BY name ORDER BY n, name",
            tables={"t": path},
            memory=BUDGET,
        ),
    ),
    "count kmers": ("reads", lambda to, path: to.count_kmers(path, k=9, min_count=2, memory=BUDGET)),
    "count words": ("text", lambda to, path: to.count_words(path, memory=BUDGET)),
    "most frequent": ("text", lambda to, path: to.count_words(path, top=5, memory=BUDGET)),
    "languages": (
        "text",
        lambda to, path: to.language_identify(path, profiles="two", lines=True, memory=BUDGET),
    ),
    "search": ("text", lambda to, path: to.search(r"\bw7\b", path, spans=True, memory=BUDGET)),
}
# Verbs whose result is a file.
WRITTEN: dict[str, tuple[str, Callable[[inshore.Verbs, Any], inshore.Result]]] = {
    "lines": ("text", lambda to, path: to.sort_lines(path, unique=True, memory=BUDGET)),
    "records": ("records", lambda to, path: to.sort_records(path, record_bytes=6, key=(1, 3), memory=BUDGET)),
}


def test_every_verb_gives_on_nodes_what_it_gives_here(
    files: dict[str, Path], tmp_path: Path, store: inshore.Store
) -> None:
    samples = {"en": tmp_path / "en", "w": tmp_path / "w"}
    samples["en"].write_text("The quick brown fox jumps over the lazy dog.\n")
    samples["w"].write_text("w1 w2 w3 w4 w17 w23 w42\n")
    store.language_train(samples, name="two", memory=BUDGET)
    with ExitStack() as agents:
        addresses = [
            agents.enter_context(inshore.serve(tmp_path / f"node{number}", memory="256MiB")).address
            for number in range(2)
        ]
        nodes = inshore.connect(addresses, store=store)
        for kind, path in files.items():
            nodes.put(path, piece="64KiB", record=6 if kind == "records" else None, memory=BUDGET)
        for what, (kind, ask) in ASKED.items():
            here, there = ask(store, files[kind]).table(), ask(nodes, f"store:{files[kind].name}")
            found = there.table()
            # The names of files differ on nodes.
            named = [name for name in here.column_names if name in {"path", "source"}]
            assert found.drop_columns(named).to_pydict() == here.drop_columns(named).to_pydict(), what
            assert here.num_rows > 0, what
            assert there.summary, what
            written = there.write(tmp_path / "rows.arrow")
            assert written.rows == here.num_rows, what
            with pa.ipc.open_file(str(tmp_path / "rows.arrow")) as file:
                assert file.read_all().equals(found), what
        for what, (kind, ask) in WRITTEN.items():
            mine = ask(store, files[kind]).write(tmp_path / "mine")
            theirs = ask(nodes, files[kind].name).write(tmp_path / "theirs")
            assert mine.rows == theirs.rows, what
            assert (tmp_path / "mine").read_bytes() == (tmp_path / "theirs").read_bytes(), what
        handed = pa.table({"name": ["n1", "n2"]})
        query = "SELECT count(*) AS n FROM t JOIN handed ON t.name = handed.name"
        joined = nodes.sql(query, tables={"t": "store:t.csv", "handed": handed}, memory=BUDGET)
        assert joined.table().to_pydict() == {"n": [1000]}
        assert len(joined.summary["nodes"]) == 2
        packed = nodes.compress("words.txt", output=tmp_path / "words.gz", memory="64MiB")
        assert (packed.paths, packed.bytes_in) == ([tmp_path / "words.gz"], files["text"].stat().st_size)
        assert gzip.decompress((tmp_path / "words.gz").read_bytes()) == files["text"].read_bytes()
        nodes.put(tmp_path / "words.gz", record=1, memory=BUDGET)
        packed = nodes.decompress("words.gz", output=tmp_path / "back", memory="64MiB")
        assert (packed.paths, (tmp_path / "back").read_bytes()) == (
            [tmp_path / "back"],
            files["text"].read_bytes(),
        )
        sums = nodes.checksum("words.txt", algorithm="md5", memory="64MiB")
        assert list(sums.values()) == list(inshore.checksum(files["text"], algorithm="md5").values())
        learnt = nodes.language_train({"w": "words.txt"}, name="there", memory=BUDGET)
        assert learnt == store.language_train({"w": files["text"]}, name="here", memory=BUDGET)


def test_vectors_on_nodes_have_the_neighbours_of_a_store(tmp_path: Path, nodes: inshore.Nodes) -> None:
    random = np.random.default_rng(3)
    points = random.integers(0, 4, (20_000, 16)).astype(np.float32)
    path = tmp_path / "points.npy"
    np.save(path, points)
    mine = inshore.Store(tmp_path / "mine")
    mine.import_vectors(path, name="points", memory=BUDGET)
    loaded = nodes.import_vectors(path, name="points", copies=2, piece="64KiB", memory=BUDGET)
    assert (loaded["vectors"], loaded["element"]) == (20_000, "f32")
    there = inshore.connect(nodes.addresses, store=mine)
    for options in ({"k": 7}, {"k": 30, "metric": "cosine"}, {"k": 500, "radius": 3.0}):
        here = mine.nearest("points", points[:40], memory=BUDGET, **options).table()
        assert there.nearest("points", points[:40], memory=BUDGET, **options).table().equals(here)
    found = there.nearest("points", points[:3], memory=BUDGET)
    assert len(found.table()) == found.summary["rows"] == 30
    assert sum(node["vectors"] for node in found.summary["by_node"]) == 20_000
    index = nodes.index_vectors("points", lists=50, memory=BUDGET)["index"]
    assert (index["vectors"], index["recall"]["points"][-1]["recall"] >= 0.95) == (20_000, True)
    here = mine.nearest("points", points[:40], memory=BUDGET).table()
    whole = there.nearest("points", points[:40], probes=index["lists"], memory=BUDGET)
    assert whole.table().equals(here)
    some = there.nearest("points", points[:40], recall=0.8, memory=BUDGET)
    assert len(some.table()) == 400
    assert some.summary["probes"] <= index["lists"]
    with pytest.raises(inshore.InputError, match="expected 16"):
        there.nearest("points", points[:3, :5], memory=BUDGET).table()
    with pytest.raises(inshore.NotFoundError):
        there.nearest("unknown", points[:3], memory=BUDGET).table()
    described = nodes.describe_vectors("points")
    assert (described["vectors"], described["copies"], described["index"]) == (20_000, 2, index)
    table = there.measure_recall("points", points[:40], k=5, memory=BUDGET)
    assert (table["queries"], table["k"], table["measured_on"]) == (40, 5, "queries")
    described["index"]["recall"] = table
    assert nodes.list_vectors() == [described]
    nodes.remove_vectors("points", index=True)
    assert nodes.describe_vectors("points")["index"] is None
    nodes.remove_vectors("points")
    with pytest.raises(inshore.NotFoundError, match="points"):
        nodes.remove_vectors("points")
    assert nodes.list_vectors() == []


def test_vectors_of_a_table_are_selected_and_shown_with_columns(tmp_path: Path, nodes: inshore.Nodes) -> None:
    random = np.random.default_rng(4)
    points = random.integers(0, 9, (3000, 8)).astype(np.float32)
    table = pa.table(
        {
            "at": list(points),
            "year": random.integers(2000, 2020, 3000),
            "name": [f"n{i}" for i in range(3000)],
        }
    )
    mine = inshore.Store(tmp_path / "mine")
    mine.import_vectors(table, name="places", memory=BUDGET)
    there = inshore.connect(nodes.addresses, store=mine)
    loaded = there.import_vectors(table, name="places", copies=2, piece="16KiB", memory=BUDGET)
    assert (loaded["vectors"], loaded["columns"]) == (3000, ["year", "name"])
    options: dict[str, Any]
    for where in ("year < 2005", "name = 'n7' OR year = 2003", "year > 3000"):
        options = {"k": 5, "where": where, "select": ["name", "year"], "memory": BUDGET}
        here = mine.nearest("places", points[:20], **options).table()
        assert there.nearest("places", points[:20], **options).table().equals(here)
    with pytest.raises(inshore.InputError, match="title"):
        there.nearest("places", points[:3], select=["title"], memory=BUDGET).table()
    mine.import_vectors(table, name="named", column="at", id="name", memory=BUDGET)
    there.import_vectors(table, name="named", column="at", id="name", piece="16KiB", memory=BUDGET)
    options = {"k": 5, "where": "year < 2005", "memory": BUDGET}
    here = mine.nearest("named", points[:20], **options).table()
    assert there.nearest("named", points[:20], **options).table().equals(here)
    assert there.nearest("named", points[:1], k=1, memory=BUDGET).table()["id"].to_pylist() == ["n0"]
    with pytest.raises(inshore.InputError, match="twice"):
        there.import_vectors(table, name="more", id="year", memory=BUDGET)
    for name in ("places", "named"):
        there.remove_vectors(name)
    assert not [file for file in nodes.ls() if "places" in file["name"] or "named" in file["name"]]


def test_what_does_not_go_with_nodes_is_refused_by_name(nodes: inshore.Nodes) -> None:
    table = pa.table({"x": [1]})
    refused: dict[str, Callable[[], object]] = {
        r"`sort`: resume does not work with nodes": lambda: nodes.sort("t", by="x", resume=True).table(),
        r"`reduce`: first .* nodes": lambda: nodes.reduce("t", aggregates=[("x", "first")]).table(),
        r"`language identify`: column .* nodes": lambda: nodes.language_identify(
            "t", profiles="p", column="x"
        ).table(),
        r"`compress`: remove .* nodes": lambda: nodes.compress("t", remove=True),
        r"`decompress`: remove .* nodes": lambda: nodes.decompress("t", remove=True),
        r"`sort`: nodes cannot read Arrow data": lambda: nodes.sort(table, by="x"),
        r"`search`: walk does not work with nodes": lambda: nodes.search("x", "t", max_depth=1).table(),
        r"`search`: unpack does not work with nodes": lambda: nodes.search("x", "t", unpack=True).table(),
        r"`search` on nodes: no dataset is given": lambda: nodes.search("x").table(),
    }
    for message, ask in refused.items():
        with pytest.raises(inshore.InputError, match=message):
            ask()
    with pytest.raises(inshore.NotFoundError, match="nothing: not found on any of the nodes"):
        nodes.sort_lines("nothing").write("x.txt")
    assert not Path("x.txt").exists()


def test_pointers_are_followed_to_where_they_lead(tmp_path: Path, nodes: inshore.Nodes) -> None:
    pages = np.zeros((256, 512), np.uint64)
    order = np.random.default_rng(1).permutation(256)
    pages[order, 2] = np.roll(order, -1)
    (tmp_path / "pages").write_bytes(pages.tobytes())
    nodes.put(tmp_path / "pages", record=4096, block="4KiB", piece="64KiB", memory=BUDGET)
    begin = int(np.flatnonzero(order == 9)[0])
    expected = int(order[(begin + 1000) % 256])
    for by in ("nodes", "turns", "client"):
        done = nodes.traverse("pages", [9, 9], page=4096, at=16, by=by, memory=BUDGET)
        assert [chain["page"] for chain in done["chains"]] == [expected] * 2
    with pytest.raises(inshore.InputError, match="the starting page 256"):
        nodes.traverse("pages", 256, page=4096)
    with pytest.raises(inshore.InputError, match="starts"):
        nodes.traverse("pages", -1)
    with pytest.raises(inshore.InputError, match="expected 'nodes'"):
        nodes.traverse("pages", by="me")  # type: ignore[arg-type]


def test_what_goes_wrong_is_an_exception_of_its_kind(
    text: Path, tmp_path: Path, nodes: inshore.Nodes
) -> None:
    with pytest.raises(inshore.NotFoundError, match="not found on any of the nodes"):
        nodes.search("x", "nothing", memory=BUDGET).table()
    nodes.put(text, memory=BUDGET)
    with pytest.raises(inshore.InputError, match="unclosed"):
        nodes.search("(", "words.txt", memory=BUDGET).table()
    with pytest.raises(inshore.InputError, match="walk does not work with nodes"):
        nodes.search("x", "nothing", globs="*").table()
    with pytest.raises(TypeError, match="'word'"):
        nodes.search("x", "nothing", word=True)  # type: ignore[call-arg]
    with pytest.raises(inshore.InputError, match="paths is empty"):
        nodes.count_words([])
    with pytest.raises(inshore.FileError):
        nodes.put(tmp_path / "missing", memory=BUDGET)
    with pytest.raises(inshore.InputError, match="copies"):
        nodes.put(text, copies=0)
    with pytest.raises(inshore.NodeError, match="4 copies need 4 nodes"):
        nodes.put(text, copies=4, memory=BUDGET)
    with pytest.raises(inshore.InputError, match="--credentials"):
        inshore.connect("10.1.2.3")
    with pytest.raises(inshore.InputError, match="not an address"):
        inshore.connect("no address")
    with pytest.raises(inshore.InputError, match="deadline"):
        inshore.connect("127.0.0.1", deadline=-1)
    with pytest.raises(inshore.InputError, match="needs credentials"):
        inshore.serve(tmp_path / "open", "0.0.0.0:0")
    with pytest.raises(inshore.InputError, match="not an address to listen on"):
        inshore.serve(tmp_path / "open", "here")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = inshore.connect(f"127.0.0.1:{taken.getsockname()[1]}")
        assert "error" in nobody.status()[0]
        with pytest.raises(inshore.NodeError, match=r"127\.0\.0\.1"):
            nobody.ls()


def test_a_lost_node_is_made_up_for_or_named(text: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        agents = [
            stack.enter_context(inshore.serve(tmp_path / f"node{number}", memory=BUDGET, threads=1))
            for number in range(2)
        ]
        addresses = [agent.address for agent in agents]
        nodes = inshore.connect(addresses)
        nodes.put(text, "safe", copies=2, piece="64KiB", memory=BUDGET)
        nodes.put(text, "single", piece="64KiB", memory=BUDGET)
        whole = nodes.search_count("w7", "safe", memory=BUDGET).table()
        agents[1].close()
        # A client with an open connection would report a lost node; a new client is refused at once.
        nodes = inshore.connect(addresses)
        again = nodes.search_count("w7", "safe", memory=BUDGET).table()
        assert again.equals(whole)
        with pytest.raises(inshore.NodeError, match=re.escape(addresses[1])):
            nodes.search_count("w7", "single", memory=BUDGET).table()
        with pytest.warns(inshore.SkippedWarning, match=re.escape(addresses[1])):
            assert len(nodes.ls()) == 2
        some = inshore.connect(addresses, partial=True)
        part = some.search_count("w7", "single", memory=BUDGET).table()
        assert 0 < part["count"][0].as_py() < whole["count"][0].as_py()


def test_a_fragment_of_a_query_that_takes_too_much_ends_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = (f"{row % 2000},{'abcdefghij' * 5}{row % 1000}\n" for row in range(100_000))
    path.write_text("g,s\n" + "".join(rows))
    with inshore.serve(tmp_path / "node", memory="192MiB", threads=2) as agent:
        nodes = inshore.connect(agent.address)
        nodes.put(path, memory=BUDGET)

        def ask(query: str) -> inshore.Result:
            return nodes.sql(query, tables={"t": "store:t.csv"}, memory="1GiB")

        easy = ask("SELECT count(*) AS n FROM t WHERE g < 1000")
        assert easy.table().to_pydict() == {"n": [50_000]}
        columns = ", ".join(f"repeat(substr(s, {n % 40 + 1}), {6 + n // 40})" for n in range(200))
        large = ask(f"SELECT {columns} FROM t WHERE g < 1000")
        with pytest.raises(inshore.NodeError, match=r"at '\w+Exec.*' it wanted more memory than the \d+ MiB"):
            for _ in large:
                pass
        assert easy.table().to_pydict() == {"n": [50_000]}
