"""What a leader rests on that appends for writers: acknowledgements say what a reader would."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from commitlog.adapters.log_records import encode_to_append, to_submitted
from commitlog.model.records import Submitted
from commitlog.ports import Log, Reader
from commitlog.protocol import transaction_key
from tests.contract.test_log import log as log
from tests.contract.test_log import world as world
from tests.contract.worlds import append_all, read_to_end, transaction, transactions_of
from tests.leaks import CLIENT, running
from tests.waiting import WAIT_SECONDS, wait_until


class Appended:
    """What was appended by a leader, and what it was told."""

    def __init__(self, log: Log) -> None:
        """Begin with nothing."""
        writer = log.records_writer(0)
        assert writer is not None
        self.writer = writer
        self.landed: list[Submitted] = []
        self.errors: list[Exception | None] = []

    def append(self, message: bytes) -> None:
        """Take a record for the next group."""
        asked = transaction(message)
        key, value = transaction_key(asked.transaction_id), encode_to_append(asked)

        def landed(offset: int, time_ms: int, error: Exception | None) -> None:
            self.errors.append(error)
            made = to_submitted(0, offset, time_ms, key, value)
            assert made is not None
            self.landed.append(made)

        self.writer.append(key, value, landed)

    def await_all(self, count: int) -> None:
        """Wait until so many were acknowledged."""
        deadline = time.monotonic() + WAIT_SECONDS
        while len(self.landed) < count:
            assert time.monotonic() < deadline, f"{len(self.landed)} of {count} acknowledged"
            self.writer.poll(0.1)


@pytest.fixture
def appended(log: Log) -> Iterator[Appended]:
    """A leader's writer."""
    made = Appended(log)
    yield made
    made.writer.close()
    del made.writer


def test_an_acknowledgement_says_of_each_record_what_a_reader_is_told(
    log: Log, appended: Appended
) -> None:
    for number in range(40):
        appended.append(b"%d" % number)
    appended.await_all(40)
    append_all(log, [transaction(b"another's")])
    for number in range(40, 60):
        appended.append(b"%d" % number)
    appended.await_all(60)
    assert not any(appended.errors)
    found = transactions_of(log, offset=1)
    assert [one.offset for one in found] == list(range(1, 62))
    assert found[:40] + found[41:] == appended.landed


def test_what_a_leader_gives_up_is_told_so(appended: Appended) -> None:
    appended.append(b"waits")
    appended.writer.close()
    assert len(appended.errors) <= 1


def test_a_reader_that_rested_goes_on_where_it_is_told_to(log: Log) -> None:
    reader = log.read_transactions(0)
    read_to_end(reader)
    for start, end in ((21, 31), (40, 61), (70, 91)):
        reader.pause()
        append_all(log, [transaction(b"%d" % number) for number in range(30)])
        reader.seek(start)
        assert reader.position() == start
        assert [one.offset for one in read_to_end(reader)] == list(range(start, end))
    reader.close()


def test_a_reader_that_let_go_of_its_connection_reads_on(log: Log) -> None:
    before = clients()
    readers: tuple[Reader[Any], ...] = (log.read_transactions(0), log.read_outcomes(0))
    seen = [len(read_to_end(reader)) for reader in readers]
    for number in range(3):
        for reader in readers:
            position = reader.position()
            reader.rest()
            assert reader.position() == position
        log.close()
        wait_until(lambda: clients() <= before, "the clients to end")
        append_all(log, [transaction(b"%d" % number)])
        assert readers[0].end_offset() == readers[0].position() + 1
        assert [len(read_to_end(reader)) for reader in readers] == [1, 0]
    readers[0].rest()
    readers[0].seek(1)
    assert len(read_to_end(readers[0])) == seen[0] + 3 - 1
    for reader in readers:
        reader.rest()
        reader.close()


def clients() -> int:
    """Return how many clients of Kafka this process has."""
    return sum(kind == CLIENT for kind, _ in running())
