"""The client and the agent of nodes, with which verbs run on the machines that hold the data."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from inshore import _native
from inshore.display import html
from inshore.display.progress import Watch
from inshore.errors import InputError, SkippedWarning
from inshore.results import StrPath, drained
from inshore.store import Store
from inshore.verbs import Verbs
from inshore.verbs.target import whole
from inshore.verbs.vectors import SpreadVectors

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_BY = ("nodes", "turns", "client")

# The time in which a node has to answer to be shown in a notebook.
_GLANCE_SECONDS = 2.0


def connect(
    nodes: str | Iterable[str],
    credentials: StrPath | None = None,
    *,
    deadline: float | None = None,
    partial: bool = False,
    node_memory: str | int | None = None,
    store: Store | StrPath | None = None,
) -> Nodes:
    r"""Open a client of nodes. The first call of a verb sends the first message.

    Parameters
    ----------
    nodes : str or strs
        ``"HOST"`` or ``"HOST:PORT"`` of each node.
    credentials : path, optional
        The client's file from ``inshore node credentials``. Nodes on this machine may need none.
    deadline : float, optional
        The time limit of each call in seconds.
    partial : bool, default False
        Return partial answers without the data of lost nodes; the summary lists the missing data.
    node_memory : str or int, optional
        The memory of a task on each node; by default the node's setting.
    store : Store or path, optional
        The local store, for data that exceed the budget, for rows in transit and for profiles of languages;
        by default the default store.

    Returns
    -------
    Nodes
        The client.

    Raises
    ------
    InputError
        For an invalid address or invalid credentials, and for another machine without credentials.

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
    glance = deadline if deadline is not None and deadline < _GLANCE_SECONDS else _GLANCE_SECONDS
    return Nodes(
        _native.connect(addresses, credentials, deadline, partial, node_memory),
        store,
        _native.connect(addresses, credentials, glance, partial, node_memory),
    )


class Nodes(SpreadVectors, Verbs):
    r"""A client of several machines that run ``inshore node serve``, with all verbs; see `connect`.

    Files are datasets, named with or without ``store:``. Each call takes the budget of its local part,
    ``memory`` and ``threads`` (see `Graph`). A call raises `NodeError` if a node is lost, refuses or is late,
    `NotFoundError` for a dataset that no node has, and `InputError` for a verb or an option that nodes do not
    support (docs/operations.md has the table). The local machine does a part of the work if that is faster.

    Examples
    --------
    >>> with inshore.serve(store) as agent:
    ...     nodes = inshore.connect(agent.address)
    ...     _ = Path("notes.txt").write_text("buy milk\nfeed cat\n")
    ...     _ = nodes.put("notes.txt", memory="32MiB")
    ...     nodes.count_words("notes.txt", top=1, memory="32MiB").table().to_pylist()
    [{'word': 'buy', 'count': 1}]
    """

    def __init__(
        self,
        native: _native.Nodes,
        store: Store | StrPath | None = None,
        glance: _native.Nodes | None = None,
    ) -> None:
        self._nodes: _native.Nodes = native
        self._here = store
        # A client of the same nodes with a short deadline.
        self._glance = native if glance is None else glance

    def __repr__(self) -> str:
        """Show the call that opens the client."""
        return f"inshore.connect({self.addresses!r})"

    def _repr_html_(self) -> str:
        """Show the nodes in a notebook, with the tasks and the memory of those that answer in two seconds."""
        nodes = _status(self._glance)
        columns = ["node", "name", "running", "waiting", "done", "memory in use", ""]
        return html.panel(
            "Nodes", html.count(len(nodes), "node"), html.grid(columns, (_line(node) for node in nodes))
        )

    def _store(self) -> _native.Store:
        return (self._here if isinstance(self._here, Store) else Store(self._here))._native

    @property
    def addresses(self) -> list[str]:
        """The addresses of the nodes.

        Examples
        --------
        >>> inshore.connect("localhost:4710").addresses
        ['localhost:4710']
        """
        return self._nodes.addresses

    def status(self) -> list[dict[str, Any]]:
        """Return the status of each node.

        Returns
        -------
        list of dict
            For each node ``node`` (its address) and ``status``, or ``error`` if the node does not answer, as
            in ``inshore node status --json``.

        Examples
        --------
        >>> with inshore.serve(store, name="attic") as agent:
        ...     inshore.connect(agent.address).status()[0]["status"]["name"]
        'attic'
        """
        return _status(self._nodes)

    def ls(self) -> list[dict[str, Any]]:
        r"""List the files of the nodes. A node without an answer is a `SkippedWarning`.

        Returns
        -------
        list of dict
            ``name``, ``kind``, ``bytes``, ``pieces``, ``copies`` and ``nodes`` of each file.

        Raises
        ------
        NodeError
            If no node answers.

        Examples
        --------
        >>> _ = Path("notes.txt").write_text("buy milk\nfeed cat\n")
        >>> with inshore.serve(store) as agent:
        ...     nodes = inshore.connect(agent.address)
        ...     _ = nodes.put("notes.txt", memory="32MiB")
        ...     [(file["name"], file["bytes"]) for file in nodes.ls() if "path" not in file["name"]]
        [('store:notes.txt', 18)]
        """
        with _native.Job.plain("32MiB", 1) as job:
            found = self._run(job, "store ls", {}, [], title="list of files")
        for note in found.get("notes", []):
            warnings.warn(note, SkippedWarning, stacklevel=2)
        return cast("list[dict[str, Any]]", found["datasets"])

    def rm(self, name: str) -> int:
        """Remove a dataset from all nodes.

        Parameters
        ----------
        name : str
            The name of the dataset.

        Returns
        -------
        int
            The number of nodes that had pieces of the dataset.

        Raises
        ------
        NotFoundError
            If no node has the dataset.

        Examples
        --------
        >>> _ = Path("notes.txt").write_text("buy milk")
        >>> with inshore.serve(store) as agent:
        ...     nodes = inshore.connect(agent.address)
        ...     _ = nodes.put("notes.txt", memory="32MiB")
        ...     nodes.rm("notes.txt")
        1
        """
        with _native.Job.plain("32MiB", 1) as job:
            done = self._run(job, "store rm", {}, [name], title=f"removal of {name!r}")
        (holders,) = done["holders"]
        return cast("int", holders)

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
        """Distribute a file over all nodes, in pieces that end with lines, completely or not at all.

        A Parquet file (its name ends with ``.parquet``) is split between row groups.

        Parameters
        ----------
        path : path
            The file.
        name : str, optional
            The name of the dataset; by default the name of the file.
        copies : int, default 1
            The number of nodes that hold each piece.
        piece : str or int, optional
            The approximate size of a piece; the default depends on the length of the file.
        record : str or int, optional
            The length of a record: pieces then end with records instead of lines.
        block : str or int, optional
            The size of a checksummed block, 4 to 64 KiB (default: 64 KiB).
        memory : str or int, optional
            The budget; the call uses 4 MiB for each node and 4 MiB more.

        Returns
        -------
        dict
            ``bytes``, ``pieces`` and ``bytes_moved``.

        Raises
        ------
        ExistsError
            If a node has a dataset of the name already.
        FileError, NodeError
            See `inshore.errors`. No partial dataset is left.

        Examples
        --------
        >>> _ = Path("notes.txt").write_text("buy milk")
        >>> with inshore.serve(store) as agent:
        ...     inshore.connect(agent.address).put("notes.txt", "errands", memory="32MiB")["bytes"]
        8
        """
        named = Path(path).name if name is None else name
        fields = {
            "name": named,
            "copies": _positive("copies", whole("copies", copies, 255)),
            "piece_bytes": _size("piece", piece),
            "record_bytes": _size("record", record),
            "block_bytes": _size("block", block),
        }
        with _native.Job.plain(memory, None) as job:
            return self._run(job, "store put", fields, [path], title=f"put of {named!r}")

    def get(self, name: str, output: StrPath, *, memory: str | int | None = None) -> int:
        """Write a dataset of the nodes to a file, which appears complete or not at all.

        Parameters
        ----------
        name : str
            The dataset, or ``NAME/FILE``.
        output : path
            The file to write.
        memory : str or int, optional
            The budget; the call uses 3 MiB for each node and 7 MiB more.

        Returns
        -------
        int
            The length of the file.

        Raises
        ------
        NotFoundError
            If no node has the dataset.
        FileError, NodeError
            See `inshore.errors`. No partial file is left.

        Examples
        --------
        >>> _ = Path("notes.txt").write_text("buy milk")
        >>> with inshore.serve(store) as agent:
        ...     nodes = inshore.connect(agent.address)
        ...     _ = nodes.put("notes.txt", memory="32MiB")
        ...     nodes.get("notes.txt", "again.txt", memory="32MiB")
        8
        """
        with _native.Job.plain(memory, None) as job:
            done = self._run(job, "store get", {}, [name], output, title=f"get of {name!r}")
        return cast("int", done["bytes"])

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
        """Follow pointers from page to page on the nodes; see ``inshore node traverse --help``.

        Parameters
        ----------
        name : str
            The dataset, of whole pages (``put(..., record="8KiB", block="8KiB")``).
        starts : int or ints, default 0
            The start pages.
        steps : int, default 1000
            The maximal number of pointers in each chain.
        page : str or int, default "8KiB"
            The size of a page.
        at : int, default 0
            The offset within each page at which the number of the next page begins.
        by : str, default "nodes"
            The machine that follows pointers: ``"nodes"`` pass chains to each other; ``"turns"`` pass chains
            through the client; ``"client"`` fetches each page.
        memory : str or int, optional
            The budget.

        Returns
        -------
        dict
            ``chains``, each with ``start``, ``page``, ``steps``, ``hops``, ``digest`` and ``ended``; and the
            cost on each of the ``nodes``.

        Examples
        --------
        Two pages, each with the number of the other in its first eight bytes:

        >>> pages = [number.to_bytes(8, "little").ljust(8192, b"-") for number in (1, 0)]
        >>> _ = Path("pages").write_bytes(b"".join(pages))
        >>> with inshore.serve(store) as agent:
        ...     nodes = inshore.connect(agent.address)
        ...     _ = nodes.put("pages", record="8KiB", block="8KiB", memory="32MiB")
        ...     [chain] = nodes.traverse("pages", 0, steps=5, memory="32MiB")["chains"]
        >>> chain["steps"], chain["page"]
        (5, 1)
        """
        if by not in _BY:
            raise InputError(f"by is {by!r}: expected 'nodes', 'turns' or 'client'")
        begins = [starts] if isinstance(starts, int) else list(starts)
        fields = {
            "starts": [whole("starts", start) for start in begins],
            "steps": whole("steps", steps),
            "page_bytes": _native.size(page),
            "at": whole("at", at),
            "by": by,
        }
        with _native.Job.plain(memory, None) as job:
            return self._run(job, "node traverse", fields, [name], title=f"traverse of {name!r}")


def _positive(option: str, number: int) -> int:
    if number == 0:
        raise InputError(f"{option} is 0: expected at least 1")
    return number


def _size(option: str, size: str | int | None) -> int | None:
    return None if size is None else _positive(option, _native.size(size))


def _status(nodes: _native.Nodes) -> list[dict[str, Any]]:
    with _native.Job.plain("32MiB", 1) as job, Watch(job, "status of nodes") as watch:
        found: list[dict[str, Any]] = drained(nodes.status(job), watch)["summary"]
    return found


def _line(node: dict[str, Any]) -> tuple[object, ...]:
    """Return the status of a node as a line of a table."""
    if "error" in node:
        return (node["node"], *[""] * 5, node["error"])
    status = node["status"]
    used, memory = html.format_bytes(status["memory_used_bytes"]), html.format_bytes(status["memory_bytes"])
    tasks = (len(status["running"]), status["waiting"], status["done"])
    return (
        node["node"],
        status["name"],
        *tasks,
        f"{used} of {memory}",
        "draining" if status["draining"] else "",
    )


class Agent:
    """An agent that serves a store from this process. `serve` starts an agent; ``with`` stops the agent.

    Examples
    --------
    >>> with inshore.serve(store, name="attic") as agent:
    ...     [inshore.connect(agent.address).status()[0]["status"]["name"], agent]
    ['attic', <inshore.Agent at 127.0.0.1:...>]
    """

    def __init__(self, native: _native.Agent) -> None:
        self._native = native

    def __repr__(self) -> str:
        """Show the address."""
        return f"<inshore.Agent at {self.address}>"

    @property
    def address(self) -> str:
        """The address of the agent, for `connect`.

        Examples
        --------
        >>> with inshore.serve(store) as agent:
        ...     agent.address
        '127.0.0.1:...'
        """
        return self._native.address

    def close(self) -> None:
        """Stop the agent: no new task starts, and running tasks are cancelled.

        Examples
        --------
        >>> agent = inshore.serve(store)
        >>> agent.close()
        """
        self._native.close()

    def __enter__(self) -> Self:
        """Return the agent."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the agent."""
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
    """Serve a store from this process, as ``inshore node serve`` does from a separate process.

    The agent runs no commands and no WebAssembly. The agent's part of a query runs in a child process, as for
    `Store.sql`, in the memory of the task.

    Parameters
    ----------
    store : Store or path, optional
        The store; by default the default store.
    listen : str, default "127.0.0.1:0"
        The address and the port; port 0 selects a free port.
    name : str, default "python"
        The node's name in messages.
    credentials : path, optional
        The node's file from ``inshore node credentials``. Without credentials, only this machine is served.
    memory, threads
        The budget of all tasks together; see `Graph`.
    slots : int, default 2
        The number of concurrent tasks.

    Returns
    -------
    Agent
        The agent, which serves until its `close`.

    Raises
    ------
    InputError
        For an address that is not available, and for other machines without credentials.

    Examples
    --------
    >>> with inshore.serve(store, memory="64MiB", threads=1) as agent:
    ...     len(inshore.connect(agent.address).status())
    1
    """
    opened = store if isinstance(store, Store) else Store(store)
    return Agent(_native.serve(opened._native, listen, name, credentials, memory, threads, slots))
