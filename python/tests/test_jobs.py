"""The guarantees of a running job: cancellation, concurrency with other threads, bounded memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import inshore

MIB = 1 << 20
# The longest wait for an event in seconds. Only a failing test waits so long.
PATIENCE = 120


@contextmanager
def running(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run `code` in another Python that receives Ctrl-C, even if the tests ignore the signal."""
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", listen + textwrap.dedent(code), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_idle(process: subprocess.Popen[str]) -> None:
    """Wait until all threads sleep; a thread that is runnable but not scheduled does not count as asleep."""
    until = time.monotonic() + PATIENCE
    looks = 0
    while looks < 20:
        assert time.monotonic() < until, "it never waits"
        assert process.poll() is None
        threads = Path(f"/proc/{process.pid}/task").iterdir()
        states = [(thread / "stat").read_text().rpartition(") ")[2][0] for thread in threads]
        looks = looks + 1 if set(states) == {"S"} else 0
        time.sleep(0.01)


INTERRUPTED = """
import pathlib, sys, time, threading, itertools
import pyarrow as pa
import inshore

store = inshore.Store(sys.argv[1])

def endless():
    batch = pa.record_batch({"source": range(10_000), "target": range(10_000)})
    return pa.RecordBatchReader.from_batches(batch.schema, itertools.repeat(batch))

endless_rows = "SELECT value FROM generate_series(1, 1125899906842624)"
numbers = "generate_series(1, 1000000)"
slow = f"SELECT count(*) FROM {numbers} a, {numbers} b WHERE a.value * b.value % 7 = 3"
jobs = {
    "table": lambda: store.graph("kron").betweenness(sources=1 << 20, memory="16MiB").table(),
    "file": lambda: store.graph("kron").betweenness(sources=1 << 20).write(sys.argv[3]),
    "generate": lambda: store.generate_kronecker(scale=26, name="new", memory="16MiB"),
    "reader": lambda: store.import_edges(endless(), name="new"),
    "files": lambda: store.import_edges(["/dev/zero"], format="binary", name="new"),
    "search": lambda: list(inshore.search("no such line", "/dev/urandom", text=True)),
    "found": lambda: inshore.search("[a-z]", "/dev/urandom", text=True).write(sys.argv[3]),
    "words": lambda: store.count_words("/dev/urandom", memory="32MiB").table(),
    "compress": lambda: inshore.compress("/dev/zero", output=sys.argv[3], format="lz4", memory="64MiB"),
    "sql": lambda: store.sql(slow, memory="24MiB").table(),
    "sql reader": lambda: list(store.sql(endless_rows, memory="24MiB").reader()),
    "sql file": lambda: store.sql(slow, memory="24MiB").write(sys.argv[3]),
}
try:
    print("ready", flush=True)
    jobs[sys.argv[2]]()
except KeyboardInterrupt:
    names = [entry.name for entry in (store.path / "scratch").iterdir()]
    print("interrupted", [name for name in names if not name.startswith("reader-")])
print([info.name for info in store.graphs()], len(store.graph("kron").components().table()))
"""


@pytest.mark.parametrize(
    "job",
    [
        *("table", "file", "generate", "reader", "files", "search", "found", "words", "compress"),
        *("sql", "sql reader", "sql file"),
    ],
)
def test_ctrl_c_stops_a_job_and_leaves_the_store_as_it_was(
    store: inshore.Store, tmp_path: Path, job: str
) -> None:
    store.generate_kronecker(scale=15, name="kron")
    output = tmp_path / "ranks.parquet"
    with running(INTERRUPTED, store.path, job, output) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert out == "interrupted ['lock']\n['kron'] 32768\n", err
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_second_ctrl_c_does_not_wait_for_an_open_that_hangs(store: inshore.Store) -> None:
    code = """
    import os, sys
    import inshore
    os.mkfifo(sys.argv[2])  # nobody ever opens it to write, so that opening it to read waits
    try:
        print("ready", flush=True)
        inshore.Store(sys.argv[1]).import_edges(sys.argv[2], format="text", name="new")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    """
    with running(code, store.path, store.path / "pipe") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(2):
            wait_until_idle(process)
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert out == "interrupted\n", err


def test_ctrl_c_does_not_wait_for_the_end_of_a_block_that_is_compressed(tmp_path: Path) -> None:
    code = """
    import os, sys
    import inshore
    os.mkfifo(sys.argv[1])  # stands in for a block that takes long: the thread hears nothing
    try:
        print("ready", flush=True)
        inshore.compress(sys.argv[1], output=sys.argv[2], format="zstd", level=19)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    """
    with running(code, tmp_path / "pipe", tmp_path / "out.zst") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_until_idle(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert out == "interrupted\n", err
    assert not (tmp_path / "out.zst").exists()


def test_other_threads_run_while_a_job_works(store: inshore.Store) -> None:
    graph = store.generate_kronecker(scale=14, name="kron")
    worker = threading.Thread(target=lambda: graph.betweenness(sources=300, threads=1).table())
    started = last = time.monotonic()
    worker.start()
    longest = 0.0
    while worker.is_alive():
        time.sleep(0.001)
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    seconds = last - started
    assert seconds > 0.5, "too short a job to tell"
    assert longest < seconds / 4


def test_threads_may_share_a_graph(store: inshore.Store) -> None:
    graph = store.generate_kronecker(scale=12, name="kron")
    expected = graph.components(memory="16MiB").table()
    tables = []
    result = graph.components(memory="16MiB")
    workers = [threading.Thread(target=lambda: tables.append(result.table())) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(tables) == 4
    assert all(table.equals(expected) for table in tables)


MEASURED = """
import pathlib, sys
import numpy as np
import pyarrow as pa
import inshore

def status(field):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

def stream():
    rows = 1 << 17
    for start in range(0, 12 << 20, rows):
        ids = np.arange(start, start + rows, dtype=np.uint64)
        yield pa.record_batch({"source": ids, "target": ids[::-1].copy()})

def read(reader):
    return sum(len(batch) for batch in reader)

store = inshore.Store(sys.argv[1])
graph = store.graph("kron")
text = sys.argv[1] + "/../text"
schema = pa.schema([("source", pa.uint64()), ("target", pa.uint64())])
options = {"memory": "16MiB", "threads": 2}
jobs = {
    "file": lambda: graph.pagerank(iterations=3, **options).write(sys.argv[3]),
    "rows": lambda: read(graph.pagerank(iterations=3, **options)),
    "components": lambda: graph.components(**options).write(sys.argv[3]),
    "generate": lambda: store.generate_kronecker(scale=20, name="new", **options),
    "reader": lambda: store.import_edges(
        pa.RecordBatchReader.from_batches(schema, stream()), name="new", **options
    ),
    "search": lambda: read(inshore.search("e", text, spans=True, **options)),
    "words": lambda: store.count_words(text, memory="32MiB", threads=2).write(sys.argv[3]),
    "compress": lambda: inshore.compress(text, output=text + ".zst", force=True, memory="48MiB", threads=2),
}
next(stream())  # what making batches takes is the user's
before = status("VmRSS:")
pathlib.Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
jobs[sys.argv[2]]()
print(status("VmHWM:") - before)
"""


@pytest.fixture(scope="session")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with a graph whose edges alone have four times the budget below, and a text file."""
    path = tmp_path_factory.mktemp("big") / "store"
    graph = inshore.Store(path).generate_kronecker(scale=20, name="kron")
    assert graph.info.entries * 4 > 3.5 * 16 * MIB
    with (path / "../text").resolve().open("w") as file:
        for start in range(0, 5_000_000, 1000):
            file.writelines(f"line {number} of e{number % 977}\n" for number in range(start, start + 1000))
    return path


@pytest.mark.parametrize(
    "job",
    ["file", "rows", "components", "generate", "reader", "search", "words", "compress"],
)
def test_a_job_keeps_to_its_budget(big: Path, tmp_path: Path, job: str) -> None:
    with running(MEASURED, big, job, tmp_path / "rows.parquet") as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    if job in {"generate", "reader"}:
        inshore.Store(big).remove("new")
    memory = {"words": 32, "compress": 48}.get(job, 16)
    assert int(out) <= (memory + 64) * MIB


def test_ctrl_c_ends_a_search_and_leaves_its_vectors_open(store: inshore.Store) -> None:
    code = """
    import sys
    import numpy as np
    import inshore
    store = inshore.Store(sys.argv[1])
    base = np.random.default_rng(1).normal(0, 1, (30_000, 64)).astype(np.float32)
    store.import_vectors(base, name="base", memory="64MiB")
    with store.vectors("base", memory="64MiB", threads=1) as searcher:
        try:
            print("ready", flush=True)
            searcher.search(np.tile(base, (4, 1)), k=100, exact=True)
        except KeyboardInterrupt:
            print("interrupted", searcher.search(base[7], k=1).ids[0, 0], flush=True)
    """
    with running(code, store.path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert out == "interrupted 7\n", err
