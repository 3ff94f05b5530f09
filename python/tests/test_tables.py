"""Sorting, grouping and counting, against pyarrow and plain Python."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
import pytest

import inshore


@pytest.fixture
def table() -> pa.Table:
    """Return a hundred thousand rows of integers, fractions, text and nulls."""
    random = np.random.default_rng(3)
    count = 100_000
    number = pa.array(random.integers(0, 500, count), mask=random.random(count) < 0.01)
    name = pa.array([f"n{value}" for value in random.integers(0, 40, count)])
    return pa.table({"number": number, "name": name, "size": random.integers(-9, 9, count)})


def test_rows_are_sorted_as_pyarrow_does_it(store: inshore.Store, table: pa.Table, tmp_path: Path) -> None:
    order: list[tuple[str, Literal["ascending", "descending"]]]
    order = [("name", "descending"), ("number", "ascending")]
    expected = table.append_column("at", pa.array(range(len(table)))).sort_by([*order, ("at", "ascending")])
    expected = expected.drop_columns(["at"])
    result = store.sort(table, by=order, memory="16MiB")
    assert result.table().equals(expected)
    assert result.report["memory_budget_bytes"] == 16 << 20
    pa.parquet.write_table(table, tmp_path / "in.parquet")
    halves = [tmp_path / "a.csv", tmp_path / "b.csv"]
    pa.csv.write_csv(table.slice(0, 30_000), halves[0])
    pa.csv.write_csv(table.slice(30_000), halves[1])
    for source in (tmp_path / "in.parquet", halves, table.to_reader(max_chunksize=999)):
        written = store.sort(source, by=order, memory="16MiB").write(tmp_path / "out.parquet")
        assert (written.rows, written.summary["rows"]) == (len(table), len(table))
        assert pa.parquet.read_table(written.path).equals(expected)
    assert [entry.name for entry in (store.path / "scratch").iterdir()] == ["lock"]


def test_of_equal_keys_the_first_stays(store: inshore.Store) -> None:
    table = pa.table({"k": [2, 1, 2, 1], "v": ["a", "b", "c", "d"]})
    assert store.sort(table, by="k", unique=True, memory="16MiB").table().to_pydict() == {
        "k": [1, 2],
        "v": ["b", "a"],
    }


def test_groups_are_those_of_pyarrow(store: inshore.Store, table: pa.Table, tmp_path: Path) -> None:
    asked: list[Any] = [("size", name) for name in ("sum", "min", "max", "mean")] + [("number", "count")]
    result = store.reduce(table, by=["name", "number"], aggregates=["count", *asked], memory="16MiB")
    found = result.table()
    groups = table.group_by(["name", "number"]).aggregate([([], "count_all"), *asked])
    expected = groups.sort_by([("name", "ascending"), ("number", "ascending")])
    assert found.num_rows == expected.num_rows
    assert found["count"].to_pylist() == expected["count_all"].to_pylist()
    for column, function in asked:
        ours, theirs = found[f"{function}_{column}"], expected[f"{column}_{function}"]
        assert ours.to_pylist() == pytest.approx(theirs.to_pylist())
    ends = store.reduce(table, by="name", aggregates=[("size", "first"), ("size", "last")])
    written = ends.write(tmp_path / "out.csv")
    assert written.rows == len(pc.unique(table["name"]))
    whole = store.reduce(table, aggregates=["count", ("size", "sum")], memory="16MiB")
    assert whole.table().to_pydict() == {"count": [len(table)], "sum_size": [pc.sum(table["size"]).as_py()]}


def test_values_and_kmers_are_counted(store: inshore.Store, table: pa.Table, tmp_path: Path) -> None:
    found = store.count_values(table, column="name", memory="16MiB").table().to_pydict()
    expected = Counter(table["name"].to_pylist())
    assert dict(zip(found["name"], found["count"], strict=True)) == expected
    random = np.random.default_rng(5)
    sequence = "".join(random.choice(list("ACGT"), 5000))
    (tmp_path / "x.fa").write_text(f">x\n{sequence}\n")
    kmers = store.count_kmers(tmp_path / "x.fa", k=5, canonical=False, memory="16MiB").table().to_pydict()
    counted = Counter(sequence[at : at + 5] for at in range(len(sequence) - 4))
    assert kmers["kmer"] == sorted(counted)
    assert dict(zip(kmers["kmer"], kmers["count"], strict=True)) == counted
    written = store.count_kmers(tmp_path / "x.fa", k=5, codes=True).write(tmp_path / "k.parquet")
    assert written.rows == written.summary["written"] < len(counted)


def test_lines_and_records_are_sorted(store: inshore.Store, tmp_path: Path) -> None:
    random = np.random.default_rng(9)
    lines = [f"{value}\n" for value in random.integers(0, 5000, 20_000)]
    (tmp_path / "lines.txt").write_text("".join(lines))
    result = store.sort_lines(tmp_path / "lines.txt", unique=True, descending=True)
    written = result.write(tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "".join(sorted(set(lines), reverse=True))
    assert written.rows == len(set(lines))
    records = [bytes(record) for record in random.integers(0, 9, (5000, 6), dtype=np.uint8)]
    (tmp_path / "in.bin").write_bytes(b"".join(records))
    store.sort_records(tmp_path / "in.bin", record_bytes=6, key=(1, 3)).write(tmp_path / "out.bin")
    expected = sorted(records, key=lambda record: record[1:3])
    assert (tmp_path / "out.bin").read_bytes() == b"".join(expected)


def test_what_may_be_resumed_is_the_same(store: inshore.Store, table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pyarrow.parquet.write_table(table, path)
    by = table.column_names[0]
    for resume in (False, True):
        sorted_rows = store.sort(path, by=by, resume=resume, memory="16MiB").table()
        assert sorted_rows == store.sort(table, by=by, memory="16MiB").table()
        counts = store.count_values(path, column=by, resume=resume, memory="16MiB").table()
        assert counts == store.count_values(table, column=by, memory="16MiB").table()
    with pytest.raises(inshore.InputError, match="expected files to resume with"):
        store.reduce(table, aggregates=["count"], resume=True, memory="16MiB")


def test_names_of_files_may_be_of_any_bytes(store: inshore.Store, tmp_path: Path) -> None:
    path, output = (os.fsencode(tmp_path) + name for name in (b"/\xff in.csv", b"/\xff out.csv"))
    Path(os.fsdecode(path)).write_text("k\n2\n1\n")
    assert store.sort(os.fsdecode(path), by="k", memory="16MiB").write(os.fsdecode(output)).rows == 2
    query = "SELECT sum(k) AS n FROM t"
    found = store.sql(query, tables={"t": os.fsdecode(output)}, memory="32MiB").table()
    assert found.to_pydict() == {"n": [3]}


def test_what_cannot_be_is_refused(store: inshore.Store, table: pa.Table, tmp_path: Path) -> None:
    with pytest.raises(inshore.InputError, match="the Arrow data: no column 'nope'"):
        store.sort(table, by="nope").table()
    with pytest.raises(inshore.InputError, match="expected 'ascending' or 'descending'"):
        store.sort(table, by=[("name", "up")]).table()
    with pytest.raises(inshore.InputError, match="at least one column"):
        store.sort(table, by=[]).table()
    with pytest.raises(inshore.InputError, match="`median`, expected one of `count`, `sum`, `mean`"):
        store.reduce(table, by="name", aggregates=[("size", "median")]).table()
    with pytest.raises(inshore.InputError, match="at least one file"):
        store.sort([], by="name").table()
    with pytest.raises(inshore.FileError):
        store.sort(tmp_path / "nope.csv", by="name").table()
    with pytest.raises(inshore.BudgetError):
        store.sort(table, by="name", memory="1MiB").table()
    with pytest.raises(inshore.InputError, match="key"):
        store.sort_records(tmp_path / "x", record_bytes=4, key=(2, 9)).write(tmp_path / "y")
    assert not list(tmp_path.glob("*.parquet"))
