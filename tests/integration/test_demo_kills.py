"""Does the demo end with the same rows when leader, writers, broker and demo die in the middle?

It is a small one: only there are fewer flights and desks (`tests/small_demo.py`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from consumers.tools.bench.environment import descendants
from tests.integration.test_up import cmdline
from tests.spark_python import sitecustomize
from tests.spark_start import python_path
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc"),
]

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 600.0
DONE = "All as it must be"


def start(root: Path, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "consumers.cli", "demo", "--root", str(root)],
            cwd=REPOSITORY,
            env={
                **os.environ,
                sitecustomize.FIRST: "tests.small_demo",
                "PYTHONPATH": python_path(os.environ["PYTHONPATH"], REPOSITORY),
            },
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def kill(demo: subprocess.Popen[bytes], part: bytes) -> None:
    """Kill the first process of the demo whose command line has `part` in it, once there is one."""

    def killed() -> bool:
        assert demo.poll() is None, "it came to its end before"
        found = next((pid for pid in sorted(descendants(demo.pid)) if part in cmdline(pid)), 0)
        if found:
            os.kill(found, signal.SIGKILL)
        return bool(found)

    wait_until(killed, f"a process with {part!r}", seconds=DEADLINE_SECONDS)


def test_the_demo_ends_with_the_same_rows_whoever_is_killed(tmp_path: Path) -> None:
    root, output = tmp_path / "demo", tmp_path / "first.txt"
    run = root / "demo" / "run-1"
    demo = start(root, output)

    def await_file(path: str) -> None:
        def is_there() -> bool:
            return any(run.glob(path)) or demo.poll() is not None

        wait_until(is_there, path, seconds=DEADLINE_SECONDS)
        assert demo.poll() is None, output.read_text()[-3000:]

    try:
        await_file("desk-*.jsonl")
        kill(demo, b"consumers.tools.demo.desk")
        # The desks may be done before the stream's batches.
        for batch, part in enumerate((b"cli\0committer", b"kafka.Kafka")):
            await_file(f"checkpoint/commits/{batch}")
            kill(demo, part)
        await_file("checkpoint/commits/2")
        children = descendants(demo.pid)
    finally:
        demo.kill()
        demo.wait()
    # Nobody outlives the demo; what they left is what the next one finds.
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "end of all")
    output = tmp_path / "second.txt"
    again = start(root, output)
    try:
        assert again.wait(DEADLINE_SECONDS) == 0, output.read_text()[-3000:]
    finally:
        again.kill()
    text = output.read_text()
    assert "going on with run 1, which was interrupted" in text
    assert DONE in text
