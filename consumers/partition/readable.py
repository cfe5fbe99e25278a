"""Which versions have their files, by the materializer's reports, and which calls wait for them.

A version is readable only once the materializer has reported it. A version that isn't known yet is
waited for like any other; a dropped table gets no more files, so waiting for it ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from commitlog.core.decisions import ENDS, Change, ChangeKind
from commitlog.errors import Unavailable
from consumers.partition.files.catalogue import Head
from consumers.partition.files.events import Version
from consumers.partition.mailbox import Reply

TICK_SECONDS = 0.1
_BEGINS = frozenset({ChangeKind.CREATED, ChangeKind.DECLARED, ChangeKind.REGISTERED})

Key = TypeVar("Key")
Waiter = TypeVar("Waiter")


@dataclass(eq=False, slots=True)
class _Waiter:
    versions: tuple[Version, ...]
    reply: Reply[None]
    deadline: float


class Readable:
    """The newest version of each living table that has its file. Owned by the loop."""

    def __init__(self) -> None:
        """Know no table."""
        self._written: dict[str, int] = {}
        self._by_incarnation: dict[str, list[_Waiter]] = {}
        self._tick_at = 0.0

    def adopt(self, incarnation: str, version: int) -> None:
        """Take a table as a checkpoint has it."""
        self._written[incarnation] = version

    def begin(self, changes: Iterable[Change]) -> None:
        """Hear that tables begin or end, before their files follow."""
        for change in changes:
            if change.iceberg is not None:
                continue
            if change.kind in _BEGINS:
                self._written.setdefault(change.incarnation, 0)
            elif change.kind in ENDS and self._written.pop(change.incarnation, None) is not None:
                self._wake(change.incarnation)

    def written(self, incarnation: str, version: int) -> None:
        """Hear from the materializer that a version has its file."""
        known = self._written.get(incarnation)
        if known is not None and version > known:
            self._written[incarnation] = version
            self._wake(incarnation)

    def newest(self, incarnation: str) -> int:
        """Return the newest version that has its file; 0 if none has."""
        return self._written.get(incarnation, 0)

    def beside(self, heads: Iterable[Head]) -> list[tuple[Head, int]]:
        """Return heads, each with the newest version that has its file."""
        return [(head, self.newest(head.incarnation)) for head in heads]

    def has(self, versions: Iterable[Version]) -> bool:
        """Return True if each version, or a later one, has its file, or its table is gone."""
        written = self._written
        return all(written.get(name, version) >= version for name, version in versions)

    def when(self, versions: tuple[Version, ...], reply: Reply[None], deadline: float) -> None:
        """Answer once all versions have their files; refuse by TimeoutError at the deadline."""
        if self.has(versions):
            reply.give(None)
            return
        waiter = _Waiter(versions, reply, deadline)
        for incarnation in {name for name, _ in versions}:
            self._by_incarnation.setdefault(incarnation, []).append(waiter)

    def tick(self, now: float) -> None:
        """Refuse those who have waited for too long; called with each commit, it looks at times."""
        if now < self._tick_at:
            return
        self._tick_at = now + TICK_SECONDS
        for incarnation, waiters in list(self._by_incarnation.items()):
            for waiter in waiters:
                if waiter.deadline <= now:
                    waiter.reply.refuse(TimeoutError("its manifest is not written yet"))
            keep(self._by_incarnation, incarnation, [w for w in waiters if not w.reply.is_given])

    def close(self) -> None:
        """Refuse everybody: the term is over."""
        for waiter in [w for waiters in self._by_incarnation.values() for w in waiters]:
            waiter.reply.refuse(Unavailable("this committer's term is over; ask again"))
        self._by_incarnation.clear()

    def _wake(self, incarnation: str) -> None:
        waiters = self._by_incarnation.get(incarnation)
        if not waiters:
            return
        due: list[_Waiter] = []
        left: list[_Waiter] = []
        for waiter in waiters:
            (due if self.has(waiter.versions) else left).append(waiter)
        keep(self._by_incarnation, incarnation, left)
        for waiter in due:
            waiter.reply.give(None)


def keep(waiting: dict[Key, list[Waiter]], key: Key, left: list[Waiter]) -> None:
    """Have those wait for something who are left; what nobody waits for isn't kept."""
    if left:
        waiting[key] = left
    else:
        waiting.pop(key, None)
