"""Unneeded files of Iceberg tables: no outcome or snapshot names them, or a purge left them.

A metadata file is written before its outcome, under a name that follows from the transaction. If
the leader died in between, the next one decides the transaction again and the file gets its
outcome. So a file is an orphan only as of the log's current end. A table that was dropped with its
files keeps its last metadata file until all others are gone; the files that it refers to remain.

Each metadata file of an existing table refers to snapshots, past ones too, and
these to manifests and data. Other files in its `data` and `metadata` were written for a commit
that was refused, or never made; or their snapshots are gone with the metadata that had them.
Files of other programs in the way of the log's own are beside them, under another name.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from commitlog.adapters.storage import UnlistableError
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.metadata_references import read_table
from commitlog.core.tables.lance_tables import normalize_location
from commitlog.model.table import TableId, format_table_id
from commitlog.ports import Log
from consumers.partition.files.iceberg_files import IcebergFiles, below, contents
from consumers.partition.obstacles import MARK
from consumers.runtime.places import MARKS, logs_above
from consumers.runtime.progress import SILENT, Tally
from consumers.tools.iceberg.named import OURS, NamedFiles, older_metadata
from consumers.tools.iceberg.notes import Notes, Noticed
from consumers.tools.iceberg.reached import Known, Reached, as_hashed
from consumers.tools.orphans.file_ledger import Why
from consumers.tools.orphans.leftover import GONE
from consumers.tools.orphans.nested_places import apart, starting

_ASIDE = re.compile(rf".*{re.escape(MARK)}[0-9a-f]{{8}}(/.*)?")
_METADATA = re.compile(rf".*\.metadata\.json(\.gz)?({re.escape(GONE)})?|{_ASIDE.pattern}")
_MARK = re.compile(rf"(?P<root>.*)/{MARKS}/(?P<log_id>[^/]+)\.json")
NAMES_MAX = 5
"""So many tables are named."""
DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Orphan:
    """An unneeded file."""

    location: str
    reason: str
    why: Why
    since_ms: int = 0
    """When the file that needed it was superseded; 0: nothing ever needed it."""
    noticed_ms: int = 0
    """When a look found it that the one before didn't, so something may have needed it then."""
    table: TableId = ()
    """Its table; empty: no existing one."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """That table's."""
    beyond_ms: int = 0
    """If it was written before, what can't be read may lead to it."""


class IcebergOrphans:
    """Follows the outcomes of all partitions; close it."""

    def __init__(self, log: Log, tables_root: str, tally: Tally = SILENT) -> None:
        """Begin before the first record; `tally` tells how far a look is."""
        self._files = IcebergFiles(tables_root)
        self._log_id = log.genesis().log_id
        self._reached = Reached(self._files, tally)
        self._named = NamedFiles(log)
        self._notes = Notes(tables_root, self._log_id)
        self._noticed: Noticed | None = None
        """At the last look."""
        self._needed: tuple[int, Known] | None = None
        """What was found to be needed, and after how many changes."""
        self.keeps_notes = False
        """Whether the next process is to know of it."""

    def close(self) -> None:
        """Stop reading."""
        self._named.close()

    def rest(self) -> None:
        """Release all connections until the next search."""
        self._needed = None
        self._named.rest()

    def find(self) -> list[Orphan]:
        """Compare the files below the tables root with the outcomes, to their present ends."""
        named = self._named
        # In this order: a file that is there now has its outcome later, if it gets one.
        named.begin_look()
        there = self._files.locations()
        unnamed = named.look(there)
        known = self._known(there)
        foreign = self._foreign(there)
        nobodys = sorted(one for one in unnamed if not one.startswith(foreign))
        found = list(self._abandoned(nobodys))
        found += self._remains(known)
        shared = [one for one in {*unnamed, *named.unclear} if one.startswith(foreign)]
        found += self._unreachable(there, known, shared)
        if known.unread:
            found = [replace(one, beyond_ms=self._unread_since(known)) for one in found]
        if self.keeps_notes and self._noticed is not None:
            self._notes.write(self._noticed)
        found += self._fell_out(known)
        was_in_the_way = "it was in the way of a file of the log"
        aside = sorted(
            place for place in there if _ASIDE.fullmatch(place) and not place.startswith(foreign)
        )
        found += [Orphan(place, was_in_the_way, Why.FOREIGN) for place in aside]
        return list({one.location: one for one in found}.values())

    def _foreign(self, there: Collection[str]) -> tuple[str, ...]:
        """Return the starts of all places in the tables roots of other logs, by their marks.

        Those may be above this one. What no outcome of this log names there may be theirs.
        """
        places = (place for place in there if f"/{MARKS}/" in place)
        marks = filter(None, map(_MARK.fullmatch, places))
        above = logs_above(self._files.root)
        others = dict.fromkeys(above, normalize_location(self._files.root))
        others |= {one["log_id"]: one["root"] for one in marks}
        others.pop(self._log_id, None)
        if others:
            logger.warning(
                "other logs have marks in %s or above it (%s): metadata files there that this log"
                " doesn't name are left alone, and so are tables that have any",
                self._files.root,
                ", ".join(
                    f"{above.get(one, place)}/{MARKS}/{one}.json"
                    for one, place in sorted(others.items())[:NAMES_MAX]
                ),
            )
        return tuple(sorted({f"{root}/" for root in others.values()}))

    def needed(self, there: Collection[str] | None) -> tuple[Collection[str], Known]:
        """Return what is there, and what somebody may need by now.

        Takes what was `there` moments ago.
        """
        named = self._named
        if there is None or not named.is_read:
            named.begin_look()
            there = self._files.locations()
            named.look(there)
        else:
            named.follow(there)
            if self._needed is not None and self._needed[0] == named.changes:
                return there, self._needed[1]
        known = self._known(there)
        self._needed = (named.changes, known)
        return there, known

    def _unread_since(self, known: Known) -> int:
        """Return when the last one of the files that can't be read was found so.

        What was written after that is none of the files to which it leads.
        """
        assert self._noticed is not None
        return max(self._noticed.unread[one] for one in known.unread)

    def _known(self, there: Collection[str]) -> Known:
        """Return what somebody may need; tell whose needs can't be known."""
        named = self._named
        dead = apart(set(named.purged.values()), set(named.homes()))
        standing = {
            place: home
            for place, home in named.homes_of.items()
            if home not in dead and self._is_there(place, there)
        }
        standing |= dict.fromkeys(sorted(named.unclear - standing.keys()), "")
        heads = {head.place for head in named.heads.by_name.values()}
        known = self._reached.look(standing, there, heads)
        if known.unread:
            place, error = next(iter(known.unread.items()))
            names = [
                format_table_id(name)
                for name, head in named.heads.by_name.items()
                if head.home in known.homes
            ]
            logger.warning(
                "what %s needs is not known, so it is left alone, and so is what was written"
                " before that was noticed: %d files cannot be read, the first one is %s: %s",
                ", ".join(sorted(names)[:NAMES_MAX]) or "a table that was dropped",
                *(len(known.unread), place, error),
            )
        return known

    def _abandoned(self, unnamed: Iterable[str]) -> Iterator[Orphan]:
        """Yield metadata files that no outcome names, unless they belong to another log's table."""
        heads = self._named.heads.by_name.values()
        foreign = [head.home for head in heads if not head.is_written]
        previous = self._reached.files
        for place in unnamed:
            is_needed = as_hashed(place) in previous
            if not is_needed and not any(place.startswith(f"{home}/") for home in foreign):
                yield Orphan(place, "no outcome names it", Why.ABANDONED)

    def _remains(self, known: Known) -> Iterator[Orphan]:
        """Yield what is left of tables that were dropped with their files."""
        files, named = self._files, self._named
        for last, home in list(named.purged.items()):
            # Once more at the end: a purge may just have moved it back.
            place = next((one for one in (last, last + GONE, last) if files.exists(one)), "")
            if not place:
                # Nothing is left of it, and a log has ever more of those.
                del named.purged[last]
                named.missing.add(last)
            elif named.heads.within(home) is None:
                yield from self._left(place, last, home, known)

    def _left(self, place: str, last: str, home: str, known: Known) -> Iterator[Orphan]:
        """Yield the files of a purged table that are there and that no other table needs.

        Its own last metadata file is now at `place`. What is not in its location may be anybody's.
        """
        reason = "its table was dropped with its files"
        try:
            table = read_table(self._files.read(place), last)
            found = contents(replace(table, metadata_location=place), self._files)
            older = older_metadata(table, last, self._files)
            found.previous.update(dict.fromkeys(one + GONE for one in older))
        except (OSError, Invalid) as error:
            yield Orphan(place, f"{reason}, but cannot be read: {error}", Why.DROPPED)
            return
        for layer in found.layers():
            is_kept = False
            for one in layer:
                is_own = below(one, home) is not None
                is_needed = known.has(one.removesuffix(GONE))
                is_kept = is_kept or (is_own and is_needed)
                if is_needed or not self._files.exists(one):
                    continue
                if is_own or not any(below(one, at) is not None for at in self._named.homes()):
                    yield Orphan(one, reason, Why.DROPPED)
            if is_kept:
                return  # what leads to it stays, so that it is found once nobody needs it

    def _fell_out(self, known: Known) -> Iterator[Orphan]:
        """Yield old metadata files of tables that share their locations with no other."""
        heads, ended = self._named.heads, self._named.ended
        for name, head in heads.by_name.items():
            if not head.is_written or head.home in known.homes:
                continue
            try:
                table = self._reached.table(head.place)
            except (OSError, Invalid) as error:
                logger.warning("%s cannot be read: %s", head.place, error)
                continue
            try:
                found = list(superseded(table, self._files))
            except UnlistableError:
                continue  # this was told
            if found and heads.within(head.home, besides=name) is not None:
                continue
            for place, since_ms in found:
                location = normalize_location(place)
                if location in ended:
                    continue  # a table that had this place before can come back
                yield Orphan(
                    location=location,
                    reason="it fell out of its table's metadata log",
                    why=Why.EXPIRED,
                    since_ms=since_ms,
                    table=name,
                    properties=table.properties,
                )

    def _unreachable(
        self, there: Collection[str], known: Known, shared: Collection[str]
    ) -> Iterator[Orphan]:
        """Yield files of existing tables to which none of their metadata refers.

        But not of tables in whose locations another log has written one of the metadata files that
        are `shared`.
        """
        unknown = sorted(place for place in there if not known.has(place))
        before, now_ms = self._noticed or self._notes.read(), time.time_ns() // 1_000_000
        unread = {one: before.unread.get(one, now_ms) for one in known.unread}
        noticed: dict[str, int] = {}
        self._noticed = Noticed(noticed, unread)
        for name, head in self._named.heads.by_name.items():
            # What is registered from elsewhere, and wasn't changed since, may have another owner.
            if not head.is_written or not self._is_there(head.place, there):
                continue
            if head.home in known.homes or any(one.startswith(f"{head.home}/") for one in shared):
                continue
            table = self._reached.table(head.place)
            strays = [
                one
                for folder in ("data", "metadata")
                for one in starting(unknown, f"{head.home}/{folder}/")
                if not _METADATA.fullmatch(one)
            ]
            if strays and self._reached.is_whole(table, there):
                for one in strays:
                    noticed[one] = before.stray_since(one, now_ms)
                    yield Orphan(
                        location=one,
                        reason="no snapshot leads to it",
                        why=Why.ABANDONED,
                        noticed_ms=noticed[one],
                        table=name,
                        properties=table.properties,
                    )

    def _is_there(self, place: str, there: Collection[str]) -> bool:
        """Return True if a metadata file is there; one that was missed before is on the list."""
        if place in there:
            return True
        missing = self._named.missing
        if place not in missing and self._files.exists(place):
            return True
        missing.add(place)
        return False


def superseded(table: IcebergTable, files: IcebergFiles) -> Iterator[tuple[str, int]]:
    """Yield the log's own metadata files that are older than all that a table lists.

    Only if its properties allow it, and only in its own location. Each comes with the time in
    milliseconds at which the next one replaced it: until then its snapshots were the table's.
    """
    if table.properties.get(DELETE_AFTER_COMMIT, "").lower() != "true":
        return
    listed = [str(entry.value["metadata-file"]) for entry in table.metadata_log]
    listed.append(table.metadata_location)
    versions = [_version(place) for place in listed if OURS.fullmatch(place)]
    for folder in sorted({place.rpartition("/")[0] for place in listed}):
        if not versions or below(folder, table.location) is None:
            continue
        ours = (f"{folder}/{name}" for name in files.names(folder))
        places = sorted((one for one in ours if OURS.fullmatch(one)), key=_version)
        if not places or _version(places[0]) >= min(versions):
            continue
        written = {one.path.rpartition("/")[2]: one.modified_ms for one in files.files(folder)}
        for place, newer in zip_longest(places, places[1:]):
            since_ms = written.get(newer.rpartition("/")[2], 0) if newer else 0
            if _version(place) < min(versions):
                yield place, since_ms or table.last_updated_ms


def _version(place: str) -> int:
    return int(place.rpartition("/")[2].partition("-")[0])
