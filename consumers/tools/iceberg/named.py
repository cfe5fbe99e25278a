"""Which metadata files the outcomes of a log name, of those that are there.

A log names a metadata file with each commit, for ever, and most of them are gone by now. So what is
kept are the names of files that are there, of those that were named of late (a store may list them
later), and of those that the log's own pattern doesn't tell (few: registered ones). The log is read
once, then followed. A file that comes up without a name may have had one that was forgotten: it
came back from a backup, say. If it isn't named by the next look, the log is read again from its
start, against the files that are there then.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from commitlog.adapters.reading import read_on
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.log.chain import Chain
from commitlog.core.tables.lance_tables import normalize_location
from commitlog.model.records import Answered, Outcome, is_commit
from commitlog.ports import Log, Reader
from consumers.partition.files.iceberg_files import IcebergFiles, below, plain_place
from consumers.tools.iceberg.heads import End, IcebergHeads
from consumers.tools.orphans.leftover import GONE

LATELY_MS = 3_600_000
"""By the log's own clock: for so long a file's name is kept if the store doesn't list it."""
OURS = re.compile(
    r"(?P<folder>.*)/\d{5,}-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"(\.gz)?\.metadata\.json"
)
"""The names that the log gives (uuid version 5); metadata files of others are ignored."""


@dataclass(slots=True)
class _Outcomes:
    """A partition's, as far as they were read."""

    reader: Reader[Answered]
    chain: Chain = field(default_factory=Chain)
    end: int = 0
    """Whose files are there, if they are there at all: the rest came while files were listed."""
    time_ms: int = 0
    """The newest outcome's before that."""
    lately: dict[str, int] = field(default_factory=dict)
    """What was named of late, and when."""


class NamedFiles:
    """Follows the outcomes of all partitions; close it."""

    def __init__(self, log: Log) -> None:
        """Begin before the first record."""
        self._log = log
        self.changes = 0
        """How many outcomes so far named a table's place or metadata file."""
        self._outcomes: list[_Outcomes] = []
        self._unnamed: set[str] = set()
        self.unclear: set[str] = set()
        """Metadata files that came up since the last look, and that no outcome names so far."""
        self._begin()

    def _begin(self) -> None:
        self.close()
        partitions = range(self._log.partitions())
        self._outcomes = [_Outcomes(self._log.read_outcomes(one, 0)) for one in partitions]
        self._is_read = False
        self.homes_of: dict[str, str] = {}
        """The locations of tables, by the metadata files that were named, in the log's order."""
        self.ended: dict[str, str] = {}
        """Those of tables that were dropped without their files, by their last ones."""
        self.purged: dict[str, str] = {}
        """Those of tables that were dropped with their files, by their last ones."""
        self.heads = IcebergHeads()
        """The tables that exist, second names included."""
        self.missing: set[str] = set()
        """Files that were missing when they were looked for; if they come back, they are listed."""
        self._of_lance: dict[str, str] = {}
        """Locations of Lance tables, by incarnation, unless they were dropped."""

    def close(self) -> None:
        """Stop reading."""
        for one in self._outcomes:
            one.reader.close()

    def rest(self) -> None:
        """Release all connections until the next look."""
        for one in self._outcomes:
            one.reader.rest()

    def homes(self) -> Iterator[str]:
        """Yield the places of tables that nobody dropped with their files.

        What was dropped without them at the place of one that was is an earlier state of that
        table, or its second name.
        """
        yield from (head.home for head in self.heads.by_name.values())
        purged = set(self.purged.values())
        yield from (home for home in self.ended.values() if home not in purged)
        yield from self._of_lance.values()

    def begin_look(self) -> None:
        """Note where the outcomes end; what is there is listed after that."""
        if not self._is_read:
            self._begin()
        for one in self._outcomes:
            one.end = one.reader.end_offset()

    @property
    def is_read(self) -> bool:
        """Whether the log was read to its end, and nothing failed since."""
        return self._is_read

    def follow(self, there: Collection[str]) -> None:
        """Read to the present ends, after a look at what was `there`."""
        self._read(there)

    def look(self, there: Collection[str]) -> set[str]:
        """Read to the present ends; return those of the log's files that no outcome names.

        They are among those that were found `there`, since `begin_look`.
        """
        was_read = self._is_read
        self._read(there)
        unnamed = self._without_name(there)
        if was_read:
            known = self._unnamed & unnamed
            if not (unnamed - known) & self.unclear:
                self._unnamed, self.unclear = known, unnamed - known
                return known
            ends = [one.end for one in self._outcomes]
            self._begin()
            for one, end in zip(self._outcomes, ends, strict=True):
                one.end = end
            self._read(there)
            unnamed = self._without_name(there)
        self._unnamed, self.unclear = unnamed, set()
        return unnamed

    def _without_name(self, there: Collection[str]) -> set[str]:
        return {one for one in there if one not in self.homes_of and OURS.fullmatch(one)}

    def _read(self, there: Collection[str]) -> None:
        self._is_read = False  # until it was read to its end: what fails on the way begins again
        for one in self._outcomes:
            for answered in read_on(one.reader):
                record = answered.record
                is_valid = not one.chain.admit(record)
                if is_valid and isinstance(record, Outcome):
                    self._take(record, one)
                    if answered.offset < one.end:
                        one.time_ms = max(one.time_ms, record.time_ms)
                        self._forget_old(one, there)
        heads = {head.place: head.home for head in self.heads.by_name.values()}
        self.homes_of.update(heads)
        for place in [one for one in self.homes_of if one not in there]:
            if place not in heads and not any(place in one.lately for one in self._outcomes):
                self._forget(place)
        self.missing.intersection_update(self.homes_of)
        self._is_read = True

    def _take(self, outcome: Outcome, partition: _Outcomes) -> None:
        if not is_commit(outcome):
            return
        for result in outcome.results:
            self.changes += bool(result.location or result.metadata_location)
            if result.location and not result.metadata_location:
                self._of_lance.pop(result.incarnation, None)
                if result.operation != "DropTable":
                    self._of_lance[result.incarnation] = normalize_location(result.location)
        for named in self.heads.take(outcome):
            place = named.place
            self.homes_of[place] = sys.intern(named.home)
            self.missing.discard(place)
            partition.lately.pop(place, None)
            partition.lately[place] = outcome.time_ms
            self.ended.pop(place, None)
            if named.end is End.KEPT:
                self.ended[place] = named.home
            elif named.end is End.PURGED:
                self.purged[place] = named.home
            else:
                self.purged.pop(place, None)

    def _forget_old(self, partition: _Outcomes, there: Collection[str]) -> None:
        """Forget what was named long before the newest outcome, if it isn't there."""
        lately = partition.lately
        while lately:
            place, time_ms = next(iter(lately.items()))
            if time_ms >= partition.time_ms - LATELY_MS:
                return
            del lately[place]
            if place not in there:
                self._forget(place)

    def _forget(self, place: str) -> None:
        if OURS.fullmatch(place):
            self.homes_of.pop(place, None)
            self.ended.pop(place, None)


def listed_metadata(table: IcebergTable) -> set[str]:
    """Return the metadata files that a table lists, those before its last one."""
    return {plain_place(str(entry.value["metadata-file"])) for entry in table.metadata_log}


def older_metadata(table: IcebergTable, last: str, files: IcebergFiles) -> list[str]:
    """Return a table's metadata files besides the last one, by their own names.

    From each it could be registered. They are there, or put aside. They are those of its metadata
    log, and the log's own beside them and beside the `last` one.
    """
    listed = sorted(listed_metadata(table))
    found = dict.fromkeys(one for one in listed if below(one, table.location) is not None)
    for folder in sorted({one.rpartition("/")[0] for one in (*found, last)}):
        if below(f"{folder}/{GONE}", table.location) is None:
            continue
        places = (f"{folder}/{name.removesuffix(GONE)}" for name in files.names(folder))
        found.update(dict.fromkeys(one for one in places if OURS.fullmatch(one)))
    found.pop(last, None)
    return list(found)
