#!/usr/bin/env python3
"""Recall against queries a second of nearest neighbours: Inshore, Faiss, USearch and LanceDB, as a table and a picture.

    INSHORE_STORE=DIR bench/nearest_recall.py --inshore target/release/inshore --python PYTHON \\
        --base sift1m.u8bin --queries queries.u8bin --picture docs/images/nearest-recall.svg

PYTHON is an interpreter with numpy, matplotlib and the packages of the peers (faiss-cpu, usearch, lancedb); `--diskann` is one
with diskannpy, which needs an old numpy. Inshore has an index without and one with `--copies`, or, with `--codes`, one
with codes. The queries run in a memory cgroup (version 1) of the budget and 96 MiB, after the page cache was dropped, each system in turn; a system
that the limit kills, or that does not end within 2 minutes under it, runs again without the limit, and its rows say so. The builds of the peers are not limited. The exact
answer of Inshore is the truth. One at a time: the first `--truth` queries, one thread for Inshore, two for the peers that use
them. Batch: all queries, two threads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import report
from nearest_index import Bench, searching

PEERS = Path(__file__).parent / "peers" / "nearest.py"
PROBES = "8,32,64,96,128,256"
PROBES_CODES = "16,64,160,320,640"
PROBES_COPIES = "4,8,16,24,32,64"
SETTINGS = {
    "faiss": "16,64,128,256",
    "usearch": "16,64,256",
    "lancedb": "32,128,256",
    "diskann": "16,32,64,100",
}
# The time in which a peer must end under the limit of memory.
LIMITED_SECONDS = 120
NAMES = {
    "faiss": "Faiss IVF on disk",
    "usearch": "USearch HNSW, mapped",
    "lancedb": "LanceDB IVF_RQ",
    "diskann": "DiskANN",
}

DRAW = """
import json, sys
import matplotlib
matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "nearest"
import matplotlib.pyplot as plt
data = json.loads(sys.stdin.read())
figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), sharey=True)
# A system has the same marker and colour in both parts.
names = list(dict.fromkeys(name for curves in data.values() for name in curves))
for axis, (title, curves) in zip(axes, data.items()):
    for name, points in curves.items():
        points, style = sorted(points), names.index(name)
        look = {"marker": "osD^vP"[style], "color": f"C{style}", "markersize": 4, "label": name}
        axis.plot([p[0] for p in points], [p[1] for p in points], **look)
    axis.set_title(title)
    axis.set_xlabel("recall at 10")
    axis.set_yscale("log")
    axis.grid(True, which="both", alpha=0.25)
    axis.legend(fontsize=8, loc="lower left")
axes[0].set_ylabel("queries a second")
figure.tight_layout()
figure.savefig(sys.argv[1], metadata={"Date": None})
"""


class Curves(Bench):
    """Measures each system at several settings."""

    def truth(self) -> Path:
        """Write the exact neighbours of the first queries as an array of NumPy."""
        self.query(self.first, "-k", "10")[1].rename(self.folder / "exact.csv")
        place = self.folder / "exact.npy"
        program = (
            "import sys, numpy as np; ids = np.loadtxt(sys.argv[1], delimiter=',', skiprows=1, usecols=2); "
            "np.save(sys.argv[2], ids.astype(np.int64).reshape(-1, 10))"
        )
        subprocess.run(
            [
                self.options.python,
                "-c",
                program,
                str(self.folder / "exact.csv"),
                str(place),
            ],
            check=True,
        )
        return place

    def ours(self, setting: int, batch: bool = True) -> list[dict]:
        """Measure one number of lists: one query at a time with one thread, and all queries as a batch.

        A batch does not read copies, so that it needs no second measurement.
        """
        words = ["-k", "10", "--probes", str(setting)]
        told, hits = self.query(self.first, *words, "--strategy", "single", "--threads", "1")
        recall, p50, p99 = self.recall(hits), *told["summary"]["latency_us"]
        one = {
            "setting": setting,
            "recall": recall,
            "count": self.options.truth,
            "seconds": searching(told),
            "p50": p50 / 1e6,
            "p99": p99 / 1e6,
        }
        if not batch:
            return [one]
        told, hits = self.query(self.options.queries, *words, "--strategy", "batch", "--threads", "2")
        answered = {
            "batch_recall": self.recall(hits),
            "batch_count": told["summary"]["queries"],
            "batch_seconds": searching(told),
        }
        return [one | answered]

    def peer(self, system: str, truth: Path) -> tuple[list[dict], bool]:
        """Measure a peer in the cgroup; without a limit if that kills it. Returns whether it was limited."""
        folder = self.folder / f"{system}-{self.options.base.stem}"
        python = self.options.diskann if system == "diskann" else self.options.python
        if not folder.exists():
            words = [
                python,
                str(PEERS),
                "build",
                system,
                str(self.options.base),
                str(folder),
            ]
            subprocess.run([*words, str(self.lists)], check=True, capture_output=True)
        words = [
            python,
            str(PEERS),
            "query",
            system,
            str(self.options.queries),
            str(folder),
        ]
        words += [str(truth), SETTINGS[system]]
        done = self.limited(words, LIMITED_SECONDS)
        is_limited = done.returncode == 0
        if not is_limited:
            done = subprocess.run(words, capture_output=True, text=True, check=True)
        # Faiss prints lines of its own, too.
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return [json.loads(line) for line in lines], is_limited

    def run(self) -> None:
        """Run all systems in turn, print the table and draw the picture."""
        options = self.options
        packages = {"faiss": "faiss-cpu", "usearch": "usearch", "lancedb": "lancedb"}
        chosen = [package for name, package in packages.items() if name in options.peers.split(",")]
        peers = {name: report.package(options.python, name) for name in chosen}
        if options.diskann:
            peers["diskannpy"] = report.package(options.diskann, "diskannpy")
        columns = [
            "system",
            "setting",
            "recall at 10",
            "one at a time, queries/s",
            "p50",
            "p99",
        ]
        table = report.Report(options, [*columns, "batch, queries/s"], peers)
        listed = subprocess.run(
            [options.inshore, "nearest", "ls"],
            capture_output=True,
            text=True,
            check=False,
        )
        if f"{self.name} " not in listed.stdout:
            self.inshore("import", str(options.base), "--name", self.name)
        kinds = [["--codes", options.codes]] if options.codes else [[], ["--copies", str(options.copies)]]
        truth, found = self.truth(), {}
        for words in kinds:
            self.lists = self.inshore("index", self.name, *words)["summary"]["lists"]
            probes = {"--copies": PROBES_COPIES, "--codes": PROBES_CODES}.get("".join(words[:1]), PROBES)
            title = ", ".join(["Inshore", *([" ".join(words)] if words else [])])
            found[title] = [
                row for each in probes.split(",") for row in self.ours(int(each), batch="--copies" not in words)
            ]
        for system, name in NAMES.items():
            if system not in options.peers.split(",") or (system == "diskann" and not options.diskann):
                continue
            rows, is_limited = self.peer(system, truth)
            found[name if is_limited else f"{name} (without the limit)"] = rows
        for name, rows in found.items():
            for row in rows:
                batch = f"{row['batch_count'] / row['batch_seconds']:.0f}" if "batch_seconds" in row else ""
                each = f"{row['count'] / row['seconds']:.0f}"
                times = [f"{1000 * row[which]:.2f} ms" for which in ("p50", "p99")]
                table.row(
                    name,
                    str(row["setting"]),
                    f"{row['recall']:.3f}",
                    each,
                    *times,
                    batch,
                )
        table.write()
        if options.picture:
            self.draw(found)

    def draw(self, found: dict[str, list[dict]]) -> None:
        """Draw recall against queries a second, one at a time and as a batch."""
        one = {
            name: [(row["recall"], row["count"] / row["seconds"]) for row in rows]
            for name, rows in found.items()
        }
        batch = {
            name: [
                (
                    row.get("batch_recall", row["recall"]),
                    row["batch_count"] / row["batch_seconds"],
                )
                for row in rows
            ]
            for name, rows in found.items()
            if "batch_seconds" in rows[0]
        }
        data = json.dumps(
            {
                "one query at a time": one,
                f"a batch of {rows_of(batch, found)} queries": batch,
            }
        )
        command = [self.options.python, "-c", DRAW, str(self.options.picture)]
        subprocess.run(command, input=data, text=True, check=True)


def rows_of(batch: dict, found: dict[str, list[dict]]) -> str:
    """Return the number of queries of a batch."""
    return f"{found[next(iter(batch))][0]['batch_count']:,}"


def main() -> None:
    """Measure, print and draw."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--peers", default=",".join(SETTINGS), help="the peers to measure")
    parser.add_argument("--diskann", metavar="PYTHON", help="an interpreter with diskannpy")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument(
        "--truth",
        type=int,
        default=1000,
        help="queries whose exact neighbours are found",
    )
    parser.add_argument("--copies", type=int, default=4)
    parser.add_argument("--codes", help="only an index with codes of this number of bits")
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--picture", type=Path, help="draw the curves in this SVG file")
    report.add_option(parser)
    Curves(parser.parse_args()).run()


if __name__ == "__main__":
    main()
