"""Draws the progress of running jobs in notebooks and in terminals.

```text
   the caller's thread                         the thread "inshore-progress"
     Watch.waiting: waits in native code ····►   ten times a second: reads the job's counters, draws
     back with rows: the bar is erased           sleeps while nobody waits for the job
```

A job only counts its work. A `Watch` draws the counters of one job while a Python thread waits for the job.
Drawing begins after half a second, so that short jobs draw nothing. Signals still reach the waiting thread,
since drawing only reads counters. IPython is used if it is loaded already, and is never imported.
"""

from __future__ import annotations

import contextvars
import html
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from inshore import _native
from inshore.display.html import format_bytes
from inshore.errors import InshoreError

_PERIOD_SECONDS = 0.1
_DELAY_SECONDS = 0.5

_BAR_CHARACTERS = 20
_PHASE_CHARACTERS = 20
_TRANSFERS = (("read", "read"), ("wrote", "written"))

# The largest number of characters of a job's title in a notebook.
_TITLE_CHARACTERS = 100

# The user's choice, or None if the kind of the output decides.
_choice: bool | None = None


def show_progress(shown: bool | None = True) -> None:
    """Set whether jobs of more than half a second draw a progress bar.

    A bar names the job's phase, the work done, the rate and the remaining time. It appears below the cell of
    a notebook, or as one line on standard error, which is erased when the job ends. Ctrl-C, or the button
    that interrupts a notebook, stops the job as without a bar. A query has no phases: its bar shows the time
    and the bytes that were read from the store and written to it. The cost is one thread for each drawn job,
    which reads counters ten times a second.

    Parameters
    ----------
    shown : bool or None, default True
        True draws bars, false draws none. None, the initial setting, draws bars in notebooks and in an
        interactive Python at a terminal, but not in scripts.

    Examples
    --------
    >>> inshore.show_progress(False)
    >>> inshore.show_progress(None)
    """
    global _choice  # noqa: PLW0603
    _choice = shown


class Display(Protocol):
    """A place where a progress bar is drawn."""

    def draw(self, title: str, state: State) -> None:
        """Draw the state, and replace the previous state."""

    def erase(self) -> None:
        """Remove the bar, since other output may go to the same place."""

    def finish(self, title: str, seconds: float, is_complete: bool) -> None:
        """Replace a drawn bar by a line about the end of the job."""


class State:
    """The content of a bar: the phase, the finished part if known, and the rate with the remaining time."""

    def __init__(self, phase: str, part: float | None, pace: str) -> None:
        self.phase = phase
        self.part = part
        self.pace = pace


class Watch:
    """Draws the progress of one job while a thread waits for the job."""

    def __init__(self, job: _native.Job, title: str) -> None:
        self._job = job
        self._title = title
        self._display = _display()
        self._begun = time.monotonic()
        self._phase = ("", self._begun, 0)
        self._is_waiting = False
        self._is_drawn = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        """Return the watch."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        """Stop drawing."""
        if self._thread is None or self._display is None:
            return
        self._stop.set()
        self._thread.join()
        if self._is_drawn:
            self._display.finish(self._title, time.monotonic() - self._begun, kind is None)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Draw while the ``with`` block waits for the job."""
        if self._display is None:
            yield
            return
        if self._thread is None:
            # Notebooks send the output of a thread to the cell that the thread's context names.
            target = contextvars.copy_context().run
            self._thread = threading.Thread(
                target=target, args=(self._draw,), name="inshore-progress", daemon=True
            )
            self._thread.start()
        self._is_waiting = True
        try:
            yield
        finally:
            with self._lock:
                self._is_waiting = False
                if self._is_drawn:
                    self._display.erase()

    def _draw(self) -> None:
        while not self._stop.wait(_PERIOD_SECONDS):
            with self._lock:
                if not self._is_waiting or time.monotonic() - self._begun < _DELAY_SECONDS:
                    continue
                try:
                    state = self._state()
                except InshoreError:  # The job has ended.
                    return
                if self._display is not None:
                    self._display.draw(self._title, state)
                    self._is_drawn = True

    def _state(self) -> State:
        phase, unit, done, total = self._job.progress()
        now = time.monotonic()
        if not phase:
            # The process of a query reports its transfers, but no phase.
            report = json.loads(self._job.report())
            transfers = ((verb, report[f"bytes_{name}"]) for verb, name in _TRANSFERS)
            told = [f"{verb} {format_bytes(size)}" for verb, size in transfers if size]
            return State("running", None, ", ".join([_duration(now - self._begun), *told]))
        if phase != self._phase[0]:
            self._phase = (phase, now, done)
        _, seen, done_when_seen = self._phase
        part = min(done / total, 1.0) if total else None
        return State(phase, part, _pace(unit, done - done_when_seen, max(total - done, 0), now - seen))


class _Terminal:
    """Draws a bar as one line on standard error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def draw(self, title: str, state: State) -> None:
        columns = shutil.get_terminal_size().columns - 1
        phase = f"{state.phase[:_PHASE_CHARACTERS]:{_PHASE_CHARACTERS}}"
        if state.part is None:
            line = f"{phase} {state.pace}"
        else:
            filled = int(state.part * _BAR_CHARACTERS)
            bar = "━" * filled + "─" * (_BAR_CHARACTERS - filled)
            line = f"{phase} {bar} {state.part:4.0%}  {state.pace}"
        self._write(f"\r{line[:columns]}\x1b[K")

    def erase(self) -> None:
        self._write("\r\x1b[K")

    def finish(self, title: str, seconds: float, is_complete: bool) -> None:
        self.erase()

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # A bar that cannot be drawn is no reason to fail.
            pass


class _Notebook:
    """Draws a bar as an output below the cell of a notebook, which is updated in place."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def draw(self, title: str, state: State) -> None:
        part = "" if state.part is None else f' value="{state.part:.3f}" max="1"'
        bar = f'<progress style="vertical-align: middle"{part}></progress>'
        percent = "" if state.part is None else f" {state.part:.0%}"
        self._show(title, f"{bar}{percent} {html.escape(state.phase)}", f"{state.phase}{percent}", state.pace)

    def erase(self) -> None:
        # Nothing else writes to the bar's output, so the output is not erased.
        pass

    def finish(self, title: str, seconds: float, is_complete: bool) -> None:
        end = "done in" if is_complete else "stopped after"
        self._show(title, f"{end} {_duration(seconds)}", f"{end} {_duration(seconds)}", "")

    def _show(self, title: str, rich: str, plain: str, pace: str) -> None:
        title = title if len(title) <= _TITLE_CHARACTERS else f"{title[:_TITLE_CHARACTERS]}…"
        bundle = {
            "text/html": f'<div class="inshore">{rich} <span style="opacity: 0.65; font-size: 90%">'
            f"{html.escape(pace)} {html.escape(title)}</span></div>",
            "text/plain": " ".join(filter(None, [plain, pace, title])),
        }
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def _display() -> Display | None:
    """Return the place for bars, or None if no bar is to be drawn."""
    if _choice is False:
        return None
    shell = _ipython_shell()
    if shell is not None and hasattr(shell, "kernel"):
        return _Notebook(sys.modules["IPython.display"].display)
    is_interactive = shell is not None or hasattr(sys, "ps1")
    # Standard error is None in programs without a console.
    if (_choice or is_interactive) and sys.stderr is not None and sys.stderr.isatty():
        return _Terminal(sys.stderr)
    return None


def _ipython_shell() -> Any:
    """Return the shell of IPython that runs this process, if there is one."""
    ipython: Any = sys.modules.get("IPython")
    if ipython is None or "IPython.display" not in sys.modules:
        return None
    return ipython.get_ipython()


def _pace(unit: str, done: int, left: int, seconds: float) -> str:
    """Return the rate of a phase and its remaining time.

    >>> _pace("edges", 40_000_000, 40_000_000, 10.0)
    '4.0 M edges/s, 10 s left'
    >>> _pace("bytes", 1 << 20, 0, 10.0), _pace("edges", 0, 9, 10.0)
    ('102.4 KiB/s', '')
    """
    if done <= 0 or seconds < 2 * _PERIOD_SECONDS:
        return ""
    rate = done / seconds
    if unit == "bytes":
        speed = f"{format_bytes(int(rate))}/s"
    elif rate >= 1e6:  # noqa: PLR2004
        speed = f"{rate / 1e6:.1f} M {unit}/s"
    elif rate >= 1e3:  # noqa: PLR2004
        speed = f"{rate / 1e3:.1f} k {unit}/s"
    else:
        speed = f"{rate:.1f} {unit}/s"
    return f"{speed}, {_duration(left / rate)} left" if left else speed


def _duration(seconds: float) -> str:
    """Return a time in its two largest units.

    >>> [_duration(seconds) for seconds in (0.42, 12.3, 75, 7384)]
    ['0.4 s', '12 s', '1 min 15 s', '2 h 3 min']
    """
    if seconds < 10:  # noqa: PLR2004
        return f"{seconds:.1f} s" if seconds % 1 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
