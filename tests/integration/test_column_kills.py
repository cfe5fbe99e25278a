"""A client or leader that is killed while columns are added: do writers go on, is all whole?"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from commitlog import CommitLog
from commitlog.adapters.kafka import KafkaLog
from commitlog.client.new_columns import NewColumns
from commitlog.core.operations.awaited_columns import PRIVATE_DIRECTORY
from commitlog.errors import InvalidTransaction
from commitlog.model.records import Status
from consumers.partition.deciding import AWAITED_SECONDS
from consumers.tools.bench.environment import descendants
from consumers.tools.maintenance.cleaning import clean
from tests import forked
from tests.integration.test_up import (
    LEAN,
    Service,
    cmdline,
    log_on,
    run,
    service,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker]

T = "t"
SCHEMA = pa.schema([("id", pa.int64())])
WRITERS = 2
BETWEEN_SECONDS = 0.05
"""Between two appends of a writer: what is killed beside them needs the processors, too."""
CHILD_SECONDS = 300.0
SLACK_SECONDS = 30.0
"""What writers may wait besides, on a machine with much else to do."""
POINTS = ("computed", "submitted", "completed", "decided", "never")


class Writers:
    """Threads that append all the time, and how long each append took."""

    def __init__(self, log: CommitLog) -> None:
        """Begin."""
        self.longest = 0.0
        self.counts = [0] * WRITERS
        self.failures: list[Exception] = []
        self._log = log
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, number: int) -> None:
        while not self._ended.wait(BETWEEN_SECONDS):
            began = time.monotonic()
            try:
                schema = self._log.table(T).schema
                assert schema is not None
                self._log.append(T, pa.Table.from_pylist([{"id": number}], schema=schema))
                self.counts[number] += 1
            except InvalidTransaction:
                pass  # a column came in between
            except Exception as error:
                self.failures.append(error)
            self.longest = max(self.longest, time.monotonic() - began)

    def await_commits(self) -> None:
        """Wait until each one has committed what it began after this."""
        wanted = [count + 2 for count in self.counts]
        wait_until(
            lambda: all(a >= b for a, b in zip(self.counts, wanted, strict=True)),
            "commits of all writers",
        )

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def writing(log: CommitLog) -> Iterator[Writers]:
    writers = Writers(log)
    try:
        yield writers
    finally:
        writers.close()
    assert writers.failures == []


def check_columns(place: str, columns: list[str]) -> None:
    """The table has these columns, and rows that came before have their values in all of them."""
    found = lance.dataset(place)
    found.validate()  # type: ignore[no-untyped-call]
    assert found.schema.names == ["id", *columns]
    for row in found.to_table().to_pylist():
        assert {row[name] for name in columns} <= {2 * row["id"], None}
        if columns and row[columns[0]] == 2 * row["id"]:
            assert row["id"] < WRITERS


def check_whole(up: Service, log: CommitLog) -> None:
    """What the killed left can be removed, and the log and all files are as they should be."""
    private = Path(log.table(T).location) / PRIVATE_DIRECTORY
    with contextlib.closing(KafkaLog.connect(up.kafka, up.log, {}, 120)) as opened:
        clean(opened, None, 0, log)
    assert [path for path in private.rglob("*") if path.is_file()] == []
    verdict = run("verify", "--contents", "--root", str(up.root))
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


def test_a_client_that_is_killed_on_the_way(broker: Any, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with service(root, *LEAN, *log_on(broker)) as up, up.connect() as log:
        log.create_table(T, SCHEMA)
        log.append(T, pa.table({"id": [0, 1]}))
        place = log.table(T).location
        for point in POINTS:
            with writing(log) as writers:
                child = ["-m", "tests.integration.column_child", up.kafka, up.log, T]
                done = forked.run([*child, point, point], timeout=CHILD_SECONDS)
                writers.await_commits()
            expected = 0 if point == "never" else -signal.SIGKILL
            assert done.returncode == expected, done.stderr[-2000:]
            assert writers.longest < AWAITED_SECONDS + SLACK_SECONDS
            log.compact(T)
        # It was decided, and not refused, once it was completed.
        check_columns(place, ["decided", "never"])
        check_whole(up, log)


def test_a_leader_that_is_killed_while_it_waits(broker: Any, tmp_path: Path) -> None:
    root = tmp_path / "root"
    with service(root, *LEAN, *log_on(broker)) as up, up.connect() as log:
        log.create_table(T, SCHEMA)
        log.append(T, pa.table({"id": [0, 1]}))

        def describe(table: Any) -> Any:
            return log.describe(table, fresh=True, readable=True)

        columns = NewColumns(
            log.runtime(), describe, lambda dataset: dataset.add_columns({"double": "id * 2"})
        )
        info = describe((T,))
        done = columns.attempt(info, time.monotonic())
        assert done is not None
        log.append(T, pa.table({"id": [2]}))
        ticket = log.submit(T, done[0].SerializeToString())
        change = lance.LanceOperation.UpdateMap({"a": "b"})
        after = log.submit(T, lance.LanceOperation.UpdateConfig(config_updates=change))
        log.create_table("other", SCHEMA)
        assert not ticket.done()
        assert not after.done()
        leader = next(
            one for one in descendants(up.process.pid) if b"committer" in cmdline(one).split(b"\0")
        )
        os.kill(leader, signal.SIGKILL)
        outcome = columns.finish(ticket, info, done[0], time.monotonic() + CHILD_SECONDS)
        assert outcome.status is Status.COMMITTED, outcome.message
        after.result(CHILD_SECONDS).raise_for_conflict()
        with writing(log) as writers:
            writers.await_commits()
        found = lance.dataset(log.table(T).location).to_table().to_pylist()
        assert [row["double"] for row in found][:3] == [0, 2, 4]
        check_whole(up, log)
