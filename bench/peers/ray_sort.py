"""Sort records by Ray Data on a warm cluster of this machine, and print the seconds of each run as JSON.

    python ray_sort.py SOURCE FOLDER WORKERS REPEAT [MEMORY_MIB]

SOURCE is a folder of Parquet that `record_tables.py` wrote. The result of the last run stays in
FOLDER/sorted. MEMORY_MIB is the size of the object store of each node of Ray. `bench/cluster_sort.py`
runs this script with the interpreter of the peer.
"""

import json
import logging
import shutil
import sys
import time
from pathlib import Path

import ray
import record_tables
from ray.cluster_utils import Cluster


def sort(source: str, target: Path) -> None:
    """Sort a table by its key into another table."""
    ray.data.read_parquet(source).sort("key").write_parquet(str(target), compression="none")


def main() -> None:
    """Start a cluster, and sort."""
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    workers, repeat, *memory = (int(word) for word in sys.argv[3:])
    node = {"num_cpus": 1, **({"object_store_memory": memory[0] << 20} if memory else {})}
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **node})
    for _ in range(workers - 1):
        cluster.add_node(**node)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    # The first run, of one file, starts the workers.
    target = folder / "sorted"
    sort(str(source / "00000.parquet"), target)
    times = []
    for _ in range(repeat):
        shutil.rmtree(target)
        began = time.monotonic()
        sort(str(source), target)
        times.append(time.monotonic() - began)
        found, expected = record_tables.count(target), record_tables.count(source)
        assert found == expected, f"{found} of {expected} rows"
    print(json.dumps(times))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
