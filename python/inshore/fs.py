"""Presents datasets as files to all libraries that read through fsspec, such as pandas, pyarrow and DuckDB.

Importing this module needs fsspec (``pip install inshore[fsspec]``). After the installation, fsspec finds
``inshore://`` without an import:

>>> import fsspec
>>> with fsspec.open("inshore://notes.txt", "wb") as file:
...     _ = file.write(b"checked whenever it is read")
>>> fsspec.open("inshore://notes.txt").open().read()
b'checked whenever it is read'

======================  ==================================================================
``inshore://NAME``      a dataset of plain bytes: a file; any other (a graph): a folder
``inshore://NAME/FILE`` a file of such a folder
======================  ==================================================================

Datasets never change. Writing creates a new dataset, completely or not at all; an existing name is refused.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fsspec import AbstractFileSystem  # type: ignore[import-untyped]

from inshore import _native
from inshore.display.progress import Watch
from inshore.errors import ExistsError, InputError, NotFoundError
from inshore.results import StrPath, drained
from inshore.verbs.target import operate

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

__all__ = ["InshoreFileSystem", "InshoreReader", "InshoreWriter"]

# The name of the one file of a dataset of plain bytes, and the kind of such a dataset.
_BYTES = "bytes"

# The earliest time that `modified` returns, and the number of different times, as in a mounted store.
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_YEAR_MICROSECONDS = 365 * 24 * 3600 * 1_000_000

# The default number of bytes of one read request.
_BUFFER_BYTES = 256 << 10


class InshoreFileSystem(AbstractFileSystem):  # type: ignore[misc]
    r"""A store as an fsspec file system.

    Parameters
    ----------
    store : path, optional
        Folder of the store. By default ``$INSHORE_STORE``, else ``inshore`` in the user's data directory.
    memory : str or int, default "64MiB"
        The budget for the buffers of all open files; returned bytes take additional memory. 8 MiB is enough
        for a few files.
    **options
        The options of all fsspec file systems.

    Notes
    -----
    A missing file raises `FileNotFoundError` and an existing name `FileExistsError`, as fsspec specifies; all
    other errors are an `inshore.InshoreError`. Reading damaged bytes raises `inshore.DamagedError`, and never
    returns them.

    Examples
    --------
    >>> from inshore.fs import InshoreFileSystem
    >>> files = InshoreFileSystem(store=store.path)
    >>> files.pipe_file("squares.csv", b"n,square\n2,4\n3,9\n")
    >>> files.ls("", detail=False)
    ['path', 'squares.csv']
    >>> files.cat_file("inshore://squares.csv", start=-4)
    b'3,9\n'
    >>> files.rm("squares.csv")
    """

    protocol = "inshore"
    root_marker = ""
    # The default store may change between two instances.
    cachable = False

    def __init__(self, store: StrPath | None = None, *, memory: str | int = "64MiB", **options: Any) -> None:
        super().__init__(store=store, memory=memory, **options)
        self._store = _native.Store(store)
        self._memory = memory
        # All open files share one job. The files refer to the job, so that the job ends with the last file.
        self._files: weakref.ref[_native.Files] | None = None

    @property
    def fsid(self) -> str:
        """The identity of this store.

        Examples
        --------
        >>> from inshore.fs import InshoreFileSystem
        >>> InshoreFileSystem(store=store.path).fsid
        'inshore-/...'
        """
        return f"inshore-{self._store.path}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        stripped = super()._strip_protocol(path)
        return stripped if isinstance(stripped, list) else stripped.strip("/")

    def _job(self) -> _native.Files:
        files = self._files() if self._files is not None else None
        if files is None:
            files = self._store.files(self._memory)
            self._files = weakref.ref(files)
        return files

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """List the datasets, the files of a dataset, or a single file.

        Parameters
        ----------
        path : str
            The dataset or file; an empty path names the store.
        detail : bool, default True
            True for size and type, false for names only.
        **kwargs
            Not used.

        Returns
        -------
        list
            A `dict` as from `info`, or a name, for each entry.

        Examples
        --------
        >>> from inshore.fs import InshoreFileSystem
        >>> InshoreFileSystem().ls("", detail=False)
        ['path']
        """
        path = self._strip_protocol(path)
        if not path:
            found = [_dataset_info(dataset) for dataset in json.loads(self._store.datasets())]
        else:
            info = self.info(path)
            found = self._folder(path) if info["type"] == "directory" else [info]
        return found if detail else [entry["name"] for entry in found]

    def _folder(self, name: str) -> list[dict[str, Any]]:
        with _as_file_errors(name):
            dataset = json.loads(self._store.dataset_files(name))
        return [_file_info(dataset, file) for file in dataset["files"]]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Return the properties of a dataset or of its file.

        Parameters
        ----------
        path : str
            The dataset or file.
        **kwargs
            Not used.

        Returns
        -------
        dict
            ``name``, ``size`` in bytes, ``type`` (``"file"`` or ``"directory"``), and ``kind`` and ``id`` of
            the dataset; the ``id`` is unique among all datasets of the store, past and present.

        Raises
        ------
        FileNotFoundError
            If the path does not exist.

        Examples
        --------
        >>> from inshore.fs import InshoreFileSystem
        >>> InshoreFileSystem().info("path")["type"]
        'directory'
        """
        path = self._strip_protocol(path)
        if not path:
            return {"name": "", "size": 0, "type": "directory", "kind": "store", "id": 0}
        name, _, file = path.partition("/")
        with _as_file_errors(path):
            dataset = json.loads(self._store.dataset_files(name))
        if not file:
            return _dataset_info(dataset)
        if dataset["kind"] != _BYTES:
            for entry in dataset["files"]:
                if entry["name"] == file:
                    return _file_info(dataset, entry)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def modified(self, path: str) -> datetime:
        """Return a time that differs for each dataset of the same name.

        The store records no times. The result is a time in 1970, computed from the dataset's ``id``, with
        which a cache can check whether its copy is current.

        Parameters
        ----------
        path : str
            A dataset or its file.

        Returns
        -------
        datetime.datetime
            The time, in UTC.

        Examples
        --------
        >>> from inshore.fs import InshoreFileSystem
        >>> files = InshoreFileSystem()
        >>> files.pipe_file("note", b"buy milk")
        >>> first = files.modified("note")
        >>> files.rm("note")
        >>> files.pipe_file("note", b"feed cat")
        >>> files.modified("note") != first
        True
        """
        return _EPOCH + timedelta(microseconds=self.info(path)["id"] % _YEAR_MICROSECONDS)

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Open a file to read, or create a dataset.

        Parameters
        ----------
        path : str
            The file; a new dataset has no slash in its name.
        mode : str, default "rb"
            ``"rb"`` or ``"wb"``, or without the ``b`` for text.
        block_size : int, optional
            The number of bytes of one read request; 256 KiB by default.
        cache_options : dict, optional
            Not used.
        compression : str, optional
            The compression of a file to read. To write, use `fsspec.open`, which closes compressor and file.
        **kwargs
            The options ``encoding``, ``errors`` and ``newline`` of text.

        Returns
        -------
        InshoreReader or InshoreWriter
            The file, or a wrapper around it.

        Raises
        ------
        FileNotFoundError, IsADirectoryError
            If the file to read does not exist.
        FileExistsError
            If a dataset of that name exists already.

        Examples
        --------
        >>> from inshore.fs import InshoreFileSystem
        >>> files = InshoreFileSystem()
        >>> with files.open("note", "w") as file:
        ...     _ = file.write("buy milk")
        >>> with files.open("note") as file:
        ...     file.read()
        b'buy milk'
        """
        if compression is not None and "r" not in mode:
            raise NotImplementedError("fs.open cannot write with compression: use fsspec.open")
        return super().open(path, mode, block_size, cache_options, compression, **kwargs)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> InshoreReader | InshoreWriter:
        """Open a file to read, or create a dataset; see `open`."""
        if mode == "rb":
            return InshoreReader(self, path, self._native_file(path), block_size)
        if mode not in {"wb", "xb"}:
            raise InputError(f"mode is {mode!r}: expected 'rb', 'wb' or 'xb', since datasets are immutable")
        with _as_file_errors(path):
            return InshoreWriter(path, self._job().create(path), publish=autocommit)

    def _native_file(self, path: str) -> _native.File:
        info = self.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        name, _, file = path.partition("/")
        with _as_file_errors(path):
            return self._job().open(name, file or _BYTES)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Read a file or a range of a file.

        Parameters
        ----------
        path : str
            The file.
        start, end : int, optional
            The range; negative numbers count from the end, as in a slice.
        **kwargs
            Not used.

        Returns
        -------
        bytes
            The bytes of the range that exist.

        Examples
        --------
        >>> from inshore.fs import InshoreFileSystem
        >>> files = InshoreFileSystem()
        >>> files.pipe_file("note", b"buy milk")
        >>> files.cat_file("note", -4)
        b'milk'
        """
        file = self._native_file(self._strip_protocol(path))
        first, last, _ = slice(start, end).indices(len(file))
        return file.read(first, max(first, last))

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove datasets. Open files stay readable.

        Parameters
        ----------
        path : str or list of str
            The datasets.
        recursive : bool, default False
            True if a dataset of several files may be removed.
        maxdepth : int, optional
            Not used.

        Raises
        ------
        FileNotFoundError
            If the dataset does not exist.
        IsADirectoryError
            If the dataset has several files and `recursive` is false.
        PermissionError
            If the path names a file of a dataset, which is removed only as a whole.

        Examples
        --------
        >>> from inshore.fs import InshoreFileSystem
        >>> files = InshoreFileSystem()
        >>> files.rm("path", recursive=True)
        >>> files.ls("")
        []
        """
        for each in [path] if isinstance(path, str) else path:
            name = self._strip_protocol(each)
            info = self.info(name)
            if not name or "/" in name:
                raise PermissionError(errno.EPERM, "a file of a dataset cannot be removed", name)
            if info["type"] == "directory" and not recursive:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
            with _as_file_errors(name), self._store.job("32MiB", 1) as job, Watch(job, "removal") as watch:
                drained(operate(job, "store rm", {}, [name]), watch)

    def _rm(self, path: str) -> None:
        """Remove one dataset; called by `rm_file`."""
        self.rm(path)


class InshoreReader(io.BufferedReader):
    """A file of a dataset, open for reads at any offset. Removing the dataset does not affect the reader.

    Attributes
    ----------
    fs : InshoreFileSystem
        The file system that opened the file.
    path : str
        The path of the file.
    size : int
        The length in bytes.

    Examples
    --------
    >>> from inshore.fs import InshoreFileSystem
    >>> files = InshoreFileSystem()
    >>> files.pipe_file("note", b"buy milk")
    >>> file = files.open("note")
    >>> file.size, file.seek(4), file.read()
    (8, 4, b'milk')
    """

    def __init__(
        self, fs: InshoreFileSystem, path: str, file: _native.File, block_size: int | None = None
    ) -> None:
        raw = _Raw(file)
        super().__init__(raw, block_size or _BUFFER_BYTES)
        self.fs, self.path, self.size = fs, path, len(file)


class _Raw(io.RawIOBase):
    """Wraps the native file for Python's buffered reader."""

    def __init__(self, file: _native.File) -> None:
        self._file: _native.File | None = file
        self._at = 0

    def _open_file(self) -> _native.File:
        if self._file is None:
            raise ValueError("I/O operation on closed file")
        return self._file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._open_file())}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        file = self._open_file()
        end = len(file) if size is None or size < 0 else self._at + size
        found = file.read(self._at, max(self._at, end))
        self._at += len(found)
        return found

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        found = self.read(len(view))
        view[: len(found)] = found
        return len(found)

    def close(self) -> None:
        self._file = None
        super().close()


class InshoreWriter(io.RawIOBase):
    """A dataset that is being written. The dataset appears when the writer is closed.

    If an exception leaves the ``with`` block, or the object is dropped without `close`, nothing is written.
    Closing the writer while an exception is handled (in a ``finally`` or ``except`` block) has the same
    effect, unless the writer was opened in that block too. The wrappers of fsspec, pandas and Python's text
    files close the writer in this way. `commit` publishes in any case.

    Attributes
    ----------
    path : str
        The name of the dataset.

    Examples
    --------
    >>> from inshore.fs import InshoreFileSystem
    >>> files = InshoreFileSystem()
    >>> try:
    ...     with files.open("note", "wb") as file:
    ...         _ = file.write(b"buy")
    ...         raise RuntimeError("the list is incomplete")
    ... except RuntimeError:
    ...     files.exists("note")
    False
    """

    def __init__(self, path: str, writer: _native.Writer, *, publish: bool) -> None:
        self.path = path
        self._writer: _native.Writer | None = writer
        self._publish = publish
        self._handled = sys.exc_info()[1]
        self._written = 0

    def writable(self) -> bool:
        """Return true.

        Examples
        --------
        >>> from inshore.fs import InshoreFileSystem
        >>> with InshoreFileSystem().open("note", "wb") as file:
        ...     file.writable()
        True
        """
        return True

    def tell(self) -> int:
        """Return the number of written bytes.

        Examples
        --------
        >>> from inshore.fs import InshoreFileSystem
        >>> with InshoreFileSystem().open("note", "wb") as file:
        ...     _ = file.write(b"buy milk")
        ...     file.tell()
        8
        """
        return self._written

    def write(self, data: ReadableBuffer) -> int:
        """Append bytes.

        Parameters
        ----------
        data : bytes-like
            The bytes, which are all written.

        Returns
        -------
        int
            The number of bytes.

        Examples
        --------
        >>> from inshore.fs import InshoreFileSystem
        >>> with InshoreFileSystem().open("note", "wb") as file:
        ...     file.write(b"buy milk")
        8
        """
        if self.closed or self._writer is None:
            raise ValueError("I/O operation on closed file")
        plain = data if isinstance(data, bytes) else memoryview(data).tobytes()
        self._writer.write(plain)
        self._written += len(plain)
        return len(plain)

    def close(self) -> None:
        """Publish the dataset; after the return, the dataset survives a power loss.

        In an fsspec transaction, the end of the transaction publishes the dataset.

        Raises
        ------
        FileExistsError
            If another dataset got this name in the meantime.

        Examples
        --------
        >>> from inshore.fs import InshoreFileSystem
        >>> files = InshoreFileSystem()
        >>> file = files.open("note", "wb")
        >>> file.write(b"buy milk"), files.exists("note")
        (8, False)
        >>> file.close()
        >>> files.exists("note")
        True
        """
        if self.closed:
            return
        if sys.exc_info()[1] not in (None, self._handled):
            self.discard()
        elif self._publish:
            self.commit()
        super().close()

    def commit(self) -> None:
        """Publish the dataset; a transaction calls this method at its end.

        Examples
        --------
        >>> from inshore.fs import InshoreFileSystem
        >>> files = InshoreFileSystem()
        >>> file = files.open("note", "wb")
        >>> file.commit()
        >>> files.exists("note")
        True
        """
        super().close()
        writer, self._writer = self._writer, None
        if writer is not None:
            with _as_file_errors(self.path):
                writer.commit()

    def discard(self) -> None:
        """Discard the written bytes.

        Examples
        --------
        >>> from inshore.fs import InshoreFileSystem
        >>> files = InshoreFileSystem()
        >>> file = files.open("note", "wb")
        >>> file.discard()
        >>> files.exists("note")
        False
        """
        super().close()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abort()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Publish the dataset, unless there was an exception."""
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        """Discard the written bytes unless the writer was closed, or the transaction publishes them."""
        if not self.closed:
            self.discard()


def _dataset_info(dataset: dict[str, Any]) -> dict[str, Any]:
    entry = {name: dataset[name] for name in ("name", "size", "kind", "id")}
    return {**entry, "type": "file" if dataset["kind"] == _BYTES else "directory"}


def _file_info(dataset: dict[str, Any], file: dict[str, Any]) -> dict[str, Any]:
    name = f"{dataset['name']}/{file['name']}"
    return {"name": name, "size": file["size"], "kind": dataset["kind"], "id": dataset["id"], "type": "file"}


@contextmanager
def _as_file_errors(path: str) -> Iterator[None]:
    """Convert errors of missing and existing names to Python's errors of files."""
    try:
        yield
    except NotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, str(error), path) from error
    except ExistsError as error:
        raise FileExistsError(errno.EEXIST, str(error), path) from error
