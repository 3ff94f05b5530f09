#!/usr/bin/env python3
"""Approximate nearest neighbours among selected vectors: Inshore with --where, and LanceDB with a prefilter.

    INSHORE_STORE=DIR bench/nearest_filters.py --inshore target/release/inshore --python PYTHON \\
        --base sift1m.u8bin --queries queries.u8bin

PYTHON is an interpreter with numpy, pyarrow and lancedb. Each vector has a number `bucket` below 2,000, drawn at random. The
predicates `bucket < 1000`, `100`, `10` and `1` select 50, 5, 0.5 and 0.05 % of the vectors. Inshore imports a Parquet file of
the vectors with their numbers, and is asked for a recall of 0.95. LanceDB has an index IVF_RQ with as many partitions as the
square root of the number of vectors, and a scalar index of `bucket`; it probes the smallest of several numbers of
partitions at which its recall reaches 0.95, and measures ten times as many candidates again. Recall at 10 is measured on
`--truth` queries against Inshore's exact answer with the predicate; all are asked one after the other, Inshore with one thread.
Each run has a memory cgroup (version 1) of `--memory` and 96 MiB, and an empty page cache; LanceDB runs without the limit
if that kills it, and its row says so. `answers` is the number of neighbours found, of k for each query.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import report
from nearest_index import Bench, searching

MAKE = """
import sys, numpy as np, pyarrow as pa, pyarrow.parquet as pq
base, out = sys.argv[1:3]
x = np.memmap(base, np.uint8, "r", offset=8).reshape(-1, int(np.fromfile(base, "<u4", 2)[1]))
bucket = np.random.default_rng(1).integers(0, 2000, len(x))
schema = pa.schema([("v", pa.list_(pa.uint8(), x.shape[1])), ("bucket", pa.int32())])
with pq.ParquetWriter(out, schema) as writer:
    for first in range(0, len(x), 20_000):
        block = np.ascontiguousarray(x[first : first + 20_000])
        lists = pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), x.shape[1])
        numbers = pa.array(bucket[first : first + 20_000], pa.int32())
        writer.write_batch(pa.RecordBatch.from_arrays([lists, numbers], schema=schema))
"""

LANCE_BUILD = """
import sys, numpy as np, pyarrow as pa, lancedb
base, folder = sys.argv[1:3]
x = np.memmap(base, np.uint8, "r", offset=8).reshape(-1, int(np.fromfile(base, "<u4", 2)[1]))
bucket = np.random.default_rng(1).integers(0, 2000, len(x))
names = ["id", "vector", "bucket"]
def batches():
    for first in range(0, len(x), 100_000):
        block = x[first : first + 100_000].astype("float32")
        lists = pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), x.shape[1])
        ids = pa.array(np.arange(first, first + len(block)))
        yield pa.RecordBatch.from_arrays([ids, lists, pa.array(bucket[first : first + 100_000], pa.int32())], names)
schema = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), x.shape[1])), ("bucket", pa.int32())])
table = lancedb.connect(folder).create_table("vectors", batches(), schema=schema)
table.create_index(metric="l2", index_type="IVF_RQ", num_partitions=int(len(x) ** 0.5))
table.create_scalar_index("bucket")
"""

LANCE = """
import json, sys, time, numpy as np, lancedb
folder, queries, exact, limit = sys.argv[1:5]
told = json.loads(exact)
q = np.fromfile(queries, np.uint8, offset=8).reshape(-1, int(np.fromfile(queries, "<u4", 2)[1])).astype("float32")
table = lancedb.connect(folder).open_table("vectors")
for probes in (16, 32, 64, 128, 256, 512, 1000):
    times, hits, answers = [], 0, 0
    for row, query in enumerate(q):
        start = time.perf_counter()
        search = table.search(query).where(f"bucket < {limit}", prefilter=True).limit(10).nprobes(probes)
        found = search.refine_factor(10).select(["id", "_distance"]).to_arrow()["id"].to_pylist()
        times.append(time.perf_counter() - start)
        hits += len(set(found) & set(told[str(row)]))
        answers += len(found)
    recall = hits / sum(map(len, told.values()))
    if recall >= 0.95:
        break
print(json.dumps({"probes": probes, "recall": recall, "answers": answers, "seconds": sum(times),
                  "p50": float(np.median(times)), "p99": float(np.quantile(times, 0.99))}))
"""


class Filters(Bench):
    """Measures predicates of several selectivities."""

    def answers(self, limit: int, *words: str) -> tuple[dict, dict[str, list[int]]]:
        """Return the report of a search with the predicate, and the ids that it found for each query."""
        where = ["--where", f"bucket < {limit}", "-k", "10"]
        told, hits = self.query(self.first, *where, *words)
        found: dict[str, list[int]] = {}
        for line in hits.read_text().splitlines()[1:]:
            query, _, number = line.split(",")[:3]
            found.setdefault(query, []).append(int(number))
        return told, found

    def lance(self, limit: int, exact: dict[str, list[int]]) -> tuple[dict, bool]:
        """Return the figures of LanceDB, and whether it ran within the limit of memory."""
        words = [self.options.python, "-c", LANCE, str(self.folder / "lance-filters"), str(self.first)]
        words += [json.dumps(exact), str(limit)]
        done = self.limited(words)
        if done.returncode == 0:
            return json.loads(done.stdout), True
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return json.loads(done.stdout), False

    def run(self) -> None:
        """Measure all predicates in turn, and print the table."""
        options = self.options
        peers = {"LanceDB": report.package(options.python, "lancedb")}
        columns = [
            "selected",
            "system",
            "lists",
            "recall at 10",
            "answers",
            "queries/s",
            "p50",
            "p99",
            "peak MiB",
        ]
        table = report.Report(options, columns, peers)
        python, base = options.python, str(options.base)
        self.name = f"bench-{options.base.stem}-filters"
        listed = subprocess.run(
            [options.inshore, "nearest", "ls"], capture_output=True, text=True, check=False
        )
        if f"{self.name} " not in listed.stdout:
            file = self.folder / "filters.parquet"
            subprocess.run([python, "-c", MAKE, base, str(file)], check=True)
            self.inshore("import", str(file), "--name", self.name, "--column", "v")
            file.unlink()
            self.inshore("index", self.name)
        if not (self.folder / "lance-filters").exists():
            words = [python, "-c", LANCE_BUILD, base, str(self.folder / "lance-filters")]
            subprocess.run(words, check=True, capture_output=True)
        for limit in (1000, 100, 10, 1):
            share = f"{limit / 20:g} %"
            _, exact = self.answers(limit, "--exact")
            told, found = self.answers(limit, "--recall", "0.95", "--strategy", "single", "--threads", "1")
            right = sum(len(set(ids) & set(found.get(query, []))) for query, ids in exact.items())
            total = sum(map(len, exact.values()))
            latency = [us / 1000 for us in told["summary"].get("latency_us") or [0, 0]]
            rate = options.truth / searching(told)
            row = [str(told["summary"].get("probes") or "exact"), f"{right / total:.3f}"]
            row += [f"{sum(map(len, found.values())):,} of {total:,}", f"{rate:.0f}"]
            row += [f"{ms:.2f} ms" if ms else "" for ms in latency]
            table.row(share, "Inshore", *row, str(self.peak_mib))
            figures, is_limited = self.lance(limit, exact)
            row = [str(figures["probes"]), f"{figures['recall']:.3f}", f"{figures['answers']:,} of {total:,}"]
            row += [f"{options.truth / figures['seconds']:.0f}"]
            row += [f"{1000 * figures[name]:.2f} ms" for name in ("p50", "p99")]
            name = "LanceDB" if is_limited else "LanceDB (killed by the limit, run without it)"
            table.row(share, name, *row, str(self.peak_mib) if is_limited else "")
        table.write()


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--truth", type=int, default=500, help="number of queries")
    parser.add_argument("--memory", default="256MiB")
    report.add_option(parser)
    Filters(parser.parse_args()).run()


if __name__ == "__main__":
    main()
