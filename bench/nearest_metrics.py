#!/usr/bin/env python3
"""Exact nearest neighbours by the three metrics of the papers: from the drive, from a slower drive, and from memory.

    INSHORE_STORE=DIR bench/nearest_metrics.py --inshore target/release/inshore --python PYTHON

PYTHON is an interpreter with numpy and faiss-cpu. This is figure 6-3 of the 2018 thesis (section 6.2): the speed of one
query by Hamming distance over items of 8 KiB, by cosine over 8,000 word counts of a byte, and by Euclidean distance over
histograms of 256 bins. The items are made: random bits, sparse counts and sparse histograms. Each run has two threads,
and for Inshore a budget of `--memory`. Inshore reads a store in DIR with the page cache dropped, the same store with the
reads limited to `--throttle` (a blkio cgroup, version 1), and a store in /dev/shm. Faiss has all items in memory: as
bits, and for the other metrics as f32. Times are medians of `--repeat` runs of one query: Inshore's searching phase, and
Faiss's `search`. The column `of memory` is the speed divided by that of Inshore's store in /dev/shm.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
from pathlib import Path

import report
from graphs import drop_caches, parse_budget

ROOT = Path("/sys/fs/cgroup/blkio")

MAKE = """
import sys, numpy as np
kind, count, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(1)
with open(path, "wb") as out:
    dimensions = {"bits": 65536, "counts": 8000, "histograms": 256}[kind]
    np.array([count, dimensions], "<u4").tofile(out)
    for start in range(0, count, 10_000):
        rows = min(10_000, count - start)
        if kind == "bits":
            made = rng.integers(0, 256, (rows, 8192), np.uint8)
        elif kind == "counts":
            made = rng.poisson(0.05, (rows, 8000)).astype(np.uint8)
        else:
            made = np.maximum(rng.normal(-1, 1, (rows, 256)), 0)
            made = (made / np.maximum(made.sum(axis=1, keepdims=True), 1e-9)).astype("<f4")
        made.tofile(out)
"""

FAISS = """
import json, sys, time, numpy as np, faiss
kind, base, repeat = sys.argv[1], sys.argv[2], int(sys.argv[3])
faiss.omp_set_num_threads(2)
dimensions = int(np.fromfile(base, "<u4", 2)[1])
if kind == "bits":
    x, index = np.fromfile(base, np.uint8, offset=8).reshape(-1, dimensions // 8), faiss.IndexBinaryFlat(dimensions)
elif kind == "counts":
    x = np.fromfile(base, np.uint8, offset=8).reshape(-1, dimensions).astype("f4")
    faiss.normalize_L2(x)
    index = faiss.IndexFlatIP(dimensions)
else:
    x, index = np.fromfile(base, "<f4", offset=8).reshape(-1, dimensions), faiss.IndexFlatL2(dimensions)
index.add(x)
query = x[:1].copy()
del x
times = []
for _ in range(repeat + 1):
    start = time.perf_counter()
    index.search(query, 10)
    times.append(time.perf_counter() - start)
print(json.dumps(times[1:]))
"""

METRICS = {
    "bits": ("Hamming, 8,192 bytes", "hamming", ".b1bin", 8192),
    "counts": ("cosine, 8,000 counts", "cosine", ".u8bin", 8000),
    "histograms": ("Euclidean, 256 bins", "l2", ".fbin", 1024),
}


class Bench:
    """The files, and the programs that read them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.store = Path(os.environ["INSHORE_STORE"])
        self.folder = self.store.parent / "nearest-metrics-bench"
        self.folder.mkdir(exist_ok=True)
        self.memory_store = Path("/dev/shm/nearest-metrics-bench")

    def inshore(self, store: Path, *words: str) -> dict:
        command = [self.options.inshore, "nearest", *words, "--json"]
        environment = os.environ | {"INSHORE_STORE": str(store)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return json.loads(done.stdout)

    def count(self, kind: str) -> int:
        """Return the number of items that take `--megabytes`."""
        return self.options.megabytes * 1_000_000 // METRICS[kind][3]

    def make(self, kind: str, name: str, count: int) -> Path:
        path = self.folder / f"{name}{METRICS[kind][2]}"
        if not path.exists():
            subprocess.run([self.options.python, "-c", MAKE, kind, str(count), str(path)], check=True)
        return path

    def seconds(self, kind: str, store: Path) -> float:
        """Return the median time of a search."""
        query, times = self.make(kind, f"{kind}-query", 1), []
        for _ in range(self.options.repeat):
            drop_caches()
            words = [
                kind,
                str(query),
                "-k",
                "10",
                "--metric",
                METRICS[kind][1],
                "-o",
                str(self.folder / "hits.csv"),
            ]
            words += ["--memory", self.options.memory, "--threads", "2"]
            phases = self.inshore(store, "query", *words)["report"]["phases"]
            times.append(sum(phase["seconds"] for phase in phases if phase["phase"] == "searching"))
        return statistics.median(times)

    def throttled(self, kind: str) -> float | None:
        """Return the median time with limited reads, and None if there is no such cgroup."""
        place = ROOT / "nearest-metrics-bench"
        try:
            place.mkdir(exist_ok=True)
            device = os.stat(self.store).st_dev
            limit = f"{os.major(device)}:{os.minor(device)} {parse_budget(self.options.throttle)}"
            (place / "blkio.throttle.read_bps_device").write_text(limit)
            (place / "tasks").write_text(str(os.getpid()))
        except OSError:
            return None
        try:
            return self.seconds(kind, self.store)
        finally:
            (ROOT / "tasks").write_text(str(os.getpid()))
            place.rmdir()

    def faiss(self, kind: str, base: Path) -> float:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS")}
        command = [self.options.python, "-c", FAISS, kind, str(base), str(self.options.repeat)]
        environment["OMP_NUM_THREADS"] = "2"
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return statistics.median(json.loads(done.stdout))

    def run(self) -> None:
        """Run all metrics in turn and print the table."""
        options = self.options
        columns = ["metric", "system", "seconds", "items/s", "GB/s", "of memory"]
        table = report.Report(options, columns, {"Faiss": report.package(options.python, "faiss-cpu")})
        for kind, (title, _, _, item_bytes) in METRICS.items():
            count = self.count(kind)
            base = self.make(kind, kind, count)
            for store in (self.store, self.memory_store):
                subprocess.run(
                    [options.inshore, "nearest", "rm", kind],
                    env=os.environ | {"INSHORE_STORE": str(store)},
                    capture_output=True,
                    check=False,
                )
                self.inshore(store, "import", str(base), "--name", kind)
            memory = self.seconds(kind, self.memory_store)
            shown = {
                "Inshore, from the drive": self.seconds(kind, self.store),
                f"Inshore, {options.throttle} a second": self.throttled(kind),
                "Inshore, store in memory": memory,
                "Faiss in memory": self.faiss(kind, base),
            }
            for system, taken in shown.items():
                if taken is None:
                    table.row(title, system, "no blkio cgroup", "", "", "")
                    continue
                rate = count / taken
                figures = (
                    f"{taken:.3f}",
                    f"{rate:,.0f}",
                    f"{rate * item_bytes / 1e9:.2f}",
                    f"{memory / taken:.2f}",
                )
                table.row(title, system, *figures)
            base.unlink()
        table.write()
        shutil.rmtree(self.memory_store)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=800)
    parser.add_argument("--memory", default="64MiB")
    parser.add_argument("--throttle", default="200MiB")
    report.add_option(parser)
    Bench(parser.parse_args()).run()


if __name__ == "__main__":
    main()
