#!/usr/bin/env python3
"""Single queries, one call each, from Python: Inshore's open vectors, and Faiss with all vectors in memory.

    bench/nearest_calls.py --python PYTHON [--vectors 200000] [--store DIR]

PYTHON is an interpreter with numpy, the package inshore, and faiss-cpu (without it, the rows of Faiss are
left out). The data are made: clusters of normal f32, imported into a store in a new folder of DIR, with an
index for a recall of 0.95. Each row calls with one query after the other for `--seconds`, from one thread or
from two; a call of `Store.nearest` opens the store each time. Inshore has a budget of `--memory` and two
threads. Faiss's `IVF,Flat` has as many lists, and probes as few as reach the recall, against the exact
answer. `ms` is the median of a call.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import report

WORK = """
import json, sys, threading, time, numpy as np, inshore
vectors, dimensions, seconds, recall, memory, folder = json.loads(sys.argv[1])
rng = np.random.default_rng(1)
centers = rng.normal(0, 1, (1000, dimensions)).astype(np.float32)
noise = lambda count: rng.normal(0, 0.7, (count, dimensions)).astype(np.float32)
made = lambda count: centers[rng.integers(0, 1000, count)] + noise(count)
base, queries = made(vectors), made(500)

def rate(call, threads):
    times = [[] for _ in range(threads)]
    def work(number):
        ends, place = time.perf_counter() + seconds, number
        while (began := time.perf_counter()) < ends:
            call(queries[place % len(queries)])
            times[number].append(time.perf_counter() - began)
            place += threads
    all = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    [thread.start() for thread in all]; [thread.join() for thread in all]
    taken = sum(times, [])
    return {"rate": len(taken) / seconds, "ms": float(np.median(taken)) * 1000}

def tell(system, job, call, recall=None):
    for threads in (1, 2):
        facts = {"system": system, "job": job, "threads": threads, "recall": recall}
        print(json.dumps(facts | rate(call, threads)))

store = inshore.Store(folder)
store.import_vectors(base, name="v", memory=memory)
lists = store.index_vectors("v", memory=memory, copies=4)["lists"]
exact = store.nearest("v", queries, memory=memory).table()["id"].to_numpy().reshape(-1, 10)
share = lambda ids: float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids, exact)]))
near = {"recall": recall, "memory": memory, "threads": 2}
tell("Inshore, Store.nearest", "index", lambda q: store.nearest("v", q, **near).table())
with store.vectors("v", memory=memory, threads=2) as searcher:
    found = share([searcher.search(q, recall=recall).ids[0] for q in queries])
    tell("Inshore, open", "index", lambda q: searcher.search(q, recall=recall).ids, found)
    tell("Inshore, open", "exact", lambda q: searcher.search(q, exact=True).ids, 1.0)
needed = str(2 * base.nbytes * 5 // 2 + (256 << 20))
with store.vectors("v", in_memory=True, memory=int(needed), threads=2) as searcher:
    tell("Inshore, in memory", "index", lambda q: searcher.search(q, recall=recall).ids, found)
    tell("Inshore, in memory", "exact", lambda q: searcher.search(q, exact=True).ids, 1.0)
try:
    import faiss
except ImportError:
    sys.exit()
faiss.omp_set_num_threads(1)
index = faiss.index_factory(dimensions, f"IVF{lists},Flat")
index.train(base[rng.choice(vectors, min(vectors, 32 * lists), replace=False)])
index.add(base)
for index.nprobe in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256):
    found = share(index.search(queries, 10)[1])
    if found >= recall: break
tell("Faiss, IVF in memory", "index", lambda q: index.search(q[None], 10), found)
flat = faiss.IndexFlatL2(dimensions)
flat.add(base)
tell("Faiss, flat in memory", "exact", lambda q: flat.search(q[None], 10), 1.0)
"""


def main() -> None:
    """Run all in turn and print the table."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--store", type=Path, help="a folder on the drive to be measured")
    parser.add_argument("--vectors", type=int, default=200_000)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--recall", type=float, default=0.95)
    parser.add_argument("--memory", default="128MiB")
    report.add_option(parser)
    options = parser.parse_args()
    columns = ["job", "system", "threads", "calls/s", "ms", "recall at 10"]
    table = report.Report(options, columns, {"Faiss": report.package(options.python, "faiss-cpu")})
    with tempfile.TemporaryDirectory(dir=options.store) as folder:
        facts = [options.vectors, options.dimensions, options.seconds, options.recall, options.memory, folder]
        words = [options.python, "-c", WORK, json.dumps(facts)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        for line in done.stdout.splitlines():
            told = json.loads(line)
            recall = "" if told["recall"] is None else f"{told['recall']:.3f}"
            cells = [f"{told['rate']:.0f}", f"{told['ms']:.2f}", recall]
            table.row(told["job"], told["system"], str(told["threads"]), *cells)
    table.write()


if __name__ == "__main__":
    main()
