"""Does compaction remove what a tombstone names, and nothing else? On a real broker.

The cleaner is set to work on every segment within a second, and each segment is rolled at once.
That it did work on the very partition is shown by a foolish program, which appends under one key
again and again: all of its records but the last must be gone.
"""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from commitlog.model.records import Submitted, Transaction
from commitlog.protocol import outcomes_topic, transactions_topic
from tests.contract.worlds import KafkaWorld, append_all, transaction, transactions_of
from tests.waiting import wait_until

pytestmark = pytest.mark.broker

QUICKLY_COMPACTED = {
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "100",
    "delete.retention.ms": "100",
}
FOOLISH_KEY = b"foolish/0"


def keys_by_offset(kafka: KafkaWorld, topic: str) -> dict[int, bytes]:
    """Return what is in partition 0 of a topic, as any program would read it."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "test",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    found: dict[int, bytes] = {}
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(120)) is not None and message.error() is None:
            offset, key = message.offset(), message.key()
            assert offset is not None
            assert key is not None
            found[offset] = key
        assert message is not None, "the end was not reached in 120 s"
    finally:
        consumer.close()
    return found


def compact(kafka: KafkaWorld, topic: str) -> dict[int, bytes]:
    """Roll segments and wait until the cleaner has worked up to now; return what is left."""
    marks = [kafka.append_raw(topic, 0, FOOLISH_KEY, b"mark") for _ in range(3)]

    def left() -> dict[int, bytes] | None:
        # An append after segment.ms rolls the segment before it.
        kafka.append_raw(topic, 0, FOOLISH_KEY, b"roll")
        found = keys_by_offset(kafka, topic)
        return None if set(marks) & set(found) else found

    found = wait_until(left, f"the cleaner to remove {marks}", pause_seconds=0.3)
    assert found is not None
    return found


def of_ours(left: dict[int, bytes]) -> set[int]:
    """Return the offsets of records that are not the foolish program's."""
    return {offset for offset, key in left.items() if key != FOOLISH_KEY}


def transactions_only(found: list[Submitted]) -> list[Submitted]:
    """Return the transactions, without rules and what is malformed."""
    return [each for each in found if isinstance(each.record, Transaction)]


def test_compaction_removes_what_a_tombstone_names_and_nothing_else(kafka: KafkaWorld) -> None:
    log = kafka.connect()
    topic = transactions_topic(kafka.log_name)
    kafka.make_topic(topic, QUICKLY_COMPACTED)
    log.create()
    resent = transaction(b"resent")
    written = [0]
    for batch in range(8):
        several = [transaction(bytes([batch, number])) for number in range(50)]
        written += append_all(log, [*several, resent])
        kafka.append_raw(topic, 0, FOOLISH_KEY, b"again")
        time.sleep(0.12)
    before = transactions_only(transactions_of(log))
    assert len(before) == 408

    left = compact(kafka, topic)
    assert of_ours(left) == set(written), "the cleaner ran, and no transaction is missing"
    assert len(left) < len(written) + 20
    assert transactions_only(transactions_of(log)) == before
    copies = [each for each in before if each.record == before[50].record]
    assert len(copies) == 8, "each time it was resent is a record of its own"

    named = copies[3].offset
    tombstone = kafka.append_raw(topic, 0, left[named], None)
    left = compact(kafka, topic)
    assert of_ours(left) - {tombstone} == set(written) - {named}
    after = [each for each in before if each.offset != named]
    assert transactions_only(transactions_of(log)) == after
    reader = log.read_transactions(0, named)
    [next_one] = reader.poll(records_max=1, timeout_seconds=120)
    assert next_one.offset > named, "a reader passes the gap"
    reader.close()
    assert keys_by_offset(kafka, outcomes_topic(kafka.log_name)).keys() == {0}
