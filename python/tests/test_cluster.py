"""A cluster: nodes that exchange rows, on agents of this process and on Ray."""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inshore

BUDGET = "64MiB"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    random = np.random.default_rng(7)
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{number:.6f} of a line\n" for number in random.random(30_000)))
    return path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[inshore.Cluster]:
    with ExitStack() as agents:
        addresses = [
            agents.enter_context(inshore.serve(tmp_path / f"node{number}", memory=BUDGET, threads=1)).address
            for number in range(3)
        ]
        yield agents.enter_context(inshore.cluster(nodes=addresses))


def test_a_cluster_sorts_as_one_machine_does(lines: Path, tmp_path: Path, cluster: inshore.Cluster) -> None:
    cluster.put(lines, piece="64KiB", copies=2, memory=BUDGET)
    expected = "".join(sorted(lines.read_text().splitlines(keepends=True)))
    written = cluster.sort_lines("lines.txt", memory=BUDGET).write(tmp_path / "sorted.txt")
    assert written.rows == 30_000
    assert (tmp_path / "sorted.txt").read_text() == expected
    summary: dict[str, Any] = dict(written.summary)
    stages = summary["jobs"][0]["stages"]
    assert stages[1]["bytes"] == len(expected)
    # About two thirds of the rows lie on another node than the one that merges them.
    sent = sum(node["sent"] for node in summary["jobs"][0]["nodes"])
    assert 0.4 < sent / stages[0]["bytes"] < 0.9
    cluster.sort_lines("lines.txt", descending=True, memory=BUDGET).write("store:falling.txt")
    cluster.get("falling.txt", tmp_path / "falling.txt", memory=BUDGET)
    falling = (tmp_path / "falling.txt").read_text().splitlines()
    assert falling == expected.splitlines()[::-1]
    (found,) = [listed for listed in cluster.ls() if listed["name"] == "store:falling.txt"]
    assert (found["bytes"], found["copies"], len(found["nodes"])) == (len(expected), 1, 3)


def test_records_are_sorted_by_their_keys(tmp_path: Path, cluster: inshore.Cluster) -> None:
    path = tmp_path / "records.bin"
    records = np.random.default_rng(3).integers(0, 256, (20_000, 10), dtype=np.uint8)
    records[:, 0] %= 4
    path.write_bytes(records.tobytes())
    cluster.put(path, record=10, piece="32KiB", memory=BUDGET)
    there = cluster.sort_records("records.bin", record_bytes=10, key=(0, 1), memory=BUDGET)
    there.write(tmp_path / "there.bin")
    here = inshore.sort_records(path, record_bytes=10, key=(0, 1), memory=BUDGET)
    here.write(tmp_path / "here.bin")
    assert (tmp_path / "there.bin").read_bytes() == (tmp_path / "here.bin").read_bytes()


def run_near_data(to: inshore.Nodes, folder: Path) -> dict[str, Any]:
    """Run the verbs that need no exchange of rows, and return their answers."""
    points = np.random.default_rng(2).integers(0, 9, (2000, 8)).astype(np.float32)
    np.save(folder / "points.npy", points)
    answers: dict[str, Any] = {
        "search": to.search("17", "lines.txt", spans=True, memory=BUDGET).table(),
        "search_count": to.search_count("17", "lines.txt", memory=BUDGET).table(),
        "count_words": to.count_words("lines.txt", memory=BUDGET).table(),
        "most frequent": to.count_words("lines.txt", top=3, memory=BUDGET).table(),
        "count_kmers": to.count_kmers("reads.fa", k=9, memory=BUDGET).table(),
        "language_train": to.language_train({"en": "lines.txt", "dna": "reads.fa"}, name="two"),
        "language_identify": to.language_identify("lines.txt", profiles="two", lines=True).table(),
        "checksum": to.checksum("lines.txt", memory=BUDGET),
    }
    to.compress("lines.txt", output=folder / "lines.gz", memory=BUDGET)
    answers["compress"] = gzip.decompress((folder / "lines.gz").read_bytes())
    to.put(folder / "lines.gz", record=1, memory=BUDGET)
    to.decompress("lines.gz", output=folder / "back", memory=BUDGET)
    answers["decompress"] = (folder / "back").read_bytes()
    to.import_vectors(folder / "points.npy", name="points", piece="16KiB", memory=BUDGET)
    answers["nearest"] = to.nearest("points", points[:20], k=4, memory=BUDGET).table()
    index = to.index_vectors("points", lists=10, memory=BUDGET)["index"]
    answers["index_vectors"] = (index["vectors"], index["lists"])
    whole = to.nearest("points", points[:20], k=4, probes=10, memory=BUDGET)
    answers["nearest with an index"] = whole.table()
    answers["measure_recall"] = to.measure_recall("points", points[:20], memory=BUDGET)["queries"]
    answers["list_vectors"] = [listed["name"] for listed in to.list_vectors()]
    answers["describe_vectors"] = to.describe_vectors("points")["vectors"]
    to.remove_vectors("points")
    pages = to.traverse("pages", 0, steps=5, page=4096, memory=BUDGET)
    answers["traverse"] = [chain["page"] for chain in pages["chains"]]
    to.rm("lines.gz")
    return answers


def test_verbs_without_an_exchange_run_on_a_cluster_as_on_nodes(
    lines: Path, tmp_path: Path, cluster: inshore.Cluster
) -> None:
    (tmp_path / "reads.fa").write_text("".join(f">r{n}\nACGTTGCAAGCT{'ACGT'[n % 4]}\n" for n in range(900)))
    pages = np.zeros((8, 512), np.uint64)
    pages[:, 0] = np.roll(np.arange(8), -1)
    (tmp_path / "pages").write_bytes(pages.tobytes())
    cluster.put(lines, piece="64KiB", copies=2, memory=BUDGET)
    cluster.put(tmp_path / "reads.fa", piece="4KiB", memory=BUDGET)
    cluster.put(tmp_path / "pages", record=4096, block="4KiB", memory=BUDGET)
    answers = []
    for name, target in (
        ("nodes", inshore.connect(cluster.addresses, store=tmp_path / "of nodes")),
        ("cluster", inshore.cluster(nodes=cluster.addresses, store=tmp_path / "of the cluster")),
    ):
        (tmp_path / name).mkdir()
        answers.append(run_near_data(target, tmp_path / name))
    on_nodes, on_cluster = answers
    assert on_cluster == on_nodes
    assert on_cluster["decompress"] == on_cluster["compress"] == lines.read_bytes()
    assert on_cluster["traverse"] == [5]
    # The counters of nodes are those of a gathered answer, without stages.
    counted = cluster.count_words("lines.txt", memory=BUDGET)
    counted.table()
    assert len(counted.summary["nodes"]) == 3
    assert "jobs" not in counted.summary


def test_a_cluster_ranks_as_one_machine_does(tmp_path: Path, cluster: inshore.Cluster) -> None:
    random = np.random.default_rng(11)
    path = tmp_path / "links.txt"
    path.write_text("".join(f"{source} {target}\n" for source, target in random.integers(0, 900, (6_000, 2))))
    cluster.put(path, piece="16KiB", memory=BUDGET)
    graph = inshore.Store(tmp_path / "here").import_edges(path, name="links", memory=BUDGET)
    expected = graph.pagerank(iterations=7, memory=BUDGET).table()
    ranks = cluster.pagerank("links.txt", iterations=7, memory=BUDGET)
    assert ranks.table().equals(expected)
    assert ranks.summary["supersteps"] == 7
    written = cluster.pagerank("links.txt", iterations=7, memory=BUDGET).write(tmp_path / "ranks.parquet")
    assert written.rows == expected.num_rows
    cluster.pagerank("links.txt", memory=BUDGET).write("store:ranks.csv")
    assert "store:ranks.csv" in [listed["name"] for listed in cluster.ls()]
    with pytest.raises(inshore.InputError, match="iterations does not work"):
        cluster.pagerank("links.txt", iterations=101, memory=BUDGET).table()


def test_a_cluster_searches_graphs_as_one_machine_does(tmp_path: Path, cluster: inshore.Cluster) -> None:
    random = np.random.default_rng(12)
    edges = random.integers(0, 1_500, (2_500, 2))
    weights = random.integers(0, 40, 2_500) / 8
    lines = [f"{one} {other} {weight}\n" for (one, other), weight in zip(edges, weights, strict=True)]
    path = tmp_path / "roads.txt"
    path.write_text("".join(lines))
    cluster.put(path, piece="16KiB", memory=BUDGET)
    store = inshore.Store(tmp_path / "here")
    graph = store.import_edges(path, name="roads", weighted=True, memory=BUDGET)
    source = int(edges[0][0])
    for on_cluster, here in [
        (cluster.bfs("roads.txt", source, memory=BUDGET), graph.bfs(source, memory=BUDGET)),
        (cluster.components("roads.txt", memory=BUDGET), graph.components(memory=BUDGET)),
        (cluster.sssp("roads.txt", source, memory=BUDGET), graph.sssp(source, memory=BUDGET)),
    ]:
        expected = here.table()
        assert on_cluster.table().equals(expected)
        for fact in ["reached", "levels", "components"]:
            assert on_cluster.summary.get(fact) == here.summary.get(fact)
    cluster.components("roads.txt", memory=BUDGET).write("store:components.csv")
    assert "store:components.csv" in [listed["name"] for listed in cluster.ls()]
    with pytest.raises(inshore.NotFoundError, match=r"roads\.txt has no vertex 5000"):
        cluster.bfs("roads.txt", 5_000, memory=BUDGET).table()


def test_what_a_cluster_lacks_is_refused_by_name(lines: Path, cluster: inshore.Cluster) -> None:
    cluster.put(lines, memory=BUDGET)
    with pytest.raises(inshore.InputError, match="`search`: walk does not work with a cluster"):
        cluster.search("of", "lines.txt", max_depth=1, memory=BUDGET).table()
    with pytest.raises(inshore.InputError, match="a cluster sorts lines and records"):
        cluster.sort("lines.txt", by="name", memory=BUDGET).write("store:table.csv")
    with pytest.raises(inshore.InputError, match=r"\"lines\.txt\" exists already"):
        cluster.sort_lines("lines.txt", memory=BUDGET).write("store:lines.txt")


def test_options_that_make_no_cluster_are_refused() -> None:
    with pytest.raises(inshore.InputError, match="stores is missing"):
        inshore.cluster()
    with pytest.raises(inshore.InputError, match="no node"):
        inshore.cluster(nodes=[])


@pytest.mark.filterwarnings("ignore")
def test_ray_starts_the_nodes(lines: Path, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: `make ray` runs this test")
    started = importlib.import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        started.add_node(num_cpus=1)
        started.wait_for_nodes()
        with pytest.raises(inshore.InputError, match=r"put \{node\} into the path"):
            inshore.cluster(started.address, stores=tmp_path / "one")
        # The actors start although tasks occupy both cores.
        sleep = ray.remote(num_cpus=1)(lambda: importlib.import_module("time").sleep(60))
        sleeping = [sleep.remote() for _ in range(2)]
        stores = tmp_path / "store-{node}"
        with inshore.cluster(started.address, stores=stores, memory=BUDGET, threads=1) as cluster:
            assert len(cluster.status()) == 2
            cluster.put(lines, piece="64KiB", memory=BUDGET)
            cluster.sort_lines("lines.txt", memory=BUDGET).write("store:sorted.txt")
            assert cluster.get("sorted.txt", tmp_path / "sorted.txt", memory=BUDGET) == lines.stat().st_size
            counted = cluster.search_count("of a line", "sorted.txt", memory=BUDGET).table()
            assert counted["count"].to_pylist() == [30_000]
            # The nodes do not look idle to an autoscaler, and no core is asked for.
            used = [node["Resources"] for node in ray.nodes()]
            assert len(used) == 2
            free = ray.available_resources()
            total = ray.cluster_resources()
            own = [name for name in total if name.startswith("node:") and "head" not in name]
            assert any(free[name] < total[name] for name in own)
        expected = sorted(lines.read_text().splitlines(keepends=True))
        assert (tmp_path / "sorted.txt").read_text().splitlines(keepends=True) == expected
        assert cluster.status()[0].get("error")
        for task in sleeping:
            ray.cancel(task, force=True)
    finally:
        ray.shutdown()
        started.shutdown()
