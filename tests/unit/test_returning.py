"""Clients that send far more than a leader decides leave it the time to decide."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import replace

import pytest

from commitlog.adapters.log_records import encode_to_append
from commitlog.client.leader.sending import _RESEND_DELAYS
from commitlog.errors import CommitLogError, Overloaded
from consumers.partition import appending
from consumers.partition.files.events import RecordSent
from consumers.partition.returning import (
    RETURN_SECONDS_MAX,
    RETURN_SECONDS_MIN,
    RETURNS_MIN,
    SHARES_PER_SESSION,
    Returning,
)
from tests.contract.worlds import transaction
from tests.unit.test_appending import World

TURN_SECONDS, DECIDED_PER_TURN = 0.1, 50
MODEST = "0000"


class Storm:
    """A leader that decides so many in each of its turns, and clients that send again."""

    def __init__(self) -> None:
        self.world = World()
        self.refusals = self.decided = 0
        self._due: list[tuple[float, int, str, str, bytes, float]] = []
        self._numbers = itertools.count()

    def send(self, session: str) -> str:
        """Have a client send a new record; return its id."""
        asked = transaction(b"x")
        self._send(session, asked.transaction_id, encode_to_append(asked), _RESEND_DELAYS[0])
        return asked.transaction_id

    def turn(self) -> None:
        """Let the clients send again what is due, and decide some of what was taken."""
        world = self.world
        world.now += TURN_SECONDS
        while self._due and self._due[0][0] <= world.now:
            _, _, session, transaction_id, record, delay = heapq.heappop(self._due)
            self._send(session, transaction_id, record, delay)
        world.land()
        for one in list(itertools.islice(world.replica.undecided.values(), DECIDED_PER_TURN)):
            world.replica.decide(one)
            self.decided += 1

    def _send(self, session: str, transaction_id: str, record: bytes, delay: float) -> None:
        def refuse(error: CommitLogError, appended: bool | None) -> None:
            assert isinstance(error, Overloaded)
            self.refusals += 1
            due = self.world.now + max(delay, error.retry_after_seconds)
            again = (session, transaction_id, record, min(2 * delay, _RESEND_DELAYS[1]))
            heapq.heappush(self._due, (due, next(self._numbers), *again))

        undecided = len(self.world.replica.undecided)
        self.world.appending.append(RecordSent(transaction_id, record, session, refuse), undecided)


def test_a_leader_refuses_no_more_than_it_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "UNDECIDED_MAX", 200)
    storm = Storm()
    count, turns = 5_000, 0
    for number in range(count):
        storm.send(f"{1 + number % 100:04x}")
    first = storm.refusals
    assert first == count - 200 + 1, "the log's first record is undecided, too"
    modest, answered_after = "", None
    while storm.decided < count + 2:
        storm.turn()
        turns += 1
        if turns == 10:
            modest = storm.send(MODEST)
        waiting = {one.record.transaction_id for one in storm.world.replica.undecided.values()}
        if modest and answered_after is None and modest in waiting:
            answered_after = turns - 10
        assert turns * TURN_SECONDS < 2 * RETURN_SECONDS_MAX, "the leader has little to decide"
    assert storm.refusals - first < 0.1 * count
    assert answered_after is not None
    assert answered_after * TURN_SECONDS < 3, "who has one record waits for few others"


def test_a_session_waits_for_its_own_records_and_not_for_those_of_others() -> None:
    returning = Returning()
    greedy = [returning.delay("a", "", 0, 100.0) for _ in range(1_000)]
    assert greedy == sorted(greedy)
    assert greedy[-1] > 5 * RETURN_SECONDS_MIN
    assert returning.delay("b", "", 0, 100.0) == RETURN_SECONDS_MIN


def test_a_servers_callers_wait_for_their_own_records_and_not_for_those_of_others() -> None:
    """All of them had the share of one session."""
    returning = Returning()
    greedy = [returning.delay("server", "greedy", 0, 100.0) for _ in range(1_000)]
    assert greedy[-1] > 5 * RETURN_SECONDS_MIN
    assert returning.delay("server", "modest", 0, 100.0) == RETURN_SECONDS_MIN


def test_a_session_that_names_many_principals_gets_few_shares() -> None:
    returning = Returning()
    for number in range(1_000):
        returning.delay("a", f"principal {number}", 0, 100.0)
    alone = [returning.delay("b", "", 0, 100.0) for _ in range(100)]
    assert alone[-1] < alone[0] + 100 * (SHARES_PER_SESSION + 1) / RETURNS_MIN


def test_an_appender_tells_the_principals_of_a_session_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(appending, "UNDECIDED_MAX", 20)
    world = World()

    def delay(principal: str) -> float:
        """Send a principal's record; return after how many seconds it may be sent again."""
        asked, told = replace(transaction(b"x"), principal=principal), [0.0]

        def refuse(error: CommitLogError, appended: bool | None) -> None:
            assert isinstance(error, Overloaded)
            told.append(error.retry_after_seconds)

        record = encode_to_append(asked)
        world.appending.append(RecordSent(asked.transaction_id, record, "5e", refuse), 0)
        return told[-1]

    taken = [delay("greedy") for _ in range(20)]
    assert taken == [0.0] * 20
    world.now += 1.0  # shares of tables are counted now and then
    greedy = [delay("greedy") for _ in range(1_000)]
    assert greedy[-1] > 5 * RETURN_SECONDS_MIN
    assert delay("modest") == RETURN_SECONDS_MIN


def test_no_delay_is_longer_than_the_longest_and_none_is_crowded() -> None:
    returning = Returning()
    delays = [returning.delay("a", "", 0, 100.0) for _ in range(30_000)]
    assert min(delays) >= RETURN_SECONDS_MIN
    assert max(delays) <= RETURN_SECONDS_MAX
    seconds = [int(one) for one in delays]
    assert max(map(seconds.count, set(seconds))) < 1.2 * 30_000 / RETURN_SECONDS_MAX
