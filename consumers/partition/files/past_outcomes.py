"""Outcomes of long ago, read by the chain from the nearest place that is known to be valid."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Protocol

from commitlog.client.leader.transactions_by_offset import TransactionsByOffset
from commitlog.client.leader.valid_outcomes import Valid, ValidOutcomes
from commitlog.core.log.chain import BEGINNING, ChainPlace
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.partition.machine import Machine
from commitlog.errors import Unavailable
from commitlog.model.records import Outcome, Submitted, is_commit
from commitlog.newest import Newest
from commitlog.ports import Log
from consumers.partition.files.catalogue import Head
from consumers.partition.files.offset_index import EVERY

SEARCH_SECONDS = 60.0
STOPPED_MAX = 100


class ReadPlaces(Protocol):
    """Where to begin to read."""

    def before(self, sequence: int) -> ChainPlace:
        """Return a place before an outcome, and near to it."""

    def before_version(self, head: Head, version: int) -> ChainPlace | None:
        """Return a place before a table's version was made, None if that was forgotten."""

    def indexed(self) -> list[ChainPlace]:
        """Return all places of the offset index, in the log's order."""

    def made_by(self, head: Head, version: int) -> str:
        """Return the id of the transaction that made a version, empty if that was forgotten."""

    def came_by(self, places: list[ChainPlace]) -> None:
        """Hear of places that were read on the way."""


class PastOutcomes:
    """Looks back in one partition's outcomes; from any thread."""

    def __init__(
        self,
        log: Log,
        partition: int,
        places: ReadPlaces,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Search this partition of the log."""
        self._log = log
        self._partition = partition
        self._places = places
        self._clock = clock
        self._stopped: Newest[tuple[str, int], tuple[ChainPlace, bool]] = Newest(STOPPED_MAX)
        """Where searches took too long, before what they look for; as `_start` returns it."""

    def decided(
        self, head: Head, base: int, version: int, near: ManifestState | None
    ) -> Iterator[tuple[Valid, Submitted]]:
        """Yield the outcomes that made versions after `base`, with their transactions.

        The time in a manifest `near` these versions says where to begin if their place was
        forgotten. It may be a writer's own: what doesn't begin with the next version is looked for
        from the beginning.
        """
        key = head.incarnation, base
        place, is_begun = self._stopped.get(key) or self._start(head, base, near)
        transactions = TransactionsByOffset(self._log, self._partition)
        try:
            for start in dict.fromkeys((place, place if is_begun else BEGINNING)):
                is_begun, is_found, place = is_begun or start == BEGINNING, False, start
                for valid in self.read_from(start):
                    made = _versions_after(base, valid.outcome, head)
                    if not made:
                        place = place if is_found else valid.place
                        continue
                    if not is_begun and made[0] != base + 1:
                        break
                    is_begun = is_found = True
                    yield valid, transactions.of(valid.outcome)
                    if made[-1] >= version:
                        return
        except Unavailable:
            self._stopped[key] = place, is_begun
            raise
        finally:
            transactions.close()

    def _start(self, head: Head, base: int, near: ManifestState | None) -> tuple[ChainPlace, bool]:
        """Return where to look for the version after `base`, and whether none comes before."""
        known = self._places.before_version(head, base + 1)
        if known is None and near is not None:
            known = self._before(near.timestamp_nanos // 1_000_000)
        return known or BEGINNING, known is None

    def _before(self, time_ms: int) -> ChainPlace | None:
        """Return the last indexed place of before a time; log time never goes back."""

        def time_behind(place: ChainPlace) -> int:
            return next((valid.outcome.time_ms for valid in self.read_from(place)), time_ms)

        places = self._places.indexed()
        at = bisect_left(places, time_ms, key=time_behind)
        return places[at - 1] if at else None

    def read_from(self, place: ChainPlace) -> Iterator[Valid]:
        """Yield valid outcomes behind a place, to the present end of the topic."""
        outcomes = ValidOutcomes(self._log, self._partition, place)
        deadline = self._clock() + SEARCH_SECONDS
        passed: list[ChainPlace] = []
        try:
            end = outcomes.end_offset()
            while not outcomes.is_at(end):
                for valid in outcomes.poll(timeout_seconds=1.0):
                    if valid.place.sequence % EVERY == 0:
                        passed.append(valid.place)
                    yield valid
                if self._clock() > deadline:
                    raise Unavailable(
                        f"searching the outcomes from {place.sequence} on took over "
                        f"{SEARCH_SECONDS:.0f} s; ask again: the search continues where it stopped"
                    )
        finally:
            outcomes.close()
            if passed:
                self._places.came_by(passed)


def maker_of(machine: Machine, head: Head, version: int) -> str:
    """Return the id of the transaction that made a version, empty if the state has forgotten it."""
    table = machine.tables.get(head.table)
    if table is None or table.incarnation != head.incarnation:
        return ""
    history = table.history
    is_known = history.floor < version <= history.head
    return history.committed(version).transaction_id if is_known else ""


def _versions_after(base: int, outcome: Outcome, head: Head) -> list[int]:
    """Return the versions of a table after `base` that an outcome made, in their order."""
    made = outcome.results if is_commit(outcome) else ()
    return sorted(r.version for r in made if r.incarnation == head.incarnation and r.version > base)
