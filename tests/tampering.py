"""Copies of a log in memory, to be damaged: the original stays as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster, Partition, Stored, Topic
from commitlog.codecs.avro import decode_outcome_record, encode_leader_started, seal_outcome
from commitlog.core.log.chain import first_hash
from commitlog.model.records import Genesis, LeaderStarted, Outcome
from commitlog.protocol import outcomes_topic, transactions_topic

Records = list[Stored]


class Copy:
    """A copy of a log's partition 0, whose records may be changed."""

    def __init__(self, log: MemoryLog) -> None:
        """Copy the topics with their ids."""
        original = log.cluster
        cluster = MemoryCluster()
        cluster.cluster_id = original.cluster_id
        for name, topic in original.topics.items():
            parts = [Partition(list(p.records), p.start, p.end) for p in topic.partitions]
            cluster.topics[name] = Topic(parts, dict(topic.settings), topic.topic_id)
        self.log = MemoryLog(cluster, log.name)
        self._outcomes = cluster.topics[outcomes_topic(log.name)].partitions[0]
        self._transactions = cluster.topics[transactions_topic(log.name)].partitions[0]

    @property
    def outcomes(self) -> Records:
        """The records of the outcomes topic."""
        return self._outcomes.records

    @property
    def transactions(self) -> Records:
        """The records of the transactions topic."""
        return self._transactions.records

    def outcome_at(self, sequence: int) -> int:
        """Return the place of an outcome's record in `outcomes`."""
        for place, record in enumerate(self.outcomes):
            found = decode_outcome_record(record.value)
            if isinstance(found, Outcome) and found.sequence == sequence:
                return place
        raise LookupError(sequence)

    def transaction_of(self, sequence: int) -> int:
        """Return the place in `transactions` of the record that an outcome answers."""
        found = decode_outcome_record(self.outcomes[self.outcome_at(sequence)].value)
        assert isinstance(found, Outcome)
        offsets = [record.offset for record in self.transactions]
        return offsets.index(found.transaction_offset)

    def truncate(self, records: Records, place: int) -> None:
        """Lose a topic's tail from a place on."""
        partition = self._outcomes if records is self.outcomes else self._transactions
        partition.end = records[place].offset
        del records[place:]

    def chain_again(self, change: Callable[[Outcome], Outcome]) -> None:
        """Forge the whole chain: each outcome is changed, and sealed so that all hashes fit."""
        head = b""
        for place, record in enumerate(self.outcomes):
            found = decode_outcome_record(record.value)
            if isinstance(found, Genesis):
                head = first_hash(found)
            elif isinstance(found, LeaderStarted):
                value = encode_leader_started(dataclasses.replace(found, previous_hash=head))
                self.outcomes[place] = with_value(record, value)
            elif isinstance(found, Outcome):
                sealed, value = seal_outcome(
                    change(found), previous_hash=head, epoch=found.epoch, node=found.node
                )
                head = sealed.hash
                self.outcomes[place] = with_value(record, value)


def with_value(record: Stored, value: bytes | None) -> Stored:
    """Return a record with another value."""
    return Stored(record.offset, record.time_ms, record.key, value)


def swap(records: Records, one: int, other: int) -> None:
    """Exchange what stands at two places; the offsets stay."""
    a, b = records[one], records[other]
    records[one] = Stored(a.offset, a.time_ms, b.key, b.value)
    records[other] = Stored(b.offset, b.time_ms, a.key, a.value)


def flip(record: Stored, place: int) -> Stored:
    """Return a record with one byte changed."""
    value = bytearray(record.value or b"")
    value[place] ^= 0x20
    return with_value(record, bytes(value))
