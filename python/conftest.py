"""Fixtures for all tests and examples, with a temporary store instead of the user's own store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from numpy.typing import NDArray

import inshore


@pytest.fixture(autouse=True)
def store_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "store"
    monkeypatch.setenv("INSHORE_STORE", str(path))
    return path


@pytest.fixture
def store(store_path: Path) -> inshore.Store:
    return inshore.Store(store_path)


@pytest.fixture
def edges(store: inshore.Store) -> pa.Table:
    """Return some thousand random edges between a thousand ids, with self-loops and duplicates."""
    random = np.random.default_rng(7)
    ids = np.sort(random.choice(1 << 40, 1000, replace=False)).astype(np.uint64)
    drawn: NDArray[np.int64] = (random.power(0.4, (4000, 2)) * 1000).astype(np.int64)
    return pa.table({"source": ids[drawn[:, 0]], "target": ids[drawn[:, 1]]})


@pytest.fixture(autouse=True)
def _examples(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    """Provide the examples in docstrings with a `store` that holds the graph 3 → 5 → 7."""
    if not isinstance(request.node, pytest.DoctestItem):
        return
    request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
    store: inshore.Store = request.getfixturevalue("store")
    path = store.import_edges(pa.table({"source": [3, 5], "target": [5, 7]}), name="path")
    doctest_namespace.update(inshore=inshore, pa=pa, Path=Path, store=store, path_of_three=path)
