"""Do the README's, the quick start's, the tutorials' and the pages' snippets run as they are typed?

One `commitlog up` and one Spark session serve all of them.
"""

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked
from tests.child import ended
from tests.doc_pages import GIVEN, program
from tests.integration.test_up import Service, service

pytestmark = [pytest.mark.broker, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [ROOT / "docs/quick-start.md", *sorted((ROOT / "docs/tutorials").glob("*.md"))]
FEED = 'log.subscribe("shop$*", "beginning")'
FEED_THAT_ENDS = 'log.subscribe("shop$*", "beginning", idle_seconds=2)'
INDEXED_SECONDS = 120.0
RUN_PAGES = """
import json, os, sys
from commitlog.spark import local_session

pages, folder = json.loads(sys.stdin.read())
os.chdir(folder)
os.mkdir("source")
with open("source/rows.json", "w") as rows:
    rows.write('{"id": 8, "amount": 1.5, "op": "u", "gone": false}')
spark = local_session("pages")
for name, text in pages.items():
    found = {"__name__": name, "spark": spark, "source": "source"}
    exec(compile(text, name, "exec"), found)
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
    print("ran", name, flush=True)
spark.stop()
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("pages") / "root") as running:
        yield running


def snippets(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def typed(text: str, running: Service) -> str:
    """Return a snippet with the addresses that a reader puts in."""
    text = text.replace("127.0.0.1:9092", running.kafka)
    return text.replace("http://127.0.0.1:2333", f"http://127.0.0.1:{running.port}")


def run(code: str, given: str = "") -> str:
    done = ended([sys.executable, "-W", "ignore", "-c", code], input=given, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def test_the_snippets_run_as_typed(running: Service) -> None:
    first = next(text for text in snippets(README) if "CommitLog.connect" in text)
    feed = next(text for text in snippets(README) if FEED in text).replace(FEED, FEED_THAT_ENDS)
    clients = next(text for text in snippets(README) if "lance_namespace.connect" in text)
    assert "127.0.0.1:9092" in first
    text = f"{first}{feed}data = pa.table({{'id': [1]}})\n{clients}"
    text += (
        "rows = log.open('shop$orders').to_table().sort_by('id').to_pydict()\n"
        "assert rows == {'id': [1, 2, 3, 4, 5], 'amount': [9.5, 1.0, 1.0, 4.0, 5.0]}, rows\n"
    )
    shown = run(typed(text, running))
    assert re.search(r"^\d+ \{.*'shop\$orders'.*: 2", shown, re.M), shown


def test_pages_and_tutorials_run_as_typed(running: Service, tmp_path: Path) -> None:
    pages = {page: typed(program(page), running) for page in GIVEN}
    pages |= {page.stem: typed("".join(snippets(page)), running) for page in PAGES}
    assert len(pages) == len(GIVEN) + 6
    assert all(pages.values())
    shown = run(RUN_PAGES, json.dumps([pages, str(tmp_path)]))
    assert re.findall(r"^ran (.*)$", shown, re.M) == list(pages)
    lines = "".join(text for page in PAGES for text in snippets(page, "console")).splitlines()
    commands = dict.fromkeys(line.removeprefix("$ ") for line in lines)
    assert len(commands) > 5
    for command in commands:
        words = [
            str(running.root) if word in ("DIR", "shop-data") else word
            for word in shlex.split(command)
        ]
        assert words[0] == "commitlog"
        _await_success(["-m", "consumers.cli", *words[1:]])


def _await_success(command: list[str]) -> None:
    """Run what asks the index, which may be a moment behind the log."""
    deadline = time.monotonic() + INDEXED_SECONDS
    while True:
        done = forked.run(command, env={**os.environ, "COLUMNS": "120"})
        if done.returncode == 0:
            return
        assert time.monotonic() < deadline, f"{command}: {done.stdout} {done.stderr}"
        time.sleep(0.5)
