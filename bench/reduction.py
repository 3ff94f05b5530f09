#!/usr/bin/env python3
"""How much is left after each level of sort-reduce, and how fast it is for keys of three kinds.

    INSHORE_STORE=DIR bench/reduction.py --python PYTHON [--scale 22] [--millions 20] [GRAPH.txt.gz ...]

The first table is figure 9-20 of the 2018 thesis (BlueDBM and GraFBoost, 9.7.7): PageRank's first superstep,
when all vertices are active, on Kronecker graphs and on the graphs that are named (SNAP text), with the updates
forced through `merge`. The second one has the distributions of its table 9.6: all keys the same, random,
unique; rows of two columns of 64 bits. PYTHON has numpy and pyarrow.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import report


def run(*words: object) -> dict[str, Any]:
    """Run one command of Inshore and give what it says with --json."""
    done = subprocess.run([str(word) for word in (*words, "--json")], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout))


def shares(report: dict[str, Any]) -> list[str]:
    """Give the share of the records that is left after each level; some runs pass a level by."""
    levels = report["levels"]
    if not levels:
        return ["all in memory"]
    left, found = levels[0]["records_in"], []
    for level in levels:
        left += level["records_out"] - level["records_in"]
        found.append(f"{100 * left / levels[0]['records_in']:.1f} %")
    return found


def graphs(options: argparse.Namespace, scales: list[int], memories: list[str]) -> None:
    inshore, files = options.inshore, options.files
    table = report.Report(options, ["graph", "edges", "budget", "after forming runs", "after merges"])
    names = []
    for scale in scales:
        names.append((f"Kronecker, scale {scale}", f"reduction-kron{scale}"))
        run(inshore, "graph", "generate", "kronecker", "--scale", scale, "--name", names[-1][1])
    for file in files:
        names.append((file.name.split(".")[0], f"reduction-{file.name.split('.')[0]}"))
        run(inshore, "graph", "import", file, "--name", names[-1][1])
    for title, name in names:
        edges = run(inshore, "graph", "info", name)["summary"]["edges"]
        for memory in memories:
            words = ("graph", "pagerank", name, "--iterations", 1, "--strategy", "merge", "--memory", memory)
            first, *rest = shares(run(inshore, *words)["report"])
            table.row(title, f"{edges:,}", memory, first, ", ".join(rest))
        run(inshore, "graph", "rm", name)
    table.write()


MAKE = """
import sys, numpy as np, pyarrow as pa, pyarrow.parquet as pq
kind, rows, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(1)
schema = pa.schema([("k", pa.uint64()), ("v", pa.uint64())])
with pq.ParquetWriter(path, schema) as out:
    for start in range(0, rows, 1 << 20):
        n = min(1 << 20, rows - start)
        at = np.arange(start, start + n, dtype=np.uint64)
        keys = {
            "same": np.full(n, 7, np.uint64),
            "random": rng.integers(0, rows // 2, n).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15),
            # Odd multipliers of 64-bit words are one to one.
            "unique": at * np.uint64(0x9E3779B97F4A7C15),
        }[kind]
        out.write_table(pa.table([keys, at], schema=schema))
"""


def keys(inshore: Path, python: str, rows: int, memory: str, folder: Path) -> None:
    print("\n| keys | rows | seconds | rows/s | after forming runs | after merges |")
    print("|---|---|---|---|---|---|")
    for kind in ("same", "random", "unique"):
        table, output = folder / "reduction.parquet", folder / "reduced.parquet"
        subprocess.run([python, "-c", MAKE, kind, str(rows), str(table)], check=True)
        words = ("reduce", table, "--by", "k", "--sum", "v", "-o", output, "--memory", memory)
        facts = run(inshore, *words)["report"]
        first, *rest = shares(facts)
        seconds = facts["seconds"]
        rate = f"{rows / seconds / 1e6:.1f} M"
        print(f"| {kind} | {rows:,} | {seconds:.2f} | {rate} | {first} | {', '.join(rest)} |", flush=True)
        table.unlink()
        output.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="GRAPH", help="graphs as SNAP text")
    parser.add_argument("--inshore", type=Path, default=Path("target/release/inshore"))
    parser.add_argument("--python", default="python3", help="an interpreter with numpy and pyarrow")
    parser.add_argument(
        "--scale", type=int, action="append", help="of a Kronecker graph; more than one may be named"
    )
    parser.add_argument("--memory", action="append", help="budgets for graphs")
    parser.add_argument("--millions", type=int, default=20, help="rows of the second table")
    report.add_option(parser)
    words = parser.parse_args()
    folder = Path(os.environ["INSHORE_STORE"]).absolute().parent
    graphs(words, words.scale or [20], words.memory or ["16MiB", "64MiB"])
    keys(words.inshore, words.python, words.millions * 1_000_000, "64MiB", folder)


if __name__ == "__main__":
    main()
