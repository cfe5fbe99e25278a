"""More broken programs: those of an outside review, and one for each part that was added since."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from commitlog.core.log.chain import BEGINNING, Chain, ChainPlace
from commitlog.core.log.deduplication import Deduplication
from commitlog.core.log.replica import Replica
from commitlog.core.partition.machine import Machine
from commitlog.model.records import LeaderStarted, Outcome
from consumers.partition.adopting import adopt_tables
from consumers.partition.files.offset_index import OffsetIndex
from consumers.partition.files.old_versions import OldVersions
from consumers.partition.leader import Leader
from consumers.partition.mailbox import Reply

Break = Callable[[], AbstractContextManager[Any]]

_delivered = Leader._delivered
_before = OffsetIndex.before
_prune = Deduplication.prune
_chunks = Deduplication.chunks
SECONDS_10 = 10_000
WEEK_MS = 7 * 24 * 3_600_000


def _any_offset(self: Leader, sequence: int, offset: int, error: Exception | None) -> None:
    if error is None and self._in_flight and self._in_flight[0].outcome.sequence == sequence:
        self._next_offset = offset
    _delivered(self, sequence, offset, error)


def _error_is_no_error(self: Leader, sequence: int, offset: int, error: Exception | None) -> None:
    _delivered(self, sequence, self._next_offset if error is not None else offset, None)


def _any_later_epoch(self: Chain, leader: LeaderStarted) -> str:
    if leader.epoch <= self.epoch:
        return "epoch"
    self.epoch, self.leader = leader.epoch, leader
    return ""


def _any_previous_hash(self: Chain, outcome: Outcome) -> str:
    if self.leader is None or outcome.epoch != self.epoch or outcome.sequence != self.sequence + 1:
        return "epoch or sequence"
    self.sequence, self.hash = outcome.sequence, outcome.hash
    return ""


def _ten_seconds(self: Deduplication, floor_ms: int, sequence: int) -> None:
    _prune(self, floor_ms + WEEK_MS - SECONDS_10, sequence)


def _any_outcome(self: Chain, record: Any) -> str:
    """Take every outcome of a later sequence, when looking back."""
    if isinstance(record, Outcome) and record.sequence > self.sequence:
        self.sequence = record.sequence
        return ""
    return "no outcome"


def _void_or_not(place: ChainPlace, genesis: Any) -> Any:
    chain = mock.Mock()
    chain.sequence = place.sequence
    chain.admit = lambda record: _any_outcome(chain, record)
    return chain


def _behind(self: OffsetIndex, sequence: int) -> ChainPlace:
    """Begin behind what is sought, if a place is right there."""
    return _before(self, sequence + 1)


def _wrong_place(self: OffsetIndex, sequence: int) -> ChainPlace:
    """Take the place of one outcome for that of the next."""
    found = _before(self, sequence)
    return found if found == BEGINNING else replace(found, sequence=found.sequence - 1)


def _newest_for_any(self: OldVersions, head: Any, version: int) -> str:
    from commitlog.adapters.lance_refs import versions_in

    there = versions_in(self._open_store(head.location))
    return there.get(version, there[max(there)])


def _newest_chunk(self: Deduplication) -> Any:
    return list(_chunks(self))[-1:]


def _forget_owed(machine: Machine, owed: Any, *told: Any) -> None:
    """Begin as if all tables had their files."""
    adopt_tables(machine, (), *told)


def _skip_undecided(self: Replica) -> tuple[int, list[int]]:
    return self.transactions_position, []


def _settled_again(self: Reply[Any], value: Any, error: BaseException | None) -> None:
    """Answer as often as somebody gives an answer."""
    self._is_given = True
    self._deliver(value, error)


def _over_it(files: Any, name: str, data: bytes, version: int, newest_in_log: Any) -> None:
    """Replace what a stranger put under our name, and keep nothing of it."""
    files.store.write(name, data)


def _repeat_of_any_content(machine: Any, record: Any, time_ms: int) -> Any:
    from commitlog.core.partition.repeats import find_repeat

    known = machine.deduplication.get(record.transaction_id)
    is_known = known is not None and known.attempt == record.attempt
    if is_known and known.payload_hash != record.payload_hash:
        return None
    return find_repeat(machine, record, time_ms)


def _at(target: str, new: Any) -> Break:
    return lambda: mock.patch(target, new)


def _on(owner: Any, name: str, new: Any) -> Break:
    return lambda: mock.patch.object(owner, name, new)


OF_THE_REVIEW: dict[str, Break] = {
    "an outcome may land at any offset": _on(Leader, "_delivered", _any_offset),
    "an outcome that wasn't taken counts as acknowledged": _on(
        Leader, "_delivered", _error_is_no_error
    ),
    "an epoch may jump": _on(Chain, "_admit_leader", _any_later_epoch),
    "an outcome may follow any hash": _on(Chain, "_admit_outcome", _any_previous_hash),
    "a stranger's manifest stays": _at(
        "consumers.partition.files.table_files.resolve_existing", lambda *_: None
    ),
    "ids are kept for ten seconds": _on(Deduplication, "prune", _ten_seconds),
}

ADDED: dict[str, Break] = {
    "void outcomes are listened to when looking back": _at(
        "commitlog.client.leader.valid_outcomes.chain_at", _void_or_not
    ),
    "a look into the past begins behind what it seeks": _on(OffsetIndex, "before", _behind),
    "a place of the past is another outcome's": _on(OffsetIndex, "before", _wrong_place),
    "a stranger's file stands for an old version": _on(OldVersions, "_is_ours", lambda *_: True),
    "an old version is answered with the newest": _on(OldVersions, "materialize", _newest_for_any),
    "a checkpoint has the newest ids alone": _on(Deduplication, "chunks", _newest_chunk),
    "what a checkpoint owes is forgotten": _at(
        "consumers.partition.session.adopt_tables", _forget_owed
    ),
    "what was undecided is skipped after a restart": _on(Replica, "resume_point", _skip_undecided),
    "a late answer counts, too": _on(Reply, "_settle", _settled_again),
    "what a stranger wrote is lost": _at(
        "consumers.partition.files.table_files.resolve_existing", _over_it
    ),
    "expectations are not checked": _at(
        "commitlog.core.partition.machine.check_expects", lambda *_: None
    ),
    "an application's sequence commits twice": _at(
        "commitlog.core.partition.repeats._application", lambda *_: None
    ),
    "an id may have another content": _at(
        "commitlog.core.partition.machine.find_repeat", _repeat_of_any_content
    ),
}
