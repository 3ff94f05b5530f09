"""All verbs, on nodes as here."""

from __future__ import annotations

from inshore import _native
from inshore.packing import FileVerbs
from inshore.tables import TableVerbs
from inshore.texts import TextVerbs


class Verbs(TableVerbs, TextVerbs, FileVerbs):
    """The verbs, with the same arguments on every target: `Store`, `Nodes`, and the package itself."""


class Here(Verbs):
    """Stands for this machine, with the store of habit, which is opened when a verb needs it.

    The functions of the package are its verbs.
    """

    def __repr__(self) -> str:
        """Show the package."""
        return "inshore"

    def _store(self) -> _native.Store:
        return _native.Store(None)
