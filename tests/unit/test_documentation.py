"""Does the documentation build, without a broken link and without the network?"""

import ast
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
from cyclopts import CycloptsError

from commitlog.adapters.storage_options import StorageFile, read_storage_file
from consumers.commands.app import app
from consumers.servers.security.access_file import read_rules
from tests import doc_pages
from tests.child import ended
from tests.doc_pages import BLOCKS, GIVEN, HERE, READ, RUN, blocks, pages

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"^\s*(?:\$ )?(?:\.venv/bin/)?commitlog ([a-z].*)$")
TEST = re.compile(r"tests/\w+/test_\w+\.py")
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


def test_every_block_of_a_page_is_run_or_says_why_not() -> None:
    found = {page: len(blocks(page)) for page in pages()}
    told = {page: len(BLOCKS.get(page, ())) for page in found}
    assert found == told, "tests/doc_pages.py has a line for each block, in their order"
    assert set(BLOCKS) <= set(found)
    files = {name for lines in BLOCKS.values() for line in lines for name in TEST.findall(line)}
    assert not [name for name in files if not (ROOT / name).exists()]
    run = {page for page, lines in BLOCKS.items() if RUN in lines}
    assert run == set(GIVEN)
    for page in run:
        program = ast.parse(doc_pages.program(page))
        assert program.body
        for typed in HERE.get(page, {}):
            assert typed in "".join(block.text for block in blocks(page)), f"{page}: {typed}"


def test_a_server_takes_the_files_of_settings_on_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CI_API_KEY", "LAKE_ID", "VENDED_ID"):
        monkeypatch.setenv(name, "a-key-of-sixteen-characters")
    secret = tmp_path / "secret"
    secret.write_text("a-secret-of-sixteen-characters")
    count = 0
    for page, lines in BLOCKS.items():
        for block, line in zip(blocks(page), lines, strict=True):
            if line != READ:
                continue
            count += 1
            text = re.sub(r"/run/secrets/\w+", str(secret), block.text)
            if "[[grants]]" in text:
                assert len(read_rules(tomllib.loads(text)).keys) == 2
            else:
                file = tmp_path / "storage.toml"
                file.write_text(text)
                assert read_storage_file(str(file)) != StorageFile(), page
    assert count == 4


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
