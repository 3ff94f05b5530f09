"""Verbs on tables: sorting, grouping and counting rows, lines, records and k-mers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inshore.errors import InputError
from inshore.results import Result, StrPath
from inshore.sources import Inputs, Source
from inshore.verbs.target import Target


class TableVerbs(Target):
    """Verbs on tables, which may be larger than memory."""

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
    ) -> Result:
        """Sort the rows of tables, which may be larger than memory.

        Nulls come last; rows with equal keys keep their order.

        Parameters
        ----------
        source : path, paths or Arrow data
            Files with the same columns (``.parquet``, ``.csv``, ``.tsv``, ``.arrow``; text may be
            compressed), or a `pyarrow.Table`, `pyarrow.RecordBatchReader` or data frame (see `ArrowStream`).
            On nodes: datasets.
        by : str or list
            The columns, most significant first: names, or pairs of a name and ``"ascending"`` or
            ``"descending"``.
        unique : bool, default False
            Keep only the first of several rows with the same key.
        text : list of str, optional
            Columns of CSV that are text even if their values look like numbers.
        header : bool, optional
            True if the first line of CSV holds the names of columns; by default the line is refused if it may
            be a row. Without names, columns are ``column_1`` and so on.
        resume : bool, default False
            Keep finished sorted runs after an interruption, and resume from the sorted runs of the same call,
            with the same files and at least as much memory. Not on nodes.
        memory, threads
            The budget; see `Graph`.

        Returns
        -------
        Result
            The rows.

        Raises
        ------
        InputError, BudgetError, FileError
            See `inshore.errors`. No partial file is left.

        Examples
        --------
        >>> table = pa.table({"name": ["b", "c", "a"], "size": [1, 3, 3]})
        >>> store.sort(table, by=[("size", "descending"), "name"], memory="16MiB").table().to_pydict()
        {'name': ['a', 'c', 'b'], 'size': [3, 3, 1]}
        >>> store.sort(table, by="name", memory="16MiB").write("sorted.parquet").rows
        3
        """
        columns = {"keys": _keys(by), "text": list(text), "header": header}
        fields = {"by": {"columns": columns}, "unique": unique, "resume": resume}
        return self._result("sort", fields, Inputs(source), (memory, threads), counted="rows")

    def sort_lines(
        self,
        source: StrPath | Iterable[StrPath],
        *,
        descending: bool = False,
        unique: bool = False,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        r"""Sort the lines of text files by their bytes, like ``LC_ALL=C sort``.

        Parameters
        ----------
        source : path or paths
            The files; they may be compressed (``.gz``, ``.zst``).
        descending : bool, default False
            Sort in descending order.
        unique : bool, default False
            Keep only one of several equal lines.
        resume, memory, threads
            As in `sort`.

        Returns
        -------
        Result
            The lines, which can only be written to a file, since they are not a table.

        Examples
        --------
        >>> _ = Path("names.txt").write_text("dog\ncat\n")
        >>> store.sort_lines("names.txt", memory="16MiB").write("sorted.txt").rows
        2
        >>> Path("sorted.txt").read_text()
        'cat\ndog\n'
        """
        fields = {"by": "lines", "descending": descending, "unique": unique, "resume": resume}
        return self._result("sort", fields, Inputs(source), (memory, threads), counted="rows", gives="bytes")

    def sort_records(
        self,
        source: StrPath | Iterable[StrPath],
        *,
        record_bytes: int,
        key: tuple[int, int] | None = None,
        descending: bool = False,
        unique: bool = False,
        resume: bool = False,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Result:
        """Sort binary records of one length by some of their bytes. Equal records keep their order.

        Parameters
        ----------
        source : path or paths
            The files.
        record_bytes : int
            The length of a record in bytes.
        key : pair of int, optional
            The start and end of the key within a record, in bytes; by default the whole record.
        descending : bool, default False
            Sort in descending order.
        unique : bool, default False
            Keep only the first of several records with the same key.
        resume, memory, threads
            As in `sort`.

        Returns
        -------
        Result
            The records, which can only be written to a file, since they are not a table.

        Examples
        --------
        >>> _ = Path("pairs.bin").write_bytes(b"b1a2a1")
        >>> result = store.sort_records("pairs.bin", record_bytes=2, key=(0, 1), memory="16MiB")
        >>> result.write("sorted.bin").rows
        3
        >>> Path("sorted.bin").read_bytes()
        b'a2a1b1'
        """
        by = {"records": {"bytes": record_bytes, "key": key}}
        fields = {"by": by, "descending": descending, "unique": unique, "resume": resume}
        return self._result("sort", fields, Inputs(source), (memory, threads), counted="rows", gives="bytes")

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
    ) -> Result:
        """Group rows and compute aggregates of each group (GROUP BY). Tables may be larger than memory.

        Parameters
        ----------
        source : path, paths or Arrow data
            The input, as in `sort`; on nodes one dataset.
        by : str or list of str, optional
            The columns whose values make a group; without any, all rows are one group.
        aggregates : list
            Pairs of a column and a function: ``"count"`` (of values that are not null), ``"sum"``,
            ``"mean"``, ``"min"``, ``"max"``, ``"first"`` or ``"last"``, the last two not on nodes.
            ``"count"`` alone counts rows.
        text, header, resume, memory, threads
            As in `sort`.

        Returns
        -------
        Result
            One row for each group, in the order of the groups: the columns of `by`, then ``count``,
            ``sum_price`` and so on.

        Raises
        ------
        InputError
            Also for a sum that exceeds 64 bits.
        BudgetError, FileError
            See `inshore.errors`. No partial file is left.

        Examples
        --------
        >>> days = pa.table({"city": ["Oslo", "Bonn", "Oslo"], "rain": [3, 5, 4]})
        >>> found = store.reduce(days, by="city", aggregates=["count", ("rain", "sum")], memory="16MiB")
        >>> found.table().to_pydict()
        {'city': ['Bonn', 'Oslo'], 'count': [1, 2], 'sum_rain': [5, 7]}
        """
        groups = [by] if isinstance(by, str) else list(by)
        pairs = [(None, each) if isinstance(each, str) else each for each in aggregates]
        needed = [*groups, *(column for column, _ in pairs if column is not None)]
        computed = [{"column": column, "function": name} for column, name in pairs]
        fields = {
            "by": groups,
            "aggregates": computed,
            "text": list(text),
            "header": header,
            "resume": resume,
        }
        # If no column is needed, all are written (`None`), since rows without columns could not be counted.
        inputs = Inputs(source, columns=needed or None)
        return self._result("reduce", fields, inputs, (memory, threads), counted="groups")

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
    ) -> Result:
        """Count the occurrences of each value of a column, or of each combination of several columns.

        Parameters
        ----------
        source : path, paths or Arrow data
            The input, as in `reduce`.
        column : str or list of str
            The column or columns.
        text, header, resume, memory, threads
            As in `sort`.

        Returns
        -------
        Result
            The values in ascending order, and ``count``.

        Examples
        --------
        >>> table = pa.table({"v": [2, 1, 2]})
        >>> store.count_values(table, column="v", memory="16MiB").table().to_pydict()
        {'v': [1, 2], 'count': [1, 2]}
        """
        columns = [column] if isinstance(column, str) else list(column)
        fields = {"columns": columns, "text": list(text), "header": header, "resume": resume}
        inputs = Inputs(source, columns=columns)
        return self._result("count values", fields, inputs, (memory, threads), counted="groups")

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
    ) -> Result:
        r"""Count the k-mers of FASTA and FASTQ files.

        Parameters
        ----------
        source : path or paths
            The files; they may be compressed (``.gz``, ``.zst``).
        k : int, default 25
            The number of bases in a k-mer, at most 63.
        canonical : bool, default True
            Count a k-mer and its reverse complement as one, under the smaller of the two.
        min_count : int, default 1
            The smallest count of a k-mer in the result.
        codes : bool, default False
            Write numbers instead of text, with two bits for each base (k up to 32).
        resume, memory, threads
            As in `sort`.

        Returns
        -------
        Result
            Columns ``kmer`` and ``count``, in the order of the k-mers.

        Examples
        --------
        >>> _ = Path("reads.fa").write_text(">r\nAACCAAC\n")
        >>> store.count_kmers("reads.fa", k=3, canonical=False, memory="16MiB").table().to_pydict()
        {'kmer': ['AAC', 'ACC', 'CAA', 'CCA'], 'count': [2, 1, 1, 1]}
        """
        fields = {"k": k, "canonical": canonical, "min_count": min_count, "codes": codes, "resume": resume}
        return self._result("count kmers", fields, Inputs(source), (memory, threads), counted="written")


def _keys(by: str | Sequence[str | tuple[str, str]]) -> list[dict[str, str | bool]]:
    """Return the columns to sort by, each with its order."""
    keys: list[dict[str, str | bool]] = []
    for key in [by] if isinstance(by, str) else by:
        column, order = (key, "ascending") if isinstance(key, str) else key
        if order not in {"ascending", "descending"}:
            raise InputError(f"by is {order!r} for {column!r}: expected 'ascending' or 'descending'")
        keys.append({"column": column, "descending": order == "descending"})
    if not keys:
        raise InputError("by is empty: expected at least one column")
    return keys
