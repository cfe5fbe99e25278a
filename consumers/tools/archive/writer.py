"""Copies decided records into the archive, segment by segment, and gives up what is proven.

Each segment stands by itself when it is named in the proof, so a run that was killed continues
after the last one. Giving up is a step of its own: a segment is read again from the disk and proven
again right before its transactions are named for removal.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib.metadata import version as package_version
from itertools import takewhile
from pathlib import Path
from typing import Generic, TypeVar

from commitlog.adapters.log_records import to_answered, to_submitted
from commitlog.adapters.reading import ReadsThrough
from commitlog.codecs.avro import decode_outcome_record, encode_leader_started, encode_retained
from commitlog.core.log.chain import Chain, first_hash
from commitlog.core.log.replica import Replica
from commitlog.errors import CorruptLog, Unavailable
from commitlog.model.records import (
    Answered,
    Genesis,
    LeaderStarted,
    ProtocolVersion,
    Retained,
    RetainedSegment,
    Submitted,
)
from commitlog.ports import ArchivableLog, RawRecord, Reader
from commitlog.protocol import retained_key
from consumers.runtime.progress import OnProgress, untold
from consumers.tools.archive.files import check_segment, read_file, write_file
from consumers.tools.archive.proof import Archive, DecidedSegment, SegmentEnd, digest_of
from consumers.tools.archive.rows import applied_segments, remove_unnamed
from consumers.tools.verify.walk import Walk

SEGMENT_OUTCOMES = 50_000
APPEND_SECONDS = 60.0
SEGMENT_BYTES = 128 * 1024 * 1024
"""A segment is closed when it has so much; one record has up to 16 MiB."""

Record = TypeVar("Record")


@dataclass(slots=True)
class ArchiveRun:
    """What one run did."""

    partition: int
    segments: int = 0
    outcomes: int = 0
    transactions: int = 0
    bytes: int = 0
    through: int = 0
    """The last archived sequence, of this run or an earlier one."""
    head: str = ""
    """The chain's hash there, in hex."""
    given_up: int = 0
    """Transactions that this run named for removal from the topic."""
    waiting: int = 0
    """Segments that stay in the topic, since rows in them aren't applied as far as is archived."""
    beyond: int = 0
    """Segments that stay in the topic, since they reach beyond the run's limits."""
    expired: list[str] = field(default_factory=list)
    """In words: whose rows left the archive, and by which record."""


def archive(
    log: ArchivableLog,
    partition: int,
    folder: Path,
    *,
    through: int | None = None,
    before_ms: int | None = None,
    on_progress: OnProgress = untold,
) -> ArchiveRun:
    """Archive what is decided: all of it, up to a sequence, or from before a time.

    At its end, what a killed run has left goes: files that the proof doesn't name.

    Raises CorruptLog if the log cannot be followed, or a file isn't what was written to it.
    """
    genesis = log.genesis(partition)
    kept = Archive.open(folder, log.identity(), genesis)

    def is_beyond(answered: Answered) -> bool:
        # By the chain: what a deposed leader sent may have any sequence, and is void.
        is_later = through is not None and replica.chain.sequence >= through
        return is_later or (before_ms is not None and answered.append_time_ms >= before_ms)

    tee = _Tee(log)
    replica = _replica_at(kept.end, genesis)
    result = ArchiveRun(partition)
    start = kept.end
    with closing(Walk(tee, partition, replica, is_beyond=is_beyond)) as walk:
        for batch in walk.batches():
            for decided in batch:
                tee.take(decided.submitted.offset)
            on_progress(replica.outcomes_position, walk.end)
            is_full = len(tee.taken) >= SEGMENT_OUTCOMES or tee.bytes >= SEGMENT_BYTES
            if is_full and walk.is_settled:
                kept = _close(kept, start, tee, replica, genesis, result)
                start = kept.end
        walk.check("archived")
    if tee.taken:
        kept = _close(kept, start, tee, replica, genesis, result)
    # Only now: as long as the log can't be read from the proof's end, such a file may be the last.
    if kept.segments:
        remove_unnamed(kept)
    result.through, result.head = kept.end.sequence, kept.end.hash
    return result


def give_up(
    log: ArchivableLog,
    partition: int,
    folder: Path,
    result: ArchiveRun,
    *,
    through: int | None = None,
    before_ms: int | None = None,
    on_progress: OnProgress = untold,
) -> None:
    """Name archived transactions for removal from the topic, after proving each segment again.

    The limits are those of `archive`, and choose whole segments, whichever run archived them.
    Segments whose files were rewritten are told in any case, since the log has other digests.

    First a Retained record in the outcomes topic says what is given up and by which digests it is
    known, then the tombstones follow; killed in between, the next run says so once more. A leader
    that runs meanwhile passes over the record.

    Only transactions before the first undecided one go, so that the topic is whole from there on,
    and none from the first segment on with rows that no archived transaction applies. The rules
    that the log began with stay.

    Raises CorruptLog if a segment isn't what was archived, Unavailable if Kafka doesn't take it.
    """
    kept = Archive.open(folder, log.identity(), log.genesis(partition))
    end = kept.end.transactions_offset
    pending = [s for s in kept.segments if not s.given_up and s.transactions.last_offset < end]
    chosen = _within(kept, pending, through, before_ms)
    result.beyond = len(pending) - len(chosen)
    pending = chosen
    for segment in pending:
        check_segment(kept.folder, segment)
    applied = applied_segments(kept, pending)
    result.waiting = len(pending) - len(applied)
    pending = list(applied)
    if not pending:
        return
    _say(log, partition, _retained(pending))
    for number, segment in enumerate(pending):
        records = list(read_file(kept.folder, segment.transactions))
        if digest_of(records) != segment.transactions.digest:
            raise CorruptLog(
                f"the archive's file {kept.folder / segment.transactions.name} changed just now. "
                "Restore it; nothing was given up by it"
            )
        keys = []
        for raw in records:
            submitted = to_submitted(partition, *raw)
            is_rule = submitted is None or isinstance(submitted.record, ProtocolVersion)
            if raw.key and not is_rule:
                keys.append(raw.key)
        log.tombstone(partition, keys)
        result.given_up += len(keys)
        kept = kept.with_changed(segment, replace(segment, given_up=True))
        on_progress(number + 1, len(pending))


def _within(
    kept: Archive, pending: Sequence[DecidedSegment], through: int | None, before_ms: int | None
) -> list[DecidedSegment]:
    """Return the first segments, up to one that reaches beyond a limit, and rewritten ones."""

    def is_beyond(segment: DecidedSegment) -> bool:
        if through is not None and segment.end.sequence > through:
            return True
        return before_ms is not None and _ended_ms(kept.folder, segment) >= before_ms

    first = [*takewhile(lambda segment: not is_beyond(segment), pending)]
    return first + [one for one in pending[len(first) :] if one.is_rewritten]


def _ended_ms(folder: Path, segment: DecidedSegment) -> int:
    """Return when a segment's last outcome was appended."""
    end = segment.end.outcome_offset
    raws = read_file(folder, segment.outcomes)
    return max((raw.append_time_ms for raw in raws if end < 0 or raw.offset <= end), default=0)


def _retained(segments: Sequence[DecidedSegment]) -> Retained:
    end = segments[-1].end
    return Retained(
        sequence=end.sequence,
        hash=bytes.fromhex(end.hash),
        transactions_offset=end.transactions_offset,
        segments=tuple(
            RetainedSegment(
                segment.first_sequence,
                segment.end.sequence,
                bytes.fromhex(segment.outcomes.digest),
                bytes.fromhex(segment.transactions.digest),
            )
            for segment in segments
        ),
        version=package_version("lance-commitlog"),
        retained_at_ms=time.time_ns() // 1_000_000,
    )


def _say(log: ArchivableLog, partition: int, retained: Retained) -> None:
    """Append a record to the outcomes topic and wait until Kafka has it."""
    told: list[Exception | None] = []
    writer = log.outcomes_writer(partition)
    deadline = time.monotonic() + APPEND_SECONDS
    with closing(writer):
        value = encode_retained(retained)
        key = retained_key(retained.sequence)
        writer.append(key, value, lambda offset, error: told.append(error))
        while not told and time.monotonic() < deadline:
            writer.poll(0.1)
    if not told or told[0] is not None:
        raise Unavailable(
            f"Kafka did not take the record that says what of partition {partition} is archived; "
            "nothing was given up. Check the cluster, then retry"
        ) from (told[0] if told else None)


def _close(
    kept: Archive,
    start: SegmentEnd,
    tee: _Tee,
    replica: Replica,
    genesis: Genesis,
    result: ArchiveRun,
) -> Archive:
    """Write a segment, prove it from the disk, and name it in the archive's proof."""
    end = _position(replica)
    outcomes = tee.outcomes_until(replica.outcomes_position)
    transactions = sorted(tee.taken, key=lambda record: record.offset)
    first = start.sequence + 1
    name = f"{first:012}-{end.sequence:012}"
    segment = DecidedSegment(
        first_sequence=first,
        start_hash=start.hash or first_hash(genesis).hex(),
        outcomes=write_file(kept.folder, f"{name}.outcomes.parquet", outcomes),
        transactions=write_file(kept.folder, f"{name}.transactions.parquet", transactions),
        end=end,
    )
    check_segment(kept.folder, segment)
    result.segments += 1
    result.outcomes += end.sequence - start.sequence
    result.transactions += len(transactions)
    result.bytes += segment.outcomes.bytes + segment.transactions.bytes
    tee.clear()
    return kept.with_segment(segment)


def _position(replica: Replica) -> SegmentEnd:
    chain = replica.chain
    first, beyond = replica.resume_point()
    leader = base64.b64encode(encode_leader_started(chain.leader)) if chain.leader else b""
    return SegmentEnd(
        sequence=chain.sequence,
        hash=chain.hash.hex(),
        epoch=chain.epoch,
        leader=leader.decode(),
        outcomes_offset=replica.outcomes_position,
        transactions_offset=first,
        decided_beyond=tuple(beyond),
        outcome_offset=replica.outcome_offset,
    )


def _replica_at(end: SegmentEnd, genesis: Genesis) -> Replica:
    chain = Chain()
    if end.outcomes_offset:
        chain.genesis = genesis
        chain.epoch, chain.sequence = end.epoch, end.sequence
        chain.hash = bytes.fromhex(end.hash)
        leader = decode_outcome_record(base64.b64decode(end.leader)) if end.leader else None
        assert leader is None or isinstance(leader, LeaderStarted)
        chain.leader = leader
    return Replica(
        chain,
        transactions_position=end.transactions_offset,
        outcomes_position=end.outcomes_offset,
        outcome_offset=end.outcome_offset,
        decided_beyond=end.decided_beyond,
    )


class _Tee:
    """Reads a log decoded for the walk, and keeps the bytes for the archive."""

    def __init__(self, log: ArchivableLog) -> None:
        self._log = log
        self._transactions: dict[int, RawRecord] = {}
        """Read and not decided yet."""
        self._outcomes: list[RawRecord] = []
        self.taken: list[RawRecord] = []
        """Decided transactions."""
        self.bytes = 0

    def read_outcomes(self, partition: int, offset: int = 0) -> Reader[Answered]:
        """Read the outcomes topic."""
        raw = self._log.read_raw(partition, offset, is_transactions=False)

        def decode(record: RawRecord) -> Answered:
            self._outcomes.append(record)
            self.bytes += len(record.value or b"")
            return to_answered(partition, *record)

        return _Decoded(raw, decode)

    def read_transactions(self, partition: int, offset: int = 0) -> Reader[Submitted]:
        """Read the transactions topic."""
        raw = self._log.read_raw(partition, offset, is_transactions=True)

        def decode(record: RawRecord) -> Submitted | None:
            submitted = to_submitted(partition, *record)
            if submitted is not None:
                self._transactions[record.offset] = record
            return submitted

        return _Decoded(raw, decode)

    def take(self, offset: int) -> None:
        """Note that the transaction at an offset is decided."""
        record = self._transactions.pop(offset)
        self.taken.append(record)
        self.bytes += len(record.value or b"")

    def outcomes_until(self, offset: int) -> list[RawRecord]:
        """Return the outcomes' records before an offset."""
        return [record for record in self._outcomes if record.offset < offset]

    def clear(self) -> None:
        """Forget what was archived."""
        self.taken, self._outcomes, self.bytes = [], [], 0


class _Decoded(ReadsThrough, Generic[Record]):
    """A reader of bytes, decoded on the way."""

    def __init__(
        self, raw: Reader[RawRecord], decode: Callable[[RawRecord], Record | None]
    ) -> None:
        self._below, self._decode = raw, decode

    def poll(self, *, records_max: int = 500, timeout_seconds: float = 0.1) -> list[Record]:
        found = self._below.poll(records_max=records_max, timeout_seconds=timeout_seconds)
        decoded = (self._decode(record) for record in found)
        return [record for record in decoded if record is not None]

    def position(self) -> int:
        return self._below.position()

    def seek(self, offset: int) -> None:
        self._below.seek(offset)
