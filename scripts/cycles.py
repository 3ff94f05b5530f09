#!/usr/bin/env python3
"""List the import cycles among the files of each crate; end with 1 where there are more than are allowed.

A file imports another one where a `use` or a path in it (`crate::`, `super::`, `self::`) ends at an item
that the other one defines; re-exports are followed to the definition. Imports between a module and its
ancestors do not count, nor do tests.

    scripts/cycles.py [--at-most N] [CRATE...]        crates by the names of their folders; all without a name
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
STRING = re.compile(
    r'b?r(#+)".*?"\1|b?r"[^"]*"|b?"(?:[^"\\]|\\.)*"|b?\'(?:[^\'\\\n]|\\[^\n]{1,8})\'', re.DOTALL
)
TEST = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:pub(?:\([^)]*\))?\s+)?")
MODULE = re.compile(
    r"(?:#\[path = \"([^\"]+)\"\]\s*)?(?:#\[[^\]]*\]\s*)*\b(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;"
)
USE = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")
ITEM = re.compile(r"\b(?:fn|struct|enum|union|trait|type|const|static|macro_rules!|mod)\s+(?:mut\s+)?(\w+)")


def without_tests(text: str) -> str:
    """Remove the code that is compiled for tests alone."""
    while found := TEST.search(text):
        end = start = found.end()
        depth = 0
        while end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if depth == 0 and text[end] in "};":
                break
            end += 1
        text = text[: found.start()] + text[max(end, start) + 1 :]
    return text


def unfold(tree: str) -> list[tuple[list[str], str]]:
    """List the paths of a `use` with their names: `a::{b, c as d}` is a::b as b and a::c as d."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        path, _, alias = tree.partition(" as ")
        parts = [part.strip() for part in path.strip().split("::")]
        if parts[-1] == "self":
            parts.pop()
        return [(parts, alias.strip() or parts[-1])] if parts else []
    prefix = [part.strip() for part in tree[:brace].strip().rstrip(":").split("::") if part.strip()]
    inner, depth, start, paths = tree[brace + 1 : tree.rfind("}")], 0, 0, []
    for place, letter in enumerate(inner + ","):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            piece = inner[start:place].strip()
            start = place + 1
            if piece == "self":
                paths.append((prefix, prefix[-1]))
            elif piece:
                paths.extend((prefix + parts, name) for parts, name in unfold(piece))
    return paths


class Crate:
    """The modules of one crate: their files, items and re-exports."""

    def __init__(self, root: Path) -> None:
        self.files: dict[tuple[str, ...], Path] = {}
        self.code: dict[tuple[str, ...], str] = {}
        self.items: dict[tuple[str, ...], set[str]] = {}
        self.uses: dict[tuple[str, ...], dict[str, list[str]]] = {}
        self.globs: dict[tuple[str, ...], list[list[str]]] = {}
        self._read((), root)

    def _read(self, module: tuple[str, ...], file: Path) -> None:
        text = COMMENT.sub("", file.read_text())
        declared = MODULE.findall(without_tests(text))
        code = STRING.sub('""', without_tests(text))
        self.files[module], self.code[module] = file, code
        self.items[module] = set(ITEM.findall(code))
        self.uses[module], self.globs[module] = {}, []
        for _, tree in USE.findall(code):
            for path, name in unfold(tree):
                if path[-1] == "*":
                    self.globs[module].append(path[:-1])
                else:
                    self.uses[module].setdefault(name, path)
        home = file.parent if file.name in ("lib.rs", "main.rs", "mod.rs") else file.parent / file.stem
        for path, name in declared:
            choices = [file.parent / path] if path else [home / f"{name}.rs", home / name / "mod.rs"]
            for child in choices:
                if child.exists():
                    self._read((*module, name), child)

    def resolve(
        self, module: tuple[str, ...], path: list[str], seen: frozenset = frozenset()
    ) -> tuple | None:
        """Find the module whose file defines the item at a path; None where it is of another crate."""
        if (module, tuple(path)) in seen:
            return None
        seen |= {(module, tuple(path))}
        here, rest = self._start(module, path)
        while here is not None and rest:
            if (*here, rest[0]) not in self.files:
                return self._item(here, rest, seen)
            here, rest = (*here, rest[0]), rest[1:]
        return here

    def _start(self, module: tuple[str, ...], path: list[str]) -> tuple[tuple | None, list[str]]:
        """Take the words off the front of a path that say where it starts."""
        if path[0] == "crate":
            return (), path[1:]
        if path[0] == "self":
            return module, path[1:]
        ups = next((place for place, word in enumerate(path) if word != "super"), len(path))
        if ups:
            return module[: len(module) - ups], path[ups:]
        is_known = (*module, path[0]) in self.files or path[0] in self.uses[module]
        return (module if is_known else None), path

    def _item(self, module: tuple[str, ...], path: list[str], seen: frozenset) -> tuple | None:
        """Follow the re-exports of a module to the definition of an item."""
        name = path[0]
        if name in self.items[module]:
            return module
        if name in self.uses[module]:
            target = self.uses[module][name]
            return None if target[0] == name else self.resolve(module, target + path[1:], seen)
        for glob in self.globs[module]:
            found = self.resolve(module, [*glob, *path], seen)
            if found is not None and name in self.items[found]:
                return found
        return module

    def imports(self) -> dict[tuple, dict[tuple, str]]:
        """Give for each module the modules that it imports, with a path for each."""
        found: dict[tuple, dict[tuple, str]] = {}
        for module, code in self.code.items():
            edges = found.setdefault(module, {})
            paths = [path for public, tree in USE.findall(code) if not public for path, _ in unfold(tree)]
            paths += [path.split("::") for path in PATH.findall(USE.sub("", code))]
            for path in (path[:-1] if path[-1] == "*" else path for path in paths):
                target = self.resolve(module, path) if path else None
                if target is None or related(module, target):
                    continue
                edges.setdefault(target, "::".join(path))
        return found


def related(one: tuple, other: tuple) -> bool:
    """Tell whether one module is the other, or an ancestor of it."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def components(edges: dict[tuple, dict[tuple, str]]) -> list[list[tuple]]:
    """Find the sets of two or more modules that reach each other."""
    reach: dict[tuple, set[tuple]] = {}
    for start in edges:
        todo, seen = [start], set()
        while todo:
            for target in edges.get(todo.pop(), {}):
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        reach[start] = seen
    groups = []
    for module in sorted(edges):
        if any(module in group for group in groups) or module not in reach[module]:
            continue
        back = {other for other in reach[module] if module in reach.get(other, set())}
        groups.append(sorted({module} | back))
    return groups


def main() -> int:
    """Print the cycles of the crates that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--at-most", type=int, default=0, metavar="N")
    parser.add_argument("crates", nargs="*", metavar="CRATE")
    words = parser.parse_args()
    names = words.crates or sorted(path.name for path in (ROOT / "crates").iterdir())
    cycles = 0
    for name in names:
        source = ROOT / "crates" / name / "src"
        for top in ("lib.rs", "main.rs"):
            if not (source / top).exists():
                continue
            crate = Crate(source / top)
            edges = crate.imports()
            for group in components(edges):
                cycles += 1
                print(f"{name}: {len(group)} files import each other")
                for module in group:
                    for target, path in sorted(edges[module].items()):
                        if target in group:
                            of, to = (crate.files[one].relative_to(source) for one in (module, target))
                            print(f"    {of} -> {to}    {path}")
    if cycles:
        print(f"{cycles} import cycles; at most {words.at_most} are allowed", file=sys.stderr)
    return 1 if cycles > words.at_most else 0


if __name__ == "__main__":
    sys.exit(main())
