"""The results of a benchmark: a table that is printed as Markdown and, with --json, kept in bench/results.

A file of bench/results has a question of docs/benchmarks.md, the method and one or more tables; the page is
made of these files by scripts/benchmarks.py. `Report.write` replaces the table of such a file by the new one,
with machine, commit, command and the peers' versions, and leaves question and method as they are.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add --json, which `Report` reads."""
    parser.add_argument(
        "--json",
        dest="results",
        type=Path,
        metavar="FILE",
        help="keep the table in this file of bench/results, for scripts/benchmarks.py",
    )


def machine() -> str:
    """Return the processor, its cores, the memory and the kernel of this machine."""
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    processor = model[1] if model else platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores ({processor}), {memory:.0f} GiB, Linux {platform.release()}"


def first_line(command: list[str]) -> str:
    """Return the first line that a program prints; empty where there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return ""
    return (done.stdout + done.stderr).strip().split("\n", 1)[0]


def program(path: str) -> str:
    """Return the version of a peer that knows --version."""
    line = first_line([path, "--version"])
    number = re.search(r"\d+(\.\d+)+", line)
    return number[0] if number else line


def package(python: str, name: str) -> str:
    """Return the version of a peer that is a Python package of another interpreter."""
    return first_line([python, "-c", f"import importlib.metadata as m; print(m.version('{name}'))"])


def dumps(value: Any, indent: str = "") -> str:
    """Return JSON in which a row of a table is a line, so that a change of a figure is a change of a line."""
    flat = not isinstance(value, dict) and not any(isinstance(each, list | dict) for each in value)
    if flat or not value:
        return json.dumps(value, ensure_ascii=False)
    deeper = indent + " "

    def shown(each: Any) -> str:
        return dumps(each, deeper) if isinstance(each, list | dict) else json.dumps(each, ensure_ascii=False)

    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {shown(each)}" for key, each in value.items()]
        return f"{{\n{deeper}" + f",\n{deeper}".join(parts) + f"\n{indent}}}"
    return f"[\n{deeper}" + f",\n{deeper}".join(map(shown, value)) + f"\n{indent}]"


class Report:
    """A table that grows row by row."""

    def __init__(
        self,
        options: argparse.Namespace,
        columns: list[str],
        peers: dict[str, str] | None = None,
        title: str | None = None,
        inshore: str | None = None,
    ) -> None:
        """Print the head of the table; `inshore` is the measured command if options have none."""
        self.path: Path | None = options.results
        self.columns, self.rows = columns, list[list[str]]()
        self.peers = {name: version for name, version in (peers or {}).items() if version}
        self.title = title
        self.inshore = inshore or options.inshore
        print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|", flush=True)

    def row(self, *cells: str) -> None:
        """Add a row, and prints it."""
        assert len(cells) == len(self.columns)
        self.rows.append([*cells])
        print(f"| {' | '.join(cells)} |", flush=True)

    def table(self) -> dict[str, Any]:
        """Return the table as it is kept."""
        commit = re.search(r"\(([0-9a-f]{7})", first_line([self.inshore, "--version"]))
        return {
            **({"title": self.title} if self.title else {}),
            "recorded": False,
            "commit": commit[1] if commit else "unknown",
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine(),
            "peers": self.peers,
            "command": [" ".join(["bench/" + Path(sys.argv[0]).name, *sys.argv[1:]])],
            "columns": self.columns,
            "rows": self.rows,
            "reading": [],
        }

    def write(self) -> None:
        """Keep the table in the file of --json, in place of the table with its title."""
        if self.path is None:
            return
        results: dict[str, Any] = {"question": self.path.stem, "group": "", "order": 999}
        results |= {"method": [], "losses": []}
        if self.path.exists():
            results = json.loads(self.path.read_text())
        tables = results.setdefault("tables", [])
        place = next((at for at, table in enumerate(tables) if table.get("title") == self.title), len(tables))
        tables[place : place + 1] = [self.table()]
        self.path.write_text(dumps(results) + "\n")
