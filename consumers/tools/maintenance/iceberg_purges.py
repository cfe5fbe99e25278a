"""Removes the files of Iceberg tables that were dropped with them.

What is due follows from the log and from the files that are there, and from nothing that a process
remembers: a run that is killed on the way leaves the rest to the next one. A purge begins with the
table's metadata files, which get other names: registering the table needs one of them, so from
then on it can't be. If it was registered before, they get their names back. The last one goes last,
since all other files are found from it.

Another table may have a file of a purged one by `add_files`. So all that other tables lead to is
looked for after the record of a purge, and stays.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from commitlog import CommitLog
from commitlog.adapters.reading import read_on
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.metadata_references import read_table
from commitlog.core.iceberg.reading import load_json
from commitlog.core.iceberg.updates import REGISTER
from commitlog.core.log.chain import Chain
from commitlog.core.tables.lance_tables import normalize_location
from commitlog.errors import CommitLogError, Unavailable
from commitlog.model.operations import IcebergChange
from commitlog.model.records import Outcome, Submitted
from commitlog.model.table import TableId, format_table_id
from commitlog.ports import Log
from consumers.partition.files.iceberg_files import IcebergFiles, purge
from consumers.tools.iceberg.heads import End, IcebergHeads
from consumers.tools.iceberg.leftovers import record_removal, standing_tables
from consumers.tools.iceberg.named import listed_metadata, older_metadata
from consumers.tools.iceberg.orphans import IcebergOrphans
from consumers.tools.iceberg.reached import Known
from consumers.tools.maintenance.table_acts import Act
from consumers.tools.orphans.leftover import GONE

SETTLING_SECONDS = 60.0
AGAIN_SECONDS = 6 * 3600.0
"""When it is tried again to remove what couldn't be."""
LISTED_SECONDS = 600.0
"""How long the list of all files serves for the next purge."""
REST_FACTOR = 4
"""And for so many times as long as it took to list them and read what tables need, no purge begins:
in large stores that takes minutes."""


@dataclass(frozen=True, slots=True)
class _Drop:
    table: TableId
    home: str
    """Its location."""
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

    def is_registering(self, home: str, place: str) -> bool:
        """Return True if a transaction without an outcome registers a file, or one in a folder."""
        pending = (one for places in self._registering.values() for one in places)
        return any(one == place or one.startswith(f"{home}/") for one in pending)

    def _take(self, outcome: Outcome) -> None:
        if outcome.transaction_offset < self._transactions.position():
            self._registering.pop(outcome.transaction_offset, None)
        else:
            self._early.add(outcome.transaction_offset)
        for named in self.heads.take(outcome):
            if named.end is End.PURGED:
                drop = _Drop(named.table, named.home, outcome.sequence, outcome.transaction_id)
                self.owed[named.place] = drop
                self.back.pop(named.place, None)
            elif named.end is End.NONE and self.owed.pop(named.place, None) is not None:
                self.back[named.place] = None


def _registered_by(submitted: Submitted) -> set[str]:
    places = set()
    for operation in submitted.operations:
        if isinstance(operation, IcebergChange) and REGISTER in operation.updates:
            with contextlib.suppress(Invalid, CommitLogError, TypeError, AttributeError):
                for update in load_json(operation.updates, "updates"):
                    if "metadata-location" in update:
                        places.add(normalize_location(str(update["metadata-location"])))
    return places


class _LeftError(Exception):
    """Says why a table's files stay for now."""


class IcebergPurges:
    """What is left to remove of the dropped Iceberg tables of a log."""

    def __init__(self, log: Log, client: CommitLog) -> None:
        """Read the log from its start; `client` knows the tables that exist."""
        self._client = client
        self._files = IcebergFiles(log.genesis().tables_root)
        self._dropped = [DroppedTables(log, partition) for partition in range(log.partitions())]
        self._tried: dict[str, float] = {}
        """When a drop is looked at again, by the last metadata file: a record may drop many."""
        self.orphans = IcebergOrphans(log, self._files.root)
        """Knows what tables need."""
        self._there: tuple[float, Collection[str]] | None = None
        """The files that were listed for this look, and when."""
        self._at = 0.0
        """When files may be listed again: it may take long, and tables are dropped all the time."""

    def close(self) -> None:
        """Stop reading."""
        self.orphans.close()
        for one in self._dropped:
            one.close()

    def rest(self) -> None:
        """Let go of all connections until the next look."""
        self.orphans.rest()
        for one in self._dropped:
            one.rest()

    def due(self) -> Iterator[Act]:
        """Yield what is due; each is done before the next one is looked for."""
        if time.monotonic() < self._at:
            return
        self._there = None
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
                    do = self._purging(dropped, place, drop, f"{name}: {reason}")
                    yield Act(name, "purge", reason, do)
                else:
                    # Nothing is left of it, and a log has ever more of those.
                    del dropped.owed[place], self._tried[place]

    def _purging(
        self, dropped: DroppedTables, place: str, drop: _Drop, why: str
    ) -> Callable[[], str]:
        def do() -> str:
            try:
                return self._purge(dropped, place, drop.home, why)
            except _LeftError as error:
                self._bring_back(place)
                return str(error)

        return do

    def _purge(self, dropped: DroppedTables, place: str, home: str, why: str) -> str:
        self._check(place, home)
        aside = place + GONE
        self._put_aside(place)
        try:
            table = read_table(self._files.read(aside), place)
            older = older_metadata(table, place, self._files)
        except FileNotFoundError:
            return ""
        except (OSError, Invalid) as error:  # it may be a view's, which has no files
            raise _LeftError(f"left: {place} is no table's metadata: {error}") from error
        aside_too = self._to_put_aside(table, older)
        for one in aside_too:
            self._put_aside(one)
        self._settle(dropped, place, home)
        if place not in dropped.owed:
            raise _LeftError("")
        needed = self._check(place, home, older)

        def begin() -> None:
            nonlocal needed
            record_removal(self._client, why)
            needed = self._check(place, home, older)

        left = purge(
            replace(table, metadata_location=aside),
            self._files,
            lambda one: needed.has(one),
            [one + GONE if one in aside_too else one for one in older],
            begin,
        )
        if not left:
            return "all its files are removed"
        kept = [one for one in left if needed.has(one)]
        if kept:
            return f"{len(kept):,} files stay, since another table needs them: {kept[0]}"
        return f"{len(left):,} files could not be removed, the first one {left[0]}"

    def _check(self, place: str, home: str, aside: Collection[str] = ()) -> Known:
        """Return what other tables need; raise if this one's files can't go now.

        What they need of the metadata files put aside gets its name back.
        """
        if shared := self._sharing(home):
            raise _LeftError(f"left: {home} is also the location of {shared}")
        needed = self._needed()
        if needed.failure:
            self._tried[place] = time.monotonic() + LISTED_SECONDS
            raise _LeftError(f"left: what other tables need is not known: {needed.failure}")
        for one in aside:
            if needed.has(one):
                self._put_back(one)
        return needed

    def _needed(self) -> Known:
        """Return what other tables need, as of now."""
        began, there = time.monotonic(), None
        if self._there is not None and began - self._there[0] < LISTED_SECONDS:
            _, there = self._there
        found, needed = self.orphans.needed(there)
        if found is not there:
            self._there = (began, found)
            self._at = time.monotonic() + REST_FACTOR * (time.monotonic() - began)
        return needed

    def _settle(self, dropped: DroppedTables, place: str, home: str) -> None:
        """Wait until no transaction without an outcome registers a table whose files go."""
        deadline = time.monotonic() + SETTLING_SECONDS
        while True:
            for one in self._dropped:
                one.read()
            if not any(one.is_registering(home, place) for one in self._dropped):
                return
            if time.monotonic() > deadline:
                self._bring_back(place)
                del self._tried[place]
                raise Unavailable(f"who registers {place} has no outcome yet")
            time.sleep(0.1)

    def _bring_back(self, place: str) -> None:
        """Give the metadata files of a table their names back, whoever put them aside."""
        with contextlib.suppress(OSError, Invalid):
            at = place + GONE if self._files.exists(place + GONE) else place
            for one in older_metadata(read_table(self._files.read(at), place), place, self._files):
                self._put_back(one)
        self._put_back(place)

    def _to_put_aside(self, table: IcebergTable, older: Collection[str]) -> Collection[str]:
        """Return those of its metadata files that go aside: all, or all that its last one lists.

        Those that the last one lists no more may be many, and a store without renames copies each.
        """
        return set(older) if self._files.renames else set(older) & listed_metadata(table)

    def _put_aside(self, place: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # another maintenance was faster
            if self._files.exists(place):
                self._files.move(place, place + GONE)

    def _put_back(self, place: str) -> None:
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
        return {
            one.table: normalize_location(one.metadata_location)
            for one in standing_tables(self._client)
        }
