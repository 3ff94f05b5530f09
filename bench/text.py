#!/usr/bin/env python3
"""Searching a text and counting its words: Inshore and its peers in turn, one run, one table.

    bench/text.py TEXT --inshore target/release/inshore [--rg rg] [--python PYTHON] [--jobs search,words] [--repeat 5]

TEXT is a file of lines of some GB, of which the page cache must hold all for the warm rows. PYTHON is an interpreter with duckdb
and polars. All use two threads where they can. Warm: the text is in the page cache. Cold: the page cache is dropped before each
run, and the drive's best is measured in between: fio reads the text past the page cache, 8 requests of 2 MiB at a time (its own
clock, from the first request to the last). Words are what
stands between white space; Inshore runs in a memory cgroup of its budget plus 96 MiB, the peers without a limit.

Prints Markdown: the median of the repeats, with the least and the most, and what of the text that is a second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import report
from graphs import drop_caches, make_group

MIB = 1 << 20

NEEDLES = ["harpooneer", "Bolkonski", "Moscow", "leviathan", "Natasha", "Queequeg", "Starbuck", "Rostov"]

POLARS = """
import sys, polars as pl
text, out = sys.argv[1:3]
words = pl.scan_csv(text, has_header=False, separator="\\x01", quote_char=None, new_columns=["line"], schema={"line": pl.String})
words = words.select(pl.col("line").str.split(" ").explode().alias("word")).filter(pl.col("word") != "")
words.group_by("word").len().sink_parquet(out)
"""

DUCKDB = """
import sys, duckdb
text, out = sys.argv[1:3]
con = duckdb.connect()
con.execute("set threads=2; set preserve_insertion_order=false; set enable_progress_bar=false")
lines = f"read_csv('{text}', columns={{'line': 'varchar'}}, header=false, delim='\\x01', quote='', escape='', strict_mode=false)"
con.execute(f"copy (select word, count(*) from (select unnest(string_split(line, ' ')) word from {lines}) where word <> '' group by word) to '{out}' (format parquet)")
"""


FIO = "--name=best --readonly --rw=read --bs=2M --iodepth=8 --ioengine=io_uring --direct=1 --output-format=json"


def fio_memory() -> str:
    """What a virtual drive reads into fastest, where the system has so many huge pages."""
    return "mmaphuge" if int(Path("/proc/sys/vm/nr_hugepages").read_text()) >= 8 else "malloc"


def once(command: list[str], limit: int | None) -> tuple[float, int, str]:
    """Runs a command; gives its seconds, its peak of resident bytes, and what it printed or why it failed."""
    group = make_group(limit) if limit else None
    join = f"echo $$ > {group}/cgroup.procs; " if group else ""
    with tempfile.TemporaryFile() as out:
        started = time.monotonic()
        shell = ["/bin/sh", "-c", f'{join}exec "$@"', "sh", *command]
        process = subprocess.Popen(shell, stdout=out, stderr=subprocess.DEVNULL, env=os.environ | {"POLARS_MAX_THREADS": "2"})
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started
        out.seek(0)
        said = out.read(1000).decode(errors="replace").strip()
    if group:
        group.rmdir()
    code = os.waitstatus_to_exitcode(status)
    return seconds, usage.ru_maxrss * 1024, said if code == 0 else f"failed with {code}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--rg", default="rg")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--jobs", default="search,words")
    parser.add_argument("--repeat", type=int, default=5)
    report.add_option(parser)
    options = parser.parse_args()
    text, scratch = str(options.text), Path(tempfile.mkdtemp(dir=options.text.parent))
    # Job, system, command, whether the text is in the page cache, limit in bytes.
    rows: list[tuple[str, str, list[str], bool, int | None]] = []
    if "search" in options.jobs.split(","):
        many = [word for needle in NEEDLES for word in ("-e", needle)]
        searches = {
            "rare needle": ["-c", "Queequeg was George Washington"],
            "frequent needle": ["-c", "the"],
            "8 needles": ["-c", *many],
            "rare, ignoring case": ["-c", "-i", "queequeg was george washington"],
            "regular expression": ["-c", "[A-Z][a-z]+ (said|cried) [A-Z][a-z]+"],
            "lines of 8 needles": many,
        }
        for warm in (True, False):
            for job, words in searches.items():
                if not warm and job not in ("rare needle", "frequent needle"):
                    continue
                rows.append((job, "Inshore", [options.inshore, "search", *words, text], warm, None))
                rows.append((job, "ripgrep", [options.rg, "--no-config", *words, text], warm, None))
            if not warm:
                rows.append(("read past the cache", "fio", ["fio", f"--filename={text}", *FIO.split(), f"--iomem={fio_memory()}"], False, None))
    if "words" in options.jobs.split(","):
        for memory in (128, 1024):
            words = ["count", "words", "--split", text, "-o", str(scratch / "words.parquet"), "--memory", f"{memory}MiB"]
            command = [options.inshore, *words, "--quiet", "--store", str(scratch / "store")]
            rows.append(("words", f"Inshore, {memory} MiB", command, False, (memory + 96) * MIB))
        for name, program in (("Polars", POLARS), ("DuckDB", DUCKDB)):
            rows.append(("words", name, [options.python, "-c", program, text, str(scratch / "peer.parquet")], False, None))
    seconds: list[list[float]] = [[] for _ in rows]
    peaks, said = [0] * len(rows), [""] * len(rows)
    for _ in range(options.repeat):
        for number, (_, _, command, warm, limit) in enumerate(rows):
            if said[number].startswith("failed"):
                continue
            if warm:
                subprocess.run(["cat", text], stdout=subprocess.DEVNULL, check=True)
            else:
                drop_caches()
            if command[0] == "fio":
                out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
                seconds[number].append(json.loads(out[out.index(b"{"):])["jobs"][0]["read"]["runtime"] / 1000)
                continue
            took, peak, said[number] = once(command, limit)
            seconds[number].append(took)
            peaks[number] = max(peaks[number], peak)
    size = options.text.stat().st_size
    peers = {"ripgrep": report.program(options.rg), "fio": report.program("fio")}
    if "words" in options.jobs:
        peers = {name: report.package(options.python, name.lower()) for name in ("Polars", "DuckDB")}
    columns = ["job", "page cache", "system", "seconds (least to most)", "GB/s", "peak memory", "said"]
    table = report.Report(options, columns, peers)
    for number, (job, system, _, warm, _) in enumerate(rows):
        middle = statistics.median(seconds[number])
        spread = f"{middle:.2f} ({min(seconds[number]):.2f} to {max(seconds[number]):.2f})"
        line = said[number].splitlines()[-1][:40] if said[number] else ""
        state = "warm" if warm else "cold"
        table.row(job, state, system, spread, f"{size / middle / 1e9:.2f}", f"{peaks[number] // MIB} MiB", line)
    table.write()
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
