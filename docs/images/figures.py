"""Draws the figures of docs/how-it-works.md, as SVG, into the folder of this file.

python3 docs/images/figures.py
"""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE.parent.parent / "bench" / "results"
INK, GREY, BLUE, RED, GREEN = "#222", "#888", "#0b6e99", "#c2410c", "#4d7c0f"
FILLS = ["#dbeafe", "#fde7d3", "#e3f0d0", "#efe1f7", "#fdf3c4", "#e5e7eb"]


class Figure:
    """A picture that grows by shapes; units are pixels from the left and from the top."""

    def __init__(self, width: int, height: int, title: str) -> None:
        """Begin an empty picture with a title for those who cannot see it."""
        self.headings: list[str] = []
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'font-family="sans-serif" font-size="13" fill="{INK}"><title>{title}</title>',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{GREY}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="white"/>',
        ]

    def box(
        self, x: float, y: float, width: float, height: float, fill: str = "none", text: str = ""
    ) -> None:
        """Draw a rectangle, with a word in its middle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" '
            f'fill="{fill}" stroke="{GREY}"/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 4.5, text, "middle")

    def text(
        self,
        x: float,
        y: float,
        text: str,
        anchor: str = "start",
        size: int = 13,
        fill: str = INK,
        weight: str = "",
    ) -> None:
        """Write a line of text."""
        # A heading keeps a white rim, since arrows may pass behind it.
        bold = (
            f' font-weight="{weight}" stroke="white" stroke-width="6" paint-order="stroke"' if weight else ""
        )
        text = text.replace("&", "&amp;").replace("<", "&lt;")
        style = f'text-anchor="{anchor}" font-size="{size}" fill="{fill}"{bold}'
        drawn = f'<text x="{x:g}" y="{y:g}" {style}>{text}</text>'
        (self.headings if weight else self.parts).append(drawn)

    def arrow(self, x: float, y: float, to_x: float, to_y: float, stroke: str = GREY) -> None:
        """Draw an arrow from a point to another."""
        self.parts.append(
            f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" stroke="{stroke}" fill="none" marker-end="url(#tip)"/>'
        )

    def pairs(self, x: float, y: float, pairs: list[tuple[int, int]]) -> float:
        """Draw pairs of key and value beside each other, coloured by key; return the end."""
        for key, value in pairs:
            self.box(x, y, 34, 24, FILLS[key % len(FILLS)], f"{key}:{value}")
            x += 36
        return x

    def write(self, name: str) -> None:
        """Write the file."""
        (HERE / name).write_text("\n".join([*self.parts, *self.headings, "</svg>", ""]))


def random_updates() -> None:
    """Draw the problem: a page is read and written for each update."""
    figure = Figure(
        760, 300, "Random updates touch a page each; sorted updates read the pages once, in order"
    )
    for top, title, order, colour in (
        (20, "updates in the order in which they come", [4, 1, 5, 0, 3, 1, 4, 2], RED),
        (165, "the same updates, sorted by key", [0, 1, 1, 2, 3, 4, 4, 5], GREEN),
    ):
        figure.text(20, top + 12, title, weight="bold")
        for place, page in enumerate(order):
            x = 20 + place * 46
            figure.box(x, top + 24, 40, 22, FILLS[page], f"k{page}")
            target = 34 + page * 62 + order[:place].count(page) * 24
            figure.arrow(x + 20, top + 46, target, top + 88, colour)
        for page in range(6):
            figure.box(20 + page * 62, top + 90, 56, 24, FILLS[page], f"page {page}")
        figure.text(420, top + 60, "8 updates of 8 bytes:" if top == 20 else "the same 8 updates:")
        if top == 20:
            figure.text(420, top + 80, "8 pages of 4 KiB read and written, at random")
        else:
            figure.text(420, top + 80, "6 pages read and written, one after the other;")
            figure.text(420, top + 98, "with 1,000 updates a page, still one read of it")
    figure.write("random-updates.svg")


def sort_reduce() -> None:
    """Draw the method, with numbers."""
    figure = Figure(760, 400, "Sort-reduce of fourteen updates: sorted runs, combined at each step")
    stream = [(4, 1), (1, 2), (4, 3), (0, 1), (1, 1), (4, 2), (3, 5)]
    stream += [(1, 4), (0, 2), (4, 1), (2, 7), (1, 3), (0, 1), (4, 4)]
    figure.text(20, 28, "14 updates, key:value, in any order; f = addition", weight="bold")
    figure.pairs(20, 38, stream)
    figure.text(20, 108, "1. Memory is full: sort, and combine equal keys", weight="bold")
    runs = []
    for place, part in enumerate((stream[:7], stream[7:])):
        run: dict[int, int] = {}
        for key, value in sorted(part):
            run[key] = run.get(key, 0) + value
        runs.append(list(run.items()))
        x = 20 + place * 260
        figure.arrow(20 + place * 252 + 126, 64, x + 72, 128)
        figure.pairs(x, 132, runs[-1])
        figure.text(
            x, 176, f"run {place + 1} on the drive: {len(runs[-1])} of 7 pairs are left", size=12, fill=GREY
        )
    figure.text(20, 222, "2. Merge all runs, and combine once more", weight="bold")
    merged: dict[int, int] = {}
    for key, value in sorted(runs[0] + runs[1]):
        merged[key] = merged.get(key, 0) + value
    figure.arrow(92, 184, 110, 242)
    figure.arrow(352, 184, 170, 242)
    figure.pairs(20, 246, list(merged.items()))
    figure.text(214, 262, "5 pairs: each key once, in ascending order", size=12, fill=GREY)
    figure.text(20, 316, "3. Walk along the array once, side by side with the result", weight="bold")
    for key in range(5):
        figure.box(20 + key * 36, 330, 34, 24, "#f3f4f6", f"x[{key}]")
        figure.arrow(37 + key * 36, 272, 37 + key * 36, 326)
    figure.text(214, 346, "one sequential read, one sequential write", size=12, fill=GREY)
    figure.text(20, 386, "14 random updates have become two sequential passes over fewer bytes.", fill=BLUE)
    figure.write("sort-reduce.svg")


def superstep() -> None:
    """Draw the streams of a superstep."""
    figure = Figure(
        760,
        270,
        "A superstep: edges are read in order, messages are sorted and combined, states are updated in order",
    )
    figure.box(20, 40, 130, 44, FILLS[0], "vertex states")
    figure.box(20, 110, 130, 44, FILLS[1], "edges, packed")
    figure.text(85, 30, "in order of the sender", "middle", 12, GREY)
    figure.arrow(152, 62, 212, 88)
    figure.arrow(152, 132, 212, 106)
    figure.box(216, 75, 120, 44, FILLS[2], "edge program")
    figure.arrow(338, 97, 388, 97)
    figure.text(362, 88, "messages", "middle", 11, GREY)
    figure.box(392, 64, 140, 66, FILLS[3])
    figure.text(462, 92, "sort-reduce", "middle")
    figure.text(462, 112, "by the receiver", "middle", 12, GREY)
    figure.arrow(534, 97, 596, 97)
    figure.text(564, 88, "one each", "middle", 11, GREY)
    figure.box(600, 75, 120, 44, FILLS[4], "finalize")
    figure.parts.append(
        f'<path d="M660 121V200H8V62H18" stroke="{GREY}" fill="none" marker-end="url(#tip)" '
        'stroke-dasharray="4 3"/>'
    )
    figure.text(
        380,
        192,
        "new states and the list of active vertices, in order: the next superstep",
        "middle",
        12,
        GREY,
    )
    figure.text(
        20, 240, "Every arrow is a sequential stream. A box that fits in memory stays there:", fill=BLUE
    )
    figure.text(
        20, 258, "first the messages (an accumulator array), then the states, then the edges.", fill=BLUE
    )
    figure.write("superstep.svg")


def strategies() -> None:
    """Draw the four ways in which records are combined."""
    figure = Figure(760, 300, "The four strategies of sort-reduce")
    rows = [
        (
            "dense",
            ["bins of key ranges", "array in memory", "scan"],
            "all keys fit in memory; no byte goes to the drive",
        ),
        (
            "partition",
            ["bins of key ranges", "bins on the drive", "array for each bin", "scan"],
            "each record moves once",
        ),
        (
            "merge",
            ["chunk: sort, combine", "runs on the drive", "merge, combine"],
            "few keys, or ranges unknown",
        ),
        (
            "hash-first",
            ["table in the cache", "chunk: sort, combine", "runs on the drive", "merge, combine"],
            "a few popular keys",
        ),
    ]
    for row, (name, steps, reason) in enumerate(rows):
        y = 24 + row * 68
        figure.text(20, y + 22, name, weight="bold")
        x = 110
        for place, step in enumerate(steps):
            on_drive = "drive" in step
            figure.box(x, y, 140, 32, FILLS[1] if on_drive else FILLS[0], step)
            if place + 1 < len(steps):
                figure.arrow(x + 142, y + 16, x + 158, y + 16)
            x += 160
        figure.text(110, y + 50, reason, size=12, fill=GREY)
    figure.write("strategies.svg")


def reduction() -> None:
    """Draw the measured share of messages that is left after each step."""
    table = json.loads((RESULTS / "reduction.json").read_text())["tables"][0]
    figure = Figure(760, 330, "The share of messages that is left after forming runs and after merges")
    figure.text(20, 26, "PageRank's messages that are left, of 100 %", weight="bold")
    for share in (0, 25, 50, 75, 100):
        x = 270 + share * 4.4
        figure.parts.append(f'<path d="M{x:g} 40V300" stroke="#e5e7eb"/>')
        figure.text(x, 318, f"{share} %", "middle", 11, GREY)
    graph = ""
    for place, row in enumerate(table["rows"]):
        graph = row[0] or graph
        steps = [float(step.strip(" %")) for step in [row[3], *row[4].split(",")]]
        y = 46 + place * 28
        figure.text(260, y + 15, f"{graph}, {row[2]}", "end", 12)
        for step, colour in zip(steps, (BLUE, RED, GREEN), strict=False):
            figure.parts.append(
                f'<rect x="270" y="{y}" width="{step * 4.4:g}" height="20" fill="{colour}" fill-opacity="1"/>'
            )
    for place, (colour, text) in enumerate(
        ((BLUE, "written as runs"), (RED, "after the first merge"), (GREEN, "after the second"))
    ):
        figure.box(400 + place * 128 - 20, 14, 12, 12, colour)
        figure.text(396 + place * 128, 25, text, size=11)
    figure.write("reduction.svg")


if __name__ == "__main__":
    random_updates()
    sort_reduce()
    superstep()
    strategies()
    if (RESULTS / "reduction.json").exists():
        reduction()
