#!/usr/bin/env python3
"""Sort records on a cluster: seconds beside the floor of links, drives and cores, and beside Ray Data.

    sudo bench/cluster_sort.py --inshore target/release/inshore --folder /tmp/cluster --gigabytes 4 --nodes 1 2 4 --rates 1gbit 10gbit
    sudo bench/cluster_sort.py --inshore target/release/inshore --folder /tmp/cluster --gigabytes 1 --ray .tools/ray/bin/python --workers 4

The records are those of TeraGen in form: 100 bytes, of which the first ten are a random key. They are loaded in two copies.

The first form gives each node a namespace, a link (`tc tbf`), 0.4 of a core and 200 MB/s of the drive. The floor is the
largest of: bytes sent by the busiest node / link, bytes read and written by the busiest node / drive, and processor seconds of
the run on one node / nodes / 0.4. The sorted dataset is compared with a sort on this machine.

The second form has no limits: nodes and Ray's workers are processes of this machine. Ray Data reads the same records as Parquet (columns
key and rest), sorts by key, and writes Parquet; its cluster has as many nodes and is warm. Times run from the submission. Memory is the peak of
a cgroup with all processes of the system, without the page cache.

Needs root and cgroup version 1 (cpu, blkio, memory). Leaves nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import report
from nodes import CGROUPS, PREFIX, Groups, Net, Nodes

CORES, DRIVE = 0.4, 200
RECORD = ["--record", "100"]
SORT = [*RECORD, "--key-bytes", "0..10"]


def write_records(path: Path, total: int) -> None:
    """Write random records."""
    block = 1_000_000
    with path.open("wb") as file:
        for _ in range(max(1, total // (100 * (block // 100)))):
            file.write(os.urandom(block))


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def usage(number: int) -> tuple[float, int]:
    """Processor seconds, and bytes read and written, of a node since its group was made."""
    blkio = CGROUPS / "blkio" / f"{PREFIX}-{number}"
    nanoseconds = CGROUPS / "cpuacct" / f"{PREFIX}-{number}" / "cpuacct.usage"
    seconds = int(nanoseconds.read_text()) / 1e9
    lines = (blkio / "blkio.throttle.io_service_bytes").read_text().splitlines()
    moved = sum(int(line.split()[2]) for line in lines if line.split()[1:2] in (["Read"], ["Write"]))
    return seconds, moved


class Accounted(Groups):
    """Groups that also count processor time."""

    def __init__(self, count: int, folder: Path) -> None:
        super().__init__(count, CORES, DRIVE, folder)
        for number, paths in enumerate(self.paths):
            path = CGROUPS / "cpuacct" / f"{PREFIX}-{number}"
            if path.resolve() != paths[0].resolve():
                path.mkdir(exist_ok=True)
                paths.append(path)


def sent(number: int) -> int:
    """Bytes that a node has sent."""
    return int(Path(f"/sys/class/net/ib{number}/statistics/rx_bytes").read_text())


def limited(words: argparse.Namespace, inshore: str, records: Path, expected: str) -> None:
    """Sort on nodes with limits, at each rate and number of nodes."""
    columns = ["link", "nodes", "seconds", "floor", "times the floor", "limit", "sent by the busiest", "CPU seconds"]
    table = report.Report(words, columns, inshore=inshore, title="Sort on limited nodes")
    for rate in words.rates:
        bytes_per_second = int(rate.removesuffix("gbit")) * 1e9 / 8
        alone = 0.0
        for count in words.nodes:
            net, groups = Net(count, rate), Accounted(count, words.folder)
            nodes = None
            try:
                shutil.rmtree(words.folder / "keys", ignore_errors=True)
                nodes = Nodes(inshore, words.folder, net, groups, count, words.memory)
                copies = str(min(2, count))
                put = ["store", "put", str(records), *RECORD, "--copies", copies, "--piece", "16MiB", "--quiet"]
                subprocess.run(nodes.command(*put, *nodes.words()), check=True)
                runs = []
                for turn in range(words.repeat):
                    before = [(*usage(number), sent(number)) for number in range(count)]
                    began = time.monotonic()
                    sort = ["cluster", "sort", "store:records.bin", *SORT, "-o", f"store:sorted{turn}", "--json", "--quiet"]
                    subprocess.run(nodes.command(*sort, *nodes.words()), check=True, stdout=subprocess.DEVNULL)
                    seconds = time.monotonic() - began
                    after = [(*usage(number), sent(number)) for number in range(count)]
                    used = [[end - begin for begin, end in zip(*pair, strict=True)] for pair in zip(before, after, strict=True)]
                    runs.append((seconds, used))
                got = words.folder / "sorted.bin"
                subprocess.run(nodes.command("store", "get", "sorted0", "-o", str(got), "--quiet", *nodes.words()), check=True)
                assert digest(got) == expected, "the sorted records differ from those of this machine"
                got.unlink()
                seconds, used = sorted(runs, key=lambda run: run[0])[len(runs) // 2]
                cpu = sum(node[0] for node in used)
                alone = alone or cpu
                floors = {
                    "link": max(node[2] for node in used) / bytes_per_second,
                    "drive": max(node[1] for node in used) / (DRIVE * 1e6),
                    "cores": alone / count / CORES,
                }
                limit = max(floors, key=lambda name: floors[name])
                most = max(node[2] for node in used)
                cells = [rate, str(count), f"{seconds:.1f}", f"{floors[limit]:.1f}", f"{seconds / floors[limit]:.2f}"]
                table.row(*cells, limit, f"{most / 1e6:.0f} MB", f"{cpu:.1f}")
            finally:
                if nodes:
                    nodes.stop()
                groups.remove()
                net.remove()
                for number in range(count):
                    shutil.rmtree(words.folder / f"store{number}", ignore_errors=True)
    table.write()


class Memory:
    """A memory cgroup without a limit."""

    def __init__(self, name: str) -> None:
        self.path = CGROUPS / "memory" / f"{PREFIX}-{name}"
        self.path.mkdir(exist_ok=True)

    def enter(self) -> None:
        (self.path / "tasks").write_text(str(os.getpid()))

    def resident(self) -> int:
        stat = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return int(stat["total_rss"]) + int(stat["total_shmem"] if "total_shmem" in stat else 0)

    def remove(self) -> None:
        for _ in range(100):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.1)


def watched(memory: Memory, command: list[str]) -> tuple[str, int]:
    """Run a command in a group, and return its output and the peak of the group's resident memory."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=memory.enter)
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory.resident())
        time.sleep(0.05)
    assert process.stdout is not None
    output = process.stdout.read()
    if process.returncode != 0:
        sys.exit(f"{command}: {process.returncode}\n{output}")
    return output, peak


def beside_ray(words: argparse.Namespace, inshore: str, records: Path, expected: str) -> None:
    """Sort on nodes and workers of this machine."""
    count = words.workers
    peers = {"Ray Data": report.package(words.ray, "ray")}
    columns = ["system", "workers", "seconds", "peak memory"]
    table = report.Report(words, columns, peers=peers, inshore=inshore, title="Beside Ray Data")
    memory = Memory("inshore")
    agents = []
    try:
        addresses = []
        for number in range(count):
            serve = [inshore, "node", "serve", "--store", str(words.folder / f"store{number}"), "--memory", words.memory]
            serve += ["--listen", "127.0.0.1:0", "--threads", "1", "--json", "--log", "none"]
            agent = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, preexec_fn=memory.enter)
            assert agent.stdout is not None
            addresses.append(json.loads(agent.stdout.readline())["address"])
            agents.append(agent)
        named = ["--node", ",".join(addresses)]
        put = [inshore, "store", "put", str(records), *RECORD, "--copies", str(min(2, count)), "--piece", "16MiB", "--quiet"]
        subprocess.run([*put, *named], check=True)
        times, peaks = [], []
        for turn in range(words.repeat):
            sort = [inshore, "cluster", "sort", "store:records.bin", *SORT, "-o", f"store:sorted{turn}", "--quiet"]
            began = time.monotonic()
            _, peak = watched(memory, [*sort, *named, "--json"])
            times.append(time.monotonic() - began)
            peaks.append(peak)
        got = words.folder / "sorted.bin"
        subprocess.run([inshore, "store", "get", "sorted0", "-o", str(got), "--quiet", *named], check=True)
        assert digest(got) == expected, "the sorted records differ from those of this machine"
        got.unlink()
        seconds, peak = statistics.median(times), max(peaks)
        table.row("Inshore", str(count), f"{seconds:.1f}", f"{peak / (1 << 20):.0f} MiB")
    finally:
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
            agent.wait()
        memory.remove()
        for number in range(count):
            shutil.rmtree(words.folder / f"store{number}", ignore_errors=True)
    memory = Memory("ray")
    try:
        script = str(Path(__file__).with_name("peers") / "ray_sort.py")
        arguments = [words.ray, script, str(records), str(words.folder / "ray"), str(count), str(words.repeat)]
        output, peak = watched(memory, arguments)
        times = json.loads(output.strip().splitlines()[-1])
        ray_seconds = statistics.median(times)
        table.row("Ray Data", str(count), f"{ray_seconds:.1f}", f"{peak / (1 << 20):.0f} MiB")
        table.row("Ray Data / Inshore", "", f"{ray_seconds / seconds:.1f}", "")
    finally:
        memory.remove()
        shutil.rmtree(words.folder / "ray", ignore_errors=True)
    table.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inshore", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rates", nargs="+", default=["1gbit", "10gbit"], help="of each link")
    parser.add_argument("--memory", default="512MiB", help="of each node")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ray", help="an interpreter with Ray Data: without limits, beside it")
    parser.add_argument("--workers", type=int, default=4, help="nodes beside Ray Data")
    report.add_option(parser)
    words = parser.parse_args()
    inshore = str(Path(words.inshore).resolve())
    words.folder.mkdir(parents=True, exist_ok=True)
    try:
        records, alone = words.folder / "records.bin", words.folder / "alone.bin"
        write_records(records, int(words.gigabytes * 1e9))
        sort = [inshore, "sort", str(records), *SORT, "-o", str(alone), "--store", str(words.folder / "store"), "--quiet"]
        subprocess.run(sort, check=True)
        expected = digest(alone)
        alone.unlink()
        measure = beside_ray if words.ray else limited
        measure(words, inshore, records, expected)
    finally:
        shutil.rmtree(words.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
