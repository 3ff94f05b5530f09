#!/usr/bin/env python3
"""Graph jobs under memory limits: Inshore and its peers in turn, one run, one table.

    bench/graphs.py --scale 24 --repeat 3 [--gridgraph BIN GRID] [--grafsoft BIN PREFIX] [--blaze BIN PREFIX] [--gapbs BIN FILE]

Every command runs in a memory cgroup of its own (version 1, where one can be made) with the page cache dropped before. For
Inshore the limit is the budget plus 96 MiB, as it promises; a peer gets the same limit. `killed` means that the limit killed it.
GAPBS works in memory and has no limit.

BIN is the folder of a peer's programs, built from its public source. GRID is GridGraph's folder of the same graph
(`preprocess -i k.bin -o GRID -v VERTICES -p 16 -t 0`, where k.bin is what `inshore graph export kron -o k.bin` writes). PREFIX.ridx
and PREFIX.mat are GraFSoft's files of it: 8-byte offsets in bytes of each row, and 4-byte destinations. Its buffers are set by
GRAF_BUF_KIB and GRAF_BUF_COUNT, which it must be given first. For Blaze they are PREFIX.index and PREFIX.adj.1.0, and PREFIX.tindex and
PREFIX.tadj.1.0 of the graph turned around, which its components want; for GAPBS FILE is a serialized graph (.sg).

Inshore writes its answers to files, which peers (but GridGraph) do not: of BFS and betweenness there are rows without one too.

Prints Markdown; --json keeps the table. Time is the median of the repeats, with the least and the most; bytes are those of block I/O.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import report

MIB = 1 << 20
SLACK_BYTES = 96 * MIB
CGROUPS = Path("/sys/fs/cgroup/memory")


@dataclass
class Row:
    """One job of one system at one budget."""

    job: str
    system: str
    budget: str
    command: list[str]
    limit_bytes: int | None
    environment: dict[str, str] = field(default_factory=dict)
    scratch: Path | None = None
    seconds: list[float] = field(default_factory=list)
    killed: bool = False
    failed: str = ""
    peak_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def run(self) -> None:
        """Runs the command once, unless it was killed before."""
        if self.killed or self.failed:
            return
        drop_caches()
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.scratch.mkdir(parents=True)
        group = make_group(self.limit_bytes)
        join = f"echo $$ > {group}/cgroup.procs; " if group else ""
        started = time.monotonic()
        process = subprocess.Popen(
            ["/bin/sh", "-c", f'{join}exec "$@"', "sh", *self.command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | self.environment,
        )
        assert process.stderr
        message = process.stderr.read().decode(errors="replace")
        _, status, usage = os.wait4(process.pid, 0)
        elapsed = time.monotonic() - started
        code = os.waitstatus_to_exitcode(status)
        if group:
            group.rmdir()
        if code == -9:
            self.killed = True
        elif code != 0:
            self.failed = f"exit {code}: {message.strip()[-200:]}"
        else:
            self.note(elapsed, usage)

    def note(self, elapsed: float, usage: resource.struct_rusage) -> None:
        """Keeps what one run cost."""
        self.seconds.append(elapsed)
        self.peak_bytes = max(self.peak_bytes, usage.ru_maxrss * 1024)
        self.read_bytes = usage.ru_inblock * 512
        self.written_bytes = usage.ru_oublock * 512

    def cells(self) -> list[str]:
        """The row of the table."""
        if self.killed or self.failed:
            result = ["killed" if self.killed else self.failed, "", "", ""]
        else:
            middle, least, most = statistics.median(self.seconds), min(self.seconds), max(self.seconds)
            gigabytes = [f"{count / 1e9:.1f} GB" for count in (self.read_bytes, self.written_bytes)]
            result = [
                f"{middle:.1f} s ({least:.1f} to {most:.1f})",
                *gigabytes,
                f"{self.peak_bytes / MIB:.0f} MiB",
            ]
        return [self.job, self.system, self.budget, *result]


def drop_caches() -> None:
    """Empties the page cache, where that is allowed."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        pass


def make_group(limit_bytes: int | None) -> Path | None:
    """A memory cgroup, or None where none is wanted or can be made."""
    if limit_bytes is None:
        return None
    group = CGROUPS / f"inshore-bench-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError:
        return None
    return group


def parse_budget(text: str) -> int:
    """Bytes of a budget such as 64MiB or 4GiB."""
    units = {"MiB": MIB, "GiB": 1 << 30}
    return int(text[:-3]) * units[text[-3:]]


def inshore_rows(options: argparse.Namespace, out: Path) -> list[Row]:
    """PageRank, BFS and components at every budget; what finds an answer in seconds also without a file of it, as peers run."""
    jobs = {
        "PageRank, 10 iterations": ["pagerank", "kron", "--iterations", "10", "-o", str(out / "ranks.parquet")],
        "BFS": ["bfs", "kron", "--source", str(options.source), "-o", str(out / "tree.parquet")],
        "components": ["components", "kron", "-o", str(out / "components.parquet")],
    }
    if options.grafsoft:
        # Each samples or is given one; of those that reach the largest component, all have the same edges to follow.
        jobs["betweenness, 1 source"] = ["betweenness", "kron", "--sources", "1", "--seed", str(options.seed)]
        jobs["betweenness, 1 source"] += ["-o", str(out / "betweenness.parquet")]
    rows = []
    for job, words in jobs.items():
        for budget in options.budgets:
            command = [options.inshore, "graph", *words, "--memory", budget, "--threads", "2", "--quiet"]
            limit = parse_budget(budget) + SLACK_BYTES
            rows.append(Row(job, "Inshore", budget, command, limit))
            if job == "BFS" or job.startswith("betweenness"):
                place = command.index("-o")
                rows.append(Row(job, "Inshore, no file", budget, command[:place] + command[place + 2 :], limit))
    return rows


def gridgraph_rows(options: argparse.Namespace) -> list[Row]:
    """GridGraph takes its budget in GB; its components follow edges one way, so its `wcc` is another job."""
    binaries, grid = options.gridgraph
    rows = []
    for budget in options.budgets:
        limit = parse_budget(budget) + SLACK_BYTES
        gigabytes = f"{max(parse_budget(budget) / (1 << 30), 0.0625):g}"
        for job, words in {
            "PageRank, 10 iterations": ["pagerank", grid, "10", gigabytes],
            "BFS": ["bfs", grid, str(options.source), gigabytes],
            "components": ["wcc", grid, gigabytes],
        }.items():
            system = "GridGraph (one way)" if job == "components" else "GridGraph"
            rows.append(Row(job, system, budget, [f"{binaries}/{words[0]}", *words[1:]], limit))
    return rows


def grafsoft_rows(options: argparse.Namespace, scratch: Path) -> list[Row]:
    """GraFSoft has PageRank (one iteration as shipped), BFS and betweenness."""
    binaries, prefix = options.grafsoft
    rows = []
    for budget in options.budgets:
        limit = parse_budget(budget) + SLACK_BYTES
        environment = {"GRAF_EPS": "0", "GRAF_ITERS": "1", "GRAF_ROOT": str(options.source)}
        if parse_budget(budget) < 512 * MIB:
            environment |= {"GRAF_BUF_KIB": "256", "GRAF_BUF_COUNT": "64"}
        elif parse_budget(budget) < 2048 * MIB:
            environment |= {"GRAF_BUF_KIB": "8192", "GRAF_BUF_COUNT": "64"}
        # Its betweenness follows one shortest path to each vertex, where Brandes' counts them all.
        for job, program in {"PageRank, 1 iteration": "pr", "BFS": "bfs", "betweenness, 1 source": "bc"}.items():
            command = [f"{binaries}/{program}", str(scratch), f"{prefix}.ridx", f"{prefix}.mat"]
            rows.append(Row(job, "GraFSoft", budget, command, limit, environment, scratch))
    return rows


def blaze_rows(options: argparse.Namespace) -> list[Row]:
    """Blaze has no budget, but buffers."""
    binaries, prefix = options.blaze
    files = [f"{prefix}.index", f"{prefix}.adj.1.0"]
    turned = [f"-inIndexFilename={prefix}.tindex", f"-inAdjFilenames={prefix}.tadj.1.0"]
    settings = ["-computeWorkers=2", "-binSpace=64", "-ioBufferSize=64"]
    rows = []
    for budget in options.budgets:
        limit = parse_budget(budget) + SLACK_BYTES
        for job, words in {
            "PageRank, 10 iterations": ["pagerank", "-maxIterations=10", "-epsilon=0"],
            "BFS": ["bfs", f"-startNode={options.source}"],
            "components": ["wcc", *turned],
        }.items():
            command = [f"{binaries}/{words[0]}", *settings, *words[1:], *files]
            rows.append(Row(job, "Blaze", budget, command, limit, {"BLAZE_MAX_THREADS": "4"}))
    return rows


def gapbs_rows(options: argparse.Namespace) -> list[Row]:
    """GAPBS reads the graph into memory first."""
    binaries, file = options.gapbs
    rows = []
    for job, words in {
        "PageRank, 10 iterations": ["pr_spmv", "-i", "10", "-t", "0"],
        "BFS": ["bfs", "-r", str(options.source)],
        "components": ["cc"],
    }.items():
        command = [f"{binaries}/{words[0]}", "-f", file, *words[1:], "-n", "1"]
        rows.append(Row(job, "GAPBS", "none", command, None, {"OMP_NUM_THREADS": "2"}))
    return rows


def main() -> None:
    """Makes the graph if it is not there, runs everything in turn, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--scale", type=int, default=24)
    parser.add_argument("--source", type=int, help="where BFS starts; by default the vertex of the highest rank")
    parser.add_argument("--seed", type=int, default=1, help="of the vertex that betweenness starts at")
    parser.add_argument("--budgets", nargs="+", default=["64MiB", "256MiB", "4GiB"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--gridgraph", nargs=2, metavar=("BIN", "GRID"))
    parser.add_argument("--grafsoft", nargs=2, metavar=("BIN", "PREFIX"))
    parser.add_argument("--blaze", nargs=2, metavar=("BIN", "PREFIX"))
    parser.add_argument("--gapbs", nargs=2, metavar=("BIN", "FILE"))
    parser.add_argument("--only", help="run only the rows whose job contains one of these, divided by commas")
    report.add_option(parser)
    options = parser.parse_args()
    os.environ.setdefault("INSHORE_STORE", "target/bench-store")

    def inshore(*words: str) -> dict:
        printed = subprocess.run([options.inshore, *words, "--json"], check=True, capture_output=True, text=True)
        return json.loads(printed.stdout)

    if not Path(os.environ["INSHORE_STORE"]).exists():
        inshore("store", "init", os.environ["INSHORE_STORE"])
    if not any(graph["name"] == "kron" for graph in inshore("graph", "ls")):
        inshore("graph", "generate", "kronecker", "--scale", str(options.scale), "--name", "kron", "--reverse")
    if options.source is None:
        ranks = inshore("graph", "pagerank", "kron", "--iterations", "1", "--top", "1")
        options.source = int(ranks["rows"][0]["vertex"])
    with tempfile.TemporaryDirectory(prefix="inshore-bench-", dir=os.environ["INSHORE_STORE"]) as folder:
        rows = inshore_rows(options, Path(folder))
        if options.gridgraph:
            rows += gridgraph_rows(options)
        if options.grafsoft:
            rows += grafsoft_rows(options, Path(folder) / "graf")
        if options.blaze:
            rows += blaze_rows(options)
        if options.gapbs:
            rows += gapbs_rows(options)
        if options.only:
            wanted = options.only.split(",")
            rows = [row for row in rows if any(word in row.job for word in wanted)]
        for turn in range(options.repeat):
            for row in rows:
                row.run()
                print(f"{turn + 1}/{options.repeat} {' | '.join(row.cells())}", file=sys.stderr, flush=True)
    columns = ["job", "system", "budget", "time", "read", "written", "peak resident"]
    names = ("gridgraph", "grafsoft", "blaze", "gapbs")
    table = report.Report(options, columns, {name: "public source" for name in names if getattr(options, name)})
    order = {job: place for place, job in enumerate(dict.fromkeys(row.job for row in rows))}
    budgets = [*options.budgets, "none"]
    for row in sorted(rows, key=lambda row: (order[row.job], budgets.index(row.budget))):
        table.row(*row.cells())
    table.write()


if __name__ == "__main__":
    main()
