#!/usr/bin/env python3
"""Time of graph jobs over the memory budget, as a table and as a picture.

    bench/curve.py --graph kron --source 0 --out docs/time-over-budget.svg

Every run has a memory cgroup of its own (version 1, where one can be made) of the budget and 96 MiB, and begins
with an empty page cache. One run each, from the largest budget to the smallest. `none` is a budget that holds
everything. Prints Markdown; writes an SVG with both axes logarithmic.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import report
from graphs import MIB, SLACK_BYTES, Row, parse_budget

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 64, 130, 24, 56
LINE = 15  # between two lines of text
COLOURS = ["#0b6e99", "#c2410c", "#4d7c0f", "#7e22ce", "#b91c1c", "#475569", "#a16207"]


def svg(budgets: list[str], curves: dict[str, list[float | None]], title: str) -> str:
    """A picture: a line for each job, budgets from left to right."""
    known = [value for values in curves.values() for value in values if value is not None]
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    across = WIDTH - LEFT - RIGHT
    xs = [LEFT + across * place / max(len(budgets) - 1, 1) for place in range(len(budgets))]

    def y(seconds: float) -> float:
        share = (math.log10(seconds) - low) / max(high - low, 1)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="13"><title>{title}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for power in range(low, high + 1):
        for digit in (1, 2, 5):
            seconds = digit * 10.0**power
            if power == high and digit > 1:
                continue
            height = y(seconds)
            stroke = "#bbb" if digit == 1 else "#eee"
            parts.append(f'<path d="M{LEFT} {height:.1f}H{WIDTH - RIGHT}" stroke="{stroke}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{seconds:g} s</text>')
    for place, budget in zip(xs, budgets, strict=True):
        parts.append(f'<path d="M{place:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
        label = budget.replace("iB", "")
        parts.append(f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{label}</text>')
    middle = LEFT + across / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">memory budget</text>')
    labels: list[tuple[float, float, str]] = []
    for (job, values), colour in zip(curves.items(), COLOURS, strict=False):
        points = [(x, y(value)) for x, value in zip(xs, values, strict=True) if value is not None]
        line = " ".join(f"{x:.1f},{height:.1f}" for x, height in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{height:.1f}" r="3" fill="{colour}"/>' for x, height in points]
        labels.append((points[-1][1], points[-1][0], f'fill="{colour}">{job}'))
    before = -math.inf
    for height, x, label in sorted(labels):
        before = max(height, before + LINE)
        parts.append(f'<text x="{x + 10:.1f}" y="{before + 4:.1f}" {label}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Runs everything, prints the table, writes the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--graph", default="kron")
    parser.add_argument("--source", default="0")
    parser.add_argument("--jobs", nargs="+", default=["PageRank", "BFS", "components"])
    parser.add_argument(
        "--budgets",
        nargs="+",
        default=["16MiB", "32MiB", "64MiB", "128MiB", "256MiB", "512MiB", "1GiB", "2GiB", "none"],
    )
    parser.add_argument("--none", default="8GiB", help="the budget that `none` stands for")
    parser.add_argument("--title", default="Time over memory budget")
    parser.add_argument("--out", type=Path, required=True)
    report.add_option(parser)
    options = parser.parse_args()
    words = {
        "PageRank": ["pagerank", options.graph, "--iterations", "10"],
        "BFS": ["bfs", options.graph, "--source", options.source],
        "components": ["components", options.graph],
        "communities": ["communities", options.graph, "--iterations", "2"],
        "shortest paths": ["sssp", options.graph, "--source", options.source],
        "clustering": ["clustering", options.graph],
        "betweenness": ["betweenness", options.graph, "--sources", "1"],
    }
    curves: dict[str, list[float | None]] = {job: [] for job in options.jobs}
    rows: list[list[str]] = []
    for budget in reversed(options.budgets):
        memory = options.none if budget == "none" else budget
        row = [budget]
        for job in options.jobs:
            command = [options.inshore, "graph", *words[job], "--memory", memory, "--threads", "2", "--quiet"]
            run = Row(job, "Inshore", budget, command, parse_budget(memory) + SLACK_BYTES)
            run.run()
            seconds = run.seconds[0] if run.seconds else None
            curves[job].insert(0, seconds)
            moved = f"{run.read_bytes / 1e9:.1f} GB read, {run.peak_bytes / MIB:.0f} MiB"
            row.append(f"{seconds:.1f} s ({moved})" if seconds else run.failed or "killed")
        print(f"| {' | '.join(row)} |", flush=True)
        rows.insert(0, row)
    table = report.Report(options, ["budget", *options.jobs])
    for row in rows:
        table.row(*row)
    table.write()
    options.out.write_text(svg(options.budgets, curves, options.title))


if __name__ == "__main__":
    main()
