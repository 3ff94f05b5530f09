"""Check that SBOMs name every direct dependency of the crate that they describe, with version and licence.

    python3 scripts/check_sbom.py inshore.whl inshore.cdx.json ...

The SBOMs of a wheel lie inside it (PEP 770). The exit code is 1, with a line for each fault, where one lacks
anything.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

# What a component must have.
KEYS = ("version", "licenses")


def sboms(path: Path) -> list[Any]:
    """Read the file itself, or what a wheel has in `.dist-info/sboms/`."""
    if path.suffix != ".whl":
        return [json.loads(path.read_bytes())]
    with zipfile.ZipFile(path) as wheel:
        return [json.loads(wheel.read(name)) for name in wheel.namelist() if "/sboms/" in name]


def direct_dependencies(crate: str) -> set[str]:
    """Ask cargo for what `crate` always needs: an optional dependency may be left out of a build."""
    command = ["cargo", "metadata", "--no-deps", "--format-version", "1"]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    package = next(package for package in metadata["packages"] if package["name"] == crate)
    return {d["name"] for d in package["dependencies"] if d["kind"] is None and not d["optional"]}


def faults(sbom: Any) -> list[str]:
    """List what one SBOM lacks.

    >>> faults({"bomFormat": "SPDX"})
    ['not CycloneDX, but SPDX']
    """
    if sbom.get("bomFormat") != "CycloneDX":
        return [f"not CycloneDX, but {sbom.get('bomFormat')}"]
    crate = sbom["metadata"]["component"]["name"]
    absent = direct_dependencies(crate) - {component["name"] for component in sbom["components"]}
    found = [f"{crate}: {name} is missing" for name in sorted(absent)]
    for component in sbom["components"]:
        found += [f"{crate}: {component['name']} has no {key}" for key in KEYS if not component.get(key)]
    return found


def main(paths: list[str]) -> int:
    """Print the faults of all, or how many components there are."""
    lines, status = [], 0
    for path in paths:
        found = sboms(Path(path))
        lacking = [fault for sbom in found for fault in faults(sbom)] if found else ["no SBOM inside"]
        lines += [f"{Path(path).name}: {fault}" for fault in lacking]
        status |= bool(lacking)
        lines += [f"{len(sbom['components'])} of {sbom['metadata']['component']['name']}" for sbom in found]
    print("\n".join(lines) if status else f"components: {', '.join(lines)}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
