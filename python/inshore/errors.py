"""What can go wrong. A message says what, where, what was found and what was expected.

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

Ctrl-C raises `KeyboardInterrupt`, as everywhere. A file that was passed over because it was asked for
(``errors="warn"``) is a `SkippedWarning`.
"""


class InshoreError(Exception):
    """Any failure of Inshore."""


class NotFoundError(InshoreError, LookupError):
    """There is no graph of that name, or no such vertex in the graph."""


class ExistsError(InshoreError):
    """There is a graph, dataset or file of that name already."""


class InputError(InshoreError, ValueError):
    """An input or an option cannot be used: a malformed line, a number out of range, a bad name."""


class BudgetError(InshoreError):
    """The job cannot work in the memory that it was given; the message names how much it needs."""


class DamagedError(InshoreError):
    """Bytes of the store are not what was written; the message names the file and the offset."""


class NodeError(InshoreError):
    """A node cannot be reached, refuses, was lost, or took longer than the deadline; the message names it."""


class FeatureError(InshoreError, AttributeError):
    """A function needs a feature that this build lacks; the message names the feature."""


class FileError(InshoreError, OSError):
    """The system refused an operation on a file (no such file, no permission, disk full).

    Attributes
    ----------
    errno : int or None
        The system's number, as in `errno.ENOSPC`.
    """


class SkippedWarning(UserWarning):
    """A file could not be read and was passed over, as ``errors="warn"`` asks for."""
