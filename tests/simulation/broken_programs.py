"""Broken programs: simulation has to notice each within a few seeds.

Some are bugs that simulation found here, put back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

from commitlog.codecs.avro import decode_log_record
from commitlog.core.conflicts.candidate import Candidate
from commitlog.core.log.chain import Chain
from commitlog.core.log.deduplication import Deduplication
from commitlog.core.log.replica import Replica
from commitlog.core.operations.operation import LanceOperation
from commitlog.core.partition.machine import Machine
from commitlog.core.partition.repeats import find_repeat
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.records import Submitted, Transaction
from consumers.partition.checkpoints.checkpoint import Checkpoint
from consumers.partition.files.events import Event
from consumers.partition.files.table_writer import TableWriter
from consumers.partition.follower import Follower
from consumers.partition.leader import Leader
from consumers.partition.session import Session


def _delivered_in_any_order(
    self: Leader, sequence: int, offset: int, error: Exception | None
) -> None:
    """Take what is acknowledged for the oldest in flight, whatever it is."""
    if self.failure is None and error is None and self._in_flight:
        event = self._in_flight.popleft()
        event.offset = offset
        self._next_offset = offset + 1
        self._acknowledged.append(event)
    elif error is not None:
        self._end(error)


def _candidate_without_keys(
    self: LanceOperation[Any], transaction: LanceTransaction, **known: Any
) -> Candidate:
    return _candidate(self, transaction, **{**known, "keys": None})


_append = Leader._append
_candidate = LanceOperation.candidate
_delivered = Leader._delivered
_write_next = TableWriter._write_next
_campaign = Session.campaign


def _delivered_twice_unsuspecting(
    self: Leader, sequence: int, offset: int, error: Exception | None
) -> None:
    """Take it that something is in flight whenever something is acknowledged."""
    if self.failure is None:
        self._in_flight[0]
    _delivered(self, sequence, offset, error)


def _told_before_acknowledged(self: Leader, submitted: Any, decision: Any) -> None:
    _append(self, submitted, decision)
    if self._in_flight:
        self._on_acknowledged([self._in_flight[-1]])


def _without_epoch(self: Chain, outcome: Any) -> str:
    if outcome.sequence != self.sequence + 1:
        return "sequence"
    self.sequence, self.hash = outcome.sequence, outcome.hash
    return ""


def _campaign_without_reading(self: Session, node: str, started_at_ms: int) -> int:
    """Lead as soon as LeaderStarted is sent."""
    epoch = self.follower.replica.chain.epoch + 1
    _campaign(self, node, started_at_ms)
    return epoch


def _forgetting(self: TableWriter, files: Any, count: int) -> None:
    """Take what was applied once for what is applied now (a failure after the write)."""
    _write_next(self, files, count)
    if files.naming_scheme == "V2" and files.written_version % 7 == 0:
        files.applied = 1


def _tombstone_submitted(
    partition: int, offset: int, append_time_ms: int, key: bytes | None, value: bytes | None
) -> Submitted:
    """Give it an outcome, as to anything else that cannot be read."""
    return Submitted(partition, offset, append_time_ms, decode_log_record(key, value or b""))


def _checkpoint_or_fail(self: Session) -> bool:
    """Let a full disk end the term."""
    if self.written_sequence < self.follower.replica.chain.sequence:
        return False
    self.saving._checkpoints.save(Checkpoint.of(self.follower.machine, self.follower.replica))
    return True


def _checkpoint_at_any_time(self: Session) -> bool:
    """Save the machine as it is, ahead of the log."""
    self.saving._checkpoints.save(Checkpoint.of(self.follower.machine, self.follower.replica))
    return True


def _deletions_without_union(base: Any, deleted: Any, rows: Any, **more: Any) -> Any:
    from pyroaring import BitMap

    from commitlog.core.manifest.deletion_vectors import merge_deletions

    return merge_deletions(base, BitMap(), rows, **more)


def _staged_deleted_too_soon(self: TableWriter, files: Any, count: int) -> None:
    """Let a failure to delete a staged manifest end what was already written."""
    changes = [change for change, _ in list(files.pending)[:count]]
    _write_next(self, files, count)
    for change in changes:
        if change.staged_path:
            files.applied = 1
            files.store.delete(change.staged_path)
            files.applied = 0


def _catch_up_unsuspecting(self: Follower, patience_seconds: float, take: Any) -> None:
    """Read to the end, wherever that is."""
    end = self._outcomes.end_offset()
    while self._outcomes.position() < end or self.replica.waiting_for is not None:
        take(self.step(0.1))


def _published_at_once(self: Leader, submitted: Any, decision: Any) -> None:
    """The materializer sees what Kafka hasn't acknowledged."""
    _append(self, submitted, decision)
    event: Event
    for event in list(self._in_flight)[-1:]:
        session = getattr(self._on_acknowledged, "__self__", None)
        if session is not None:
            session.materializer.put([event])


_prune = Deduplication.prune
YEAR_MS = 365 * 24 * 3_600_000


def _repeat_of_any_attempt(machine: Machine, record: Transaction, time_ms: int) -> Any:
    known = machine.deduplication.get(record.transaction_id)
    if known is not None and record.attempt < known.attempt:
        return None
    return find_repeat(machine, record, time_ms)


Break = Callable[[], AbstractContextManager[Any]]

PROGRAM_MUTANTS: dict[str, Break] = {
    "writers are told before Kafka acknowledges": lambda: mock.patch.object(
        Leader, "_append", _told_before_acknowledged
    ),
    "acknowledgements are taken in any order": lambda: mock.patch.object(
        Leader, "_delivered", _delivered_in_any_order
    ),
    "an acknowledgement that comes twice is an error of the program": lambda: mock.patch.object(
        Leader, "_delivered", _delivered_twice_unsuspecting
    ),
    "a full disk ends a committer": lambda: mock.patch.object(
        Session, "checkpoint", _checkpoint_or_fail
    ),
    "a tombstone is a record": lambda: mock.patch(
        "tests.simulation.log.to_submitted", _tombstone_submitted
    ),
    "outcomes of any epoch and chain are valid": lambda: mock.patch.object(
        Chain, "_admit_outcome", _without_epoch
    ),
    "a leader doesn't read its LeaderStarted back": lambda: mock.patch.object(
        Session, "campaign", _campaign_without_reading
    ),
    "no conflict is found": lambda: mock.patch(
        "commitlog.core.lance.commits.first_conflict", return_value=None
    ),
    "a merged deletion vector is no union": lambda: mock.patch(
        "commitlog.core.rebase.deletions.merge_deletions", _deletions_without_union
    ),
    "a duplicate isn't recognized": lambda: mock.patch(
        "commitlog.core.partition.machine.find_repeat", return_value=None
    ),
    "an older attempt is decided again after a newer one": lambda: mock.patch(
        "commitlog.core.partition.machine.find_repeat", _repeat_of_any_attempt
    ),
    "an id is forgotten at once": lambda: mock.patch.object(
        Deduplication,
        "prune",
        lambda self, floor_ms, sequence: _prune(self, floor_ms + YEAR_MS, sequence),
    ),
    "the materializer skips a change": lambda: mock.patch.object(
        TableWriter, "_write_next", _forgetting
    ),
    "a staged manifest that stays spoils the next version": lambda: mock.patch.object(
        TableWriter, "_write_next", _staged_deleted_too_soon
    ),
    "a lost tail is not noticed": lambda: _all(
        mock.patch.object(Follower, "catch_up", _catch_up_unsuspecting),
        mock.patch("consumers.partition.session.check_log_holds"),
    ),
    "files are written before the commit": lambda: mock.patch.object(
        Leader, "_append", _published_at_once
    ),
    "a checkpoint has what is in flight": lambda: _all(
        mock.patch.object(Session, "checkpoint", _checkpoint_at_any_time),
        mock.patch.object(Leader, "is_idle", property(lambda self: True)),
    ),
    "a checkpoint isn't compared with the log": lambda: mock.patch(
        "consumers.partition.session.check_log_holds"
    ),
    "a transaction isn't compared with its outcome": lambda: mock.patch.object(
        Replica, "_check", return_value=None
    ),
    "records decided before a restart are decided again": lambda: mock.patch.object(
        Replica, "resume_point", _resume_without_decided
    ),
    "keys are not compared": lambda: mock.patch.object(
        LanceOperation, "candidate", _candidate_without_keys
    ),
}


def _all(*patches: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    stack = ExitStack()
    for patch in patches:
        stack.enter_context(patch)
    return stack


def _resume_without_decided(self: Replica) -> tuple[int, list[int]]:
    return next(iter(self.undecided), self.transactions_position), []
