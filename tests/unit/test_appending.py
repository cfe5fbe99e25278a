"""Records that writers send to the leader are taken once, in the order of the log."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from commitlog.adapters.log_records import encode_to_append, to_submitted
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import AppendCall, Fate
from commitlog.codecs.avro import encode_protocol_version
from commitlog.core.log.replica import Replica
from commitlog.errors import CommitLogError, CorruptLog, InvalidTransaction, Overloaded, Unavailable
from commitlog.model.records import ProtocolVersion, Submitted, Transaction
from commitlog.ports import DeliveryFailed
from commitlog.protocol import session_in_key
from consumers.partition import appending
from consumers.partition.appending import (
    PACE_SECONDS,
    QUIET_SECONDS,
    READ_ON_SECONDS,
    REST_SECONDS,
    WRITERS_SECONDS,
    Appending,
)
from consumers.partition.files.events import RecordLanded, RecordSent
from tests.contract.worlds import append_all, transaction, transactions_of
from tests.core_world import append


class World:
    """A log in memory, and a leader's part that appends to it."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.log.create()
        self.replica, self.now = Replica(), 100.0
        self.posted: list[RecordLanded] = []
        self.refused: list[tuple[CommitLogError, bool | None]] = []
        self.taken: list[Submitted] = []
        self.appending = Appending(
            0,
            self.log.records_writer(0),
            self.replica,
            post=self.posted.append,
            clock=lambda: self.now,
        )
        self.read()

    def take(self, records: Any) -> None:
        """Do as the leader does with what it may take."""
        for one in records:
            self.replica.receive_submitted(one)
            self.taken.append(one)

    def send(self, *messages: bytes, session: str = "") -> None:
        """Send records."""
        for message in messages:
            asked = transaction(message)
            self.send_raw(asked.transaction_id, encode_to_append(asked), session)

    def send_raw(self, transaction_id: str, value: bytes, session: str = "") -> None:
        """Send bytes."""

        def refuse(error: CommitLogError, appended: bool | None) -> None:
            self.refused.append((error, appended))

        self.appending.append(RecordSent(transaction_id, value, session, refuse), len(self.taken))

    def land(self) -> None:
        """Take what is acknowledged."""
        self.appending.poll(0)
        posted, self.posted[:] = list(self.posted), []
        for event in posted:
            self.take(self.appending.landed(event))

    def read(self) -> None:
        """Take what a reader finds that goes on where this stands."""
        self.take(self.appending.read(transactions_of(self.log, 0, self.position)))

    @property
    def position(self) -> int:
        return self.replica.transactions_position

    def check(self) -> None:
        """Hold what was taken against the log."""
        assert self.taken == transactions_of(self.log)


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_acknowledged_next_to_what_was_taken_is_taken_without_reading(
    world: World,
) -> None:
    world.now += READ_ON_SECONDS
    world.send(b"a", b"b", session="cafe")
    assert world.appending.is_waiting
    assert not world.appending.wants_reading
    assert world.appending.count() == {"cafe": 2}
    world.land()
    assert not world.appending.is_waiting
    assert not world.appending.count()
    assert [session_in_key(one.key) for one in world.taken[1:]] == ["cafe", "cafe"]
    world.check()


def test_it_says_for_how_long_kafka_has_acknowledged_nothing(world: World) -> None:
    world.send(b"a")
    world.now += 4
    world.send(b"b")
    assert world.appending.silence_seconds == 4
    world.land()
    world.now += 4
    assert world.appending.silence_seconds == 0, "nothing is on its way"


def test_behind_a_gap_nothing_is_taken_before_the_gap_was_read(world: World) -> None:
    world.now += READ_ON_SECONDS
    append_all(world.log, [transaction(b"direct")])
    world.send(b"a", b"b", session="cafe")
    world.land()
    assert world.position == 1
    assert world.appending.wants_reading
    assert world.appending.count() == {"cafe": 2}
    world.take(world.appending.read(transactions_of(world.log, 0, 1)[:1]))
    world.check()
    # More may come from who wrote by himself.
    assert world.appending.wants_reading
    world.now += READ_ON_SECONDS + QUIET_SECONDS
    world.send(b"c")
    assert not world.appending.wants_reading
    world.land()
    world.check()


def test_what_was_read_before_its_acknowledgement_is_taken_once(world: World) -> None:
    world.send(b"a", b"b")
    world.read()
    world.land()
    world.check()
    world.send(b"c")
    world.land()
    world.take(world.appending.read(transactions_of(world.log)))
    world.check()


def test_a_record_that_lands_where_others_were_taken_shows_that_the_topic_lost_them(
    world: World,
) -> None:
    """A writer would wait in vain, and records that come behind the old end would be decided."""
    world.send(b"a", b"b")
    world.land()
    [topic] = [name for name in world.log.cluster.topics if name.endswith("transactions")]
    world.log.cluster.truncate(topic, 0, 0)
    world.send(b"c")
    with pytest.raises(CorruptLog, match="landed at offset 0, and .* was read to 3 before"):
        world.land()


def test_records_of_one_id_that_are_on_their_way_at_once_keep_their_contents(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.now += READ_ON_SECONDS
    one, other = transaction(b"a", "the-id"), transaction(b"b", "the-id")
    for asked in (one, other, one):
        world.send_raw(asked.transaction_id, encode_to_append(asked))
    assert world.appending.count().total() == 3
    world.land()
    assert not world.appending.is_waiting
    assert not world.appending.wants_reading
    world.check()
    monkeypatch.setattr(appending, "BYTES_MAX", 1)
    world.send(b"c")
    assert world.refused == []


def test_one_whose_place_is_not_told_is_read(world: World) -> None:
    world.now += READ_ON_SECONDS
    world.send(b"a", b"b")
    world.appending.poll(0)
    first, second = world.posted
    world.take(world.appending.landed(RecordLanded(first.key, -1, 0, None)))
    assert world.appending.wants_reading
    world.take(world.appending.landed(second))
    assert world.position == 1
    world.read()
    world.check()


def test_an_append_time_that_is_not_told_is_read_too(world: World) -> None:
    world.send(b"a")
    world.appending.poll(0)
    [event] = world.posted
    world.take(world.appending.landed(RecordLanded(event.key, event.offset, 0, None)))
    assert world.position == 1
    world.read()
    world.check()


def test_an_acknowledgement_that_comes_again_says_nothing(world: World) -> None:
    world.send(b"a")
    world.appending.poll(0)
    [event] = world.posted
    for _ in range(2):
        world.take(world.appending.landed(event))
    world.check()


def test_reading_goes_on_when_nothing_comes_through_the_socket(world: World) -> None:
    world.now += READ_ON_SECONDS
    world.send(b"a")
    world.land()
    assert not world.appending.wants_reading
    assert world.appending.due_at == world.now + QUIET_SECONDS
    world.now += QUIET_SECONDS
    assert world.appending.wants_reading


def test_after_an_append_that_failed_none_is_tried_for_a_while(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    fates = {b"a": Fate.LOSE, b"b": Fate.REFUSE}

    def fate(append: AppendCall) -> Fate:
        value = to_submitted(0, 0, 0, append.key, append.value)
        assert value is not None
        message = value.record.operations[0].message  # type: ignore[union-attr]
        return fates.get(message, Fate.DELIVER)

    world.log.cluster.on_append = fate
    world.send(b"a", b"b")
    world.land()
    world.send(b"c")
    kinds = [(type(error), appended) for error, appended in world.refused]
    assert kinds == [(DeliveryFailed, None), (DeliveryFailed, False), (Unavailable, False)]
    assert world.position == 1
    [told] = caplog.messages
    assert told.startswith("for 60 s, writers append by themselves")
    world.now += REST_SECONDS
    world.send(b"d")
    world.land()
    assert len(world.refused) == 3
    world.check()
    world.appending.give_up("the term is over")
    world.now += REST_SECONDS
    world.send(b"e")
    assert str(world.refused[-1][0]) == "the term is over"


def test_no_more_is_taken_than_can_be_decided(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appending, "UNDECIDED_MAX", 3)
    world.send(b"a", b"b", b"c")
    [(error, appended)] = world.refused
    assert isinstance(error, Overloaded)
    assert appended is False
    assert error.retry_after_seconds > 0
    world.land()
    monkeypatch.setattr(appending, "UNDECIDED_MAX", 100)
    monkeypatch.setattr(appending, "BYTES_MAX", 1)
    world.send(b"d", b"e")
    assert len(world.refused) == 2
    world.land()
    world.check()


def send_each(world: World, writers: range) -> None:
    """Send a record of each of some writers."""
    for number in writers:
        world.send(b"%d" % number, session=f"{number:04x}")


def test_with_many_busy_writers_a_group_waits_for_half_of_them_but_a_few(world: World) -> None:
    for _ in range(3):
        send_each(world, range(12))
        world.land()
    assert len(world.taken) == 37, "who wrote once is not known as busy"
    send_each(world, range(3))
    assert world.appending.held_until > world.now
    world.land()
    assert len(world.taken) == 37
    send_each(world, range(3, 4))
    assert not world.appending.held_until
    world.land()
    assert len(world.taken) == 41
    send_each(world, range(1))
    world.now += PACE_SECONDS
    world.land()
    assert len(world.taken) == 42, "for no longer than that"
    world.check()


def test_a_group_waits_for_no_writers_that_wait_for_their_rows(world: World) -> None:
    for _ in range(3):
        send_each(world, range(12))
        world.land()
    taken = len(world.taken)
    send_each(world, range(2))
    assert world.appending.held_until > world.now
    world.appending.away = lambda: 10
    assert not world.appending.held_until
    world.land()
    assert len(world.taken) == taken + 2
    world.check()


def test_few_busy_writers_wait_for_none(world: World) -> None:
    for _ in range(3):
        for number in range(6):
            send_each(world, range(number, number + 1))
            assert not world.appending.held_until
            world.land()
    world.check()


def test_who_is_busy_no_more_is_waited_for_no_more(world: World) -> None:
    for _ in range(3):
        send_each(world, range(12))
        world.land()
    for _ in range(3):
        world.now += 1.01 * WRITERS_SECONDS
        send_each(world, range(1))
        world.land()
    send_each(world, range(1))
    assert not world.appending.held_until
    world.land()
    world.check()


def test_rules_are_changed_by_their_own_appends_alone(world: World) -> None:
    [first] = transactions_of(world.log)
    rules = first.record
    assert isinstance(rules, ProtocolVersion)
    world.send_raw(rules.transaction_id, encode_protocol_version(rules))
    [(error, appended)] = world.refused
    assert isinstance(error, InvalidTransaction)
    assert appended is False
    assert not world.appending.is_waiting


def test_what_nobody_can_read_is_taken_as_a_reader_takes_it(world: World) -> None:
    world.send_raw("some-id", b"no record")
    world.land()
    world.check()


def test_a_leader_without_a_writer_for_others_says_so(world: World) -> None:
    closed = Appending(0, None, world.replica, post=world.posted.append, clock=lambda: world.now)
    assert not closed.is_open
    refused: list[bool | None] = []
    closed.append(RecordSent("id", b"", "", lambda error, appended: refused.append(appended)), 0)
    assert refused == [False]


def test_what_is_undecided_is_shared_by_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "UNDECIDED_MAX", 7)
    world = World()
    assert len(world.taken) == 1, "the first record is of no table"

    def send(table: str, count: int) -> int:
        before = len(world.refused)
        for _ in range(count):
            asked = Transaction(str(uuid.uuid4()), (append(1, "x.lance", table=(table,)),))
            world.send_raw(asked.transaction_id, encode_to_append(asked))
        world.land()
        return len(world.refused) - before

    assert send("a", 10) == 4
    assert "6 of them of a" in str(world.refused[0][0])
    world.now += appending.SHARES_SECONDS
    assert send("b", 1) == 0, "it has none there"
    world.now += appending.SHARES_SECONDS
    assert send("b", 1) == 0, "it has less than a third"
    assert send("a", 1) == 1
    world.now += appending.SHARES_SECONDS
    for name in "cdefghijklmnopq":
        send(name, 1)
    assert len(world.taken) == 7 * appending.UNDECIDED_HARD_MAX
    assert send("z", 1) == 1, "so many in all"
