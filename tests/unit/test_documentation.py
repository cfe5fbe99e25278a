"""Does the documentation build, without a broken link and without the network?"""

import re
import shlex
import sys
from pathlib import Path

import pytest
from cyclopts import CycloptsError

from consumers.commands.app import app
from tests.child import ended

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"^\s*(?:\$ )?(?:\.venv/bin/)?commitlog ([a-z].*)$")
OPTIONAL = re.compile(r" \[--[^\]]*\]")


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "-f", "infra/mkdocs.yml", "-d", tmp_path]
    done = ended(
        [*map(str, command)],
        cwd=ROOT,
        env={"PATH": "", "HOME": str(tmp_path), "NO_MKDOCS_2_WARNING": "1", "NO_PROXY": "*"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "connect" in (tmp_path / "reference/python.html").read_text(encoding="utf-8")
    assert "--tables-root" in (tmp_path / "reference/commands.html").read_text(encoding="utf-8")
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"',
            page.read_text(encoding="utf-8"),
        )
        assert not loaded, f"{page.name} loads {loaded}"


def test_links_between_pages_lead_somewhere() -> None:
    """Those of the README, too, which isn't on the site."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob(".github/*.md"), *ROOT.glob("docs/**/*.md")]
    wrong = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
        # Made by the site itself.
        if target not in {"reference/commands.md", "benchmarks.md"}
    ]
    assert len(pages) > 20
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_every_command_of_a_page_is_one() -> None:
    """Each with its options, as it stands in a block of a page; words in capitals are texts."""
    wrong, count = [], 0
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        blocks = re.findall(r"^```[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
        lines = "".join(blocks).replace("\\\n", " ").splitlines()
        for line in filter(None, map(COMMAND.match, lines)):
            words = shlex.split(OPTIONAL.sub("", line[1]), comments=True)
            words = words[: words.index("<")] if "<" in words else words
            count += 1
            try:
                app.parse_args(words, exit_on_error=False, print_error=False)
            except CycloptsError as error:
                wrong.append(f"{page.relative_to(ROOT)}: {line[1]}: {error}")
    assert count > 40
    assert not wrong, "\n".join(wrong)


def test_every_heading_of_the_page_explains_itself() -> None:
    static = ROOT / "consumers/servers/page/static"
    known = set(re.findall(r'^  "?([^":]+?)"?: "', (static / "terms.js").read_text(), re.M))
    heads = {
        head
        for script in static.glob("*.js")
        for listed in re.findall(r"listing\(\s*\[([^\]]*)\]", script.read_text(encoding="utf-8"))
        for head in re.findall(r'"([^"]+)"', listed)
    }
    assert len(heads) > 30
    assert heads <= known, f"terms.js doesn't explain {sorted(heads - known)}"
