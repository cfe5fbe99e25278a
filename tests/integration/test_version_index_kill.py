"""kill -9 at any moment: nothing is lost, repeated or torn, and no reader ever notices."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

from consumers import history
from consumers.version_index import VersionIndex
from tests.integration.version_index_child import HOW, TRANSACTIONS, stream
from tests.unit.test_version_index_store import build, contents, log_of

ROUNDS = ["outside"] * 4 + [how for how in HOW if how not in {"outside", "to the end"}]
ROUND_SECONDS_MAX = 6.0

SNAPSHOT = """
SELECT (SELECT coalesce(max(sequence), 0) FROM positions) AS position,
       (SELECT count(*) FROM transactions) AS transactions,
       (SELECT coalesce(max(sequence), 0) FROM transactions) AS newest,
       (SELECT count(*) FROM operations) AS operations,
       (SELECT coalesce(sum(ordinal), 0) FROM data_files) AS files
"""


class Reader:
    """Opens the public file again and again, as readers do."""

    def __init__(self, root: Path, operations: list[int]) -> None:
        self.opened = 0
        self.problems: list[str] = []
        self._root, self._operations = root, operations
        self._last = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stop.is_set():
            if (self._root / "index.duckdb").exists():
                try:
                    self._look()
                except Exception as error:
                    self.problems.append(repr(error))
            time.sleep(0.02)

    def _look(self) -> None:
        with history.connect(self._root) as connection:
            time.sleep(random.random() * 0.05)
            (row,) = connection.execute(SNAPSHOT).fetchall()
        position, transactions, newest, operations, _ = row
        self.opened += 1
        if not position == transactions == newest or operations != self._operations[position]:
            self.problems.append(f"torn: {row}, expected {self._operations[position]} operations")
        if position < self._last:
            self.problems.append(f"went back from {self._last} to {position}")
        self._last = position


def test_kill_at_any_moment(tmp_path: Path) -> None:
    whole = stream()
    operations = [0]
    for one in whole.decided():
        operations.append(operations[-1] + len(getattr(one.submitted.record, "operations", ())))
    moments = random.Random(1)
    root = tmp_path / "killed"
    root.mkdir()
    readers = [Reader(root, operations) for _ in range(2)]
    positions = []
    try:
        for how in ROUNDS:
            _run(root, how, moments.uniform(0.05, 0.7))
            with VersionIndex.open(root) as index:  # what a restart finds
                positions.append(index.position(0).sequence)
        _run(root, "to the end", 30)
    finally:
        for reader in readers:
            reader.close()
    assert not [problem for reader in readers for problem in reader.problems]
    assert sum(reader.opened for reader in readers) > len(ROUNDS)
    assert positions == sorted(positions)
    assert 0 < positions[-1] <= TRANSACTIONS
    build(tmp_path / "never_killed", log_of(whole))
    assert contents(root) == contents(tmp_path / "never_killed")


def _run(root: Path, how: str, seconds: float) -> None:
    command = [sys.executable, "-m", "tests.integration.version_index_child", str(root), how]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        started = child.stdout.readline() == "started\n"
        if how == "outside":
            assert started
            time.sleep(seconds)
        else:
            child.wait(timeout=max(seconds, ROUND_SECONDS_MAX))
    except subprocess.TimeoutExpired:
        pass
    finally:
        child.kill()
        child.wait()
        child.communicate()
    if how == "to the end":
        assert child.returncode == 0
