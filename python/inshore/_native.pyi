"""Type declarations of the native extension. Facts are passed as JSON text, rows as Arrow's C structures."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from typing_extensions import Self

_StrPath = str | os.PathLike[str]

__all__ = [
    "Agent",
    "Batch",
    "Columns",
    "File",
    "Files",
    "Graph",
    "Job",
    "Nodes",
    "Run",
    "Searcher",
    "Store",
    "Writer",
    "__version__",
    "child_main",
    "connect",
    "features",
    "operate",
    "serve",
    "size",
    "table_names",
]

__version__: str
features: tuple[str, ...]

def size(value: str | int) -> int: ...
def operate(
    job: Job,
    request: str,
    *,
    inputs: Sequence[_StrPath],
    output: _StrPath | None = None,
    tables: Sequence[tuple[str, Sequence[_StrPath]]] | None = None,
    nodes: Nodes | None = None,
    graph: Graph | None = None,
    skip: bool = False,
) -> Run: ...

@final
class Store:
    def __new__(cls, path: _StrPath | None = None) -> Self: ...
    @property
    def path(self) -> Path: ...
    def graph(self, name: str) -> Graph: ...
    def job(self, memory: str | int | None = None, threads: int | None = None) -> Job: ...
    def datasets(self) -> str: ...
    def dataset_files(self, name: str) -> str: ...
    def files(self, memory: str | int | None = None) -> Files: ...

@final
class Job:
    @staticmethod
    def plain(memory: str | int | None = None, threads: int | None = None) -> Job: ...
    def scratch_path(self, name: str) -> Path: ...
    def report(self) -> str: ...
    def progress(self) -> tuple[str, str, int, int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Files:
    def open(self, dataset: str, file: str) -> File: ...
    def create(self, dataset: str) -> Writer: ...

@final
class File:
    def __len__(self) -> int: ...
    def read(self, start: int, end: int) -> bytes: ...

@final
class Writer:
    def write(self, bytes: bytes) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...

@final
class Graph:
    @property
    def info(self) -> str: ...

@final
class Run:
    def next(self) -> Columns | Batch | str | None: ...
    def facts(self) -> str: ...
    def written(self) -> list[Path]: ...
    def close(self) -> None: ...

@final
class Searcher:
    def __new__(
        cls,
        store: Store,
        name: str,
        *,
        in_memory: bool,
        calls: int | None,
        memory: str | int | None = None,
        threads: int | None = None,
    ) -> Self: ...
    def search(self, request: str, queries: bytes) -> tuple[Columns, list[Batch], str]: ...
    def info(self) -> str: ...
    def refresh(self) -> bool: ...
    def close(self) -> None: ...

@final
class Columns:
    def __arrow_c_schema__(self) -> Any: ...

def connect(
    addresses: list[str],
    credentials: _StrPath | None,
    deadline: float | None,
    partial: bool,
    node_memory: str | int | None,
    *,
    is_cluster: bool = False,
) -> Nodes: ...
def serve(
    store: Store,
    listen: str,
    name: str,
    credentials: _StrPath | None,
    memory: str | int | None,
    threads: int | None,
    slots: int,
) -> Agent: ...

@final
class Agent:
    @property
    def address(self) -> str: ...
    def close(self) -> None: ...

@final
class Nodes:
    @property
    def addresses(self) -> list[str]: ...
    def status(self, job: Job) -> Run: ...

@final
class Batch:
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[Any, Any]: ...

def table_names(query: str) -> list[str]: ...
def child_main(limits: Sequence[str]) -> None: ...
