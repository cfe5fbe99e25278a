"""Adds to the documentation what is kept elsewhere, and mends links that leave its folder.

mkdocs calls these functions; `make docs` builds the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {
    "infra/BENCHMARKS.md": "benchmarks.md",
    "infra/FAULTS.md": "faults.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Files of the repository that are pages of the site too."""
COMMANDS = "reference/commands.md"
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that aren't in the folder."""
    for source, page in ELSEWHERE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=mended(text, source, page)))
    files.append(File.generated(config, COMMANDS, content=commands()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Mend the links of a page that is in the folder."""
    path = page.file.src_uri
    if path in ELSEWHERE.values() or path == COMMANDS:
        return markdown
    return mended(markdown, f"docs/{path}", path)


def mended(text: str, source: str, page: str) -> str:
    """Return a page whose links stay on the site; what isn't on it becomes a path."""

    def link(found: re.Match[str]) -> str:
        words, target = found.groups()
        path, hash_, anchor = target.partition("#")
        if not path or "://" in path:
            return found[0]
        goal = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if goal.startswith("docs/"):
            goal = goal.removeprefix("docs/")
        elif goal in ELSEWHERE:
            goal = ELSEWHERE[goal]
        elif (ROOT / goal).exists():
            return f"{words} (`{goal}`)" if goal not in words else words
        else:
            return found[0]
        return (
            f"[{words}]({posixpath.relpath(goal, posixpath.dirname(page) or '.')}{hash_}{anchor})"
        )

    return _LINK.sub(link, text)


def commands() -> str:
    """Return the help of all commands as a page; a test keeps those files as they are printed."""
    folder = ROOT / "tests/golden/help"
    parts = ["# Commands\n\nWhat `commitlog COMMAND --help` prints.\n"]
    for path in sorted(folder.glob("*.txt"), key=lambda one: (one.stem != "commitlog", one.stem)):
        name = path.stem if path.stem == "commitlog" else f"commitlog {path.stem.replace('-', ' ')}"
        parts.append(f"## {name}\n\n```text\n{path.read_text(encoding='utf-8').strip()}\n```\n")
    return "\n".join(parts)
