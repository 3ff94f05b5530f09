"""Targets: the machines that run verbs, and the conversion of a verb to a request."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from typing import Any, Literal

from inshore import _native
from inshore.errors import InputError
from inshore.results import Result, StrPath
from inshore.sources import Inputs

Budget = tuple[str | int | None, int | None]


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
        # Integers of NumPy are not JSON.
        request = json.dumps({"operation": operation, "version": 1, **fields}, default=operator.index)
        return _native.operate(
            job, request, inputs=inputs, output=output, tables=tables or [], nodes=self._nodes, skip=skip
        )

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
