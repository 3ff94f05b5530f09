"""The store, and the creation of graphs in it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inshore import _native
from inshore.display import html
from inshore.errors import InputError
from inshore.graph import Graph, GraphInfo
from inshore.results import StrPath
from inshore.sources import ArrowStream, Inputs
from inshore.verbs import Here
from inshore.verbs.target import whole
from inshore.verbs.vectors import StoredVectors

# The largest numbers of graphs and of other datasets that a notebook lists.
_LINES_MAX = 50


class Store(StoredVectors, Here):
    """A folder of named graphs and datasets, with all verbs. Several processes may use a store at once.

    Parameters
    ----------
    path : path, optional
        The folder, which is created if it does not exist. By default ``$INSHORE_STORE``, else ``inshore`` in
        the user's data directory.

    Raises
    ------
    InputError
        If the folder holds other files.
    DamagedError
        If the store cannot be read.
    FileError
        For errors of the system.

    Examples
    --------
    >>> store = inshore.Store("my-store")
    >>> store.graphs()
    []
    """

    def __init__(self, path: StrPath | None = None) -> None:
        self._native = _native.Store(path)

    def __repr__(self) -> str:
        """Show the call that opens the store."""
        return f"inshore.Store({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Show the graphs and the other datasets in a notebook without reading their data."""
        graphs = self.graphs()
        names = {info.name for info in graphs}
        others = [each for each in json.loads(self._native.datasets()) if each["name"] not in names]
        parts = [html.note(f"{html.count(len(graphs), 'graph')}, {html.count(len(others), 'other dataset')}")]
        if graphs:
            columns = ["graph", "vertices", "edges", "directed", "weighted", "size", "smallest budget"]
            lines = (
                (
                    info.name,
                    f"{info.vertices:,}",
                    f"{info.edges:,}",
                    info.directed,
                    info.weighted,
                    html.format_bytes(info.bytes),
                    html.format_bytes(info.smallest_budget_bytes),
                )
                for info in graphs[:_LINES_MAX]
            )
            parts.append(html.grid(columns, lines))
        if others:
            lines_of_others = (
                (each["name"], each["kind"], html.format_bytes(each["size"])) for each in others[:_LINES_MAX]
            )
            parts.append(html.grid(["dataset", "kind", "size"], lines_of_others))
        hidden = max(0, len(graphs) - _LINES_MAX) + max(0, len(others) - _LINES_MAX)
        if hidden:
            parts.append(html.note(f"and {hidden} more"))
        return html.panel("Store", str(self.path), *parts)

    def _store(self) -> _native.Store:
        return self._native

    @property
    def path(self) -> Path:
        """The folder of the store.

        Examples
        --------
        >>> inshore.Store("my-store").path.name
        'my-store'
        """
        return self._native.path

    def graphs(self) -> list[GraphInfo]:
        """List the graphs.

        Returns
        -------
        list of GraphInfo
            The properties of all graphs, in the order of names.

        Examples
        --------
        >>> [info.name for info in store.graphs()]
        ['path']
        """
        with self._native.job("32MiB", 1) as job:
            listed = self._run(job, "graph ls", {}, [], title="list of graphs")
        return [GraphInfo(**info) for info in listed["graphs"]]

    def graph(self, name: str) -> Graph:
        """Open a graph.

        Parameters
        ----------
        name : str
            The name of the graph.

        Returns
        -------
        Graph
            The graph.

        Raises
        ------
        NotFoundError
            If the graph does not exist.

        Examples
        --------
        >>> store.graph("path").info.edges
        2
        >>> store.graph("web")
        Traceback (most recent call last):
        inshore.errors.NotFoundError: there is no dataset "web" in ...
        """
        return Graph(self._native, self._native.graph(name))

    def remove(self, name: str) -> None:
        """Remove a graph. An open `Graph` stays usable.

        Parameters
        ----------
        name : str
            The name of the graph.

        Raises
        ------
        NotFoundError
            If the graph does not exist.

        Examples
        --------
        >>> store.remove("path")
        >>> store.graphs()
        []
        """
        with self._native.job("32MiB", 1) as job:
            self._run(job, "store rm", {}, [name], title=f"removal of {name!r}")

    def import_edges(
        self,
        source: StrPath | Iterable[StrPath] | ArrowStream,
        *,
        name: str,
        format: str | None = None,
        undirected: bool = False,
        drop_loops: bool = False,
        weighted: bool = False,
        reverse: bool = False,
        source_column: str | None = None,
        target_column: str | None = None,
        weight_column: str | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Graph:
        """Create a graph from a list of edges. Duplicate edges are merged; self-loops are kept.

        Parameters
        ----------
        source : path, paths or Arrow data
            One file, several files, or a `pyarrow.Table`, `pyarrow.RecordBatchReader` or data frame (see
            `ArrowStream`). Files may be compressed (``.gz``, ``.zst``). Arrow data are streamed batch by
            batch through a file in the store, so that a reader may be of any length.
        name : str
            The name of the new graph; `ExistsError` if a dataset has the name already.
        format : str, optional
            The format of the files, if their endings do not tell: ``"text"`` (SNAP), ``"csv"``,
            ``"parquet"``, ``"arrow"``, ``"mtx"`` (Matrix Market), ``"ldbc"`` or ``"binary"`` (raw
            little-endian pairs of uint32).
        undirected : bool, default False
            Add each edge in both directions.
        drop_loops : bool, default False
            Leave out edges from a vertex to itself.
        weighted : bool, default False
            Keep the third column of text as weights. If the format defines weights (a column named
            ``weight``, Matrix Market, LDBC), they are always kept. Duplicate edges get their smallest weight.
        reverse : bool, default False
            Store in-edges too; otherwise some jobs compute in-edges for each run.
        source_column, target_column, weight_column : str, optional
            The names of the columns of a table. By default the columns with common names (``source``,
            ``target``, ``weight``, ``from``, ``to`` and similar), or else the first and the second column.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Graph
            The new graph.

        Raises
        ------
        InputError
            If a line or row is not an edge; the message names the file and the line.
        ExistsError, BudgetError, FileError
            See `inshore.errors`. No partial graph is left.

        Examples
        --------
        >>> import numpy as np
        >>> edges = np.array([[0, 1], [1, 2], [2, 0]])
        >>> table = pa.table({"source": edges[:, 0], "target": edges[:, 1]})
        >>> store.import_edges(table, name="triangle", undirected=True, memory="16MiB")
        <inshore.Graph 'triangle': 3 vertices, 3 edges>
        >>> store.remove("triangle")
        """
        with self._native.job(memory, threads) as job:
            if isinstance(source, ArrowStream) and format is not None:
                raise InputError(f"format is {format!r}: expected none, since the source is Arrow data")
            named = None
            if source_column is not None and target_column is not None:
                # A column with the name "weight" is always kept.
                named = [source_column, target_column, weight_column or "weight"]
            paths = Inputs(source, columns=named).paths(job)
            options = {
                "format": format,
                "undirected": undirected,
                "drop_loops": drop_loops,
                "weighted": weighted,
                "reverse": reverse,
                "source_column": source_column,
                "target_column": target_column,
                "weight_column": weight_column,
            }
            fields = {"name": name, "options": options}
            return self._make(job, "graph import", fields, paths, f"import of graph {name!r}")

    def generate_kronecker(
        self,
        *,
        scale: int,
        edge_factor: int = 16,
        seed: int = 1,
        name: str,
        reverse: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Graph:
        """Generate a random graph by the rules of Graph500, with a skewed degree distribution.

        Parameters
        ----------
        scale : int
            The number of vertices is 2 to the power of `scale`.
        edge_factor : int, default 16
            The number of edges drawn for each vertex; duplicates are merged.
        seed : int, default 1
            The seed. The same seed generates the same graph.
        name : str
            The name of the new graph; `ExistsError` if a dataset has the name already.
        reverse : bool, default False
            Store in-edges too.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Graph
            The new graph, directed.

        Examples
        --------
        >>> graph = store.generate_kronecker(scale=4, name="kron4", memory="16MiB")
        >>> graph.info.vertices
        16
        >>> store.remove("kron4")
        """
        kronecker = {
            "scale": whole("scale", scale, 2**32 - 1),
            "edge_factor": whole("edge_factor", edge_factor),
            "seed": whole("seed", seed),
        }
        fields = {"name": name, "kronecker": kronecker, "reverse": reverse}
        with self._native.job(memory, threads) as job:
            return self._make(job, "graph generate", fields, [], f"generation of graph {name!r}")

    def _make(
        self, job: _native.Job, operation: str, fields: dict[str, Any], paths: list[StrPath], title: str
    ) -> Graph:
        """Run an operation that makes a graph, and open the graph."""
        self._run(job, operation, fields, paths, title=title)
        return Graph(self._native, self._native.graph(fields["name"]), json.loads(job.report()))
