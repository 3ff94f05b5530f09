"""Analytics on flash: graphs and tables larger than memory, within a memory budget that you set.

A `Store` is a folder of named graphs. A `Graph` answers questions as tables:

>>> import inshore
>>> store = inshore.Store()
>>> edges = pa.table({"source": [1, 2, 3], "target": [2, 3, 1]})
>>> graph = store.import_edges(edges, name="ring")
>>> graph.bfs(1, memory="16MiB").to_pydict()
{'vertex': [1, 2, 3], 'parent': [1, 1, 2], 'level': [0, 1, 2]}
>>> store.remove("ring")

Files and tables are sorted, grouped and counted by `Store.sort`, `Store.reduce`, `Store.count_values` and
`Store.count_kmers`; `sql` and `Store.sql` answer questions about them. Texts are searched (`search`,
`search_count`), their words counted (`count_words`) and their languages told (`language_train`,
`language_identify`); files are packed and summed by `compress`, `decompress` and `checksum`.

`connect` names nodes on which files are searched, and their words counted, where they lie; `serve` makes one
of this process.

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
from inshore.nodes import Agent, Nodes, NodeSearchOptions, connect, serve
from inshore.packing import Packed, checksum, checksum_check, compress, decompress
from inshore.queries import sql
from inshore.results import LevelReport, PhaseReport, Report, Result, Summary, report, summary
from inshore.store import Store
from inshore.tables import ArrowStream, Written
from inshore.texts import (
    SearchOptions,
    count_words,
    language_identify,
    language_train,
    search,
    search_count,
)

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
    "NodeSearchOptions",
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
    "Written",
    "__version__",
    "checksum",
    "checksum_check",
    "compress",
    "connect",
    "count_words",
    "decompress",
    "features",
    "language_identify",
    "language_train",
    "report",
    "search",
    "search_count",
    "serve",
    "sql",
    "summary",
]
