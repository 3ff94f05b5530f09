"""Run a query by Spark in a warm session of this machine, and print the seconds of each run as JSON.

    python spark_sql.py TABLES QUERY OUTPUT FOLDER WORKERS REPEAT [MEMORY_MIB]

TABLES is a folder of Parquet files. The answer is collected and written as CSV. MEMORY_MIB is the heap
of each executor. `bench/cluster_sql.py` runs this script with the interpreter of the peer.
"""

import csv
import json
import sys
import time
from pathlib import Path

import spark_session


def main() -> None:
    """Start a session, and run the query."""
    tables, query, output, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    workers, repeat, *memory = (int(word) for word in sys.argv[5:])
    spark = spark_session.start(folder, workers, *memory)
    for path in tables.glob("*.parquet"):
        spark.read.parquet(str(path)).createOrReplaceTempView(path.stem)
    times = []
    # The first run, which does not count, loads and compiles the classes.
    for _ in range(repeat + 1):
        began = time.monotonic()
        answer = spark.sql(query)
        rows = answer.collect()
        times.append(time.monotonic() - began)
    with output.open("w", newline="") as text:
        csv.writer(text).writerows([answer.columns, *rows])
    print(json.dumps(times[1:]))
    spark.stop()


if __name__ == "__main__":
    main()
