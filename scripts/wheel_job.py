"""Run a job with the installed package `inshore` and compare its answers with known ones.

    python -I scripts/wheel_job.py FOLDER

FOLDER becomes the store. `-I` keeps the package of this checkout out.
"""

from __future__ import annotations

import sys

import pyarrow as pa

import inshore

TOLERANCE = 1e-12


def main(folder: str) -> None:
    """Rank a ring, where all ranks are equal, and add numbers up in SQL."""
    size = 1000
    ring = pa.table({"source": range(size), "target": [*range(1, size), 0]})
    store = inshore.Store(folder)
    ranks = store.import_edges(ring, name="ring").pagerank(memory="16MiB").table()
    assert ranks.num_rows == size, ranks.num_rows
    assert all(abs(rank.as_py() - 1 / size) < TOLERANCE for rank in ranks["rank"]), ranks["rank"]

    answer = store.sql("SELECT sum(source) AS total FROM ring", tables={"ring": ring}, memory="64MiB")
    assert answer.table()["total"].to_pylist() == [size * (size - 1) // 2], answer
    print(f"{size} ranks and a sum are right")


if __name__ == "__main__":
    main(sys.argv[1])
