"""Nearest neighbours: datasets of vectors in a store, and searches in them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from inshore import _native
from inshore.results import Result, StrPath
from inshore.sources import ArrowStream
from inshore.verbs.target import Target, whole

Metric = Literal["l2", "ip", "cosine", "hamming", "jaccard"]
"""The distance between two vectors."""

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import numpy.typing as npt

    Vectors = StrPath | npt.NDArray[np.generic]
    Files = StrPath | Sequence[StrPath]
    Ids = StrPath | Iterable[int] | npt.NDArray[np.integer[Any]]


class SpreadVectors(Target):
    """Verbs on vectors that are spread over nodes."""

    def import_vectors(
        self,
        source: Vectors,
        *,
        name: str,
        bits: bool = False,
        copies: int = 1,
        piece: str | int | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Divide vectors of a file or an array into shards on the nodes, completely or not at all.

        The id of a vector is its number in the file, from 0, on any number of nodes.

        Parameters
        ----------
        source : path or numpy.ndarray
            Vectors in any form that `Store.import_vectors` takes, except tables.
        name : str
            The name of the new dataset.
        bits : bool, default False
            Each byte is eight dimensions of one bit (``numpy.packbits``).
        copies : int, default 1
            The number of nodes that hold each shard.
        piece : str or int, optional
            The approximate size of a shard; the default depends on the size of the vectors.
        memory, threads
            The budget; see `Graph`. The call uses 4 MiB for each node and 9 MiB more.

        Returns
        -------
        dict
            ``vectors``, ``dimensions``, ``element``, ``bytes`` and ``rounded``, as `Store.import_vectors`.

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
        ...     _ = nodes.rm("spread")
        >>> found["id"].to_pylist(), found["distance"].to_pylist()
        ([0, 2], [0.0, 1.0])
        """
        fields = {
            "name": name,
            "bits": bits,
            "copies": whole("copies", copies, 255),
            "piece_bytes": None if piece is None else _native.size(piece),
        }
        is_path = not hasattr(source, "__array_interface__")
        with _native.Job.plain(memory, threads) if is_path else self._store().job(memory, threads) as job:
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
        ...     for part in ("spread", "spread.index", "spread.index.lists"):
        ...         _ = nodes.rm(part)
        >>> index["vectors"], found["id"].to_pylist()[0]
        (2000, 0)
        """
        fields = {"dataset": name, "metric": metric, "lists": lists, "seed": seed}
        with _native.Job.plain(memory, threads) as job:
            return self._run(job, "nearest index", fields, [], title=f"index of {name!r}")

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
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Result
            The columns ``query``, ``rank`` (from 1), ``id`` and ``distance``.

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
        ...     _ = nodes.rm("spread")
        >>> found["id"].to_pylist()
        [0]
        """
        fields: dict[str, Any] = {"dataset": name, "k": k, "metric": metric, "radius": radius}
        fields |= {"recall": recall, "probes": probes}

        def start(job: _native.Job, output: StrPath | None) -> _native.Run:
            return self._start(job, "nearest query", fields, [_file(queries, job)], output)

        title = f"nearest query of {name!r} in {self!r}"
        return Result(title, lambda: self._store().job(memory, threads), start, counted="rows", gives="file")


class StoredVectors(Target):
    """Verbs on the vectors of a store."""

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
            ``.b1bin``, ``.npy``), or an array of vectors and dimensions, of float32, float16, bfloat16 (of
            ml_dtypes), uint8 or int8. float64 is rounded to float32, and int32 must fit float32 exactly.
            The id of a vector is its number, from 0. A table (``.parquet``, ``.arrow``, pyarrow, pandas,
            polars) has the vectors in a column of lists; the other columns are kept for ``where`` and
            ``select`` of `nearest`.
        name : str
            The name of the new dataset.
        bits : bool, default False
            Each byte is eight dimensions of one bit (``numpy.packbits``).
        column : str, optional
            The column of a table that has the vectors, if several columns are lists.
        id : str, optional
            The column of a table whose values, integers or texts that occur once, are answered as ids.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``vectors``, ``dimensions``, ``element`` and ``bytes``; ``rounded`` is the number of elements that
            were rounded. For a table also ``columns``, the names of the columns that were kept, and
            ``left_out``, those of nested columns, which were not.

        Raises
        ------
        ExistsError
            If a dataset of that name exists already.
        InputError
            For NaN, infinities and malformed files; the message names the vector and the dimension.
        FileError, BudgetError
            See `inshore.errors`. No partial dataset is left.

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
        source: Vectors,
        *,
        bits: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Add vectors of a file or an array to a dataset.

        Their ids follow the largest id that was used. The vectors survive a power loss after the return.

        Parameters
        ----------
        name : str
            The vectors; see `import_vectors`.
        source : path or numpy.ndarray
            Vectors of the same dimensions and elements, in any form that `import_vectors` takes.
        bits : bool, default False
            Each byte is eight dimensions of one bit (``numpy.packbits``).
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``added``, ``first_id``, ``rounded``; and ``vectors`` (rows), ``removed`` and ``next_id`` of the
            dataset.

        Raises
        ------
        NotFoundError, InputError, FileError, BudgetError
            See `inshore.errors`. Nothing is added then.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.zeros((3, 2), np.float32), name="points", memory="16MiB")
        >>> store.add_vectors("points", np.ones((2, 2), np.float32), memory="16MiB")["first_id"]
        3
        >>> store.remove_vectors("points")
        """
        fields = {"dataset": name, "bits": bits}
        with self._store().job(memory, threads) as job:
            return self._run(job, "nearest add", fields, [_file(source, job)], title=f"addition to {name!r}")

    def upsert_vectors(
        self,
        name: str,
        source: Vectors,
        *,
        ids: Ids,
        bits: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Replace vectors by their ids, or add them.

        All vectors change at once: a search sees the old ones or the new ones.

        Parameters
        ----------
        name : str
            The vectors; see `import_vectors`.
        source : path or numpy.ndarray
            Vectors of the same dimensions and elements, in any form that `import_vectors` takes.
        ids : sequence of int, numpy.ndarray or path
            The id of each vector; a path is that of a text file of numbers.
        bits : bool, default False
            Each byte is eight dimensions of one bit (``numpy.packbits``).
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``added`` and ``replaced``; the rest as `add_vectors`.

        Raises
        ------
        NotFoundError, InputError, FileError, BudgetError
            See `inshore.errors`. Nothing is changed then.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.zeros((3, 2), np.float32), name="points", memory="16MiB")
        >>> ones = np.ones((2, 2), np.float32)
        >>> changed = store.upsert_vectors("points", ones, ids=[1, 7], memory="16MiB")
        >>> changed["replaced"], changed["added"], changed["next_id"]
        (1, 1, 8)
        >>> store.remove_vectors("points")
        """
        with self._store().job(memory, threads) as job:
            listed, file = _ids(ids)
            fields = {"dataset": name, "ids": listed, "bits": bits}
            return self._run(
                job, "nearest upsert", fields, [_file(source, job), *file], title=f"replacement in {name!r}"
            )

    def remove_from_vectors(
        self,
        name: str,
        ids: Ids,
        *,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Remove vectors of a dataset by their ids; `remove_vectors` removes the dataset.

        Parameters
        ----------
        name : str
            The vectors; see `import_vectors`.
        ids : sequence of int, numpy.ndarray or path
            The ids; a path is that of a text file of numbers.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``taken``: the number of vectors that were removed; ``absent``: that of ids whose vectors had been
            removed before; the rest as `add_vectors`.

        Raises
        ------
        NotFoundError, InputError, FileError, BudgetError
            See `inshore.errors`. An id that no vector has had is an error. Nothing is removed then.

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
            listed, file = _ids(ids)
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

        Ids stay, and the centroids of the index too. Vectors and index change at once; running searches are
        not disturbed.

        Parameters
        ----------
        name : str
            The vectors; see `import_vectors`.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``freed``: the number of rows that were freed; ``lists``: that of the lists that were written, or
            None; and ``vectors``, ``next_id`` and ``bytes`` of the dataset.

        Raises
        ------
        NotFoundError, InputError, FileError, BudgetError
            See `inshore.errors`. Nothing is changed then.

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
        r"""Import PNG and JPEG files as vectors: a joint histogram of colours and edges for each.

        The image is scaled to 128 x 128 pixels. Each pixel has four levels of red, green, blue and edgeness
        (the gradient that the Sobel filters find), and the vector has the share of the pixels in each of the
        256 combinations, as float32. `nearest` computes queries in the same way.

        Parameters
        ----------
        paths : path or sequence of paths
            Files, and folders of files with the endings ``.png``, ``.jpg`` and ``.jpeg``. The id of an image
            is its number, by folders in the order of paths.
        name : str
            The name of the new dataset.
        skip_errors : bool, default False
            Leave malformed images out, and count them.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``vectors``, ``dimensions``, ``element`` and ``bytes``; ``skipped`` is the number of images that
            were left out, and ``first_skipped`` the reason of the first.

        Raises
        ------
        ExistsError
            If a dataset of that name exists already.
        InputError
            For malformed images, and for folders without images; the message names the file.
        FileError, BudgetError
            See `inshore.errors`. No partial dataset is left.

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
        r"""Import texts as vectors: the counts of the words of a vocabulary for each.

        The vocabulary consists of the most frequent words of all documents, in lower case, as
        `count_words` finds them. A count is a uint8 and stays at 255. `nearest` with ``metric="cosine"``
        finds documents of the same words, and computes queries in the same way.

        Parameters
        ----------
        paths : path or sequence of paths
            Files and folders of files. Each file is a document; the id is its number, by folders in the
            order of paths.
        name : str
            The name of the new dataset.
        lines : bool, default False
            Each line of the one file is a document.
        words : int, default 8000
            The largest number of words of the vocabulary, which is that of the dimensions.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``vectors``, ``dimensions``, ``element`` and ``bytes``.

        Raises
        ------
        ExistsError
            If a dataset of that name exists already.
        InputError
            For documents without words.
        FileError, BudgetError
            See `inshore.errors`. No partial dataset is left.

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
        metric: Literal["l2", "ip", "cosine"] = "l2",
        lists: int | None = None,
        seed: int = 0,
        copies: int | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> dict[str, Any]:
        """Build the index of vectors for approximate answers, or build it again.

        The vectors are cut into lists around centroids, and `nearest` with ``recall`` reads only some lists.
        The index is a dataset of its own, ``name + ".index"``, with a copy of the vectors.

        Parameters
        ----------
        name : str
            The vectors; see `import_vectors`.
        metric : str, default "l2"
            The metric of all searches with the index.
        lists : int, optional
            The number of lists; by default as many as have 16 KiB, or 32 vectors.
        seed : int, default 0
            The number from which the samples of the training follow.
        copies : int, optional
            Write lists with copies of vectors near their borders, for the strategy ``"single"``. A list has
            up to this number of times the size of an average list (2 to 16), and all lists take up to about
            this number of times the bytes of the vectors. Single queries read about a quarter of the lists.
            By default there are no copies.
        memory, threads
            The budget; see `Graph`. The lists do not depend on it.

        Returns
        -------
        dict
            ``lists``, ``groups``, ``bytes``, and ``recall``: its ``points`` have the recall by the number of
            lists probed, measured on vectors of the dataset. With copies also ``copies``, which has a
            ``recall`` of its own.

        Raises
        ------
        NotFoundError
            If there are no vectors of that name.
        FileError, BudgetError
            See `inshore.errors`. The former index, if any, is left.

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
        >>> store.remove("points.index")
        >>> store.remove("points")
        """
        fields = {"dataset": name, "metric": metric, "lists": lists, "seed": seed, "copies": copies}
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
        """Measure the recall of an index on queries, and keep it in the index.

        `nearest` chooses the number of lists for ``recall`` by this table.

        Parameters
        ----------
        name : str
            The vectors, which have an index; see `index_vectors`.
        queries : path, sequence of paths or numpy.ndarray
            The queries, in any form that `nearest` takes.
        sample : int, default 200
            The number of queries that are used, at equal distances.
        k : int, default 10
            The number of neighbours of each query.
        lines : bool, default False
            Each line of the one file is a query, for vectors of `import_documents`.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        dict
            ``points`` with ``probes`` and ``recall``, ``k``, ``queries``, ``measured_seconds`` (since 1970).

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
        """Find the nearest vectors of each query: exactly, or with ``recall`` from an index.

        The answer equals brute force in float64 (for bytes: in integers), ties go to the smaller id, and it
        does not depend on the budget. One pass over the vectors answers all queries that fit the budget.

        Parameters
        ----------
        name : str
            The vectors; see `import_vectors`.
        queries : path, sequence of paths or numpy.ndarray
            The queries, in any form that `import_vectors` takes; images or texts, for vectors of
            `import_images` or `import_documents`.
        k : int, default 10
            The largest number of neighbours of each query.
        metric : str, default "l2"
            ``"l2"`` (Euclidean distance), ``"ip"`` (inner product, falling), ``"cosine"`` (1 - cosine),
            ``"hamming"`` (bits that differ; bytes, for vectors of bytes) or ``"jaccard"`` (bits).
        radius : float, optional
            Only neighbours up to this distance; for ``"ip"`` from this inner product on.
        recall : float, optional
            Answer from the index (`index_vectors`) with this recall or more, by its table. Without an index,
            the answer is exact.
        probes : int, optional
            Answer from the index, and probe so many lists for each query.
        strategy : str, optional
            How lists are read: ``"single"``, ``"batch"``; the cheaper one by default. The answer is the same.
        where : str, optional
            An SQL expression over the columns of vectors that were imported from a table. Only vectors for
            which it is true are answers. The budget is at least 32 MiB then.
        select : iterable of str, optional
            Columns of the vectors that the answer has besides its own.
        lines : bool, default False
            Each line of the one file is a query, for vectors of `import_documents`.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Result
            The columns ``query``, ``rank`` (from 1), ``id`` and ``distance``, then those of ``select``.

        Raises
        ------
        NotFoundError
            If there are no vectors of that name.
        InputError
            For queries of other dimensions, and for values that the elements of the vectors cannot hold.
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
        fields: dict[str, Any] = {"dataset": name, "k": k, "metric": metric, "radius": radius}
        fields |= {"recall": recall, "probes": probes, "strategy": strategy, "lines": lines}
        fields |= {"where": where, "select": list(select)}

        def start(job: _native.Job, output: StrPath | None) -> _native.Run:
            return self._start(job, "nearest query", fields, _files(queries, job), output)

        title = f"nearest query of {name!r} in {self!r}"
        return Result(title, lambda: self._store().job(memory, threads), start, counted="rows", gives="file")

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
        """Find the nearest vectors of one dataset for each vector of another one.

        The answer is that of `nearest` with the vectors of ``queries`` as queries. Vectors of ``queries``
        that fit the budget are one block, and each block is one pass over the vectors of ``name``.

        Parameters
        ----------
        queries : str
            The vectors for which neighbours are found; see `import_vectors`.
        name : str
            The vectors that are neighbours.
        k, metric, radius, recall, probes, strategy
            As of `nearest`.
        memory, threads
            The budget; see `Graph`. The answer does not depend on it.

        Returns
        -------
        Result
            The columns ``query`` (the id in ``queries``), ``rank`` (from 1), ``id`` (in ``name``) and
            ``distance``.

        Raises
        ------
        NotFoundError
            If there are no vectors of one of the names.
        InputError
            If the dimensions differ, and for values that the elements of ``name`` cannot hold.
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

        A vector is no neighbour of itself, but vectors that are equal to it are.

        Parameters
        ----------
        name : str
            The vectors; see `import_vectors`.
        k, metric, radius, recall, probes, strategy
            As of `nearest`.
        memory, threads
            The budget; see `Graph`. The answer does not depend on it.

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
        """Find all pairs of vectors within a distance, or groups of them.

        No number of neighbours limits the pairs of a vector; they are sorted on flash.

        Parameters
        ----------
        name : str
            The vectors; see `import_vectors`.
        cosine : float, optional
            Pairs whose cosine is at least this; in the place of ``metric`` and ``radius``.
        radius : float, optional
            Pairs up to this distance; for ``"ip"`` from this inner product on.
        metric : str, optional
            As of `nearest`; ``"l2"`` by default.
        groups : bool, default False
            Return groups: one row for each vector that has a near-duplicate. The group is the smallest id of
            all vectors that pairs connect. To keep one vector of each group, drop those whose id is not
            their group.
        recall, probes
            As of `nearest`: with an index, pairs of which one vector lies in a list that the other one
            probes.
        memory, threads
            The budget; see `Graph`. The answer does not depend on it.

        Returns
        -------
        Result
            The columns ``id``, ``duplicate`` and ``distance``, with ``id`` < ``duplicate``, each pair once
            and in order; with ``groups`` the columns ``id`` and ``group``.

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
        """Return the rows of an operation without inputs."""

        def start(job: _native.Job, output: StrPath | None) -> _native.Run:
            return self._start(job, operation, fields, [], output)

        return Result(title, lambda: self._store().job(memory, threads), start, counted="rows", gives="file")

    def list_vectors(self) -> list[dict[str, Any]]:
        """List the vectors, with their indexes.

        Returns
        -------
        list of dict
            What `describe_vectors` returns, for all vectors in the order of names.

        Examples
        --------
        >>> import numpy as np
        >>> _ = store.import_vectors(np.zeros((3, 2), np.float32), name="points", memory="16MiB")
        >>> [(each["name"], each["vectors"]) for each in store.list_vectors()]
        [('points', 3)]
        >>> store.remove_vectors("points")
        """
        with self._store().job("32MiB", 1) as job:
            listed = self._run(job, "nearest ls", {}, [], title="list of vectors")
        datasets: list[dict[str, Any]] = listed["datasets"]
        return datasets

    def describe_vectors(self, name: str) -> dict[str, Any]:
        """Describe vectors and their index. No vectors are read.

        Parameters
        ----------
        name : str
            The vectors.

        Returns
        -------
        dict
            ``name``, ``vectors``, ``dimensions``, ``element``, ``bytes`` and ``index``: None, or a dict with
            the result of `index_vectors` without the plan. ``index_error`` has the reason if an index cannot
            be used.

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
        with self._store().job("32MiB", 1) as job:
            return self._run(job, "nearest info", {}, [name], title=f"properties of vectors {name!r}")

    def remove_vectors(self, name: str, *, index: bool = False) -> None:
        """Remove vectors with their index, or the index alone.

        Parameters
        ----------
        name : str
            The vectors.
        index : bool, default False
            Remove only the index.

        Raises
        ------
        NotFoundError
            If there are no vectors of that name.
        InputError
            If only the index shall be removed, and there is none; and for a dataset of another kind.

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
        with self._store().job("32MiB", 1) as job:
            self._run(job, "nearest rm", {"index": index}, [name], title=f"removal of vectors {name!r}")


def _files(source: Vectors | ArrowStream | Files, job: _native.Job) -> list[StrPath]:
    """Return the inputs: paths, or the file of an array."""
    if isinstance(source, (list, tuple)):
        return list(source)
    return [_file(source, job)]  # type: ignore[arg-type]


def _file(source: Vectors | ArrowStream, job: _native.Job) -> StrPath:
    """Return the file of vectors; an array or a table is written to a file of the job."""
    if isinstance(source, ArrowStream):
        return _table_file(source, job)
    if not hasattr(source, "__array_interface__"):
        return source
    import numpy as np  # noqa: PLC0415

    array = np.ascontiguousarray(source)
    path = job.scratch_path("vectors.npy")
    np.save(path, array, allow_pickle=False)
    return path


def _table_file(source: ArrowStream, job: _native.Job) -> StrPath:
    """Write a table to a file of the job, in small batches."""
    import pyarrow as pa  # noqa: PLC0415

    table = pa.table(source)
    path = job.scratch_path("vectors.arrow")
    rows = max(1, min(8192, (1 << 20) * table.num_rows // max(1, table.nbytes)))
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def _ids(ids: Ids) -> tuple[list[int] | None, list[StrPath]]:
    """Return ids as a list, or the input that has them."""
    if isinstance(ids, str | os.PathLike):
        return None, [ids]
    return [int(number) for number in ids], []
