"""Targets: where verbs run, and how a verb becomes the request of an operation."""

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
    """Stands for this machine or nodes. Its verbs build the same requests for both (docs/operations.md)."""

    _nodes: _native.Nodes | None = None

    def _store(self) -> _native.Store:
        """Open the store of this machine, for what exceeds the memory."""
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
        # Whole numbers of NumPy are no JSON.
        request = json.dumps({"operation": operation, "version": 1, **fields}, default=operator.index)
        return _native.operate(
            job, request, inputs=inputs, output=output, tables=tables or [], nodes=self._nodes, skip=skip
        )

    def _result(
        self,
        operation: str,
        fields: Mapping[str, Any],
        inputs: Inputs,
        budget: Budget,
        *,
        counted: str | None,
        gives: str = "file",
        skip: bool = False,
    ) -> Result:
        """Give the result of an operation that has files or handed data as inputs."""
        if inputs.is_data and fields.get("resume"):
            raise InputError("expected files to resume with: Arrow data cannot be had again")
        if inputs.is_data and self._nodes is not None:
            raise InputError(f"operation `{operation}`: Arrow data does not go with nodes: put a file")

        def start(job: _native.Job, output: StrPath | None) -> _native.Run:
            return self._start(job, operation, fields, inputs.paths(job), output, skip=skip)

        what = f"{operation} of {inputs} in {self!r}"
        return Result(what, lambda: self._store().job(*budget), start, counted=counted, gives=gives)


def passes_over(errors: Literal["raise", "warn"]) -> bool:
    """Tell whether inputs that cannot be read are passed over."""
    if errors not in {"raise", "warn"}:
        raise InputError(f"errors is {errors!r}: expected 'raise' or 'warn'")
    return errors == "warn"
