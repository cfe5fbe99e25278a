"""What every log promises, asked of the one in memory and of a real broker."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from commitlog.codecs.avro import encode_genesis, encode_leader_started, seal_outcome
from commitlog.errors import (
    CorruptLog,
    InvalidSettings,
    RecordTooLarge,
    TopicSettings,
    WrongLog,
)
from commitlog.model.limits import OUTCOME_HEAD_BYTES_MAX, RECORD_BYTES_MAX
from commitlog.model.records import (
    Genesis,
    LeaderStarted,
    Malformed,
    Outcome,
    ProtocolVersion,
    Status,
    Transaction,
    Unreadable,
)
from commitlog.ports import DeliveryFailed, Log
from commitlog.protocol import leader_key, outcome_key, outcomes_topic, transactions_topic
from tests.contract.worlds import (
    KafkaWorld,
    MemoryWorld,
    World,
    append_all,
    read_to_end,
    transaction,
    transactions_of,
)
from tests.waiting import wait_until


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A cluster of each kind."""
    if request.param == "memory":
        yield MemoryWorld()
        return
    kafka = KafkaWorld(request.getfixturevalue("broker").bootstrap_servers)
    yield kafka
    kafka.close()


@pytest.fixture
def log(world: World) -> Log:
    """A log of one partition."""
    log = world.connect()
    log.create(tables_root="file:///tables")
    return log


def test_a_log_begins_with_its_rules_and_its_genesis(world: World) -> None:
    log = world.connect()
    genesis = log.create(partitions=2, domains={"b": 1, "a": 0}, tables_root="file:///tables")
    assert genesis.log == world.log_name
    assert genesis.cluster_id == log.identity().cluster_id
    assert genesis.domains == (("a", 0), ("b", 1))
    assert genesis.tables_root == "file:///tables"
    assert log.partitions() == 2
    for partition in range(2):
        first = transactions_of(log, partition)
        assert [type(each.record) for each in first] == [ProtocolVersion]
        assert log.genesis(partition).log_id == genesis.log_id
        assert log.genesis(partition).partition == partition


def test_creating_again_changes_nothing(world: World, log: Log) -> None:
    again = world.connect()
    assert again.create(tables_root="file:///other") == log.genesis()
    assert again.create() == log.genesis()
    assert len(transactions_of(log)) == 1
    assert len(log.last_outcome_records(0, 10)) == 1


def test_processes_that_create_a_log_at_once_agree(world: World) -> None:
    def create(number: int) -> tuple[Genesis, Genesis]:
        log = world.connect()
        log.create(partitions=2, tables_root=f"file:///{number}")
        return log.genesis(0), log.genesis(1)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(create, range(4)))
    assert len(set(found)) == 1
    first, second = found[0]
    assert (first.log_id, first.tables_root) == (second.log_id, second.tables_root)
    ids = {each.record.transaction_id for each in transactions_of(world.connect())}
    assert len(ids) == 1, "rules that were appended twice are one transaction"


def test_a_log_that_does_not_exist_is_not_made_by_asking(world: World) -> None:
    log = world.connect("nothing-here")
    for ask in (log.genesis, log.partitions, log.identity, log.check_settings):
        with pytest.raises(WrongLog, match="nothing-here"):
            ask()
    assert not world.has_topic(transactions_topic("nothing-here"))


def test_an_empty_log_says_that_it_was_never_completed(world: World, log: Log) -> None:
    half = world.connect()
    half.create()
    world.delete_before(outcomes_topic(world.log_name), 0, 1)
    with pytest.raises(
        WrongLog, match="never completed, or lost its.*`commitlog init` with its flags"
    ):
        world.connect().genesis()
    del log


def test_no_log_begins_over_transactions_whose_outcomes_are_gone(world: World, log: Log) -> None:
    """They would be decided again, by what stands in storage now."""
    world.delete_topic(outcomes_topic(world.log_name))
    log.create()  # with nothing but rules there, it is one that was never completed
    append_all(log, [transaction(b"a")])
    world.delete_topic(outcomes_topic(world.log_name))
    with pytest.raises(WrongLog, match="has transactions in partition 0, but no Genesis"):
        world.connect().create()


@pytest.mark.parametrize("name", ["a/b", "-a", "x" * 201, "ümlaut"])
def test_a_name_that_no_topic_can_have_is_refused(world: World, name: str) -> None:
    with pytest.raises(InvalidSettings, match="cannot name a log"):
        world.connect(name)


def test_other_partitions_or_domains_than_the_logs_are_refused(world: World, log: Log) -> None:
    with pytest.raises(WrongLog, match="has 1 partition, not 2"):
        world.connect().create(partitions=2)
    with pytest.raises(WrongLog, match="maps domains"):
        world.connect().create(domains={"a": 0})
    assert len(transactions_of(log)) == 1


def test_a_domain_without_a_partition_is_refused_before_anything_is_made(world: World) -> None:
    with pytest.raises(InvalidSettings, match="partition 3"):
        world.connect().create(domains={"a": 3})
    assert not world.has_topic(transactions_topic(world.log_name))


@pytest.mark.parametrize(
    ("transactions", "outcomes", "said"),
    [
        ({"cleanup.policy": "delete"}, {}, "cleanup.policy is delete, expected compact"),
        ({"cleanup.policy": "compact,delete"}, {}, "cleanup.policy is compact,delete"),
        ({"message.timestamp.type": "CreateTime"}, {}, "message.timestamp.type is CreateTime"),
        ({"max.message.bytes": "1048588"}, {}, "max.message.bytes is 1048588, expected at least"),
        ({}, {"retention.ms": "604800000"}, "retention.ms is 604800000, expected -1"),
        ({}, {"retention.bytes": "1000000000"}, "retention.bytes is 1000000000, expected -1"),
        ({}, {"unclean.leader.election.enable": "true"}, "unclean.leader.election.enable is true"),
    ],
)
def test_topics_that_would_lose_records_are_refused(
    world: World, transactions: dict[str, str], outcomes: dict[str, str], said: str
) -> None:
    world.make_topic(transactions_topic(world.log_name), transactions)
    world.make_topic(outcomes_topic(world.log_name), outcomes)
    with pytest.raises(TopicSettings, match=said) as raised:
        world.connect().create()
    topic = transactions_topic if transactions else outcomes_topic
    assert topic(world.log_name) in str(raised.value)
    with pytest.raises(TopicSettings, match=said):
        world.connect().check_settings()
    with pytest.raises(WrongLog):
        world.connect().genesis()


def test_a_log_that_lost_its_beginning_is_refused(world: World, log: Log) -> None:
    log.check_settings()
    world.delete_before(outcomes_topic(world.log_name), 0, 1)
    for asked in (log, world.connect()):
        with pytest.raises(TopicSettings, match="begins at offset 1: .*commitlog restore"):
            asked.check_settings()


def test_logs_are_told_apart(world: World, log: Log) -> None:
    other = world.connect(f"{world.log_name}-other")
    other.create()
    mine, theirs = log.identity(), other.identity()
    assert mine == world.connect().identity()
    assert mine.cluster_id == theirs.cluster_id
    assert mine.transactions_topic_id != theirs.transactions_topic_id
    assert mine.outcomes_topic_id != theirs.outcomes_topic_id
    assert log.genesis().log_id != other.genesis().log_id


def test_records_of_another_log_are_refused(world: World, log: Log) -> None:
    copy = world.connect(f"{world.log_name}-copy")
    copy.create(partitions=2)
    topic = outcomes_topic(copy.name)
    foreign = Genesis(copy.name, str(uuid.uuid4()), "another-cluster", 1)
    offset = world.append_raw(topic, 1, b"genesis/1", encode_genesis(foreign))
    world.delete_before(topic, 1, offset)
    with pytest.raises(WrongLog, match="cluster_id 'another-cluster'"):
        world.connect(copy.name).genesis(1)
    offset = world.append_raw(topic, 1, b"genesis/1", encode_genesis(log.genesis()))
    world.delete_before(topic, 1, offset)
    with pytest.raises(WrongLog, match="made with log"):
        world.connect(copy.name).genesis(1)
    offset = world.append_raw(topic, 1, b"anything", b"else")
    world.delete_before(topic, 1, offset)
    with pytest.raises(WrongLog, match="doesn't begin with a Genesis"):
        world.connect(copy.name).genesis(1)


def test_transactions_are_read_in_the_order_and_at_the_offsets_told(log: Log) -> None:
    asked = [transaction(bytes([number])) for number in range(50)]
    offsets = append_all(log, asked)
    assert offsets == list(range(1, 51))
    found = transactions_of(log, offset=1)
    assert [each.offset for each in found] == offsets
    assert [each.record.transaction_id for each in found] == [each.transaction_id for each in asked]
    assert all(isinstance(each.record, Transaction) for each in found)
    times = [each.append_time_ms for each in found]
    assert times == sorted(times)
    assert abs(times[-1] - time.time_ns() // 1_000_000) < 60_000


def test_one_transaction_appended_again_is_two_records(log: Log) -> None:
    again = transaction(b"same")
    assert append_all(log, [again, again, again]) == [1, 2, 3]
    assert len(transactions_of(log)) == 4


def test_threads_may_share_a_writer(log: Log) -> None:
    writer = log.transactions_writer()
    offsets: list[int] = []

    def write() -> None:
        for _ in range(25):
            writer.append(
                transaction(),
                partition=0,
                on_delivery=lambda offset, _error: offsets.append(offset),
            )

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.flush(120) == 0
    writer.close()
    assert sorted(offsets) == list(range(1, 101))


def test_a_lone_record_is_returned_at_once(log: Log) -> None:
    reader = log.read_transactions(0)
    read_to_end(reader)
    threading.Timer(0.2, append_all, (log, [transaction()])).start()
    began = time.monotonic()
    found = reader.poll(records_max=500, timeout_seconds=120)
    assert len(found) == 1
    assert time.monotonic() - began < 60
    began = time.monotonic()
    assert reader.poll(timeout_seconds=0.1) == []
    assert time.monotonic() - began < 60
    reader.close()


def test_a_reader_returns_no_more_than_asked_for_and_knows_where_it_is(log: Log) -> None:
    append_all(log, [transaction() for _ in range(9)])
    reader = log.read_transactions(0, 4)
    assert reader.position() == 4
    seen: list[int] = []
    while len(seen) < 6:
        some = reader.poll(records_max=2, timeout_seconds=120)
        assert 1 <= len(some) <= 2
        seen += [each.offset for each in some]
        assert reader.position() == seen[-1] + 1
    assert seen == [4, 5, 6, 7, 8, 9]
    assert reader.position() == reader.end_offset() == 10
    reader.close()


def test_a_reader_passes_over_tombstones(world: World, log: Log) -> None:
    topic = transactions_topic(world.log_name)
    append_all(log, [transaction()])
    for number in range(3):
        world.append_raw(topic, 0, b"%d/tombstone" % number, None)
    reader = log.read_transactions(0, 2)

    def is_past() -> bool:
        assert reader.poll(timeout_seconds=0.1) == []
        return reader.position() >= 5

    wait_until(is_past, "a reader past the tombstones")
    assert reader.position() == reader.end_offset() == 5, "they count as read"
    assert append_all(log, [transaction()]) == [5]
    assert [each.offset for each in reader.poll(timeout_seconds=120)] == [5]
    assert [each.offset for each in transactions_of(log)] == [0, 1, 5]
    assert [each.offset for each in transactions_of(log, offset=3)] == [5]
    reader.close()


def test_an_offset_outside_of_the_log_is_an_error(world: World, log: Log) -> None:
    reader = log.read_outcomes(0, 100)
    with pytest.raises(CorruptLog, match="out of range|outside of"):
        reader.poll(timeout_seconds=120)
    reader.close()
    topic = outcomes_topic(world.log_name)
    for number in range(3):
        world.append_raw(topic, 0, b"%d" % number, b"x")
    world.delete_before(topic, 0, 2)
    below = log.read_outcomes(0, 1)
    with pytest.raises(CorruptLog, match="out of range|outside of"):
        below.poll(timeout_seconds=120)
    below.close()


def test_reading_a_log_that_does_not_exist_is_an_error(world: World) -> None:
    log = world.connect("nothing-here", **{"topic.metadata.propagation.max.ms": "100"})
    reader = log.read_transactions(0)

    def poll_for_a_while() -> None:
        for _ in range(20):
            reader.poll(timeout_seconds=1)

    with pytest.raises(WrongLog, match="nothing-here"):
        poll_for_a_while()
    reader.close()


def test_appending_to_a_log_that_does_not_exist_makes_none(world: World) -> None:
    log = world.connect("nothing-here", **{"topic.metadata.propagation.max.ms": "100"})
    writer = log.transactions_writer()
    errors: list[Exception | None] = []
    writer.append(
        transaction(), partition=0, on_delivery=lambda _offset, error: errors.append(error)
    )
    assert writer.flush(120) == 0
    writer.close()
    [error] = errors
    assert isinstance(error, DeliveryFailed)
    assert not world.has_topic(transactions_topic("nothing-here"))


def test_a_record_at_the_limit_passes_and_one_above_is_refused_unsent(log: Log) -> None:
    overhead = 200
    assert append_all(log, [transaction(b"x" * (RECORD_BYTES_MAX - overhead))]) == [1]
    writer = log.transactions_writer()
    told: list[int] = []
    with pytest.raises(RecordTooLarge, match=r"16,777,\d+ bytes, the limit is 16,777,216.*Split"):
        writer.append(
            transaction(b"x" * RECORD_BYTES_MAX),
            partition=0,
            on_delivery=lambda offset, _error: told.append(offset),
        )
    outcomes = log.outcomes_writer(0)
    too_much = b"x" * (RECORD_BYTES_MAX + OUTCOME_HEAD_BYTES_MAX + 1)
    with pytest.raises(RecordTooLarge):
        outcomes.append("1/1", too_much, lambda offset, _: told.append(offset))
    assert writer.flush(120) == 0
    writer.close()
    outcomes.close()
    assert told == []
    reader = log.read_transactions(0, 1)
    [big] = read_to_end(reader)
    assert reader.end_offset() == 2
    reader.close()
    assert isinstance(big.record, Transaction)


def test_what_cannot_be_decoded_is_a_record_all_the_same(world: World, log: Log) -> None:
    topic = transactions_topic(world.log_name)
    known = str(uuid.uuid4())
    world.append_raw(topic, 0, f"{known}/a".encode(), b"no Avro")
    world.append_raw(topic, 0, f"{known}/b".encode(), b"")
    world.append_raw(topic, 0, b"\xff\xfe", b"\xc3\x01" + b"\0" * 8)
    append_all(log, [transaction()])
    found = transactions_of(log, offset=1)
    assert [each.offset for each in found] == [1, 2, 3, 4]
    ids = [each.record.transaction_id for each in found[:3] if isinstance(each.record, Malformed)]
    assert ids == [known, known, ""]
    assert isinstance(found[3].record, Transaction)


def test_outcomes_are_read_as_written_and_broken_ones_say_why(world: World, log: Log) -> None:
    started = LeaderStarted(1, "127.0.0.1:1", str(uuid.uuid4()), 0, b"", b"digest")
    sealed, value = seal_outcome(
        Outcome(1, str(uuid.uuid4()), 1, Status.COMMITTED),
        previous_hash=b"",
        epoch=1,
        node="127.0.0.1:1",
    )
    writer = log.outcomes_writer(0)
    offsets: list[int] = []
    for key, record in (
        (leader_key(1, started.leader_id), encode_leader_started(started)),
        (outcome_key(1, 1), value),
    ):
        writer.append(key, record, lambda offset, _error: offsets.append(offset))
    while len(offsets) < 2:
        writer.poll(5)
    writer.close()
    assert offsets == [1, 2]
    topic = outcomes_topic(world.log_name)
    world.append_raw(topic, 0, b"1/2", value[:-1] + b"?")
    world.append_raw(topic, 0, b"1/3", b"\xc3\x01" + b"\0" * 8)
    last = log.last_outcome_records(0, 4)
    assert [each.offset for each in last] == [1, 2, 3, 4]
    assert [each.record for each in last[:2]] == [started, sealed]
    assert last[1].raw == value
    broken, newer = last[2].record, last[3].record
    assert isinstance(broken, Unreadable)
    assert isinstance(newer, Unreadable)
    assert "which this program doesn't know" in newer.reason
    assert [each.offset for each in log.last_outcome_records(0)] == [4]
    assert len(log.last_outcome_records(0, 100)) == 5


def test_groups_of_any_size_land_whole_in_their_order(log: Log) -> None:
    writer = log.outcomes_writer(0)
    told: list[tuple[int, int, Exception | None]] = []
    sizes = [1, 12, 1, 40, 5, 6, 3, 20] * 4
    deadline = time.monotonic() + 60

    def append(number: int) -> None:
        writer.append(
            f"1/{number}", b"x" * 300, lambda offset, error: told.append((number, offset, error))
        )

    for size in sizes:
        wanted = len(told) + size
        for number in range(len(told), wanted):
            append(number)
        writer.poll(0)  # as a loop does that has other things to do, too
        while len(told) < wanted:
            assert time.monotonic() < deadline, told[-1]
            writer.poll(0.003)
    writer.close()
    assert told == [(number, number + 1, None) for number in range(sum(sizes))]


def test_what_a_writer_gives_up_is_unknown_and_told_once(log: Log) -> None:
    writer = log.outcomes_writer(0)
    told: dict[int, tuple[int, Exception | None]] = {}
    for number in range(200):

        def delivered(offset: int, error: Exception | None, number: int = number) -> None:
            assert number not in told
            told[number] = (offset, error)

        writer.append(f"1/{number}", b"x" * 1000, delivered)
    writer.purge()
    writer.close()
    assert len(told) == 200
    with closing(log.read_outcomes(0)) as reader:
        end = reader.end_offset()
    for offset, error in told.values():
        if error is None:
            assert 1 <= offset < end
        else:
            assert isinstance(error, DeliveryFailed)
            assert error.appended is None
