"""Where a restore ends, and what was there: which transactions, and which files belong to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from commitlog.adapters.log_records import to_answered
from commitlog.adapters.places import plain
from commitlog.client.history.positions import milliseconds_of
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY, parse_manifest_name
from commitlog.errors import InvalidTransaction
from commitlog.model.records import Outcome
from commitlog.model.table import format_table_id
from commitlog.ports import RawRecord
from consumers.tools.backup.saved import (
    Backup,
    BadBackup,
    SavedPartition,
    Store,
    follows,
    read_chunk,
)


@dataclass(slots=True)
class RestorePoint:
    """What existed right after a partition's last outcome that is restored."""

    sequence: int = 0
    hash: str = ""
    offset: int = -1
    """Of that outcome."""
    outcomes_end: int = 0
    """The offset after the last outcome record."""
    decided: set[int] = field(default_factory=set)
    """Offsets of the transactions that were decided by then."""
    is_whole: bool = True
    """Whether it is the backup's own end."""


@dataclass(slots=True)
class Heads:
    """The newest version of each life of a table, by its place."""

    places: dict[str, str] = field(default_factory=dict)
    """By incarnation."""
    versions: dict[str, int] = field(default_factory=dict)
    """By place, without a slash at its end."""
    names: dict[str, str] = field(default_factory=dict)
    """The table's name, by its place."""
    metadata: set[str] = field(default_factory=set)
    """Iceberg's metadata files."""

    def take(self, outcome: Outcome) -> None:
        """Take the next outcome."""
        for result in outcome.results:
            self.metadata.add(plain(result.metadata_location))
            if not result.incarnation:
                continue
            if result.location:
                self.places.setdefault(result.incarnation, plain(result.location))
            place = self.places.get(result.incarnation)
            if place is not None:
                self.names[place] = format_table_id(result.table)
                self.versions[place] = max(self.versions.get(place, 0), result.version or 0)

    def have(self, tables_root: str, path: str) -> bool:
        """Return True if a file below the tables root belongs to what existed then.

        Manifests of later versions don't, nor do hints, which may name one of those, nor the files
        of tables that were made later.
        """
        if path.startswith("_commitlog/"):
            return True
        parts = path.split("/")
        root = plain(tables_root)
        for depth in range(len(parts) - 1, 0, -1):
            head = self.versions.get(f"{root}/{'/'.join(parts[:depth])}")
            if head is None:
                continue
            if parts[depth] != VERSIONS_DIRECTORY or depth + 2 != len(parts):
                return True
            name = parse_manifest_name(parts[-1])
            return name is not None and (name.is_detached or name.version <= head)
        return False


def end_of(text: str, backup: Backup) -> tuple[int | None, int | None]:
    """Return (sequence, milliseconds) of `--at`: one of them, or none for all there is.

    Raises InvalidTransaction if it is neither, or is beyond the backup's end.
    """
    if not text:
        return None, None
    if text.isdecimal():
        if len(backup.partitions) > 1:
            raise InvalidTransaction(
                f"at={text!r} is a position, and the log has {len(backup.partitions)} partitions",
                field="at",
                value=text,
                advice="Give a time",
            )
        has = backup.partitions[0].sequence
        if not 0 < int(text) <= has:
            raise InvalidTransaction(
                f"position {text} is not in the backup, which has positions 1 to {has}",
                field="at",
                value=text,
                advice="Give one of those, or a time",
            )
        return int(text), None
    try:
        return None, milliseconds_of(datetime.fromisoformat(text))
    except ValueError:
        raise InvalidTransaction(
            f"at={text!r} is neither a position nor a time",
            field="at",
            value=text,
            advice="Give a whole number, or a time as 2026-01-31T12:00:00Z",
        ) from None


def cut(
    store: Store, saved: SavedPartition, heads: Heads, sequence: int | None, until_ms: int | None
) -> RestorePoint:
    """Read a partition's outcomes up to a sequence or a time, and say what was there."""
    found = records(store, saved, is_transactions=False)
    return follow(found, saved.partition, heads, sequence, until_ms)


def follow(
    outcomes: Iterable[RawRecord],
    partition: int,
    heads: Heads,
    sequence: int | None = None,
    until_ms: int | None = None,
) -> RestorePoint:
    """Follow a partition's copied outcomes up to a sequence or a time; say what was there."""
    found = RestorePoint()
    for raw in _as_far_as_whole(outcomes, partition, found, sequence):
        record = to_answered(partition, *raw).record
        if follows(record, found.sequence, found.hash):
            is_beyond = sequence is not None and record.sequence > sequence
            if is_beyond or (until_ms is not None and record.time_ms > until_ms):
                found.is_whole = False
                break
            found.sequence, found.hash = record.sequence, record.hash.hex()
            found.offset = raw.offset
            found.decided.add(record.transaction_offset)
            heads.take(record)
        found.outcomes_end = raw.offset + 1
    return found


def _as_far_as_whole(
    outcomes: Iterable[RawRecord], partition: int, found: RestorePoint, sequence: int | None
) -> Iterator[RawRecord]:
    """Yield records; where a file of them is damaged, end if enough was found, or say how far."""
    try:
        yield from outcomes
    except BadBackup as error:
        if not found.sequence:
            raise
        if found.sequence == sequence:
            found.is_whole = False
            return
        raise BadBackup(
            f"{error}. Through position {found.sequence} of partition {partition} the log can be"
            " restored (--at)"
        ) from error


def records(store: Store, saved: SavedPartition, *, is_transactions: bool) -> Iterator[RawRecord]:
    """Yield a partition's copied records, in order."""
    for chunk in saved.transactions if is_transactions else saved.outcomes:
        yield from read_chunk(store, chunk)


def kept(store: Store, saved: SavedPartition, end: RestorePoint) -> Iterator[RawRecord]:
    """Yield the transactions that are put back.

    At the backup's end that is all of them: what was undecided is decided by the next leader. At
    an earlier position, only what was decided by then; what comes later may be damaged.
    """
    last = max(end.decided, default=-1)
    for raw in records(store, saved, is_transactions=True):
        if end.is_whole or raw.offset in end.decided:
            yield raw
        if raw.offset >= last and not end.is_whole:
            return


def answers(store: Store, saved: SavedPartition, end: RestorePoint) -> Iterator[RawRecord]:
    """Yield the outcomes that are put back."""
    for raw in records(store, saved, is_transactions=False):
        if raw.offset >= end.outcomes_end:
            return
        yield raw
