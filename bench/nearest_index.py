#!/usr/bin/env python3
"""Approximate nearest neighbours: Inshore's index on the drive, and Faiss with inverted lists on disk.

    INSHORE_STORE=DIR bench/nearest_index.py --inshore target/release/inshore --python PYTHON \\
        --base sift1m.u8bin --queries queries.u8bin

PYTHON is an interpreter with numpy and faiss-cpu. All data are files of bytes (u8bin). The store gets the
vectors once. Each run has two threads, the page cache dropped before, and a memory cgroup (version 1) of
the budget and 96 MiB, for Inshore and for Faiss alike. Faiss reads an `IVF{lists},Flat` of as many lists as
Inshore's, whose lists are an `OnDiskInvertedLists` that is mapped into memory: its build is not limited.
Recall at 10 is measured on the first `--truth` queries against Inshore's exact answer. Each program probes
as few lists as reach `--recall`: Inshore by its table, which `nearest recall` measures on these queries,
Faiss by trying. Queries a second: Inshore's searching phase, Faiss's `search` and `big_batch_search`, all
queries at once; one at a time, the first `--truth`. Inshore's index is built without copies, and with
`--copies`. `peak MiB` is the most memory of the cgroup, page cache included. The last row is the rate of
fio's random reads of 64 KiB at depth 16, divided by 16.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path

import report
from graphs import drop_caches, make_group, parse_budget

BUILD = """
import sys, time, numpy as np, faiss
from faiss.contrib.ondisk import merge_ondisk
base, folder, lists = sys.argv[1], sys.argv[2], int(sys.argv[3])
faiss.omp_set_num_threads(2)
x = np.memmap(base, np.uint8, "r", offset=8).reshape(-1, int(np.fromfile(base, "<u4", 2)[1]))
start = time.perf_counter()
rng = np.random.default_rng(1)
sample = x[np.sort(rng.choice(len(x), min(len(x), 32 * lists), replace=False))].astype("float32")
index = faiss.index_factory(x.shape[1], f"IVF{lists},Flat")
index.cp.niter = 8
index.train(sample)
blocks = []
for block in range(0, len(x), 1_000_000):
    part = faiss.clone_index(index)
    part.add_with_ids(x[block : block + 1_000_000].astype("float32"), np.arange(block, min(block + 1_000_000, len(x))))
    blocks.append(f"{folder}/block{block}.index")
    faiss.write_index(part, blocks[-1])
merge_ondisk(index, blocks, f"{folder}/lists.ivfdata")
faiss.write_index(index, f"{folder}/whole.index")
print(time.perf_counter() - start)
"""

SEARCH = """
import json, sys, time, numpy as np, faiss
from faiss.contrib.big_batch_search import big_batch_search
folder, queries, truth, wanted, mode, probes = sys.argv[1:7]
faiss.omp_set_num_threads(2)
q = np.fromfile(queries, np.uint8, offset=8).reshape(-1, int(np.fromfile(queries, "<u4", 2)[1])).astype("float32")
exact = np.genfromtxt(truth, delimiter=",", skip_header=1, usecols=2, dtype=np.int64).reshape(-1, 10)
index = faiss.read_index(f"{folder}/whole.index")
recall = lambda ids: float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids, exact)]))
if mode == "probes":
    for number in (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384):
        index.nprobe = number
        found = recall(index.search(q[: len(exact)], 10)[1])
        if found >= float(wanted): break
    print(json.dumps({"probes": number, "recall": found}))
else:
    index.nprobe = int(probes)
    start = time.perf_counter()
    if mode == "single":
        times = []
        for row in range(len(exact)):
            began = time.perf_counter(); index.search(q[row : row + 1], 10); times.append(time.perf_counter() - began)
        count, ids = len(exact), None
    elif mode == "search": ids, count = index.search(q, 10)[1], len(q)
    else: ids, count = big_batch_search(index, q, 10, threaded=2, verbose=0)[1], len(q)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "count": count,
                      "latency": [float(np.quantile(times, q)) for q in (0.5, 0.99)] if mode == "single" else None,
                      "recall": recall(ids[: len(exact)]) if ids is not None else None}))
"""


class Bench:
    """The files, and the programs that read them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = Path(os.environ["INSHORE_STORE"]).parent / "nearest-index-bench"
        self.folder.mkdir(exist_ok=True)
        self.peak_mib = 0
        self.name = f"bench-{options.base.stem}"
        self.first = self.folder / f"first{options.queries.suffix}"
        with open(options.queries, "rb") as whole, open(self.first, "wb") as part:
            dimensions = int.from_bytes(whole.read(8)[4:], "little")
            part.write(options.truth.to_bytes(4, "little") + dimensions.to_bytes(4, "little"))
            part.write(whole.read(options.truth * dimensions * (4 if options.queries.suffix == ".fbin" else 1)))

    def limited(
        self, command: list[str], seconds: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a cgroup of the budget and 96 MiB, without a page cache from before.

        A command that takes longer than `seconds` is killed, and has the exit status 124.
        """
        drop_caches()
        group = make_group(parse_budget(self.options.memory) + (96 << 20))
        join = f"echo $$ > {group}/cgroup.procs; " if group else ""
        shell = ["sh", "-c", join + 'exec "$@"', "sh", *command]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS")}
        environment["OMP_NUM_THREADS"] = "2"
        try:
            return subprocess.run(
                shell, env=environment, capture_output=True, text=True, check=False, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", "")
        finally:
            if group:
                self.peak_mib = int((group / "memory.max_usage_in_bytes").read_text()) >> 20
                group.rmdir()

    def inshore(self, *words: str) -> dict[str, object]:
        """Return what Inshore tells as JSON."""
        command = [self.options.inshore, "nearest", *words, "--memory", self.options.memory]
        threads = [] if "--threads" in words else ["--threads", "2"]
        done = self.limited([*command, *threads, "--json"])
        if done.returncode:
            raise SystemExit(done.stderr)
        told: dict[str, object] = json.loads(done.stdout)
        return told

    def query(self, queries: Path, *words: str) -> tuple[dict, Path]:
        """Answer queries, and return the run of median speed."""
        hits, told = self.folder / "hits.csv", []
        for _ in range(self.options.repeat):
            told.append(self.inshore("query", self.name, str(queries), *words, "-o", str(hits)))
        told.sort(key=searching)
        return told[len(told) // 2], hits

    def faiss(self, mode: str, probes: int = 0) -> dict[str, float] | None:
        """Return what Faiss tells; None where it was killed."""
        words = [str(self.folder), str(self.options.queries), str(self.folder / "exact.csv")]
        words += [str(self.options.recall), mode, str(probes)]
        done = self.limited([self.options.python, "-c", SEARCH, *words])
        return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None

    def recall(self, hits: Path) -> float:
        """Return the share of exact neighbours in an answer."""
        read = lambda path: [line.split(",")[:3:2] for line in path.read_text().splitlines()[1:]]
        exact = {tuple(row) for row in read(self.folder / "exact.csv")}
        return len(exact & {tuple(row) for row in read(hits)}) / len(exact)

    def fio(self) -> float | None:
        """Return the random reads of 64 KiB a second at depth 16; None without fio."""
        if not shutil.which("fio"):
            return None
        file = self.folder / "fio"
        words = ["fio", "--name=read", f"--filename={file}", "--size=512M", "--direct=1"]
        words += ["--ioengine=io_uring", "--output-format=json"]
        read = ["--rw=randread", "--bs=64k", "--iodepth=16", "--runtime=5", "--time_based"]
        subprocess.run([*words, "--rw=write", "--bs=1M"], capture_output=True, check=True)
        done = subprocess.run([*words, *read], capture_output=True, text=True, check=True)
        file.unlink()
        return float(json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]["iops"])

    def build(self, copies: int | None) -> int:
        """Build Inshore's index, and return the number of its lists."""
        words = ["--copies", str(copies)] if copies else []
        built = self.inshore("index", self.name, *words)
        found, seconds = built["summary"], built["report"]["seconds"]
        mib = found["bytes"] >> 20
        self.row("build", f"Inshore{with_copies(copies)}", f"{seconds:.1f}", lists=found["lists"], mib=mib)
        truth = str(self.options.truth)
        self.inshore("recall", self.name, str(self.first), "--sample", truth, "-k", "10")
        return int(found["lists"])

    def search(self, job: str, queries: Path, strategy: str, copies: int | None) -> None:
        """Answer queries from Inshore's index."""
        recall = ["-k", "10", "--recall", str(self.options.recall)]
        told, hits = self.query(queries, *recall, "--strategy", strategy)
        found, seconds = told["summary"], searching(told)
        self.row(
            job,
            f"Inshore, {strategy}{with_copies(copies)}",
            f"{seconds:.2f}",
            rate=found["queries"] / seconds,
            latency=[us / 1e6 for us in found["latency_us"] or []],
            lists=found["probes"],
            recall=self.recall(hits),
        )

    def row(
        self,
        job: str,
        system: str,
        seconds: str = "",
        *,
        rate: float | None = None,
        latency: list[float] | None = None,
        lists: int | None = None,
        recall: float | None = None,
        mib: int | None = None,
    ) -> None:
        """Add a row to the table, with the peak of the last command."""
        p50, p99 = (f"{value * 1000:.2f} ms" for value in latency) if latency else ("", "")
        text = lambda value, form="": "" if value is None else format(value, form)
        cells = [text(rate, ".0f"), p50, p99, text(lists), text(recall, ".3f"), text(mib)]
        self.table.row(job, system, seconds, *cells, str(self.peak_mib) if self.peak_mib else "")

    def run(self) -> None:
        """Run all in turn and print the table."""
        options = self.options
        peers = {} if options.without_faiss else {"Faiss": report.package(options.python, "faiss-cpu")}
        columns = ["job", "system", "seconds", "queries/s", "p50", "p99", "lists", "recall at 10"]
        columns += ["index MiB", "peak MiB"]
        self.table = report.Report(options, columns, peers)
        listed = subprocess.run([options.inshore, "store", "ls"], capture_output=True, text=True, check=False)
        if f"{self.name} " not in listed.stdout:
            self.inshore("import", str(options.base), "--name", self.name)
        self.query(self.first, "-k", "10")[1].rename(self.folder / "exact.csv")
        lists = self.build(None)
        self.search("one at a time", self.first, "single", None)
        self.search("all", options.queries, "batch", None)
        self.build(options.copies)
        self.search("one at a time", self.first, "single", options.copies)
        self.search("all", options.queries, "single", options.copies)
        if not options.without_faiss:
            self.peers(lists)
        self.peak_mib = 0
        if (reads := self.fio()) is not None:
            self.row("64 KiB reads at depth 16, / 16", "fio", rate=reads / 16)
        self.table.write()

    def peers(self, lists: int) -> None:
        """Run Faiss."""
        options = self.options
        if not (self.folder / "whole.index").exists():
            words = [options.python, "-c", BUILD, str(options.base), str(self.folder), str(lists)]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            self.peak_mib = 0
            self.row("build", "Faiss, memory not limited", f"{float(done.stdout.split()[-1]):.1f}", lists=lists)
        chosen = self.faiss("probes")
        if chosen is None:
            raise SystemExit("Faiss was killed while it looked for its number of lists")
        for job, mode in (("one at a time", "single"), ("all", "search"), ("all", "big_batch_search")):
            told = [self.faiss(mode, int(chosen["probes"])) for _ in range(options.repeat)]
            good = [told for told in told if told is not None]
            probes = int(chosen["probes"])
            if not good:
                self.row(job, f"Faiss, {mode}", "killed", lists=probes)
                continue
            good.sort(key=lambda told: told["seconds"])
            median = good[len(good) // 2]
            self.row(
                job,
                f"Faiss, {mode}",
                f"{median['seconds']:.2f}",
                rate=median["count"] / median["seconds"],
                latency=median["latency"],
                lists=probes,
                recall=chosen["recall"],
            )


def with_copies(copies: int | None) -> str:
    """Name an index with copies."""
    return f", copies {copies}" if copies else ""


def searching(told: dict) -> float:
    """Return the seconds of the phase that searches."""
    return sum(phase["seconds"] for phase in told["report"]["phases"] if phase["phase"] == "searching")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--truth", type=int, default=1000, help="queries whose exact neighbours are found")
    parser.add_argument("--recall", type=float, default=0.95)
    parser.add_argument("--copies", type=int, default=4, help="the largest list with copies, in average lists")
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--without-faiss", action="store_true", help="for sets whose lists Faiss builds in hours")
    report.add_option(parser)
    Bench(parser.parse_args()).run()


if __name__ == "__main__":
    main()
