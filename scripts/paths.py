#!/usr/bin/env python3
"""Check that every file and folder that ARCHITECTURE.md names exists; end with 1 where one does not.

A path in a code span is the end of a path in the repository: `crates/graph/src/engine/choose.rs`, or shorter
where the text has named the folder, `engine/choose.rs`.

    scripts/paths.py [PAGE...]
"""

import argparse
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPAN = re.compile(r"`([^`\n]+)`")
DECISION = re.compile(r"\bdocs/[\w/.-]+\w")
NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
SOURCE = re.compile(r"\.(?:rs|py|md|sh|toml|html|pyi)$")


def paths_of(page: str) -> list[tuple[int, str]]:
    r"""List the paths that a page names, each with its line.

    >>> paths_of("`crates/a/src/b.rs` has `B`,\n`words/` of `x.rs`; see docs/decisions/0035, `tables::Row`")
    [(1, 'crates/a/src/b.rs'), (2, 'words/'), (2, 'x.rs'), (2, 'docs/decisions/0035')]
    >>> paths_of("`inshore store put web.log`, `--node a/b`, `python/inshore/{a,b}.py`")
    [(1, 'python/inshore/a.py'), (1, 'python/inshore/b.py')]
    """
    found = []
    for number, line in enumerate(page.splitlines(), 1):
        for span in SPAN.findall(line):
            found += [(number, path) for path in unfold(span) if is_path(path)]
        found += [(number, path) for path in DECISION.findall(SPAN.sub("", line))]
    return found


def unfold(span: str) -> list[str]:
    """Write `a/{b,c}.py` as two paths."""
    match = re.fullmatch(r"([^{}]*)\{([^{}]*)\}([^{}]*)", span)
    return [match[1] + name + match[3] for name in match[2].split(",")] if match else [span]


def is_path(span: str) -> bool:
    """Tell whether a code span is a path: a source file, a folder, or something below one of ours."""
    if not NAME.fullmatch(span):
        return False
    below = span.partition("/")[0] in (
        "crates",
        "python",
        "docs",
        "scripts",
        "sdk",
        "bench",
        "examples",
        "fuzz",
    )
    return bool(SOURCE.search(span)) or span.endswith("/") or (below and "/" in span)


def exists(path: str, known: set[str]) -> bool:
    """Tell whether the repository has a file or folder whose path ends so; decisions have their numbers.

    >>> known = {"crates/a/src/b.rs", "crates/a/src", "docs/decisions/0035-operations.md"}
    >>> paths = "src/b.rs", "b.rs", "src/", "docs/decisions/0035", "rc/b.rs", "c.rs"
    >>> [exists(path, known) for path in paths]
    [True, True, True, True, False, False]
    """
    path = path.rstrip("/")
    return any(f"/{one}".endswith(f"/{path}") or one.startswith(f"{path}-") for one in known)


def known_paths() -> set[str]:
    """List the files of the repository, and their folders."""
    known = set()
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name != "target" and not name.startswith(".")]
        place = Path(folder).relative_to(ROOT)
        known |= {str(place)} | {str(place / name) for name in files}
    return known


def main() -> int:
    """Print the paths that do not exist."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", default=["ARCHITECTURE.md"])
    known, missing = known_paths(), 0
    for page in parser.parse_args().pages:
        for line, path in paths_of((ROOT / page).read_text()):
            if not exists(path, known):
                missing += 1
                print(f"{page}:{line}: {path} does not exist")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
