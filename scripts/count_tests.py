"""Add up the tests in saved logs of cargo test, pytest and our scripts (features, fuzz, tutorials, packages).

    python3 scripts/count_tests.py target/test-logs/{features,cargo,fuzz,pytest,package,tutorials}.log

Names the tests that failed, with the first lines of what they said. The last line printed is
`N passed, N failed`, and `, N skipped` where any were. Skipped are: what
cargo ignored, what pytest skipped or expected to fail, and a Rust test that printed a line starting
with `skipped:` and returned: cargo reports that one as passed and shows what it printed only under
`--show-output`. Each set of features, fuzz target, package and tutorial counts as one test. The exit code is
1 where a test failed, or where a log is absent or holds no result.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CARGO_RESULT = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;")
CARGO_TEST_OUTPUT = re.compile(r"---- .+ stdout ----$")
SCRIPT_RESULT = re.compile(r"(?:features|fuzz|package|tutorial) [\w-]+ \.\.\. (ok|FAILED|skipped:)")
PYTEST_WORDS = "passed|failed|errors?|skipped|xfailed|xpassed|deselected|warnings?|rerun|subtests passed"
PYTEST_RESULT = re.compile(rf"=*\s*(\d+ (?:{PYTEST_WORDS})(?:, \d+ (?:{PYTEST_WORDS}))*) in [\d.]+s\b")


# Lines that are told of what a failed test said.
SAID_LINES = 12


@dataclass(frozen=True)
class Count:
    """How many tests ended in which way."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Count) -> Count:
        """Sum of both, way by way."""
        return Count(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        """Show the line that the checks end with."""
        line = f"{self.passed} passed, {self.failed} failed"
        return f"{line}, {self.skipped} skipped" if self.skipped else line


def count_cargo(lines: list[str]) -> Count | None:
    """Sum every test binary's result line; None where there is none.

    >>> log = '''running 3 tests
    ... test ring ... ok
    ... test sort ... ok
    ... test huge ... ignored
    ...
    ... successes:
    ...
    ... ---- ring stdout ----
    ... skipped: io_uring is forbidden here
    ... skipped: said twice, counted once
    ...
    ... ---- sort stdout ----
    ... seed 7
    ...
    ... successes:
    ...     ring
    ...     sort
    ...
    ... test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
    ... '''
    >>> print(count_cargo(log.splitlines()))
    1 passed, 0 failed, 2 skipped

    A failed test that printed such a line stays failed:

    >>> log = '''failures:
    ...
    ... ---- ring stdout ----
    ... skipped: half of it
    ...
    ... test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
    ... '''
    >>> print(count_cargo(log.splitlines()))
    4 passed, 1 failed
    >>> count_cargo(["error: could not compile `inshore`"])
    """
    total: Count | None = None
    among_successes = False
    undecided = False  # inside the output of a passed test that has not said `skipped:` yet
    said_skipped = 0
    for line in lines:
        if line in ("successes:", "failures:"):
            among_successes, undecided = line == "successes:", False
        elif among_successes and CARGO_TEST_OUTPUT.match(line):
            undecided = True
        elif undecided and line.startswith("skipped:"):
            said_skipped, undecided = said_skipped + 1, False
        elif result := CARGO_RESULT.match(line):
            passed, failed, ignored = map(int, result.groups())
            one = Count(passed - said_skipped, failed, ignored + said_skipped)
            total = one if total is None else total + one
            among_successes, undecided, said_skipped = False, False, 0
    return total


def count_script(lines: list[str]) -> Count | None:
    """Count the lines of our scripts, one for each thing that they check; None where there is none.

    >>> print(count_script(["fuzz store ... ok (7 inputs)", "fuzz log ... FAILED", "fuzz lists ... ok ()"]))
    2 passed, 1 failed
    >>> print(count_script(["package wheel ... ok (1 s)", "package deb ... skipped: chroot needs root"]))
    1 passed, 0 failed, 1 skipped
    >>> count_script(["error: could not compile `inshore-fuzz`"])
    """
    words = [result.group(1) for line in lines if (result := SCRIPT_RESULT.match(line))]
    if not words:
        return None
    return Count(words.count("ok"), words.count("FAILED"), words.count("skipped:"))


def count_pytest(lines: list[str]) -> Count | None:
    """Read the last summary line; None where there is none.

    >>> print(count_pytest(["", "== 1 failed, 12 passed, 3 skipped, 2 warnings, 1 error in 0.5s =="]))
    12 passed, 2 failed, 3 skipped
    >>> print(count_pytest(["7 passed, 1 xfailed in 61.20s (0:01:01)"]))
    7 passed, 0 failed, 1 skipped
    >>> count_pytest(["no tests ran in 0.01s"])
    """
    for line in reversed(lines):
        if result := PYTEST_RESULT.match(line):
            counts: dict[str, int] = {}
            for part in result.group(1).split(", "):
                number, word = part.split(" ", 1)
                counts[word.removesuffix("s") if word == "errors" else word] = int(number)
            return Count(
                counts.get("passed", 0) + counts.get("xpassed", 0),
                counts.get("failed", 0) + counts.get("error", 0),
                counts.get("skipped", 0) + counts.get("xfailed", 0),
            )
    return None


def failures(lines: list[str]) -> list[str]:
    r"""Give the names of failed tests, each with the first lines that it said.

    >>> log = '''test ring ... ok
    ... test sort ... FAILED
    ...
    ... failures:
    ...
    ... ---- sort stdout ----
    ... seed 7
    ... thread 'sort' panicked at sort.rs:1:1:
    ...
    ... failures:
    ...     sort
    ... '''
    >>> print("\n".join(failures(log.splitlines())))
    FAILED sort
        seed 7
        thread 'sort' panicked at sort.rs:1:1:
    >>> failures(["package deb ... FAILED", "FAILED tests/test_store.py::test_put - OSError: no room"])
    ['FAILED package deb', 'FAILED tests/test_store.py::test_put - OSError: no room']
    """
    told = []
    for line in lines:
        if line.startswith(("features ", "fuzz ", "package ", "tutorial ")) and line.endswith(" ... FAILED"):
            told.append(f"FAILED {line.removesuffix(' ... FAILED')}")
        elif line.startswith(("FAILED ", "ERROR ")):
            told.append(line)
        elif line.startswith("test ") and line.endswith(" ... FAILED"):
            name = line.removeprefix("test ").removesuffix(" ... FAILED")
            told.append(f"FAILED {name}")
            heading = f"---- {name} stdout ----"
            if heading in lines:
                said = lines[lines.index(heading) + 1 :]
                end = next((i for i, text in enumerate(said) if text.startswith(("----", "failures:"))), None)
                told += [f"    {text}" for text in said[:end] if text.strip()][:SAID_LINES]
    return told


def count_log(path: Path) -> Count | None:
    """Count one log of any kind; None, and a line on standard error, where it holds no result."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        print(f"{path}: {error.strerror}", file=sys.stderr)
        return None
    lines = ANSI_COLOUR.sub("", text).splitlines()
    count = count_cargo(lines) or count_script(lines) or count_pytest(lines)
    print("".join(f"{line}\n" for line in failures(lines)), end="")
    if count is None:
        print(f"{path}: no result of cargo test, fuzzing, packages or pytest in it", file=sys.stderr)
    return count


def main(paths: list[str]) -> int:
    """Print the sum over all logs; 0 where every log had a result and nothing failed."""
    if not paths:
        print("usage: count_tests.py LOG...", file=sys.stderr)
        return 2
    counts = [count_log(Path(path)) for path in paths]
    total = sum((count for count in counts if count is not None), Count())
    sys.stderr.flush()
    print(total, flush=True)
    return int(None in counts or total.failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
