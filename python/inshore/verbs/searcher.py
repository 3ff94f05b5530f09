"""Keeps vectors open for many searches."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from inshore import _native
from inshore.errors import InputError
from inshore.verbs.checks import check_elements, check_metric, column_list
from inshore.verbs.target import whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    import numpy as np
    import numpy.typing as npt
    from typing_extensions import Self

    from inshore.verbs.checks import Metric

    Queries = npt.NDArray[np.generic] | pa.Array[Any] | pa.ChunkedArray[Any] | Sequence[Any]


class Neighbours:
    """The neighbours that `VectorSearcher.search` found, as NumPy arrays and as a table.

    Attributes
    ----------
    table : pyarrow.Table
        The table has one row for each neighbour. Its columns are ``query`` (the number of the query, from
        0), ``rank`` (from 1), ``id`` and ``distance``, then the columns of ``select``. A query with fewer
        than k neighbours has fewer than k rows.
    facts : dict
        The statistics of the search. They contain ``plan`` and ``measured``, and for an approximate answer
        also ``probes``, ``recall_estimate`` and ``recall_k``, the k of that recall. If hash tables did not
        pay, ``exact_because`` has the estimates for which the answer is exact.

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
        """Show the number of queries and the number of neighbours."""
        return f"<inshore.Neighbours: {self.table.num_rows} neighbours of {self._shape[0]} queries>"

    @cached_property
    def ids(self) -> npt.NDArray[Any]:
        """The ids as an array of int64 of shape (queries, k).

        If a query has fewer than k neighbours, the missing ids are -1. If the ids of the vectors are a
        column of texts, the result is an array of objects, and the missing ids are None.

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
        """The distances as an array of float32 of shape (queries, k).

        If a query has fewer than k neighbours, the missing distances are NaN.

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
        """Arrange the values of all rows by query and rank, and fill missing places with `missing`."""
        import numpy as np  # noqa: PLC0415

        rows, columns = self._shape
        if len(values) == rows * columns:
            return values.reshape(self._shape)
        grid = np.full(self._shape, missing, values.dtype)
        grid[self.table["query"].to_numpy(), self.table["rank"].to_numpy() - 1] = values
        return grid


class VectorSearcher:
    """Vectors that stay open for many searches from any number of threads.

    `Store.vectors` creates a searcher. The data that all searches need stay in memory. So a search costs only
    its reads and comparisons. In contrast, each call of `Store.nearest` also opens the store and the index.

    Searches see a snapshot of the vectors, from the time of the opening or of the last `refresh`. If other
    jobs remove data of the snapshot, the flash space of these data becomes free after `refresh` or `close`.
    Ctrl-C cancels a search, and the searcher stays open.

    The budget is in use until `close`, the end of a ``with`` block, or the deletion of the object. The
    directory and the centroids of the index stay in memory. The rest of the memory is divided into equal
    shares for `calls` concurrent calls, and further calls wait. A call uses all threads if no other call is
    running.

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
        """Show the name, the number of vectors, the number of dimensions and the element type."""
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
        """The element type: ``"f32"``, ``"f16"``, ``"bf16"``, ``"u8"``, ``"i8"`` or ``"bits"``.

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
        """The default metric of a search, which is the metric of the index, or ``"l2"`` without an index.

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
        """The largest number of concurrent calls.

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
            The queries are one of the following:

            - a NumPy array of shape (queries, dimensions), or of shape (dimensions,) for one query, of an
              element type that `Store.import_vectors` takes
            - an Arrow array of lists
            - a sequence of numbers for one query, or a sequence of such sequences

            If the vectors consist of bits, each uint8 contains eight bits.
        k : int, default 10
            The number of neighbours of each query.
        metric : str, optional
            The metric, as in `Store.nearest`. The default is the property `metric`.
        radius : float, optional
            The largest distance of a neighbour. For inner products, the smallest inner product.
        recall : float, default 0.95
            The recall that an answer from the index is expected to reach, according to the index's table of
            recall. The answer is exact if the vectors have no index. The answer is also exact if `where`
            selects less than one of a hundred vectors.
        exact : bool, default False
            If true, the search compares all vectors with each query.
        probes : int, optional
            The number of lists or buckets of the index that each query probes. If the number is given,
            ``recall`` is ignored.
        where : str, optional
            An SQL expression over the columns of vectors that were imported from a table. Only vectors for
            which the expression is true are answers. The set of these vectors is kept for later searches
            with the same text. All kept sets take at most a sixteenth of the memory.
        select : iterable of str, optional
            The columns of the vectors that are added to the table of the answer.

        Returns
        -------
        Neighbours
            The neighbours as the arrays ``ids`` and ``distances`` of shape (queries, k), and as ``table``. In
            the shape, k is at most the number of vectors.

        Raises
        ------
        InputError
            If the queries have another number of dimensions than the vectors, if the element type of the
            vectors cannot represent a value of a query, if the metric is not that of the index and ``exact``
            is false, or if the searcher is closed.
        BudgetError
            If a call's share of the memory is too small for one query and its neighbours. The message
            states the memory that is enough.
        DamagedError, FileError
            If stored bytes are damaged, or if a file cannot be read (see `inshore.errors`).

        Notes
        -----
        An exact search reads all vectors once for each batch of queries. A batch contains as many queries as
        fit into the memory of a call. A search in an index reads only a few lists or buckets for each query.
        The queries of one call share reads and comparisons, so a call with 1000 queries costs much less than
        1000 calls.

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
        check_metric(metric)
        data, count = _npy(queries)
        request: dict[str, Any] = {"dataset": self._info["name"], "k": whole("k", k), "radius": radius}
        request |= {"metric": metric or self.metric, "where": where, "select": column_list("select", select)}
        request["probes"] = None if exact else probes
        request["recall"] = None if exact or probes is not None else recall
        columns, rows, facts = self._native.search(json.dumps(request), data)
        schema = pa.schema(cast("Any", columns))
        table = pa.Table.from_batches([pa.record_batch(batch) for batch in rows], schema)
        return Neighbours(table, (count, min(k, len(self))), json.loads(facts))

    def refresh(self) -> bool:
        """Open the vectors and their index again if they have changed.

        Later searches see vectors that were added, replaced or removed, and an index that was built. The
        refresh waits for running searches, and searches that begin meanwhile wait for the refresh.

        Returns
        -------
        bool
            True if the vectors or their index have changed.

        Raises
        ------
        NotFoundError
            If the vectors were removed. Later searches then continue to use the old snapshot.
        BudgetError, DamagedError, FileError, InputError
            If the vectors cannot be opened again. The searcher is closed after such an error.

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
        """Close the searcher.

        Running searches continue to their end, and the memory becomes free after them. Later searches raise
        `InputError`.

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
    """Return queries as the bytes of a ``.npy`` file, and the number of the queries."""
    import numpy as np  # noqa: PLC0415

    if hasattr(queries, "__array_interface__"):
        array = np.ascontiguousarray(queries)
    elif isinstance(queries, (pa.Array, pa.ChunkedArray)):
        array = _of_lists(queries)
    else:
        try:
            array = np.asarray(queries, np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(f"queries: found a {type(queries).__name__}: {error}") from error
    check_elements("queries", array.dtype)
    text = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {array.shape}, }}\n".encode()
    count = len(array) if array.ndim > 1 else 1
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + array.tobytes(), count


def _of_lists(queries: pa.Array[Any] | pa.ChunkedArray[Any]) -> npt.NDArray[Any]:
    """Return an Arrow array of lists as a NumPy array of shape (queries, dimensions)."""
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
