"""Run test programs that cargo built, several at a time.

    cargo test --workspace --no-run --message-format=json | python3 scripts/run_tests.py -- --show-output

`cargo test` runs one program after the other. Near its end each of them has one test left, and many tests
wait more than they compute, so that a core is idle. Here as many programs run at a time as there are cores,
the longest first.

What a program says is shown as a whole when the program ends, in the form that `cargo test` gives it;
until then it lies in target/test-logs/tests/. The exit code is 1 where a program failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

LOGS = Path("target/test-logs/tests")
# Packages whose programs take longest: these begin first.
FIRST = [
    "inshore-cli",
    "inshore-ops",
    "inshore-store",
    "inshore-sql",
    "inshore-graph",
    "inshore-sortreduce",
    "inshore-nodes",
]


@dataclass(frozen=True)
class Program:
    """A program with tests, and the package that it belongs to."""

    package: str
    name: str
    folder: Path
    path: str

    @property
    def rank(self) -> tuple[int, str, str]:
        """Its place in the order in which programs begin."""
        place = FIRST.index(self.package) if self.package in FIRST else len(FIRST)
        return place, self.package, self.name


@dataclass(frozen=True)
class Ended:
    """A program that was run."""

    program: Program
    code: int
    seconds: float
    log: Path


def programs(messages: Iterable[str]) -> list[Program]:
    """Name the programs in the messages of cargo, in the order in which they are to begin.

    >>> artifact = {"reason": "compiler-artifact", "manifest_path": "/x/crates/cli/Cargo.toml"}
    >>> artifact |= {"package_id": "path+file:///x/crates/cli#inshore-cli@0.1.0"}
    >>> artifact |= {"executable": "/x/target/debug/deps/tests-1f", "profile": {"test": True}}
    >>> artifact |= {"target": {"name": "tests", "kind": ["test"]}}
    >>> other = artifact | {"package_id": "path+file:///x/log#0.1.0", "manifest_path": "/x/log/Cargo.toml"}
    >>> library = artifact | {"executable": None}
    >>> messages = [other, artifact, library, {"reason": "build-finished"}]
    >>> for program in programs(json.dumps(message) for message in messages):
    ...     print(program.package, program.name, program.folder)
    inshore-cli tests /x/crates/cli
    log tests /x/log
    """
    found = []
    for line in messages:
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("reason") != "compiler-artifact":
            continue
        if message["executable"] and message["profile"]["test"]:
            place, _, fragment = message["package_id"].rpartition("#")
            package, has_name, _ = fragment.partition("@")
            package = package if has_name else place.rpartition("/")[2]
            kind = "" if message["target"]["kind"] == ["test"] else f" ({message['target']['kind'][0]})"
            name = message["target"]["name"] + kind
            found.append(Program(package, name, Path(message["manifest_path"]).parent, message["executable"]))
    return sorted(found, key=lambda program: program.rank)


def run(program: Program, arguments: list[str]) -> Ended:
    """Run a program where cargo would, with the environment that cargo would give it."""
    log = LOGS / f"{program.package}-{Path(program.path).name}.txt"
    began = time.monotonic()
    environment = os.environ | {"CARGO_MANIFEST_DIR": str(program.folder), "CARGO_PKG_NAME": program.package}
    with log.open("wb") as out:
        done = subprocess.run(
            [program.path, *arguments],
            cwd=program.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return Ended(program, done.returncode, time.monotonic() - began, log)


def main(arguments: list[str]) -> int:
    """Run all programs; 0 where there were some and each succeeded."""
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    all_programs = programs(sys.stdin)
    if not all_programs:
        print("run_tests.py: cargo named no test program", file=sys.stderr)
        return 1
    LOGS.mkdir(parents=True, exist_ok=True)
    failed = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for done in as_completed([pool.submit(run, program, arguments) for program in all_programs]):
            ended = done.result()
            title = f"{ended.program.package}: {ended.program.name}"
            print(f"     Running {title} ({ended.seconds:.1f} s)", flush=True)
            sys.stdout.flush()
            sys.stdout.buffer.write(ended.log.read_bytes())
            sys.stdout.buffer.flush()
            if ended.code != 0:
                failed.append(f"{title}: exit code {ended.code}")
    for line in sorted(failed):
        print(f"error: test failed, {line}", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
