#!/usr/bin/env python3
"""Candidates of hash tables: a program that maps items into memory as some of them spill, and Inshore, which holds none.

    INSHORE_STORE=DIR bench/nearest_coverage.py --inshore target/release/inshore --python PYTHON

PYTHON is an interpreter with numpy 2. This is figure 6-4 of the 2018 thesis (section 6.2.2): comparisons a second of items
of 8 KiB by Hamming distance, where a program finds most items in memory and some on a drive. The program has two
processes, which compare random items of a mapped file with a query, each item once. Before, all items are read into the page
cache and a share of them is dropped from it again. The row of 100 reads a second limits the reads of the program by a
blkio cgroup (version 1), as the thesis does for a disk. Inshore answers `--queries` queries from hash tables (`nearest index
--lsh`) in a budget of `--memory` with two threads and an empty page cache; all of its candidates come from the drive. The last
row is fio's random reads of 8 KiB at depth 64. The items are random bits. Rates are medians of `--repeat` runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path

import report
from graphs import drop_caches
from store import fio_random

GROUP = Path("/sys/fs/cgroup/blkio/nearest-coverage-bench")
ITEM = 8192

MAKE = """
import sys, numpy as np
count, queries, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(1)
with open(folder + "/items.b1bin", "wb") as out, open(folder + "/items.raw", "wb") as raw:
    np.array([count, 65536], "<u4").tofile(out)
    for start in range(0, count, 10_000):
        made = rng.integers(0, 256, (min(10_000, count - start), 8192), np.uint8)
        made.tofile(out)
        made.tofile(raw)
with open(folder + "/queries.b1bin", "wb") as out:
    np.array([queries, 65536], "<u4").tofile(out)
    rng.integers(0, 256, (queries, 8192), np.uint8).tofile(out)
"""

PROGRAM = """
import mmap, os, sys, time, numpy as np
from multiprocessing import Barrier, Process, Queue
path, share, compared = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
count = os.path.getsize(path) // 8192
order = np.random.default_rng(2).permutation(count)[:compared]
cold = np.sort(np.random.default_rng(3).permutation(order)[: int(share * len(order))])
with open(path, "rb", buffering=0) as file:
    # Without reading ahead, the page cache has folios of one page. Parts of larger folios can't be dropped.
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
    while file.read(1 << 24): pass
    for item in cold: os.posix_fadvise(file.fileno(), int(item) * 8192, 8192, os.POSIX_FADV_DONTNEED)
def compare(part, ready, done):
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        mapped.madvise(mmap.MADV_RANDOM)
        items = np.frombuffer(mapped, "<u8").reshape(-1, 1024)
        query = np.random.default_rng(4).integers(0, 1 << 63, 1024, np.uint64)
        ready.wait()
        start, best = time.perf_counter(), 65537
        for item in part: best = min(best, int(np.bitwise_count(items[item] ^ query).sum()))
        done.put((start, time.perf_counter()))
ready, done = Barrier(2), Queue()
parts = [Process(target=compare, args=(order[half::2], ready, done)) for half in range(2)]
for part in parts: part.start()
times = [done.get() for _ in parts]
print(len(order) / (max(end for _, end in times) - min(start for start, _ in times)))
"""


class Bench:
    """The items, and the programs that compare them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = Path(os.environ["INSHORE_STORE"]).parent / "nearest-coverage-bench"
        self.folder.mkdir(exist_ok=True)

    def inshore(self, *words: str) -> dict:
        command = [self.options.inshore, "nearest", *words, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return json.loads(done.stdout)

    def program(self, share: float, compared: int) -> float:
        """Return the median of comparisons a second of the program."""
        command = [
            self.options.python,
            "-c",
            PROGRAM,
            str(self.folder / "items.raw"),
            str(share),
            str(compared),
        ]
        rates = []
        for _ in range(self.options.repeat):
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rates.append(float(done.stdout))
        return statistics.median(rates)

    def limited(self, share: float, compared: int) -> float | None:
        """Return the rate of the program with 100 reads a second, and None if there is no such cgroup."""
        try:
            GROUP.mkdir(exist_ok=True)
            device = os.stat(self.folder).st_dev
            # The file is in the page cache, so that the limit concerns only the items that are dropped from it.
            self.program(0.0, compared)
            limit = f"{os.major(device)}:{os.minor(device)} 100"
            (GROUP / "blkio.throttle.read_iops_device").write_text(limit)
            (GROUP / "tasks").write_text(str(os.getpid()))
        except OSError:
            return None
        try:
            return self.program(share, compared)
        finally:
            (GROUP.parent / "tasks").write_text(str(os.getpid()))
            GROUP.rmdir()

    def ours(self) -> tuple[float, int]:
        """Return the median of comparisons a second from hash tables, and the candidates of a query."""
        rates = []
        for _ in range(self.options.repeat):
            drop_caches()
            words = ["query", "bench-items", str(self.folder / "queries.b1bin"), "-k", "10"]
            words += ["--metric", "hamming", "--probes", str(self.options.probes), "--threads", "2"]
            told = self.inshore(*words, "--memory", self.options.memory, "-o", str(self.folder / "hits.csv"))
            phases = told["report"]["phases"]
            seconds = sum(phase["seconds"] for phase in phases if phase["phase"] == "searching")
            rates.append(told["summary"]["compared"] / seconds)
        return statistics.median(rates), told["summary"]["compared"] // told["summary"]["queries"]

    def run(self) -> None:
        """Run all and print the table."""
        options = self.options
        columns = ["system", "items in memory", "comparisons/s", "of all in memory"]
        table = report.Report(options, columns)
        count = options.megabytes * 1_000_000 // ITEM
        if not (self.folder / "items.raw").exists():
            words = [str(count), str(options.queries), str(self.folder)]
            subprocess.run([options.python, "-c", MAKE, *words], check=True)
            self.inshore("import", str(self.folder / "items.b1bin"), "--name", "bench-items")
            self.inshore("index", "bench-items", "--lsh", "--metric", "hamming")
        drop_caches()
        rates = {share: self.program(share, count) for share in (0.0, 0.05, 0.1, 1.0)}
        for share, rate in rates.items():
            table.row("program, mapped file", f"{1 - share:.0%}", f"{rate:,.0f}", f"{rate / rates[0.0]:.2f}")
        slow = self.limited(0.05, min(count, 20_000))
        if slow is not None:
            name = "program, mapped file, 100 reads/s"
            table.row(name, "95%", f"{slow:,.0f}", f"{slow / rates[0.0]:.3f}")
        rate, candidates = self.ours()
        name = f"Inshore, hash tables, {candidates:,} candidates a query, {options.memory}"
        table.row(name, "0%", f"{rate:,.0f}", f"{rate / rates[0.0]:.2f}")
        reads = fio_random(self.folder / "items.raw", 5, 64)
        table.row("reads of 8 KiB, fio", "0%", f"{reads:,.0f}", f"{reads / rates[0.0]:.2f}")
        table.write()


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=1600)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--probes", type=int, default=64)
    parser.add_argument("--memory", default="64MiB")
    report.add_option(parser)
    Bench(parser.parse_args()).run()


if __name__ == "__main__":
    main()
