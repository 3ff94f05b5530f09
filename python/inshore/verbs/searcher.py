"""Vectors that stay open for many searches."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from inshore import _native
from inshore.errors import InputError
from inshore.verbs.target import whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Self

    from inshore.verbs.vectors import Metric

    Queries = npt.NDArray[np.generic] | pa.Array[Any] | pa.ChunkedArray[Any] | Sequence[Any]


class Neighbours:
    """The neighbours that `VectorSearcher.search` found, as NumPy arrays and as a table.

    Attributes
    ----------
    table : pyarrow.Table
        A row for each neighbour: ``query`` (its number, from 0), ``rank`` (from 1), ``id`` and ``distance``,
        then the columns of ``select``. Only neighbours that exist have rows.
    facts : dict
        What the search did; ``plan``, ``measured``, and for an approximate answer ``probes`` and
        ``recall_estimate``.

    Examples
    --------
    >>> import numpy as np
    >>> _ = store.import_vectors(np.eye(3, dtype=np.float32), name="points", memory="16MiB")
    >>> with store.vectors("points", memory="24MiB") as searcher:
    ...     searcher.search([0, 0, 1], k=1).table.to_pydict()
    {'query': [0], 'rank': [1], 'id': [2], 'distance': [0.0]}
    >>> store.remove_vectors("points")
    """

    def __init__(self, table: pa.Table, shape: tuple[int, int], facts: dict[str, Any]) -> None:
        self.table = table
        self.facts = facts
        self._shape = shape

    def __repr__(self) -> str:
        """Show the numbers of queries and neighbours."""
        return f"<inshore.Neighbours: {self.table.num_rows} neighbours of {self._shape[0]} queries>"

    @cached_property
    def ids(self) -> npt.NDArray[Any]:
        """The ids: int64 of shape (queries, k), with -1 where a query has fewer than k neighbours.

        For vectors with a column of texts as ids, an array of objects with None there.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.eye(3, dtype=np.float32), name="points", memory="16MiB")
        >>> with store.vectors("points", memory="24MiB") as searcher:
        ...     searcher.search([0, 0, 1], k=2, radius=1.0).ids
        array([[ 2, -1]])
        >>> store.remove_vectors("points")
        """
        column = self.table["id"]
        if pa.types.is_integer(column.type):
            return self._grid(column.to_numpy().astype("int64"), -1)
        return self._grid(column.to_numpy(), None)

    @cached_property
    def distances(self) -> npt.NDArray[np.float32]:
        """The distances: float32 of shape (queries, k), with NaN where a query has fewer neighbours.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.eye(3, dtype=np.float32), name="points", memory="16MiB")
        >>> with store.vectors("points", memory="24MiB") as searcher:
        ...     searcher.search([[0, 0, 1], [0, 1, 0]], k=1).distances
        array([[0.],
               [0.]], dtype=float32)
        >>> store.remove_vectors("points")
        """
        return self._grid(self.table["distance"].to_numpy(), float("nan"))

    def _grid(self, values: npt.NDArray[Any], missing: Any) -> npt.NDArray[Any]:
        """Arrange a value of each row by query and rank."""
        import numpy as np  # noqa: PLC0415

        rows, columns = self._shape
        if len(values) == rows * columns:
            return values.reshape(self._shape)
        grid = np.full(self._shape, missing, values.dtype)
        grid[self.table["query"].to_numpy(), self.table["rank"].to_numpy() - 1] = values
        return grid


class VectorSearcher:
    """Vectors that stay open for many searches from any number of threads.

    `Store.vectors` makes it. What all searches need stays in memory. A search costs its reads and
    comparisons, without the opening of the store and the index that each `Store.nearest` pays.

    Searches see the vectors as they were when they were opened, until `refresh`; the space of what was
    removed since is free for other data after `refresh` or `close`. Ctrl-C ends a search, and leaves the
    searcher open.

    The budget is in use until `close`, the end of a ``with`` block, or the deletion of the object. Directory
    and centroids of the index stay in memory, and the rest is divided among the calls that run at once
    (`calls`); a further call waits. A call that is alone has all threads.

    Examples
    --------
    >>> import numpy as np
    >>> points = np.array([[0, 0], [3, 4], [1, 0]], np.float32)
    >>> _ = store.import_vectors(points, name="points", memory="16MiB")
    >>> with store.vectors("points", memory="24MiB") as searcher:
    ...     near = searcher.search(np.array([0.9, 0]), k=2)
    >>> near.ids, near.distances.round(1)
    (array([[2, 0]]), array([[0.1, 0.9]], dtype=float32))
    >>> store.remove_vectors("points")
    """

    def __init__(self, native: _native.Searcher) -> None:
        self._native = native
        self._info: dict[str, Any] = json.loads(native.info())

    def __repr__(self) -> str:
        """Show the name and the numbers of vectors and dimensions."""
        name, vectors, dimensions = (self._info[key] for key in ("name", "vectors", "dimensions"))
        return f"<inshore.VectorSearcher {name!r}: {vectors} vectors of {dimensions} {self.element}>"

    def __enter__(self) -> Self:
        """Return the searcher itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the searcher."""
        self.close()

    def __len__(self) -> int:
        """Return the number of vectors that were not removed."""
        vectors: int = self._info["vectors"]
        return vectors

    @property
    def dimensions(self) -> int:
        """The number of dimensions of a vector.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.eye(3, dtype=np.float32), name="points", memory="16MiB")
        >>> with store.vectors("points", memory="24MiB") as searcher:
        ...     searcher.dimensions
        3
        >>> store.remove_vectors("points")
        """
        dimensions: int = self._info["dimensions"]
        return dimensions

    @property
    def element(self) -> str:
        """The type of the elements: ``"f32"``, ``"f16"``, ``"bf16"``, ``"u8"``, ``"i8"`` or ``"bits"``.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.eye(3, dtype=np.float32), name="points", memory="16MiB")
        >>> with store.vectors("points", memory="24MiB") as searcher:
        ...     searcher.element
        'f32'
        >>> store.remove_vectors("points")
        """
        element: str = self._info["element"]
        return element

    @property
    def metric(self) -> Metric:
        """The metric of a search that names none: that of the index, or ``"l2"`` without an index.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.eye(3, dtype=np.float32), name="points", memory="16MiB")
        >>> with store.vectors("points", memory="24MiB") as searcher:
        ...     searcher.metric
        'l2'
        >>> store.remove_vectors("points")
        """
        metric: Metric = self._info["index"] or "l2"
        return metric

    @property
    def in_memory(self) -> bool:
        """True if all vectors are in memory.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.eye(3, dtype=np.float32), name="points", memory="16MiB")
        >>> with store.vectors("points", memory="24MiB") as searcher:
        ...     searcher.in_memory
        False
        >>> store.remove_vectors("points")
        """
        in_memory: bool = self._info["in_memory"]
        return in_memory

    @property
    def calls(self) -> int:
        """The number of calls that run at once.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.eye(3, dtype=np.float32), name="points", memory="16MiB")
        >>> with store.vectors("points", memory="24MiB") as searcher:
        ...     searcher.calls
        1
        >>> store.remove_vectors("points")
        """
        calls: int = self._info["calls"]
        return calls

    def search(
        self,
        queries: Queries,
        k: int = 10,
        *,
        metric: Metric | None = None,
        radius: float | None = None,
        recall: float = 0.95,
        exact: bool = False,
        probes: int | None = None,
        where: str | None = None,
        select: Iterable[str] = (),
    ) -> Neighbours:
        """Find the nearest vectors of each query, as `Store.nearest` does.

        Parameters
        ----------
        queries : numpy.ndarray, pyarrow.Array or sequence
            An array of queries and dimensions, or of the dimensions of one query, of the types that
            `Store.import_vectors` takes; an Arrow array of lists; or a sequence of numbers, or of such
            sequences. For vectors of bits, uint8 of eight bits each.
        k : int, default 10
            The number of neighbours of each query.
        metric : str, optional
            As of `Store.nearest`; by default `metric`.
        radius : float, optional
            The largest distance of a neighbour, or its smallest inner product.
        recall : float, default 0.95
            The recall that an answer from the index is expected to reach, by its table. Without an index,
            and if `where` selects less than one of a hundred vectors, the answer is exact.
        exact : bool, default False
            Compare all vectors.
        probes : int, optional
            Probe so many lists of the index for each query, in the place of ``recall``.
        where : str, optional
            An SQL expression over the columns of vectors that were imported from a table. Only vectors for
            which it is true are answers. The set of these vectors is kept for later searches with the same
            text, in up to a sixteenth of the memory.
        select : iterable of str, optional
            Columns of the vectors that the table has besides its own.

        Returns
        -------
        Neighbours
            ``ids`` and ``distances`` of shape (queries, k), where k is at most the number of vectors; and
            ``table``.

        Raises
        ------
        InputError
            For queries of other dimensions, and for values that the elements of the vectors cannot hold; for
            another metric than that of the index, unless ``exact``; for a closed searcher.
        BudgetError
            If a call's share of the memory is too small for one query and its neighbours; the message names
            the memory that is enough.
        DamagedError, FileError
            See `inshore.errors`.

        Notes
        -----
        An exact search reads all vectors once for each batch of queries that fits the memory of a call; from
        an index a query reads a few lists. Many queries in one call share reads and comparisons: a call with
        1000 queries costs much less than 1000 calls.

        Examples
        --------
        >>> import numpy as np
        >>> places = pa.table({"at": [[0.0, 0.0], [3.0, 4.0]], "name": ["here", "there"]})
        >>> _ = store.import_vectors(places, name="places", memory="16MiB")
        >>> searcher = store.vectors("places", memory="64MiB")
        >>> searcher.search([0, 0], k=1, where="name <> 'here'", select=["name"]).table["name"].to_pylist()
        ['there']
        >>> searcher.search(pa.array([[0.0, 0.0], [3.0, 3.0]]), k=3).ids
        array([[0, 1],
               [1, 0]])
        >>> searcher.close()
        >>> store.remove_vectors("places")
        """
        data, count = _npy(queries)
        request: dict[str, Any] = {"dataset": self._info["name"], "k": whole("k", k), "radius": radius}
        request |= {"metric": metric or self.metric, "where": where, "select": list(select)}
        request["probes"] = None if exact else probes
        request["recall"] = None if exact or probes is not None else recall
        columns, rows, facts = self._native.search(json.dumps(request), data)
        schema = pa.schema(cast("Any", columns))
        table = pa.Table.from_batches([pa.record_batch(batch) for batch in rows], schema)
        return Neighbours(table, (count, min(k, len(self))), json.loads(facts))

    def refresh(self) -> bool:
        """Open the vectors and their index again if they have changed.

        Vectors that were added, replaced or removed, and an index that was built, are seen by searches from
        then on. The call waits for running searches, and searches that begin meanwhile wait for the call.

        Returns
        -------
        bool
            Whether they have changed.

        Raises
        ------
        NotFoundError
            If the vectors were removed; searches go on as before.
        BudgetError, DamagedError, FileError, InputError
            If they cannot be opened again; the searcher is closed then.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.zeros((3, 2), np.float32), name="points", memory="16MiB")
        >>> searcher = store.vectors("points", memory="24MiB")
        >>> _ = store.add_vectors("points", np.ones((2, 2), np.float32), memory="16MiB")
        >>> len(searcher), searcher.refresh(), len(searcher), searcher.refresh()
        (3, True, 5, False)
        >>> searcher.close()
        >>> store.remove_vectors("points")
        """
        has_changed = self._native.refresh()
        if has_changed:
            self._info = json.loads(self._native.info())
        return has_changed

    def close(self) -> None:
        """Give back the memory. Searches that are running end first; later ones raise `InputError`.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.eye(3, dtype=np.float32), name="points", memory="16MiB")
        >>> with store.vectors("points", memory="24MiB") as searcher:
        ...     searcher.close()
        ...     searcher.search([0, 0, 1])
        Traceback (most recent call last):
        inshore.errors.InputError: the searcher is closed: expected an open one: open the vectors points again
        >>> store.remove_vectors("points")
        """
        self._native.close()


def _npy(queries: Queries) -> tuple[bytes, int]:
    """Return queries as the bytes of a ``.npy`` file, and their number."""
    import numpy as np  # noqa: PLC0415

    if hasattr(queries, "__array_interface__"):
        array = np.ascontiguousarray(queries)
    elif isinstance(queries, (pa.Array, pa.ChunkedArray)):
        array = _of_lists(queries)
    else:
        array = np.asarray(queries, np.float32)
    text = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {array.shape}, }}\n".encode()
    count = len(array) if array.ndim > 1 else 1
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + array.tobytes(), count


def _of_lists(queries: pa.Array[Any] | pa.ChunkedArray[Any]) -> npt.NDArray[Any]:
    """Return an Arrow array of lists as an array of queries and dimensions."""
    array: Any = queries.combine_chunks() if isinstance(queries, pa.ChunkedArray) else queries
    is_lists = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    if not is_lists and not pa.types.is_fixed_size_list(array.type):
        raise InputError(f"queries: found an Arrow array of {array.type}, expected one of lists of numbers")
    values = array.flatten()
    dimensions = len(values) // max(1, len(array))
    lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
    if array.null_count or values.null_count or (lengths != dimensions).any():
        raise InputError("queries: found nulls or lists of different lengths, expected lists of one length")
    rows: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(len(array), dimensions)
    return rows
