#!/usr/bin/env python3
"""Telling languages apart: Inshore and whatlang on the same held-out texts, one thread each, one run, one table.

    bench/language.py FOLDER --inshore target/release/inshore [--whatlang bench/peers/whatlang/target/release/peer-whatlang]

FOLDER has a file LANGUAGE.txt.gz for each language (two letters), a sentence in each line. Every second sentence is for training, the
others are the test: as they are, and joined to documents of 1,000 bytes or more, both repeated to MEGABYTES. whatlang runs with all
its languages, and once more choosing among those that are there. Rates are for the whole command of Inshore (reading and writing
included) and for the detection alone of whatlang.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import report

CODES = dict(
    zip(
        "cs da de en es et fi fr hu it nl pl pt sk sv".split(),
        "ces dan deu eng spa est fin fra hun ita nld pol por slk swe".split(),
        strict=True,
    )
)
PAPER = "cs sk da sv es pt fi et fr en".split()


def documents(sentences: list[str]) -> list[str]:
    """Joins sentences to documents of 1,000 bytes or more, each a line."""
    made, now = [], ""
    for sentence in sentences:
        now = f"{now} {sentence}" if now else sentence
        if len(now.encode()) >= 1000:
            made.append(now)
            now = ""
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--whatlang")
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=3)
    report.add_option(parser)
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp())
    inshore = [options.inshore, "--store", str(scratch / "store"), "--quiet", "--threads", "1"]
    table = report.Report(options, ["languages", "texts", "system", "right", "MB/s a core"])
    for languages in (PAPER, sorted(CODES)):
        train, test = {}, {}
        for language in languages:
            lines = gzip.open(options.folder / f"{language}.txt.gz", "rt", encoding="utf-8").read().splitlines()
            train[language], test[language] = lines[0::2], lines[1::2]
        for language, lines in train.items():
            (scratch / f"{language}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        name = f"of{len(languages)}"
        samples = [str(scratch / f"{language}.txt") for language in languages]
        subprocess.run([*inshore, "language", "train", *samples, "--name", name], check=True)
        for what, make in (("sentences", list), ("documents", documents)):
            texts = [(language, text) for language in languages for text in make(test[language])]
            once = "".join(f"{text}\n" for _, text in texts)
            path = scratch / "test.txt"
            path.write_text(once * max(1, options.megabytes * 1_000_000 // len(once.encode())), encoding="utf-8")
            size = path.stat().st_size
            rows: list[tuple[str, list[float], float]] = []
            out = scratch / "out.csv"
            seconds = []
            for _ in range(options.repeat):
                started = time.monotonic()
                command = [*inshore, "language", "identify", "--profiles", name, str(path), "--lines", "-o", str(out)]
                subprocess.run(command, check=True)
                seconds.append(time.monotonic() - started)
            with open(out, encoding="utf-8", newline="") as file:
                found = [row["language"] for row, _ in zip(csv.DictReader(file), texts, strict=False)]
            right = sum(label == language for label, (language, _) in zip(found, texts, strict=True))
            rows.append(("Inshore", seconds, right / len(texts)))
            if options.whatlang:
                codes = ",".join(CODES[language] for language in languages)
                for who, more in (("whatlang, all languages", []), ("whatlang, these languages", [codes])):
                    seconds, said = [], ""
                    for _ in range(options.repeat):
                        ran = subprocess.run([options.whatlang, str(path), *more], check=True, capture_output=True, text=True)
                        seconds.append(float(ran.stderr))
                        said = ran.stdout
                    pairs = zip(said.splitlines(), texts, strict=False)
                    right = sum(code == CODES[language] for code, (language, _) in pairs)
                    rows.append((who, seconds, right / len(texts)))
            for who, seconds, share in rows:
                rate = size / statistics.median(seconds) / 1e6
                table.row(str(len(languages)), f"{len(texts)} {what}", who, f"{share:.2%}", f"{rate:.1f}")
    table.write()
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
