"""Removes the files of Iceberg tables that were dropped with them.

What is due follows from the log and from the files that are there, and from nothing that a process
remembers: a run that is killed on the way leaves the rest to the next one. A purge begins with the
table's last metadata file, which gets another name: registering that table needs this file,
so from then on it can't be. If it was registered before, it gets its name back. It goes last, since
all other files are found from it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from commitlog import CommitLog
from commitlog.adapters.reading import read_on
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.metadata_references import read_table
from commitlog.core.iceberg.reading import load_json
from commitlog.core.iceberg.updates import REGISTER
from commitlog.core.log.chain import Chain
from commitlog.core.tables.lance_tables import normalize_location
from commitlog.errors import CommitLogError, Unavailable
from commitlog.messages import IcebergDescription
from commitlog.model.operations import IcebergChange
from commitlog.model.records import Outcome, Submitted, Transaction
from commitlog.model.table import TableId, format_table_id
from commitlog.ports import Log
from consumers.partition.iceberg_files import IcebergFiles, purge
from consumers.tools.iceberg_heads import End, IcebergHeads
from consumers.tools.iceberg_leftovers import record_removal
from consumers.tools.leftover import GONE
from consumers.tools.table_acts import Act

SETTLING_SECONDS = 60.0
AGAIN_SECONDS = 6 * 3600.0
"""When it is tried again to remove what couldn't be."""


@dataclass(frozen=True, slots=True)
class _Drop:
    table: TableId
    sequence: int
    transaction_id: str


class DroppedTables:
    """Which tables of a partition were dropped with their files; reads on from where it was."""

    def __init__(self, log: Log, partition: int) -> None:
        self._transactions = log.read_transactions(partition, 0)
        self._outcomes = log.read_outcomes(partition, 0)
        self._chain = Chain()
        self.heads = IcebergHeads()
        self.owed: dict[str, _Drop] = {}
        """By the last metadata file."""
        self.back: dict[str, None] = {}
        """Last metadata files of tables that were registered again."""
        self._registering: dict[int, set[str]] = {}
        """Files that transactions without an outcome register, by their offsets."""
        self._early: set[int] = set()

    def close(self) -> None:
        """Stop reading."""
        self._transactions.close()
        self._outcomes.close()

    def rest(self) -> None:
        """Let go of both connections until the next `read`."""
        self._transactions.rest()
        self._outcomes.rest()

    def read(self) -> None:
        """Read both topics to their present ends."""
        for submitted in read_on(self._transactions):
            if submitted.offset in self._early:
                self._early.discard(submitted.offset)
            elif places := _registered_by(submitted):
                self._registering[submitted.offset] = places
        for answered in read_on(self._outcomes):
            is_valid = not self._chain.admit(answered.record)
            if is_valid and isinstance(answered.record, Outcome):
                self._take(answered.record)

    def is_registering(self, place: str) -> bool:
        """Return True if a transaction that isn't decided yet registers a file."""
        return any(place in places for places in self._registering.values())

    def _take(self, outcome: Outcome) -> None:
        if outcome.transaction_offset < self._transactions.position():
            self._registering.pop(outcome.transaction_offset, None)
        else:
            self._early.add(outcome.transaction_offset)
        for named in self.heads.take(outcome):
            if named.end is End.PURGED:
                drop = _Drop(named.table, outcome.sequence, outcome.transaction_id)
                self.owed[named.place] = drop
                self.back.pop(named.place, None)
            elif named.end is End.NONE and self.owed.pop(named.place, None) is not None:
                self.back[named.place] = None


def _registered_by(submitted: Submitted) -> set[str]:
    record, places = submitted.record, set()
    for operation in record.operations if isinstance(record, Transaction) else ():
        if isinstance(operation, IcebergChange) and REGISTER in operation.updates:
            with contextlib.suppress(Invalid, CommitLogError, TypeError, AttributeError):
                for update in load_json(operation.updates, "updates"):
                    if "metadata-location" in update:
                        places.add(normalize_location(str(update["metadata-location"])))
    return places


class IcebergPurges:
    """What is left to remove of the dropped Iceberg tables of a log."""

    def __init__(self, log: Log, client: CommitLog) -> None:
        """Read the log from its start; `client` knows the tables that exist."""
        self._client = client
        self._files = IcebergFiles(log.genesis().tables_root)
        self._dropped = [DroppedTables(log, partition) for partition in range(log.partitions())]
        self._tried: dict[str, float] = {}
        """When a drop is looked at again, by the last metadata file: a record may drop many."""

    def close(self) -> None:
        """Stop reading."""
        for one in self._dropped:
            one.close()

    def rest(self) -> None:
        """Let go of all connections until the next look."""
        for one in self._dropped:
            one.rest()

    def due(self) -> Iterator[Act]:
        """Yield what is due; each is done before the next one is looked for."""
        for dropped in self._dropped:
            dropped.read()
            for place in list(dropped.back):
                self._bring_back(place)
                del dropped.back[place]
            for place, drop in list(dropped.owed.items()):
                is_registered = place not in dropped.owed  # while another one was purged
                if is_registered or time.monotonic() < self._tried.get(place, 0.0):
                    continue
                self._tried[place] = time.monotonic() + AGAIN_SECONDS
                # Once more at the end: another maintenance may just have moved it back.
                if any(map(self._files.exists, (place, place + GONE, place))):
                    name = format_table_id(drop.table)
                    reason = f"record {drop.sequence} ({drop.transaction_id}) dropped it"
                    do = self._purging(dropped, place, f"{name}: {reason}")
                    yield Act(name, "purge", reason, do)
                else:
                    # Nothing is left of it, and a log has ever more of those.
                    del dropped.owed[place], self._tried[place]

    def _purging(self, dropped: DroppedTables, place: str, why: str) -> Callable[[], str]:
        def do() -> str:
            try:
                if not self._is_out_of_reach(dropped, place):
                    return ""
            except Unavailable:
                del self._tried[place]
                raise
            aside = place + GONE
            try:
                table = read_table(self._files.read(aside), place)
            except (OSError, Invalid) as error:  # it may be a view's, which has no files
                self._bring_back(place)
                return f"left: {place} is no table's metadata: {error}"
            if shared := self._sharing(table.location):
                self._bring_back(place)
                return f"left: {table.location} is also the location of {shared}"
            record_removal(self._client, why)
            left = purge(replace(table, metadata_location=aside), self._files)
            if left:
                return f"{len(left):,} files could not be removed, the first one {left[0]}"
            return "all its files are removed"

        return do

    def _is_out_of_reach(self, dropped: DroppedTables, place: str) -> bool:
        """Keep a dropped table from being registered again; return False if it was."""
        if self._files.exists(place):
            with contextlib.suppress(FileNotFoundError):  # another maintenance was faster
                self._files.move(place, place + GONE)
        deadline = time.monotonic() + SETTLING_SECONDS
        dropped.read()
        while dropped.is_registering(place):
            if time.monotonic() > deadline:
                self._bring_back(place)
                raise Unavailable(f"who registers {place} has no outcome yet")
            time.sleep(0.1)
            dropped.read()
        if place not in dropped.owed:
            self._bring_back(place)
            return False
        return self._files.exists(place + GONE)

    def _bring_back(self, place: str) -> None:
        if self._files.exists(place + GONE) and not self._files.exists(place):
            self._files.move(place + GONE, place)

    def _sharing(self, location: str) -> str:
        """Return the metadata file of a table that exists at a location, or in it."""
        standing = self._standing()
        home = normalize_location(location)
        for place in standing.values():
            if place.startswith(f"{home}/"):
                return place
        # A table's metadata may be elsewhere: its outcomes say where it is.
        for dropped in self._dropped:
            dropped.read()
            for name, head in dropped.heads.by_name.items():
                if name in standing and f"{head.home}/".startswith(f"{home}/"):
                    return head.place
        return ""

    def _standing(self) -> dict[TableId, str]:
        """Return the last metadata files of the tables that exist."""
        runtime = self._client.runtime()
        found = [
            IcebergDescription.from_json(entry)
            for partition in range(runtime.partitions)
            for entry in runtime.request(partition, "iceberg_tables")
        ]
        return {one.table: normalize_location(one.metadata_location) for one in found}
