"""Nearest neighbours: datasets of vectors in a store, and searches in them."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from inshore import _native
from inshore.errors import InputError, SkippedWarning
from inshore.results import Result, StrPath
from inshore.sources import ArrayOnFile, ArrowStream
from inshore.verbs.checks import Metric, check_metric, check_vectors, column_list
from inshore.verbs.searcher import VectorSearcher
from inshore.verbs.target import Target, whole

_CALLS_MAX = 64

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import numpy.typing as npt

    Vectors = StrPath | npt.NDArray[np.generic] | ArrayOnFile
    Files = StrPath | Sequence[StrPath]
    Ids = StrPath | Iterable[int] | npt.NDArray[np.integer[Any]]


class DescribedVectors(Target):
    """Verbs that list, describe and remove the vectors of a store or of nodes."""

    def _small_job(self) -> _native.Job:
        """Start a job that reads no vectors."""
        return self._store().job("32MiB", 1) if self._nodes is None else _native.Job.plain("32MiB", 1)

    def list_vectors(self) -> list[dict[str, Any]]:
        """List all datasets of vectors and their indexes.

        A node that does not answer, and vectors on nodes that cannot be used, are a `SkippedWarning`.

        Returns
        -------
        list of dict
            The results of `describe_vectors` for all datasets of vectors, sorted by name.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.zeros((3, 2), np.float32), name="points", memory="16MiB")
        >>> [(each["name"], each["vectors"]) for each in store.list_vectors()]
        [('points', 3)]
        >>> store.remove_vectors("points")
        """
        with self._small_job() as job:
            listed = self._run(job, "nearest ls", {}, [], title="list of vectors")
        for note in listed.get("notes", []):
            warnings.warn(note, SkippedWarning, stacklevel=2)
        datasets: list[dict[str, Any]] = listed["datasets"]
        return datasets

    def describe_vectors(self, name: str) -> dict[str, Any]:
        """Describe a dataset of vectors and its index, without reading the vectors.

        Parameters
        ----------
        name : str
            The name of the dataset.

        Returns
        -------
        dict
            ``name``, ``vectors``, ``removed``, ``dimensions``, ``element``, ``bytes`` and ``index``.
            ``vectors`` does not count removed vectors, and ``removed`` counts those whose space was not
            freed. ``index`` is None, or a dict with the result of `index_vectors` without the plan. If the
            index has lists, ``list_sizes`` has the ``planned`` number of vectors of a list, the number in
            the ``largest`` list, and how many are ``oversized``, with more than twice the plan. If an
            index cannot be used, ``index_error`` has the reason. ``imported_from`` is ``"vectors"``,
            ``"table"``, ``"images"`` or ``"documents"``; vectors of a table have ``columns``, their names,
            and ``id_column``, if a column has the ids. Vectors on nodes have none of these and no
            ``list_sizes``, but ``pieces``, ``copies`` and ``stored_on``, the nodes that hold shards.

        Raises
        ------
        NotFoundError
            If there are no vectors of that name.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.zeros((3, 2), np.float32), name="points", memory="16MiB")
        >>> described = store.describe_vectors("points")
        >>> described["element"], described["dimensions"], described["index"]
        ('f32', 2, None)
        >>> store.remove_vectors("points")
        """
        with self._small_job() as job:
            return self._run(job, "nearest info", {}, [name], title=f"properties of vectors {name!r}")

    def remove_vectors(self, name: str, *, index: bool = False) -> None:
        """Remove a dataset of vectors with its index, or only the index.

        Parameters
        ----------
        name : str
            The name of the dataset.
        index : bool, default False
            If true, only the index is removed.

        Raises
        ------
        NotFoundError
            If there are no vectors of that name.
        InputError
            If ``index`` is true and the vectors have no index, and for a dataset of another kind.
        NodeError
            If a node does not answer. Once it answers again, a second call removes its parts.

        Examples
        --------
        >>> import numpy as np
        >>> points = np.random.default_rng(1).normal(size=(200, 8)).astype(np.float32)
        >>> _ = store.import_vectors(points, name="points", memory="32MiB")
        >>> _ = store.index_vectors("points", memory="32MiB")
        >>> store.remove_vectors("points", index=True)
        >>> store.describe_vectors("points")["index"] is None
        True
        >>> store.remove_vectors("points")
        >>> store.list_vectors()
        []
        """
        with self._small_job() as job:
            self._run(job, "nearest rm", {"index": index}, [name], title=f"removal of vectors {name!r}")


class SpreadVectors(DescribedVectors):
    """Verbs on vectors that are spread over nodes."""

    def import_vectors(
        self,
        source: Vectors | ArrowStream,
        *,
        name: str,
        bits: bool = False,
        column: str | None = None,
        id: str | None = None,
        copies: int = 1,
        piece: str | int | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Divide vectors of a file, an array or a table into shards on the nodes, completely or not at all.

        The id of a vector is its number in the file, from 0, on any number of nodes, or its value in the
        column ``id`` of a table.

        Parameters
        ----------
        source : path, numpy.ndarray or table
            Vectors in any form that `Store.import_vectors` takes. The other columns of a table lie on the
            nodes of their vectors, for the parameters ``where`` and ``select`` of `nearest`.
        name : str
            The name of the new dataset.
        bits : bool, default False
            Each byte is eight dimensions of one bit (``numpy.packbits``).
        column : str, optional
            The column of a table that has the vectors, if several columns are lists of numbers.
        id : str, optional
            The column of a table whose values, integers or texts that are all different, are the ids of the
            vectors.
        copies : int, default 1
            The number of nodes that hold each shard.
        piece : str or int, optional
            The approximate size of a shard; the default depends on the size of the vectors.
        memory, threads
            The budget; see `Graph`. The call uses 4 MiB for each node and 9 MiB more.

        Returns
        -------
        dict
            ``vectors``, ``dimensions``, ``element``, ``bytes`` and ``rounded``, and for a table ``columns``
            and ``left_out``, as `Store.import_vectors`.

        Raises
        ------
        ExistsError
            If a node has a dataset of that name already.
        InputError
            For NaN, infinities and malformed files; the message names the vector and the dimension.
        FileError, NodeError, BudgetError
            See `inshore.errors`. No partial dataset is left.

        Examples
        --------
        >>> import numpy as np
        >>> points = np.array([[0, 0], [3, 4], [1, 0]], np.float32)
        >>> with inshore.serve(store) as agent:
        ...     nodes = inshore.connect(agent.address, store=store)
        ...     _ = nodes.import_vectors(points, name="spread", memory="32MiB")
        ...     found = nodes.nearest("spread", points[:1], k=2, memory="32MiB").table()
        ...     nodes.remove_vectors("spread")
        >>> found["id"].to_pylist(), found["distance"].to_pylist()
        ([0, 2], [0.0, 1.0])
        """
        fields = {
            "name": name,
            "bits": bits,
            "column": column,
            "id": id,
            "copies": whole("copies", copies, 255),
            "piece_bytes": None if piece is None else _native.size(piece),
        }
        # Arrays and the columns of tables are written to the scratch space of the store.
        is_plain = isinstance(source, str | os.PathLike) and not _is_table(source)
        with _native.Job.plain(memory, threads) if is_plain else self._store().job(memory, threads) as job:
            title = f"import of vectors {name!r}"
            return self._run(job, "nearest import", fields, [_file(source, job)], title=title)

    def index_vectors(
        self,
        name: str,
        *,
        metric: Literal["l2", "ip", "cosine"] = "l2",
        lists: int | None = None,
        seed: int = 0,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Build one index of vectors on all nodes for approximate answers, or build it again.

        The centroids are trained here on a sample, and copied to each node, which writes its own vectors'
        part of each list. The lists do not depend on the number of nodes.

        Parameters
        ----------
        name : str
            The vectors; see `import_vectors`.
        metric : str, default "l2"
            The metric of all searches with the index.
        lists : int, optional
            The number of lists; by default as many as have 16 KiB, or 32 vectors, and as the sample trains.
        seed : int, default 0
            The number from which the sample follows.
        memory, threads
            The budget; see `Graph`. The lists do not depend on it.

        Returns
        -------
        dict
            ``index``: its ``lists``, ``groups``, ``sample`` and ``recall``, as of `Store.index_vectors`.

        Raises
        ------
        NotFoundError
            If no node has vectors of that name.
        FileError, NodeError, BudgetError
            See `inshore.errors`. There is no index then.

        Examples
        --------
        >>> import numpy as np
        >>> points = np.random.default_rng(1).normal(size=(2000, 8)).astype(np.float32)
        >>> with inshore.serve(store) as agent:
        ...     nodes = inshore.connect(agent.address, store=store)
        ...     _ = nodes.import_vectors(points, name="spread", memory="32MiB")
        ...     index = nodes.index_vectors("spread", lists=20, memory="32MiB")["index"]
        ...     found = nodes.nearest("spread", points[:1], k=3, recall=0.95, memory="32MiB").table()
        ...     nodes.remove_vectors("spread")
        >>> index["vectors"], found["id"].to_pylist()[0]
        (2000, 0)
        """
        check_metric(metric)
        fields = {"dataset": name, "metric": metric, "lists": lists, "seed": seed}
        with _native.Job.plain(memory, threads) as job:
            return self._run(job, "nearest index", fields, [], title=f"index of {name!r}")

    def measure_recall(
        self,
        name: str,
        queries: Vectors,
        *,
        sample: int = 200,
        k: int = 10,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Measure the recall of an index on queries, and replace the index's table of recall on all nodes.

        `nearest` uses the table to choose the number of lists for its parameter ``recall``.

        Parameters
        ----------
        name : str
            The vectors; see `import_vectors`.
        queries : path or numpy.ndarray
            The queries, in any form that `import_vectors` takes.
        sample : int, default 200
            The number of queries that are used. They are taken at equal distances from all queries.
        k : int, default 10
            The number of neighbours of each query.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            The table of recall, as of `Store.measure_recall`.

        Raises
        ------
        NotFoundError
            If no node has vectors of that name.
        InputError, FileError, NodeError, BudgetError
            See `inshore.errors`. The index keeps its earlier table then.

        Examples
        --------
        >>> import numpy as np
        >>> points = np.random.default_rng(1).normal(size=(2000, 8)).astype(np.float32)
        >>> with inshore.serve(store) as agent:
        ...     nodes = inshore.connect(agent.address, store=store)
        ...     _ = nodes.import_vectors(points, name="spread", memory="32MiB")
        ...     _ = nodes.index_vectors("spread", lists=20, memory="32MiB")
        ...     table = nodes.measure_recall("spread", points[:50], memory="32MiB")
        ...     nodes.remove_vectors("spread")
        >>> table["queries"], table["measured_on"]
        (50, 'queries')
        """
        fields = {"dataset": name, "sample": sample, "k": k}
        is_path = not hasattr(queries, "__array_interface__")
        with _native.Job.plain(memory, threads) if is_path else self._store().job(memory, threads) as job:
            title = f"recall of the index of {name!r}"
            return self._run(job, "nearest recall", fields, [_file(queries, job)], title=title)

    def nearest(
        self,
        name: str,
        queries: Vectors,
        *,
        k: int = 10,
        metric: Metric = "l2",
        radius: float | None = None,
        recall: float | None = None,
        probes: int | None = None,
        where: str | None = None,
        select: Iterable[str] = (),
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Find the nearest vectors of each query on the nodes: exactly, or with ``recall`` from an index.

        Each node answers with the nearest vectors of its shards. The exact answer equals that of
        `Store.nearest` for the same vectors bit for bit, on any number of nodes.

        Parameters
        ----------
        name : str
            The vectors; see `import_vectors`.
        queries : path or numpy.ndarray
            The queries, in any form that `import_vectors` takes.
        k : int, default 10
            The largest number of neighbours of each query.
        metric : str, default "l2"
            As of `Store.nearest`.
        radius : float, optional
            Only neighbours up to this distance; for ``"ip"`` from this inner product on.
        recall : float, optional
            Answer from the index (`index_vectors`) with this recall or more, by its table. Without an index,
            the answer is exact.
        probes : int, optional
            Answer from the index, and probe so many lists for each query.
        where : str, optional
            An SQL expression over the columns of vectors that were imported from a table, which the nodes
            evaluate. Only vectors for which it is true are answers.
        select : iterable of str, optional
            The columns that are added to the answer.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Result
            The columns ``query``, ``rank`` (from 1), ``id`` and ``distance``, then the columns ``select``.

        Raises
        ------
        NotFoundError
            If no node has vectors of that name.
        InputError
            For queries of other dimensions, and for values that the elements of the vectors cannot hold.
        FileError, NodeError, BudgetError
            See `inshore.errors`.

        Examples
        --------
        >>> import numpy as np
        >>> points = np.array([[0, 1], [1, 0], [1, 1]], np.float32)
        >>> with inshore.serve(store) as agent:
        ...     nodes = inshore.connect(agent.address, store=store)
        ...     _ = nodes.import_vectors(points, name="spread", memory="32MiB")
        ...     found = nodes.nearest("spread", points[:1], k=1, metric="ip", memory="32MiB").table()
        ...     nodes.remove_vectors("spread")
        >>> found["id"].to_pylist()
        [0]
        """
        check_metric(metric)
        check_vectors("queries", queries)
        fields: dict[str, Any] = {"dataset": name, "k": k, "metric": metric, "radius": radius}
        fields |= {"recall": recall, "probes": probes, "where": where}
        fields |= {"select": column_list("select", select)}

        def start(job: _native.Job, output: StrPath | None) -> _native.Run:
            return self._start(job, "nearest query", fields, [_file(queries, job)], output)

        title = f"nearest query of {name!r} in {self!r}"
        return Result(title, lambda: self._store().job(memory, threads), start, counted="rows", gives="file")


class StoredVectors(DescribedVectors):
    """Operations on the vectors of a store."""

    def import_vectors(
        self,
        source: Vectors | ArrowStream,
        *,
        name: str,
        bits: bool = False,
        column: str | None = None,
        id: str | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Import vectors from a file, an array or a table.

        Parameters
        ----------
        source : path, numpy.ndarray or table
            A file (``.fvecs``, ``.bvecs``, ``.ivecs``, ``.fbin``, ``.u8bin``, ``.i8bin``, ``.hbin``,
            ``.b1bin``, ``.npy``), an array, or a table. An array has the shape (vectors, dimensions), or
            (dimensions) for one vector. An array that stays on file, such as a dataset of `h5py`, is read in
            blocks of 1 MiB (see `ArrayOnFile`). The elements of an array are float32, float16, bfloat16 (of
            ml_dtypes), uint8 or int8. float64 is rounded to float32, and int32 must fit float32 exactly. The
            id of a vector is its row number, counted from 0. A table (``.parquet``, ``.arrow``, pyarrow,
            pandas, polars) has the vectors in a column of lists. The dataset keeps the other columns for the
            parameters ``where`` and ``select`` of `nearest`.
        name : str
            The name of the new dataset.
        bits : bool, default False
            If true, each byte has eight dimensions of one bit (``numpy.packbits``).
        column : str, optional
            The column of a table that has the vectors. It is needed only if several columns are lists of
            numbers.
        id : str, optional
            The column of a table whose values are the ids in answers. They are integers or texts, and each
            occurs once.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``vectors``, ``dimensions``, ``element`` and ``bytes`` describe the dataset. ``rounded`` is the
            number of elements that were rounded. For a table, ``columns`` has the names of the columns that
            the dataset keeps, and ``left_out`` has the names of nested columns, which it does not keep.

        Raises
        ------
        ExistsError
            If the store already has a dataset of that name.
        InputError
            For NaN, infinities and malformed files. The message names the vector and the dimension.
        FileError, BudgetError
            See `inshore.errors`. A failed import leaves no dataset.

        Examples
        --------
        >>> import numpy as np
        >>> points = np.array([[0, 0], [3, 4], [1, 0]], np.float32)
        >>> store.import_vectors(points, name="points", memory="16MiB")["vectors"]
        3
        >>> nearest = store.nearest("points", points[:1], k=2, memory="16MiB")
        >>> nearest.table().to_pydict()["id"], nearest.table().to_pydict()["distance"]
        ([0, 2], [0.0, 1.0])
        >>> store.remove("points")
        """
        with self._store().job(memory, threads) as job:
            title = f"import of vectors {name!r}"
            fields = {"name": name, "bits": bits, "column": column, "id": id}
            return self._run(job, "nearest import", fields, [_file(source, job)], title=title)

    def add_vectors(
        self,
        name: str,
        source: Vectors | ArrowStream,
        *,
        bits: bool = False,
        column: str | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Add the vectors of a file, an array or a table to a dataset.

        The new vectors get consecutive ids, which begin after the largest id that the dataset has used. If a
        column of the dataset has the ids, the table has those of the new vectors. Once the call returns, the
        vectors survive a loss of power.

        Parameters
        ----------
        name : str
            The name of the dataset; see `import_vectors`.
        source : path, numpy.ndarray or table
            Vectors with the dimensions and the element type of the dataset, in any form that `import_vectors`
            takes. A dataset that was imported from a table takes tables with the same columns.
        bits : bool, default False
            If true, each byte has eight dimensions of one bit (``numpy.packbits``).
        column : str, optional
            The column of a table that has the vectors. By default the only column of lists of numbers.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``added`` is the number of new vectors, ``first_id`` the id of the first one (None if a column has
            the ids), and ``rounded`` the number of rounded elements. ``vectors`` (the number of rows),
            ``removed`` and ``next_id`` describe the dataset.

        Raises
        ------
        NotFoundError, InputError, FileError, BudgetError
            See `inshore.errors`. After an error, the dataset is unchanged.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.zeros((3, 2), np.float32), name="points", memory="16MiB")
        >>> store.add_vectors("points", np.ones((2, 2), np.float32), memory="16MiB")["first_id"]
        3
        >>> store.remove_vectors("points")
        """
        fields = {"dataset": name, "bits": bits, "column": column}
        with self._store().job(memory, threads) as job:
            return self._run(job, "nearest add", fields, [_file(source, job)], title=f"addition to {name!r}")

    def add_files(
        self,
        name: str,
        paths: Files,
        *,
        lines: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        r"""Add images to a dataset of images, or documents to a dataset of documents.

        Vectors are computed as by `import_images` and `import_documents`. Documents have the vocabulary of
        the dataset.

        Parameters
        ----------
        name : str
            The name of the dataset; see `import_images` and `import_documents`.
        paths : path or sequence of paths
            Files and folders, as in `import_images` and `import_documents`.
        lines : bool, default False
            If true, each line of the file is a document.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            The entries are those of `add_vectors`.

        Raises
        ------
        NotFoundError, InputError, FileError, BudgetError
            See `inshore.errors`. After an error, the dataset is unchanged.

        Examples
        --------
        >>> import pathlib
        >>> texts = pathlib.Path("texts.txt")
        >>> _ = texts.write_text("the cat sat\nthe dog and the dog\n")
        >>> _ = store.import_documents(texts, name="texts", lines=True, memory="32MiB")
        >>> more = pathlib.Path("more.txt")
        >>> _ = more.write_text("a cat and a dog\n")
        >>> store.add_files("texts", more, lines=True, memory="32MiB")["first_id"]
        2
        >>> store.remove_vectors("texts")
        """
        fields = {"dataset": name, "lines": lines}
        with self._store().job(memory, threads) as job:
            return self._run(job, "nearest add", fields, _files(paths, job), title=f"addition to {name!r}")

    def upsert_vectors(
        self,
        name: str,
        source: Vectors | ArrowStream,
        *,
        ids: Ids | None = None,
        bits: bool = False,
        column: str | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Replace vectors of a dataset by their ids, or add vectors with new ids.

        All vectors change at once: a search sees either all old vectors or all new ones.

        Parameters
        ----------
        name : str
            The name of the dataset; see `import_vectors`.
        source : path, numpy.ndarray or table
            Vectors with the dimensions and the element type of the dataset, in any form that `import_vectors`
            takes. A dataset that was imported from a table takes tables with the same columns.
        ids : sequence of int, numpy.ndarray or path, optional
            The id of each vector. A path is the path of a text file with the ids. It is not given if a column
            of the dataset has the ids, since the table then has them, too.
        bits : bool, default False
            If true, each byte has eight dimensions of one bit (``numpy.packbits``).
        column : str, optional
            The column of a table that has the vectors. By default the only column of lists of numbers.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``added`` and ``replaced`` are numbers of vectors. The other entries are those of `add_vectors`.

        Raises
        ------
        NotFoundError, InputError, FileError, BudgetError
            See `inshore.errors`. After an error, the dataset is unchanged.

        Examples
        --------
        >>> import numpy as np
        >>> import pyarrow as pa
        >>> _ = store.import_vectors(np.zeros((3, 2), np.float32), name="points", memory="16MiB")
        >>> ones = np.ones((2, 2), np.float32)
        >>> changed = store.upsert_vectors("points", ones, ids=[1, 7], memory="16MiB")
        >>> changed["replaced"], changed["added"], changed["next_id"]
        (1, 1, 8)
        >>> store.remove_vectors("points")

        A column of the table has the ids.

        >>> table = pa.table({"doc": ["a", "b"], "v": [[0.0, 1.0], [2.0, 3.0]], "year": [1999, 2001]})
        >>> _ = store.import_vectors(table, name="docs", id="doc", memory="32MiB")
        >>> new = pa.table({"doc": ["b", "c"], "v": [[5.0, 5.0], [6.0, 6.0]], "year": [2025, 2026]})
        >>> changed = store.upsert_vectors("docs", new, memory="32MiB")
        >>> changed["replaced"], changed["added"]
        (1, 1)
        >>> query = np.array([[5, 5]], np.float32)
        >>> found = store.nearest("docs", query, k=2, select=["year"], memory="32MiB").table()
        >>> found["id"].to_pylist(), found["year"].to_pylist()
        (['b', 'c'], [2025, 2026])
        >>> store.remove_vectors("docs")
        """
        with self._store().job(memory, threads) as job:
            listed, file = (None, []) if ids is None else _ids(ids)
            fields = {"dataset": name, "ids": listed, "bits": bits, "column": column}
            return self._run(
                job, "nearest upsert", fields, [_file(source, job), *file], title=f"replacement in {name!r}"
            )

    def remove_from_vectors(
        self,
        name: str,
        ids: Ids | Iterable[str],
        *,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Remove vectors from a dataset by their ids.

        `remove_vectors` removes a whole dataset.

        Parameters
        ----------
        name : str
            The name of the dataset; see `import_vectors`.
        ids : sequence of int or str, numpy.ndarray or path
            The ids of the vectors. If a column of the dataset has the ids, they are values of this column. A
            path is the path of a text file with the ids, and has each value of a column on its own line.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``taken`` is the number of vectors that were removed. ``absent`` is the number of ids whose
            vectors had been removed before. The other entries are those of `add_vectors`.

        Raises
        ------
        NotFoundError, InputError, FileError, BudgetError
            See `inshore.errors`. An id that no vector has ever had is an error. After an error, the dataset
            is unchanged.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.zeros((3, 2), np.float32), name="points", memory="16MiB")
        >>> removed = store.remove_from_vectors("points", [0, 2], memory="16MiB")
        >>> removed["taken"], removed["absent"]
        (2, 0)
        >>> store.nearest("points", np.zeros((1, 2), np.float32), memory="16MiB").table()["id"].to_pylist()
        [1]
        >>> store.remove_vectors("points")
        """
        with self._store().job(memory, threads) as job:
            listed, file = _ids_or_values(ids)
            fields = {"dataset": name, "ids": listed}
            return self._run(job, "nearest remove", fields, file, title=f"removal of vectors of {name!r}")

    def compact_vectors(
        self,
        name: str,
        *,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Free the space of removed vectors, and merge the layers of the index into its lists.

        The ids of the vectors stay the same. Lists of the index with more than twice the planned number of
        vectors are split by k-means. Vectors and index change at once, and running searches continue with the
        old data.

        Parameters
        ----------
        name : str
            The name of the dataset; see `import_vectors`.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``freed`` is the number of rows that were freed. ``lists`` is the number of lists in the rewritten
            index, and ``split`` the number of lists that were split. Both are None without rewritten lists.
            ``vectors``, ``next_id`` and ``bytes`` describe the dataset.

        Raises
        ------
        NotFoundError, InputError, FileError, BudgetError
            See `inshore.errors`. After an error, the dataset is unchanged.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.zeros((3, 2), np.float32), name="points", memory="16MiB")
        >>> _ = store.remove_from_vectors("points", [1], memory="16MiB")
        >>> compacted = store.compact_vectors("points", memory="16MiB")
        >>> compacted["freed"], compacted["vectors"], compacted["next_id"]
        (1, 2, 3)
        >>> store.remove_vectors("points")
        """
        fields = {"dataset": name}
        with self._store().job(memory, threads) as job:
            return self._run(job, "nearest compact", fields, [], title=f"compaction of {name!r}")

    def import_images(
        self,
        paths: Files,
        *,
        name: str,
        skip_errors: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        r"""Import PNG and JPEG files as vectors: one joint histogram of colours and edges for each image.

        The image is scaled to 128 x 128 pixels. Each pixel has four features: red, green, blue and edgeness,
        which is the magnitude of the gradient by the Sobel filters. Each feature has four levels. The vector
        has, as float32, the share of the pixels in each of the 256 combinations of levels. `nearest` computes
        the vectors of queries in the same way.

        Parameters
        ----------
        paths : path or sequence of paths
            Files, and folders of files with the extensions ``.png``, ``.jpg`` and ``.jpeg``. The files of a
            folder and its subfolders are sorted by path. The id of an image is its number in this order,
            counted from 0.
        name : str
            The name of the new dataset.
        skip_errors : bool, default False
            Skip malformed images, and count them. Otherwise a malformed image is an error.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``vectors``, ``dimensions``, ``element`` and ``bytes`` describe the dataset. ``skipped`` is the
            number of images that were skipped, and ``first_skipped`` is the error of the first one.

        Raises
        ------
        ExistsError
            If the store already has a dataset of that name.
        InputError
            For malformed images, and for folders without images. The message names the file.
        FileError, BudgetError
            See `inshore.errors`. A failed import leaves no dataset.

        Examples
        --------
        >>> import pathlib, struct, zlib
        >>> def chunk(kind, data):
        ...     return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        >>> def png(grey):
        ...     header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
        ...     data = chunk(b"IDAT", zlib.compress(bytes([0, grey])))
        ...     return b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b"")
        >>> folder = pathlib.Path("images")
        >>> folder.mkdir()
        >>> for name, grey in [("black.png", 0), ("white.png", 255), ("query.png", 250)]:
        ...     _ = (folder / name).write_bytes(png(grey))
        >>> images = store.import_images(folder, name="images", memory="32MiB")
        >>> images["vectors"], images["dimensions"]
        (3, 256)
        >>> store.nearest("images", folder / "query.png", k=3, memory="32MiB").table()["id"].to_pylist()
        [1, 2, 0]
        >>> store.remove_vectors("images")
        """
        fields = {"name": name, "content": "images", "skip_errors": skip_errors}
        return self._import_files(paths, name, fields, memory, threads)

    def import_documents(
        self,
        paths: Files,
        *,
        name: str,
        lines: bool = False,
        words: int = 8000,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        r"""Import texts as vectors: the counts of the words of a vocabulary in each text.

        The vocabulary consists of the most frequent words of all documents, in lower case; `count_words` has
        the same definition of a word. A count is a uint8 and does not rise above 255. `nearest` with
        ``metric="cosine"`` finds documents with similar words. It computes the vectors of queries in the same
        way.

        Parameters
        ----------
        paths : path or sequence of paths
            Files, and folders of files. Each file is a document. The files of a folder and its subfolders are
            sorted by path. The id of a document is its number in this order, counted from 0.
        name : str
            The name of the new dataset.
        lines : bool, default False
            If true, ``paths`` is one file, and each of its lines is a document.
        words : int, default 8000
            The largest number of words in the vocabulary. Each word is a dimension.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``vectors``, ``dimensions``, ``element`` and ``bytes`` describe the dataset.

        Raises
        ------
        ExistsError
            If the store already has a dataset of that name.
        InputError
            For documents without words.
        FileError, BudgetError
            See `inshore.errors`. A failed import leaves no dataset.

        Examples
        --------
        >>> import pathlib
        >>> texts = pathlib.Path("texts.txt")
        >>> _ = texts.write_text("the cat sat\nthe dog and the dog\n")
        >>> store.import_documents(texts, name="texts", lines=True, memory="32MiB")["dimensions"]
        5
        >>> query = pathlib.Path("query.txt")
        >>> _ = query.write_text("A dog")
        >>> found = store.nearest("texts", query, k=1, metric="cosine", memory="32MiB").table()
        >>> found["id"].to_pylist()
        [1]
        >>> store.remove_vectors("texts")
        """
        fields = {"name": name, "content": "documents", "lines": lines, "words": words}
        return self._import_files(paths, name, fields, memory, threads)

    def _import_files(
        self,
        paths: Files,
        name: str,
        fields: dict[str, Any],
        memory: str | int | None,
        threads: int | None,
    ) -> dict[str, Any]:
        """Import images or documents."""
        with self._store().job(memory, threads) as job:
            title = f"import of vectors {name!r}"
            return self._run(job, "nearest import content", fields, _files(paths, job), title=title)

    def index_vectors(
        self,
        name: str,
        *,
        metric: Literal["l2", "ip", "cosine", "hamming"] = "l2",
        lists: int | None = None,
        seed: int = 0,
        copies: int | None = None,
        codes: Literal[1, 2, 4] | None = None,
        lsh: bool = False,
        tables: int | None = None,
        bits: int | None = None,
        buckets: int | None = None,
        width: float | None = None,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Build the index of a dataset of vectors for approximate answers, or replace it.

        The vectors are divided into lists around centroids. `nearest` with ``recall`` reads only some of
        these lists. The index is a dataset of its own with the name ``name + ".index"``, which contains a
        copy of the vectors. With ``lsh``, the index consists of hash tables (locality-sensitive hashing),
        whose buckets contain the row numbers of vectors.

        Parameters
        ----------
        name : str
            The name of the dataset; see `import_vectors`.
        metric : str, default "l2"
            The metric of all searches with the index: ``"hamming"`` only with ``lsh``, ``"ip"`` only without.
        lists : int, optional
            The number of lists. By default an average list has 16 KiB, or 32 vectors if they are larger.
        seed : int, default 0
            The seed that determines which vectors are sampled for the training of centroids, and the hash
            functions.
        copies : int, optional
            Write additional lists with copies of the vectors near their borders, for the strategy
            ``"single"``. A list then has up to ``copies`` times the size of an average list (2 to 16), and
            all these lists together take up to about ``copies`` times the bytes of the vectors. For the same
            recall, the strategy ``"single"`` reads about a quarter of the lists. By default there are no
            copies.
        codes : int, optional
            Write codes of the vectors for the strategy ``"single"``, of this number of bits for each
            dimension: 1, 2 or 4 (RaBitQ). A query then estimates distances from codes, and reads and measures
            only the vectors that may be near enough. Codes pay for vectors of many dimensions. Lists then
            have more vectors. An index has copies or codes. By default there are no codes.
        lsh : bool, default False
            Build hash tables in the place of lists.
        tables, bits, buckets : int, optional
            The number of hash tables (8), the number of functions of a table (so many that a bucket has 32
            vectors on average), and the number of buckets of a table (2 to the power of ``bits``).
        width : float, optional
            The width of the cells of projections, for hash tables with ``"l2"``. By default it is twice the
            standard deviation of the projections.
        resume : bool, default False
            Keep the centroids and finished runs if the build of lists is interrupted, and resume from those
            of an earlier interrupted build of the same vectors with the same options.
        memory, threads
            The budget; see `Graph`. The index does not depend on the budget.

        Returns
        -------
        dict
            ``lists``, ``groups`` and ``bytes`` describe the index. The ``points`` of ``recall`` have the
            recall for several numbers of probed lists, measured on vectors of the dataset. With copies,
            ``copies`` has a ``recall`` of its own, and with codes ``codes`` has one. If the build resumed,
            ``resumed`` is the number of vectors that the interrupted build had sorted. ``unused`` is the
            reason why kept work was not used, if the options or the vectors are others. Hash tables have
            ``tables``, ``bits``, ``buckets`` and ``family``, and the recall for several numbers of probed
            buckets.

        Raises
        ------
        NotFoundError
            If the store has no vectors of that name.
        FileError, BudgetError
            See `inshore.errors`. After an error, an existing index is unchanged.
        InputError
            If an option of lists is given together with ``lsh``, or an option of hash tables without it.

        Examples
        --------
        >>> import numpy as np
        >>> points = np.random.default_rng(1).normal(size=(2000, 8)).astype(np.float32)
        >>> _ = store.import_vectors(points, name="points", memory="32MiB")
        >>> index = store.index_vectors("points", memory="32MiB")
        >>> [point["recall"] >= 0.95 for point in index["recall"]["points"]][-1]
        True
        >>> found = store.nearest("points", points[:1], k=3, recall=0.95, memory="32MiB").table()
        >>> found["id"].to_pylist()[0]
        0
        >>> tables = store.index_vectors("points", lsh=True, tables=4, memory="32MiB")
        >>> tables["family"], tables["tables"], tables["buckets"] == 2 ** tables["bits"]
        ('p_stable', 4, True)
        >>> found = store.nearest("points", points[:1], k=3, probes=16, memory="32MiB").table()
        >>> found["id"].to_pylist()[0]
        0
        >>> store.remove("points.index")
        >>> store.remove("points")
        """
        check_metric(metric)
        fields: dict[str, Any] = {"dataset": name, "metric": metric, "seed": seed, "resume": resume}
        fields |= {"lists": lists, "copies": copies, "codes": codes}
        hashed = {"tables": tables, "bits": bits, "buckets": buckets, "width": width}
        if lsh:
            fields["lsh"] = hashed
        elif given := [option for option, value in hashed.items() if value is not None]:
            raise InputError(f"{given[0]}: found without lsh, expected an option of inverted lists")
        with self._store().job(memory, threads) as job:
            return self._run(job, "nearest index", fields, [], title=f"index of {name!r}")

    def measure_recall(
        self,
        name: str,
        queries: Vectors | Files,
        *,
        sample: int = 200,
        k: int = 10,
        lines: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Measure the recall of an index on queries, and store the result in the index.

        `nearest` uses the stored result to choose the number of lists for its parameter ``recall``.

        Parameters
        ----------
        name : str
            The name of a dataset of vectors with an index; see `index_vectors`.
        queries : path, sequence of paths or numpy.ndarray
            The queries, in any form that `nearest` takes.
        sample : int, default 200
            The number of queries that are used. They are taken at equal distances from all queries.
        k : int, default 10
            The number of neighbours of each query.
        lines : bool, default False
            If true, ``queries`` is one file, and each of its lines is a query, for vectors of
            `import_documents`.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``points``, each with ``probes`` and ``recall``; ``k``; ``queries``, their number; and
            ``measured_seconds``, the time of the measurement in seconds since 1970.

        Raises
        ------
        NotFoundError, InputError, FileError, BudgetError
            See `inshore.errors`.

        Examples
        --------
        >>> import numpy as np
        >>> points = np.random.default_rng(1).normal(size=(2000, 8)).astype(np.float32)
        >>> _ = store.import_vectors(points, name="points", memory="32MiB")
        >>> _ = store.index_vectors("points", memory="32MiB")
        >>> store.measure_recall("points", points[:50], memory="32MiB")["queries"]
        50
        >>> store.remove("points.index")
        >>> store.remove("points")
        """
        fields = {"dataset": name, "sample": sample, "k": k, "lines": lines}
        with self._store().job(memory, threads) as job:
            title = f"recall of the index of {name!r}"
            return self._run(job, "nearest recall", fields, _files(queries, job), title=title)

    def nearest(
        self,
        name: str,
        queries: Vectors | Files,
        *,
        k: int = 10,
        metric: Metric = "l2",
        radius: float | None = None,
        recall: float | None = None,
        probes: int | None = None,
        strategy: Literal["single", "batch"] | None = None,
        where: str | None = None,
        select: Iterable[str] = (),
        lines: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Find the nearest vectors of each query: exactly, or with ``recall`` by an index.

        An exact answer equals that of brute force in float64, or in integers for integer elements. Ties go to
        the smaller id, and the answer does not depend on the budget. One pass over the vectors answers all
        queries that fit into the budget together.

        Parameters
        ----------
        name : str
            The name of the dataset; see `import_vectors`.
        queries : path, sequence of paths or numpy.ndarray
            The queries are vectors in any form that `import_vectors` takes, except a table. For vectors of
            `import_images` or `import_documents`, they are images or texts.
        k : int, default 10
            The largest number of neighbours of each query.
        metric : str, default "l2"
            ``"l2"`` (Euclidean distance), ``"ip"`` (inner product, in descending order), ``"cosine"`` (1 -
            cosine), ``"hamming"`` (the number of different bits, or of different bytes for vectors of bytes)
            or ``"jaccard"`` (for vectors of bits).
        radius : float, optional
            The largest distance of a neighbour. For ``"ip"`` it is the smallest inner product.
        recall : float, optional
            Answer from the index (`index_vectors`), with the smallest number of lists that has at least this
            recall by the table of the index. If the vectors have no index, the answer is exact.
        probes : int, optional
            Answer from the index, and read this number of lists, or buckets of hash tables, for each query.
            It replaces ``recall``.
        strategy : str, optional
            The way in which lists are read, ``"single"`` or ``"batch"``. By default the cheaper one is
            chosen. The answer is the same, unless the index has lists with copies, which only ``"single"``
            reads. Hash tables have no strategies.
        where : str, optional
            An SQL expression over the columns of vectors that were imported from a table. Only vectors for
            which the expression is true are answers. With an expression, the budget must be at least 24 MiB.
        select : iterable of str, optional
            The columns of the dataset that are added to the answer.
        lines : bool, default False
            If true, ``queries`` is one file, and each of its lines is a query, for vectors of
            `import_documents`.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Result
            The columns ``query``, ``rank`` (from 1), ``id`` and ``distance``, then the columns ``select``.

        Raises
        ------
        NotFoundError
            If the store has no vectors of that name.
        InputError
            For queries with another number of dimensions, and for values that the element type of the vectors
            cannot hold.
        FileError, BudgetError
            See `inshore.errors`.

        Examples
        --------
        >>> import numpy as np
        >>> points = np.array([[0, 0], [3, 4], [1, 0]], np.float32)
        >>> _ = store.import_vectors(points, name="points", memory="16MiB")
        >>> origin = np.array([[0, 0]], np.float32)
        >>> found = store.nearest("points", origin, k=3, radius=4.0, memory="16MiB").table()
        >>> found["id"].to_pylist(), found["distance"].to_pylist()
        ([0, 2], [0.0, 1.0])
        >>> store.remove("points")

        >>> import pyarrow as pa
        >>> places = pa.table({"at": points.tolist(), "name": ["here", "there", "near"]})
        >>> _ = store.import_vectors(places, name="places", memory="16MiB")
        >>> found = store.nearest("places", origin, where="name <> 'here'", select=["name"], memory="64MiB")
        >>> found.table()["name"].to_pylist()
        ['near', 'there']
        >>> store.remove("places")
        """
        check_metric(metric)
        check_vectors("queries", queries)
        fields: dict[str, Any] = {"dataset": name, "k": k, "metric": metric, "radius": radius}
        fields |= {"recall": recall, "probes": probes, "strategy": strategy, "lines": lines}
        fields |= {"where": where, "select": column_list("select", select)}

        def start(job: _native.Job, output: StrPath | None) -> _native.Run:
            return self._start(job, "nearest query", fields, _files(queries, job), output)

        title = f"nearest query of {name!r} in {self!r}"
        return Result(title, lambda: self._store().job(memory, threads), start, counted="rows", gives="file")

    def vectors(
        self,
        name: str,
        *,
        in_memory: bool = False,
        calls: int | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> VectorSearcher:
        """Open vectors for many searches, which then cost much less than as many calls of `nearest`.

        Parameters
        ----------
        name : str
            The vectors; see `import_vectors`.
        in_memory : bool, default False
            Read all vectors into the memory of the budget, so that an exact search runs at the speed of the
            memory. The lists of the index are read too if half of the memory that is left has room for them.
        calls : int, optional
            The number of calls that run at once, each with an equal share of the memory; others wait. By
            default the number of threads, but each share is at least 16 MiB. With 1, a batch of many queries
            has all memory, and needs fewer passes.
        memory, threads
            The budget; see `Graph`. It is in use until the searcher is closed.

        Returns
        -------
        VectorSearcher
            The open vectors, also a context manager.

        Raises
        ------
        NotFoundError
            If there are no vectors of that name.
        BudgetError
            If the memory is too small, also for ``in_memory``: the message names the memory that is enough.
        DamagedError, FileError
            See `inshore.errors`.

        Examples
        --------
        >>> import numpy as np
        >>> points = np.array([[0, 0], [3, 4], [1, 0]], np.float32)
        >>> _ = store.import_vectors(points, name="points", memory="16MiB")
        >>> with store.vectors("points", in_memory=True, memory="32MiB") as searcher:
        ...     searcher
        ...     [int(searcher.search(point, k=1).ids[0, 0]) for point in points]
        <inshore.VectorSearcher 'points': 3 vectors of 2 f32>
        [0, 1, 2]
        >>> store.remove_vectors("points")
        """
        if calls is not None and not 1 <= calls <= _CALLS_MAX:
            raise InputError(f"calls is {calls}: expected 1 to {_CALLS_MAX}")
        native = _native.Searcher(
            self._store(), name, in_memory=in_memory, calls=calls, memory=memory, threads=threads
        )
        return VectorSearcher(native)

    def join_vectors(
        self,
        queries: str,
        name: str,
        *,
        k: int = 10,
        metric: Metric = "l2",
        radius: float | None = None,
        recall: float | None = None,
        probes: int | None = None,
        strategy: Literal["single", "batch"] | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Find the nearest vectors of one dataset for each vector of another dataset.

        The answer is that of `nearest` with the vectors of ``queries`` as queries. As many queries as fit
        into the budget form a block, and each block takes one pass over the vectors of ``name``.

        Parameters
        ----------
        queries : str
            The name of the dataset for whose vectors neighbours are found; see `import_vectors`.
        name : str
            The name of the dataset in which neighbours are found.
        k, metric, radius, recall, probes, strategy
            See `nearest`.
        memory, threads
            The budget; see `Graph`. The answer does not depend on the budget.

        Returns
        -------
        Result
            The columns ``query`` (the id in ``queries``), ``rank`` (from 1), ``id`` (in ``name``) and
            ``distance``.

        Raises
        ------
        NotFoundError
            If the store has no vectors of one of the names.
        InputError
            If the numbers of dimensions differ, and for values that the element type of ``name`` cannot hold.
        FileError, BudgetError
            See `inshore.errors`.

        Examples
        --------
        >>> import numpy as np
        >>> for name, points in [("new", [[0, 1]]), ("old", [[0, 0], [3, 4], [0, 1]])]:
        ...     _ = store.import_vectors(np.array(points, np.float32), name=name, memory="16MiB")
        >>> found = store.join_vectors("new", "old", k=2, memory="16MiB").table()
        >>> found["id"].to_pylist(), found["distance"].to_pylist()
        ([2, 0], [0.0, 1.0])
        >>> store.remove_vectors("new")
        >>> store.remove_vectors("old")
        """
        check_metric(metric)
        fields = {"queries": queries, "dataset": name, "k": k, "metric": metric, "radius": radius}
        fields |= {"recall": recall, "probes": probes, "strategy": strategy}
        title = f"nearest join of {queries!r} and {name!r} in {self!r}"
        return self._rows("nearest join", fields, title, memory, threads)

    def neighbour_graph(
        self,
        name: str,
        *,
        k: int = 10,
        metric: Metric = "l2",
        radius: float | None = None,
        recall: float | None = None,
        probes: int | None = None,
        strategy: Literal["single", "batch"] | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Find the nearest other vectors of each vector: the k-nearest-neighbour graph.

        A vector is not its own neighbour, but another vector with equal elements is.

        Parameters
        ----------
        name : str
            The name of the dataset; see `import_vectors`.
        k, metric, radius, recall, probes, strategy
            See `nearest`.
        memory, threads
            The budget; see `Graph`. The answer does not depend on the budget.

        Returns
        -------
        Result
            The columns ``query`` (the id of a vector), ``rank`` (from 1), ``id`` and ``distance``.

        Raises
        ------
        NotFoundError, InputError, FileError, BudgetError
            See `inshore.errors`.

        Examples
        --------
        >>> import numpy as np
        >>> points = np.array([[0, 0], [3, 4], [1, 0]], np.float32)
        >>> _ = store.import_vectors(points, name="points", memory="16MiB")
        >>> found = store.neighbour_graph("points", k=1, memory="16MiB").table()
        >>> found["query"].to_pylist(), found["id"].to_pylist()
        ([0, 1, 2], [2, 2, 0])
        >>> store.remove_vectors("points")
        """
        check_metric(metric)
        fields = {"dataset": name, "k": k, "metric": metric, "radius": radius}
        fields |= {"recall": recall, "probes": probes, "strategy": strategy}
        return self._rows("nearest graph", fields, f"nearest graph of {name!r} in {self!r}", memory, threads)

    def near_duplicates(
        self,
        name: str,
        *,
        cosine: float | None = None,
        radius: float | None = None,
        metric: Metric | None = None,
        groups: bool = False,
        recall: float | None = None,
        probes: int | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Find all pairs of vectors within a distance, or the groups that these pairs form.

        The number of pairs of a vector is not limited. The pairs are sorted, and on flash if the memory is
        too small.

        Parameters
        ----------
        name : str
            The name of the dataset; see `import_vectors`.
        cosine : float, optional
            The smallest cosine of a pair. It replaces ``metric`` and ``radius``.
        radius : float, optional
            The largest distance of a pair. For ``"ip"`` it is the smallest inner product.
        metric : str, optional
            The metric, as in `nearest`. The default is ``"l2"``.
        groups : bool, default False
            Return groups instead of pairs, with one row for each vector that has a near-duplicate. The group
            is the smallest id of all vectors that pairs connect with the vector. To keep one vector of each
            group, drop the vectors whose id is not their group.
        recall, probes
            See `nearest`. With an index, a pair is found if one of its vectors lies in a list that the other
            vector probes.
        memory, threads
            The budget; see `Graph`. The answer does not depend on the budget.

        Returns
        -------
        Result
            The columns ``id``, ``duplicate`` and ``distance``, with ``id`` < ``duplicate``. Each pair occurs
            once, and the rows are sorted by both ids. With ``groups``, the columns are ``id`` and ``group``.

        Raises
        ------
        NotFoundError, InputError, FileError, BudgetError
            See `inshore.errors`.

        Examples
        --------
        >>> import numpy as np
        >>> points = np.array([[0, 0], [3, 4], [1, 0], [6, 8]], np.float32)
        >>> _ = store.import_vectors(points, name="points", memory="16MiB")
        >>> pairs = store.near_duplicates("points", radius=1.0, memory="16MiB").table()
        >>> pairs["id"].to_pylist(), pairs["duplicate"].to_pylist()
        ([0], [2])
        >>> grouped = store.near_duplicates("points", cosine=0.99, groups=True, memory="16MiB").table()
        >>> grouped["id"].to_pylist(), grouped["group"].to_pylist()
        ([1, 3], [1, 1])
        >>> store.remove_vectors("points")
        """
        check_metric(metric)
        fields = {"dataset": name, "cosine": cosine, "radius": radius, "metric": metric, "groups": groups}
        fields |= {"recall": recall, "probes": probes}
        title = f"near-duplicates of {name!r} in {self!r}"
        return self._rows("nearest dedup", fields, title, memory, threads)

    def _rows(
        self,
        operation: str,
        fields: dict[str, Any],
        title: str,
        memory: str | int | None,
        threads: int | None,
    ) -> Result:
        """Return the rows of an operation that has no inputs."""

        def start(job: _native.Job, output: StrPath | None) -> _native.Run:
            return self._start(job, operation, fields, [], output)

        return Result(title, lambda: self._store().job(memory, threads), start, counted="rows", gives="file")


def _is_table(path: StrPath) -> bool:
    """Return true if a path is that of a table."""
    return os.fspath(path).endswith((".parquet", ".arrow"))


def _files(source: Vectors | ArrowStream | Files, job: _native.Job) -> list[StrPath]:
    """Return the paths of the inputs. An array or a table becomes one file."""
    check_vectors("vectors", source)
    if isinstance(source, (list, tuple)):
        return list(source)
    return [_file(source, job)]  # type: ignore[arg-type]


def _file(source: Vectors | ArrowStream, job: _native.Job) -> StrPath:
    """Return the path of the input. An array or a table is written to a file of the job."""
    check_vectors("vectors", source)
    if isinstance(source, ArrowStream):
        return _table_file(source, job)
    if not hasattr(source, "__array_interface__") and not isinstance(source, ArrayOnFile):
        return source
    import numpy as np  # noqa: PLC0415

    path = job.scratch_path("vectors.npy")
    if hasattr(source, "__array_interface__"):
        np.save(path, np.ascontiguousarray(source), allow_pickle=False)
    elif isinstance(source, ArrayOnFile):
        _write_array(source, path)
    return path


def _write_array(array: ArrayOnFile, path: StrPath) -> None:
    """Write an array to a file of NumPy, in blocks of about 1 MiB."""
    import numpy as np  # noqa: PLC0415

    element = np.dtype(array.dtype)
    row_bytes = element.itemsize * math.prod(array.shape[1:])
    rows = max(1, (1 << 20) // max(1, row_bytes))
    header = {
        "descr": np.lib.format.dtype_to_descr(element),
        "fortran_order": False,
        "shape": tuple(array.shape),
    }
    with Path(path).open("wb") as out:
        np.lib.format.write_array_header_1_0(out, header)
        for first in range(0, array.shape[0], rows):
            out.write(np.ascontiguousarray(array[first : first + rows], dtype=element).tobytes())


def _table_file(source: ArrowStream, job: _native.Job) -> StrPath:
    """Write a table to a file of the job, in batches of about 1 MiB."""
    import pyarrow as pa  # noqa: PLC0415

    table = pa.table(source)
    path = job.scratch_path("vectors.arrow")
    rows = max(1, min(8192, (1 << 20) * table.num_rows // max(1, table.nbytes)))
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def _ids_or_values(ids: Ids | Iterable[str]) -> tuple[list[int | str] | None, list[StrPath]]:
    """Return ids as a list of numbers and values of a column, or the path of the file that has them."""
    if isinstance(ids, str | os.PathLike):
        return None, [ids]
    return [each if isinstance(each, str) else int(each) for each in ids], []


def _ids(ids: Ids) -> tuple[list[int] | None, list[StrPath]]:
    """Return ids as a list, or the path of the file that has them."""
    if isinstance(ids, str | os.PathLike):
        return None, [ids]
    return [int(number) for number in ids], []
