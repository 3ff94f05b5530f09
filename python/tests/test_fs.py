"""Datasets as files through fsspec: reads and writes by other libraries, and refused operations."""

from __future__ import annotations

import gc
import gzip
import io
import pickle
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import fsspec  # type: ignore[import-untyped]
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

import inshore
from inshore.fs import InshoreFileSystem


@pytest.fixture
def files(store_path: Path) -> InshoreFileSystem:
    return InshoreFileSystem(store=store_path, memory="8MiB")


@pytest.fixture
def table() -> pa.Table:
    random = np.random.default_rng(3)
    return pa.table({"id": np.arange(50_000), "value": random.random(50_000)})


def noise(count: int) -> bytes:
    return np.random.default_rng(count).bytes(count)


def test_importing_inshore_needs_no_fsspec() -> None:
    code = "import sys; sys.modules['fsspec'] = None; import inshore; print('inshore.fs' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_protocol_is_known_without_an_import(store_path: Path) -> None:
    code = "import fsspec; print(fsspec.filesystem('inshore').fsid)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"inshore-{store_path.resolve()}\n"


@pytest.mark.parametrize("count", [0, 1, 65_537, (2 << 20) - 1, (5 << 20) + 777])
def test_a_dataset_reads_back_byte_for_byte(files: InshoreFileSystem, count: int) -> None:
    data = noise(count)
    files.pipe_file("data", data)
    info = files.info("data")
    assert {"name": "data", "size": count, "type": "file", "kind": "bytes"}.items() <= info.items()
    assert files.cat_file("data") == data
    random = np.random.default_rng(1)
    with files.open("data") as file:
        for start, length in random.integers(0, count + 5000, (100, 2)).tolist():
            file.seek(start)
            assert file.read(length) == data[start : start + length]
            assert file.tell() == (min(start + length, count) if start < count else start)
            assert files.cat_file("data", start, start + length) == data[start : start + length]
        file.seek(-3, io.SEEK_END) if count >= 3 else file.seek(0)
        assert file.read() == data[-3:]
    for start, end in [(-10, None), (None, -10), (-5, -2), (3, 2), (None, 4)]:
        assert files.cat_file("data", start, end) == data[start:end]


def test_lines_and_text_are_read_through_buffers(files: InshoreFileSystem) -> None:
    lines = [f"line {number}\n" for number in range(10_000)]
    with files.open("text", "w") as file:
        file.writelines(lines)
    with files.open("text", "r") as file:
        assert list(file) == lines
    with files.open("text", block_size=100) as file:
        assert file.readline() == b"line 0\n"
        assert sum(1 for _ in file) == 9999


def test_a_graph_is_a_folder_of_its_files(
    store: inshore.Store, edges: pa.Table, files: InshoreFileSystem
) -> None:
    store.import_edges(edges, name="web")
    files.pipe_file("plain", b"12345")
    assert files.ls("", detail=False) == files.ls("inshore://", detail=False) == ["plain", "web"]
    assert [entry["type"] for entry in files.ls("")] == ["file", "directory"]
    inside = files.ls("inshore://web/")
    assert {entry["kind"] for entry in inside} == {"graph"}
    for entry in inside:
        assert files.info(entry["name"]) == entry
        assert len(files.cat_file(entry["name"])) == entry["size"]
    assert sorted(files.find("")) == sorted(["plain", *(entry["name"] for entry in inside)])
    assert files.exists("web/out.index")
    for missing in ["nothing", "web/nothing", "plain/bytes", "nothing/bytes"]:
        assert not files.exists(missing)
        with pytest.raises(FileNotFoundError):
            files.cat_file(missing)
    with pytest.raises(IsADirectoryError):
        files.open("web")


def test_pandas_reads_and_writes(table: pa.Table, store_path: Path) -> None:
    options = {"store": str(store_path)}
    frame = table.to_pandas()
    frame.to_parquet("inshore://data.parquet", storage_options=options)
    frame.to_csv("inshore://data.csv", index=False, storage_options=options)
    read = pd.read_parquet("inshore://data.parquet", storage_options=options)
    pd.testing.assert_frame_equal(read, frame)
    pd.testing.assert_frame_equal(pd.read_csv("inshore://data.csv", storage_options=options), frame)
    assert inshore.Store(store_path).graphs() == []


def test_pyarrow_reads_and_writes(table: pa.Table, files: InshoreFileSystem) -> None:
    pa.parquet.write_table(table, "data.parquet", filesystem=files, row_group_size=5000)
    assert pa.parquet.read_table("data.parquet", filesystem=files).equals(table)
    column = pa.parquet.read_table("data.parquet", filesystem=files, columns=["value"])
    assert column.equals(table.select(["value"]))
    found = pa.dataset.dataset("data.parquet", filesystem=files).filter(pa.dataset.field("id") < 10)
    assert found.count_rows() == 10


def test_polars_reads_and_writes(table: pa.Table, files: InshoreFileSystem) -> None:
    frame = pl.DataFrame({"id": table["id"].to_numpy(), "value": table["value"].to_numpy()})
    with files.open("data.csv", "wb") as file:
        frame.write_csv(file)
    with files.open("data.csv", "rb") as file:
        assert pl.read_csv(file).equals(frame)
    with files.open("data.parquet", "wb") as file:
        frame.write_parquet(file)
    with files.open("data.parquet", "rb") as file:
        assert pl.read_parquet(file).equals(frame)


def test_duckdb_reads(table: pa.Table, files: InshoreFileSystem) -> None:
    pa.parquet.write_table(table, "data.parquet", filesystem=files)
    files.pipe_file("data.csv", b"a,b\n1,2\n3,4\n")
    with duckdb.connect() as connection:
        connection.register_filesystem(files)
        connection.execute("select count(*), max(id) from 'inshore://data.parquet'")
        assert connection.fetchall() == [(50_000, 49_999)]
        connection.execute("select sum(a * b)::bigint from read_csv('inshore://data.csv')")
        assert connection.fetchall() == [(14,)]


def test_a_dataset_is_there_once_it_is_closed_and_not_before(files: InshoreFileSystem) -> None:
    file = files.open("data", "wb")
    assert file.write(bytearray(b"half")) == 4
    assert file.write(memoryview(array("H", [0, 1]))) == 4
    assert file.tell() == 8
    assert not files.exists("data")
    file.close()
    file.close()
    assert files.cat_file("data") == b"half\0\0\1\0"
    with pytest.raises(ValueError, match="closed file"):
        file.write(b"more")


def fail_in_a_block(files: InshoreFileSystem) -> None:
    with files.open("data", "wb") as file:
        file.write(b"half")
        raise ZeroDivisionError


def fail_in_text(files: InshoreFileSystem) -> None:
    with files.open("data", "w") as file:
        file.write("half")
        raise ZeroDivisionError


def fail_in_fsspec(files: InshoreFileSystem) -> None:
    with fsspec.open("inshore://data", "wb", compression="gzip") as file:
        file.write(b"half")
        raise ZeroDivisionError


def fail_and_close(files: InshoreFileSystem) -> None:
    file = files.open("data", "wb")
    try:
        file.write(b"half")
        raise ZeroDivisionError
    finally:
        file.close()


def fail_by_raising_again(files: InshoreFileSystem) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        with files.open("data", "wb") as file:
            file.write(b"half")
            raise


@pytest.mark.parametrize(
    "fail", [fail_in_a_block, fail_in_text, fail_in_fsspec, fail_and_close, fail_by_raising_again]
)
def test_an_exception_leaves_nothing(
    files: InshoreFileSystem, fail: Callable[[InshoreFileSystem], None]
) -> None:
    with pytest.raises(ZeroDivisionError):
        fail(files)
    assert files.ls("") == []
    files.pipe_file("data", b"whole")
    assert files.cat_file("data") == b"whole"


def test_a_file_that_is_not_closed_leaves_nothing(files: InshoreFileSystem, store: inshore.Store) -> None:
    file = files.open("data", "wb")
    file.write(noise(5 << 20))
    del file
    gc.collect()
    assert files.ls("") == []
    assert sorted(entry.name for entry in (store.path / "scratch").iterdir()) == ["lock"]


def test_a_dataset_that_is_made_while_an_exception_is_handled_is_published(files: InshoreFileSystem) -> None:
    try:
        files.cat_file("data")
    except FileNotFoundError:
        with files.open("data", "wb") as file:
            file.write(b"made")
    assert files.cat_file("data") == b"made"


def test_a_name_that_is_taken_is_refused(files: InshoreFileSystem, tmp_path: Path) -> None:
    files.pipe_file("data", b"old")
    slow = files.open("raced", "wb")
    files.pipe_file("raced", b"fast")
    attempts: list[Callable[[], Any]] = [
        lambda: files.pipe_file("data", b"new"),
        lambda: files.open("data", "wb"),
        lambda: files.open("data", "xb"),
        slow.close,
    ]
    for attempt in attempts:
        with pytest.raises(FileExistsError, match="exists already"):
            attempt()
    assert (files.cat_file("data"), files.cat_file("raced")) == (b"old", b"fast")
    for mode in ["ab", "r+b"]:
        with pytest.raises(inshore.InputError, match="mode"):
            files.open("data", mode)
    with pytest.raises(inshore.InputError, match="bad name"):
        files.pipe_file("folder/data", b"new")
    with pytest.raises(NotImplementedError, match=r"fsspec\.open"):
        files.open("packed", "wb", compression="gzip")


def test_a_dataset_that_takes_a_name_later_is_known_from_the_first(files: InshoreFileSystem) -> None:
    def facts() -> list[Any]:
        return [files.info("data")["id"], files.ukey("data"), files.modified("data")]

    files.pipe_file("data", b"old")
    first = facts()
    assert facts() == first
    files.rm("data")
    files.pipe_file("data", b"new")
    assert all(old != new for old, new in zip(first, facts(), strict=True))


def test_files_are_put_and_fetched(files: InshoreFileSystem, tmp_path: Path) -> None:
    data = noise(7 << 20)
    (tmp_path / "in").write_bytes(data)
    files.put_file(str(tmp_path / "in"), "data")
    files.get_file("data", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == data


def test_packed_files_are_written_and_read(files: InshoreFileSystem) -> None:
    with fsspec.open("inshore://packed.gz", "wt", compression="infer") as file:
        file.write("plain")
    assert gzip.decompress(files.cat_file("packed.gz")) == b"plain"
    with files.open("packed.gz", "rt", compression="infer") as file:
        assert file.read() == "plain"


def test_a_transaction_publishes_at_its_end_or_nothing(files: InshoreFileSystem) -> None:
    with files.transaction:
        files.pipe_file("a", b"1")
        files.pipe_file("b", b"2")
        assert files.ls("") == []
    assert files.ls("", detail=False) == ["a", "b"]

    def fail() -> None:
        with files.transaction:
            files.pipe_file("c", b"3")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert files.ls("", detail=False) == ["a", "b"]


def test_datasets_are_removed_as_a_whole(
    store: inshore.Store, edges: pa.Table, files: InshoreFileSystem
) -> None:
    store.import_edges(edges, name="web")
    for name in ["a", "b", "c"]:
        files.pipe_file(name, name.encode())
    opened = files.open("a")
    files.rm(["a", "inshore://b"])
    files.rm_file("c")
    assert opened.read() == b"a"
    with pytest.raises(FileNotFoundError):
        files.rm("a")
    with pytest.raises(IsADirectoryError):
        files.rm("web")
    with pytest.raises(PermissionError):
        files.rm("web/out.index")
    with pytest.raises(PermissionError):
        files.rm("", recursive=True)
    files.rm("web", recursive=True)
    assert files.ls("") == []


def test_damage_is_an_error_and_never_wrong_bytes(files: InshoreFileSystem, store_path: Path) -> None:
    data = noise(3 << 20)
    files.pipe_file("data", data)
    segment = store_path / "segment-00000000"
    flash = bytearray(segment.read_bytes())
    place = flash.find(data[2_000_000:2_000_064])
    flash[place] ^= 1
    segment.write_bytes(flash)
    opened = files.open("data")  # all reads share one job, so that a failed read must not use up its buffers
    for _ in range(20):
        with pytest.raises(inshore.DamagedError, match="data/bytes: damaged at offset 1966080"):
            files.cat_file("data")
    assert files.cat_file("data", 0, 1 << 20) == data[: 1 << 20]
    with opened, pytest.raises(inshore.DamagedError):
        opened.read()


def test_many_threads_read_within_a_small_budget(files: InshoreFileSystem) -> None:
    data = noise(20 << 20)
    files.pipe_file("data", data)
    wrong: list[int] = []

    def read(seed: int) -> None:
        random = np.random.default_rng(seed)
        with files.open("data") as file:
            for start in random.integers(0, len(data), 20).tolist():
                file.seek(start)
                if file.read(3 << 20) != data[start : start + (3 << 20)]:
                    wrong.append(start)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_job_ends_with_the_last_open_file(files: InshoreFileSystem, store: inshore.Store) -> None:
    def at_work() -> int:
        gc.collect()
        names = (entry.name for entry in (store.path / "scratch").iterdir())
        return sum(1 for name in names if name != "lock" and not name.startswith("reader-"))

    files.pipe_file("data", b"bytes")
    assert at_work() == 0
    opened = [files.open("data") for _ in range(10)]
    assert at_work() == 1
    del opened
    assert at_work() == 0


def test_a_file_system_goes_to_another_process(files: InshoreFileSystem) -> None:
    files.pipe_file("data", b"bytes")
    assert pickle.loads(pickle.dumps(files)).cat_file("data") == b"bytes"
