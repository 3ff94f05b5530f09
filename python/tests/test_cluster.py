"""A cluster: nodes that exchange rows, on agents of this process and on Ray."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
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
    stages = summary["job"]["stages"]
    assert stages[1]["bytes"] == len(expected)
    # About two thirds of the rows lie on another node than the one that merges them.
    sent = sum(node["sent"] for node in summary["job"]["nodes"])
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


def test_what_a_cluster_lacks_is_refused_by_name(lines: Path, cluster: inshore.Cluster) -> None:
    cluster.put(lines, memory=BUDGET)
    refused: dict[str, Callable[[], Any]] = {
        "count words": lambda: cluster.count_words("lines.txt", memory=BUDGET).table(),
        "search": lambda: cluster.search("of", "lines.txt", memory=BUDGET).table(),
        "sql": lambda: cluster.sql("SELECT 1", memory=BUDGET).table(),
    }
    for name, call in refused.items():
        with pytest.raises(inshore.InputError, match=f"`{name}` does not run on a cluster"):
            call()
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
