"""Queries in child processes: the limit, the end, and the state that remains."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import inshore

MIB = 1 << 20
BUDGET = 24 * MIB
# The memory in addition to the budget: in the limit of a query, and in a cgroup limit that never ends a
# query.
BESIDE = 64 * MIB
BESIDE_IN_GROUP = 96 * MIB
# The longest wait for an event in seconds. Only a failing test waits so long.
PATIENCE = 120

SLOW = (
    "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b "
    "WHERE a.value * b.value % 7 = 3"
)


def columns(column: Callable[[int], str]) -> str:
    return ", ".join(column(number) for number in range(200))


# Queries that need much memory for few rows, with their results under a sufficient budget. `t` has 60,000
# rows: 20,000 keys `k` with three texts `s` of 60 bytes each.
HOSTILE: dict[str, tuple[str, int | None]] = {
    "repeat": (f"SELECT {columns(lambda n: f'repeat(s, {n % 10 + 20}) AS c{n}')} FROM t", None),
    "repeat and sum": (
        f"SELECT {columns(lambda n: f'sum(length(repeat(s, {n % 40 + 2}))) AS c{n}')} FROM t",
        None,
    ),
    "regexp": (
        "SELECT sum(length(regexp_replace(repeat(s, 20), '[a-j0-9]*Q|[a-j0-9]', '', 'g'))) AS n "
        "FROM t WHERE k < 20",
        0,
    ),
    "recursion": (
        "WITH RECURSIVE r AS (SELECT 1 AS n, 'x' AS s UNION ALL SELECT n + 1, s || s FROM r WHERE n < 40) "
        "SELECT max(length(s)) AS n FROM r",
        None,
    ),
    "list of numbers": ("SELECT array_length(generate_series(1, 100000000)) AS n", 100_000_000),
    "table of numbers": ("SELECT count(*) AS n FROM generate_series(1, 300000)", 300_000),
    "one list": ("SELECT array_length(array_agg(value)) AS n FROM generate_series(1, 9000000)", 9_000_000),
    "lists by key": (
        "SELECT count(*) AS n FROM (SELECT value % 20000 AS k, array_agg(repeat('x', 20)) AS a "
        "FROM generate_series(1, 2000000) GROUP BY 1)",
        20_000,
    ),
    "constants": (
        "SELECT count(*) AS n FROM t WHERE s IN ("
        + ", ".join(f"'abcdefghij{n}'" for n in range(50_000))
        + ")",
        0,
    ),
    "pairs": (
        "SELECT count(*) AS n FROM t a, generate_series(1, 50) b WHERE length(a.s) > b.value",
        3_000_000,
    ),
    "large padding": ("SELECT length(lpad('x', 500000000)) AS n FROM t LIMIT 1", None),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "t.csv"
    rows = (f"{row % 20_000},{'abcdefghij' * 5}{row:010}\n" for row in range(60_000))
    path.write_text("k,s\n" + "".join(rows))
    return path


@contextmanager
def running(code: str, *arguments: object, shell: str = "") -> Iterator[subprocess.Popen[str]]:
    """Run `code` in another Python, after a line of shell code, and kill the process after the block."""
    command = ["/bin/sh", "-c", f'{shell} exec "$0" "$@"', sys.executable, "-c", textwrap.dedent(code)]
    command += map(str, arguments)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


def children(process: int) -> list[int]:
    """Return the living child processes of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, parent = (entry / "stat").read_text().rpartition(") ")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if int(parent) == process and state != "Z":
            found.append(int(entry.name))
    return found


def until(what: str, happens: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def scratch(store: inshore.Store) -> list[str]:
    names = (entry.name for entry in (store.path / "scratch").iterdir())
    return sorted(name for name in names if not name.startswith("reader-"))


class Group:
    """A memory cgroup for a test."""

    def __init__(self, limit: int) -> None:
        for root, name in [("memory", "memory.limit_in_bytes"), ("", "memory.max")]:
            self.path = Path("/sys/fs/cgroup") / root / f"inshore-python-{os.getpid()}"
            try:
                self.path.mkdir()
                (self.path / name).write_text(str(limit))
            except OSError:
                continue
            return
        pytest.skip("no memory cgroup can be made here")

    def own_bytes(self) -> int:
        """Count the bytes of the cgroup's processes that do not belong to a file."""
        lines = (self.path / "memory.stat").read_text().splitlines()
        found = dict(line.split() for line in lines)
        return int(found.get("anon", found.get("rss", 0))) + int(found.get("shmem", 0))


@pytest.fixture
def group() -> Iterator[Group]:
    # The cgroup does not measure the interpreter of the tests. 64 MiB are for the interpreter that the tests
    # start.
    made = Group(BUDGET + BESIDE_IN_GROUP + 64 * MIB)
    yield made
    until("its processes end", lambda: not (made.path / "cgroup.procs").read_text())
    made.path.rmdir()


ASKS = """
import json, sys
import inshore

for line in sys.stdin:
    try:
        reader = inshore.sql(line, tables={"t": sys.argv[1]}, memory="24MiB", threads=2).reader()
        values = [value for batch in reader for value in batch.to_pydict().get("n", [])]
        print(json.dumps({"values": values}), flush=True)
    except inshore.InshoreError as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
"""


def test_whatever_is_asked_the_interpreter_lives_on_within_the_memory(table: Path, group: Group) -> None:
    with running(ASKS, table, shell=f"echo $$ > {group.path}/cgroup.procs;") as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        answers: list[dict[str, object]] = []
        peak = 0
        before = None
        # The first query loads its extension and pyarrow.
        for what, (query, value) in {"first": ("SELECT 1 AS n", 1), **HOSTILE}.items():
            reader = threading.Thread(target=lambda: answers.append(json.loads(stdout.readline())))
            reader.start()
            stdin.write(query + "\n")
            stdin.flush()
            while reader.is_alive():
                if before is not None:
                    peak = max(peak, group.own_bytes() - before)
                time.sleep(0.001)
            answer = answers[-1]
            print(what, peak // MIB, answer)
            if "error" in answer:
                assert answer["error"] == "BudgetError", (what, answer)
                text = str(answer["text"])
                assert text.startswith("the query needs more memory than it was given: "), (what, answer)
            elif value is not None:
                assert answer["values"] == [value], what
            assert children(process.pid) == [], what
            if before is None:
                before = group.own_bytes()
        assert peak <= BUDGET + BESIDE
        stdin.close()
        assert process.wait(PATIENCE) == 0


def test_a_query_that_takes_too_much_is_one_exception_and_nothing_is_left(
    store: inshore.Store, table: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.csv"
    output.write_text("old\n")
    wide = columns(lambda n: f"repeat(substr(s, {n % 40 + 1}), {16 + n // 40}) AS c{n}")
    with pytest.raises(inshore.BudgetError) as raised:
        store.sql(f"SELECT {wide} FROM t", tables={"t": table}, memory=BUDGET, threads=2).write(output)
    told = r"the query needs more memory than it was given: at 'ProjectionExec: .*' it exceeded its "
    told += r"budget of 24 MiB and the 40 MiB that it may have beside that \(a larger --memory helps\)"
    assert re.fullmatch(told, str(raised.value))
    assert output.read_text() == "old\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "store"]
    assert scratch(store) == ["lock"]
    assert store.sql("SELECT 1 AS one", memory=BUDGET).table().to_pydict() == {"one": [1]}


def test_a_process_that_is_killed_is_an_exception(store: inshore.Store) -> None:
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            store.sql(SLOW, memory=BUDGET).table()
        except inshore.InshoreError as error:
            raised.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    until("it starts a process", lambda: children(os.getpid()) != [])
    (process,) = children(os.getpid())
    until("its process has scratch", lambda: len(scratch(store)) > 2)
    os.kill(process, signal.SIGKILL)
    asking.join(PATIENCE)
    assert "the query's process was killed" in str(raised[0])
    assert scratch(store) == ["lock"]


def test_a_reader_that_is_closed_half_way_leaves_neither_process_nor_scratch(store: inshore.Store) -> None:
    query = "SELECT value, repeat('x', 100) AS s FROM generate_series(1, 100000000)"
    for close in (pa.RecordBatchReader.close, lambda _: None):
        reader = store.sql(query, memory=BUDGET).reader()
        assert reader.read_next_batch().num_rows > 0
        assert len(children(os.getpid())) == 1
        close(reader)
        del reader
        until("its process ends", lambda: children(os.getpid()) == [])
        until("its scratch goes", lambda: scratch(store) == ["lock"])


def test_a_process_ends_with_its_interpreter(store: inshore.Store) -> None:
    code = "import sys, inshore; inshore.Store(sys.argv[1]).sql(sys.argv[2], memory='24MiB').table()"
    with running(code, store.path, SLOW) as process:
        until("it starts a process", lambda: children(process.pid) != [])
        (query,) = children(process.pid)
        process.kill()
        process.wait()
        until("the process outlives it", lambda: not Path(f"/proc/{query}").exists())
    store.sql("SELECT 1", memory=BUDGET).table()
    assert scratch(store) == ["lock"]


LAZY = """
import pathlib, sys
import inshore

def status(field):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

for count in (10, 4_000_000):
    if count > 10:
        before = status("VmRSS:")
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    query = f"SELECT value, repeat('x', 200) AS s FROM generate_series(1, {count})"
    rows = nbytes = 0
    for batch in inshore.sql(query, memory="24MiB", threads=2):
        rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
print(rows, nbytes, status("VmHWM:") - before)
"""


def test_a_large_answer_comes_as_it_is_read() -> None:
    with running(LAZY) as process:
        out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    rows, nbytes, grown = map(int, out.split())
    assert rows == 4_000_000
    assert nbytes > 800_000_000
    # The limit allows for some waiting messages of half a MiB, and for memory that the allocator keeps.
    assert grown <= 24 * MIB, f"{grown / MIB} MiB"


def test_tables_that_are_handed_over_may_be_scanned_twice(store: inshore.Store) -> None:
    table = pa.table({"k": np.arange(50_000) % 1000, "name": [f"n{row % 77}" for row in range(50_000)]})
    query = "SELECT count(*) AS n FROM t a JOIN t b ON a.k = b.k WHERE a.name = 'n3'"
    expected = sum(1 for row in range(50_000) if row % 77 == 3) * 50
    for source in (table, table.to_reader(max_chunksize=999)):
        assert store.sql(query, tables={"t": source}, memory=BUDGET).table().to_pydict() == {"n": [expected]}


def test_types_come_back_as_they_went(store: inshore.Store) -> None:
    texts = ["long enough to be no view inline", "x", None, ""]
    table = pa.table(
        {
            "time": pa.array([1, 2, None, 4], pa.timestamp("us", "UTC")),
            "decimal": pa.array([1, 2, None, 4], pa.decimal128(20, 3)),
            "text": texts,
            "view": pa.array(texts, pa.string_view()),
            "category": pa.array(["a", "b", None, "a"]).dictionary_encode(),
        }
    )
    query = "SELECT *, make_array(text, 'y') AS list, named_struct('a', decimal, 'b', view) AS pair FROM t"
    found = store.sql(query, tables={"t": table}, memory=BUDGET, threads=1).table()
    assert found.select(table.schema.names).to_pylist() == table.to_pylist()
    assert found["list"].to_pylist() == [[text, "y"] for text in texts]
    assert pc.struct_field(found["pair"], "b").to_pylist() == texts
    none = store.sql(f"{query} WHERE text = 'none'", tables={"t": table}, memory=BUDGET).table()
    assert none.schema.equals(found.schema)
    assert none.num_rows == 0
    # Each batch has its own dictionary.
    text = "arrow_cast('v' || (value / 30000 + value % 3), 'Dictionary(Int32, Utf8)')"
    query = f"SELECT value, {text} AS category FROM generate_series(0, 99999)"
    rows = store.sql(query, memory=BUDGET).reader().read_all().to_pylist()
    assert all(row["category"] == f"v{row['value'] // 30000 + row['value'] % 3}" for row in rows)
    assert len(rows) == 100_000


def test_names_of_files_begin_where_the_interpreter_works(
    store: inshore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some").mkdir()
    monkeypatch.chdir(tmp_path / "some")
    Path("t.csv").write_text("k\n1\n2\n")
    written = store.sql("SELECT sum(k) AS n FROM 't.csv'", memory=BUDGET).write("sum.csv")
    assert (written.rows, Path("sum.csv").read_text()) == (1, "n\n3\n")
    assert written.report["memory_resident_bytes_max"] > 8 * MIB
    assert {phase["phase"] for phase in written.report["phases"]} >= {"query"}


def test_a_program_that_is_no_interpreter_is_told(
    store: inshore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(inshore.InshoreError, match="INSHORE_PYTHON"):
        store.sql("SELECT 1", memory=BUDGET).table()
    monkeypatch.setenv("INSHORE_PYTHON", sys.executable)
    assert store.sql("SELECT 1 AS one", memory=BUDGET).table().to_pydict() == {"one": [1]}
    monkeypatch.setenv("INSHORE_PYTHON", "/bin/false")
    with pytest.raises(inshore.InshoreError, match="/bin/false"):
        store.sql("SELECT 1", memory=BUDGET).table()
