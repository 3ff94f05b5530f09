"""The display of objects in notebooks, and progress."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import inshore
from inshore.display import html, progress
from inshore.display.progress import State, Watch

# The longest wait for an event in seconds. Only a failing test waits so long.
PATIENCE = 120


class Cells(HTMLParser):
    """Collects the text of a page, and checks that all elements are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "style"}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(value: Any) -> str:
    """Return the text that a notebook shows."""
    return " ".join(Cells(value._repr_html_()).texts)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count the runs of results, by the verb."""
    runs: list[str] = []
    start = inshore.Result.__init__

    def counting(self: inshore.Result, what: str, job: Any, start_run: Any, **options: Any) -> None:
        def counted(*arguments: Any) -> Any:
            runs.append(what)
            return start_run(*arguments)

        start(self, what, job, counted, **options)

    monkeypatch.setattr(inshore.Result, "__init__", counting)
    return runs


def test_a_short_answer_is_shown_and_runs_once(begun: list[str]) -> None:
    query = "SELECT value AS n, '<b>' AS t FROM generate_series(1, 12) ORDER BY n"
    result = inshore.sql(query, memory="32MiB")
    text = shown(result)
    for part in (
        "n",
        "int64",
        "1",
        "10",
        "<b>",
        "10 of 12 rows",
        "of at most 72 MiB (budget 32 MiB + 40 MiB)",
    ):
        assert part in text, (part, text)
    assert "<b>'" not in result._repr_html_()
    assert shown(result) == text
    assert result.to_pandas()["n"].tolist() == list(range(1, 13))
    assert len(begun) == 1
    assert shown(result) == text
    assert len(begun) == 1
    assert len(result.table()) == 12
    assert len(begun) == 2


def test_the_rows_after_the_shown_ones_come_from_the_same_run(store: inshore.Store, begun: list[str]) -> None:
    graph = store.generate_kronecker(scale=15, edge_factor=4, name="kron")
    sort = store.sort(pa.table({"n": range(300_000)}), by="n", memory="16MiB")
    results = [
        graph.components(memory="16MiB"),
        sort,
        store.sql("SELECT value AS n FROM generate_series(1, 300000)", memory="32MiB"),
    ]
    for number, result in enumerate(results, start=1):
        text = shown(result)
        # The number of rows of a sort is known with its first row.
        assert ("10 of 300,000 rows" if result is sort else "the first rows; table()") in text
        assert shown(result) == text
        assert len(begun) == number
        assert len(result.table()) == (1 << 15 if number == 1 else 300_000)
        assert len(begun) == number
        assert f"10 of {result.table().num_rows:,} rows" in shown(result)
        begun.pop()
    assert working(store) == 0


def working(store: inshore.Store) -> int:
    """Count the scratch folders of jobs."""
    names = [entry.name for entry in (store.path / "scratch").iterdir()]
    return len([name for name in names if name != "lock" and not name.startswith("reader-")])


def test_one_run_waits_for_a_notebook(store: inshore.Store, begun: list[str], tmp_path: Path) -> None:
    def rows(count: int) -> inshore.Result:
        return store.sql(f"SELECT value FROM generate_series(1, {count})", memory="32MiB")

    first, second = rows(300_001), rows(300_002)
    shown(first)
    running = working(store)
    assert running > 0
    shown(second)
    assert working(store) == running  # the first one has ended
    assert first.table().num_rows == 300_001
    assert len(begun) == 3
    assert second.write(tmp_path / "rows.parquet").rows == 300_002
    assert working(store) == 0
    assert "300,002 rows in" in shown(second)
    third = rows(300_003)
    shown(third)
    assert working(store) == running
    del third
    assert working(store) == 0


def test_errors_and_lines_are_shown_too(store: inshore.Store, tmp_path: Path) -> None:
    with pytest.raises(inshore.FileError, match="missing"):
        store.sort("missing.csv", by="n", memory="16MiB")._repr_html_()
    (tmp_path / "lines.txt").write_text("b\na\n")
    lines = store.sort_lines(tmp_path / "lines.txt", memory="16MiB")
    assert "not run yet, and no table" in shown(lines)
    written = lines.write(tmp_path / "sorted.txt")
    assert "2 rows" in shown(written)
    assert "2 rows in" in shown(lines)
    packed = inshore.compress(tmp_path / "lines.txt", memory="48MiB")
    assert "lines.txt.zst" in shown(packed)
    assert "4 bytes to" in shown(packed)


def test_stores_graphs_and_nodes_are_shown(store: inshore.Store) -> None:
    assert "0 graphs, 0 other datasets" in shown(store)
    graph = store.import_edges(pa.table({"source": [3, 5], "target": [5, 7]}), name="path")
    with inshore.serve(store, name="attic") as agent:
        nodes = inshore.connect([agent.address, "127.0.0.1:1"])
        text = shown(nodes)
        assert repr(agent) == f"<inshore.Agent at {agent.address}>"
    for part in ("2 nodes", "attic", "127.0.0.1:1"):
        assert part in text, text
    for part in ("1 graph,", "path", "3", "2", "true", "smallest budget", "8 MiB"):
        assert part in shown(store), shown(store)
    for part in ("Graph", "path", "3, ids 3 to 7", "2, directed", "unknown, since in-edges are not stored"):
        assert part in shown(graph), shown(graph)


def test_values_are_short_lines() -> None:
    table = pa.table(
        {
            "a\nb": ["x" * 1000, "\x1b[31m", None],
            "b": [b"\x00\xff" * 20, b"", None],
            "f": [1 / 3, 1e300, float("nan")],
            "l": [[1, 2], [], None],
            "d": pa.array([10_000_000, 0, None], pa.date32()),
            "s": pa.array([1, 1_000_000_000, None], pa.timestamp("ns")),
            **{f"c{number}": [True, False, None] for number in range(30)},
        }
    )
    text = " ".join(Cells(html.first_rows(table)).texts)
    for part in (
        "a\\x0ab",
        f"{'x' * 80}…",
        "\\x1b[31m",
        "00 ff",
        "0.333333",
        "[1, 2]",
        "true",
        "null",
        "16 more columns",
    ):
        assert part in text, part
    assert max(map(len, Cells(html.first_rows(table)).texts)) <= 81


class Counters:
    """A job whose counters a test sets."""

    def __init__(self) -> None:
        self.state: tuple[str, str, int, int] = ("", "", 0, 0)

    def progress(self) -> tuple[str, str, int, int]:
        return self.state

    def report(self) -> str:
        return '{"bytes_read": 3145728, "bytes_written": 0}'


class Drawn:
    """A place for bars that records the drawn states."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.events: list[str] = []

    def draw(self, title: str, state: State) -> None:
        self.states.append(state)
        self.events.append("draw")

    def erase(self) -> None:
        self.events.append("erase")

    def finish(self, title: str, seconds: float, is_complete: bool) -> None:
        self.events.append(f"{title} {'done' if is_complete else 'stopped'}")


def wait_for(condition: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_bar_is_drawn_while_a_thread_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn()
    monkeypatch.setattr(progress, "_display", lambda: drawn)
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0)
    job: Any = Counters()
    with Watch(job, "sort") as watch:
        with watch.waiting():
            wait_for(lambda: drawn.states)
            assert (drawn.states[-1].phase, drawn.states[-1].part) == ("running", None)
            assert drawn.states[-1].pace.endswith(" s, read 3 MiB")
            job.state = ("reading", "bytes", 1 << 20, 4 << 20)
            wait_for(lambda: drawn.states[-1].phase == "reading")
            assert drawn.states[-1].part == 0.25
            job.state = ("reading", "bytes", 5 << 20, 4 << 20)
            wait_for(lambda: drawn.states[-1].part == 1.0)
            wait_for(lambda: "MiB/s" in drawn.states[-1].pace)
        assert drawn.events[-1] == "erase"
        count = len(drawn.events)
        time.sleep(0.3)
        assert len(drawn.events) == count
    assert drawn.events[-1] == "sort done"
    count = len(drawn.states)

    def interrupted() -> None:
        with Watch(job, "sort") as watch, watch.waiting():
            wait_for(lambda: len(drawn.states) > count)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert drawn.events[-2:] == ["erase", "sort stopped"]


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Pretend that this process is the kernel of a notebook, and keep its outputs."""
    outputs: list[dict[str, str]] = []

    class Handle:
        def update(self, bundle: dict[str, str], raw: bool) -> None:
            assert raw
            outputs.append(bundle)

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        outputs.append(bundle)
        return Handle()

    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=None)
    shows: Any = types.ModuleType("IPython.display")
    shows.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", shows)
    monkeypatch.setattr(progress, "_DELAY_SECONDS", 0)
    monkeypatch.setattr(progress, "_PERIOD_SECONDS", 0.001)
    return outputs


def test_a_notebook_shows_the_phases_of_jobs(store: inshore.Store, notebook: list[dict[str, str]]) -> None:
    graph = store.generate_kronecker(scale=16, name="kron", memory="16MiB")
    assert "generation of graph &#x27;kron&#x27;" in notebook[-1]["text/html"]
    assert notebook[-1]["text/plain"].startswith("done in")
    assert any("<progress" in output["text/html"] for output in notebook)
    notebook.clear()
    graph.betweenness(sources=2, memory="16MiB").table()
    phases = {output["text/plain"].split(" ", 1)[0] for output in notebook}
    assert "done" in phases
    assert len(phases) > 1
    notebook.clear()
    inshore.show_progress(False)
    try:
        graph.components(memory="16MiB").table()
    finally:
        inshore.show_progress(None)
    assert notebook == []


def test_a_script_draws_nothing_unless_told(capfd: pytest.CaptureFixture[str], store: inshore.Store) -> None:
    assert progress._display() is None
    inshore.show_progress(True)
    try:
        assert progress._display() is None  # standard error is no terminal
    finally:
        inshore.show_progress(None)
    assert capfd.readouterr().err == ""


IN_A_TERMINAL = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import inshore
inshore.show_progress()
graph = inshore.Store(sys.argv[1]).graph("kron")
try:
    graph.betweenness(sources=1 << 20, memory="16MiB").table()
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(len(graph.components(memory="16MiB").table()))
"""


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Make a terminal: the side that is read, and the side of a program."""
    reads, writes = pty.openpty()
    yield reads, writes
    for side in (reads, writes):
        os.close(side)


def test_ctrl_c_stops_a_job_whose_bar_is_drawn(store: inshore.Store, terminal: tuple[int, int]) -> None:
    store.generate_kronecker(scale=15, name="kron")
    reads, writes = terminal
    command = [sys.executable, "-c", textwrap.dedent(IN_A_TERMINAL), str(store.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writes, text=True) as process:
        try:
            seen = b""
            while b"\x1b[K" not in seen:
                assert select.select([reads], [], [], PATIENCE)[0]
                seen += os.read(reads, 1000)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert out == "interrupted\n32768\n"
    os.set_blocking(reads, False)
    rest = b""
    try:
        while part := os.read(reads, 1000):
            rest += part
    except BlockingIOError:
        pass
    assert rest.endswith(b"\r\x1b[K")
