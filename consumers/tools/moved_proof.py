"""Proves that two clusters have the same log: its bytes, its chain, and its tables' rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from heapq import merge
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.log_records import to_answered
from commitlog.adapters.reading import end_of
from commitlog.adapters.recordings import Recordings
from commitlog.core.log.chain import Chain
from commitlog.core.log.replica import Replica
from commitlog.core.manifest.encoded_fragments import living_rows
from commitlog.core.partition.machine import Machine
from commitlog.errors import CorruptLog
from commitlog.model.records import Answered, Genesis, Outcome, Status
from commitlog.model.table import format_table_id
from commitlog.ports import ArchivableLog, LogIdentity, MovedPartition, RawRecord
from consumers.partition.checkpoints.checkpoint import Checkpoints
from consumers.runtime.progress import Tally
from consumers.tools.archive.log import FOLDER, ArchivedLog
from consumers.tools.archive.proof import Archive
from consumers.tools.backup.writer import records_of
from consumers.tools.verify.walk import Walk

NEWEST_RECORDS = 64
"""So many are looked through for an outcome: terms and archives leave records, too."""
ADVICE = "Delete the new cluster's topics, and run this again"


@dataclass(slots=True)
class Side:
    """What one cluster has of one partition."""

    transactions: int = 0
    outcomes: int = 0
    sha256: str = ""
    """Of each record's offset, time, key and value, of both topics."""
    sequence: int = 0
    hash: str = ""
    """The chain's last hash."""
    offset: int = -1
    """Of the chain's last outcome."""
    committed: int = 0
    digest: str = ""
    """Of the state that the log makes."""
    rows: dict[str, int] = field(default_factory=dict)
    """The rows of each table's newest version."""

    def moved(self) -> MovedPartition:
        """Return what is recorded of it."""
        return MovedPartition(self.sequence, self.hash, self.offset)


def prove(
    source: KafkaLog, target: KafkaLog, partitions: int, root: Path | None, tally: Tally
) -> list[Side]:
    """Read both sides up to the old one's ends and compare them; CorruptLog if they differ.

    The state is followed from the checkpoint in `root`, if there is one that is old enough. `tally`
    tells how far this is: writers wait for it.
    """
    sides = []
    for partition in range(partitions):
        ends = {which: end_of_topic(source, partition, which) for which in (True, False)}
        there = _bytes(source, target, partition, ends, tally)
        here = replace(there)
        for side, log in ((there, source), (here, target)):
            genesis, identity = source.beginning(partition), source.identity()
            end, sequence = ends[False], side.sequence
            machine = state_at(log, genesis, identity, end, sequence, root, tally=tally)
            side.digest, side.rows = machine.digest().hex(), rows_of(machine)
        if there != here:
            raise CorruptLog(
                f"partition {partition} differs: the old cluster has {_told(there, here)}, and the"
                f" new one {_told(here, there)}. {ADVICE}"
            )
        sides.append(here)
    return sides


def expect_followed(
    log: ArchivableLog, partitions: int, root: Path | None, tally: Tally | None = None
) -> None:
    """Raise CorruptLog if a log that is in use can't be proved, for lack of an archive perhaps."""
    for partition in range(partitions):
        genesis, end = log.genesis(partition), end_of_topic(log, partition, False)
        newest = (one.record for one in log.last_outcome_records(partition, NEWEST_RECORDS))
        sequence = max((one.sequence for one in newest if isinstance(one, Outcome)), default=0)
        state_at(log, genesis, log.identity(), end, sequence, root, tally=tally)


def end_of_topic(log: ArchivableLog, partition: int, is_transactions: bool) -> int:
    """Return where a partition of one of the two topics ends."""
    return end_of(log.read_raw(partition, is_transactions=is_transactions))


def _told(one: Side, other: Side) -> str:
    """Show what one side has that the other hasn't."""
    left, right = asdict(one), asdict(other)
    left["rows"] = {name: rows for name, rows in one.rows.items() if other.rows.get(name) != rows}
    return json.dumps({name: value for name, value in left.items() if value != right[name]})


def _bytes(
    source: KafkaLog, target: KafkaLog, partition: int, ends: Mapping[bool, int], tally: Tally
) -> Side:
    """Read both sides up to the old one's ends: their bytes, and the chain that they make."""
    side, made, chain = Side(), hashlib.sha256(), Chain()
    for is_transactions in (True, False):
        same = _common(source, target, partition, ends, is_transactions=is_transactions)
        for raw in tally.of("records compared", same):
            made.update(repr(tuple(raw)).encode())
            if is_transactions:
                side.transactions += 1
                continue
            side.outcomes += 1
            record = to_answered(partition, *raw).record
            if chain.admit(record) or not isinstance(record, Outcome):
                continue
            side.sequence, side.hash, side.offset = record.sequence, record.hash.hex(), raw.offset
            if record.status is Status.COMMITTED:
                side.committed += 1
    side.sha256 = made.hexdigest()
    return side


def _common(
    source: KafkaLog,
    target: KafkaLog,
    partition: int,
    ends: Mapping[bool, int],
    *,
    is_transactions: bool,
) -> Iterator[RawRecord]:
    """Yield what both sides have; CorruptLog if one lacks what compaction may not remove."""
    end, alone = ends[is_transactions], dict[bytes | None, int]()
    topics = (
        records_of(log, partition, is_transactions=is_transactions) for log in (source, target)
    )
    sides = [(one for one in topic if one.offset < end) for topic in topics]
    for offset, group in groupby(merge(*sides, key=attrgetter("offset")), attrgetter("offset")):
        found = list(group)
        kept = [one for one in found if not is_transactions or one.value is not None]
        for one in found:
            if one not in kept:  # a tombstone, or what fills a gap on the new side
                alone.pop(one.key, None)
        if len(kept) == 2 and kept[0] != kept[1]:
            raise CorruptLog(f"partition {partition} differs at offset {offset}. {ADVICE}")
        if len(kept) == 1:
            alone[kept[0].key] = offset
        elif kept:
            yield kept[0]
    if alone:
        raise CorruptLog(
            f"partition {partition}: {len(alone)} records are on one of both clusters only, the"
            f" first at offset {min(alone.values())}. {ADVICE}"
        )


def state_at(
    log: ArchivableLog,
    genesis: Genesis,
    identity: LogIdentity,
    end: int,
    sequence: int,
    root: Path | None,
    *,
    tally: Tally | None = None,
) -> Machine:
    """Apply what a partition has before an offset of its outcomes; return the state that it makes.

    It continues from the checkpoint in `root`, if there is one that isn't beyond `sequence`.
    """
    partition, machine, replica = genesis.partition, Machine(genesis), Replica()
    archived: ArchivableLog = log
    if root is not None:
        found = Checkpoints(root, identity, genesis).load()
        if found is not None and found.chain.sequence <= sequence:
            machine, replica = found.machine, found.replica()
        archive = Archive.open(root / FOLDER, identity, genesis)
        archived = ArchivedLog(log, root / FOLDER, {partition: archive})
    recordings = Recordings(genesis.tables_root)

    def is_beyond(answered: Answered) -> bool:
        return answered.offset >= end

    with closing(Walk(archived, partition, replica, is_beyond=is_beyond)) as walk:
        for batch in walk.batches():
            for one in batch if tally is None else tally.of("outcomes applied", batch):
                recorded = recordings.of(one.outcome)
                machine.apply(one.submitted, one.outcome, recordings=recorded)
    if walk.sequence < sequence and walk.problem is not None:
        raise CorruptLog(
            f"partition {partition} cannot be followed: {walk.problem.message}. Name the log's"
            " --root, whose checkpoint and archive may have what the topics haven't, or run"
            " `commitlog verify`"
        )
    return machine


def rows_of(machine: Machine) -> dict[str, int]:
    """Return how many rows the newest version of each table has."""
    found = {
        format_table_id(name): sum(map(living_rows, table.manifest.fragments.values()))
        for name, table in machine.tables.items()
        if table.manifest is not None
    }
    for name, iceberg in machine.iceberg.tables.items():
        current = iceberg.current_snapshot_id
        snapshot = None if current is None else iceberg.snapshots.get(current)
        summary = snapshot.get("summary") or {} if snapshot is not None else {"total-records": "0"}
        if "total-records" in summary:
            found[format_table_id(name)] = int(summary["total-records"])
    return dict(sorted(found.items()))
