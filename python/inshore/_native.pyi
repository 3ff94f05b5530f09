"""The native half; see python/src. Facts are JSON text, rows are Arrow's C structures."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from typing_extensions import Self

_StrPath = str | os.PathLike[str]

__all__ = [
    "Answer",
    "Batch",
    "File",
    "Files",
    "Graph",
    "Job",
    "Store",
    "Writer",
    "__version__",
    "check_output",
    "count_kmers",
    "reduce",
    "sort_lines",
    "sort_records",
    "sort_tables",
]

__version__: str

def check_output(path: _StrPath) -> None: ...
def sort_tables(
    job: Job,
    paths: Sequence[_StrPath],
    output: _StrPath,
    keys: Sequence[tuple[str, bool]],
    text: Sequence[str],
    unique: bool,
    resume: bool,
) -> str: ...
def sort_lines(
    job: Job, paths: Sequence[_StrPath], output: _StrPath, descending: bool, unique: bool, resume: bool
) -> str: ...
def sort_records(
    job: Job,
    paths: Sequence[_StrPath],
    output: _StrPath,
    record_bytes: int,
    key: tuple[int, int],
    descending: bool,
    unique: bool,
    resume: bool,
) -> str: ...
def reduce(
    job: Job,
    paths: Sequence[_StrPath],
    output: _StrPath,
    by: Sequence[str],
    aggregates: Sequence[tuple[str, str | None]],
    text: Sequence[str],
    resume: bool,
) -> str: ...
def count_kmers(
    job: Job,
    paths: Sequence[_StrPath],
    output: _StrPath,
    k: int,
    canonical: bool,
    min_count: int,
    codes: bool,
    resume: bool,
) -> str: ...

@final
class Store:
    def __new__(cls, path: _StrPath | None = None) -> Self: ...
    @property
    def path(self) -> Path: ...
    def graphs(self) -> str: ...
    def graph(self, name: str) -> Graph: ...
    def remove(self, name: str) -> None: ...
    def job(self, memory: str | int | None = None, threads: int | None = None) -> Job: ...
    def datasets(self) -> str: ...
    def dataset_files(self, name: str) -> str: ...
    def files(self, memory: str | int | None = None) -> Files: ...
    def import_edges(
        self,
        job: Job,
        name: str,
        paths: Sequence[_StrPath],
        *,
        format: str | None = None,
        undirected: bool = False,
        drop_loops: bool = False,
        weighted: bool = False,
        reverse: bool = False,
        source_column: str | None = None,
        target_column: str | None = None,
        weight_column: str | None = None,
    ) -> Graph: ...
    def generate_kronecker(
        self, job: Job, name: str, *, scale: int, edge_factor: int, seed: int, reverse: bool
    ) -> Graph: ...

@final
class Job:
    def scratch_path(self, name: str) -> Path: ...
    def report(self) -> str: ...
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
    def pagerank(
        self, job: Job, iterations: int, damping: float, tolerance: float, resume: bool
    ) -> Answer: ...
    def bfs(self, job: Job, source: int, resume: bool) -> Answer: ...
    def sssp(self, job: Job, source: int, resume: bool) -> Answer: ...
    def components(self, job: Job, resume: bool) -> Answer: ...
    def communities(self, job: Job, iterations: int, resume: bool) -> Answer: ...
    def clustering(self, job: Job) -> Answer: ...
    def betweenness(self, job: Job, sources: int, seed: int, resume: bool) -> Answer: ...
    def export(self, job: Job, path: _StrPath) -> int: ...

@final
class Answer:
    @property
    def summary(self) -> str: ...
    def next_batch(self) -> Batch | None: ...
    def write(self, path: _StrPath) -> int: ...
    def close(self) -> None: ...
    def __arrow_c_schema__(self) -> Any: ...

@final
class Query:
    @property
    def summary(self) -> str: ...
    def next_batch(self) -> Batch | None: ...
    def write(self, path: _StrPath) -> int: ...
    def close(self) -> None: ...
    def __arrow_c_schema__(self) -> Any: ...

def query(job: Job, text: str, tables: list[tuple[str, list[_StrPath]]], as_text: list[str]) -> Query: ...

@final
class Batch:
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[Any, Any]: ...
