"""Analytics on flash: graphs and tables larger than memory, within a memory budget that you set.

A `Store` is a folder of named graphs. A `Graph` answers questions:

>>> import inshore
>>> store = inshore.Store()
>>> edges = pa.table({"source": [1, 2, 3], "target": [2, 3, 1]})
>>> graph = store.import_edges(edges, name="ring")
>>> graph.bfs(1, memory="16MiB").table().to_pydict()
{'vertex': [1, 2, 3], 'parent': [1, 1, 2], 'level': [0, 1, 2]}
>>> store.remove("ring")

Verbs give a `Result`, which runs when its rows are asked for: as a table, a reader, a data frame, or a file.

Files and tables are sorted, grouped and counted by `sort`, `reduce`, `count_values` and `count_kmers`; `sql`
answers questions about them. Texts are searched (`search`, `search_count`), their words counted
(`count_words`) and their languages told (`language_train`, `language_identify`); files are packed and summed
by `compress`, `decompress` and `checksum`. These functions are the verbs of the store of habit; a `Store` has
the same verbs.

`connect` names nodes, which have the verbs too, and do them where files lie; `serve` makes one of this
process.

Every job takes a budget (``memory="64MiB"``, ``threads=4``) and keeps it. Long work releases the GIL, and
Ctrl-C stops it and leaves the store as it was. The words are those of the command line.
"""

from inshore._native import __version__, features
from inshore.errors import (
    BudgetError,
    DamagedError,
    ExistsError,
    FeatureError,
    FileError,
    InputError,
    InshoreError,
    NodeError,
    NotFoundError,
    SkippedWarning,
)
from inshore.graph import Graph, GraphInfo
from inshore.nodes import Agent, Nodes, connect, serve
from inshore.packing import Packed
from inshore.results import LevelReport, PhaseReport, Report, Result, Summary, Written
from inshore.sources import ArrowStream
from inshore.store import Store
from inshore.texts import SearchOptions
from inshore.verbs import Here, Verbs

_here = Here()
checksum = _here.checksum
checksum_check = _here.checksum_check
compress = _here.compress
count_kmers = _here.count_kmers
count_values = _here.count_values
count_words = _here.count_words
decompress = _here.decompress
language_identify = _here.language_identify
language_train = _here.language_train
reduce = _here.reduce
search = _here.search
search_count = _here.search_count
sort = _here.sort
sort_lines = _here.sort_lines
sort_records = _here.sort_records
sql = _here.sql

__all__ = [
    "Agent",
    "ArrowStream",
    "BudgetError",
    "DamagedError",
    "ExistsError",
    "FeatureError",
    "FileError",
    "Graph",
    "GraphInfo",
    "InputError",
    "InshoreError",
    "LevelReport",
    "NodeError",
    "Nodes",
    "NotFoundError",
    "Packed",
    "PhaseReport",
    "Report",
    "Result",
    "SearchOptions",
    "SkippedWarning",
    "Store",
    "Summary",
    "Verbs",
    "Written",
    "__version__",
    "checksum",
    "checksum_check",
    "compress",
    "connect",
    "count_kmers",
    "count_values",
    "count_words",
    "decompress",
    "features",
    "language_identify",
    "language_train",
    "reduce",
    "search",
    "search_count",
    "serve",
    "sort",
    "sort_lines",
    "sort_records",
    "sql",
]
