"""Print the licences of the crates that a crate is linked with, for those who ship it.

    python3 scripts/notices.py inshore-cli x86_64-unknown-linux-gnu >THIRD-PARTY

Permissive licences want their text and its copyright lines to go with every copy. Crates with the same text
stand above it together. The texts are those in the sources that cargo has downloaded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

PREFIXES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")


def linked(metadata: dict[str, Any], crate: str) -> list[dict[str, Any]]:
    """Follow normal dependencies from `crate`; macros and build scripts run at build time only."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [identity for identity, package in packages.items() if package["name"] == crate]
    seen = set(waiting)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            identity = dependency["pkg"]
            normal = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            macro = any("proc-macro" in target["kind"] for target in packages[identity]["targets"])
            if normal and not macro and identity not in seen:
                seen.add(identity)
                waiting.append(identity)
    others = [packages[identity] for identity in seen if packages[identity]["source"]]
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def texts(package: dict[str, Any]) -> list[str]:
    """Read the licence files beside the crate's manifest."""
    files = sorted(Path(package["manifest_path"]).parent.iterdir())
    licences = [file for file in files if file.name.upper().startswith(PREFIXES) and file.is_file()]
    return [file.read_text(encoding="utf-8", errors="replace").strip() for file in licences]


def main(crate: str, target: str) -> None:
    """Print every text once, below the crates that it belongs to."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    owners = defaultdict(list)
    for package in linked(metadata, crate):
        label = f"{package['name']} {package['version']} ({package['license']})"
        for text in texts(package) or ["The sources of these hold no licence text."]:
            owners[text].append(label)
    for text, labels in owners.items():
        print("=" * 80, *labels, "-" * 80, text, "", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
