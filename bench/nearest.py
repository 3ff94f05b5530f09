#!/usr/bin/env python3
"""Exact nearest neighbours: Inshore, which reads vectors from the drive, and Faiss, which has them in memory.

    INSHORE_STORE=DIR bench/nearest.py --inshore target/release/inshore --python PYTHON [--vectors 1000000]

PYTHON is an interpreter with numpy and faiss-cpu, and for `--in-memory` with the package inshore. The data are made: clusters of normal f32 in DIR's
folder. For each batch each program answers in turn, `--repeat` times, with two threads. Inshore's time is
that of its search phase, with all reads from the drive, and beside it that of the whole command. Faiss's
time is that of `IndexFlatL2.search`, with the vectors in memory, once with its default
`distance_compute_blas_threshold` and once with 0; variables of OpenBLAS in the environment are unset, and
OMP_NUM_THREADS is 2. The limit of the machine is measured by numpy in the same process: the slower one of a
matrix product of the same shape (sgemm) and of two threads that read all vectors from memory (sdot). With `--in-memory`
the row `Inshore in memory` is a call of open vectors
(`Store.vectors`) that keep all vectors in memory, as Faiss does. All times are medians. Ids are compared with Inshore's, which equal
brute force in f64: the last column counts the others.
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

MAKE = """
import sys, numpy as np
vectors, queries, dimensions, k = map(int, sys.argv[1:5])
rng = np.random.default_rng(1)
centers = rng.normal(0, 1, (1000, dimensions)).astype("<f4")
def write(path, count):
    with open(path, "wb") as out:
        np.array([count, dimensions], "<u4").tofile(out)
        for start in range(0, count, 100_000):
            rows = min(100_000, count - start)
            made = centers[rng.integers(0, 1000, rows)] + rng.normal(0, 0.7, (rows, dimensions))
            made.astype("<f4").tofile(out)
write(sys.argv[5], vectors)
write(sys.argv[6], queries)
"""

FAISS = """
import json, sys, time, numpy as np, faiss
from concurrent.futures import ThreadPoolExecutor
from statistics import median
base, queries, batch, k, threshold, hits = sys.argv[1:7]
faiss.omp_set_num_threads(2)
read = lambda path: np.fromfile(path, "<f4", offset=8).reshape(-1, int(np.fromfile(path, "<u4", 2)[1]))
x, q = read(base), read(queries)[: int(batch)]
index = faiss.IndexFlatL2(x.shape[1])
index.add(x)
if threshold != "default":
    faiss.cvar.distance_compute_blas_threshold = int(threshold)
start = time.perf_counter(); _, ids = index.search(q, int(k)); first = time.perf_counter() - start
seconds, products, reads = [first] if first > 1 else [], [], []
for _ in range(0 if first > 1 else 3):
    start = time.perf_counter(); _, ids = index.search(q, int(k)); seconds.append(time.perf_counter() - start)
for _ in range(3):
    start = time.perf_counter()
    for block in range(0, len(x), 65536): np.dot(x[block : block + 65536], q.T)
    products.append(time.perf_counter() - start)
halves = np.split(x.reshape(-1)[: x.size // 2 * 2], 2)
with ThreadPoolExecutor(2) as pool:
    for _ in range(5):
        start = time.perf_counter()
        list(pool.map(lambda half: [np.dot(p, p) for p in np.array_split(half, 64)], halves))
        reads.append(time.perf_counter() - start)
found = np.genfromtxt(hits, delimiter=",", skip_header=1, usecols=2, dtype=np.int64).reshape(-1, int(k))
others = sum(len(set(a) - set(b)) for a, b in zip(ids, found))
limit = max(median(products), median(reads))
print(json.dumps({"seconds": median(seconds), "limit": limit, "others": int(others)}))
"""

IN_MEMORY = """
import json, sys, time, numpy as np, inshore
from statistics import median
store, queries, batches, k, memory = json.loads(sys.argv[1])
q = np.fromfile(queries, "<f4", offset=8).reshape(-1, int(np.fromfile(queries, "<u4", 2)[1]))
with inshore.Store(store).vectors("bench-nearest", in_memory=True, memory=memory, threads=2) as searcher:
    for batch in batches:
        seconds = []
        for _ in range(6):
            start = time.perf_counter(); searcher.search(q[:batch], k=k, exact=True); seconds.append(time.perf_counter() - start)
        print(json.dumps([batch, median(seconds[1:])]))
"""


class Bench:
    """The files, and the programs that read them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = Path(os.environ["INSHORE_STORE"]).parent / "nearest-bench"
        self.folder.mkdir(exist_ok=True)
        self.base, self.queries = self.folder / "base.fbin", self.folder / "queries.fbin"
        unset = {name for name in os.environ if name.startswith("OPENBLAS")}
        self.peer_environment = {name: value for name, value in os.environ.items() if name not in unset}
        self.peer_environment["OMP_NUM_THREADS"] = "2"

    def make(self) -> None:
        """Make the data and import them, unless they are there."""
        most = max(self.options.batches)
        sizes = [self.options.vectors, most, self.options.dimensions, self.options.k]
        if not self.base.exists():
            words = [*map(str, sizes), str(self.base), str(self.queries)]
            subprocess.run([self.options.python, "-c", MAKE, *words], check=True)
        command = [self.options.inshore, "store", "ls"]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        if "bench-nearest" not in listed.stdout:
            words = ["nearest", "import", str(self.base), "--name", "bench-nearest", "--quiet"]
            subprocess.run([self.options.inshore, *words], check=True)

    def batch(self, count: int) -> Path:
        """Return a file of the first queries."""
        path = self.folder / f"queries-{count}.fbin"
        row = 4 * self.options.dimensions
        with open(self.queries, "rb") as whole, open(path, "wb") as part:
            part.write(count.to_bytes(4, "little") + self.options.dimensions.to_bytes(4, "little"))
            whole.seek(8)
            part.write(whole.read(count * row))
        return path

    def inshore(self, count: int) -> tuple[float, float, Path]:
        """Return the seconds of the search and of the command, and the answer."""
        drop_caches()
        hits = self.folder / "hits.csv"
        words = ["nearest", "query", "bench-nearest", str(self.batch(count)), "-k", str(self.options.k)]
        words += ["--memory", self.options.memory, "--threads", "2", "--json", "-o", str(hits)]
        done = subprocess.run([self.options.inshore, *words], capture_output=True, text=True, check=True)
        told = json.loads(done.stdout)["report"]
        searching = sum(phase["seconds"] for phase in told["phases"] if phase["phase"] == "searching")
        return searching, told["seconds"], hits

    def in_memory(self, count: int) -> float | None:
        """Return the seconds of a call of open vectors in memory; None without `--in-memory`."""
        options = self.options
        if not options.in_memory:
            return None
        memory = 10 * options.vectors * options.dimensions + (512 << 20)
        told = [os.environ["INSHORE_STORE"], str(self.queries), [count], options.k, str(memory)]
        command = [options.python, "-c", IN_MEMORY, json.dumps(told)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout)[1])

    def faiss(self, count: int, threshold: str, hits: Path) -> dict[str, float]:
        """Return the times of Faiss and of the limit."""
        words = [str(self.base), str(self.queries), str(count), str(self.options.k), threshold, str(hits)]
        command = [self.options.python, "-c", FAISS, *words]
        done = subprocess.run(command, env=self.peer_environment, capture_output=True, text=True, check=True)
        answer: dict[str, float] = json.loads(done.stdout)
        return answer

    def run(self) -> None:
        """Run all batches in turn and print the table."""
        against = ["against Faiss's best", "of the limit"]
        columns = ["queries", "system", "seconds", "queries/s", *against, "other ids"]
        peers = {"Faiss": report.package(self.options.python, "faiss-cpu")}
        table = report.Report(self.options, columns, peers)
        for count in self.options.batches:
            ours, whole, memory, faiss = [], [], [], {"default": [], "0": []}
            limits, others = [], {"default": 0, "0": 0}
            for _ in range(self.options.repeat):
                searching, command, hits = self.inshore(count)
                ours.append(searching)
                whole.append(command)
                if (seconds := self.in_memory(count)) is not None:
                    memory.append(seconds)
                for threshold, taken in faiss.items():
                    found = self.faiss(count, threshold, hits)
                    taken.append(found["seconds"])
                    limits.append(found["limit"])
                    others[threshold] = int(found["others"])
            best = min(statistics.median(seconds) for seconds in faiss.values())
            limit = statistics.median(limits)
            shown = [("Inshore, from the drive", ours, ""), ("Inshore, whole command", whole, "")]
            if memory:
                shown.append(("Inshore in memory", memory, ""))
            for name, taken in faiss.items():
                shown.append((f"Faiss in memory, threshold {name}", taken, str(others[name])))
            for who, seconds, other in shown:
                middle = statistics.median(seconds)
                ratios = (f"{best / middle:.2f}", f"{limit / middle:.2f}")
                times = (f"{middle:.3f}", f"{count / middle:.0f}")
                table.row(str(count), who, *times, *ratios, other)
        table.write()


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--memory", default="64MiB")
    parser.add_argument("--batches", type=numbers, default=[1, 16, 100, 500, 2000])
    parser.add_argument("--in-memory", action="store_true", help="also measure open vectors that stay in memory")
    report.add_option(parser)
    bench = Bench(parser.parse_args())
    bench.make()
    bench.run()


if __name__ == "__main__":
    main()
