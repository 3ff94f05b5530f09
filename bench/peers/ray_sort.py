"""Sort records by Ray Data on a warm cluster of this machine, and print the seconds of each run as JSON.

    python ray_sort.py RECORDS FOLDER WORKERS REPEAT

`bench/cluster_sort.py` runs it with the interpreter of the peer.
"""

import json
import logging
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import ray
from ray.cluster_utils import Cluster


def main() -> None:
    records, folder, workers, repeat = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "source"
    source.mkdir()
    rows = np.memmap(records, dtype=np.uint8, mode="r").reshape(-1, 100)
    step = (16 << 20) // 100
    for number, start in enumerate(range(0, len(rows), step)):
        block = np.ascontiguousarray(rows[start : start + step])
        key = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(10), len(block), [None, pa.py_buffer(np.ascontiguousarray(block[:, :10]))]
        )
        rest = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(90), len(block), [None, pa.py_buffer(np.ascontiguousarray(block[:, 10:]))]
        )
        table = pa.table({"key": key.cast(pa.binary()), "rest": rest})
        pyarrow.parquet.write_table(table, source / f"{number:05}.parquet", compression="none", use_dictionary=False)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(workers - 1):
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    # The first run starts the workers.
    ray.data.range(1000).sort("id").materialize()
    times = []
    for turn in range(repeat):
        target = folder / f"sorted{turn}"
        began = time.monotonic()
        ray.data.read_parquet(str(source)).sort("key").write_parquet(str(target))
        times.append(time.monotonic() - began)
        found = sum(pyarrow.parquet.read_metadata(file).num_rows for file in target.glob("*.parquet"))
        assert found == len(rows), f"{found} of {len(rows)} rows"
        shutil.rmtree(target)
    print(json.dumps(times))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
