"""Exceptions. A message names the operation, the place, the found and the expected value.

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
    """Any failure of Inshore."""


class NotFoundError(InshoreError, LookupError):
    """The graph, dataset or vertex does not exist."""


class ExistsError(InshoreError):
    """A graph, dataset or file of that name exists already."""


class InputError(InshoreError, ValueError):
    """An input or an option is invalid: a malformed line, a number out of range, a bad name."""


class BudgetError(InshoreError):
    """The budget is too small for the job; the message names the required memory."""


class DamagedError(InshoreError):
    """Bytes of the store are damaged; the message names the file and the offset."""


class NodeError(InshoreError):
    """A node is unreachable, refuses, was lost, or exceeded the deadline; the message names the node."""


class FeatureError(InshoreError, AttributeError):
    """A function needs a feature that this build lacks; the message names the feature."""


class FileError(InshoreError, OSError):
    """The system refused an operation on a file (no such file, no permission, disk full).

    Attributes
    ----------
    errno : int or None
        The system's error number, as in `errno.ENOSPC`.
    """


class SkippedWarning(UserWarning):
    """A file could not be read and was skipped, as requested by ``errors="warn"``."""
