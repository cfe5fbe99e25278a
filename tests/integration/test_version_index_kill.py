"""kill -9 at any moment: nothing is lost, repeated or torn, and no reader ever notices."""

from __future__ import annotations

import pickle
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from consumers import history
from consumers.views.version_index import VersionIndex
from tests import forked
from tests.fakes.log_stream import PartitionLog
from tests.integration.version_index_child import GRACE_SECONDS, HOW
from tests.unit.test_version_index_store import build, contents, log_of

ROUNDS = ["outside"] * 2 + [how for how in HOW if how not in {"outside", "to the end"}]
END_SECONDS = 300.0
TRANSACTIONS_PER_KILL = 375

SNAPSHOT = """
SELECT (SELECT coalesce(max(sequence), 0) FROM positions) AS position,
       (SELECT count(*) FROM transactions) AS transactions,
       (SELECT coalesce(max(sequence), 0) FROM transactions) AS newest,
       (SELECT count(*) FROM operations) AS operations,
       (SELECT coalesce(sum(ordinal), 0) FROM fragment_changes) AS files
"""


class Reader:
    """Opens the public file again and again, as readers do: one costs a fifth of the test."""

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
        self._thread.join(120)

    def _run(self) -> None:
        while not self._stop.is_set():
            if (self._root / "index.duckdb").exists():
                began = time.monotonic()
                try:
                    self._look()
                except history.BrokenIndex as error:
                    # What a snapshot names is kept for a grace; a machine may be slower than that.
                    if time.monotonic() < began + GRACE_SECONDS:
                        self.problems.append(repr(error))
                except Exception as error:
                    self.problems.append(repr(error))
            time.sleep(0.05)

    def _look(self) -> None:
        def look(ask: history.Ask) -> list[history.Row]:
            time.sleep(random.random() * 0.05)
            return ask(SNAPSHOT, ())

        (row,) = history.read(self._root, look)
        position, transactions, newest, operations = (
            int(str(row[name])) for name in ("position", "transactions", "newest", "operations")
        )
        self.opened += 1
        if not position == transactions == newest or operations != self._operations[position]:
            self.problems.append(f"torn: {row}, expected {self._operations[position]} operations")
        if position < self._last:
            self.problems.append(f"went back from {self._last} to {position}")
        self._last = position


def kill_often(folder: Path, rounds: list[str], seed: int = 1) -> tuple[int, set[str]]:
    """Kill a keeper under load at each of `rounds`.

    Return how often a reader opened the index, and at which of the named places it died.

    Asserts that it never saw something torn, wrong or older, and that the rows at the end
    are those of an index that was never killed.
    """
    transactions = TRANSACTIONS_PER_KILL * (len(rounds) + 1)
    whole = PartitionLog(seed=7)
    whole.grow(transactions)
    log_file = folder / "log.pickle"
    log_file.write_bytes(pickle.dumps(whole))
    operations = [0]
    for one in whole.decided():
        operations.append(operations[-1] + len(one.submitted.operations))
    moments = random.Random(seed)
    root = folder / "killed"
    root.mkdir()
    reader = Reader(root, operations)
    positions, died_at = [], set()
    try:
        for how in rounds:
            if _run(root, log_file, how, moments.uniform(0.05, 0.7)):
                died_at.add(how)
            with VersionIndex(root) as index:  # what a restart finds
                positions.append(index.position(0).sequence)
        _run(root, log_file, "to the end")
    finally:
        reader.close()
    assert not reader.problems
    assert positions == sorted(positions)
    assert 0 < positions[-1] <= transactions
    build(folder / "never_killed", log_of(whole))
    assert contents(root) == contents(folder / "never_killed")
    return reader.opened, died_at


@pytest.mark.slow
def test_kill_at_any_moment(tmp_path: Path) -> None:
    opened, died_at = kill_often(tmp_path, ROUNDS)
    assert opened > len(ROUNDS)
    assert died_at == set(ROUNDS)


def _run(root: Path, log_file: Path, how: str, seconds: float = 0.0) -> bool:
    """Keep an index until it is killed or at its end; return whether it died where `how` says."""
    module = "tests.integration.version_index_child"
    command = ["-m", module, str(root), str(log_file), how, str(TRANSACTIONS_PER_KILL)]
    with forked.beside(command) as (child, said):
        # On a slow machine, too, each round commits something before it ends.
        moving = said.readline() == "moving\n"
        if how == "outside":
            assert moving
            time.sleep(seconds)
            child.kill()
        code = child.wait(END_SECONDS)
        left = said.read()
    if how == "to the end":
        assert code == 0
    return not left


def main() -> None:
    """Kill a keeper so many times: `-m tests.integration.test_version_index_kill 100 [SEED]`."""
    kills = int(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory() as folder:
        ways = [how for how in HOW if how not in {"outside", "to the end"}]
        rounds = ["outside" if number % 3 else ways[number // 3 % len(ways)]
                  for number in range(kills)]  # fmt: skip
        opened, _ = kill_often(Path(folder), rounds, seed)
        print(f"killed {kills} times; a reader opened it {opened} times: nothing torn, "
              "nothing older, no row wrong")  # fmt: skip


if __name__ == "__main__":
    main()
