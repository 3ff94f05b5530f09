"""The package as a whole: an example in each docstring, and imports in one direction."""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path

import inshore
import inshore.fs

PACKAGE = Path(inshore.__file__).parent

# The units of the package. Each unit imports only earlier units; `fs` and `sources` are on the same level.
ORDER = [
    "_native",
    "errors",
    "display",
    "results",
    "sources",
    "verbs",
    "fs",
    "graph",
    "store",
    "nodes",
    "clusters",
    "",
]


def members(prefix: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of a public object, and of the public members of a class."""
    yield prefix, inspect.getdoc(value) or ""
    if not inspect.isclass(value) or typing.is_typeddict(value):
        return
    for owner in value.__mro__:
        if not owner.__module__.startswith("inshore"):
            continue
        for name, member in vars(owner).items():
            is_documented = inspect.isroutine(member) or isinstance(member, (property, classmethod))
            if is_documented and not name.startswith("_"):
                yield f"{prefix}.{name}", inspect.getdoc(member) or ""


def public() -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of each public function, method, property and class."""
    for module in (inshore, inshore.fs):
        yield module.__name__, module.__doc__ or ""
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                yield from members(f"{module.__name__}.{name}", value)


def test_every_public_docstring_has_an_example() -> None:
    names = dict(public())
    assert len(names) > 100
    assert {
        "inshore.sql",
        "inshore.Graph.bfs",
        "inshore.Store.path",
        "inshore.fs.InshoreWriter.write",
    } <= set(names)
    assert [name for name, text in names.items() if ">>>" not in text] == []


def test_every_public_function_documents_its_arguments() -> None:
    missing = []
    for module in (inshore, inshore.fs):
        for name in module.__all__:
            value = getattr(module, name)
            functions = [value] if inspect.isroutine(value) else []
            if inspect.isclass(value) and not typing.is_typeddict(value):
                functions = [
                    each for at, each in vars(value).items() if inspect.isfunction(each) and at[0] != "_"
                ]
            for function in functions:
                text = inspect.getdoc(function) or ""
                options = [each for each in inspect.signature(function).parameters if each != "self"]
                missing += [f"{function.__qualname__}: {each}" for each in options if each not in text]
    assert missing == []


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[str]:
    """Yield the modules of the package that a module imports when it is loaded, by their relative names."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            top, _, below = node.module.partition(".")
            if top == "inshore":
                yield from [below] if below else [each.name for each in node.names]


def test_imports_have_one_direction() -> None:
    edges = {module_name(path): set(imported(path)) for path in PACKAGE.rglob("*.py")}
    assert len(edges) > 15
    for name, others in edges.items():
        unit = name.partition(".")[0]
        for other in others:
            below = other.partition(".")[0]
            assert below == unit or ORDER.index(below) < ORDER.index(unit), f"{name} imports {other}"
    seen: dict[str, bool] = {}

    def visit(name: str) -> None:
        """Visit a module and all that it imports; a module that is still open closes a cycle."""
        assert seen.get(name, True), f"{name} is part of a cycle"
        if name not in seen:
            seen[name] = False
            for other in edges.get(name, ()):
                visit(other)
            seen[name] = True

    for name in edges:
        visit(name)
