"""The archive in a backup, as of where a restored log ends.

Segments up to there stay: the log says of some of them that it gave their transactions up. Of the
later ones, what was decided by then goes back into the topic, where it may be missing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from commitlog.ports import Log, RawRecord
from consumers.tools.archive.log import transactions_of
from consumers.tools.archive.proof import Archive
from consumers.tools.archive.rows import remove_unnamed
from consumers.tools.backup.cut import RestorePoint


def archives_of(folder: Path, ends: Mapping[int, RestorePoint]) -> dict[int, Archive]:
    """Return the archives of those partitions that have one; CorruptLog if one is damaged."""
    found = {partition: Archive.as_written(folder, partition) for partition in ends}
    return {partition: one for partition, one in found.items() if one is not None}


def with_archived(
    topic: Iterable[RawRecord], archive: Archive | None, end: RestorePoint
) -> Iterator[RawRecord]:
    """Yield a topic's records, and what it lacks of those that only later segments have."""
    later = _segments(archive, end, is_later=True)
    archived = () if later is None else transactions_of(later, 0)
    decided = (one for one in archived if one.offset in end.decided)
    last = -1
    # Of two with one offset the topic's comes first.
    for raw in heapq.merge(topic, decided, key=lambda one: one.offset):
        if raw.offset != last:
            yield raw
        last = raw.offset


def missing_of(offsets: set[int], archive: Archive | None, end: RestorePoint) -> set[int]:
    """Return the decided transactions that neither the topic nor the archive has."""
    missing = end.decided - offsets
    stays = _segments(archive, end, is_later=False)
    if missing and stays is not None:
        missing -= {one.offset for one in transactions_of(stays, 0)}
    return missing


def take_over(archives: Mapping[int, Archive], log: Log, ends: Mapping[int, RestorePoint]) -> None:
    """Make the archives those of the restored log, up to where it ends."""
    for partition, archive in archives.items():
        stays = _segments(archive, ends[partition], is_later=False)
        assert stays is not None
        remove_unnamed(stays.of_log(log.identity(), log.genesis(partition)))


def _segments(archive: Archive | None, end: RestorePoint, *, is_later: bool) -> Archive | None:
    """Return an archive with its segments up to an end, or its later ones, alone."""
    if archive is None:
        return None
    chosen = [one for one in archive.segments if (one.end.sequence > end.sequence) is is_later]
    return replace(archive, segments=tuple(chosen))
