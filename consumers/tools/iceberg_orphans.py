"""Files of Iceberg tables that nothing leads to: named by no outcome or snapshot; or not purged.

A metadata file is written before its outcome, under a name that follows from the transaction. If
the leader died in between, the next one decides the transaction again and the file gets its
outcome, so a file is an orphan only as of the log's present end. A table that was dropped with its
files keeps its last metadata file until all others are gone; what that still leads to is left.

Of a table that stands, each metadata file that is there leads to snapshots, of the past too, and
these to manifests and data. What else lies in its `data` and `metadata` was written for a commit
that was refused, or that nobody made; or its snapshots are gone with the metadata that had them.
What somebody else had put in the way of the log's own files lies beside them, under another name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.metadata_references import read_table
from commitlog.core.log.chain import Chain
from commitlog.core.tables.lance_tables import normalize_location
from commitlog.errors import Unavailable
from commitlog.model.records import Outcome, Status
from commitlog.ports import Log
from consumers.partition.iceberg_files import IcebergFiles, RemovableFiles, contents
from consumers.partition.in_the_way import MARK
from consumers.tools.file_ledger import Why

SILENCE_SECONDS = 30.0
OURS = re.compile(
    r"(?P<folder>.*)/\d{5,}-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"(\.gz)?\.metadata\.json"
)
"""The names that the log gives (uuid version 5); others' metadata files are not looked at."""
_ASIDE = re.compile(rf".*{re.escape(MARK)}[0-9a-f]{{8}}(/.*)?")
_METADATA = re.compile(r".*\.metadata\.json(\.gz)?(\.gone)?|" + _ASIDE.pattern)
ENDINGS = frozenset({"DropTable", "DropNamespace"})
GONE = ".gone"
"""Ends the name of a dropped table's last metadata file once its files go."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A file that nobody needs."""

    location: str
    reason: str
    why: Why


@dataclass(slots=True)
class _Named:
    """The metadata files that committed outcomes name."""

    all: dict[str, None]
    """In the order of the log."""
    ended: set[str]
    """Those of which the table was dropped, whether with its files or not."""
    purged: dict[str, None]
    """The last ones of tables that were dropped with their files."""


def find_orphans(log: Log, tables_root: str) -> list[Orphan]:
    """Compare the files below the tables root with the log's outcomes, to their present ends."""
    files = IcebergFiles(tables_root)
    # In this order: a file that is there now has its outcome later, if it gets one.
    there, aside, everything = [], [], list(files.walk())
    for place in everything:
        if _ASIDE.fullmatch(place):
            aside.append(normalize_location(place))
        elif OURS.fullmatch(place):
            there.append(normalize_location(place))
    named = _Named({}, set(), {})
    for partition in range(log.partitions()):
        _read_outcomes(log, partition, named)
    found = [
        Orphan(place, "no outcome names it", Why.ABANDONED)
        for place in sorted(there)
        if place not in named.all
    ]
    for last in named.purged:
        found += _left(files, last)
    found += _unreachable(files, named, everything)
    was_in_the_way = "it was in the way of a file of the log"
    return found + [Orphan(place, was_in_the_way, Why.FOREIGN) for place in aside]


def _unreachable(files: IcebergFiles, named: _Named, there: Iterable[str]) -> list[Orphan]:
    """Return files of the tables that stand to which none of their metadata leads.

    None, if something can't be read: nobody knows then what it leads to.
    """
    newest: dict[str, IcebergTable] = {}
    found = RemovableFiles()
    for place in named.all:
        if not files.exists(place):
            continue
        try:
            table = files.table(place)
        except (OSError, Invalid):
            return []
        newest[table.uuid] = table
        contents(table, files, found)
    if found.unreadable:
        return []
    known = {normalize_location(one) for layer in found.layers() for one in layer}
    # What is registered from elsewhere, and wasn't changed since, may have another owner.
    homes = {
        normalize_location(table.location)
        for table in newest.values()
        if (place := normalize_location(table.metadata_location)) not in named.ended
        and OURS.fullmatch(place)
        and _is_whole(table, files)
    }
    judged = tuple(f"{home}/{folder}/" for home in homes for folder in ("data", "metadata"))
    return [
        Orphan(place, "no snapshot leads to it", Why.ABANDONED)
        for place in sorted(normalize_location(one) for one in there)
        if place.startswith(judged) and place not in known and not _METADATA.fullmatch(place)
    ]


def _is_whole(table: IcebergTable, files: IcebergFiles) -> bool:
    """Return True if all is there that leads to a table's data."""
    found = contents(table, files)
    return all(files.exists(one) for one in (*found.manifest_lists, *found.manifests))


def _read_outcomes(log: Log, partition: int, named: _Named) -> None:
    reader = log.read_outcomes(partition, 0)
    chain = Chain()
    try:
        end = reader.end_offset()
        heard = time.monotonic()
        while reader.position() < end:
            records = reader.poll(timeout_seconds=0.2)
            if records:
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_SECONDS:
                raise Unavailable(f"partition {partition}: no record for {SILENCE_SECONDS:.0f} s")
            for answered in records:
                record = answered.record
                is_valid = not chain.admit(record)
                if is_valid and isinstance(record, Outcome):
                    _take(record, named)
    finally:
        reader.close()


def _take(outcome: Outcome, named: _Named) -> None:
    if outcome.status is not Status.COMMITTED or outcome.answers is not None:
        return
    for result in outcome.results:
        if not result.metadata_location:
            continue
        place = normalize_location(result.metadata_location)
        named.all[place] = None
        named.ended.discard(place)
        if result.operation in {*ENDINGS, "DeregisterTable"}:
            named.ended.add(place)
        if result.operation in ENDINGS:
            named.purged[place] = None
        else:
            named.purged.pop(place, None)


def _left(files: IcebergFiles, last: str) -> list[Orphan]:
    place = next((one for one in (last, last + GONE) if files.exists(one)), "")
    if not place:
        return []
    reason = "its table was dropped with its files"
    try:
        table = read_table(files.read(place), last)
        found = contents(replace(table, metadata_location=place), files)
    except (OSError, Invalid) as error:
        return [Orphan(place, f"{reason}, but cannot be read: {error}", Why.DROPPED)]
    places = dict.fromkeys(place for layer in found.layers() for place in layer)
    return [Orphan(place, reason, Why.DROPPED) for place in places if files.exists(place)]
