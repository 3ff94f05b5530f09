"""Graphs and the algorithms on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inshore import _native
from inshore.results import Report, Result, StrPath

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class GraphInfo:
    """What is known of a graph without reading its edges.

    Attributes
    ----------
    name : str
        Its name in the store.
    vertices, edges : int
        Vertices, with or without edges; distinct edges (in an undirected graph each counts once).
    directed, weighted : bool
        Whether edges have a direction, and weights.
    reverse : bool
        Whether in-edges are kept too. (An undirected graph needs none.)
    dense_ids : bool
        Whether the ids are 0, 1, 2, ... without a gap.
    self_loops, sinks : int
        Edges from a vertex to itself; vertices without out-edges.
    out_degree_max : int
        The largest out-degree.
    in_degree_max : int or None
        The largest in-degree; not known for a directed graph without in-edges.
    id_min, id_max : int
        The smallest and the largest id.
    entries : int
        Entries of the out-edge file: `edges`, or about twice as many in an undirected graph.
    bytes : int
        Size on flash.
    smallest_budget_bytes : int
        The smallest budget with which every job on it works.
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

    It has its files open: what happens to the store later does not touch it. Any number of threads may run
    jobs on it at once.

    All algorithms give a `Result`, which runs when its rows are asked for, and take the same two keywords:

    memory : str or int, optional
        The budget: a size such as ``"64MiB"`` or a number of bytes. The process grows by at most this and
        64 MiB, not counting a table that is returned. By default a quarter of what the machine or its cgroup
        allows.
    threads : int, optional
        Worker threads; by default one for each core.

    All but `clustering` also take:

    resume : bool, default False
        Keep the state of all vertices about every 30 seconds, between two supersteps (`betweenness`: between
        two sources), and go on with what was kept when the same was asked
        of the same graph before and was interrupted. It is forgotten when all rows were read or written.

    Rows are in ascending order of the vertices' ids; the result's ``summary`` is a `Summary`.

    All of them raise `InputError` for options out of range, `BudgetError` where the budget is too small,
    `DamagedError` where bytes on flash are not what was written, `FileError` where the system refuses an
    operation, and `KeyboardInterrupt`.
    """

    def __init__(self, store: _native.Store, native: _native.Graph, report: Report | None = None) -> None:
        self._store = store
        self._native = native
        self._info = GraphInfo(**json.loads(native.info))
        self._report = report

    def __repr__(self) -> str:
        """Name and size."""
        return f"<inshore.Graph {self.name!r}: {self.info.vertices} vertices, {self.info.edges} edges>"

    @property
    def name(self) -> str:
        """Its name in the store."""
        return self._info.name

    @property
    def info(self) -> GraphInfo:
        """What is known of it without reading its edges."""
        return self._info

    @property
    def report(self) -> Report | None:
        """What it cost to import or generate it; None for a graph that was there."""
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
        """Rank vertices by the edges that lead to them, as LDBC Graphalytics defines it.

        The rank of vertices without out-edges is spread evenly; all ranks sum to 1.

        Parameters
        ----------
        iterations : int, optional
            Supersteps; by default 10, and with `vertex_tolerance`, where it is a limit, as many as it takes.
        damping : float, default 0.85
            The probability to follow an edge.
        tolerance : float, default 0.0
            Stop earlier when all ranks together change by at most this in an iteration; 0.0 is when nothing
            changes any more.
        vertex_tolerance : float, optional
            Let ranks converge vertex by vertex: a vertex sends by how much its rank changed, and only while
            that is more than this share of it. Late supersteps walk along few edges, and it ends when no
            vertex has more to send. Then the absolute differences of all ranks from converged ones sum to
            at most ``2 * damping * vertex_tolerance / (1 - damping)``; ``error_max`` of the summary tells
            how much it may be in this job. More than 0, less than ``1 - damping``, and not together with
            `tolerance`.
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

        Until ranks are converged, all together to a hundredth of a per cent:

        >>> result = path_of_three.pagerank(vertex_tolerance=8e-6, memory="16MiB")
        >>> ranks = result.table()
        >>> result.summary["error_max"] < 1e-4
        True

        Straight to a file, in bounded memory however large the graph:

        >>> written = path_of_three.pagerank(memory="16MiB").write("ranks.parquet")
        >>> written.rows, written.summary["supersteps"]
        (3, 10)
        """
        options = (iterations, damping, tolerance, vertex_tolerance, resume)
        return self._rows(self._native.pagerank, (memory, threads), *options)

    def bfs(
        self,
        source: int,
        *,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Search breadth first from one vertex.

        Parameters
        ----------
        source : int
            The id of the vertex to start at; `NotFoundError` if the graph has none such.
        resume, memory, threads
            See `Graph`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64), ``parent`` (uint64) and ``level`` (uint32). Of the possible parents
            it is the smallest id; the source is its own, at level 0. Both are null where the search did not
            come.

        Examples
        --------
        >>> path_of_three.bfs(5).table().to_pylist()[0]
        {'vertex': 3, 'parent': None, 'level': None}
        >>> path_of_three.bfs(3, memory="16MiB").table().column("level").to_pylist()
        [0, 1, 2]
        """
        return self._rows(self._native.bfs, (memory, threads), source, resume)

    def sssp(
        self,
        source: int,
        *,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Find the shortest paths from one vertex, by weights.

        Parameters
        ----------
        source : int
            The id of the vertex to start at; `NotFoundError` if the graph has none such. `InputError` if
            the graph has no weights, or some below zero.
        resume, memory, threads
            See `Graph`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64) and ``distance`` (float64): the least sum of weights on a path from
            the source, null where there is none.

        Examples
        --------
        >>> edges = {"source": [3, 5, 3], "target": [5, 7, 7], "weight": [0.5, 0.25, 1.0]}
        >>> roads = store.import_edges(pa.table(edges), name="roads", weighted=True)
        >>> roads.sssp(3, memory="16MiB").table().to_pydict()
        {'vertex': [3, 5, 7], 'distance': [0.0, 0.5, 0.75]}
        """
        return self._rows(self._native.sssp, (memory, threads), source, resume)

    def components(
        self,
        *,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Find weakly connected components: whatever hangs together, whichever way the edges point.

        Parameters
        ----------
        resume, memory, threads
            See `Graph`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64) and ``component`` (uint64), the smallest id in it.

        Examples
        --------
        >>> path_of_three.components(memory="16MiB").table().to_pydict()
        {'vertex': [3, 5, 7], 'component': [3, 3, 3]}
        """
        return self._rows(self._native.components, (memory, threads), resume)

    def communities(
        self,
        *,
        iterations: int = 10,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Find communities by label propagation, as LDBC Graphalytics defines it.

        Every vertex begins with its own id as label and takes, in each iteration, the label that most of
        its neighbours have, the smallest of several. Directions do not count, but whom edges join both ways
        counts twice.

        Parameters
        ----------
        iterations : int, default 10
            Iterations at most; it ends before where no label changes.
        resume, memory, threads
            See `Graph`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64) and ``community`` (uint64), the id that is its label.

        Examples
        --------
        >>> path_of_three.communities(iterations=1, memory="16MiB").table().to_pydict()
        {'vertex': [3, 5, 7], 'community': [5, 3, 5]}
        """
        return self._rows(self._native.communities, (memory, threads), iterations, resume)

    def clustering(
        self,
        *,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Tell how closely each vertex's neighbours are connected.

        Local clustering coefficients, as LDBC Graphalytics defines them: of the pairs of a vertex's
        neighbours, the share that an edge joins. Directions do not count for who is a neighbour; between
        two of them each direction is half.

        Parameters
        ----------
        memory, threads
            See `Graph`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64) and ``coefficient`` (float64), 0 where there are fewer than two
            neighbours. The summary tells the number of ``triangles``.

        Examples
        --------
        >>> path_of_three.clustering(memory="16MiB").table().column("coefficient").to_pylist()
        [0.0, 0.0, 0.0]
        """
        return self._rows(self._native.clustering, (memory, threads))

    def betweenness(
        self,
        *,
        sources: int = 16,
        seed: int = 1,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Count the shortest paths that lead through each vertex (Brandes), from sampled sources.

        Parameters
        ----------
        sources : int, default 16
            How many sources are drawn; a graph with fewer vertices uses them all, and the answer is exact.
        seed : int, default 1
            Chooses the sample. The same seed draws the same sources.
        resume, memory, threads
            See `Graph`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64) and ``centrality`` (float64), not scaled.

        Examples
        --------
        >>> path_of_three.betweenness(memory="16MiB").table().to_pydict()
        {'vertex': [3, 5, 7], 'centrality': [0.0, 1.0, 0.0]}
        """
        return self._rows(self._native.betweenness, (memory, threads), sources, seed, resume)

    def _rows(
        self,
        algorithm: Callable[..., _native.Run],
        budget: tuple[str | int | None, int | None],
        *options: Any,
    ) -> Result:
        def start(job: _native.Job, output: StrPath | None) -> _native.Run:
            return algorithm(job, *options, output)

        what = f"{algorithm.__name__} of graph {self.name!r}"
        return Result(what, lambda: self._store.job(*budget), start)

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
            Edges written.

        Examples
        --------
        >>> path_of_three.export("edges.csv")
        2
        >>> pa.csv.read_csv("edges.csv").to_pydict()
        {'source': [3, 5], 'target': [5, 7]}
        """
        with self._store.job(memory, threads) as job:
            return self._native.export(job, path)
