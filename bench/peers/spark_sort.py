"""Sort records by Spark in a warm session of this machine, and print the seconds of each run as JSON.

    python spark_sort.py SOURCE FOLDER WORKERS REPEAT [MEMORY_MIB]

SOURCE is a folder of Parquet that `record_tables.py` wrote. The result of the last run stays in
FOLDER/sorted. MEMORY_MIB is the heap of each executor. `bench/cluster_sort.py` runs this script with
the interpreter of the peer.
"""

import json
import shutil
import sys
import time
from pathlib import Path

import record_tables
import spark_session
from pyspark.sql import SparkSession


def sort(spark: SparkSession, source: Path, target: Path) -> None:
    """Sort a table by its key into another table: range partitions, each of them a file."""
    table = spark.read.parquet(str(source)).orderBy("key")
    table.write.parquet(str(target), compression="uncompressed")


def main() -> None:
    """Start a session, and sort."""
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    workers, repeat, *memory = (int(word) for word in sys.argv[3:])
    spark = spark_session.start(folder, workers, *memory)
    # The first run, of one file, loads the classes in the driver and the executors.
    target = folder / "sorted"
    sort(spark, source / "00000.parquet", target)
    times = []
    for _ in range(repeat):
        shutil.rmtree(target)
        began = time.monotonic()
        sort(spark, source, target)
        times.append(time.monotonic() - began)
        found, expected = record_tables.count(target), record_tables.count(source)
        assert found == expected, f"{found} of {expected} rows"
    print(json.dumps(times))
    spark.stop()


if __name__ == "__main__":
    main()
