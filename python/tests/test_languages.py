"""Language identification, on a few sentences."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import inshore

SAMPLES = {
    "en": "The quick brown fox jumps over the lazy dog.\nWhere there is a will there is a way.\n",
    "de": "Der schnelle braune Fuchs springt über den Hund.\nWo ein Wille ist, ist auch ein Weg.\n",
    "fr": "Le renard brun saute par-dessus le chien paresseux.\nQuand on veut, on peut.\n",
}
TEXTS = ["the dog is over there", "der Hund ist da", "le chien paresseux", "1234", ""]
LANGUAGES = ["en", "de", "fr", None, None]


@pytest.fixture
def few(store: inshore.Store, tmp_path: Path) -> dict[str, int]:
    """Train the profiles "few"."""
    samples: dict[str, Path | list[Path]] = {}
    for label, text in SAMPLES.items():
        samples[label] = tmp_path / f"{label}.sample.gz"
        (tmp_path / f"{label}.sample.gz").write_bytes(gzip.compress(text.encode()))
    return store.language_train(samples, name="few", memory="32MiB")


def test_profiles_have_the_commonest_grams(few: dict[str, int], store: inshore.Store, tmp_path: Path) -> None:
    def grams(text: str) -> set[bytes]:
        lines = ["".join(letter if letter.isalpha() else " " for letter in line) for line in text.split("\n")]
        spaced = [f" {' '.join(line.lower().split())} ".encode() for line in lines]
        return {line[at : at + 4] for line in spaced for at in range(len(line) - 3)}

    assert few == {label: len(grams(text)) for label, text in sorted(SAMPLES.items())}
    paths = [tmp_path / f"{label}.sample.gz" for label in SAMPLES]
    assert inshore.language_train(paths, name="less", grams=10) == dict.fromkeys(sorted(SAMPLES), 10)
    with pytest.raises(inshore.ExistsError, match="less"):
        inshore.language_train(paths, name="less")
    assert not [info for info in store.graphs() if info.name == "less"]


@pytest.mark.usefixtures("few")
def test_texts_lines_and_columns_are_told(tmp_path: Path, store: inshore.Store) -> None:
    table = pa.table({"id": range(5), "body": TEXTS})
    csv = tmp_path / "table.csv"
    pa.csv.write_csv(table, csv)
    for threads in (1, 3):
        for source in (table, csv):
            told = inshore.language_identify(
                source, profiles="few", column="body", memory="32MiB", threads=threads
            ).table()
            assert told["language"].to_pylist() == LANGUAGES
            assert told["row"].to_pylist() == list(range(5))
    many = pa.table({"body": TEXTS * 10_000})
    result = inshore.language_identify(many, profiles="few", column="body", memory="32MiB", threads=2)
    told = result.table()
    assert told["language"].to_pylist() == LANGUAGES * 10_000
    assert told["confidence"].null_count == 20_000
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join([TEXTS[0], "", *TEXTS]))
    told = store.language_identify(lines, profiles="few", lines=True).table()
    assert told["line"].to_pylist() == [1, 3, 4, 5, 6]
    assert told["language"].to_pylist() == ["en", "en", "de", "fr", None]
    assert set(told["source"].to_pylist()) == {str(lines)}
    output = tmp_path / "told.parquet"
    written = inshore.language_identify([lines, csv], profiles="few").write(output)
    assert (written.rows, written.summary["unknown"]) == (2, 0)
    assert pa.parquet.read_table(output).column_names == ["source", "language", "confidence"]


@pytest.mark.usefixtures("few")
def test_what_cannot_be_told_raises_or_warns(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(TEXTS[1])
    with pytest.raises(inshore.FileError, match="missing: cannot open"):
        inshore.language_identify([tmp_path / "missing", text], profiles="few").table()
    with pytest.raises(inshore.FileError, match="missing: cannot open"):
        inshore.language_identify([text, tmp_path / "missing"], profiles="few").write(tmp_path / "told.csv")
    assert not (tmp_path / "told.csv").exists()
    result = inshore.language_identify([tmp_path / "missing", text], profiles="few", errors="warn")
    with pytest.warns(inshore.SkippedWarning, match="missing: cannot open"):
        told = result.table()
    assert told["language"].to_pylist() == ["de"]
    with pytest.raises(inshore.NotFoundError, match="nothing"):
        inshore.language_identify(text, profiles="nothing").table()
    with pytest.raises(inshore.InputError, match="both given"):
        inshore.language_identify(text, profiles="few", lines=True, column="body")
    with pytest.raises(inshore.InputError, match="Arrow data"):
        inshore.language_identify(pa.table({"body": TEXTS}), profiles="few")
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(inshore.InputError, match="has no letters"):
        inshore.language_train({"x": empty}, name="x")
    with pytest.raises(inshore.InputError, match="grams"):
        inshore.language_train([text], name="x", grams=0)
    with pytest.raises(inshore.InputError, match="no label"):
        inshore.language_train([tmp_path / ".hidden"], name="x")
