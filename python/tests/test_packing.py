"""Compression, decompression and checksums, against gzip, bz2, zlib and hashlib."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import os
import zlib
from pathlib import Path

import numpy as np
import pytest

import inshore

ALGORITHMS = {"sha256": 64, "blake3": 64, "md5": 32, "xxh64": 16, "crc32": 8}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file of some megabytes of compressible bytes."""
    path = tmp_path / "data.bin"
    path.write_bytes(np.random.default_rng(1).integers(0, 9, 5_000_000, dtype=np.uint8).tobytes())
    return path


def test_others_read_what_is_compressed(file: Path) -> None:
    whole = file.read_bytes()
    readers = {"gzip": gzip.decompress, "bzip2": bz2.decompress}
    for name, ending in {"gzip": "gz", "bzip2": "bz2", "zstd": "zst", "lz4": "lz4"}.items():
        packed = [
            inshore.compress(file, format=name, force=True, memory="64MiB", threads=threads)
            for threads in (1, 2)
        ]
        path = Path(f"{file}.{ending}")
        assert packed[0].paths == packed[1].paths == [path]
        assert packed[1].bytes_in == len(whole)
        assert packed[1].bytes_out == path.stat().st_size < len(whole)
        if name in readers:
            assert readers[name](path.read_bytes()) == whole
        back = inshore.decompress(path, output=file.parent / "back", force=True, memory="64MiB")
        assert (file.parent / "back").read_bytes() == whole
        assert (back.bytes_in, back.bytes_out) == (packed[0].bytes_out, len(whole))
    assert packed[0].report["memory_budget_bytes"] == 64 << 20


def test_what_others_compress_is_read(tmp_path: Path) -> None:
    text = b"all is well\n" * 100_000
    for name, packed in {"a.gz": gzip.compress(text), "b.bz2": bz2.compress(text)}.items():
        (tmp_path / name).write_bytes(packed)
    found = inshore.decompress([tmp_path / "a.gz", tmp_path / "b.bz2"], remove=True)
    assert found.paths == [tmp_path / "a", tmp_path / "b"]
    assert all(path.read_bytes() == text for path in found.paths)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_nothing_is_lost_or_replaced_unasked(file: Path, tmp_path: Path) -> None:
    (tmp_path / "data.bin.zst").write_text("kept")
    with pytest.raises(inshore.ExistsError, match="force=True"):
        inshore.compress(file)
    assert (tmp_path / "data.bin.zst").read_text() == "kept"
    with pytest.raises(inshore.InputError, match="compressed already"):
        inshore.compress(tmp_path / "data.bin.zst")
    with pytest.raises(inshore.InputError, match="pass output"):
        inshore.decompress(file)
    with pytest.raises(inshore.InputError, match="`zip`, expected one of `gzip`, `bzip2`, `zstd`, `lz4`"):
        inshore.compress(file, format="zip")
    with pytest.raises(inshore.InputError, match="no level 10: expected 1 to 9"):
        inshore.compress(file, format="bzip2", level=10)
    with pytest.raises(inshore.InputError, match="output is one file, and 2"):
        inshore.compress([file, file], output=tmp_path / "both.gz")
    with pytest.raises(inshore.FileError, match="missing"):
        inshore.compress(tmp_path / "missing")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(os.urandom(10_000))[:5000])
    with pytest.raises(inshore.InputError, match=r"cut\.gz"):
        inshore.decompress(tmp_path / "cut.gz")
    with pytest.raises(inshore.BudgetError, match="compressing as bzip2"):
        inshore.compress(file, format="bzip2", memory="1MiB")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.gz", "data.bin", "data.bin.zst"]


def test_checksums_are_those_of_hashlib(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    empty = tmp_path / "empty"
    empty.touch()
    for algorithm, letters in ALGORITHMS.items():
        found = inshore.checksum([file, str(empty)], algorithm=algorithm, threads=2)
        assert list(found) == [str(file), str(empty)]
        assert {len(value) for value in found.values()} == {letters}
    assert inshore.checksum(file)[str(file)] == hashlib.sha256(whole).hexdigest()
    assert inshore.checksum(file, algorithm="md5")[str(file)] == hashlib.md5(whole).hexdigest()
    assert inshore.checksum(file, algorithm="crc32")[str(file)] == f"{zlib.crc32(whole):08x}"


def test_lists_of_checksums_are_checked(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("other")
    sums = tmp_path / "sums"
    lines = [f"{value}  {name}\n" for name, value in inshore.checksum([file, other]).items()]
    sums.write_text("".join(lines))
    other.write_text("changed")
    assert inshore.checksum_check(sums) == {str(file): True, str(other): False}
    sums.write_text("nonsense")
    with pytest.raises(inshore.InputError, match=r"sums:1: expected a checksum of sha256"):
        inshore.checksum_check(sums)
    with pytest.raises(inshore.FileError, match="missing: cannot open"):
        inshore.checksum([tmp_path / "missing", file])
    with pytest.raises(inshore.FileError, match="missing"):
        inshore.checksum_check(tmp_path / "missing")
    with pytest.raises(inshore.InputError, match="unknown variant `sha0`, expected one of `sha256`"):
        inshore.checksum(file, algorithm="sha0")
