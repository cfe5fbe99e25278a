"""Files of Iceberg tables that nothing leads to: written, but named by no outcome; or not purged.

A metadata file is written before its outcome, under a name that follows from the transaction. If
the leader died in between, the next one decides the transaction again and the file gets its
outcome, so a file is an orphan only as of the log's present end. A table that was dropped with its
files keeps its last metadata file until all others are gone; what that still leads to is left.
What somebody else had put in the way of the log's own files lies beside them, under another name.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace

from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.metadata_references import read_table
from commitlog.core.log.chain import Chain
from commitlog.core.tables.lance_tables import normalize_location
from commitlog.errors import Unavailable
from commitlog.model.records import Outcome, Status
from commitlog.ports import Log
from consumers.partition.iceberg_files import IcebergFiles, contents
from consumers.partition.in_the_way import MARK
from consumers.tools.file_ledger import Why

SILENCE_SECONDS = 30.0
OURS = re.compile(
    r"(?P<folder>.*)/\d{5,}-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"(\.gz)?\.metadata\.json"
)
"""The names that the log gives (uuid version 5); others' metadata files are not looked at."""
_ASIDE = re.compile(rf".*{re.escape(MARK)}[0-9a-f]{{8}}(/.*)?")
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

    all: set[str]
    purged: dict[str, None]
    """The last ones of tables that were dropped with their files."""


def find_orphans(log: Log, tables_root: str) -> list[Orphan]:
    """Compare the files below the tables root with the log's outcomes, to their present ends."""
    files = IcebergFiles(tables_root)
    # In this order: a file that is there now has its outcome later, if it gets one.
    there, aside = [], []
    for place in files.walk():
        if _ASIDE.fullmatch(place):
            aside.append(normalize_location(place))
        elif OURS.fullmatch(place):
            there.append(normalize_location(place))
    named = _Named(set(), {})
    for partition in range(log.partitions()):
        _read_outcomes(log, partition, named)
    found = [
        Orphan(place, "no outcome names it", Why.ABANDONED)
        for place in sorted(there)
        if place not in named.all
    ]
    for last in named.purged:
        found += _left(files, last)
    was_in_the_way = "it was in the way of a file of the log"
    return found + [Orphan(place, was_in_the_way, Why.FOREIGN) for place in aside]


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
        named.all.add(place)
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
