"""All verbs, for the local machine and for nodes.

Each module has the verbs on one kind of data: `tables`, `sql`, `texts` and `files`; `vectors` has the verbs
that only a store has. A verb is a method that converts its arguments to a request (docs/operations.md) and
returns a `Result`, or runs at once; `target` sends the request to the local machine or to nodes.
"""

from __future__ import annotations

from inshore import _native
from inshore.verbs.files import FileVerbs, Packed
from inshore.verbs.sql import SqlVerbs
from inshore.verbs.tables import TableVerbs
from inshore.verbs.texts import SearchOptions, TextVerbs

__all__ = ["Here", "Packed", "SearchOptions", "Verbs"]


class Verbs(TableVerbs, SqlVerbs, TextVerbs, FileVerbs):
    """The verbs, with the same arguments on every target: `Store`, `Nodes`, and the package itself.

    Examples
    --------
    A function for any target:

    >>> def most_frequent(target: inshore.Verbs, path: str) -> str:
    ...     return target.count_words(path, top=1, memory="32MiB").table()["word"][0].as_py()
    >>> _ = Path("rhyme.txt").write_text("The cat, the hat, the end.")
    >>> most_frequent(store, "rhyme.txt")
    'the'
    """


class Here(Verbs):
    """The local machine with the default store, which is opened when a verb needs a store.

    The functions of the package are the verbs of this class.
    """

    def __repr__(self) -> str:
        """Show the package."""
        return "inshore"

    def _store(self) -> _native.Store:
        return _native.Store(None)
