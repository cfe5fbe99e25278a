"""Walks a log whose outcomes aren't decided again: what is plain in it, by machine code.

Plain records are only counted, so no value is made of them. Python looks at each other record, and
finds what there is to find. What a topic lacks may be in an archive, so from the first gap on
Python reads all transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from commitlog.adapters.log_records import to_answered, to_submitted
from commitlog.adapters.reading import ReadsThrough
from commitlog.codecs.avro_chain import DIGEST_BYTES, ChainHead, PlainChain
from commitlog.core.log.replica import Decided, Replica
from commitlog.core.partition.decided_appends import appends_on, apply_appends
from commitlog.core.partition.machine import Machine
from commitlog.model.records import Answered, Submitted
from commitlog.ports import ArchivableLog, RawRecord, Reader
from consumers.tools.verify.walk import RECORDS_PER_POLL, Walk


class PlainRun(NamedTuple):
    """Outcomes that were followed without being read."""

    first: int
    """The sequence of the first one."""
    outcomes: int
    committed: int
    unattributed: int
    hashes: bytes

    def hash_of(self, sequence: int) -> bytes:
        """Return an outcome's hash; empty if it isn't one of these."""
        at = (sequence - self.first) * DIGEST_BYTES
        return self.hashes[at : at + DIGEST_BYTES] if at >= 0 else b""


class PlainWalk(Walk):
    """A walk that tells of plain outcomes in runs, and hands out the others."""

    def __init__(
        self,
        log: ArchivableLog,
        partition: int,
        replica: Replica,
        chain: PlainChain,
        on_run: Callable[[PlainRun], None],
        machine: Machine | None = None,
    ) -> None:
        """Continue from where `replica` stands; see `Walk`.

        With a `machine`, on which plain appends are decided again, all else is handed out.
        """
        self._log, self._partition, self._chain = log, partition, chain
        self._on_run, self._machine = on_run, machine
        super().__init__(self, partition, replica)

    def read_outcomes(self, partition: int, offset: int = 0) -> Reader[Answered]:
        """Read the outcomes topic as bytes, which are decoded where they aren't plain."""
        raw = self._log.read_raw(partition, offset, is_transactions=False)
        return cast(Reader[Answered], raw)

    def read_transactions(self, partition: int, offset: int = 0) -> Reader[Submitted]:
        """Read the transactions topic; what is handed out of it is decoded."""
        self._raw = _LateTransactions(self._log, partition, offset)
        return self._raw

    def _pass(self, records: list[Any]) -> list[Decided]:
        """Follow what is plain, and judge the first record that isn't."""
        at = 0
        while at < len(records):
            if count := self._follow(records, at):
                at += count
                continue
            one = to_answered(self._partition, *records[at])
            found = super()._pass([one])
            self._ahead = records[at:] if self._ahead else records[at + 1 :]
            return found
        return []

    def _follow(self, records: list[RawRecord], at: int) -> int:
        replica, raw = self.replica, self._raw
        chain, leader = replica.chain, replica.chain.leader
        if leader is None or not self.is_even or not raw.has_next(self._transactions_end):
            return 0
        head = ChainHead(chain.epoch, chain.sequence, leader.node, chain.hash)
        appends = None if self._machine is None else appends_on(self._machine)
        if self._machine is not None and appends is None:
            return 0
        run = self._chain.follow(records, at, self.end, head, raw.records, raw.taken, appends)
        if run.outcomes:
            first = chain.sequence + 1
            replica.outcome_offset = records[at + run.outcomes - 1].offset
            replica.outcomes_position = replica.outcome_offset + 1
            replica.transactions_position = run.last_answered + 1
            raw.taken += run.outcomes
            self.sequence = chain.sequence = chain.sequence + run.outcomes
            chain.hash = run.hashes[-DIGEST_BYTES:]
            self.hashes.add(first, run.hashes)
            if self._machine is not None and appends is not None:
                apply_appends(self._machine, appends, self.sequence)
            self._on_run(
                PlainRun(
                    first=first,
                    outcomes=run.outcomes,
                    committed=run.committed,
                    unattributed=run.unattributed,
                    hashes=run.hashes,
                )
            )
        return run.outcomes


class _LateTransactions(ReadsThrough):
    """Transactions, each of which is decoded when it is asked for; see `ports.Reader`."""

    def __init__(self, log: ArchivableLog, partition: int, offset: int) -> None:
        self._log, self._partition = log, partition
        self._below = log.read_raw(partition, offset, is_transactions=True)
        self._decoded: Reader[Submitted] | None = None
        """Reads what is behind the first gap."""
        self.records: list[RawRecord] = []
        self.taken = 0
        """How many of them were handed out, or followed."""
        self._next = offset

    def has_next(self, end: int) -> bool:
        """Return True if a record is at hand, after a look if there may be one before `end`."""
        if self.taken == len(self.records) and self.position() < end:
            self._fill(0.5)
        return self.taken < len(self.records)

    def _fill(self, timeout_seconds: float) -> None:
        if self._decoded is not None:
            return
        found = self._below.poll(records_max=RECORDS_PER_POLL, timeout_seconds=timeout_seconds)
        whole = next(
            (n for n, one in enumerate(found, self._next) if one.offset != n or one.value is None),
            self._next + len(found),
        )
        self.records, self.taken = found[: whole - self._next], 0
        self._next = whole
        if len(self.records) < len(found) or self._below.position() > whole:
            self._below.close()
            self._below = self._decoded = self._log.read_transactions(self._partition, whole)

    def poll(self, *, records_max: int = 500, timeout_seconds: float = 0.1) -> list[Submitted]:
        """Return the next record."""
        if self.taken == len(self.records):
            self._fill(timeout_seconds)
        if self.taken < len(self.records):
            self.taken += 1
            submitted = to_submitted(self._partition, *self.records[self.taken - 1])
            return [] if submitted is None else [submitted]
        if self._decoded is not None:
            return self._decoded.poll(records_max=records_max, timeout_seconds=timeout_seconds)
        return []

    def position(self) -> int:
        """Return the next offset to be read."""
        if self.taken < len(self.records):
            return self.records[self.taken].offset
        return self._next if self._decoded is None else self._decoded.position()

    def seek(self, offset: int) -> None:
        """Refuse: a walk goes in one direction."""
        raise NotImplementedError(f"a walk doesn't go to offset {offset}")
