"""Hooks of MkDocs (mkdocs.yml): pages from outside of docs/, and links to files of the repository.

Pages in docs/ link to files of the repository as a reader of the repository expects: `../ARCHITECTURE.md`. In
the site such a file is a page of its own if PAGES names it, and otherwise a copy of the source in `source/`.
A link to a file that does not exist stays as it is, so that MkDocs reports the broken link.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

# Files of the repository that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "docs/README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "packaging/README.md": "packaging.md",
    "python/README.md": "python-package.md",
}

LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")


def in_site(target: str) -> str:
    """Return the address within the site of a path in the repository.

    >>> in_site("docs/guide/sort.md"), in_site("ARCHITECTURE.md"), in_site("examples/own-program/src/lib.rs")
    ('guide/sort.md', 'architecture.md', 'source/examples/own-program/src/lib.rs.txt')
    """
    if target in PAGES:
        return PAGES[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"source/{target}.txt"


def translate(markdown: str, source: str, page: str) -> str:
    """Replace links between files of the repository by links between pages of the site.

    `source` is the file's path in the repository, `page` the path of its page.

    >>> translate("[a](docs/guide.md) [b](https://x.y/z)", "README.md", "index.md")
    '[a](guide.md) [b](https://x.y/z)'
    >>> translate("[a](../ARCHITECTURE.md#glossary)", "docs/how-it-works.md", "how-it-works.md")
    '[a](architecture.md#glossary)'
    """

    def replace(match: re.Match[str]) -> str:
        before, path, anchor, after = match.groups()
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if "://" in path or not (ROOT / target).exists():
            return match.group()
        address = posixpath.relpath(in_site(target), posixpath.dirname(page) or ".")
        return f"{before}{address}{anchor or ''}{after}"

    return LINK.sub(replace, markdown)


def on_config(config: Any) -> Any:
    """List the decisions in the navigation."""
    folder = ROOT / "docs" / "decisions"
    for entry in config.nav:
        if "Decisions" in entry:
            entry["Decisions"] = [
                "decisions/README.md",
                *sorted(f"decisions/{file.name}" for file in folder.glob("0*.md")),
            ]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add pages from outside of docs/, and copies of the sources that any page links to."""
    from mkdocs.structure.files import File  # noqa: PLC0415  (the tests of this file need no MkDocs)

    known = {file.src_uri for file in files}
    for source, page in PAGES.items():
        if page not in known:
            text = (ROOT / source).read_text()
            files.append(File.generated(config, page, content=translate(text, source, page)))
            known.add(page)
    texts = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    texts += [(source, (ROOT / source).read_text()) for source in PAGES if (ROOT / source).exists()]
    for source, text in texts:
        for _, path, _, _ in LINK.findall(text):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
            address = in_site(target)
            if address.startswith("source/") and (ROOT / target).is_file() and address not in known:
                files.append(File.generated(config, address, content=(ROOT / target).read_text()))
                known.add(address)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Translate the links of a page in docs/ that lead out of docs/."""
    if page.file.src_uri in PAGES.values() and not (ROOT / "docs" / page.file.src_uri).exists():
        return markdown
    return translate(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)
