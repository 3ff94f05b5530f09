"""Nodes of Inshore and peers as processes of this machine, each system in a memory cgroup of its own.

A `Memory` is the group of one system. `watched` runs a command in it and returns seconds, output and
the peak of the group. `LocalNodes` starts the nodes of Inshore on ports of the loopback interface.

The groups have no limit; they count. The peak is sampled: anonymous and shared memory of all processes
of the group, without the page cache. `memory.max_usage_in_bytes` would need no samples, but has the
page cache in it.

Needs root and cgroup version 1 (memory).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from nodes import CGROUPS, PREFIX

SAMPLE_SECONDS = 0.05
# The number of last lines of standard error that are printed if a command fails.
LOG_LINES = 40
# The list of seconds of a peer, as `json.dumps` writes it.
TIMES = re.compile(r"\[[\d.e, -]+\]")
MIB = 1 << 20


class Memory:
    """A memory cgroup without a limit."""

    def __init__(self, name: str) -> None:
        """Make the group."""
        self.path = CGROUPS / "memory" / f"{PREFIX}-{name}"
        self.path.mkdir(exist_ok=True)

    def __enter__(self) -> Memory:
        """Return the group."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the group."""
        self.remove()

    def command(self, words: list[str]) -> list[str]:
        """Return a command whose processes are in the group."""
        return ["/bin/sh", "-c", f'echo $$ > {self.path}/cgroup.procs; exec "$@"', "sh", *words]

    def resident_bytes(self) -> int:
        """Return the bytes that all processes of the group hold now."""
        stat = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return int(stat["total_rss"]) + int(stat.get("total_shmem", 0))

    def remove(self) -> None:
        """Kill the processes that a failed command left in the group, and remove the group."""
        for _ in range(100):
            for process in (self.path / "cgroup.procs").read_text().split():
                try:
                    os.kill(int(process), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            try:
                self.path.rmdir()
            except OSError:
                time.sleep(0.1)
            else:
                return


class Watched(NamedTuple):
    """A run of a command: its standard output, its seconds, and the peak bytes of its group."""

    output: str
    seconds: float
    peak_bytes: int
    failure: str


def times_of(run: Watched) -> list[float]:
    """Return the seconds that a peer printed as JSON; its libraries may print lines before and after."""
    return next(json.loads(line) for line in reversed(run.output.splitlines()) if TIMES.fullmatch(line))


def watched(memory: Memory, command: list[str], limit_seconds: float = 3600) -> Watched:
    """Run a command in a group.

    If the command fails, the end of its standard error is printed, and `failure` says how the command ended.
    At the limit the command is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        began = time.monotonic()
        with out.open("w") as out_file, err.open("w") as err_file:
            process = subprocess.Popen(memory.command(command), stdout=out_file, stderr=err_file)
        ended, late, peak = threading.Event(), threading.Event(), [0]

        def sample() -> None:
            while not ended.wait(SAMPLE_SECONDS):
                peak[0] = max(peak[0], memory.resident_bytes())
                if time.monotonic() - began > limit_seconds:
                    late.set()
                    process.kill()
                    return

        sampler = threading.Thread(target=sample)
        sampler.start()
        code = process.wait()
        seconds = time.monotonic() - began
        ended.set()
        sampler.join()
        failure = ""
        if code != 0:
            failure = f"failed: over {limit_seconds:.0f} s" if late.is_set() else f"failed: exit {code}"
            tail = err.read_text(errors="replace").splitlines()[-LOG_LINES:]
            print(f"{command[0]}: {failure}", *tail, sep="\n", file=sys.stderr)
        return Watched(out.read_text(errors="replace"), seconds, peak[0], failure)


def mib(size_bytes: int) -> str:
    """Return a size as it stands in a table."""
    return f"{size_bytes / MIB:.0f} MiB"


def mebibytes(text: str) -> int:
    """Return the MiB of an option such as 512MiB or 2GiB."""
    for unit, factor in (("MiB", 1), ("GiB", 1024)):
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * factor
    raise ValueError(f"size {text!r}: expected a number with MiB or GiB")


class LocalNodes:
    """Nodes with one thread each, whose stores are removed at the end. Use with `with`."""

    def __init__(self, inshore: str, folder: Path, count: int, budget: str) -> None:
        """Start the nodes; `budget` is the memory of each."""
        self.inshore, self.memory = inshore, Memory("inshore")
        self.stores = [folder / f"store{number}" for number in range(count)]
        self.agents: list[subprocess.Popen[str]] = []
        try:
            addresses = [self.start(store, budget) for store in self.stores]
        except BaseException:
            self.stop()
            raise
        self.named = ["--node", ",".join(addresses)]

    def __enter__(self) -> LocalNodes:
        """Return the nodes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the nodes and remove their stores."""
        self.stop()

    def start(self, store: Path, budget: str) -> str:
        """Start a node, and return its address."""
        serve = [self.inshore, "node", "serve", "--store", str(store), "--memory", budget, "--threads", "1"]
        serve += ["--listen", "127.0.0.1:0", "--json", "--log", "none"]
        agent = subprocess.Popen(self.memory.command(serve), stdout=subprocess.PIPE, text=True)
        self.agents.append(agent)
        assert agent.stdout is not None
        return str(json.loads(agent.stdout.readline())["address"])

    def stop(self) -> None:
        """Stop the nodes and remove their stores."""
        for agent in self.agents:
            agent.send_signal(signal.SIGTERM)
        for agent in self.agents:
            agent.wait()
        self.memory.remove()
        for store in self.stores:
            shutil.rmtree(store, ignore_errors=True)

    def put(self, path: Path, *options: str) -> None:
        """Load a file in two copies."""
        copies = str(min(2, len(self.stores)))
        self.run("store", "put", str(path), *options, "--copies", copies)

    def run(self, *words: str) -> None:
        """Run a command of Inshore on the nodes, without measuring it."""
        command = [self.inshore, *words, "--quiet", *self.named]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def watched(self, *words: str) -> Watched:
        """Run a command of Inshore on the nodes; its group has the nodes in it."""
        return watched(self.memory, [self.inshore, *words, "--quiet", "--json", *self.named])
