"""Reads the rows of a run in native code."""

from __future__ import annotations

import json
import warnings
from collections.abc import Generator
from typing import Any, cast

import pyarrow as pa

from inshore import _native
from inshore.display.progress import Watch
from inshore.errors import SkippedWarning


def drained(run: _native.Run, watch: Watch) -> dict[str, Any]:
    """Run to the end, discard the rows, and return the facts of the run."""
    for _ in pieces(run, watch):
        pass
    facts: dict[str, Any] = json.loads(run.facts())
    return facts


def pieces(run: _native.Run, watch: Watch) -> Generator[Any]:
    """Yield the columns of a run, and then batches of rows."""
    # Rows are passed by Python calls instead of Arrow's C stream, so that Ctrl-C, exceptions and warnings
    # reach the caller. The rows are not copied.
    try:
        while True:
            with watch.waiting():
                piece = run.next()
            if piece is None:
                return
            if isinstance(piece, str):
                warnings.warn(piece, SkippedWarning, stacklevel=4)
            elif isinstance(piece, _native.Columns):
                yield pa.schema(cast("Any", piece))
            else:
                yield pa.record_batch(piece)
    finally:
        run.close()
