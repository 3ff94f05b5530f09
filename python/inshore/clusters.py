"""A cluster: nodes that exchange rows with each other, started on a Ray cluster or running already.

Ray is the control plane: it places an actor on each of its nodes, and the actor serves a store as
`inshore.serve` does. All rows go directly from node to node. Ray is imported by the first call that needs it.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inshore import _native
from inshore.errors import FeatureError, InputError, InshoreError, NodeError
from inshore.nodes import Nodes, serve
from inshore.results import Result, StrPath
from inshore.sources import Inputs
from inshore.verbs.target import whole

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from inshore.store import Store

# The part of a node's own resource that an actor asks for. An actor that asked for a core would wait for ever
# on a full node, and a node whose resources nobody uses counts as idle for an autoscaler.
_SLIVER = 0.001
# The time in which an actor has to serve its store, in seconds.
_START_SECONDS = 60.0


def cluster(
    address: str | None = "auto",
    *,
    stores: StrPath | Mapping[str, StrPath] | None = None,
    nodes: str | Iterable[str] | None = None,
    credentials: StrPath | None = None,
    node_credentials: StrPath | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
    deadline: float | None = None,
    node_memory: str | int | None = None,
    store: Store | StrPath | None = None,
) -> Cluster:
    r"""Open a cluster: an actor on each node of a Ray cluster serves the node's store.

    The actors end when the cluster is closed, or with this program.

    Parameters
    ----------
    address : str, default "auto"
        The address of the Ray cluster, as for ``ray.init``: ``"auto"`` is the one that runs on this machine,
        and ``"local"`` starts one.
    stores : path or mapping
        The folder of the store on each node. In a path, ``{node}`` stands for Ray's id of the node. A mapping
        has the folder for each id, name or IP address of a node, and other nodes take no part.
    nodes : str or strs, optional
        The addresses of agents that run already (``inshore node serve``). Ray is then not used.
    credentials : path, optional
        The client's file from ``inshore node credentials``; needed if a node is another machine.
    node_credentials : path, optional
        The file of a node's credentials, on each node; needed if a node is another machine. In the path,
        ``{node}`` stands for Ray's id of the node.
    memory, threads
        The budget of all tasks on a node; see `Graph`.
    deadline : float, optional
        The time limit of each call in seconds.
    node_memory : str or int, optional
        The memory of a job on each node; by default half of the memory of the node.
    store : Store or path, optional
        The local store; see `connect`.

    Returns
    -------
    Cluster
        The cluster, which is also a context manager.

    Raises
    ------
    FeatureError
        If Ray is not installed.
    InputError
        For an invalid option, if there is no such Ray cluster, and if nodes are other machines while Ray's
        token authentication is off or credentials are missing.
    NodeError
        If an actor does not serve its store within a minute.

    Examples
    --------
    >>> with inshore.serve(store) as agent:
    ...     with inshore.cluster(nodes=agent.address) as cluster:
    ...         _ = Path("names.txt").write_text("carol\nalice\nbob\n")
    ...         _ = cluster.put("names.txt", memory="32MiB")
    ...         _ = cluster.sort_lines("names.txt", memory="32MiB").write("store:sorted.txt")
    ...         cluster.get("sorted.txt", "sorted.txt", memory="32MiB")
    16
    """
    if nodes is not None:
        addresses = [nodes] if isinstance(nodes, str) else list(nodes)
        return Cluster(_connect(addresses, credentials, deadline, node_memory), store)
    if stores is None:
        raise InputError("stores is missing: expected the folder of the store on each node, or nodes=...")
    ray = _ray()
    members = _members(ray, address, stores)
    is_remote = len({member["NodeManagerAddress"] for member in members}) > 1
    if is_remote:
        _check_security(credentials, node_credentials)
    elif node_credentials is None and credentials is not None:
        raise InputError("credentials without node_credentials: the nodes need credentials, too")
    actors = []
    try:
        for member in members:
            node, host = member["NodeID"], member["NodeManagerAddress"]
            own = None if node_credentials is None else os.fspath(node_credentials).replace("{node}", node)
            actor = _actor(ray, node, host).remote(
                folder=member["store"],
                listen=f"{host}:0" if is_remote else "127.0.0.1:0",
                name=member["NodeName"],
                credentials=own,
                memory=memory,
                threads=threads,
            )
            actors.append(actor)
        addresses = ray.get([actor.address.remote() for actor in actors], timeout=_START_SECONDS)
        return Cluster(_connect(addresses, credentials, deadline, node_memory), store, actors)
    except InshoreError:
        _stop(actors)
        raise
    except Exception as error:
        _stop(actors)
        why = str(error).strip().splitlines()[-1:]
        raise NodeError(f"a node of the cluster does not serve its store: {''.join(why)}") from error
    except BaseException:
        _stop(actors)
        raise


def _connect(
    addresses: list[str],
    credentials: StrPath | None,
    deadline: float | None,
    node_memory: str | int | None,
) -> _native.Nodes:
    """Open a client of the nodes of a cluster."""
    return _native.connect(addresses, credentials, deadline, False, node_memory, is_cluster=True)


def _ray() -> Any:
    """Import Ray."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise FeatureError("Ray is not installed: pip install 'inshore[ray]'") from error


def _members(ray: Any, address: str | None, stores: StrPath | Mapping[str, StrPath]) -> list[dict[str, Any]]:
    """Connect to Ray, and return its living nodes, each with the folder of its store."""
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level="warning")
        except (ConnectionError, ValueError) as error:
            what = f"no Ray cluster at {address!r}: start one with `ray start --head` ({error})"
            raise InputError(what) from error
    members = [{**node, "store": _folder(node, stores)} for node in ray.nodes() if node["Alive"]]
    members = [member for member in members if member["store"] is not None]
    if not members:
        raise InputError("stores names no node of the cluster: expected ids, names or IP addresses of nodes")
    folders = {(member["NodeManagerAddress"], member["store"]) for member in members}
    if len(folders) < len(members):
        raise InputError("stores has one folder for several nodes of a machine: put {node} into the path")
    return members


def _folder(node: Mapping[str, Any], stores: StrPath | Mapping[str, StrPath]) -> str | None:
    """Return the folder of the store on a node, or None if the node takes no part."""
    if isinstance(stores, Mapping):
        keys = (node["NodeID"], node["NodeName"], node["NodeManagerAddress"])
        found = next((stores[key] for key in keys if key in stores), None)
        return None if found is None else os.fspath(found)
    return os.fspath(stores).replace("{node}", node["NodeID"])


def _check_security(credentials: StrPath | None, node_credentials: StrPath | None) -> None:
    """Refuse a cluster of several machines whose control plane or agents anybody could use."""
    if os.environ.get("RAY_AUTH_MODE") != "token":
        raise InputError(
            "the nodes are several machines, and Ray's token authentication is off: "
            "start Ray with RAY_AUTH_MODE=token"
        )
    if os.environ.get("RAY_USE_TLS") != "1":
        warnings.warn("Ray's TLS is off: its token travels unencrypted", stacklevel=3)
    if credentials is None or node_credentials is None:
        raise InputError(
            "the nodes are several machines: expected credentials and node_credentials "
            "(`inshore node credentials` creates both)"
        )


class _Agent:
    """The actor of a node: serves the node's store."""

    def __init__(self, folder: str, listen: str, **options: Any) -> None:
        self._agent = serve(Path(folder), listen, **options)

    def address(self) -> str:
        """Return the address of the agent."""
        return self._agent.address


def _actor(ray: Any, node: str, host: str) -> Any:
    """Return the class of an actor that runs on a node."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    options = {
        "num_cpus": 0,
        "resources": {f"node:{host}": _SLIVER},
        # Losses of nodes and retries are those of the stages.
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(node, soft=False),
    }
    return ray.remote(_Agent).options(**options)


def _stop(actors: Iterable[Any]) -> None:
    """End actors, with the agents in their processes."""
    for actor in actors:
        _ray().kill(actor)


class Cluster(Nodes):
    r"""Nodes that exchange rows with each other; see `cluster`.

    A cluster has the methods of `Nodes`. `sort_lines` and `sort_records` exchange rows between the nodes, and
    a result that is written to ``"store:NAME"`` stays on the nodes. `sql`, `reduce` and `count_values`
    exchange the rows of joins and groups, and the rows of the result come to the client. The other verbs
    merge the answers of the nodes at the client, as `Nodes` does. `sort` of tables raises `InputError`
    (docs/operations.md has the table).

    Examples
    --------
    >>> with inshore.serve(store) as agent, inshore.cluster(nodes=agent.address) as cluster:
    ...     len(cluster.status())
    1
    """

    def __init__(
        self, native: _native.Nodes, store: Store | StrPath | None = None, actors: Iterable[Any] = ()
    ) -> None:
        super().__init__(native, store)
        self._actors = list(actors)

    def __repr__(self) -> str:
        """Show the addresses of the nodes."""
        return f"inshore.cluster(nodes={self.addresses!r})"

    def __enter__(self) -> Self:
        """Return the cluster."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the cluster."""
        self.close()

    def pagerank(
        self,
        edges: str,
        *,
        iterations: int = 10,
        damping: float = 0.85,
        tolerance: float = 0.0,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        r"""Rank the vertices of a graph whose edges are a dataset, as `Graph.pagerank` does on one machine.

        The nodes exchange one sum for each vertex in each iteration. The ranks are those of an import of the
        edges and `Graph.pagerank`, bit for bit.

        Parameters
        ----------
        edges : str
            The dataset: text with two ids on each line, as for `Store.import_edges`.
        iterations : int, default 10
            The number of iterations, at most 100.
        damping : float, default 0.85
            The probability to follow an edge.
        tolerance : float, default 0.0
            Stop early when the sum of all rank changes in an iteration is at most this value.
        memory, threads
            The budget of this machine; see `Graph`. The memory of the job on each node is `node_memory` of
            `cluster`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64) and ``rank`` (float64), in the order of vertices. If it is written to
            ``"store:NAME"``, the rows are lines of CSV that stay on the nodes.

        Raises
        ------
        InputError
            If the dataset is no text of edges, and for an invalid option.
        NodeError
            If the job fails, for example since the edges do not fit in the memory of the nodes.

        Examples
        --------
        >>> with inshore.serve(store) as agent, inshore.cluster(nodes=agent.address) as cluster:
        ...     _ = Path("links.txt").write_text("1 2\n3 2\n2 1\n")
        ...     _ = cluster.put("links.txt", memory="32MiB")
        ...     ranks = cluster.pagerank("links.txt", memory="32MiB").table()
        ...     [round(rank, 3) for rank in ranks["rank"].to_pylist()]
        [0.494, 0.456, 0.05]
        """
        fields = {
            "iterations": whole("iterations", iterations, 2**32 - 1),
            "damping": damping,
            "tolerance": tolerance,
        }
        return self._result("graph pagerank", fields, Inputs(edges, "edges"), (memory, threads), gives="rows")

    def bfs(
        self,
        edges: str,
        source: int,
        *,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        r"""Search a graph whose edges are a dataset breadth first, as `Graph.bfs` does on one machine.

        The nodes exchange at most one message for each vertex from each part of the graph. The rows are those
        of an import of the edges and `Graph.bfs`.

        Parameters
        ----------
        edges : str
            The dataset: text with two ids on each line, as for `Store.import_edges`.
        source : int
            The id of the start vertex.
        memory, threads
            The budget of this machine; see `Graph`. The memory of the job on each node is `node_memory` of
            `cluster`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64), ``parent`` (uint64) and ``level`` (uint32), in the order of vertices.
            Parent and level are null for unreached vertices. If it is written to ``"store:NAME"``, the rows
            are lines of CSV that stay on the nodes.

        Raises
        ------
        InputError
            If the dataset is no text of edges, and if the search has not ended after 500 supersteps.
        NotFoundError
            If no edge has the source.
        NodeError
            If the job fails, for example since the edges do not fit in the memory of the nodes.

        Examples
        --------
        >>> with inshore.serve(store) as agent, inshore.cluster(nodes=agent.address) as cluster:
        ...     _ = Path("links.txt").write_text("1 2\n2 3\n1 3\n")
        ...     _ = cluster.put("links.txt", memory="32MiB")
        ...     cluster.bfs("links.txt", 1, memory="32MiB").table()["level"].to_pylist()
        [0, 1, 1]
        """
        fields = {"source": whole("source", source)}
        return self._result("graph bfs", fields, Inputs(edges, "edges"), (memory, threads), gives="rows")

    def components(
        self,
        edges: str,
        *,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        r"""Find the connected components of a graph whose edges are a dataset.

        The direction of edges does not matter. The smallest id of a component passes from neighbour to
        neighbour, one edge in each superstep. The rows are those of an import of the edges and
        `Graph.components`.

        Parameters
        ----------
        edges : str
            The dataset: text with two ids on each line, as for `Store.import_edges`.
        memory, threads
            The budget of this machine; see `Graph`. The memory of the job on each node is `node_memory` of
            `cluster`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64) and ``component`` (uint64), the smallest id of the component, in the
            order of vertices. If it is written to ``"store:NAME"``, the rows are lines of CSV that stay on
            the nodes.

        Raises
        ------
        InputError
            If the dataset is no text of edges, and if the search has not ended after 500 supersteps, for
            example in a graph of roads.
        NodeError
            If the job fails, for example since the edges do not fit in the memory of the nodes.

        Examples
        --------
        >>> with inshore.serve(store) as agent, inshore.cluster(nodes=agent.address) as cluster:
        ...     _ = Path("links.txt").write_text("1 2\n3 2\n8 9\n")
        ...     _ = cluster.put("links.txt", memory="32MiB")
        ...     cluster.components("links.txt", memory="32MiB").table()["component"].to_pylist()
        [1, 1, 1, 8, 8]
        """
        return self._result("graph components", {}, Inputs(edges, "edges"), (memory, threads), gives="rows")

    def sssp(
        self,
        edges: str,
        source: int,
        *,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        r"""Find the shortest weighted paths in a graph whose edges are a dataset.

        Each superstep extends paths by one edge. The rows are those of an import of the edges with weights
        and `Graph.sssp`, bit for bit.

        Parameters
        ----------
        edges : str
            The dataset: text with two ids and a weight on each line, as for `Store.import_edges` with
            ``weighted=True``.
        source : int
            The id of the start vertex.
        memory, threads
            The budget of this machine; see `Graph`. The memory of the job on each node is `node_memory` of
            `cluster`.

        Returns
        -------
        Result
            Columns ``vertex`` (uint64) and ``distance`` (float64), in the order of vertices: the smallest sum
            of weights on a path from the source; null for unreached vertices. If it is written to
            ``"store:NAME"``, the rows are lines of CSV that stay on the nodes.

        Raises
        ------
        InputError
            If the dataset is no text of edges, and if the search has not ended after 500 supersteps.
        NotFoundError
            If no edge has the source.
        NodeError
            If the job fails, for example since a line has no weight, a path reaches a negative weight, or the
            edges do not fit in the memory of the nodes.

        Examples
        --------
        >>> with inshore.serve(store) as agent, inshore.cluster(nodes=agent.address) as cluster:
        ...     _ = Path("roads.txt").write_text("3 5 0.5\n5 7 0.25\n3 7 1\n")
        ...     _ = cluster.put("roads.txt", memory="32MiB")
        ...     cluster.sssp("roads.txt", 3, memory="32MiB").table()["distance"].to_pylist()
        [0.0, 0.5, 0.75]
        """
        fields = {"source": whole("source", source)}
        return self._result("graph sssp", fields, Inputs(edges, "edges"), (memory, threads), gives="rows")

    def close(self) -> None:
        """End the actors that `cluster` started. Datasets stay in the stores of the nodes.

        Examples
        --------
        >>> with inshore.serve(store) as agent:
        ...     inshore.cluster(nodes=agent.address).close()
        """
        actors, self._actors = self._actors, []
        _stop(actors)
