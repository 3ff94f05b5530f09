#!/usr/bin/env python3
"""List the texts that users of Inshore can read, each with its file and line.

    scripts/messages.py [--kind KIND]... [FOLDER...]        e.g. scripts/messages.py --kind error crates/store

The kinds are:

    error   the message of an error: `#[error(...)]` in Rust, `raise` in Python
    bail    an error of the command line: `bail!`, `anyhow!`, `ensure!`, `.context(...)`
    help    a help text of the command line: doc comments in crates/cli/src/args, `about`, `after_help`
    text    any further literal of two or more words in Rust code, most of which become a part of a message

Tests, examples and the texts of panics are left out. Read the whole list as a stranger would.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from cycles import TEST

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["crates", "python/src", "python/inshore"]
Message = tuple[int, str, str]
HELP = ROOT / "crates/cli/src/args"
TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)"""
    r"""|(?P<raw>b?r(?P<hashes>\#*)"(?P<raw_text>.*?)"(?P=hashes))"""
    r"""|(?P<string>b?"(?P<text>(?:[^"\\]|\\.)*)")"""
    r"""|(?P<letter>b?'(?:[^'\\\n]|\\[^\n]{1,8})')""",
    re.DOTALL,
)
CONTEXTS = [
    ("error", re.compile(r"#\[error\([^\]]*$")),
    ("panic", re.compile(r"(?:\bexpect|\bassert\w*!|\bpanic!|\bunreachable!|\btodo!)\s*\([^;{}]*$")),
    ("panic", re.compile(r"(?:\bdebug!|\btrace!|\binfo!|\bwarn!|\binclude_str!|\bconcat!)\s*\([^;]*$")),
    ("bail", re.compile(r"(?:\bbail!|\banyhow!|\bensure!|\.context|\.with_context)\s*\([^;]*$")),
    ("help", re.compile(r"\b(?:long_about|about|after_help|before_help|help)\s*=\s*$")),
    ("other", re.compile(r"#!?\[[^\]]*$")),
]


def blank(text: str) -> str:
    """Replace all but the line ends by spaces."""
    return re.sub(r"[^\n]", " ", text)


def test_ranges(code: str) -> list[range]:
    """Find the places of code that is compiled for tests alone; `code` has neither strings nor comments."""
    ranges = []
    for found in TEST.finditer(code):
        end, depth = found.end(), 0
        while end < len(code):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            if depth == 0 and code[end] in "};":
                break
            end += 1
        ranges.append(range(found.start(), end + 1))
    return ranges


def kind_of(before: str, text: str) -> str | None:
    """Tell the kind of a literal from the code before it; `None` where no user reads the literal.

    >>> kind_of('if names.is_empty() { bail!(', "no nodes are named")
    'bail'
    >>> kind_of("let place = places.pop().expect(", "a place for each")
    >>> kind_of("let what = ", "a row is too long"), kind_of("let name = ", "/proc/self")
    ('text', None)
    """
    kind = next((kind for kind, context in CONTEXTS if context.search(before)), "text")
    if kind == "text" and not re.search(r"[A-Za-z]{2,}.*\s.*\w|\w.*\s.*[A-Za-z]{2,}", text):
        return None
    return None if kind in ("panic", "other") else kind


def plain(text: str) -> str:
    r"""Write a literal on one line, with escapes for line ends inside of it.

    >>> print(plain("first \\\n    line\nsecond line"))
    first line\nsecond line
    """
    text = re.sub(r"\\\n\s*", "", text).replace('\\"', '"')
    return text.strip().replace("\n", "\\n")


def rust(path: Path) -> Iterator[Message]:
    """Yield (line, kind, text) of a file in Rust."""
    source = path.read_text()
    literals, comments, code, end = [], [], [], 0
    for token in TOKEN.finditer(source):
        code += [source[end : token.start()], blank(token[0])]
        end = token.end()
        if token["comment"]:
            comments.append((token.start(), token[0]))
        elif not token["letter"]:
            literals.append((token.start(), token["raw_text"] or token["text"] or ""))
    code = "".join([*code, source[end:]])
    tests = test_ranges(code)
    for place, text in literals:
        kind = kind_of(code[max(0, place - 400) : place], text)
        if kind and text.strip() and not any(place in test for test in tests):
            yield source.count("\n", 0, place) + 1, kind, plain(text)
    if HELP in path.parents:
        yield from help_texts(source, comments, tests)


def help_texts(source: str, comments: list[tuple[int, str]], tests: list[range]) -> Iterator[Message]:
    """Yield (line, kind, text) of doc comments, a paragraph each."""
    first, parts, last = 0, [], -1
    for place, comment in [*comments, (len(source), "")]:
        line = source.count("\n", 0, place) + 1
        is_doc = comment.startswith("///") and not any(place in test for test in tests)
        text = comment[3:].strip() if is_doc else ""
        if parts and (line != last + 1 or not text):
            yield first, "help", " ".join(parts)
            parts = []
        if text:
            first = first if parts else line
            parts.append(text)
        last = line


def python(path: Path) -> Iterator[Message]:
    """Yield (line, kind, text) of a file in Python."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        texts = [part for part in node.exc.args if isinstance(part, ast.Constant | ast.JoinedStr)]
        for text in texts:
            yield node.lineno, "error", ast.unparse(text)


def main() -> None:
    """Print the list."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("folders", nargs="*", metavar="FOLDER")
    parser.add_argument("--kind", action="append", choices=["error", "bail", "help", "text"])
    options = parser.parse_args()
    for folder in options.folders or FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            names = path.relative_to(ROOT).parts
            if any(re.fullmatch(r"(.*_)?tests?(\.rs)?|examples|benches|target", name) for name in names):
                continue
            reader = {".rs": rust, ".py": python}.get(path.suffix)
            for line, kind, text in sorted(reader(path) if reader else []):
                if not options.kind or kind in options.kind:
                    print(f"{path.relative_to(ROOT)}:{line}: {kind}: {text}")


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(1)
