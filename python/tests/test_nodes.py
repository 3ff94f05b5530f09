"""Nodes, against the same work done here."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
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
    here = inshore.search(r"\bw7\b", text, spans=True, memory=BUDGET)
    there = nodes.search(r"\bw7\b", "words.txt", spans=True, memory=BUDGET)
    assert there.drop_columns("path").equals(here.drop_columns("path"))
    assert set(there["path"].to_pylist()) == {"store:words.txt"}
    streamed = nodes.search(r"\bw7\b", ["store:words.txt"], spans=True, stream=True, memory=BUDGET)
    assert streamed.read_all().equals(there)
    for options in ({"invert": True}, {"max_count": 3}, {"ignore_case": True, "words": True}):
        mine = inshore.search_count("W7", text, include_zero=True, memory=BUDGET, **options)
        theirs = nodes.search_count("W7", "words.txt", include_zero=True, memory=BUDGET, **options)
        assert theirs["count"].to_pylist() == mine["count"].to_pylist()
    written = nodes.search("w7", "words.txt", output=tmp_path / "found.parquet", memory=BUDGET)
    assert pyarrow.parquet.read_table(tmp_path / "found.parquet").num_rows == written.rows
    words = nodes.count_words("words.txt", memory=BUDGET)
    assert words.equals(inshore.count_words(text, memory=BUDGET))
    best = nodes.count_words("words.txt", top=3, memory=BUDGET)
    assert best.equals(inshore.count_words(text, top=3, memory=BUDGET))
    nodes.count_words("words.txt", output=tmp_path / "words.csv", memory=BUDGET)
    inshore.count_words(text, output=tmp_path / "here.csv", memory=BUDGET)
    assert (tmp_path / "words.csv").read_text() == (tmp_path / "here.csv").read_text()
    assert nodes.get("words.txt", tmp_path / "again", memory=BUDGET) == text.stat().st_size
    assert (tmp_path / "again").read_bytes() == text.read_bytes()
    assert nodes.rm("words.txt") == 3
    assert nodes.ls() == []
    assert [node["status"]["name"] for node in nodes.status()] == ["python"] * 3
    # WebAssembly is contained by a helper that Python is not.
    assert "wasm" not in nodes.status()[0]["status"]["kinds"]


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
    with pytest.raises(inshore.InputError, match="no page 256"):
        nodes.traverse("pages", 256, page=4096)
    with pytest.raises(inshore.InputError, match="starts"):
        nodes.traverse("pages", -1)
    with pytest.raises(inshore.InputError, match="expected 'nodes'"):
        nodes.traverse("pages", by="me")  # type: ignore[arg-type]


def test_what_goes_wrong_is_an_exception_of_its_kind(
    text: Path, tmp_path: Path, nodes: inshore.Nodes
) -> None:
    with pytest.raises(inshore.NotFoundError, match="on none of the nodes"):
        nodes.search("x", "nothing", memory=BUDGET)
    with pytest.raises(inshore.InputError):
        nodes.search("(", "nothing", memory=BUDGET)
    with pytest.raises(TypeError, match="'globs'"):
        nodes.search("x", "nothing", globs="*")  # type: ignore[call-overload]
    with pytest.raises(inshore.InputError, match="names is empty"):
        nodes.count_words([])
    with pytest.raises(inshore.FileError):
        nodes.put(tmp_path / "missing", memory=BUDGET)
    with pytest.raises(inshore.InputError, match="copies"):
        nodes.put(text, copies=0)
    with pytest.raises(inshore.NodeError, match="4 copies need as many nodes"):
        nodes.put(text, copies=4, memory=BUDGET)
    with pytest.raises(inshore.InputError, match="--credentials"):
        inshore.connect("10.1.2.3")
    with pytest.raises(inshore.InputError, match="no address"):
        inshore.connect("no address")
    with pytest.raises(inshore.InputError, match="deadline"):
        inshore.connect("127.0.0.1", deadline=-1)
    with pytest.raises(inshore.InputError, match="needs credentials"):
        inshore.serve(tmp_path / "open", "0.0.0.0:0")
    with pytest.raises(inshore.InputError, match="no address to listen at"):
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
        whole = nodes.search_count("w7", "safe", memory=BUDGET)
        agents[1].close()
        # A connection that was made before is found to be lost; a new one is refused at once.
        nodes = inshore.connect(addresses)
        again = nodes.search_count("w7", "safe", memory=BUDGET)
        assert again.equals(whole)
        with pytest.raises(inshore.NodeError, match=re.escape(addresses[1])):
            nodes.search_count("w7", "single", memory=BUDGET)
        with pytest.warns(inshore.SkippedWarning, match=re.escape(addresses[1])):
            assert len(nodes.ls()) == 2
        part = inshore.connect(addresses, partial=True).search_count("w7", "single", memory=BUDGET)
        assert 0 < part["count"][0].as_py() < whole["count"][0].as_py()


# The command, where the tests of Rust have built it: Python asks nodes no SQL.
COMMAND = Path(__file__).parents[2] / "target" / "debug" / "inshore"


@pytest.mark.skipif(not COMMAND.exists(), reason="no command was built, which asks nodes in SQL")
def test_a_fragment_of_a_query_that_takes_too_much_ends_alone(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = (f"{row % 2000},{'abcdefghij' * 5}{row % 1000}\n" for row in range(100_000))
    path.write_text("g,s\n" + "".join(rows))

    def ask(query: str) -> subprocess.CompletedProcess[str]:
        options = ["--table", "t=store:t.csv", "--node", agent.address, "--only-nodes", "--quiet"]
        command = [str(COMMAND), "sql", query, *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    with inshore.serve(tmp_path / "node", memory="192MiB", threads=2) as agent:
        inshore.connect(agent.address).put(path, memory=BUDGET)
        easy = ask("SELECT count(*) AS n FROM t WHERE g < 1000")
        assert easy.stdout == "n\n50000\n", easy.stderr
        columns = ", ".join(f"repeat(substr(s, {n % 40 + 1}), {6 + n // 40})" for n in range(200))
        large = ask(f"SELECT {columns} FROM t WHERE g < 1000")
        assert large.returncode == 2
        assert re.search(r"at '\w+Exec.*' it wanted more memory than the \d+ MiB", large.stderr), large.stderr
        assert ask("SELECT count(*) AS n FROM t WHERE g < 1000").stdout == easy.stdout
