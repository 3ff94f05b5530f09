"""The inputs of a verb: files by name, datasets, and Arrow data in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from inshore import _native
from inshore.errors import InputError
from inshore.results import Result, StrPath

# The size of the batches in which Arrow data are written to a file. A job holds one batch at a time, and
# import refuses batches larger than a quarter of its budget: 2 MiB for the smallest budget.
_PIECE_BYTES = 1 << 20


@runtime_checkable
class ArrowStream(Protocol):
    """An object that exports Arrow data as a stream.

    Examples are a `pyarrow.Table`, `pyarrow.RecordBatchReader` or `pyarrow.RecordBatch`, a `Result`, and the
    data frames of Polars, pandas (from 2.2 on) and DuckDB.

    Examples
    --------
    >>> isinstance(pa.table({"size": [1]}), inshore.ArrowStream)
    True
    >>> isinstance([1, 2], inshore.ArrowStream)
    False
    """

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a capsule with the name ``arrow_array_stream``.

        Examples
        --------
        >>> type(pa.table({"size": [1]}).__arrow_c_stream__()).__name__
        'PyCapsule'
        """


@runtime_checkable
class ArrayOnFile(Protocol):
    """An array whose rows are read when they are sliced, as a `h5py.Dataset` or an array of `zarr`.

    Examples
    --------
    >>> isinstance("vectors.npy", inshore.ArrayOnFile)
    False
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of vectors, and the number of dimensions.

        Examples
        --------
        >>> import numpy as np
        >>> np.zeros((3, 2), np.float32).shape
        (3, 2)
        """

    @property
    def dtype(self) -> Any:
        """The type of the elements, as NumPy names it.

        Examples
        --------
        >>> import numpy as np
        >>> np.zeros((3, 2), np.float32).dtype
        dtype('float32')
        """

    def __getitem__(self, rows: slice, /) -> Any:
        """Return the vectors of a range as an array of NumPy.

        Examples
        --------
        >>> import numpy as np
        >>> np.zeros((3, 2), np.float32)[0:2].shape
        (2, 2)
        """


# One file, several files, or Arrow data.
Source = StrPath | Iterable[StrPath] | ArrowStream


class Inputs:
    """A source: names of files, or Arrow data that each run writes to a file."""

    def __init__(self, source: Source, option: str = "source", columns: Sequence[str] | None = None) -> None:
        self._data = source if isinstance(source, ArrowStream) else None
        self._columns = columns
        self._is_spent = False
        self._paths = [] if isinstance(source, ArrowStream) else listed(source, option)

    def __str__(self) -> str:
        """Name the source, for `repr` of a result."""
        names = [os.fspath(path) for path in self._paths]
        return "Arrow data" if self.is_data else repr(names[0] if len(names) == 1 else names)

    @property
    def is_data(self) -> bool:
        """Tell whether this is Arrow data."""
        return self._data is not None

    @property
    def has_stored(self) -> bool:
        """Tell whether a dataset of the store is among the names."""
        return any(os.fspath(path).startswith("store:") for path in self._paths)

    def paths(self, job: _native.Job, name: str = "source.arrow") -> list[StrPath]:
        """Return the files; Arrow data are written to a file, with the needed columns only."""
        if self._data is None:
            return list(self._paths)
        if self._is_spent and isinstance(self._data, pa.RecordBatchReader):
            raise InputError("the reader was read already: expected a table or a file for a second run")
        self._is_spent = True
        path = job.scratch_path(name)
        _spill(self._data, path, self._columns)
        return [path]


def _spill(source: ArrowStream, path: Path, named: Sequence[str] | None) -> None:
    """Write columns of `source`, or all columns, as an Arrow stream, one batch after the other."""
    # A reader is not wrapped again, so that an exception of the caller's generator passes unchanged.
    reader = source.reader() if isinstance(source, Result) else source
    if not isinstance(reader, pa.RecordBatchReader):
        reader = pa.RecordBatchReader.from_stream(reader)
    fields = list(reader.schema)
    wanted = [at for at, field in enumerate(fields) if named is None or field.name in named]
    with pa.ipc.new_stream(str(path), pa.schema([fields[at] for at in wanted])) as writer:
        for batch in reader:
            part = batch.select(wanted)
            rows = max(1, _PIECE_BYTES * part.num_rows // max(1, part.nbytes))
            for start in range(0, part.num_rows, rows):
                writer.write_batch(part.slice(start, rows))


def listed(paths: StrPath | Iterable[StrPath], option: str) -> list[StrPath]:
    """Return one or several paths as a list, and raise an error if there is none."""
    if isinstance(paths, (str, os.PathLike)):
        return [paths]
    listed = list(paths)
    if not listed:
        raise InputError(f"{option} is empty: expected at least one file")
    return listed
