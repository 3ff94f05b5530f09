#!/usr/bin/env python3
"""SQL over Parquet: Inshore, DuckDB and DataFusion in turn, in the same memory, one run, one table.

    bench/sql.py tpch FOLDER --scale 10 --inshore target/release/inshore --python PYTHON [--memory 1GiB] [--queries 1,6] [--repeat 1]
    bench/sql.py records FILE --inshore target/release/inshore --python PYTHON [--memory 256MiB]

FOLDER has the tables of TPC-H as Parquet (`tpchgen-cli parquet -s 10 --output-dir FOLDER`), the queries are in bench/tpch. FILE is a
Parquet file with columns k and v of whole numbers (bench/records.py makes them). PYTHON is an interpreter with duckdb and datafusion.

All use two threads, and run in a memory cgroup of the named memory plus 96 MiB; the page cache is dropped before each run. DuckDB
and DataFusion (its FairSpillPool) are told a limit of their own of three quarters of the memory, since what they do not count must
fit too: at the whole of it more of their runs are killed. Answers are compared with DuckDB's, or where that failed with those of DuckDB
without a limit; numbers to a part in 10^6, and tables of whole numbers by hashes of their rows.

Prints Markdown: the median of the repeats, peak resident memory, and whether the answer is right.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import report
from graphs import drop_caches, make_group

MIB = 1 << 20
HERE = Path(__file__).resolve().parent

DUCKDB = """
import sys, duckdb, glob, os
limit, scratch, out, query, *tables = sys.argv[1:]
con = duckdb.connect()
con.execute(f"set threads=2; set preserve_insertion_order=false; set enable_progress_bar=false; set temp_directory='{scratch}'")
if limit != "0":
    con.execute(f"set memory_limit='{limit}B'")
for table in tables:
    name, path = table.split("=")
    con.execute(f"create view {name} as from read_parquet('{path}')")
kind = "parquet" if out.endswith("parquet") else "csv, header"
con.execute(f"copy ({query}) to '{out}' (format {kind})")
"""

DATAFUSION = """
import sys, datafusion
limit, scratch, out, query, *tables = sys.argv[1:]
runtime = datafusion.RuntimeEnvBuilder().with_disk_manager_specified(scratch).with_fair_spill_pool(int(limit))
context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(2), runtime)
for table in tables:
    name, path = table.split("=")
    context.register_parquet(name, path)
frame = context.sql(query)
frame.write_parquet(out) if out.endswith("parquet") else frame.write_csv(out, with_header=True)
"""

DIGEST = """
import sys, duckdb
(path,) = sys.argv[1:]
source = f"read_parquet('{path}')"
names = [row[0] for row in duckdb.sql(f"describe select * from {source}").fetchall()]
rows = "hash(" + ", ".join(f"cast({name} as bigint)" for name in names) + ")"
print(*duckdb.sql(f"select count(*), sum({rows} % 1000000007), bit_xor({rows}) from {source}").fetchall()[0])
"""

RECORDS = {
    "GROUP BY": "select k, sum(v) as s, count(*) as n from t group by k",
    "DISTINCT": "select distinct k from t",
    "ORDER BY": "select k, v from t order by k, v",
    "count of DISTINCT": "select count(distinct k) as n from t",
    "join with itself": "select count(*) as n, sum(a.s) as s from (select k, sum(v) as s from t group by k) a "
    "join (select k, max(v) as m from t group by k) b on a.k = b.k",
}


def once(command: list[str], limit: int | None) -> tuple[float, int, str]:
    """Runs a command; gives its seconds, its peak of resident bytes, and why it failed."""
    group = make_group(limit) if limit else None
    join = f"echo $$ > {group}/cgroup.procs; " if group else ""
    with tempfile.TemporaryFile() as err:
        started = time.monotonic()
        process = subprocess.Popen(["/bin/sh", "-c", f'{join}exec "$@"', "sh", *command], stdout=err, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started
        code = os.waitstatus_to_exitcode(status)
        err.seek(0)
        said = err.read().decode(errors="replace").strip().splitlines()
    if group:
        group.rmdir()
    if code == 0:
        return seconds, usage.ru_maxrss * 1024, ""
    why = "killed" if code == -9 else (said[-1][:90] if said else f"exit {code}")
    return seconds, usage.ru_maxrss * 1024, why


def rows(path: Path) -> list[list[str]]:
    """The lines of a CSV file without its header; DataFusion writes a folder."""
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    lines = []
    for file in files:
        with open(file, newline="") as text:
            lines += list(csv.reader(text))[1:]
    return lines


def digest(python: str, path: Path) -> str:
    """What a Parquet file of whole numbers holds, in any order."""
    source = f"{path}/*.parquet" if path.is_dir() else str(path)
    told = subprocess.run([python, "-c", DIGEST, source], check=True, capture_output=True, text=True)
    return told.stdout.strip().splitlines()[-1].split("\r")[-1]


def same(one: list[list[str]], other: list[list[str]], step: float = 0.0) -> bool:
    """Compare rows in order: numbers to a part in 10^6, and a difference of `step` besides."""

    def equal(a: str, b: str) -> bool:
        if a == b:
            return True
        try:
            return abs(float(a) - float(b)) <= 1e-6 * max(1.0, abs(float(a))) + step
        except ValueError:
            return False

    return len(one) == len(other) and all(
        len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b)) for a, b in zip(one, other)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tpch", "records"])
    parser.add_argument("data", type=Path)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--queries", default="")
    parser.add_argument("--systems", default="Inshore,DuckDB,DataFusion")
    parser.add_argument("--repeat", type=int, default=1)
    report.add_option(parser)
    options = parser.parse_args()
    number, unit = re.fullmatch(r"(\d+)(MiB|GiB)", options.memory).groups()
    memory = int(number) * (MIB if unit == "MiB" else 1024 * MIB)
    limit, own = memory + 96 * MIB, memory * 3 // 4
    wanted = [query for query in options.queries.split(",") if query]
    if options.what == "tpch":
        tables = [f"{path.stem}={path}" for path in sorted(options.data.glob("*.parquet"))]
        text = {path.stem.lstrip("q0"): path.read_text() for path in sorted(HERE.glob("tpch/q*.sql"))}
        queries = {name: query.replace("SCALE", f"{options.scale:g}") for name, query in text.items()}
    else:
        tables, queries = [f"t={options.data}"], RECORDS
    queries = {name: query for name, query in queries.items() if not wanted or name in wanted}
    folder = options.data if options.data.is_dir() else options.data.parent
    systems = options.systems.split(",")
    columns = [column for system in systems for column in (system, "peak")]
    columns = ["query", *columns, "DuckDB's time over Inshore's", "answers"]
    peers = {system: report.package(options.python, system.lower()) for system in systems if system != "Inshore"}
    title = None if options.what == "tpch" else f"In {number} {unit}"
    table = report.Report(options, columns, peers, title)
    for name, query in queries.items():
        query = query.strip().rstrip(";")
        # Many rows are written as Parquet, and compared by their hashes, whatever their order.
        ending = "csv" if options.what == "tpch" or "count(" in query and "group by k" not in query else "parquet"
        ending = "csv" if name == "join with itself" else ending
        seconds: dict[str, list[float]] = {system: [] for system in systems}
        peaks, failed, answers = {}, {}, {}
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            for turn in range(options.repeat):
                for system in systems:
                    if failed.get(system):
                        continue
                    out = Path(scratch) / f"{system}.{ending}"
                    subprocess.run(["rm", "-rf", out], check=True)
                    peer = [str(own), scratch, str(out), query, *tables]
                    named = [word for each in tables for word in ("--table", each)]
                    command = {
                        "Inshore": [options.inshore, "sql", query, "-o", str(out), "--memory", options.memory, "--threads", "2", "--quiet", "--store", f"{scratch}/store", *named],
                        "DuckDB": [options.python, "-c", DUCKDB, *peer],
                        "DataFusion": [options.python, "-c", DATAFUSION, *peer],
                    }[system]
                    drop_caches()
                    took, peak, why = once(command, limit)
                    seconds[system].append(took)
                    peaks[system], failed[system] = max(peak, peaks.get(system, 0)), why
                    if not why and ending == "csv":
                        answers[system] = rows(out)
                    elif not why and options.repeat - 1 == turn:
                        answers[system] = [[digest(options.python, out)]]
            right = answers.get("DuckDB")
            if right is None and ending == "csv":
                out = Path(scratch) / "right.csv"
                _, _, why = once([options.python, "-c", DUCKDB, "0", scratch, str(out), query, *tables], None)
                right = rows(out) if not why else None
        middle = {system: statistics.median(seconds[system]) for system in systems}
        pairs = [(failed[s], "") if failed[s] else (f"{middle[s]:.1f} s", f"{peaks[s] // MIB} MiB") for s in systems]
        both = "Inshore" in systems and "DuckDB" in systems and not failed["Inshore"] and not failed["DuckDB"]
        ratio = f"{middle['DuckDB'] / middle['Inshore']:.2f}" if both else ""
        wrong = [system for system, found in answers.items() if right is None or not same(found, right)]
        verdict = "not compared" if right is None else (f"differ: {', '.join(wrong)}" if wrong else "same")
        table.row(name, *(cell for pair in pairs for cell in pair), ratio, verdict)
    table.write()


if __name__ == "__main__":
    main()
