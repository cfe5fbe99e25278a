"""Which version of a table is meant: by number, time, log position or tag.

A version's time is its outcome's, which never runs backwards in a table, and stands in its
manifest; so a time is found by bisection. A position is an outcome's sequence: the version is the
newest that the table had once that outcome was decided.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from commitlog.adapters.lance_refs import lance_tags, versions_with_files
from commitlog.adapters.storage import store_for
from commitlog.client.history.positions import milliseconds_of
from commitlog.client.leader.repeats import outcomes_before, version_made
from commitlog.client.leader.runtime import Runtime
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.opening import materialize
from commitlog.codecs.manifest_file import decode_manifest
from commitlog.core.conflicts.write_sets import KINDS
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.tables.lance_tables import is_in
from commitlog.errors import NoSuchVersion, of_the_future
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage

CLONE = "Clone"
"""What makes a table's first version of another table's: it has that one's number and rows."""


@dataclass(frozen=True)
class VersionWanted:
    """A version as the options name it; all None is the head."""

    version: int | None = None
    time_ms: int | None = None
    position: int | None = None
    tag: str | None = None


@dataclass(frozen=True)
class Version:
    """One version's manifest, and what made it."""

    state: ManifestState
    operation: str
    """Lance's name of the operation, in CamelCase; empty if the manifest doesn't say."""

    @property
    def time_us(self) -> int:
        """When it was committed, in microseconds since 1970."""
        return self.state.timestamp_nanos // 1000

    @property
    def made_by(self) -> str:
        """What tells it from another one of its number: its transaction's file, and its time."""
        return f"{self.state.transaction_file} {self.time_us}"


def standing(log: Any, table: str) -> TableInfo:
    """Return a table as it is now; NoSuchVersion if it is declared only, without columns."""
    info: TableInfo = log.table(table)
    if info.version < 1:
        raise NoSuchVersion(f"{table} is declared and has no version yet. Create it first")
    return info


class TableVersions:
    """One table's versions, read from its manifests. For one thread."""

    def __init__(self, runtime: Runtime, info: TableInfo) -> None:
        """Take a table's description; its version is the head that is meant."""
        self.info = info
        self._runtime = runtime
        self._store = store_for(info.location)
        self._kept: Version | None = None

    def take(self, version: int) -> Version:
        """Return a version that the caller may change: the one that was kept, or as `read`."""
        kept, self._kept = self._kept, None
        return kept if kept and kept.state.version == version else self.read(version)

    def keep(self, version: Version) -> None:
        """Keep a version for who takes it next: the one before the next one, mostly."""
        self._kept = version

    def made_by(self, version: int) -> str:
        """Return what made a version; empty if there is none, or none any more."""
        try:
            found = self.take(version)
        except NoSuchVersion:
            return ""
        self.keep(found)
        return found.made_by

    def read(self, version: int) -> Version:
        """Return a version; NoSuchVersion if there is none, or it was deleted."""
        path = materialize(self._runtime, self.info, version)
        state, transaction = decode_manifest(self._store.read(path))
        which = LanceMessage.FromString(transaction).WhichOneof("operation") if transaction else ""
        return Version(state, KINDS.get(which or "", ""))

    def is_deleted(self, version: int) -> bool:
        """Return True if a version was deleted."""
        return is_in(version, self.info.deleted)

    def first(self) -> int:
        """Return the oldest version that is left."""
        return self._left_from(1)

    def first_told(self) -> int:
        """Return the first version from which on all changes can be told: behind the last gap."""
        deleted = self.info.deleted
        start = self._left_from(deleted[-1][1] + 1 if deleted else 1)
        # Of a registered dataset, versions between others may be gone; of the log's own, none is.
        there = [v for v in versions_with_files(self.info.location) if v >= start]
        behind = [new for old, new in pairwise(there) if new > old + 1]
        gaps = bisect_left(behind, True, key=lambda v: self._left_from(v - 1) == v - 1)
        start = behind[gaps - 1] if gaps else start
        if start == 1 or self.read(start).operation == CLONE:
            return start
        # The changes of a version are those since the version before, which must be there.
        return start + 1

    def _left_from(self, version: int) -> int:
        """Return the first version that is left, from one on; the head plus 1 if there is none."""
        found = (last + 1 for first, last in self.info.deleted if first <= version <= last)
        left = next(found, version)
        if left > self.info.version:
            return left
        try:
            materialize(self._runtime, self.info, left)
        except NoSuchVersion:
            # A clone begins with its source's number; a registered table has what Lance left of it.
            there = (v for v in versions_with_files(self.info.location) if v > left)
            return next((v for v in there if not self.is_deleted(v)), self.info.version + 1)
        return left

    def resolve(self, wanted: VersionWanted) -> int:
        """Return the number of the version that is wanted.

        Raises:
            NoSuchVersion: the table had no version then, or has none of that number or tag.
        """
        if wanted.version is not None:
            if not 1 <= wanted.version <= self.info.version or self.is_deleted(wanted.version):
                raise NoSuchVersion(
                    f"{self.info.name} has no version {wanted.version}; its head is"
                    f" {self.info.version}. Ask for a version that exists"
                )
            return wanted.version
        if wanted.tag is not None:
            return self._tagged(wanted.tag)
        if wanted.time_ms is not None:
            return self.at_time(wanted.time_ms)
        if wanted.position is not None:
            return self._at_position(wanted.position)
        return self.info.version

    def at_time(self, time_ms: int) -> int:
        """Return the newest version committed at or before a time; InvalidRequest if it's to come.

        A version's own time is taken, also if this machine's clock is behind.
        """
        found, newer = self._around(time_ms)
        is_to_come = time_ms > time.time_ns() // 1_000_000 and newer > self.info.version
        if is_to_come and (not found or self.read(found).time_us // 1000 < time_ms):
            raise of_the_future(_shown(time_ms), "timestampAsOf")
        if not found:
            first = self.first()
            raise NoSuchVersion(
                f"{self.info.name} had no version at {_shown(time_ms)}; its oldest is {first}, of"
                f" {_shown(self.read(first).time_us // 1000)}. Ask for a later time"
            )
        return found

    def first_after(self, time_ms: int) -> int:
        """Return the first version committed after a time, the head plus 1 if there is none."""
        _, found = self._around(time_ms)
        return found

    def _around(self, time_ms: int) -> tuple[int, int]:
        """Return the newest version committed by a time, 0 if there is none, and the next one."""
        newest, found = 0, self.info.version + 1
        low, high = 1, found
        while low < high:
            middle = (low + high) // 2
            probe = self._left_from(middle)
            if probe >= high:
                high = middle  # none is left from there to `high`
            elif self.read(probe).time_us // 1000 <= time_ms:
                newest, low = probe, probe + 1
            else:
                found, high = probe, middle
        return newest, found

    def _tagged(self, tag: str) -> int:
        tags = lance_tags(self.info.location)
        if tag not in tags:
            raise NoSuchVersion(
                f"{self.info.name} has no tag {tag!r}; it has {', '.join(sorted(tags)) or 'none'}"
            )
        return tags[tag]

    def _at_position(self, position: int) -> int:
        partition = self._runtime.domains.partition(self.info.table_id)
        for outcome in outcomes_before(self._runtime.log, partition, position):
            version = version_made(outcome, self.info.incarnation)
            if version:
                return version
        raise NoSuchVersion(
            f"{self.info.name} had no version at position {position}. Ask for a later one"
        )


def _shown(time_ms: int) -> str:
    # A zone may take a time before or behind all that a datetime has.
    first, last = (milliseconds_of(one) for one in (datetime.min, datetime.max))
    return datetime.fromtimestamp(max(first, min(time_ms, last)) / 1000, UTC).isoformat()
