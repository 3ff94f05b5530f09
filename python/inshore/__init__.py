"""Analytics on flash: graphs and tables larger than memory, within a memory budget that you set.

A `Store` is a folder of named graphs. A `Graph` runs algorithms:

>>> import inshore
>>> store = inshore.Store()
>>> edges = pa.table({"source": [1, 2, 3], "target": [2, 3, 1]})
>>> graph = store.import_edges(edges, name="ring")
>>> graph.bfs(1, memory="16MiB").table().to_pydict()
{'vertex': [1, 2, 3], 'parent': [1, 1, 2], 'level': [0, 1, 2]}
>>> store.remove("ring")

Verbs return a `Result`, which runs at the first access to its rows: as a table, a reader, a data frame, or a
file. Notebooks show the first rows.

`sort`, `reduce`, `count_values` and `count_kmers` sort, group and count files and tables; `sql` queries
files, tables, and data frames by the names of their variables. `search`, `search_count`, `count_words`,
`language_train` and `language_identify` work on texts; `compress`, `decompress` and `checksum` work on files
as bytes. These functions are the verbs of the default store; each `Store` has the same verbs.

`connect` opens a client of nodes, which has the same verbs and runs them where the files are stored; `serve`
makes a node of this process. `cluster` opens a cluster, whose nodes exchange rows with each other.

Each job has a budget (``memory="64MiB"``, ``threads=4``) and stays within the budget. Long work releases the
GIL; Ctrl-C stops the work and leaves the store unchanged. Notebooks and interactive terminals draw progress
(`show_progress`). Options have the same names as on the command line.

::

    errors    exceptions                 graph, store, nodes    Graph, Store, Nodes: where data is
                                         clusters               Cluster: nodes that exchange rows
    verbs     sort, sql, search, ...     results                Result: methods that return rows
    sources   inputs of verbs            display                output in notebooks and terminals
    fs        inshore:// for fsspec      _native                the extension (python/src)

Each of these modules imports only later modules of this list: ``clusters``, ``nodes``, ``store``, ``graph``,
``verbs``, ``sources``, ``results``, ``display``, ``errors``, ``_native``.
"""

from inshore._native import __version__, features
from inshore.clusters import Cluster, cluster
from inshore.display.progress import show_progress
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
from inshore.results import LevelReport, PhaseReport, Report, Result, Summary, Written
from inshore.sources import ArrayOnFile, ArrowStream
from inshore.store import Store
from inshore.verbs import Here, Packed, SearchOptions, Verbs
from inshore.verbs.searcher import Neighbours, VectorSearcher

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
    "ArrayOnFile",
    "ArrowStream",
    "BudgetError",
    "Cluster",
    "DamagedError",
    "ExistsError",
    "FeatureError",
    "FileError",
    "Graph",
    "GraphInfo",
    "InputError",
    "InshoreError",
    "LevelReport",
    "Neighbours",
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
    "VectorSearcher",
    "Verbs",
    "Written",
    "__version__",
    "checksum",
    "checksum_check",
    "cluster",
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
    "show_progress",
    "sort",
    "sort_lines",
    "sort_records",
    "sql",
]
