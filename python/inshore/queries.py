"""Questions in SQL, for whoever has no store at hand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from inshore.store import Store
from inshore.tables import Written


def sql(query: str, **options: Any) -> pa.Table | pa.RecordBatchReader | Written:
    """Answer a question in SQL about tables, larger than memory if need be, in the store of habit.

    Parameters
    ----------
    query : str
        As in `Store.sql`.
    **options
        Those of `Store.sql`: ``tables``, ``text``, ``header``, ``memory``, ``threads``, ``output`` and
        ``stream``.

    Returns
    -------
    pyarrow.Table, pyarrow.RecordBatchReader or Written
        The rows.

    Raises
    ------
    InshoreError
        As `Store.sql`.

    Examples
    --------
    >>> inshore.sql("SELECT 6 * 7 AS answer", memory="64MiB").to_pydict()
    {'answer': [42]}
    """
    rows: pa.Table | pa.RecordBatchReader | Written = Store().sql(query, **options)
    return rows
