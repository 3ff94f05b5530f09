#!/usr/bin/env python3
"""WebAssembly kernels against the same source as native code, under the same runner.

    bench/kernels.py --inshore target/release/inshore --native target/release/examples/native_kernels --folder /tmp/kernels

Makes the kernels scan, search and words of `sdk/rust` with `inshore kernel new` and `build` (or takes modules from --modules),
and a text that then lies in the page cache; runs each kernel both ways in turn, --repeat times, and prints the best GB/s of
each, the ratio, the most memory (of the command and of its largest instance) and the processor seconds. Answers are compared.

`native_kernels` is built by `cargo build --release -p inshore-kernel --example native_kernels`. Where a second size of
blocks is named, native code runs with both, and the better one counts.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import report

NEEDLE = "needle-in-the-text"
KERNELS = {"scan": "", "search": NEEDLE, "words": ""}


def make_text(path: Path, total: int) -> None:
    """Words of a Zipf distribution in lines, with a needle in about each megabyte; the same each time."""
    dice = random.Random(7)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(dice.choices(letters, k=dice.randint(2, 11))) for _ in range(50_000)]
    weights = list(itertools.accumulate(1 / (rank + 3) for rank in range(len(words))))
    pieces = []
    for _ in range(32):
        lines, size = [], 0
        while size < 1 << 20:
            line = " ".join(dice.choices(words, cum_weights=weights, k=dice.randint(4, 20)))
            lines.append(line)
            size += len(line) + 1
        lines[dice.randrange(len(lines))] += f" {NEEDLE}"
        pieces.append(("\n".join(lines) + "\n").encode())
    with path.open("wb") as out:
        while out.tell() < total:
            out.write(dice.choice(pieces))


def run(command: list[str], output: Path) -> tuple[str, resource.struct_rusage, str]:
    """What it wrote to standard error, what it used, and a digest of its output."""
    with output.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{said}")
    return said, used, hashlib.sha256(output.read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inshore", type=Path, required=True)
    parser.add_argument("--native", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for the text, which is kept, and results")
    parser.add_argument("--modules", type=Path, help="where scan.wasm, search.wasm and words.wasm lie")
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--blocks", type=int, nargs="+", default=[256 << 10, 512 << 10], help="of native code")
    report.add_option(parser)
    words = parser.parse_args()
    words.folder.mkdir(parents=True, exist_ok=True)
    inshore, native = str(words.inshore.resolve()), str(words.native.resolve())
    text = words.folder / "text"
    if not text.exists() or text.stat().st_size < words.gigabytes * 1e9:
        make_text(text, int(words.gigabytes * 1e9))
    size = text.stat().st_size
    subprocess.run(["cat", str(text)], stdout=subprocess.DEVNULL, check=True)  # into the page cache
    modules = {}
    for kernel in words.kernels:
        if words.modules:
            modules[kernel] = words.modules / f"{kernel}.wasm"
            continue
        folder = words.folder / kernel
        if not folder.exists():
            subprocess.run([inshore, "kernel", "new", str(folder), "--from", kernel, "--quiet"], check=True)
        subprocess.run([inshore, "kernel", "build", str(folder), "--quiet"], check=True)
        modules[kernel] = folder / f"{kernel}.wasm"

    print(f"{size / 1e9:.1f} GB in the page cache, best of {words.repeat}; both values of a cell: native and WebAssembly\n")
    columns = ["kernel", "threads", "native", "WebAssembly", "of native", "peak memory", "processor time"]
    table = report.Report(words, columns, inshore=inshore)
    counters, out = words.folder / "counters.json", words.folder / "out"
    for kernel in words.kernels:
        argument = KERNELS[kernel]
        for threads in words.threads:
            best: dict[str, tuple[float, int, float]] = {}
            answers = set()
            for _ in range(words.repeat):
                for block in words.blocks:
                    command = [native, kernel, str(threads), str(block), argument, str(text)]
                    said, used, answer = run(command, out)
                    answers.add(answer)
                    found = (float(said), used.ru_maxrss * 1024, used.ru_utime + used.ru_stime)
                    best["native"] = min(best.get("native", found), found)
                command = [inshore, "kernel", "run", str(modules[kernel]), str(text), "--threads", str(threads)]
                command += ["--memory", "1GiB", "--counters", str(counters), f"--args={argument}"]
                said, used, answer = run(command, out)
                answers.add(answer)
                told = json.loads(counters.read_text())
                memory = used.ru_maxrss * 1024 + told["summary"]["module"]["memory_bytes_max"]
                cpu = told["report"]["cpu_seconds"] + told["summary"]["module"]["cpu_seconds"]
                found = (told["report"]["seconds"], memory, cpu)
                best["wasm"] = min(best.get("wasm", found), found)
            if len(answers) != 1:
                sys.exit(f"{kernel}: native code and WebAssembly differ")
            rate = {how: size / 1e9 / found[0] for how, found in best.items()}
            mib = " and ".join(str(best[how][1] >> 20) for how in ("native", "wasm"))
            cpu_told = " and ".join(f"{best[how][2]:.2f}" for how in ("native", "wasm"))
            ratio = rate["wasm"] / rate["native"]
            rates = [f"{rate[how]:.2f} GB/s" for how in ("native", "wasm")]
            table.row(kernel, str(threads), *rates, f"{ratio:.0%}", f"{mib} MiB", f"{cpu_told} s")
    table.write()


if __name__ == "__main__":
    main()
