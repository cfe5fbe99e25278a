"""The change feed tells each decided transaction once and in order, wherever one begins."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import lance
import pytest

from commitlog.client.history.feed import PartitionFeed, Subscription, starts
from commitlog.client.history.feed import sequences as checked_sequences
from commitlog.client.history.feed_events import FeedEvent, Selection, Start, token_of, token_starts
from commitlog.client.history.folds import Folds
from commitlog.client.history.positions import positions_of
from commitlog.client.leader.runtime import Runtime
from commitlog.core.log.chain import ChainPlace
from commitlog.errors import CorruptLog, InvalidRequest, NoSuchTable, Unavailable, WrongLog
from commitlog.model.operations import CreateNamespace
from commitlog.model.records import Answered, Outcome, Status
from commitlog.ports import Log
from tests.fakes.log_stream import PartitionLog, ReadOnlyLog
from tests.feed_reading import told
from tests.service import SCHEMA, Service, rows, service

TRANSACTIONS = 1_200
BEGINNING = Start(ChainPlace(0, 0, 0, b""), 0)
EVERYTHING = Selection(statuses=tuple(Status))


@pytest.fixture(scope="module")
def stream() -> PartitionLog:
    made = PartitionLog()
    made.grow(TRANSACTIONS)
    return made


def log_of(*streams: PartitionLog) -> Log:
    return cast(Log, ReadOnlyLog(list(streams)))


def read(log: Log, starts: list[Start], selection: Selection, at_once: int = 97) -> list[FeedEvent]:
    """Read to the end of a log that doesn't grow."""
    found: list[FeedEvent] = []
    with Subscription(log, starts, selection, None) as subscription:
        while events := subscription.poll(0.05, at_once):
            found += events
    return found


def sequences(events: list[FeedEvent]) -> list[int]:
    return [event.sequence for event in events]


def test_every_event_comes_once_and_in_order(stream: PartitionLog) -> None:
    events = read(log_of(stream), [BEGINNING], EVERYTHING)
    decided = stream.decided()
    wanted = [one for one in decided if one.outcome.answers is None]
    assert sequences(events) == [one.outcome.sequence for one in wanted]
    assert [event.submitted for event in events] == [one.submitted for one in wanted]
    committed = read(log_of(stream), [BEGINNING], Selection())
    assert sequences(committed) == sequences(
        [event for event in events if event.status is Status.COMMITTED]
    )
    assert len(committed) < len(events)


def test_a_read_to_a_position_ends_there_or_when_time_runs_out(stream: PartitionLog) -> None:
    found = PartitionFeed(log_of(stream), 0, BEGINNING).read_to(700, math.inf, EVERYTHING)
    wanted = [one for one in stream.decided() if one.outcome.answers is None]
    assert [outcome.sequence for outcome, _ in found] == [
        one.outcome.sequence for one in wanted if one.outcome.sequence <= 700
    ]
    late = PartitionFeed(log_of(stream), 0, BEGINNING).read_to(TRANSACTIONS + 1, 0.0, EVERYTHING)
    with pytest.raises(Unavailable, match=rf"up to \d+ of {TRANSACTIONS + 1} when time ran out"):
        list(late)


def test_an_event_is_shown_in_a_line(stream: PartitionLog) -> None:
    for event in read(log_of(stream), [BEGINNING], EVERYTHING)[:50]:
        shown = repr(event)
        assert "\n" not in shown
        assert len(shown) < 400
        assert shown.endswith(f"{event.outcome!r}>")


def test_each_token_leads_to_exactly_what_is_after_it(stream: PartitionLog) -> None:
    log = log_of(stream)
    events = read(log, [BEGINNING], EVERYTHING)
    for number in (0, 1, 498, 499, 500, 700, len(events) - 1):
        after = read(log, token_starts(events[number].token, "log-0", 1), EVERYTHING)
        assert sequences(after) == sequences(events[number + 1 :])


def test_who_leaves_before_it_has_read_as_far_as_it_began_is_told_nothing_of_before(
    stream: PartitionLog,
) -> None:
    log = log_of(stream)
    began = Start(BEGINNING.place, 600)
    with Subscription(log, [began], EVERYTHING, None) as feed:
        assert token_starts(feed.token, "log-0", 1) == [began]
        token = feed.token
    after = read(log, token_starts(token, "log-0", 1), EVERYTHING)
    assert sequences(after) == sequences(read(log, [began], EVERYTHING))
    assert min(sequences(after)) > 600


@pytest.mark.slow
def test_a_busy_partition_holds_no_other_up_and_tokens_name_both() -> None:
    busy, quiet = PartitionLog(0), PartitionLog(1)
    busy.grow(600)
    quiet.grow(5)
    log = log_of(busy, quiet)
    events = read(log, [BEGINNING, BEGINNING], EVERYTHING, at_once=10)
    assert {event.partition for event in events[:20]} == {0, 1}
    for number in (3, 17, 100):
        starts = token_starts(events[number].token, "log-0", 2)
        rest = [(e.partition, e.sequence) for e in read(log, starts, EVERYTHING)]
        assert sorted(rest) == sorted((e.partition, e.sequence) for e in events[number + 1 :])


def test_a_position_that_a_deposed_leader_does_not_know_is_not_refused(
    stream: PartitionLog,
) -> None:
    def asked_of(head: int, *, tail: Sequence[Answered] = stream.answered) -> Runtime:
        log = SimpleNamespace(
            last_outcome_records=lambda _, count: tail[-count:],
            read_outcomes=log_of(stream).read_outcomes,
        )
        known = {"sequence": head}
        runtime = SimpleNamespace(log=log, partitions=1, request=lambda *_, **__: known)
        return cast(Runtime, runtime)

    newest = stream.decided()[-1].outcome.sequence
    with pytest.raises(Unavailable, match="knows 10 outcomes and the log has more"):
        starts(asked_of(10), newest)
    # Behind what others wrote, it put many records that are void.
    with pytest.raises(Unavailable, match="knows 10 outcomes and the log has more"):
        starts(asked_of(10, tail=stream.answered[:20]), newest)
    with pytest.raises(InvalidRequest, match="beyond the end"):
        starts(asked_of(newest), newest + 1)
    folds = Folds()
    with pytest.raises(Unavailable, match="knows 10 outcomes and the log has more"):
        positions_of(asked_of(10), folds, newest, 0.0)
    with pytest.raises(InvalidRequest, match="beyond the end"):
        positions_of(asked_of(newest), folds, newest + 1, 0.0)


def test_what_a_paused_leader_wrote_is_no_event(stream: PartitionLog) -> None:
    zombie = PartitionLog()
    zombie.submitted = stream.submitted
    place = next(
        number
        for number, one in enumerate(stream.answered)
        if isinstance(one.record, Outcome) and one.record.sequence == 700
    )
    void = replace(cast(Outcome, stream.answered[place].record), epoch=1, message="void")
    records = [*stream.answered[:place], Answered(0, place, 0, void), *stream.answered[place:]]
    zombie.answered = [replace(one, offset=offset) for offset, one in enumerate(records)]
    events = read(log_of(zombie), [BEGINNING], EVERYTHING)
    assert sequences(events) == sequences(read(log_of(stream), [BEGINNING], EVERYTHING))
    assert "void" not in {event.outcome.message for event in events}


def test_outcomes_in_another_order_than_their_transactions_find_them(stream: PartitionLog) -> None:
    feed = PartitionFeed(log_of(stream), 0, BEGINNING)
    found = [feed._transactions.at(offset).offset for offset in (7, 9, 8, 3, 400, 399, 401)]
    feed.close()
    assert found == [7, 9, 8, 3, 400, 399, 401]


def test_an_outcome_of_another_transaction_is_a_corrupt_log(stream: PartitionLog) -> None:
    broken = PartitionLog()
    broken.answered = stream.answered
    swapped = [replace(one, record=stream.submitted[5].record) for one in stream.submitted[4:5]]
    broken.submitted = [*stream.submitted[:4], *swapped, *stream.submitted[5:]]
    with pytest.raises(CorruptLog, match="verify"):
        read(log_of(broken), [BEGINNING], EVERYTHING)


@pytest.mark.parametrize("token", ["", "rubbish", "eyJ2IjoyfQ", "eyJ2IjoxfQ", "ÿ", "a" * 4000])
def test_rubbish_is_no_token(token: str) -> None:
    with pytest.raises(InvalidRequest, match="token"):
        token_starts(token, "log-0", 1)


def test_a_token_of_another_log_is_refused() -> None:
    token = token_of("log-1", [Start(ChainPlace(1, 3, 1, b"h"), 1)])
    with pytest.raises(InvalidRequest, match="Begin anew"):
        token_starts(token, "log-0", 1)
    with pytest.raises(WrongLog, match="log-1"):
        token_starts(token, "log-0", 1)
    with pytest.raises(WrongLog, match="is .log-1., partitions: 2"):
        token_starts(token, "log-1", 2)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("feed")) as running:
        client = running.client
        for name in ("shop$orders", "shop$stock", "audit"):
            client.create_table(name, SCHEMA, primary_key="id")
        client.append("shop$orders", rows(1, 2, 3))
        client.append("audit", rows(1))
        with client.transact() as both:
            both.append("shop$orders", rows(4))
            both.append("shop$stock", rows(1))
        dataset = client.opened.plain(client.table("shop$orders"), 2)
        overwrite = lance.LanceOperation.Overwrite(SCHEMA, [])
        client.submit("shop$orders", overwrite, read_version=dataset.version).result()
        yield running


@pytest.mark.slow
def test_a_feed_is_of_tables_namespaces_or_all(shop: Service) -> None:
    def tables(*names: str) -> list[set[str]]:
        events = told(shop.client, names or None, "beginning", refused=True)
        return [{o["table"] for o in event.to_json()["operations"]} for event in events]

    everything = tables()
    assert tables("*") == everything
    assert tables("audit") == [one for one in everything if "audit" in one]
    assert {"shop$orders", "shop$stock"} in tables("shop$stock")
    assert tables("shop$*") == [one for one in everything if one & {"shop$orders", "shop$stock"}]
    with pytest.raises(InvalidRequest):
        tables("a/b")
    with pytest.raises(NoSuchTable, match=r"Did you mean shop\$stock"):
        tables("shop$stok")
    with pytest.raises(NoSuchTable, match=r"no namespace 'shp'. Did you mean shop\?"):
        tables("audit", "shp$*")
    with pytest.raises(NoSuchTable, match=r"'zzz'. The namespaces are \w+"):
        tables("zzz$*")
    for wrong in (7, [7], [["shop", 7]]):
        with pytest.raises(InvalidRequest, match="is not a valid name"):
            shop.client.subscribe(wrong)  # type: ignore[arg-type]
    shop.client.submit(None, CreateNamespace(("shop", "empty"))).result()
    assert tables("shop$empty$*") == []
    token = told(shop.client, None, "beginning")[0].token
    assert told(shop.client, "shop$stok", token) == []
    assert told(shop.client, "shp$*", token) == []
    with shop.client.subscribe("shop$stok", "now", missing_ok=True) as feed:
        assert feed.poll(0) == []


@pytest.mark.slow
def test_idle_seconds_count_once_a_feed_has_caught_up(stream: PartitionLog) -> None:
    wanted = sequences(read(log_of(stream), [BEGINNING], EVERYTHING))
    (start,) = token_starts(
        read(log_of(stream), [BEGINNING], EVERYTHING, at_once=1)[-2].token, "log-0", 1
    )
    last = Selection(statuses=tuple(Status))
    with Subscription(log_of(stream), [start], last, 0.0) as feed:
        assert sequences(list(feed)) == wanted[-1:]

    class OfTheLast(Selection):
        def may_take(self, outcome: Outcome) -> bool:
            return outcome.sequence == wanted[-1]

    with Subscription(log_of(stream), [BEGINNING], OfTheLast(), 0.0) as feed:
        slow, real = iter(range(5)), feed._poll_until_closed
        feed._poll_until_closed = (  # type: ignore[method-assign]
            lambda: real() if next(slow, None) is None else []
        )
        assert sequences(list(feed)) == wanted[-1:], "others come first, and take their time"


def test_a_position_of_two_partitions_is_not_advised_to_be_one_sequence() -> None:
    with pytest.raises(InvalidRequest, match="Give a mapping") as refused:
        checked_sequences(2, 2)
    assert "Give a sequence" not in str(refused.value)


def test_a_feed_begins_where_it_is_told_to(shop: Service) -> None:
    client = shop.client
    events = told(client, None, "beginning")
    for event in events[:-1]:
        after = [e.sequence for e in told(client, None, event.token)]
        assert after == [e.sequence for e in events if e.sequence > event.sequence]
        by_number = told(client, None, event.sequence)
        assert [e.sequence for e in by_number] == after
    assert told(client, None, {0: events[-1].sequence}) == []
    assert list(client.subscribe(None, events[-1].sequence, idle_seconds=0.1)) == []
    for wrong in (events[-1].sequence + 1_000, -1, {1: 4}, True, 1.5):
        with pytest.raises(InvalidRequest, match="position"):
            client.subscribe(None, wrong)  # type: ignore[arg-type]


def test_a_feed_from_now_tells_what_comes(shop: Service) -> None:
    with shop.client.subscribe("audit") as feed:
        assert feed.poll(0.2) == []
        outcome = shop.client.append("audit", rows(77))
        events = feed.poll(30)
        assert [(event.sequence, event.versions) for event in events] == [
            (outcome.sequence, {"audit": outcome.version})
        ]
    with pytest.raises(Unavailable, match="closed"):
        feed.poll(0)


def test_a_table_that_stood_already_gets_no_version(shop: Service) -> None:
    with shop.client.subscribe("audit") as feed:
        outcome = shop.client.create_table("audit", SCHEMA, exist_ok=True)
        [event] = feed.poll(30)
    assert event.sequence == outcome.sequence
    assert (outcome.version > 0, event.versions) == (True, {})
    [operation] = event.to_json()["operations"]
    assert (operation["operation"], operation.get("version")) == ("CreateTable", None)


def test_a_feed_is_closed_from_another_thread_while_it_waits(shop: Service) -> None:
    feed = shop.client.subscribe("audit")
    ended = threading.Thread(target=list, args=(feed,))
    ended.start()
    feed.close()
    ended.join(120)
    assert not ended.is_alive()


def test_a_feed_is_followed_without_blocking_a_loop(shop: Service) -> None:
    async def first(count: int) -> list[int]:
        found: list[int] = []
        async for event in shop.client.subscribe(None, "beginning"):
            found.append(event.sequence)
            if len(found) == count:
                break
        return found

    events = told(shop.client, None, "beginning")
    assert asyncio.run(first(4)) == [event.sequence for event in events[:4]]


def test_an_event_is_a_cloud_event(shop: Service) -> None:
    events = told(shop.client, "shop$stock", "beginning")
    cloud = events[-1].to_cloud_event()
    assert cloud["specversion"] == "1.0"
    assert cloud["type"] == "commitlog.transaction.committed"
    assert cloud["id"] == f"0/{events[-1].sequence}"
    assert cloud["source"].startswith("urn:commitlog:")
    assert cloud["time"].endswith("Z")
    assert [one["table"] for one in cloud["data"]["operations"]] == ["shop$orders", "shop$stock"]
    assert [one["version"] for one in cloud["data"]["operations"]] == [3, 2]
