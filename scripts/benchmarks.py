"""Makes docs/benchmarks.md of the results in bench/results.

    scripts/benchmarks.py [--check]

--check compares and changes nothing; the exit code is 1 where the page is another. A file of bench/results
has a question, its method and its tables (bench/report.py). A table is *recorded* if its figures are from an
earlier page, which kept no raw results; its commit is then the one that brought them into the page.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"

HEAD = """
# Benchmarks

**What does Inshore cost beside its peers, and where does it lose?**

Every command runs in a memory cgroup of its own, with the page cache dropped before, all systems in turn.
Time is that of the whole process, start to exit; bytes are those of block I/O as the kernel counts them;
*killed* means that the cgroup's limit killed the process. Exceptions stand beside their tables.

This page is made by `scripts/benchmarks.py` from `bench/results`; the scripts in `bench/` write these files
with `--json`. *Recorded* figures are from an earlier version of this page: their commit is the one that
brought them here.
"""

TAIL = """
## Run the benchmarks

```
make bench                                         # graphs, Inshore alone; makes the graph on first use
GRIDGRAPH="BIN GRID" GRAFSOFT="BIN PREFIX" BLAZE="BIN PREFIX" GAPBS="BIN FILE" make bench
bench/text.py TEXT --jobs search --json bench/results/search.json && scripts/benchmarks.py
```

`--help` of each script in `bench/` explains its arguments. The peers of the graph jobs come from their public
sources: [GridGraph](https://github.com/thu-pacman/GridGraph),
[GraFSoft](https://github.com/sangwoojun/sortreduce), [Blaze](https://github.com/NVSL/blaze) and [GAPBS](https://github.com/sbeamer/gapbs).
"""


def wrapped(text: str, indent: str = "") -> str:
    """Wrap a paragraph at 110 columns; a picture stays as it is."""
    if text.startswith("!["):
        return text
    return textwrap.fill(text, 110, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def unbroken(cell: str) -> str:
    r"""Keep a number and its unit on one line of a narrow table.

    >>> unbroken("36.5 GB in 2 s") == "36.5\u00a0GB in 2\u00a0s"
    True
    """
    return re.sub(r"(?<=\d) (?=(?:s|[µm]s|[kKMGT]i?B|B|M|%|million)(?![a-z]))", "\u00a0", cell)


def anchor(question: str) -> str:
    """Return the anchor of a heading, as MkDocs and others make it.

    >>> anchor("How long do PageRank, BFS and others take?")
    'how-long-do-pagerank-bfs-and-others-take'
    """
    kept = "".join(letter for letter in question.lower() if letter.isalnum() or letter in " -")
    return "-".join(kept.split())


def table(results: dict[str, Any]) -> str:
    """Return a table with its circumstances as Markdown.

    >>> facts = {"recorded": True, "commit": "abc", "date": "2026-01-02", "machine": "two cores"}
    >>> rows = {"columns": ["a", "b"], "rows": [["1", "2"], ["1", "3"]], "reading": []}
    >>> print(table(facts | rows | {"peers": {}, "command": ["x"]}))
    | a | b |
    |---|---|
    | 1 | 2 |
    |  | 3 |
    <BLANKLINE>
    Machine: two cores. Commit abc, 2026-01-02, recorded.
    <BLANKLINE>
    ```
    x
    ```
    """
    parts = [f"**{results['title']}**"] if "title" in results else []
    lines = [f"| {' | '.join(results['columns'])} |", "|---" * len(results["columns"]) + "|"]
    above = None
    for first, *rest in (list(map(unbroken, row)) for row in results["rows"]):
        lines.append(f"| {' | '.join(['' if first == above else first, *rest])} |")
        above = first
    parts.append("\n".join(lines))
    peers = ", ".join(f"{name} ({version})" for name, version in results["peers"].items())
    facts = f"Machine: {results['machine']}. Commit {results['commit']}, {results['date']}"
    facts += ", recorded." if results["recorded"] else "."
    parts.append(wrapped(facts + (f" Peers: {peers}." if peers else "")))
    if results["reading"]:
        parts.append("\n".join(wrapped(f"- {sentence}", "  ") for sentence in results["reading"]))
    if results["command"]:
        parts.append("\n".join(["```", *results["command"], "```"]))
    return "\n\n".join(parts)


def page() -> str:
    """Return the page."""
    questions = sorted(
        (json.loads(file.read_text()) for file in RESULTS.glob("*.json")), key=lambda each: each["order"]
    )
    overview = ["| about | question |", "|---|---|"]
    losses = [
        "## Where Inshore loses",
        "\n".join(wrapped(f"- {loss}", "  ") for each in questions for loss in each["losses"]),
    ]
    sections, group = [], None
    for each in questions:
        heading = each["question"]
        overview.append(
            f"| {'' if each['group'] == group else each['group']} | [{heading}](#{anchor(heading)}) |"
        )
        group = each["group"]
        parts = [f"## {heading}", *map(wrapped, each["method"]), *map(table, each["tables"])]
        sections.append("\n\n".join(parts))
    return "\n\n".join([HEAD.strip(), "\n".join(overview), *losses, *sections, TAIL.strip()]) + "\n"


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    made = page()
    if not parser.parse_args().check:
        PAGE.write_text(made)
    elif PAGE.read_text() != made:
        sys.exit("docs/benchmarks.md is not what scripts/benchmarks.py makes of bench/results: run it")


if __name__ == "__main__":
    main()
