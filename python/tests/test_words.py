"""Word counts, against `collections.Counter`."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import inshore
from inshore.fs import InshoreFileSystem


@pytest.fixture
def text(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    words = np.array([f"{'wW'[number % 2]}{number}" for number in range(20_000)])
    drawn = words[(random.power(0.3, 200_000) * 20_000).astype(int)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(", ".join(drawn[at : at + 10]) for at in range(0, len(drawn), 10)))
    return path


def rows(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: item[0].encode())


def found(table: pa.Table) -> list[tuple[str, int]]:
    return [(row["word"], row["count"]) for row in table.to_pylist()]


def test_counts_are_those_of_counter(text: Path, tmp_path: Path, store: inshore.Store) -> None:
    whole = text.read_text()
    counts = Counter(re.findall(r"\w+", whole))
    for threads in (1, 2):
        table = inshore.count_words(text, memory="32MiB", threads=threads).table()
        assert found(table) == rows(counts)
    table = store.count_words(text, split=True).table()
    assert found(table) == rows(Counter(whole.split()))
    table = inshore.count_words(text, ignore_case=True, min_count=20).table()
    folded = Counter(word.lower() for word in counts.elements())
    assert found(table) == rows(Counter({word: count for word, count in folded.items() if count >= 20}))
    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress(whole.encode()))
    assert found(inshore.count_words([text, packed]).table()) == rows(counts + counts)
    with InshoreFileSystem(store=store.path).open("kept", "wb") as file:
        file.write(b"one two two")
    assert found(inshore.Store(store.path).count_words("store:kept").table()) == [("one", 1), ("two", 2)]


def test_the_most_frequent_come_first(text: Path, tmp_path: Path) -> None:
    counts = Counter(re.findall(r"\w+", text.read_text()))
    expected = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:7]
    result = inshore.count_words(text, top=7)
    assert found(result.table()) == expected
    assert result.summary["words"] == 200_000
    output = tmp_path / "words.parquet"
    written = result.write(output)
    assert [tuple(pair) for pair in written.summary["top"]] == expected
    assert written.rows == 7
    assert found(pa.parquet.read_table(output)) == expected
    written = inshore.count_words(text).write(output)
    assert written.rows == len(counts)
    assert found(pa.parquet.read_table(output)) == rows(counts)


def test_what_cannot_be_counted_is_told(text: Path, tmp_path: Path) -> None:
    with pytest.raises(inshore.FileError, match="missing"):
        inshore.count_words([text, tmp_path / "missing"]).table()
    with pytest.raises(inshore.InputError, match="paths is empty"):
        inshore.count_words([])
    with pytest.raises(inshore.InputError, match="top is 0"):
        inshore.count_words(text, top=0)
    with pytest.raises(inshore.BudgetError, match="counting words"):
        inshore.count_words(text, memory="1MiB").table()
    with pytest.raises(inshore.InputError, match=r"words\.txt"):
        inshore.count_words(text).write("words.txt")
