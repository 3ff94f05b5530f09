#!/usr/bin/env python3
"""Sorting, grouping and counting under memory limits: Inshore and its peers in turn, one run, one table.

    INSHORE_STORE=DIR bench/records.py --inshore target/release/inshore --python PYTHON [--jobs sort,lines,...]

PYTHON is an interpreter with duckdb, polars and numpy. GNU sort and kmc are taken from the path where they are. Every command
runs in a memory cgroup of its own (version 1, where one can be made) of its budget plus 96 MiB for Inshore and half as much
again for peers, with two threads, the page cache dropped before. `killed` means that the limit killed it.

The data is made once, in DIR's folder: records as of the Sort Benchmark (100 bytes, 10 random bytes of key), lines of 100
printable bytes, a table of two columns of 64 bits, random reads of 150 bases. The best that the drive does is measured in the
same run: the bytes of the input read once and written once past the page cache, by `inshore store put` and `get`.
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
from graphs import drop_caches, make_group

MIB = 1 << 20

MAKE = """
import sys, numpy as np
kind, count, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(1)
with open(path, "wb") as out:
    for start in range(0, count, 500_000):
        rows = min(500_000, count - start)
        if kind == "records":
            a = np.full((rows, 100), 32, np.uint8)
            a[:, :10] = rng.integers(0, 256, (rows, 10), np.uint8)
            a[:, 10:18] = np.arange(start, start + rows, dtype="<u8").view(np.uint8).reshape(rows, 8)
            a[:, 18:] = rng.integers(65, 91, (rows, 82), np.uint8)
        elif kind == "lines":
            a = rng.integers(33, 127, (rows, 100), np.uint8)
            a[:, 99] = 10
        else:
            genome = np.random.default_rng(2).integers(0, 4, 40_000_000, np.uint8)
            a = np.full((rows, 154), 10, np.uint8)
            a[:, 0], a[:, 1] = 62, 114
            at = rng.integers(0, len(genome) - 150, rows)
            bases = genome[at[:, None] + np.arange(150)]
            wrong = rng.integers(0, 200, bases.shape, np.uint8) == 0
            a[:, 3:153] = np.frombuffer(b"ACGT", np.uint8)[(bases + wrong) % 4]
        out.write(a.tobytes())
"""

TABLE = """
import sys, duckdb
rows, path, kind = int(sys.argv[1]), sys.argv[2], sys.argv[3]
con = duckdb.connect()
con.execute("set threads=2; set memory_limit='2GB'; set enable_progress_bar=false")
key = "hash(range) % 100000000" if kind == "uniform" else "(exp(ln(1e8) * ((hash(range) % 1000000007) / 1e9)))::ubigint"
con.execute(f"copy (select ({key})::ubigint k, (hash(range + 7) % 1000)::bigint v from range({rows})) to '{path}' (format parquet)")
"""

DUCKDB = """
import sys, duckdb
limit, scratch, query = sys.argv[1:4]
con = duckdb.connect()
con.execute("set threads=2; set preserve_insertion_order=false; set enable_progress_bar=false")
if limit != "none":
    con.execute(f"set memory_limit='{limit}'; set temp_directory='{scratch}'")
con.execute(query)
"""

POLARS = """
import sys, polars as pl
table, out = sys.argv[1:3]
pl.scan_parquet(table).group_by("k").agg(pl.col("v").sum(), pl.len()).sink_parquet(out)
"""


class Bench:
    """What all rows have in common."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.inshore, self.python, self.repeat = options.inshore, options.python, options.repeat
        self.store = Path(os.environ["INSHORE_STORE"])
        self.folder = self.store.parent / "records-bench"
        self.folder.mkdir(exist_ok=True)
        self.rows: list[tuple[str, str, str, list[list[str]], int | None]] = []

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def make(self, program: str, name: str, *words: str) -> str:
        path = self.folder / name
        if not path.exists():
            words = tuple(str(path) if word == "PATH" else word for word in words)
            subprocess.run([self.python, "-c", program, *words], check=True)
        return str(path)

    def add(self, job: str, who: str, budget: str, *commands: list[str], limit: int | None = None) -> None:
        self.rows.append((job, who, budget, list(commands), limit))

    def run(self) -> None:
        """Runs all rows in turn and prints the table."""
        seconds: dict[int, list[float]] = {number: [] for number in range(len(self.rows))}
        peaks: dict[int, int] = {}
        told: dict[int, str] = {}
        for _ in range(self.repeat):
            for number, (_, _, _, commands, limit) in enumerate(self.rows):
                if number in told:
                    continue
                drop_caches()
                shutil.rmtree(self.folder / "scratch", ignore_errors=True)
                (self.folder / "scratch").mkdir()
                started = time.monotonic()
                for command in commands:
                    code, peak, message = self.once(command, limit)
                    peaks[number] = max(peaks.get(number, 0), peak)
                    if code != 0:
                        told[number] = "killed" if code in (-9, 137) else f"failed: {message}"
                        break
                else:
                    seconds[number].append(time.monotonic() - started)
        peers = {name: report.package(self.python, name.lower()) for name in ("DuckDB", "Polars")}
        peers["GNU sort"] = report.program("sort")
        columns = ["job", "system", "budget", "seconds (least to most)", "peak memory"]
        table = report.Report(self.options, columns, peers)
        for number, (job, who, budget, _, _) in enumerate(self.rows):
            all_of_them = seconds[number]
            shown = told.get(number) or "{:.1f} ({:.1f} to {:.1f})".format(
                statistics.median(all_of_them), min(all_of_them), max(all_of_them)
            )
            table.row(job, who, budget, shown, f"{peaks[number] // MIB} MiB")
        table.write()

    def once(self, command: list[str], limit: int | None) -> tuple[int, int, str]:
        group = make_group(limit) if limit else None
        join = f"echo $$ > {group}/cgroup.procs; " if group else ""
        process = subprocess.Popen(
            ["/bin/sh", "-c", f'{join}exec "$@"', "sh", *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"LC_ALL": "C", "POLARS_MAX_THREADS": "2", "POLARS_FORCE_NEW_STREAMING": "1"},
        )
        assert process.stderr
        message = process.stderr.read().decode(errors="replace").strip()
        _, status, usage = os.wait4(process.pid, 0)
        if group:
            group.rmdir()
        return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024, message[-120:].replace("\n", " ")

    def our(self, *words: str, memory: int) -> list[str]:
        return [self.inshore, *words, "--memory", f"{memory}MiB", "--threads", "2", "--quiet"]

    def floor(self, name: str) -> None:
        """Reads the input twice and writes it twice, as fast as the drive can."""
        source, once = self.path(name), self.our("store", "put", self.path(name), "--name", "floor", memory=256)
        again = [self.inshore, "store", "put", source, "--name", "floor2", "--quiet"]
        remove = [self.inshore, "store", "rm", "floor", "floor2", "--quiet"]
        self.add(name, "read and written twice", "", once, again, remove)

    def sort(self, gib: float) -> None:
        count = int(gib * 10_000_000)
        source = self.make(MAKE, "records.bin", "records", str(count), "PATH")
        words = ["sort", source, "--record", "100", "--key-bytes", "0..10", "-o", self.path("sorted.bin")]
        for memory in (64, 256, 1024):
            self.add("sort records", "Inshore", f"{memory} MiB", self.our(*words, memory=memory), limit=(memory + 96) * MIB)
        self.floor("records.bin")

    def lines(self, gib: float) -> None:
        source = self.make(MAKE, "lines.txt", "lines", str(int(gib * 10_000_000)), "PATH")
        words = ["sort", source, "-o", self.path("sorted.txt")]
        for memory in (256, 1024):
            self.add("sort lines", "Inshore", f"{memory} MiB", self.our(*words, memory=memory), limit=(memory + 96) * MIB)
        gnu = ["sort", "-S", "1G", "--parallel=2", "-T", self.path("scratch"), source, "-o", self.path("gnu.txt")]
        self.add("sort lines", "GNU sort", "1 GiB", gnu, limit=1536 * MIB)
        query = f"copy (select * from read_csv('{source}', columns={{'l': 'varchar'}}, header=false, delim='\\t', quote='', escape='') order by l) to '{self.path('duck.txt')}' (header false, quote '')"
        duck = [self.python, "-c", DUCKDB, "1GB", self.path("scratch"), query]
        self.add("sort lines", "DuckDB", "1 GB", duck, limit=1536 * MIB)

    def group(self, millions: float, kind: str) -> None:
        source = self.make(TABLE, f"{kind}.parquet", str(int(millions * 1e6)), "PATH", kind)
        job = f"sum by key, {kind}"
        words = ["reduce", source, "--by", "k", "--sum", "v", "--count", "-o", self.path("groups.parquet")]
        for memory in (256, 1024):
            self.add(job, "Inshore", f"{memory} MiB", self.our(*words, memory=memory), limit=(memory + 96) * MIB)
        query = f"copy (select k, sum(v)::bigint, count(*) from '{source}' group by k) to '{self.path('duck.parquet')}' (format parquet)"
        for limit, cgroup in (("1GB", 1536 * MIB), ("none", None)):
            duck = [self.python, "-c", DUCKDB, limit, self.path("scratch"), query]
            self.add(job, "DuckDB", limit, duck, limit=cgroup)
        polars = [self.python, "-c", POLARS, source, self.path("polars.parquet")]
        self.add(job, "Polars", "1 GB", polars, limit=1536 * MIB)
        self.add(job, "Polars", "none", polars)

    def kmers(self, gib: float) -> None:
        source = self.make(MAKE, "reads.fa", "reads", str(int(gib * 1e9 / 154)), "PATH")
        words = ["count", "kmers", source, "-k", "25", "--codes", "-o", self.path("kmers.parquet")]
        self.add("25-mers", "Inshore", "512 MiB", self.our(*words, memory=512), limit=608 * MIB)
        kmc = ["kmc", "-k25", "-ci1", "-fm", "-m2", "-t2", "-sm", source, self.path("kmc"), self.path("scratch")]
        if shutil.which("kmc"):
            self.add("25-mers", "KMC", "2 GB", kmc, limit=2560 * MIB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--jobs", default="sort,lines,uniform,zipf,kmers")
    parser.add_argument("--gib", type=float, default=5, help="size of records, lines and reads in GB")
    parser.add_argument("--millions", type=float, default=250, help="rows of the tables")
    parser.add_argument("--keep", action="store_true", help="keep the data")
    report.add_option(parser)
    options = parser.parse_args()
    bench = Bench(options)
    for job in options.jobs.split(","):
        if job in ("uniform", "zipf"):
            bench.group(options.millions, job)
        else:
            {"sort": bench.sort, "lines": bench.lines, "kmers": bench.kmers}[job](options.gib)
    bench.run()
    for one, other in (("sorted.txt", "gnu.txt"),):
        if (bench.folder / other).exists():
            same = digest(bench.folder / one) == digest(bench.folder / other)
            print(f"\n{one} and {other} are {'the same' if same else 'DIFFERENT'}, byte for byte")
    if not options.keep:
        shutil.rmtree(bench.folder)


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
