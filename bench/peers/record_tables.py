"""Records of 100 bytes as Parquet, for peers that sort tables: the columns are key (10 bytes) and rest.

    python record_tables.py write RECORDS FOLDER
    python record_tables.py digest FOLDER

`digest` prints the digest of the records in the order of the table, which `bench/cluster_sort.py`
compares with the digest of the sorted file. The files of the table may have any names: they are ordered
by their first keys.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

RECORD_BYTES, KEY_BYTES = 100, 10
REST_BYTES = RECORD_BYTES - KEY_BYTES
FILE_ROWS = (16 << 20) // RECORD_BYTES
BATCH_ROWS = 1 << 16


def write(records: Path, folder: Path) -> None:
    """Write a file of records as a folder of Parquet files of 16 MiB."""
    folder.mkdir(parents=True)
    rows = np.memmap(records, dtype=np.uint8, mode="r").reshape(-1, RECORD_BYTES)
    for number, start in enumerate(range(0, len(rows), FILE_ROWS)):
        block = rows[start : start + FILE_ROWS]
        columns = {"key": column_of(block[:, :KEY_BYTES]), "rest": column_of(block[:, KEY_BYTES:])}
        path = folder / f"{number:05}.parquet"
        pyarrow.parquet.write_table(pa.table(columns), path, compression="none", use_dictionary=False)


def column_of(block: np.ndarray) -> pa.Array:
    """Return a column with a value for each row of bytes."""
    rows, width = block.shape
    buffer = pa.py_buffer(np.ascontiguousarray(block))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), rows, [None, buffer]).cast(pa.binary())


def bytes_of(column: pa.Array, width: int) -> np.ndarray:
    """Return a row of bytes for each value of a column."""
    fixed = column.cast(pa.binary(width))
    values = np.frombuffer(fixed.buffers()[1], dtype=np.uint8)
    return values[fixed.offset * width : (fixed.offset + len(fixed)) * width].reshape(-1, width)


def count(folder: Path) -> int:
    """Return the rows of a folder of Parquet files."""
    return sum(pyarrow.parquet.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


def digest(folder: Path) -> str:
    """Return the digest of the records of a sorted folder of Parquet files."""
    files = {}
    for path in folder.glob("*.parquet"):
        file = pyarrow.parquet.ParquetFile(path)
        if file.metadata.num_rows > 0:
            files[next(file.iter_batches(1, columns=["key"])).column(0)[0].as_py()] = path
    found = hashlib.blake2b()
    for _, path in sorted(files.items()):
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(BATCH_ROWS, columns=["key", "rest"]):
            parts = [bytes_of(batch.column("key"), KEY_BYTES), bytes_of(batch.column("rest"), REST_BYTES)]
            found.update(np.hstack(parts).tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        print(digest(Path(sys.argv[2])))
