#!/usr/bin/env python3
"""Puts, gets, scans and random reads against the fastest plain way to move the same bytes on the same drive.

    INSHORE_STORE=DIR bench/store.py --inshore target/release/inshore [--gib 4] [--repeat 5]

The peers: reading and writing a file past the page cache from buffers on huge pages, four requests of 1 MiB at a time
(this program, since fio reads into ordinary pages unless the system has huge pages set aside), and fio with io_uring for
random reads. All are run in turn, the page cache dropped before each; medians.
"""

import argparse
import json
import mmap
import os
import statistics
import subprocess
import threading
import time
from pathlib import Path

import report

MIB = 1 << 20
REQUEST = MIB
THREADS = 4
EXTENT = 2 * MIB
SEGMENT_EXTENTS = 128


def drop_caches() -> None:
    subprocess.run(["sync"], check=True)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        print("the page cache cannot be dropped here: figures are of what is in it")


def buffers() -> list[memoryview]:
    memory = mmap.mmap(-1, THREADS * 2 * MIB + 2 * MIB)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)
    view[:: mmap.PAGESIZE] = b"x" * len(view[:: mmap.PAGESIZE])
    return [view[(n + 1) * 2 * MIB :][:REQUEST] for n in range(THREADS)]


def move(path: Path, size: int, is_write: bool) -> float:
    """Seconds to read or write a file of `size` bytes; a write ends with a sync."""
    flags = os.O_DIRECT | (os.O_RDWR | os.O_CREAT if is_write else os.O_RDONLY)
    handle = os.open(path, flags)
    call = os.pwritev if is_write else os.preadv
    seconds = in_threads(
        [lambda buffer, at=at: check(call(handle, [buffer], at), min(REQUEST, size - at)) for at in range(0, size, REQUEST)],
        (lambda: os.fdatasync(handle)) if is_write else None,
    )
    os.close(handle)
    return seconds


def check(moved: int, expected: int) -> None:
    assert moved == expected, f"{moved} of {expected} bytes"


def in_threads(requests: list, at_the_end=None) -> float:
    """Seconds in which a few threads make all requests in order, each with a buffer of its own."""
    lock, position = threading.Lock(), 0

    def work(buffer: memoryview) -> None:
        nonlocal position
        while True:
            with lock:
                number, position = position, position + 1
            if number >= len(requests):
                return
            requests[number](buffer)

    threads = [threading.Thread(target=work, args=(buffer,)) for buffer in buffers()]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if at_the_end:
        at_the_end()
    return time.monotonic() - started


def places(binary: str, store: Path) -> list[tuple[Path, int]]:
    """Where the extents of the dataset lie: segment file and offset in it, neighbours in one piece."""
    told = subprocess.run([binary, "store", "locate", "bench", "--json"], capture_output=True, check=True)
    found = json.loads(told.stdout)["summary"]["places"]
    extents = [place["copies"][0]["extent"] for place in found]
    return [(store / f"segment-{e // SEGMENT_EXTENTS:08}", e % SEGMENT_EXTENTS * EXTENT) for e in extents]


def read_places(where: list[tuple[Path, int]]) -> float:
    """Seconds to read the same extents from the store's own files, in order, without checking anything."""
    paths = {path for path, _ in where}
    handles = {path: os.open(path, os.O_DIRECT | os.O_RDONLY) for path in paths}
    places_of_requests = [(handles[path], at + half) for path, at in where for half in range(0, EXTENT, REQUEST)]
    seconds = in_threads(
        [lambda buffer, h=handle, at=at: check(os.preadv(h, [buffer], at), REQUEST) for handle, at in places_of_requests]
    )
    for handle in handles.values():
        os.close(handle)
    return seconds


def inshore(binary: str, *words: str, stdout: int | None = subprocess.DEVNULL) -> float:
    started = time.monotonic()
    subprocess.run([binary, "store", *words, "--quiet"], stdout=stdout, check=True)
    return time.monotonic() - started


def fio_random(path: Path, seconds: int, depth: int) -> float:
    """8 KiB reads a second."""
    command = ["fio", "--name=r", f"--filename={path}", "--rw=randread", "--bs=8k", f"--iodepth={depth}"]
    command += ["--ioengine=io_uring", "--direct=1", f"--runtime={seconds}", "--time_based", "--readonly"]
    command += ["--output-format=json", "--norandommap"]
    result = subprocess.run(command, capture_output=True, check=True)
    return json.loads(result.stdout)["jobs"][0]["read"]["iops"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inshore", default="target/release/inshore")
    parser.add_argument("--example", default="target/release/examples/random_reads")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    report.add_option(parser)
    options = parser.parse_args()
    store = Path(os.environ["INSHORE_STORE"])
    size = int(options.gib * 1024) * MIB
    plain = store.parent / "plain-file"
    times: dict[str, list[float]] = {}

    def note(what: str, value: float) -> None:
        times.setdefault(what, []).append(value)

    source = store.parent / "source-file"
    with open(source, "wb") as out:
        for _ in range(size // (64 * MIB)):
            out.write(os.urandom(64 * MIB))
    for round_number in range(options.repeat):
        if plain.exists():
            plain.unlink()
        subprocess.run([options.inshore, "store", "rm", "bench", "--quiet"], stderr=subprocess.DEVNULL)
        order = ["plain", "inshore"] if round_number % 2 == 0 else ["inshore", "plain"]
        for who in order:
            drop_caches()
            if who == "plain":
                note("write: plain", move(plain, size, True))
            else:
                with open("/dev/zero", "rb") as zero:
                    head = subprocess.Popen(["head", "-c", str(size)], stdin=zero, stdout=subprocess.PIPE)
                    started = time.monotonic()
                    command = [options.inshore, "store", "put", "-", "--name", "bench", "--block", "8KiB", "--quiet"]
                    subprocess.run(command, stdin=head.stdout, stdout=subprocess.DEVNULL, check=True)
                    note("write: put from a pipe", time.monotonic() - started)
                    head.wait()
        for who in order:
            drop_caches()
            if who == "plain":
                note("read: plain", move(plain, size, False))
                where = places(options.inshore, store)
                drop_caches()
                note("read: plain, the store's own extents", read_places(where))
            else:
                note("read: get", inshore(options.inshore, "get", "bench"))
                drop_caches()
                note("read: verify", inshore(options.inshore, "verify", "bench"))
        copy = store.parent / "copy-file"
        drop_caches()
        note("copy: cp", timed(["cp", "--reflink=never", str(source), str(copy)], sync=True))
        copy.unlink()
        drop_caches()
        note("copy: put", inshore(options.inshore, "put", str(source), "--name", "copied"))
        inshore(options.inshore, "rm", "copied")
        for depth in (1, 32):
            drop_caches()
            note(f"random 8 KiB, depth {depth}: fio", fio_random(plain, 3, depth))
            drop_caches()
            note(f"random 8 KiB, depth {depth}: inshore", random_reads(options.example, store, 3, depth))
    table = report.Report(options, ["what", "median", "rate", "all"], {"fio": report.program("fio")})
    for what, values in times.items():
        median = statistics.median(values)
        if what.startswith("random"):
            table.row(what, f"{median:.0f}/s", f"{median * 8192 / 1e9:.2f} GB/s", ", ".join(f"{value:.0f}" for value in values))
        else:
            table.row(what, f"{median:.2f} s", f"{size / median / 1e9:.2f} GB/s", ", ".join(f"{value:.2f}" for value in values))
    table.write()
    plain.unlink()
    source.unlink()


def timed(command: list[str], sync: bool = False) -> float:
    started = time.monotonic()
    subprocess.run(command, check=True)
    if sync:
        subprocess.run(["sync"], check=True)
    return time.monotonic() - started


def random_reads(example: str, store: Path, seconds: int, depth: int) -> float:
    command = [example, str(store), "bench", str(depth), str(seconds)]
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


if __name__ == "__main__":
    main()
