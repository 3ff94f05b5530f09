"""Checks the arguments of verbs on vectors when a verb is called, before its job begins."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, get_args

from inshore.errors import InputError
from inshore.sources import ArrayOnFile, ArrowStream

if TYPE_CHECKING:
    from collections.abc import Iterable

Metric = Literal["l2", "ip", "cosine", "hamming", "jaccard"]
"""The metric of a search: how the distance between two vectors is computed."""

# The kinds and sizes of the types of elements. NumPy itself has no bfloat16, so its kind is V.
_ELEMENTS = {("f", 2), ("f", 4), ("f", 8), ("V", 2), ("i", 4), ("i", 1), ("u", 1)}


def check_metric(metric: str | None) -> None:
    """Refuse an unknown metric."""
    if metric is not None and metric not in get_args(Metric):
        raise InputError(f"metric is {metric!r}: expected {', '.join(get_args(Metric)[:-1])} or jaccard")


def column_list(option: str, columns: Iterable[str]) -> list[str]:
    """Return names of columns as a list. A single text is refused, since its letters are no names."""
    if isinstance(columns, str):
        raise InputError(f"{option} is the text {columns!r}: expected a list of columns, as [{columns!r}]")
    return list(columns)


def check_elements(option: str, elements: Any) -> None:
    """Refuse an array whose elements cannot be those of vectors."""
    import numpy as np  # noqa: PLC0415

    found = np.dtype(elements)
    if (found.kind, found.itemsize) not in _ELEMENTS:
        expected = "float32, float64, float16, bfloat16, int32, int8 or uint8"
        advice = "array.astype('float32') converts its elements"
        raise InputError(f"{option}: found an array of {found}, expected one of {expected}: {advice}")


def check_vectors(option: str, source: Any) -> None:
    """Refuse a source that is neither an array, nor a table, nor one or more paths."""
    if hasattr(source, "__array_interface__"):
        check_elements(option, source.__array_interface__["typestr"])
    elif isinstance(source, ArrayOnFile):
        check_elements(option, source.dtype)
    elif not isinstance(source, ArrowStream):
        paths = source if isinstance(source, (list, tuple)) else [source]
        wrong = [path for path in paths if not isinstance(path, (str, os.PathLike))]
        if wrong:
            found = type(source).__name__
            of = f" of {type(wrong[0]).__name__}" if wrong[0] is not source else ""
            expected = "an array of NumPy, a table or paths: numpy.array(..., 'float32') makes an array"
            raise InputError(f"{option}: found a {found}{of}, expected {expected}")
