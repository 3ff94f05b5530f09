"""Targets are the machines that run verbs. This module converts a verb to a request for its target."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from inshore import _native
from inshore.display.progress import Watch
from inshore.errors import InputError
from inshore.results import Result, StrPath, drained
from inshore.sources import Inputs

Budget = tuple[str | int | None, int | None]


def operate(
    job: _native.Job,
    operation: str,
    fields: Mapping[str, Any],
    inputs: Iterable[StrPath],
    output: StrPath | None = None,
    *,
    tables: list[tuple[str, list[StrPath]]] | None = None,
    nodes: _native.Nodes | None = None,
    graph: _native.Graph | None = None,
    skip: bool = False,
) -> _native.Run:
    """Start an operation."""
    fields = {"operation": operation, "version": 1, **fields}
    try:
        request = json.dumps(fields, default=_plain, allow_nan=False)
    except ValueError as error:
        raise InputError(f"{operation}: {error}") from error
    return _native.operate(
        job,
        request,
        inputs=list(inputs),
        output=output,
        tables=tables or [],
        nodes=nodes,
        graph=graph,
        skip=skip,
    )


def _plain(number: Any) -> Any:
    """Return a number of NumPy as a number of Python."""
    return number.item() if hasattr(number, "item") else operator.index(number)


def whole(option: str, number: int, most: int = 2**64 - 1) -> int:
    """Return a whole number in its range: 64 bits, unless `most` is less."""
    found = operator.index(number)
    if not 0 <= found <= most:
        raise InputError(f"{option} is {found}: expected 0 to {most}")
    return found


class Target:
    """The local machine or nodes. Verbs build the same requests for both (docs/operations.md)."""

    _nodes: _native.Nodes | None = None

    def _store(self) -> _native.Store:
        """Open the local store, for data that exceed the budget."""
        raise NotImplementedError

    def _start(
        self,
        job: _native.Job,
        operation: str,
        fields: Mapping[str, Any],
        inputs: list[StrPath],
        output: StrPath | None = None,
        *,
        tables: list[tuple[str, list[StrPath]]] | None = None,
        skip: bool = False,
    ) -> _native.Run:
        """Start an operation."""
        return operate(job, operation, fields, inputs, output, tables=tables, nodes=self._nodes, skip=skip)

    def _run(
        self,
        job: _native.Job,
        operation: str,
        fields: Mapping[str, Any],
        inputs: list[StrPath],
        output: StrPath | None = None,
        *,
        title: str,
    ) -> dict[str, Any]:
        """Run an operation without rows to its end, and return the summary."""
        with Watch(job, title) as watch:
            facts = drained(self._start(job, operation, fields, inputs, output), watch)
        summary: dict[str, Any] = facts["summary"]
        return summary

    def _job_for(self, inputs: Inputs | None, budget: Budget) -> _native.Job:
        """Start a job, on the store only if the inputs include datasets of the store."""
        is_stored = self._nodes is None and inputs is not None and inputs.has_stored
        return self._store().job(*budget) if is_stored else _native.Job.plain(*budget)

    def _result(
        self,
        operation: str,
        fields: Mapping[str, Any],
        inputs: Inputs | None,
        budget: Budget,
        *,
        counted: str | None = None,
        gives: Literal["rows", "file", "bytes"] = "file",
        skip: bool = False,
    ) -> Result:
        """Return the result of an operation whose inputs are files or Arrow data."""
        if inputs is not None and inputs.is_data:
            if fields.get("resume"):
                raise InputError("expected files to resume with: Arrow data cannot be read twice")
            if self._nodes is not None:
                raise InputError(f"operation `{operation}`: nodes cannot read Arrow data: put a file")

        def job() -> _native.Job:
            return self._job_for(inputs, budget) if operation == "search" else self._store().job(*budget)

        def start(job: _native.Job, output: StrPath | None) -> _native.Run:
            paths = [] if inputs is None else inputs.paths(job)
            return self._start(job, operation, fields, paths, output, skip=skip)

        of = "" if inputs is None else f" of {inputs}"
        return Result(f"{operation}{of} in {self!r}", job, start, counted=counted, gives=gives)


def passes_over(errors: Literal["raise", "warn"]) -> bool:
    """Return true if unreadable inputs are skipped."""
    if errors not in {"raise", "warn"}:
        raise InputError(f"errors is {errors!r}: expected 'raise' or 'warn'")
    return errors == "warn"
