"""The exceptions. A message names the operation, the position, the value found and the value expected.

::

    InshoreError
    ├── NotFoundError   also a LookupError
    ├── ExistsError
    ├── InputError      also a ValueError
    ├── BudgetError
    ├── DamagedError
    ├── NodeError
    ├── FeatureError    also an AttributeError
    └── FileError       also an OSError

Ctrl-C raises `KeyboardInterrupt`, as in all Python programs. A file that is skipped by request
(``errors="warn"``) is a `SkippedWarning`.
"""


class InshoreError(Exception):
    """Any failure of Inshore.

    Examples
    --------
    >>> try:
    ...     store.graph("web")
    ... except inshore.InshoreError as error:
    ...     print(error)
    there is no dataset "web" in ...
    """


class NotFoundError(InshoreError, LookupError):
    """The graph, dataset or vertex does not exist.

    Examples
    --------
    >>> path_of_three.bfs(4, memory="16MiB").table()
    Traceback (most recent call last):
    inshore.errors.NotFoundError: ...vertex 4...
    """


class ExistsError(InshoreError):
    """A graph, dataset or file of that name exists already.

    Examples
    --------
    >>> store.generate_kronecker(scale=4, name="path", memory="16MiB")
    Traceback (most recent call last):
    inshore.errors.ExistsError: ..."path"...
    """


class InputError(InshoreError, ValueError):
    """An input or an option is invalid: a malformed line, a number out of range, a bad name.

    Examples
    --------
    >>> _ = Path("edges.txt").write_text("1 foo")
    >>> store.import_edges("edges.txt", name="web", memory="16MiB")
    Traceback (most recent call last):
    inshore.errors.InputError: edges.txt:1: ...
    """


class BudgetError(InshoreError):
    """The budget is too small for the job; the message names the required memory.

    Examples
    --------
    >>> path_of_three.pagerank(memory="1MiB").table()
    Traceback (most recent call last):
    inshore.errors.BudgetError: ...8 MiB...
    """


class DamagedError(InshoreError):
    """Bytes of the store are damaged; the message names the file and the offset.

    Examples
    --------
    >>> try:
    ...     _ = path_of_three.components(memory="16MiB").table()
    ... except inshore.DamagedError as error:
    ...     print("restore the store from a copy:", error)
    """


class NodeError(InshoreError):
    """A node is unreachable, refuses a call, was lost or exceeded the deadline; the message names the node.

    Examples
    --------
    >>> inshore.connect("127.0.0.1:1", deadline=5).search("cat", "notes.txt", memory="16MiB").table()
    Traceback (most recent call last):
    inshore.errors.NodeError: ...127.0.0.1:1...
    """


class FeatureError(InshoreError, AttributeError):
    """A function needs a feature that this build lacks; the message names the feature.

    Examples
    --------
    >>> try:
    ...     answer = inshore.sql("SELECT 1 AS one", memory="32MiB")
    ... except inshore.FeatureError:
    ...     print("this build has only", inshore.features)
    """


class FileError(InshoreError, OSError):
    """The system refused an operation on a file (no such file, no permission, disk full).

    Attributes
    ----------
    errno : int or None
        The system's error number, as in `errno.ENOSPC`.

    Examples
    --------
    >>> inshore.count_words("missing.txt", memory="16MiB").table()
    Traceback (most recent call last):
    inshore.errors.FileError: ...missing.txt...
    """


class SkippedWarning(UserWarning):
    """A file could not be read and was skipped, as requested by ``errors="warn"``.

    Examples
    --------
    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as skipped:
    ...     warnings.simplefilter("always")
    ...     _ = inshore.search("cat", "missing.txt", errors="warn", memory="16MiB").table()
    >>> [warning.category.__name__ for warning in skipped]
    ['SkippedWarning']
    """
