"""Graphs and the algorithms on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from inshore import _native
from inshore.display import html
from inshore.display.progress import Watch
from inshore.results import Report, Result, StrPath, drained
from inshore.verbs.target import Budget, operate, whole

# The interval between two checkpoints, in seconds.
_RESUME_SECONDS = 30.0


@dataclass(frozen=True)
class GraphInfo:
    """The properties of a graph that are known without reading its edges.

    Attributes
    ----------
    name : str
        The name in the store.
    vertices, edges : int
        The number of vertices, including vertices without edges; the number of distinct edges (an edge of an
        undirected graph counts once).
    directed, weighted : bool
        True if edges have a direction; true if edges have weights.
    reverse : bool
        True if in-edges are stored too. (An undirected graph needs none.)
    dense_ids : bool
        True if the ids are 0, 1, 2, ... without a gap.
    self_loops, sinks : int
        The number of edges from a vertex to the same vertex; the number of vertices without out-edges.
    out_degree_max : int
        The largest out-degree.
    in_degree_max : int or None
        The largest in-degree; unknown for a directed graph without in-edges.
    id_min, id_max : int
        The smallest and the largest id.
    entries : int
        The number of entries of the out-edge file: `edges`, or about twice as many in an undirected graph.
    bytes : int
        The size on flash.
    smallest_budget_bytes : int
        The smallest budget for all jobs on the graph.

    Examples
    --------
    >>> info = store.graph("path").info
    >>> info.vertices, info.edges, info.id_max, info.out_degree_max
    (3, 2, 7, 1)
    """

    name: str
    vertices: int
    edges: int
    directed: bool
    weighted: bool
    reverse: bool
    dense_ids: bool
    self_loops: int
    sinks: int
    out_degree_max: int
    in_degree_max: int | None
    id_min: int
    id_max: int
    entries: int
    bytes: int
    smallest_budget_bytes: int


class Graph:
    """A graph on flash, from `Store.graph`, `Store.import_edges` or `Store.generate_kronecker`.

    The object keeps its files open, and later changes of the store do not affect them. Several threads may
    run jobs on the graph at the same time.

    All algorithms return a `Result`, which runs at the first access to its rows, and take the same two
    keywords:

    memory : str or int, optional
        The budget: a size such as ``"64MiB"`` or a number of bytes. The process grows by at most the budget
        and 64 MiB. A returned table takes additional memory. The default is a quarter of the memory of the
        machine or its cgroup.
    threads : int, optional
        The number of worker threads; by default one for each core.

    All algorithms except `clustering` also take:

    resume : bool, default False
        Write a checkpoint of all vertices about every 30 seconds, between two supersteps (`betweenness`:
        between two sources), and resume from the checkpoint of an interrupted run with the same arguments on
        the same graph. The checkpoint is removed when all rows were read or written.

    Rows are in ascending order of vertex ids; the result's ``summary`` is a `Summary`.

    All algorithms raise `InputError` for options out of range, `BudgetError` for a budget that is too small,
    `DamagedError` for damaged bytes on flash, `FileError` for errors of the system, and `KeyboardInterrupt`.

    Examples
    --------
    >>> graph = store.graph("path")
    >>> graph
    <inshore.Graph 'path': 3 vertices, 2 edges>
    >>> graph.components(memory="16MiB").summary
    Traceback (most recent call last):
    inshore.errors.InputError: components of graph 'path': the result has not run yet: ...
    """

    def __init__(self, store: _native.Store, native: _native.Graph, report: Report | None = None) -> None:
        self._store = store
        self._native = native
        self._info = GraphInfo(**json.loads(native.info))
        self._report = report

    def __repr__(self) -> str:
        """Show name and size."""
        return f"<inshore.Graph {self.name!r}: {self.info.vertices} vertices, {self.info.edges} edges>"

    def _repr_html_(self) -> str:
        """Show the properties in a notebook; reads no edges."""
        info = self.info
        unknown = "unknown, since in-edges are not stored"
        facts = {
            "vertices": f"{info.vertices:,}, ids {info.id_min} to {info.id_max}",
            "edges": f"{info.edges:,}, {'directed' if info.directed else 'undirected'}"
            f"{', weighted' if info.weighted else ''}{', with in-edges' if info.reverse else ''}",
            "self-loops": info.self_loops,
            "vertices without out-edges": info.sinks,
            "largest out-degree": info.out_degree_max,
            "largest in-degree": unknown if info.in_degree_max is None else info.in_degree_max,
            "size on flash": html.format_bytes(info.bytes),
            "smallest budget": html.format_bytes(info.smallest_budget_bytes),
        }
        return html.panel("Graph", self.name, html.facts(facts))

    @property
    def name(self) -> str:
        """The name in the store.

        Examples
        --------
        >>> path_of_three.name
        'path'
        """
        return self._info.name

    @property
    def info(self) -> GraphInfo:
        """The properties that are known without reading edges.

        Examples
        --------
        >>> path_of_three.info.directed
        True
        """
        return self._info

    @property
    def report(self) -> Report | None:
        """The cost of the import or generation of this object's graph; None for a graph opened by name.

        Examples
        --------
        >>> store.graph("path").report is None
        True
        >>> path_of_three.report["bytes_written"] > 0
        True
        """
        return self._report

    def pagerank(
        self,
        *,
        iterations: int | None = None,
        damping: float = 0.85,
        tolerance: float = 0.0,
        vertex_tolerance: float | None = None,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Rank vertices by the edges that lead to them, as defined by LDBC Graphalytics.

        The rank of vertices without out-edges is distributed evenly; all ranks sum to 1.

        Parameters
        ----------
        iterations : int, optional
            The number of supersteps; by default 10, or unlimited with `vertex_tolerance`.
        damping : float, default 0.85
            The probability to follow an edge.
        tolerance : float, default 0.0
            Stop early when the sum of all rank changes in an iteration is at most this value; with 0.0, when
            no rank changes.
        vertex_tolerance : float, optional
            Let ranks converge vertex by vertex: a vertex sends the change of its rank, and only if the change
            exceeds this fraction of the rank. Late supersteps traverse few edges, and the run ends when no
            vertex sends. Then the absolute differences between all ranks and the converged ranks sum to at
            most ``2 * damping * vertex_tolerance / (1 - damping)``; ``error_max`` of the summary is the bound
            for this job. The value is more than 0, less than ``1 - damping``, and excludes `tolerance`.
        resume, memory, threads
            See `Graph`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64) and ``rank`` (float64).

        Examples
        --------
        >>> ranks = path_of_three.pagerank(iterations=30, memory="16MiB").table()
        >>> ranks.sort_by([("rank", "descending")]).slice(0, 1).column("vertex").to_pylist()
        [7]
        >>> round(float(ranks["rank"].to_numpy().sum()), 9)
        1.0

        With ranks that are converged to a total error of a hundredth of a per cent:

        >>> result = path_of_three.pagerank(vertex_tolerance=8e-6, memory="16MiB")
        >>> ranks = result.table()
        >>> result.summary["error_max"] < 1e-4
        True

        Directly to a file, in bounded memory for a graph of any size:

        >>> written = path_of_three.pagerank(memory="16MiB").write("ranks.parquet")
        >>> written.rows, written.summary["supersteps"]
        (3, 10)
        """
        fields = {
            "iterations": None if iterations is None else whole("iterations", iterations, 2**32 - 1),
            "damping": damping,
            "tolerance": tolerance,
            "vertex_tolerance": vertex_tolerance,
        }
        return self._rows("pagerank", fields, (memory, threads), resume=resume)

    def bfs(
        self,
        source: int,
        *,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Run a breadth-first search from one vertex.

        Parameters
        ----------
        source : int
            The id of the start vertex; `NotFoundError` if the graph does not have the vertex.
        resume, memory, threads
            See `Graph`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64), ``parent`` (uint64) and ``level`` (uint32). The parent is the
            smallest id among all possible parents; the source is its own parent, at level 0. Parent and level
            are null for unreached vertices.

        Examples
        --------
        >>> path_of_three.bfs(5).table().to_pylist()[0]
        {'vertex': 3, 'parent': None, 'level': None}
        >>> path_of_three.bfs(3, memory="16MiB").table().column("level").to_pylist()
        [0, 1, 2]
        """
        return self._rows("bfs", {"source": whole("source", source)}, (memory, threads), resume=resume)

    def sssp(
        self,
        source: int,
        *,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Find the shortest weighted paths from one vertex.

        Parameters
        ----------
        source : int
            The id of the start vertex; `NotFoundError` if the graph does not have the vertex. `InputError` if
            the graph has no weights, or negative weights.
        resume, memory, threads
            See `Graph`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64) and ``distance`` (float64): the smallest sum of weights on a path from
            the source; null for unreached vertices.

        Examples
        --------
        >>> edges = {"source": [3, 5, 3], "target": [5, 7, 7], "weight": [0.5, 0.25, 1.0]}
        >>> roads = store.import_edges(pa.table(edges), name="roads", weighted=True)
        >>> roads.sssp(3, memory="16MiB").table().to_pydict()
        {'vertex': [3, 5, 7], 'distance': [0.0, 0.5, 0.75]}
        """
        return self._rows("sssp", {"source": whole("source", source)}, (memory, threads), resume=resume)

    def components(
        self,
        *,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Find weakly connected components, ignoring the directions of edges.

        Parameters
        ----------
        resume, memory, threads
            See `Graph`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64) and ``component`` (uint64), the smallest id of the component.

        Examples
        --------
        >>> path_of_three.components(memory="16MiB").table().to_pydict()
        {'vertex': [3, 5, 7], 'component': [3, 3, 3]}
        """
        return self._rows("components", {}, (memory, threads), resume=resume)

    def communities(
        self,
        *,
        iterations: int = 10,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Find communities by label propagation, as defined by LDBC Graphalytics.

        Each vertex starts with its own id as label. In each iteration a vertex takes the most frequent label
        of its neighbours, and the smallest label in a tie. Directions are ignored, but a neighbour with edges
        in both directions counts twice.

        Parameters
        ----------
        iterations : int, default 10
            The maximal number of iterations; the run ends earlier if no label changes.
        resume, memory, threads
            See `Graph`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64) and ``community`` (uint64), the label.

        Examples
        --------
        >>> path_of_three.communities(iterations=1, memory="16MiB").table().to_pydict()
        {'vertex': [3, 5, 7], 'community': [5, 3, 5]}
        """
        fields = {"iterations": whole("iterations", iterations, 2**32 - 1)}
        return self._rows("communities", fields, (memory, threads), resume=resume)

    def clustering(
        self,
        *,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Compute local clustering coefficients, as defined by LDBC Graphalytics.

        The coefficient of a vertex is the fraction of its pairs of neighbours that an edge connects.
        Neighbours are independent of the directions of edges; between two neighbours each direction counts
        half.

        Parameters
        ----------
        memory, threads
            See `Graph`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64) and ``coefficient`` (float64), 0 for vertices with fewer than two
            neighbours. The summary has the number of ``triangles``.

        Examples
        --------
        >>> path_of_three.clustering(memory="16MiB").table().column("coefficient").to_pylist()
        [0.0, 0.0, 0.0]
        """
        return self._rows("clustering", {}, (memory, threads))

    def betweenness(
        self,
        *,
        sources: int = 16,
        seed: int = 1,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Count the shortest paths through each vertex (Brandes), from sampled sources.

        Parameters
        ----------
        sources : int, default 16
            The number of sampled sources; a graph with fewer vertices uses all of them, and the result is
            exact.
        seed : int, default 1
            The seed of the sample. The same seed selects the same sources.
        resume, memory, threads
            See `Graph`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64) and ``centrality`` (float64), without normalization.

        Examples
        --------
        >>> path_of_three.betweenness(memory="16MiB").table().to_pydict()
        {'vertex': [3, 5, 7], 'centrality': [0.0, 1.0, 0.0]}
        """
        fields = {"sources": whole("sources", sources), "seed": whole("seed", seed)}
        return self._rows("betweenness", fields, (memory, threads), resume=resume)

    def _rows(
        self, algorithm: str, fields: dict[str, Any], budget: Budget, *, resume: bool = False
    ) -> Result:
        """Return the result of an algorithm."""
        if resume:
            fields = {**fields, "resume": _RESUME_SECONDS}

        def start(job: _native.Job, output: StrPath | None) -> _native.Run:
            return self._start(job, f"graph {algorithm}", fields, output)

        return Result(f"{algorithm} of graph {self.name!r}", lambda: self._store.job(*budget), start)

    def _start(
        self, job: _native.Job, operation: str, fields: dict[str, Any], output: StrPath | None
    ) -> _native.Run:
        return operate(job, operation, fields, [self.name], output, graph=self._native)

    def export(self, path: StrPath, *, memory: str | int | None = None, threads: int | None = None) -> int:
        """Write all edges to a file.

        Parameters
        ----------
        path : path
            The file. Its ending chooses the format: ``.parquet``, ``.arrow`` and ``.csv`` have columns
            ``source``, ``target`` and, in a weighted graph, ``weight``; ``.bin`` has raw little-endian pairs
            of uint32.
        memory, threads
            See `Graph`.

        Returns
        -------
        int
            The number of written edges.

        Raises
        ------
        InputError
            For another ending, and for ``.bin`` if an id exceeds 32 bits.
        FileError
            If the file cannot be written; no partial file is left.

        Examples
        --------
        >>> path_of_three.export("edges.csv")
        2
        >>> pa.csv.read_csv("edges.csv").to_pydict()
        {'source': [3, 5], 'target': [5, 7]}
        """
        with self._store.job(memory, threads) as job, Watch(job, f"export of graph {self.name!r}") as watch:
            facts = drained(self._start(job, "graph export", {}, path), watch)
        edges: int = facts["summary"]["edges"]
        return edges
