"""All verbs, for the local machine and for nodes."""

from __future__ import annotations

from inshore import _native
from inshore.packing import FileVerbs
from inshore.tables import TableVerbs
from inshore.texts import TextVerbs


class Verbs(TableVerbs, TextVerbs, FileVerbs):
    """The verbs, with the same arguments on every target: `Store`, `Nodes`, and the package itself."""


class Here(Verbs):
    """The local machine with the default store, which is opened when a verb needs a store.

    The functions of the package are the verbs of this class.
    """

    def __repr__(self) -> str:
        """Show the package."""
        return "inshore"

    def _store(self) -> _native.Store:
        return _native.Store(None)
