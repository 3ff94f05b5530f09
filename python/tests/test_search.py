"""Search, against Python's own `re`."""

from __future__ import annotations

import gc
import gzip
import os
import re
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import inshore
from inshore.fs import InshoreFileSystem

WORDS = ["fox", "dog", "Fox", "über", "foxes", ".", "cat\r", "42", "the-fox", "x"]


def written(folder: Path, name: str, seed: int, lines: int = 3000) -> Path:
    """Write some lines of a few words."""
    random = np.random.default_rng(seed)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = [" ".join(random.choice(WORDS, random.integers(0, 7))) for _ in range(lines)]
    path.write_bytes("\n".join(drawn).encode())
    return path


def model(path: Path, pattern: str, *, invert: bool = False, flags: int = 0) -> list[dict[str, object]]:
    """Return the expected matches of a search, line by line."""
    found = []
    offset = 0
    for number, raw in enumerate(path.read_bytes().split(b"\n"), 1):
        line = raw.decode()
        spans = [{"start": m.start(), "end": m.end()} for m in re.finditer(pattern, line, flags)]
        if (line or offset + 1 < path.stat().st_size) and bool(spans) != invert:
            row: dict[str, object] = {"path": str(path), "line_number": number, "offset": offset}
            found.append(row | {"line": line, "spans": [] if invert else spans})
        offset += len(raw) + 1
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    for seed, name in enumerate(["b.txt", "a.txt", "deep/c.log"]):
        written(folder, name, seed)
    written(folder, ".hidden", 9)
    (folder / "empty").touch()
    return folder


def test_lines_are_those_of_re(folder: Path) -> None:
    shown = [folder / name for name in ("a.txt", "b.txt", "deep/c.log")]
    for threads in (1, 3):
        found = inshore.search("fox", folder, spans=True, memory="16MiB", threads=threads).table()
        assert found.to_pylist() == [row for path in shown for row in model(path, "fox")]
        found = inshore.search(
            r"\d+|über", folder, spans=True, ignore_case=True, memory="16MiB", threads=threads
        ).table()
        assert found.to_pylist() == [row for path in shown for row in model(path, r"\d+|über", flags=re.I)]
        budget: dict[str, Any] = {"memory": "16MiB", "threads": threads}
        found = inshore.search("fox", shown[0], spans=True, words=True, **budget).table()
        assert found.to_pylist() == model(shown[0], r"\bfox\b")
        found = inshore.search("fox", shown[0], spans=True, invert=True, **budget).table()
        assert found.to_pylist() == model(shown[0], "fox", invert=True)
        result = inshore.search([".", "x "], shown[0], fixed=True, spans=True, **budget)
        found = result.table()
        assert found.to_pylist() == model(shown[0], r"\.|x ")
    assert result.report["threads"] == 3
    assert found.drop_columns("spans").equals(inshore.search([".", "x "], shown[0], fixed=True).table())


def test_counts_are_those_of_re(folder: Path) -> None:
    names = ["a.txt", "b.txt", "deep/c.log"]
    rows = [model(folder / name, "fox") for name in names]
    found = inshore.search_count("fox", folder).table()
    assert found["path"].to_pylist() == [str(folder / name) for name in names]
    assert found["count"].to_pylist() == [len(lines) for lines in rows]
    found = inshore.search_count("fox", folder, matches=True).table()
    spans = [sum(len(row["spans"]) for row in lines) for lines in rows]  # type: ignore[arg-type, misc]
    assert found["count"].to_pylist() == spans
    assert inshore.search_count("fox", folder, max_count=5).table()["count"].to_pylist() == [5, 5, 5]
    assert inshore.search_count("nothing", folder).table().num_rows == 0
    zeros = inshore.search_count("nothing", folder, include_zero=True).table()
    assert zeros["count"].to_pylist() == [0] * 4


def test_files_are_chosen_as_on_the_command_line(
    folder: Path, store: inshore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def paths(where: Path | list[Path | str] | None = None, **options: Any) -> list[str]:
        found = inshore.search_count("x", where, **options).table()
        names: list[str] = [str(path) for path in found["path"].to_pylist()]
        return [os.path.relpath(path, folder) for path in names]

    (folder / ".ignore").write_text("*.log\n")
    assert paths(folder) == ["a.txt", "b.txt"]
    assert paths(folder, no_ignore=True) == ["a.txt", "b.txt", "deep/c.log"]
    assert paths(folder, no_ignore=True, max_depth=1) == ["a.txt", "b.txt"]
    assert paths(folder, hidden=True, globs="!*.txt") == [".hidden"]
    assert paths(folder, types_not=["txt"], no_ignore=True) == ["deep/c.log"]
    monkeypatch.chdir(folder)
    assert inshore.search_count("x").table()["path"].to_pylist() == ["a.txt", "b.txt"]
    with InshoreFileSystem(store=store.path).open("kept", "wb") as file:
        file.write(b"an x\nand y\n")
    assert paths([folder / "a.txt", "store:kept"]) == ["a.txt", "store:kept"]
    found = store.search("x", "store:kept").table()
    assert found.to_pylist() == [{"path": "store:kept", "line_number": 1, "offset": 0, "line": "an x"}]


def test_lines_may_be_bytes_packed_and_binary(tmp_path: Path) -> None:
    path = tmp_path / "odd"
    path.write_bytes("é fox\r\n".encode() + b"\xff fox")
    found = inshore.search("fox", path, spans=True, crlf=True).table()
    assert found["line"].to_pylist() == ["é fox", "\ufffd fox"]
    assert found["spans"].to_pylist() == [[{"start": 2, "end": 5}]] * 2
    found = inshore.search("fox", path, spans=True, as_bytes=True).table()
    assert found["line"].to_pylist() == ["é fox\r".encode(), b"\xff fox"]
    assert found["spans"].to_pylist()[0] == [{"start": 3, "end": 6}]
    packed = tmp_path / "odd.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert inshore.search("fox", packed).table().num_rows == 0
    assert inshore.search("fox", packed, unpack=True).table().num_rows == 2
    binary = tmp_path / "binary"
    binary.write_bytes(b"fox\n\0fox\n")
    result = inshore.search("fox", binary)
    assert (result.table().num_rows, result.summary["binary"]) == (0, 1)
    assert inshore.search("fox", binary, text=True).table().num_rows == 2
    (tmp_path / "zeros").write_bytes(b"fox\n" + bytes(8 << 20))
    found = inshore.search("fox", tmp_path / "zeros", memory="16MiB").table()
    assert found["line"].to_pylist() == []
    with pytest.raises(inshore.BudgetError, match="the line at byte 4"):
        inshore.search("fox", tmp_path / "zeros", text=True, memory="16MiB").table()


def test_rows_come_as_a_file_or_a_stream(folder: Path, tmp_path: Path) -> None:
    expected = inshore.search("o", folder).table()
    output = tmp_path / "found.parquet"
    result = inshore.search("o", folder, memory="16MiB").write(output)
    assert result.rows == result.summary["lines"] == expected.num_rows
    assert pa.parquet.read_table(output).equals(expected)
    inshore.search("o", folder).write(tmp_path / "found.csv")
    spans = tmp_path / "spans.parquet"
    inshore.search("o", folder, spans=True).write(spans)
    assert pa.parquet.read_table(spans).equals(inshore.search("o", folder, spans=True).table())
    with pytest.raises(inshore.InputError):
        inshore.search("o", folder, spans=True).write(tmp_path / "spans.csv")
    assert not (tmp_path / "spans.csv").exists()
    reader = inshore.search("o", folder).reader()
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.read_all().equals(expected)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208


def test_a_search_whose_reader_goes_stops(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    stop = threading.Event()
    sent = 0

    def feed() -> None:
        nonlocal sent
        try:
            with pipe.open("wb", buffering=0) as file:
                while not stop.is_set():
                    sent += file.write(b"a fox\n" * 1000)
        except BrokenPipeError:
            stop.set()

    feeder = threading.Thread(target=feed)
    feeder.start()
    before = threads()
    reader = inshore.search("fox", pipe, memory="16MiB", threads=2).reader()
    assert reader.read_next_batch().num_rows > 1
    # Without a reader, the search reads a bounded part of the input.
    waiting = -1
    while waiting != sent < 64 << 20:
        waiting = sent
        time.sleep(0.5)
    assert sent == waiting < 64 << 20
    del reader
    gc.collect()
    feeder.join(timeout=120)
    assert stop.is_set()
    assert threads() <= before


def test_a_file_that_cannot_be_read_raises_or_warns(folder: Path, tmp_path: Path) -> None:
    expected = inshore.search("fox", [folder / "a.txt", folder / "b.txt"]).table()
    places = [folder / "a.txt", tmp_path / "missing", folder / "b.txt"]
    with pytest.raises(inshore.FileError, match=r"missing: cannot open: No such file") as raised:
        inshore.search("fox", places).table()
    assert raised.value.errno == 2
    reader = inshore.search("fox", places).reader()
    assert set(reader.read_next_batch()["path"].to_pylist()) == {str(places[0])}
    with pytest.raises(inshore.FileError):
        reader.read_all()
    result = inshore.search("fox", places, errors="warn")
    with pytest.warns(inshore.SkippedWarning, match="missing: cannot open"):
        found = result.table()
    assert found.equals(expected)
    assert result.summary["failed"] == 1
    with pytest.warns(inshore.SkippedWarning, match="missing"):
        written_rows = inshore.search("fox", places, errors="warn").write(tmp_path / "out.csv").rows
    assert written_rows == expected.num_rows
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in inshore.search("fox", places, errors="warn"):
            pass
    assert [warning.category for warning in caught] == [inshore.SkippedWarning]
    with pytest.raises(inshore.FileError, match="missing"):
        inshore.search("fox", [folder / "a.txt", tmp_path / "missing"]).write(tmp_path / "whole.csv")
    assert not (tmp_path / "whole.csv").exists()
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(gzip.compress(os.urandom(5000).hex().encode())[:3000])
    with pytest.raises(inshore.InputError, match=r"damaged\.gz"):
        inshore.search("fox", damaged, unpack=True).table()


def test_what_is_no_search_is_refused_by_name(folder: Path, store: inshore.Store) -> None:
    with pytest.raises(inshore.InputError, match="unclosed"):
        inshore.search("(", folder).table()
    with pytest.raises(inshore.InputError, match="unrecognized file type"):
        inshore.search("x", folder, types="tongue").table()
    with pytest.raises(inshore.InputError, match="patterns is empty"):
        inshore.search([], folder)
    with pytest.raises(inshore.InputError, match="paths is empty"):
        inshore.search("x", [])
    with pytest.raises(inshore.InputError, match="max_count"):
        inshore.search("x", folder, max_count=0).table()
    with pytest.raises(inshore.InputError, match="errors is 'ignore'"):
        inshore.search("x", folder, errors="ignore")  # type: ignore[arg-type]
    with pytest.raises(inshore.NotFoundError, match="nothing"):
        store.search("x", "store:nothing").table()
    with pytest.raises(TypeError, match="'word'"):
        inshore.search("x", folder, word=True)  # type: ignore[call-arg]
    with pytest.raises(inshore.BudgetError):
        inshore.search("x", folder, memory="100KiB").table()
