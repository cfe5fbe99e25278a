"""What a follower makes of a transaction that doesn't come, or of a log that it is far behind."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commitlog.errors import CorruptLog, Unavailable
from consumers.partition.checkpoints.checkpoint import Checkpoints
from consumers.partition.files.events import Event, Filed
from consumers.partition.follower import Follower
from consumers.partition.mailbox import LoopRequest, Reply
from consumers.partition.session import Session
from consumers.tools.bench.made_log import MadeLog, append_to, create
from tests.core_world import GENESIS

NEEDED = 268


class Silent:
    """A reader of a topic that gives nothing, be it for want of a connection."""

    def __init__(self, end: int | None = None) -> None:
        """Take where the topic ends; None: nobody answers."""
        self._end = end

    def poll(self, **_: Any) -> list[Any]:
        """Return nothing."""
        return []

    def end_offset(self, timeout_seconds: float = 10) -> int:
        """Say where it ends."""
        if self._end is None:
            raise Unavailable("nobody answers")
        return self._end


def waits(end: int | None) -> None:
    """Wait for a transaction until there is no more patience."""
    seconds = count(step=5.0)
    log = SimpleNamespace(
        read_transactions=lambda *_: Silent(end), read_outcomes=lambda *_, **__: Silent(0)
    )
    replica = SimpleNamespace(
        transactions_position=NEEDED, outcomes_position=0, waiting_for=NEEDED, drain=list
    )
    follower = Follower(
        cast(Any, log), GENESIS, cast(Any, None), cast(Any, replica), clock=lambda: next(seconds)
    )
    follower.step(0)


def test_a_log_that_cannot_be_reached_is_no_damaged_log() -> None:
    with pytest.raises(Unavailable, match="nobody answers"):
        waits(None)


def test_a_log_that_is_slow_is_no_damaged_log() -> None:
    with pytest.raises(Unavailable, match=f"{NEEDED}.*was not read within"):
        waits(NEEDED + 1)


def test_a_log_that_ends_before_it_lost_its_tail() -> None:
    with pytest.raises(CorruptLog, match=f"{NEEDED}.*ends at {NEEDED}"):
        waits(NEEDED)


def test_a_long_log_is_read_for_as_long_as_it_takes() -> None:
    """Each of its records comes after nearly all the patience; none is kept after it was taken."""
    position, seconds = 0, count(step=1.0)

    class Slow(Silent):
        def position(self) -> int:
            return position

    def step(timeout_seconds: float) -> list[Any]:
        nonlocal position
        if position < 9:
            position += next(seconds) % 3 == 0
        return [position]

    log = SimpleNamespace(
        read_transactions=lambda *_: Silent(), read_outcomes=lambda *_, **__: Slow(10)
    )
    replica = SimpleNamespace(transactions_position=0, outcomes_position=0, waiting_for=None)
    follower = Follower(
        cast(Any, log), GENESIS, cast(Any, None), cast(Any, replica), clock=lambda: next(seconds)
    )
    follower.step = step  # type: ignore[method-assign]
    taken: list[Any] = []
    with pytest.raises(Unavailable, match="9 of 10"):
        follower.catch_up(8.0, taken.extend)
    assert sorted({*taken}) == list(range(10))


def test_a_session_hears_what_comes_while_it_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports of files name their events: unheard, those of a log of years stay in memory."""
    made = MadeLog()
    made.run(create("t"))
    for number in range(1, 1_200):
        made.run(append_to("t", number))
    log, genesis = made.log, made.log.genesis(0)
    session = Session(log, genesis, Checkpoints(tmp_path, log.identity(), genesis))
    heard, answers = list[int](), list[int]()

    def written(events: list[Event]) -> None:
        """Write files at once."""
        heard.append(session.written_sequence)
        session.mailbox.post(Filed(events, [], events[-1].outcome.sequence))

    monkeypatch.setattr(session.materializer, "put", written)
    reply = Reply[int](lambda value, error: answers.append(value or 0))
    session.mailbox.post(LoopRequest(lambda: session.published, reply))
    session.catch_up()
    assert session.written_sequence == session.published == made.machine.sequence
    assert len(heard) > 2, "it was read in several steps"
    assert heard == sorted(set(heard)), "each was heard before the next"
    [answer] = answers
    assert 0 < answer < session.published, "who asks meanwhile is answered"
    session.close()
