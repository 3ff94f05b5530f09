"""Textbook versions of the algorithms: small, slow, in memory, and independent of the fast versions."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable

Edge = tuple[int, int]


def both_ways(edges: Iterable[Edge]) -> set[Edge]:
    return {pair for source, target in edges for pair in ((source, target), (target, source))}


def pagerank(vertices: list[int], edges: set[Edge], iterations: int, damping: float) -> dict[int, float]:
    """PageRank by LDBC Graphalytics: the rank of dangling vertices is distributed evenly."""
    out: dict[int, int] = defaultdict(int)
    for source, _ in edges:
        out[source] += 1
    count = len(vertices)
    ranks = dict.fromkeys(vertices, 1 / count)
    for _ in range(iterations):
        dangling = sum(rank for vertex, rank in ranks.items() if not out[vertex])
        after = dict.fromkeys(vertices, (1 - damping) / count + damping * dangling / count)
        for source, target in edges:
            after[target] += damping * ranks[source] / out[source]
        ranks = after
    return ranks


def bfs(vertices: list[int], edges: set[Edge], source: int) -> dict[int, tuple[int | None, int | None]]:
    """Return parent and level; the parent is the smallest possible one."""
    following = _following(edges)
    levels = {source: 0}
    queue = deque([source])
    while queue:
        vertex = queue.popleft()
        for target in following[vertex]:
            if target not in levels:
                levels[target] = levels[vertex] + 1
                queue.append(target)
    parents: dict[int, int] = {source: source}
    for before, after in sorted(edges, reverse=True):
        if before in levels and after != source and levels[after] == levels[before] + 1:
            parents[after] = before
    return {vertex: (parents.get(vertex), levels.get(vertex)) for vertex in vertices}


def components(vertices: list[int], edges: set[Edge]) -> dict[int, int]:
    """Weakly connected components by union-find; the smallest vertex of a component is its root."""
    above = {vertex: vertex for vertex in vertices}

    def root(vertex: int) -> int:
        while above[vertex] != vertex:
            vertex = above[vertex]
        return vertex

    for source, target in edges:
        low, high = sorted((root(source), root(target)))
        above[high] = low
    return {vertex: root(vertex) for vertex in vertices}


def distances(weights: dict[Edge, float], source: int) -> dict[int, float]:
    """Shortest paths by Dijkstra (1959), with a heap."""
    following: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for (start, end), weight in weights.items():
        following[start].append((end, weight))
    found: dict[int, float] = {}
    queue = [(0.0, source)]
    while queue:
        distance, vertex = heapq.heappop(queue)
        if vertex in found:
            continue
        found[vertex] = distance
        for target, weight in following[vertex]:
            heapq.heappush(queue, (distance + weight, target))
    return found


def communities(vertices: list[int], edges: set[Edge], directed: bool, iterations: int) -> dict[int, int]:
    """Label propagation by LDBC Graphalytics: updates are synchronous, and the smallest label wins a tie."""
    around = _following(edges)
    if directed:
        for source, target in edges:
            around[target].append(source)
    else:
        # A self-loop counts twice, once for each of its ends.
        for source, target in edges:
            if source == target:
                around[source].append(target)
    labels = {vertex: vertex for vertex in vertices}
    for _ in range(iterations):
        counts = {vertex: Counter(labels[other] for other in around[vertex]) for vertex in vertices}
        labels = {
            vertex: min(count, key=lambda label: (-count[label], label)) if count else labels[vertex]
            for vertex, count in counts.items()
        }
    return labels


def clustering(vertices: list[int], edges: set[Edge]) -> dict[int, float]:
    """Clustering coefficients by LDBC Graphalytics: the share of pairs of neighbours with an edge."""
    around: dict[int, set[int]] = defaultdict(set)
    for source, target in edges:
        if source != target:
            around[source].add(target)
            around[target].add(source)
    coefficients = {}
    for vertex in vertices:
        near = around[vertex]
        pairs = len(near) * (len(near) - 1)
        between = sum((a, b) in edges for a in near for b in near if a != b)
        coefficients[vertex] = between / pairs if pairs else 0.0
    return coefficients


def betweenness(vertices: list[int], edges: set[Edge], sources: list[int]) -> dict[int, float]:
    """Betweenness by Brandes (2001), algorithm 1, from the given sources."""
    following = _following(edges)
    centrality = dict.fromkeys(vertices, 0.0)
    for source in sources:
        order: list[int] = []
        before: dict[int, list[int]] = defaultdict(list)
        paths = defaultdict(int, {source: 1})
        levels = {source: 0}
        queue = deque([source])
        while queue:
            vertex = queue.popleft()
            order.append(vertex)
            for target in following[vertex]:
                if target not in levels:
                    levels[target] = levels[vertex] + 1
                    queue.append(target)
                if levels[target] == levels[vertex] + 1:
                    paths[target] += paths[vertex]
                    before[target].append(vertex)
        share: dict[int, float] = defaultdict(float)
        for vertex in reversed(order):
            for parent in before[vertex]:
                share[parent] += paths[parent] / paths[vertex] * (1 + share[vertex])
            if vertex != source:
                centrality[vertex] += share[vertex]
    return centrality


def _following(edges: set[Edge]) -> dict[int, list[int]]:
    following: dict[int, list[int]] = defaultdict(list)
    for source, target in edges:
        following[source].append(target)
    return following
