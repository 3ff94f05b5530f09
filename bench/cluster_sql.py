#!/usr/bin/env python3
"""TPC-H on nodes of this machine, beside Spark SQL: seconds, memory, and bytes between the nodes.

    sudo bench/cluster_sql.py TABLES --scale 10 --inshore target/release/inshore --folder /tmp/cluster
        --spark PYTHON [--workers 3] [--queries 1 3 5 6 9 13 18] [--memory 256MiB] [--peer-memory 1GiB]

TABLES is a folder with the tables as Parquet (`tpchgen-cli parquet -s 10 --output-dir TABLES`); the
queries are in bench/tpch. PYTHON is an interpreter with pyspark; Spark needs Java 17.

Inshore runs `cluster sql` on nodes of one thread each, on which the tables lie in two copies. Spark has
a driver and as many executors of one core, which read the same files of this machine; each query has a
session of its own, so that its peak of memory is its own. In both, a first run that does not count
precedes the others: the page cache, and the compiled code of Spark, are warm. Times are medians, of
Inshore from the start of the command, of Spark from the text of the query to the collected rows.

Answers are compared row by row in the order of the query, numbers to a part in 10^6, and averages to
their last decimal place. Memory is the peak of a cgroup with all processes of the system (nodes and
client; driver and executors), without the page cache.

--peer-memory is the heap of each executor and of the driver; the default is Spark's, 1 GiB. A query
that fails has "failed" in its row, and the end of the log is on standard error.

Needs root and cgroup version 1 (memory). Removes what it writes to the folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import report
from local_nodes import LocalNodes, Memory, Watched, mebibytes, mib, times_of, watched
from sql import rows, same

HERE = Path(__file__).resolve().parent
QUERIES = ["1", "3", "5", "6", "9", "13", "18"]
# Averages of decimals have six places in both, which Inshore truncates and Spark rounds.
AVERAGE_STEP = 1e-6


def sent_bytes(run: Watched) -> int:
    """Return the bytes that nodes sent to each other in a query."""
    jobs = json.loads(run.output)["summary"].get("jobs", [])
    return sum(node["sent"] for job in jobs for node in job["nodes"])


def on_nodes(nodes: LocalNodes, words: argparse.Namespace, query: str, output: Path) -> tuple[Watched, int]:
    """Run a query on nodes; return the median of the seconds and the largest peak, and the bytes sent."""
    tables = [f"{path.stem}=store:{path.name}" for path in sorted(words.tables.glob("*.parquet"))]
    named = [word for table in tables for word in ("--table", table)]
    client = ["--store", str(output.parent / "client"), "--memory", words.memory]
    runs = []
    for _ in range(words.repeat + 1):
        output.unlink(missing_ok=True)
        run = nodes.watched("cluster", "sql", query, "-o", str(output), *named, *client)
        if run.failure:
            return run, 0
        runs.append(run)
    seconds = statistics.median(run.seconds for run in runs[1:])
    return Watched("", seconds, max(run.peak_bytes for run in runs), ""), sent_bytes(runs[-1])


def by_spark(words: argparse.Namespace, query: str, output: Path) -> Watched:
    """Run a query in a session of Spark; return the median of the seconds and the peak."""
    script = str(HERE / "peers" / "spark_sql.py")
    with tempfile.TemporaryDirectory(dir=output.parent) as folder, Memory("spark") as memory:
        command = [words.spark, script, str(words.tables), query, str(output), folder]
        command += [str(words.workers), str(words.repeat)]
        command += [str(mebibytes(words.peer_memory))] if words.peer_memory else []
        run = watched(memory, command, words.limit_seconds)
    if run.failure:
        return run
    return run._replace(seconds=statistics.median(times_of(run)))


def cells(run: Watched | None) -> list[str]:
    """Return seconds and peak of a run as they stand in the table."""
    return [run.failure or f"{run.seconds:.2f}", mib(run.peak_bytes)] if run else ["", ""]


def measure(words: argparse.Namespace, inshore: str, queries: dict[str, str], folder: Path) -> None:
    """Run the queries on nodes, then by Spark, and print the table."""
    columns = ["query", "Inshore, s", "peak", "between nodes", "Spark, s", "peak"]
    columns += ["Spark / Inshore", "answers"]
    peers = {"Spark": report.package(words.spark, "pyspark")} if words.spark else {}
    title = f"TPC-H at scale {words.scale:g}, {words.workers} nodes"
    table = report.Report(words, columns, peers=peers, inshore=inshore, title=title)
    own = {}
    with LocalNodes(inshore, folder, words.workers, words.memory) as nodes:
        for path in sorted(words.tables.glob("*.parquet")):
            nodes.put(path)
        for name, query in queries.items():
            own[name] = on_nodes(nodes, words, query, folder / f"inshore{name}.csv")
    ratios = []
    for name, query in queries.items():
        run, sent = own[name]
        output = folder / f"spark{name}.csv"
        spark = by_spark(words, query, output) if words.spark else None
        ratio, verdict = "", "not compared"
        if spark and not spark.failure and not run.failure:
            ratios.append(spark.seconds / run.seconds)
            ratio = f"{ratios[-1]:.2f}"
            answers = rows(folder / f"inshore{name}.csv"), rows(output)
            verdict = "same" if same(*answers, AVERAGE_STEP) else "differ"
        table.row(name, *cells(run), f"{sent / 1e6:.1f} MB", *cells(spark), ratio, verdict)
    if ratios:
        table.row("geometric mean", "", "", "", "", "", f"{statistics.geometric_mean(ratios):.2f}", "")
    table.write()


def main() -> None:
    """Read the queries, and measure."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--scale", type=float, default=1, help="of the tables")
    parser.add_argument("--inshore", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for stores, exchanged rows and answers")
    parser.add_argument("--workers", type=int, default=3, help="nodes, and executors of Spark")
    parser.add_argument("--memory", default="256MiB", help="of each node, and of the client")
    parser.add_argument("--queries", nargs="+", default=QUERIES, metavar="NUMBER")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--spark", metavar="PYTHON", help="an interpreter with pyspark")
    parser.add_argument("--peer-memory", metavar="SIZE", help="of each executor, such as 512MiB")
    parser.add_argument("--limit-seconds", type=float, default=3600, help="after which Spark has failed")
    report.add_option(parser)
    words = parser.parse_args()
    inshore = str(Path(words.inshore).resolve())
    texts = {name: (HERE / "tpch" / f"q{int(name):02}.sql").read_text() for name in words.queries}
    queries = {name: text.replace("SCALE", f"{words.scale:g}") for name, text in texts.items()}
    words.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=words.folder) as folder:
        measure(words, inshore, queries, Path(folder))


if __name__ == "__main__":
    main()
