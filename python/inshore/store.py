"""The store, and how graphs come into it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast, overload

import pyarrow as pa

from inshore import _native
from inshore.errors import InputError
from inshore.graph import Graph, GraphInfo
from inshore.results import Result, StrPath
from inshore.results import deliver as rows_of
from inshore.tables import ArrowStream, Source, Written, deliver, keys_of, named_tables, paths_of


class Store:
    """A folder of named graphs. Any number of processes may use it at once.

    Parameters
    ----------
    path : path, optional
        The folder; made where there is none. By default ``$INSHORE_STORE``, else ``inshore`` in the user's
        data directory.

    Raises
    ------
    InputError
        If the folder holds something else.
    DamagedError
        If it is a store that cannot be read.
    FileError
        If the system refuses.

    Examples
    --------
    >>> store = inshore.Store("my-store")
    >>> store.graphs()
    []
    """

    def __init__(self, path: StrPath | None = None) -> None:
        self._native = _native.Store(path)

    def __repr__(self) -> str:
        """Show the call that opens it."""
        return f"inshore.Store({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """The folder."""
        return self._native.path

    def graphs(self) -> list[GraphInfo]:
        """List the graphs.

        Returns
        -------
        list of GraphInfo
            In the order of their names.

        Examples
        --------
        >>> [info.name for info in store.graphs()]
        ['path']
        """
        return [GraphInfo(**info) for info in json.loads(self._native.graphs())]

    def graph(self, name: str) -> Graph:
        """Open a graph.

        Parameters
        ----------
        name : str
            Its name.

        Returns
        -------
        Graph
            The graph.

        Raises
        ------
        NotFoundError
            If there is none of that name.

        Examples
        --------
        >>> store.graph("path").info.edges
        2
        >>> store.graph("web")
        Traceback (most recent call last):
        inshore.errors.NotFoundError: there is no "web" in ...
        """
        return Graph(self._native, self._native.graph(name))

    def remove(self, name: str) -> None:
        """Remove a graph. A `Graph` that is open goes on undisturbed.

        Parameters
        ----------
        name : str
            Its name.

        Raises
        ------
        NotFoundError
            If there is none of that name.
        """
        self._native.remove(name)

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
        """Make a graph of a list of edges. Duplicate edges merge; self-loops are kept.

        Parameters
        ----------
        source : path, paths or Arrow data
            One file, several files, or a `pyarrow.Table`, `pyarrow.RecordBatchReader` or data frame (see
            `ArrowStream`). Files may be compressed (``.gz``, ``.zst``). Arrow data is streamed batch by batch
            through a file in the store, so that a reader may be of any length.
        name : str
            What the graph will be called; `ExistsError` if there is one.
        format : str, optional
            The format of the files, where their ending does not tell: ``"text"`` (SNAP), ``"csv"``,
            ``"parquet"``, ``"arrow"``, ``"mtx"`` (Matrix Market), ``"ldbc"`` or ``"binary"`` (raw
            little-endian pairs of uint32).
        undirected : bool, default False
            Take each edge both ways.
        drop_loops : bool, default False
            Leave out edges from a vertex to itself.
        weighted : bool, default False
            Keep the third column of text as weights. Where the format says what is a weight (a column called
            ``weight``, Matrix Market, LDBC) it is kept anyway. Of duplicate edges the smallest stays.
        reverse : bool, default False
            Keep in-edges too: some jobs make them otherwise, each time.
        source_column, target_column, weight_column : str, optional
            Which columns of a table to take. By default those of the usual names (``source``, ``target``,
            ``weight``, ``from``, ``to`` and the like), else the first and the second.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Graph
            The graph.

        Raises
        ------
        InputError
            If a line or row is no edge; the message names the file and the line.
        ExistsError, BudgetError, FileError
            See `inshore.errors`. Nothing half made is left.

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
                # A column called weight is kept unasked.
                named = [source_column, target_column, weight_column or "weight"]
            paths = paths_of(job, source, named)
            native = self._native.import_edges(
                job,
                name,
                paths,
                format=format,
                undirected=undirected,
                drop_loops=drop_loops,
                weighted=weighted,
                reverse=reverse,
                source_column=source_column,
                target_column=target_column,
                weight_column=weight_column,
            )
            return Graph(self._native, native, json.loads(job.report()))

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
        """Make a random graph as Graph500 does: few vertices with many edges, many with few.

        Parameters
        ----------
        scale : int
            It has 2 to the power of `scale` vertices.
        edge_factor : int, default 16
            Edges drawn for each vertex; duplicates merge.
        seed : int, default 1
            Chooses the graph. The same seed makes the same one.
        name : str
            What it will be called; `ExistsError` if there is one.
        reverse : bool, default False
            Keep in-edges too.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Graph
            The graph, directed.

        Examples
        --------
        >>> graph = store.generate_kronecker(scale=4, name="kron4", memory="16MiB")
        >>> graph.info.vertices
        16
        >>> store.remove("kron4")
        """
        with self._native.job(memory, threads) as job:
            native = self._native.generate_kronecker(
                job, name, scale=scale, edge_factor=edge_factor, seed=seed, reverse=reverse
            )
            return Graph(self._native, native, json.loads(job.report()))

    @overload
    def sort(
        self,
        source: Source,
        *,
        by: str | Sequence[str | tuple[str, str]],
        unique: bool = False,
        text: Sequence[str] = (),
        header: bool | None = None,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
        output: None = None,
    ) -> pa.Table: ...
    @overload
    def sort(
        self,
        source: Source,
        *,
        by: str | Sequence[str | tuple[str, str]],
        unique: bool = False,
        text: Sequence[str] = (),
        header: bool | None = None,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
        output: StrPath,
    ) -> Written: ...
    def sort(
        self,
        source: Source,
        *,
        by: str | Sequence[str | tuple[str, str]],
        unique: bool = False,
        text: Sequence[str] = (),
        header: bool | None = None,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
        output: StrPath | None = None,
    ) -> pa.Table | Written:
        """Sort the rows of tables, larger than memory if need be.

        Nulls come last; rows with equal keys keep their order.

        Parameters
        ----------
        source : path, paths or Arrow data
            Files with the same columns (``.parquet``, ``.csv``, ``.tsv``, ``.arrow``; text may be
            compressed), or a `pyarrow.Table`, `pyarrow.RecordBatchReader` or data frame (see `ArrowStream`).
        by : str or list
            The columns, the first one first: names, or pairs of a name and ``"ascending"`` or
            ``"descending"``.
        unique : bool, default False
            Of rows with the same key only the first stays.
        text : list of str, optional
            Columns of CSV that are text, whatever they look like.
        header : bool, optional
            Whether the first line of CSV has the names of columns; else it is refused where it may be a row.
            Without names columns are called ``column_1`` and so on.
        resume : bool, default False
            Keep finished runs where this is interrupted, and go on with those that the same call left: of the
            same files, with as much memory or more.
        memory, threads
            The budget; see `Graph`.
        output : path, optional
            Write to this file (``.parquet``, ``.arrow`` or ``.csv``) and return a `Written`.

        Returns
        -------
        pyarrow.Table or Written
            The rows.

        Raises
        ------
        InputError, BudgetError, FileError
            See `inshore.errors`. Nothing half made is left.

        Examples
        --------
        >>> table = pa.table({"name": ["b", "c", "a"], "size": [1, 3, 3]})
        >>> store.sort(table, by=[("size", "descending"), "name"], memory="16MiB").to_pydict()
        {'name': ['a', 'c', 'b'], 'size': [3, 3, 1]}
        >>> store.sort(table, by="name", output="sorted.parquet", memory="16MiB").rows
        3
        """
        keys = keys_of(by)
        with self._native.job(memory, threads) as job:
            paths = paths_of(job, source, resume=resume)

            def run(path: StrPath) -> str:
                return _native.sort_tables(job, paths, path, keys, list(text), header, unique, resume)

            return deliver(job, run, output, "rows")

    def sort_lines(
        self,
        source: StrPath | Iterable[StrPath],
        *,
        output: StrPath,
        descending: bool = False,
        unique: bool = False,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Written:
        r"""Sort the lines of text files by their bytes, as ``LC_ALL=C sort`` does.

        Parameters
        ----------
        source : path or paths
            The files; they may be compressed (``.gz``, ``.zst``).
        output : path
            Where the lines go.
        descending : bool, default False
            The greatest first.
        unique : bool, default False
            Each line once.
        resume : bool, default False
            Keep finished runs where this is interrupted, and go on with those that the same call left: of the
            same files, with as much memory or more.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Written
            The file.

        Examples
        --------
        >>> _ = Path("names.txt").write_text("dog\ncat\n")
        >>> store.sort_lines("names.txt", output="sorted.txt", memory="16MiB").rows
        2
        >>> Path("sorted.txt").read_text()
        'cat\ndog\n'
        """
        with self._native.job(memory, threads) as job:
            paths = paths_of(job, source)

            def run(path: StrPath) -> str:
                return _native.sort_lines(job, paths, path, descending, unique, resume)

            return cast("Written", deliver(job, run, output, "rows"))

    def sort_records(
        self,
        source: StrPath | Iterable[StrPath],
        *,
        output: StrPath,
        record_bytes: int,
        key: tuple[int, int] | None = None,
        descending: bool = False,
        unique: bool = False,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Written:
        """Sort binary records of one size by some of their bytes. Equal records keep their order.

        Parameters
        ----------
        source : path or paths
            The files.
        output : path
            Where the records go.
        record_bytes : int
            Bytes of a record.
        key : pair of int, optional
            The first byte of the key, and the one behind its last; by default all bytes.
        descending : bool, default False
            The greatest first.
        unique : bool, default False
            Of records with the same key only the first stays.
        resume : bool, default False
            Keep finished runs where this is interrupted, and go on with those that the same call left: of the
            same files, with as much memory or more.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Written
            The file.

        Examples
        --------
        >>> _ = Path("pairs.bin").write_bytes(b"b1a2a1")
        >>> written = store.sort_records(
        ...     "pairs.bin", output="sorted.bin", record_bytes=2, key=(0, 1), memory="16MiB"
        ... )
        >>> Path("sorted.bin").read_bytes()
        b'a2a1b1'
        """
        with self._native.job(memory, threads) as job:
            paths = paths_of(job, source)
            span = (0, record_bytes) if key is None else key

            def run(path: StrPath) -> str:
                return _native.sort_records(job, paths, path, record_bytes, span, descending, unique, resume)

            return cast("Written", deliver(job, run, output, "rows"))

    @overload
    def reduce(
        self,
        source: Source,
        *,
        by: str | Sequence[str] = (),
        aggregates: Sequence[str | tuple[str, str]],
        text: Sequence[str] = (),
        header: bool | None = None,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
        output: None = None,
    ) -> pa.Table: ...
    @overload
    def reduce(
        self,
        source: Source,
        *,
        by: str | Sequence[str] = (),
        aggregates: Sequence[str | tuple[str, str]],
        text: Sequence[str] = (),
        header: bool | None = None,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
        output: StrPath,
    ) -> Written: ...
    def reduce(
        self,
        source: Source,
        *,
        by: str | Sequence[str] = (),
        aggregates: Sequence[str | tuple[str, str]],
        text: Sequence[str] = (),
        header: bool | None = None,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
        output: StrPath | None = None,
    ) -> pa.Table | Written:
        """Group rows and compute something of each group (GROUP BY), larger than memory if need be.

        Parameters
        ----------
        source : path, paths or Arrow data
            As in `sort`.
        by : str or list of str, optional
            The columns whose values make a group; without any, all rows are one.
        aggregates : list
            Pairs of a column and a function: ``"count"`` (of values that are not null), ``"sum"``,
            ``"mean"``, ``"min"``, ``"max"``, ``"first"`` or ``"last"``. ``"count"`` alone counts rows.
        text : list of str, optional
            Columns of CSV that are text, whatever they look like.
        header : bool, optional
            Whether the first line of CSV has the names of columns; else it is refused where it may be a row.
            Without names columns are called ``column_1`` and so on.
        resume : bool, default False
            Keep finished runs where this is interrupted, and go on with those that the same call left: of the
            same files, with as much memory or more.
        memory, threads
            The budget; see `Graph`.
        output : path, optional
            Write to this file (``.parquet``, ``.arrow`` or ``.csv``) and return a `Written`.

        Returns
        -------
        pyarrow.Table or Written
            One row for each group, in the order of the groups: the columns of `by`, then ``count``,
            ``sum_price`` and the like.

        Raises
        ------
        InputError
            For a sum that does not fit 64 bits too.
        BudgetError, FileError
            See `inshore.errors`. Nothing half made is left.

        Examples
        --------
        >>> table = pa.table({"city": ["Oslo", "Bonn", "Oslo"], "rain": [3, 5, 4]})
        >>> store.reduce(table, by="city", aggregates=["count", ("rain", "sum")], memory="16MiB").to_pydict()
        {'city': ['Bonn', 'Oslo'], 'count': [1, 2], 'sum_rain': [5, 7]}
        """
        columns = [by] if isinstance(by, str) else list(by)
        asked = [(each, None) if isinstance(each, str) else (each[1], each[0]) for each in aggregates]
        needed = [*columns, *(column for _, column in asked if column is not None)]
        with self._native.job(memory, threads) as job:
            # Without any column there would be no rows to count.
            paths = paths_of(job, source, needed or None, resume=resume)

            def run(path: StrPath) -> str:
                return _native.reduce(job, paths, path, columns, asked, list(text), header, resume)

            return deliver(job, run, output, "groups")

    @overload
    def sql(
        self,
        query: str,
        *,
        tables: Mapping[str, Source] | None = None,
        text: Sequence[str] = (),
        header: bool | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
        output: None = None,
        stream: Literal[False] = False,
    ) -> pa.Table: ...
    @overload
    def sql(
        self,
        query: str,
        *,
        tables: Mapping[str, Source] | None = None,
        text: Sequence[str] = (),
        header: bool | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
        output: None = None,
        stream: Literal[True],
    ) -> pa.RecordBatchReader: ...
    @overload
    def sql(
        self,
        query: str,
        *,
        tables: Mapping[str, Source] | None = None,
        text: Sequence[str] = (),
        header: bool | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
        output: StrPath,
        stream: Literal[False] = False,
    ) -> Written: ...
    def sql(
        self,
        query: str,
        *,
        tables: Mapping[str, Source] | None = None,
        text: Sequence[str] = (),
        header: bool | None = None,
        memory: str | int | None = None,
        threads: int | None = None,
        output: StrPath | None = None,
        stream: bool = False,
    ) -> pa.Table | pa.RecordBatchReader | Written:
        """Answer a question in SQL about tables, larger than memory if need be.

        Grouping, sorting and joining go on with sort-reduce where memory is short. The SQL is DataFusion's.

        The query runs in a process of its own, which may have the budget and 40 MiB beside that. The process
        is another interpreter (``sys.executable`` or what ``INSHORE_PYTHON`` names) with the extension
        alone and an empty standard input. It ends with the call, or with the reader.

        Parameters
        ----------
        query : str
            One SELECT, EXPLAIN or VALUES. Files are named in it in quotes: ``FROM 'sales.parquet'``.
        tables : dict, optional
            What names in the query mean: a path (also a folder, or with ``*``), paths, or Arrow data, which
            goes through a file.
        text : list of str, optional
            Columns of CSV and JSON lines that are text, whatever they look like.
        header : bool, optional
            As in `sort`.
        memory, threads
            The budget; see `Graph`. 24 MiB is the least.
        output : path, optional
            Write to this file (``.parquet``, ``.arrow`` or ``.csv``) and return a `Written`.
        stream : bool, default False
            Return a reader that gives rows as they come, and holds only some of them.

        Returns
        -------
        pyarrow.Table, pyarrow.RecordBatchReader or Written
            The rows.

        Raises
        ------
        InputError
            For what is no such query, or names what is not there.
        BudgetError
            Also where an operator that cannot go on elsewhere needs more (a cross join, a window over all
            rows), and where the process would take more than it may have.
        FileError, DamagedError
            See `inshore.errors`. Nothing half made is left.

        Examples
        --------
        >>> table = pa.table({"city": ["Oslo", "Bonn", "Oslo"], "rain": [3, 5, 4]})
        >>> query = "SELECT city, sum(rain) AS rain FROM days GROUP BY city ORDER BY city"
        >>> store.sql(query, tables={"days": table}, memory="64MiB").to_pydict()
        {'city': ['Bonn', 'Oslo'], 'rain': [5, 7]}
        """
        with self._native.job(memory, threads) as job:
            files = named_tables(job, tables)
            columns = list(text)
            result = rows_of(
                job, lambda: _native.query(job, query, files, columns, header, output), output, stream
            )
        if isinstance(result, Result):
            return Written(result.path, result.rows, cast("dict[str, Any]", result.summary), result.report)
        return result

    @overload
    def count_values(
        self,
        source: Source,
        *,
        column: str | Sequence[str],
        text: Sequence[str] = (),
        header: bool | None = None,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
        output: None = None,
    ) -> pa.Table: ...
    @overload
    def count_values(
        self,
        source: Source,
        *,
        column: str | Sequence[str],
        text: Sequence[str] = (),
        header: bool | None = None,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
        output: StrPath,
    ) -> Written: ...
    def count_values(
        self,
        source: Source,
        *,
        column: str | Sequence[str],
        text: Sequence[str] = (),
        header: bool | None = None,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
        output: StrPath | None = None,
    ) -> pa.Table | Written:
        """Count how often each value of a column, or combination of several, is there.

        Parameters
        ----------
        source : path, paths or Arrow data
            As in `sort`.
        column : str or list of str
            The column or columns.
        text, header, resume, memory, threads, output
            As in `reduce`.

        Returns
        -------
        pyarrow.Table or Written
            The values in their order, and ``count``.

        Examples
        --------
        >>> store.count_values(pa.table({"v": [2, 1, 2]}), column="v", memory="16MiB").to_pydict()
        {'v': [1, 2], 'count': [1, 2]}
        """
        options: dict[str, Any] = {"text": text, "header": header, "resume": resume, "memory": memory}
        options.update(threads=threads, output=output)
        return cast("pa.Table | Written", self.reduce(source, by=column, aggregates=["count"], **options))

    @overload
    def count_kmers(
        self,
        source: StrPath | Iterable[StrPath],
        *,
        k: int = 25,
        canonical: bool = True,
        min_count: int = 1,
        codes: bool = False,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
        output: None = None,
    ) -> pa.Table: ...
    @overload
    def count_kmers(
        self,
        source: StrPath | Iterable[StrPath],
        *,
        k: int = 25,
        canonical: bool = True,
        min_count: int = 1,
        codes: bool = False,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
        output: StrPath,
    ) -> Written: ...
    def count_kmers(
        self,
        source: StrPath | Iterable[StrPath],
        *,
        k: int = 25,
        canonical: bool = True,
        min_count: int = 1,
        codes: bool = False,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
        output: StrPath | None = None,
    ) -> pa.Table | Written:
        r"""Count the k-mers of FASTA and FASTQ files.

        Parameters
        ----------
        source : path or paths
            The files; they may be compressed (``.gz``, ``.zst``).
        k : int, default 25
            Bases in a k-mer, up to 63.
        canonical : bool, default True
            Count a k-mer and its reverse complement as one, the smaller of both.
        min_count : int, default 1
            Only those that are there so often.
        codes : bool, default False
            Numbers instead of text, two bits for each base (k up to 32).
        resume, memory, threads, output
            As in `reduce`.

        Returns
        -------
        pyarrow.Table or Written
            Columns ``kmer`` and ``count``, in the order of the k-mers.

        Examples
        --------
        >>> _ = Path("reads.fa").write_text(">r\nAACCAAC\n")
        >>> store.count_kmers("reads.fa", k=3, canonical=False, memory="16MiB").to_pydict()
        {'kmer': ['AAC', 'ACC', 'CAA', 'CCA'], 'count': [2, 1, 1, 1]}
        """
        with self._native.job(memory, threads) as job:
            paths = paths_of(job, source)

            def run(path: StrPath) -> str:
                return _native.count_kmers(job, paths, path, k, canonical, min_count, codes, resume)

            return deliver(job, run, output, "written")
