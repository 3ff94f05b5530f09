"""A peer of bench/nearest_recall.py: builds an index of a file (u8bin or fbin), or answers queries from it.

    nearest.py build SYSTEM BASE FOLDER LISTS
    nearest.py query SYSTEM QUERIES FOLDER TRUTH SETTINGS

SYSTEM is faiss (inverted lists that are mapped from the drive), usearch (a graph that is mapped), lancedb (inverted lists
of RaBitQ codes, whose candidates are measured again) or diskann (a graph on the drive, with codes of vectors in 100 MB of
memory; in an interpreter of its own, since its wheel has an old numpy). `query` prints a JSON object for each of the SETTINGS (lists or
candidates, separated by commas): recall at 10 against TRUTH, an array of NumPy, seconds of one query after the other, and
seconds of all queries as a batch where the system has one. Runs in an interpreter that has the packages.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

K = 10
BLOCK = 250_000


def vectors(path: str) -> np.ndarray:
    """Return the vectors of a u8bin or fbin file, which stay on the drive."""
    dimensions = int(np.fromfile(path, "<u4", 2)[1])
    element = np.float32 if path.endswith(".fbin") else np.uint8
    return np.memmap(path, element, "r", offset=8).reshape(-1, dimensions)


class Faiss:
    """`IVF{lists},Flat` with lists on disk."""

    def build(self, base: np.ndarray, folder: Path, lists: int) -> None:
        import faiss
        from faiss.contrib.ondisk import merge_ondisk

        faiss.omp_set_num_threads(2)
        places = np.random.default_rng(1).choice(len(base), min(len(base), 32 * lists), replace=False)
        index = faiss.index_factory(base.shape[1], f"IVF{lists},Flat")
        index.cp.niter = 8
        index.train(base[np.sort(places)].astype("float32"))
        blocks = []
        for first in range(0, len(base), BLOCK):
            part = faiss.clone_index(index)
            block = base[first : first + BLOCK].astype("float32")
            part.add_with_ids(block, np.arange(first, first + len(block)))
            blocks.append(str(folder / f"block{first}.index"))
            faiss.write_index(part, blocks[-1])
        merge_ondisk(index, blocks, str(folder / "lists.ivfdata"))
        faiss.write_index(index, str(folder / "whole.index"))
        for block in blocks:
            Path(block).unlink()

    def open(self, folder: Path) -> None:
        import faiss

        faiss.omp_set_num_threads(2)
        self.index = faiss.read_index(str(folder / "whole.index"))

    def one(self, query: np.ndarray, setting: int) -> np.ndarray:
        self.index.nprobe = setting
        return self.index.search(query[None].astype("float32"), K)[1][0]

    def batch(self, queries: np.ndarray, setting: int) -> np.ndarray:
        from faiss.contrib.big_batch_search import big_batch_search

        self.index.nprobe = setting
        return big_batch_search(self.index, queries.astype("float32"), K, threaded=2, verbose=0)[1]


class USearch:
    """A graph (HNSW) of bytes that are converted to half precision."""

    def build(self, base: np.ndarray, folder: Path, lists: int) -> None:
        from usearch.index import Index

        index = Index(ndim=base.shape[1], metric="l2sq", dtype="f16")
        for first in range(0, len(base), BLOCK):
            block = base[first : first + BLOCK].astype("float32")
            index.add(np.arange(first, first + len(block)), block, threads=2)
        index.save(str(folder / "graph.usearch"))

    def open(self, folder: Path) -> None:
        from usearch.index import Index

        self.index = Index.restore(str(folder / "graph.usearch"), view=True)

    def one(self, query: np.ndarray, setting: int) -> np.ndarray:
        self.index.expansion_search = setting
        return self.index.search(query.astype("float32"), K, threads=1).keys

    def batch(self, queries: np.ndarray, setting: int) -> np.ndarray:
        self.index.expansion_search = setting
        return self.index.search(queries.astype("float32"), K, threads=2).keys


class LanceDB:
    """Inverted lists of RaBitQ codes; ten times as many candidates as neighbours are measured."""

    def build(self, base: np.ndarray, folder: Path, lists: int) -> None:
        import lancedb
        import pyarrow as pa

        dimensions = base.shape[1]

        def batches():
            for first in range(0, len(base), BLOCK):
                block = base[first : first + BLOCK].astype("float32")
                values = pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), dimensions)
                numbers = pa.array(np.arange(first, first + len(block)))
                yield pa.RecordBatch.from_arrays([numbers, values], ["id", "vector"])

        schema = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), dimensions))])
        table = lancedb.connect(folder).create_table("vectors", batches(), schema=schema)
        # The advice of its documentation: the square root of the number of vectors, or more.
        table.create_index(metric="l2", index_type="IVF_RQ", num_partitions=int(len(base) ** 0.5))

    def open(self, folder: Path) -> None:
        import lancedb

        self.table = lancedb.connect(folder).open_table("vectors")

    def one(self, query: np.ndarray, setting: int) -> np.ndarray:
        search = self.table.search(query.astype("float32")).limit(K).nprobes(setting).refine_factor(10)
        return search.select(["id", "_distance"]).to_arrow()["id"].to_numpy()

    batch: Callable[[np.ndarray, int], np.ndarray] | None = None


class DiskANN:
    """A graph (Vamana) on the drive, of degree 64, and product codes in memory."""

    def build(self, base: np.ndarray, folder: Path, lists: int) -> None:
        import diskannpy

        diskannpy.build_disk_index(
            data=np.ascontiguousarray(base),
            distance_metric="l2",
            index_directory=str(folder),
            complexity=100,
            graph_degree=64,
            search_memory_maximum=0.1,
            build_memory_maximum=float(os.environ.get("DISKANN_BUILD_GIB", "64")),
            num_threads=2,
        )

    def open(self, folder: Path) -> None:
        import diskannpy

        self.index = diskannpy.StaticDiskIndex(str(folder), num_threads=2, num_nodes_to_cache=0)

    def one(self, query: np.ndarray, setting: int) -> np.ndarray:
        return self.index.search(query, K, setting).identifiers

    def batch(self, queries: np.ndarray, setting: int) -> np.ndarray:
        return self.index.batch_search(queries, K, setting, num_threads=2).identifiers


SYSTEMS = {"faiss": Faiss, "usearch": USearch, "lancedb": LanceDB, "diskann": DiskANN}


def query(
    system: Faiss | USearch | LanceDB | DiskANN,
    queries: np.ndarray,
    truth: np.ndarray,
    setting: int,
) -> dict:
    """Answer the queries of `truth` one after the other, and all as a batch."""
    times, hits = [], 0
    for number, exact in enumerate(truth):
        start = time.perf_counter()
        found = system.one(queries[number], setting)
        times.append(time.perf_counter() - start)
        hits += len(set(exact.tolist()) & set(found.tolist()))
    told = {
        "setting": setting,
        "recall": hits / truth.size,
        "count": len(truth),
        "seconds": sum(times),
    }
    told |= {"p50": float(np.median(times)), "p99": float(np.quantile(times, 0.99))}
    if system.batch is not None:
        start = time.perf_counter()
        system.batch(queries, setting)
        told |= {
            "batch_count": len(queries),
            "batch_seconds": time.perf_counter() - start,
        }
    return told


def main() -> None:
    """Build or query."""
    job, name, file, folder = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
    system = SYSTEMS[name]()
    if job == "build":
        folder.mkdir(parents=True)
        start = time.perf_counter()
        system.build(vectors(file), folder, int(sys.argv[5]))
        print(json.dumps({"seconds": time.perf_counter() - start}))
        return
    truth, queries = np.load(sys.argv[5]), vectors(file)
    system.open(folder)
    for setting in sys.argv[6].split(","):
        print(json.dumps(query(system, queries, truth, int(setting))), flush=True)


if __name__ == "__main__":
    main()
