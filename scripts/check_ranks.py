"""Compare PageRanks with a plain power iteration over the edges.

    python3 scripts/check_ranks.py edges.csv ranks.csv 10

The last argument is the number of iterations. The damping is 0.85, and vertices without outgoing edges spread
their rank evenly. The exit code is 1 where a rank is wrong.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path

DAMPING = 0.85
TOLERANCE = 1e-12


def rows(path: str) -> list[list[str]]:
    """Read a table without its header."""
    with Path(path).open(encoding="ascii") as file:
        return list(csv.reader(file))[1:]


def power_iteration(edges: list[tuple[int, int]], vertices: int, iterations: int) -> list[float]:
    """Rank the vertices as the textbook does.

    >>> power_iteration([(0, 1), (1, 0)], vertices=2, iterations=3)
    [0.5, 0.5]
    """
    degrees = Counter(source for source, _ in edges)
    ranks = [1 / vertices] * vertices
    for _ in range(iterations):
        dangling = sum(rank for vertex, rank in enumerate(ranks) if not degrees[vertex])
        sums = [dangling / vertices] * vertices
        for source, target in edges:
            sums[target] += ranks[source] / degrees[source]
        ranks = [(1 - DAMPING) / vertices + DAMPING * total for total in sums]
    return ranks


def main(edge_file: str, rank_file: str, iterations: int) -> int:
    """Print how far apart both are at most."""
    found = [float(rank) for _, rank in sorted((int(vertex), rank) for vertex, rank in rows(rank_file))]
    edges = [(int(source), int(target)) for source, target in rows(edge_file)]
    expected = power_iteration(edges, len(found), iterations)
    worst = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    print(f"{len(found)} ranks within {worst:.1e} of a power iteration, {TOLERANCE:.0e} is allowed")
    return int(not worst < TOLERANCE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
