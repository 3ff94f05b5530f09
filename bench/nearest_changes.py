#!/usr/bin/env python3
"""Rounds of changes of vectors with an index: recall and latency without a rebuild, adds a second, and kills.

    INSHORE_STORE=DIR bench/nearest_changes.py --inshore target/release/inshore --python PYTHON \\
        --base sift10m.u8bin --queries queries.u8bin

PYTHON is an interpreter with numpy. The first `--vectors` of the file are imported and indexed. In each of `--rounds` rounds
5 % are added and 2 % of the live ids are removed. A fifth of the added vectors lie around one vector that moves from round to
round. Every `--compact-every` rounds the dataset is compacted, which splits lists that have grown and keeps the other centroids. Each
round first kills (SIGKILL) an `add` of the same vectors at a random instant: afterwards the dataset must have
either none or all of them, and the script ends with an error otherwise; a killed add that left none is repeated. Then 1,000
queries run one at a time with one thread, `--repeat` times: half are from the file of queries, half lie near the moving cluster. Recall at 10
is measured against Inshore's exact answer. Each run has a memory cgroup (version 1) of the budget and 96 MiB, and an empty
page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import time
from pathlib import Path

import report
from graphs import drop_caches, make_group, parse_budget

MAKE = """
import json, sys, numpy as np
told = json.loads(sys.argv[1])
read = lambda path: np.memmap(path, np.uint8, "r", offset=8).reshape(-1, int(np.fromfile(path, "<u4", 2)[1]))
base, queries = read(told["base"]), read(told["queries"])
rng = np.random.default_rng(told["round"])
def write(path, rows):
    with open(path, "wb") as out:
        np.array(rows.shape, "<u4").tofile(out)
        np.ascontiguousarray(rows, np.uint8).tofile(out)
if told["round"] == 0:
    write(told["folder"] + "/base.u8bin", base[: told["vectors"]])
    raise SystemExit
start, end = base[1].astype("f4"), base[2].astype("f4")
center = start + (end - start) * told["round"] / told["rounds"]
near = lambda count: np.clip(np.rint(center + rng.normal(0, 12, (count, base.shape[1]))), 0, 255)
fifth = told["added"] // 5
first = told["vectors"] + (told["round"] - 1) * (told["added"] - fifth)
rows = np.concatenate([base[first : first + told["added"] - fifth], near(fifth).astype(np.uint8)])
write(told["folder"] + "/added.u8bin", rows[rng.permutation(len(rows))])
half = told["asked"] // 2
write(told["folder"] + "/asked.u8bin", np.concatenate([queries[:half], near(told["asked"] - half).astype(np.uint8)]))
"""


class Bench:
    """The dataset, the ids that live, and the commands."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = Path(os.environ["INSHORE_STORE"]).parent / "nearest-changes-bench"
        self.folder.mkdir(exist_ok=True)
        self.name = "bench-changes"
        self.chance = random.Random(1)
        self.seconds = 0.2
        self.peak_mib = 0

    def make(self, number: int) -> None:
        """Write the files of a round."""
        options = self.options
        told = {
            "base": str(options.base),
            "queries": str(options.queries),
            "folder": str(self.folder),
            "vectors": options.vectors,
            "added": options.vectors // 20,
            "asked": 1000,
            "round": number,
            "rounds": options.rounds,
        }
        subprocess.run([options.python, "-c", MAKE, json.dumps(told)], check=True)

    def start(self, *words: str) -> tuple[subprocess.Popen[str], Path | None]:
        """Start a command in a cgroup."""
        group = make_group(parse_budget(self.options.memory) + (96 << 20))
        join = f"echo $$ > {group}/cgroup.procs; " if group else ""
        command = [self.options.inshore, "nearest", *words, "--memory", self.options.memory, "--json"]
        shell = ["sh", "-c", join + 'exec "$@"', "sh", *command]
        return subprocess.Popen(shell, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), group

    def inshore(self, *words: str) -> dict:
        """Run a command, and return its summary and its report."""
        drop_caches()
        running, group = self.start(*words)
        out, errors = running.communicate()
        if group:
            self.peak_mib = max(self.peak_mib, int((group / "memory.max_usage_in_bytes").read_text()) >> 20)
            group.rmdir()
        if running.returncode:
            raise SystemExit(errors)
        return json.loads(out)

    def live(self) -> int:
        return self.inshore("info", self.name)["summary"]["vectors"]

    def kill_an_add(self) -> bool:
        """Kill an add at a random instant. Returns whether the vectors were added.

        The instant is within the time that an add takes. This time is corrected if an add ends before it is killed.
        """
        before, started = self.live(), time.monotonic()
        running, group = self.start("add", self.name, str(self.folder / "added.u8bin"))
        try:
            running.communicate(timeout=self.chance.uniform(0, self.seconds))
            self.seconds = time.monotonic() - started
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
            running.communicate()
        if group:
            group.rmdir()
        grown = self.live() - before
        if grown not in (0, self.options.vectors // 20):
            raise SystemExit(f"a killed add left {grown} of its vectors")
        return grown > 0

    def search(self) -> tuple[float, float, float]:
        """Return the recall, and the median and the 99th percentile of the latency in seconds.

        The approximate search runs `--repeat` times, and the run of median latency counts.
        """
        asked, answers, runs = str(self.folder / "asked.u8bin"), [], []
        near = ["--recall", "0.95", "--strategy", "single", "--threads", "1"]
        for words in (["--exact"], *[near] * self.options.repeat):
            hits = self.folder / "hits.csv"
            told = self.inshore("query", self.name, asked, "-k", "10", *words, "-o", str(hits))
            answers.append({tuple(line.split(",")[:3:2]) for line in hits.read_text().splitlines()[1:]})
            runs.append(told["summary"].get("latency_us"))
        p50, p99 = sorted(runs[1:])[self.options.repeat // 2]
        return len(answers[0] & answers[1]) / len(answers[0]), p50 / 1e6, p99 / 1e6

    def run(self) -> None:
        """Run the rounds and print the table."""
        options = self.options
        columns = ["round", "vectors", "layers", "add", "adds/s", "remove", "compact"]
        columns += ["recall at 10", "p50", "p99"]
        table = report.Report(options, [*columns, "killed add"])
        self.make(0)
        listed = subprocess.run([options.inshore, "nearest", "ls"], capture_output=True, text=True, check=False)
        if f"{self.name} " in listed.stdout:
            self.inshore("rm", self.name)
        self.inshore("import", str(self.folder / "base.u8bin"), "--name", self.name)
        self.inshore("index", self.name)
        live, next_id = set(range(options.vectors)), options.vectors
        adds = []
        for number in range(1, options.rounds + 1):
            self.make(number)
            count = options.vectors // 20
            was_added, seconds, rate = self.kill_an_add(), 0.0, "-"
            if not was_added:
                told = self.inshore("add", self.name, str(self.folder / "added.u8bin"))
                seconds = told["report"]["seconds"]
                adds.append(count / seconds)
                rate = f"{adds[-1]:,.0f}"
            live |= set(range(next_id, next_id + count))
            next_id += count
            dead = self.chance.sample(sorted(live), options.vectors // 50)
            ids = self.folder / "ids.txt"
            ids.write_text("\n".join(map(str, dead)))
            removing = self.inshore("remove", self.name, "--ids", str(ids))["report"]["seconds"]
            live -= set(dead)
            found = self.inshore("info", self.name)["summary"]
            if found["vectors"] != len(live):
                raise SystemExit(f"{found['vectors']} vectors, expected {len(live)}")
            compacting = ""
            if number % options.compact_every == 0:
                compacting = f"{self.inshore('compact', self.name)['report']['seconds']:.2f} s"
                found = self.inshore("info", self.name)["summary"]
            recall, p50, p99 = self.search()
            left = "left all" if was_added else "left none"
            times = f"{p50 * 1000:.2f} ms", f"{p99 * 1000:.2f} ms"
            row = f"{found['vectors']:,}", str(found["layers"]), "" if was_added else f"{seconds:.2f} s", rate
            table.row(str(number), *row, f"{removing:.2f} s", compacting, f"{recall:.3f}", *times, left)
        print(
            f"adds a second, median: {statistics.median(adds):,.0f}; peak of the cgroup: {self.peak_mib} MiB"
        )
        table.write()


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--compact-every", type=int, default=5, help="rounds between compactions")
    parser.add_argument("--memory", default="256MiB")
    report.add_option(parser)
    Bench(parser.parse_args()).run()


if __name__ == "__main__":
    main()
