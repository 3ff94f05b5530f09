"""Several machines as one: what is asked for is done where the data lies."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from inshore import _native
from inshore.errors import InputError, SkippedWarning
from inshore.results import StrPath
from inshore.store import Store
from inshore.verbs import Verbs

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_BY = ("nodes", "turns", "client")


def connect(
    nodes: str | Iterable[str],
    credentials: StrPath | None = None,
    *,
    deadline: float | None = None,
    partial: bool = False,
    node_memory: str | int | None = None,
    store: Store | StrPath | None = None,
) -> Nodes:
    r"""Make ready to ask nodes. Nothing is sent before something is asked.

    Parameters
    ----------
    nodes : str or strs
        ``"HOST"`` or ``"HOST:PORT"`` of each.
    credentials : path, optional
        This client's file, as ``inshore node credentials`` makes it. Nodes on this machine may ask for none.
    deadline : float, optional
        Each call is to be done in so many seconds, whatever it waits for.
    partial : bool, default False
        Answer without what lost nodes have; what is missing is told in the summary.
    node_memory : str or int, optional
        Memory of a task on each node; by default as the node is set up.
    store : Store or path, optional
        The store of this machine, for what exceeds the memory, for rows on their way and for profiles of
        languages; by default that of habit.

    Returns
    -------
    Nodes
        The nodes as one.

    Raises
    ------
    InputError
        For an address or credentials that are none, and for another machine without credentials.

    Examples
    --------
    >>> with inshore.serve(store) as agent:
    ...     nodes = inshore.connect(agent.address)
    ...     _ = Path("notes.txt").write_text("buy milk\nfeed cat\n")
    ...     _ = nodes.put("notes.txt", memory="32MiB")
    ...     nodes.search("cat", "notes.txt", memory="32MiB").table().to_pylist()
    [{'path': 'store:notes.txt', 'line_number': 2, 'offset': 9, 'line': 'feed cat'}]
    """
    addresses = [nodes] if isinstance(nodes, str) else list(nodes)
    return Nodes(_native.connect(addresses, credentials, deadline, partial, node_memory), store)


class Nodes(Verbs):
    """Machines that serve (``inshore node serve``), as one, with all verbs. `connect` makes it.

    Files are named by the names of datasets, with or without ``store:``. Every call takes the budget of its
    own part, ``memory`` and ``threads`` (see `Graph`), and raises `NodeError` for a node that is lost, that
    refuses, or that is late, `NotFoundError` for what no node has, and `InputError` for a verb or an option
    that does not go with nodes (docs/operations.md has the table). Where it gains, this machine helps.
    """

    def __init__(self, native: _native.Nodes, store: Store | StrPath | None = None) -> None:
        self._nodes: _native.Nodes = native
        self._here = store

    def __repr__(self) -> str:
        """Show the call that makes it."""
        return f"inshore.connect({self.addresses!r})"

    def _store(self) -> _native.Store:
        return (self._here if isinstance(self._here, Store) else Store(self._here))._native

    @property
    def addresses(self) -> list[str]:
        """The addresses of the nodes."""
        return self._nodes.addresses

    def status(self) -> list[dict[str, Any]]:
        """Tell how each node is.

        Returns
        -------
        list of dict
            For each node ``node`` (its address) and ``status``, or ``error`` where it gives no answer, as
            ``inshore node status --json`` has them.
        """
        with _native.Job.plain("32MiB", 1) as job:
            return cast("list[dict[str, Any]]", json.loads(self._nodes.status(job)))

    def ls(self) -> list[dict[str, Any]]:
        """List the files that nodes hold. A node that gives no answer is a `SkippedWarning`.

        Returns
        -------
        list of dict
            ``name``, ``kind``, ``bytes``, ``pieces``, ``copies`` and ``nodes`` of each.
        """
        with _native.Job.plain("32MiB", 1) as job:
            text, lost = self._nodes.ls(job)
        for why in lost:
            warnings.warn(why, SkippedWarning, stacklevel=2)
        return cast("list[dict[str, Any]]", json.loads(text))

    def rm(self, name: str) -> int:
        """Remove a dataset from all nodes that have some of it.

        Parameters
        ----------
        name : str
            Its name.

        Returns
        -------
        int
            How many nodes had some of it.
        """
        with _native.Job.plain("32MiB", 1) as job:
            return self._nodes.rm(job, name)

    def put(
        self,
        path: StrPath,
        name: str | None = None,
        *,
        copies: int = 1,
        piece: str | int | None = None,
        record: str | int | None = None,
        block: str | int | None = None,
        memory: str | int | None = None,
    ) -> dict[str, Any]:
        """Spread a file over all nodes, in pieces that end with a line. It appears on all of them or on none.

        A table of Parquet (its name ends with ``.parquet``) is cut between its row groups.

        Parameters
        ----------
        path : path
            The file.
        name : str, optional
            Name of the dataset; by default that of the file.
        copies : int, default 1
            On how many nodes each piece is.
        piece : str or int, optional
            Size of a piece, about; by default by the length of the file.
        record : str or int, optional
            Pieces end with a record of so many bytes, and not with a line.
        block : str or int, optional
            What is checked at once when it is read, 4 to 64 KiB (default: 64 KiB).
        memory : str or int, optional
            The budget; 4 MiB for each node and 4 more are used.

        Returns
        -------
        dict
            ``bytes``, ``pieces`` and ``bytes_moved``.
        """
        named = Path(path).name if name is None else name
        with _native.Job.plain(memory, None) as job:
            text = self._nodes.put(job, path, named, copies, piece, record, block)
        return cast("dict[str, Any]", json.loads(text))

    def get(self, name: str, output: StrPath, *, memory: str | int | None = None) -> int:
        """Write a dataset of the nodes to a file, which appears whole or not at all.

        Parameters
        ----------
        name : str
            The dataset, or ``NAME/FILE``.
        output : path
            The file to write.
        memory : str or int, optional
            The budget; 3 MiB for each node are used.

        Returns
        -------
        int
            Its length.
        """
        with _native.Job.plain(memory, None) as job:
            return self._nodes.get(job, name, output)

    def traverse(
        self,
        name: str,
        starts: int | Iterable[int] = 0,
        *,
        steps: int = 1000,
        page: str | int = "8KiB",
        at: int = 0,
        by: Literal["nodes", "turns", "client"] = "nodes",
        memory: str | int | None = None,
    ) -> dict[str, Any]:
        """Follow pointers from page to page, on the nodes; see ``inshore node traverse --help``.

        Parameters
        ----------
        name : str
            The dataset, of whole pages (``put(..., record="8KiB", block="8KiB")``).
        starts : int or ints, default 0
            The pages to begin with.
        steps : int, default 1000
            Pointers of each chain that are followed, at most.
        page : str or int, default "8KiB"
            Size of a page.
        at : int, default 0
            The byte of each page at which the number of the next one begins.
        by : str, default "nodes"
            Who follows: ``"nodes"``, which hand chains to each other; ``"turns"``, the client hands them on;
            ``"client"``, every page comes here.
        memory : str or int, optional
            The budget.

        Returns
        -------
        dict
            ``chains``, each with ``start``, ``page``, ``steps``, ``hops``, ``digest`` and ``ended``; and what
            it took on each of the ``nodes``.
        """
        if by not in _BY:
            raise InputError(f"by is {by!r}: expected 'nodes', 'turns' or 'client'")
        begins = [starts] if isinstance(starts, int) else list(starts)
        with _native.Job.plain(memory, None) as job:
            text = self._nodes.traverse(job, name, begins, steps, page, at, by)
        return cast("dict[str, Any]", json.loads(text))


class Agent:
    """An agent that serves a store from this process. `serve` starts it; ``with`` ends it."""

    def __init__(self, native: _native.Agent) -> None:
        self._native = native

    @property
    def address(self) -> str:
        """Where it serves, for `connect`."""
        return self._native.address

    def close(self) -> None:
        """Stop it: it takes no more tasks, and those that run are stopped."""
        self._native.close()

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it."""
        self.close()


def serve(
    store: Store | StrPath | None = None,
    listen: str = "127.0.0.1:0",
    *,
    name: str = "python",
    credentials: StrPath | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
    slots: int = 2,
) -> Agent:
    """Serve a store from this process, as ``inshore node serve`` does from one of its own.

    It runs no commands and no WebAssembly. Its part of a query runs in a process of its own, as that of
    `Store.sql`, in the memory of the task.

    Parameters
    ----------
    store : Store or path, optional
        The store; by default that of habit.
    listen : str, default "127.0.0.1:0"
        Address and port; port 0 is any that is free.
    name : str, default "python"
        What the node is called in messages.
    credentials : path, optional
        This node's file, as ``inshore node credentials`` makes it. Without it this machine alone is served.
    memory, threads
        The budget of all tasks together; see `Graph`.
    slots : int, default 2
        Tasks that run at once.

    Returns
    -------
    Agent
        It serves until it is closed.

    Raises
    ------
    InputError
        For an address that cannot be had, and where others would be served without credentials.
    """
    opened = store if isinstance(store, Store) else Store(store)
    return Agent(_native.serve(opened._native, listen, name, credentials, memory, threads, slots))
