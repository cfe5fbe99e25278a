"""What must hold while the clock of one machine is wrong."""

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.errors import InvalidRequest
from commitlog.model.limits import CONFIRMED_CLOCK_SINCE, Rules
from commitlog.model.records import Outcome
from commitlog.ports import Log
from consumers.partition.brokers_clock import BrokersClock
from consumers.tools.clocks import (
    brokers_clock,
    clock_difference,
    ids,
    leader_clock,
    log_clock,
)
from consumers.tools.maintenance.maintenance import Maintenance
from consumers.views.health import Check, Level
from tests.core_world import DAY_MS, World, append
from tests.service import SCHEMA, Service, rows, service

TABLE = "shop$orders"
DAY_SECONDS = 86_400
NOW_MS = 1_800_000_000_000
HORIZON_MS = 7 * DAY_MS


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Service]:
    """Return a service with one table of six versions."""
    with service(tmp_path) as running:
        running.client.create_table(TABLE, SCHEMA)
        for number in range(5):
            running.client.append(TABLE, rows(number))
        yield running


def turn(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Turn the clock of this process, whose leader goes on by the time of before."""
    right_ns, right = time.time_ns, time.time
    monkeypatch.setattr(time, "time_ns", lambda: right_ns() + round(seconds * 10**9))
    monkeypatch.setattr(time, "time", lambda: right() + seconds)


@pytest.mark.parametrize("seconds", [-3_600, -10 * 365 * DAY_SECONDS])
def test_a_reader_whose_clock_is_behind_reads_as_of_the_last_commit(
    world: Service, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    newest = datetime.fromtimestamp(world.client.append(TABLE, rows(9)).time_ms / 1000, UTC)
    turn(monkeypatch, seconds)
    assert world.client.snapshot(newest).open(TABLE).count_rows() == 6
    with pytest.raises(InvalidRequest, match="is in the future"):
        world.client.snapshot(newest + timedelta(days=1))


def test_a_lease_of_a_reader_whose_clock_is_behind_keeps_its_version(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn(monkeypatch, -DAY_SECONDS)
    world.client.hold("lease", TABLE, lasting=timedelta(hours=1))
    monkeypatch.undo()
    world.client.append(TABLE, rows(9))
    world.client.expire_versions(TABLE, retain_versions=1)
    assert world.client.table(TABLE).deleted == ((1, 5),)


def test_versions_expire_by_the_leaders_clock(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten years ahead, everything would be older than a week."""
    turn(monkeypatch, 10 * 365 * DAY_SECONDS)
    assert world.client.expire_versions(TABLE, older_than=timedelta(days=7)) is None


def test_nothing_is_removed_by_a_leader_whose_clock_is_not_the_brokers(
    world: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Maintenance on its machine has the same one; the removal's own record tells the brokers'."""
    stray = world.location(TABLE) / "data" / "stray.lance"
    stray.write_bytes(b"of a writer that died")
    os.utime(stray, (time.time() - 30 * DAY_SECONDS,) * 2)
    right_ns = time.time_ns
    world.cluster.now_ms = lambda: right_ns() // 1_000_000 + DAY_MS
    acts = partial(Maintenance, world.client, open_log=lambda: MemoryLog(world.cluster))
    assert acts().look() == []
    assert stray.exists()
    said = "the Kafka brokers' clock is 86,400 s ahead of the leader's (partition 0)"
    assert f"unneeded files were left for later: {said}" in caplog.text
    assert said in clock_difference(world.client)
    turn(monkeypatch, DAY_SECONDS)  # the leader's machine was wrong, and is set right
    monkeypatch.setattr("consumers.runtime.steady_clock.HELD_MS", 0)
    assert [act.kind for act in acts().look()] == ["remove"]
    assert not stray.exists()


def test_a_leader_knows_the_brokers_time_from_the_record_that_began_its_term(
    world: Service,
) -> None:
    world.running.pop().stop()
    right_ns = time.time_ns
    world.cluster.now_ms = lambda: right_ns() // 1_000_000 + DAY_MS
    world.start().await_leading()
    assert "brokers' clock is 86,400 s ahead of the leader's" in clock_difference(world.client)


@pytest.mark.parametrize(
    ("took", "behind_ms", "ahead_ms"),
    [(0.1, 0, 0), (0.1, 50, 0), (120.0, 119_000, 0), (0.1, 90_100, -90_000), (5, -90_000, 90_000)],
)
def test_what_the_brokers_time_says_is_bounded_by_how_long_they_took(
    took: float, behind_ms: int, ahead_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    wall_ms, uptime_ms = NOW_MS, 5_000
    clock = BrokersClock(lambda: wall_ms, lambda: uptime_ms)
    assert clock.ahead_of(wall_ms) is None
    with caplog.at_level(logging.WARNING):
        clock.acknowledged(NOW_MS - behind_ms, took)
        clock.acknowledged(NOW_MS - behind_ms, took)
    assert clock.ahead_of(wall_ms) == ahead_ms
    assert len(caplog.records) == (ahead_ms != 0)
    wall_ms, uptime_ms = wall_ms + DAY_MS, uptime_ms + DAY_MS
    assert clock.ahead_of(wall_ms) == ahead_ms, "nobody has turned a clock"
    wall_ms += 10 * DAY_MS
    assert clock.ahead_of(wall_ms) == pytest.approx(-10 * DAY_MS, abs=200_000), "somebody has"


class Answered:
    """A log of which only the newest outcomes are asked: their own times, and the brokers'."""

    def __init__(self, *times_ms: tuple[int, int]) -> None:
        self.times = times_ms

    def partitions(self) -> int:
        return len(self.times)

    def last_outcome_records(self, partition: int, count: int) -> list[SimpleNamespace]:
        told_ms, appended_ms = self.times[partition]
        outcome = Mock(Outcome, time_ms=told_ms)
        # A new term has begun since.
        return [
            SimpleNamespace(record=record, append_time_ms=appended_ms)
            for record in (outcome, SimpleNamespace())
        ]


@pytest.mark.parametrize(
    ("told_ms", "appended_ms", "words"),
    [
        (-1_000, 0, ""),
        (-40 * DAY_MS, -40 * DAY_MS, ""),  # nobody has written for long
        (-1_800_000, 0, ""),  # it waited
        (0, 90_000, "Kafka brokers' clock is 90 s ahead of this machine's"),
        (90_000, 0, "log's time is 90 s ahead of the brokers' clock"),
        (-2 * DAY_MS, -DAY_MS, "log's time is 86,400 s behind the brokers' clock"),
    ],
)
def test_a_log_whose_time_is_not_the_brokers_is_a_warning(
    told_ms: int, appended_ms: int, words: str
) -> None:
    log = Answered((NOW_MS, NOW_MS), (NOW_MS + told_ms, NOW_MS + appended_ms))
    found = log_clock(cast(Log, log), NOW_MS)
    assert (found.name, found.level) == ("clock", Level.WARN if words else Level.OK)
    assert words in found.message
    assert bool(words) == ("NTP" in found.advice)


@pytest.mark.parametrize(
    ("ahead_ms", "level", "words"),
    [(1_500, Level.OK, "agree"), (90_000, Level.WARN, "ahead of"), (-90_000, Level.WARN, "behind")],
)
def test_a_leader_whose_clock_differs_is_a_warning(ahead_ms: int, level: Level, words: str) -> None:
    found = leader_clock({"clock_ms": NOW_MS + ahead_ms}, NOW_MS)
    assert (found.name, found.level) == ("leader's clock", level)
    assert words in found.message
    assert leader_clock({}, NOW_MS).level is Level.OK, "older leaders don't say it"
    found = brokers_clock({"brokers_ahead_ms": ahead_ms})
    assert (found.name, found.level) == ("brokers' clock", level)
    assert words in found.message
    assert brokers_clock({}).level is Level.OK


def test_ids_that_a_brokers_clock_made_forgotten_are_told_and_can_be_remembered_again() -> None:
    """A broker years ahead: each id is forgotten at once, so a writer's that is older is refused.

    That was so until protocol 8. The rules heal it: with a longer horizon, or a newer protocol.
    """
    before = CONFIRMED_CLOCK_SINCE - 1
    made = World(rules=Rules(before, id_horizon_ms=HORIZON_MS))
    made.now_ms = NOW_MS
    made.create()

    def ask(name: str, *, brokers_ahead_ms: int = 0, skew_ms: int = 0) -> str:
        made.now_ms += 20 + brokers_ahead_ms
        submitted_at_ms = made.now_ms - brokers_ahead_ms - skew_ms
        outcome = made.ask(name, append(0, f"{name}.lance"), submitted_at_ms=submitted_at_ms)
        made.now_ms -= brokers_ahead_ms
        return str(outcome.code)

    def told() -> Check:
        once, rules = made.machine.deduplication, asdict(made.machine.rules)
        said = {"ids_clock_ms": once.clock_ms, "ids_forgotten_ms": once.forgotten_ms}
        return ids({**said, "clock_ms": made.now_ms, "rules": rules})

    assert ask("a") == ""
    assert told().level is Level.OK
    for number in range(100):
        ask(f"ahead{number}", brokers_ahead_ms=3_650 * DAY_MS)
    assert told().level is Level.WARN
    for number in range(100, 400):
        ask(f"ahead{number}", brokers_ahead_ms=3_650 * DAY_MS)
    assert told().level is Level.FAIL
    assert [ask("b"), ask("c", skew_ms=100)] == ["", "TOO_OLD"]
    seconds = int(told().advice.rpartition(" ")[2].rstrip("`"))
    made.machine.rules = Rules(before, id_horizon_ms=seconds * 1000)
    assert [ask("d"), ask("e"), ask("f", skew_ms=15)] == ["", "", ""]
    assert told().level is Level.OK
    assert told().message.startswith("transaction ids are remembered for 608,40")
    made.machine.rules = Rules(before, id_horizon_ms=HORIZON_MS)
    assert told().level is Level.FAIL
    assert "`commitlog rules --upgrade`" in told().advice
    made.machine.rules = Rules(CONFIRMED_CLOCK_SINCE, id_horizon_ms=HORIZON_MS)
    assert [ask("g"), ask("h", skew_ms=15)] == ["", ""]
    assert told().message.startswith("transaction ids are remembered for 604,800")
    once = {"ids_clock_ms": 0, "ids_forgotten_ms": NOW_MS + DAY_MS, "clock_ms": NOW_MS}
    assert "are refused (TOO_OLD) for 86,400 s more" in ids(once).message
    assert ids({}).level is Level.OK, "older leaders don't say it"


@pytest.mark.parametrize(("days", "is_told"), [(29, False), (3_650, True)])
def test_a_leader_far_beyond_the_logs_last_outcome_says_so(
    world: Service,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    days: int,
    is_told: bool,
) -> None:
    """Either nobody wrote for so long, or the machine started with a wrong clock."""
    world.running.pop().stop()
    turn(monkeypatch, days * DAY_SECONDS)
    world.start(world.root / "another").await_leading()
    assert (f"clock is {days:,} days beyond the log's newest outcome" in caplog.text) == is_told
