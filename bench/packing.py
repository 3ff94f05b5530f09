#!/usr/bin/env python3
"""Compressing and decompressing a file: Inshore and its peers in turn, one run, one table.

    bench/packing.py FILE --inshore target/release/inshore [--repeat 3]

FILE is a text or a tar of some hundred MB, which the page cache holds; results go to /dev/shm, so that no drive is measured. All use
two threads where they can: pigz, pbzip2, lbzip2 and zstd do, lz4 and igzip do not. Peers that are not installed are left out.
Every file is decompressed by Inshore and by the peer, and compared with the original once.

Prints Markdown: the median of the repeats, what was left of the file, and the peer's time over Inshore's.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import report

MIB = 1 << 20

# Format, level, and each peer with its words to compress and to decompress.
ROWS = [
    ("gzip", 6, {"pigz": (["pigz", "-6", "-p2", "-c"], ["pigz", "-d", "-p2", "-c"]), "igzip": (["igzip", "-2", "-T", "2", "-c"], ["igzip", "-d", "-c"])}),
    ("gzip", 1, {"pigz": (["pigz", "-1", "-p2", "-c"], ["pigz", "-d", "-p2", "-c"]), "igzip": (["igzip", "-0", "-T", "2", "-c"], ["igzip", "-d", "-c"])}),
    ("bzip2", 9, {"pbzip2": (["pbzip2", "-9", "-p2", "-c"], ["pbzip2", "-d", "-p2", "-c"]), "lbzip2": (["lbzip2", "-9", "-n2", "-c"], ["lbzip2", "-d", "-n2", "-c"])}),
    ("zstd", 3, {"zstd": (["zstd", "-3", "-T2", "-c"], ["zstd", "-d", "-c"])}),
    ("zstd", 12, {"zstd": (["zstd", "-12", "-T2", "-c"], ["zstd", "-d", "-c"])}),
    ("zstd", 19, {"zstd": (["zstd", "-19", "-T2", "-c"], ["zstd", "-d", "-c"])}),
    ("lz4", 1, {"lz4": (["lz4", "-1", "-c"], ["lz4", "-d", "-c"])}),
]


def once(command: list[str], source: Path, target: Path) -> tuple[float, float, int]:
    """Seconds, seconds of all cores, and the peak of resident bytes."""
    with open(source, "rb") as stdin, open(target, "wb") as stdout:
        started = time.monotonic()
        process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started
    if status != 0:
        raise SystemExit(f"{command} failed")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rows", help="which, as in gzip-6,zstd-19; all but zstd-19, which takes minutes, where nothing is said")
    report.add_option(parser)
    options = parser.parse_args()
    size = options.file.stat().st_size
    scratch = Path(tempfile.mkdtemp(dir="/dev/shm"))
    names = {name: words[0][0] for _, _, peers in ROWS for name, words in peers.items()}
    versions = {name: report.program(program) for name, program in names.items()}
    columns = ["format", "system", "compress", "MB/s", "left", "decompress", "MB/s", "peak memory", "time over Inshore's"]
    table = report.Report(options, columns, versions)
    rows = options.rows.split(",") if options.rows else [f"{row[0]}-{row[1]}" for row in ROWS if row[1] < 19]
    for format, level, peers in (row for row in ROWS if f"{row[0]}-{row[1]}" in rows):
        pack = [options.inshore, "compress", "-", "-o", "-", "--format", format, "--level", str(level), "--threads", "2", "--quiet"]
        systems = {"Inshore": (pack, [options.inshore, "decompress", "-", "-o", "-", "--threads", "2", "--quiet"])}
        systems |= {name: words for name, words in peers.items() if shutil.which(words[0][0])}
        packed: dict[str, list[float]] = {name: [] for name in systems}
        unpacked: dict[str, list[float]] = {name: [] for name in systems}
        peaks, left = dict.fromkeys(systems, 0), {}
        for turn in range(options.repeat):
            for name, (pack, unpack) in systems.items():
                small, again = scratch / f"{name}.packed", scratch / "again"
                seconds, _, peak = once(pack, options.file, small)
                packed[name].append(seconds)
                left[name] = small.stat().st_size
                peaks[name] = max(peaks[name], peak)
                seconds, _, peak = once(unpack, small, again)
                unpacked[name].append(seconds)
                peaks[name] = max(peaks[name], peak)
                if turn == 0:
                    for reader in (systems["Inshore"][1], *(unpack for other, (_, unpack) in systems.items() if other != "Inshore")):
                        once(reader, small, again)
                        if not filecmp.cmp(options.file, again, shallow=False):
                            raise SystemExit(f"{reader} does not read what {name} wrote")
                again.unlink()
                small.unlink()
        ours = statistics.median(packed["Inshore"]), statistics.median(unpacked["Inshore"])
        for name in systems:
            there, back = statistics.median(packed[name]), statistics.median(unpacked[name])
            rates = size / there / 1e6, size / back / 1e6
            ratio = "" if name == "Inshore" else f"{there / ours[0]:.2f} and {back / ours[1]:.2f}"
            share = 100 * left[name] / size
            cells = [f"{there:.2f} s", f"{rates[0]:.0f}", f"{share:.1f} %", f"{back:.2f} s", f"{rates[1]:.0f}"]
            table.row(f"{format} -{level}", name, *cells, f"{peaks[name] // MIB} MiB", ratio)
    table.write()
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
