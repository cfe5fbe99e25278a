"""Who waits for files hears of them, or that they don't come, at a cost that others don't bear."""

from __future__ import annotations

from collections.abc import Iterable

from consumers.partition import readable as module
from consumers.partition.files.events import Version
from consumers.partition.mailbox import Reply
from consumers.partition.readable import Readable


class Counting(Readable):
    """Counts how often it looks whether a waiter has its versions."""

    looks = 0

    def has(self, versions: Iterable[Version]) -> bool:
        self.looks += 1
        return super().has(versions)


def waiting(readable: Readable, *versions: int, deadline: float = 1e9) -> list[object]:
    """Wait for versions of table `t`; return what is heard."""
    heard: list[object] = []

    def hear(_: None, error: BaseException | None) -> None:
        heard.append(error)

    for version in versions:
        readable.when((("t", version),), Reply(hear), deadline)
    return heard


def test_many_who_wait_for_one_table_are_told_in_one_look_each() -> None:
    readable = Counting()
    readable.adopt("t", 0)
    heard = waiting(readable, *range(1, 2_001))
    readable.looks = 0
    readable.written("t", 1_000)
    assert heard == [None] * 1_000
    assert readable.looks == 2_000
    readable.written("t", 2_000)
    assert heard == [None] * 2_000
    assert readable.looks == 3_000, "who was told isn't looked at again"


def test_deadlines_are_looked_at_at_times_not_with_each_commit() -> None:
    readable = Readable()
    readable.adopt("t", 0)
    heard = waiting(readable, 1, deadline=1.0)
    readable.tick(0.99)
    readable.tick(1.0)
    assert not heard
    readable.tick(1.0 + module.TICK_SECONDS)
    [error] = heard
    assert isinstance(error, TimeoutError)


def test_who_begins_to_wait_while_others_are_told_is_told_too() -> None:
    readable = Readable()
    readable.adopt("t", 0)
    later: list[object] = []
    first: Reply[None] = Reply(lambda _, error: later.append(waiting(readable, 2)))
    readable.when((("t", 1),), first, 1e9)
    readable.written("t", 1)
    readable.written("t", 2)
    assert later == [[None]]
