"""Do the README's Python snippets run as they are typed, against `commitlog up`?"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_up import service

pytestmark = [pytest.mark.broker]

README = Path(__file__).resolve().parents[2] / "README.md"
FEED = 'log.subscribe("shop$*", "beginning")'
FEED_THAT_ENDS = 'log.subscribe("shop$*", "beginning", idle_seconds=2)'


def snippets() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)


def test_the_snippets_run_as_typed(tmp_path: Path) -> None:
    first = next(text for text in snippets() if "CommitLog.connect" in text)
    feed = next(text for text in snippets() if FEED in text).replace(FEED, FEED_THAT_ENDS)
    clients = next(text for text in snippets() if "lance_namespace.connect" in text)
    assert "127.0.0.1:9092" in first
    with service(tmp_path / "root") as running:
        text = first.replace("127.0.0.1:9092", running.kafka) + feed
        text += "data = pa.table({'id': [1]})\n"
        text += clients.replace("http://127.0.0.1:2333", f"http://127.0.0.1:{running.port}")
        text += (
            "rows = log.open('shop$orders').to_table().sort_by('id').to_pydict()\n"
            "assert rows == {'id': [1, 2, 3, 4, 5], 'amount': [9.5, 1.0, 1.0, 4.0, 5.0]}, rows\n"
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", text],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        running.stop()
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^\d+ \{.*'shop\$orders'.*: 2", done.stdout, re.M), done.stdout
