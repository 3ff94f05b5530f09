"""Runs the tutorials of docs/tutorials at a small size, and compares each page with its script.

    scripts/tutorials.py --inshore target/debug/inshore [--python .venv/bin/python] [NAME...]

A tutorial is a page, NAME.md, and a script, NAME.sh or NAME.py. The page's blocks in ``bash`` or ``python``
have to be the code of the script, but for comments. A setting `rows=${rows:-2000}` of a script is `rows=2000`
on its page, and `rows = int(os.environ.get("ROWS", "2_000"))` is `rows = 2_000`. SMALL has the sizes for the
tests. Tutorials in Python are skipped if no interpreter with the package is named.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "tutorials"
LANGUAGES = {".sh": "bash", ".py": "python"}

# Settings for the tests; `port` is the first of four that are free.
SMALL = {"scale": "12", "rows": "100000", "pause": "0.3", "lines": "50000", "ROWS": "20000"}

# No tutorial takes as long as this at a small size.
SECONDS_MAX = 60


def code_of_script(text: str) -> list[str]:
    r"""Return the lines of a script that its page shows.

    >>> code_of_script("#!/bin/sh\n# About.\nset -euo pipefail\n\nrows=${rows:-20}\nsort x\n")
    ['rows=20', 'sort x']
    >>> code_of_script('rows = int(os.environ.get("ROWS", "5_000"))')
    ['rows = 5_000']
    """
    text = re.sub(r'\A"""[^"]*"""\n\s*import os\n', "", text)
    text = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", text)
    text = re.sub(r'int\(os\.environ\.get\("\w+", "(\w+)"\)\)', r"\1", text)
    lines = [line.rstrip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#") and line != "set -euo pipefail"]


def code_of_page(text: str, language: str) -> list[str]:
    r"""Return the lines of code that a page shows in a language.

    >>> code_of_page("Look:\n\n```bash\nls\n```\n\n```text\na b\n```\n", "bash")
    ['ls']
    """
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [line.rstrip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def difference(script: Path) -> str | None:
    """Tell where a page and its script differ, or None."""
    page = code_of_page(script.with_suffix(".md").read_text(), LANGUAGES[script.suffix])
    code = code_of_script(script.read_text())
    for shown, run in zip([*page, "(end)"], [*code, "(end)"], strict=False):
        if shown != run:
            return f"the page has {shown!r} where the script has {run!r}"
    return None if len(page) == len(code) else "the page ends before the script, or after it"


def free_ports(count: int) -> int:
    """Find the first of so many ports in a row that nobody listens on."""
    for first in range(20_000 + os.getpid() % 10_000, 60_000, count):
        sockets: list[socket.socket] = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
        except OSError:
            continue
        else:
            return first
        finally:
            for each in sockets:
                each.close()
    raise SystemExit("tutorials.py: no free ports")


def run(script: Path, inshore: Path, python: Path | None) -> str | None:
    """Run a script in a new folder; return what it printed if it failed."""
    # A link is kept: the interpreter of a virtual environment finds its packages beside the link.
    interpreter = ["bash", "-x"] if python is None or script.suffix == ".sh" else [str(python.absolute())]
    # Below the repository, since containers of commands may not reach the folder for temporary files.
    with tempfile.TemporaryDirectory(prefix="tutorial.", dir=ROOT / "target") as folder:
        tools = Path(folder) / "tools"
        tools.mkdir()
        (tools / "inshore").symlink_to(inshore.resolve())
        settings = SMALL | {
            "port": str(free_ports(4)),
            "PATH": f"{tools}:{os.environ['PATH']}",
            "INSHORE_STORE": f"{folder}/store-of-habit",
        }
        try:
            done = subprocess.run(
                [*interpreter, str(script)],
                cwd=folder,
                env=os.environ | settings,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return f"not done after {SECONDS_MAX} s\n{(error.stdout or b'').decode(errors='replace')}"
        return None if done.returncode == 0 else done.stdout.decode(errors="replace")


def main() -> None:
    """Check and run the tutorials that are named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inshore", type=Path, required=True)
    parser.add_argument(
        "--python", type=Path, help="an interpreter with the package inshore, pandas, polars and duckdb"
    )
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    scripts = sorted(path for path in FOLDER.iterdir() if path.suffix in LANGUAGES)
    failed = 0
    for script in scripts:
        if options.names and script.stem not in options.names:
            continue
        began = time.monotonic()
        problem = difference(script)
        if problem is None and script.suffix == ".py" and options.python is None:
            print(f"tutorial {script.stem} ... skipped: no --python")
            continue
        problem = problem or run(script, options.inshore, options.python)
        if problem:
            failed += 1
            print(problem)
        result = "FAILED" if problem else "ok"
        print(f"{script.name}: {time.monotonic() - began:.1f} s")
        print(f"tutorial {script.stem} ... {result}", flush=True)
    sys.exit(min(failed, 1))


if __name__ == "__main__":
    main()
