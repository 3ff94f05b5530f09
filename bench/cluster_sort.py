#!/usr/bin/env python3
"""Sort records on a cluster, beside the floor of links, drives and cores, and beside Ray Data and Spark.

    sudo bench/cluster_sort.py --inshore target/release/inshore --folder /tmp/cluster --gigabytes 4
        --nodes 1 2 4 --rates 1gbit 10gbit
    sudo bench/cluster_sort.py --inshore target/release/inshore --folder /tmp/cluster --gigabytes 1
        --workers 4 --ray PYTHON --spark PYTHON [--peer-memory 512MiB]

The records are those of TeraGen in form: 100 bytes, of which the first ten are a random key. They are
loaded in two copies.

The first form gives each node a namespace, a link (`tc tbf`), 0.4 of a core and 200 MB/s of the drive.
The floor is the largest of: bytes sent by the busiest node / link, bytes read and written by the
busiest node / drive, and processor seconds of the run on one node / nodes / 0.4. The sorted dataset is
compared with a sort on this machine.

The second form, with --ray, --spark or both, has no limits: nodes and the peers' workers are processes
of this machine. PYTHON is an interpreter with ray or pyspark (and Java 17), pyarrow and NumPy. A peer
reads the same records as Parquet (columns key and rest), sorts by key, and writes Parquet without
compression; its cluster has as many workers of one core each, and has sorted one file before. Times run
from the submission. The peer's table is compared with the sorted file. Memory is the peak of a cgroup
with all processes of the system, without the page cache.

--peer-memory is the heap of each executor and of the driver of Spark, and the object store of each node
of Ray; without it both have their own defaults. A peer that fails, as for lack of memory, has "failed"
in its row, and the end of its log is on standard error: the smallest memory in which it finishes is
found by smaller values.

Needs root and cgroup version 1 (cpu, blkio, memory). Removes the folder at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import report
from local_nodes import LocalNodes, Memory, Watched, mebibytes, mib, times_of, watched
from nodes import CGROUPS, PREFIX, Groups, Net, Nodes

CORES, DRIVE = 0.4, 200
RECORD = ["--record", "100"]
SORT = [*RECORD, "--key-bytes", "0..10"]
PEERS = Path(__file__).resolve().with_name("peers")
# The package of each peer, whose version the report has.
PACKAGES = {"ray": "ray", "spark": "pyspark"}


def write_records(path: Path, total: int) -> None:
    """Write random records."""
    block = 1_000_000
    with path.open("wb") as file:
        for _ in range(max(1, total // (100 * (block // 100)))):
            file.write(os.urandom(block))


def digest(path: Path) -> str:
    """Return the digest of a file."""
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
    columns = ["link", "nodes", "seconds", "floor", "times the floor", "limit"]
    columns += ["sent by the busiest", "CPU seconds"]
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
                put = ["store", "put", str(records), *RECORD, "--copies", copies, "--piece", "16MiB"]
                put += ["--quiet"]
                put = nodes.command(*put, *nodes.words())
                subprocess.run(put, check=True, stdout=subprocess.DEVNULL)
                runs = []
                for turn in range(words.repeat):
                    before = [(*usage(number), sent(number)) for number in range(count)]
                    began = time.monotonic()
                    sort = ["cluster", "sort", "store:records.bin", *SORT, "-o", f"store:sorted{turn}"]
                    sort = nodes.command(*sort, "--json", "--quiet", *nodes.words())
                    subprocess.run(sort, check=True, stdout=subprocess.DEVNULL)
                    seconds = time.monotonic() - began
                    after = [(*usage(number), sent(number)) for number in range(count)]
                    used = [
                        [end - begin for begin, end in zip(*pair, strict=True)]
                        for pair in zip(before, after, strict=True)
                    ]
                    runs.append((seconds, used))
                got = words.folder / "sorted.bin"
                get = ["store", "get", "sorted0", "-o", str(got), "--quiet"]
                subprocess.run(nodes.command(*get, *nodes.words()), check=True)
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
                cells = [rate, str(count), f"{seconds:.1f}", f"{floors[limit]:.1f}"]
                cells += [f"{seconds / floors[limit]:.2f}", limit, f"{most / 1e6:.0f} MB", f"{cpu:.1f}"]
                table.row(*cells)
            finally:
                if nodes:
                    nodes.stop()
                groups.remove()
                net.remove()
                for number in range(count):
                    shutil.rmtree(words.folder / f"store{number}", ignore_errors=True)
    table.write()


def sort_on_nodes(words: argparse.Namespace, inshore: str, records: Path, expected: str) -> Watched:
    """Sort on nodes of this machine, and return the median of the seconds and the largest peak."""
    with LocalNodes(inshore, words.folder, words.workers, words.memory) as nodes:
        nodes.put(records, *RECORD, "--piece", "16MiB")
        runs = []
        for turn in range(words.repeat):
            run = nodes.watched("cluster", "sort", "store:records.bin", *SORT, "-o", f"store:sorted{turn}")
            if run.failure:
                return run
            runs.append(run)
        got = words.folder / "sorted.bin"
        nodes.run("store", "get", "sorted0", "-o", str(got))
        assert digest(got) == expected, "the sorted records differ from those of this machine"
        got.unlink()
    seconds = statistics.median(run.seconds for run in runs)
    return Watched("", seconds, max(run.peak_bytes for run in runs), "")


def sort_by_peer(words: argparse.Namespace, peer: str, python: str, records: Path, expected: str) -> Watched:
    """Sort on workers of a peer, and return the median of the seconds and the peak."""
    folder = words.folder / peer
    source, tables = folder / "source", [python, str(PEERS / "record_tables.py")]
    try:
        subprocess.run([*tables, "write", str(records), str(source)], check=True)
        command = [python, str(PEERS / f"{peer}_sort.py"), str(source), str(folder)]
        command += [str(words.workers), str(words.repeat)]
        command += [str(mebibytes(words.peer_memory))] if words.peer_memory else []
        with Memory(peer) as memory:
            run = watched(memory, command, words.limit_seconds)
        if run.failure:
            return run
        found = subprocess.check_output([*tables, "digest", str(folder / "sorted")], text=True).strip()
        assert found == expected, f"the records sorted by {peer} differ from those of this machine"
        return run._replace(seconds=statistics.median(times_of(run)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def beside_peers(words: argparse.Namespace, inshore: str, records: Path, expected: str) -> None:
    """Sort on nodes and workers of this machine."""
    peers = {
        name: (package, python)
        for name, package, python in (("Ray Data", "ray", words.ray), ("Spark", "spark", words.spark))
        if python
    }
    versions = {name: report.package(python, PACKAGES[peer]) for name, (peer, python) in peers.items()}
    columns = ["system", "workers", "seconds", "peak memory"]
    title = f"{words.gigabytes:g} GB beside other engines"
    table = report.Report(words, columns, peers=versions, inshore=inshore, title=title)

    def row(name: str, run: Watched) -> None:
        seconds = run.failure or f"{run.seconds:.1f}"
        table.row(name, str(words.workers), seconds, mib(run.peak_bytes))

    own = sort_on_nodes(words, inshore, records, expected)
    row("Inshore", own)
    runs = {}
    for name, (peer, python) in peers.items():
        runs[name] = sort_by_peer(words, peer, python, records, expected)
        row(name, runs[name])
    for name, run in runs.items():
        if not own.failure and not run.failure:
            ratios = f"{run.seconds / own.seconds:.1f}", f"{run.peak_bytes / own.peak_bytes:.1f}"
            table.row(f"{name} / Inshore", "", *ratios)
    table.write()


def main() -> None:
    """Make the records, and measure."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--inshore", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rates", nargs="+", default=["1gbit", "10gbit"], help="of each link")
    parser.add_argument("--memory", default="512MiB", help="of each node")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ray", metavar="PYTHON", help="an interpreter with ray: without limits, beside it")
    parser.add_argument("--spark", metavar="PYTHON", help="an interpreter with pyspark: the same")
    parser.add_argument("--workers", type=int, default=4, help="nodes, and workers of the peers")
    parser.add_argument("--peer-memory", metavar="SIZE", help="of each worker of the peers, such as 512MiB")
    parser.add_argument("--limit-seconds", type=float, default=3600, help="after which a peer has failed")
    report.add_option(parser)
    words = parser.parse_args()
    inshore = str(Path(words.inshore).resolve())
    words.folder.mkdir(parents=True, exist_ok=True)
    try:
        records, alone = words.folder / "records.bin", words.folder / "alone.bin"
        write_records(records, int(words.gigabytes * 1e9))
        sort = [inshore, "sort", str(records), *SORT, "-o", str(alone), "--quiet"]
        subprocess.run([*sort, "--store", str(words.folder / "store")], check=True)
        expected = digest(alone)
        alone.unlink()
        measure = beside_peers if words.ray or words.spark else limited
        measure(words, inshore, records, expected)
    finally:
        shutil.rmtree(words.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
