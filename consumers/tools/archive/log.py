"""A log whose old transactions are in an archive: for its readers nothing is missing.

Transactions before the archive's end come from the archive, all later ones from the topic; the
outcomes topic is whole and stays the truth about both. A process that runs for long finds an
archive that was made after it started.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

from commitlog.adapters.log_records import to_submitted
from commitlog.adapters.reading import ReadsThrough
from commitlog.errors import Unavailable
from commitlog.model.records import Submitted
from commitlog.ports import ArchivableLog, RawRecord, Reader
from consumers.tools.archive.proof import PROOF, Archive, DecidedSegment

FOLDER = "archive"
"""In a root."""


class ArchivedLog:
    """A log and its archive, as one log; see `commitlog.ports.Log`."""

    def __init__(
        self, log: ArchivableLog, folder: Path, archives: Mapping[int, Archive] | None = None
    ) -> None:
        """Take a log, and the folder of its archive, or what of it is open."""
        self._log = log
        self._folder = folder
        self._archives = dict(archives or {})
        self._read_at: dict[int, tuple[int, ...]] = {}
        """By partition: which proof was read."""

    def __getattr__(self, name: str) -> Any:
        # All that isn't said here is the log's own.
        return getattr(self._log, name)

    def archive(self, partition: int) -> Archive:
        """Return a partition's archive; WrongLog if it is another log's."""
        found = self._archives.get(partition)
        written = self._written_at(partition)
        # Erasure replaces files while others read.
        if found is None or written != self._read_at.get(partition, written):
            identity, genesis = self._log.identity(), self._log.genesis(partition)
            found = self._archives[partition] = Archive.open(self._folder, identity, genesis)
            self._read_at[partition] = written
        return found

    def _written_at(self, partition: int) -> tuple[int, ...]:
        """Return what tells a proof from the next: some file systems count time in steps."""
        try:
            found = (self._folder / str(partition) / PROOF).stat()
        except OSError as error:
            if why := self.why_unread(partition):
                raise Unavailable(why) from error
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino

    @property
    def has_archive(self) -> bool:
        """Whether there is an archive by now; Unavailable if nobody can tell."""
        return bool(self._archives) or any(map(self._written_at, range(self._log.partitions())))

    def why_unread(self, partition: int) -> str:
        """Say why a partition's archive can't be looked into; empty if it can, or there is none."""
        try:
            os.listdir(self._folder)
            (self._folder / str(partition) / PROOF).stat()
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"the archive {self._folder} cannot be read: {error.strerror}"
        return ""

    def archived_to(self, partition: int) -> int:
        """Return the offset before which all transactions are in the archive by now.

        Raises Unavailable if nobody can tell.
        """
        if partition not in self._archives and not self._written_at(partition):
            return 0
        return self.archive(partition).end.transactions_offset

    def read_transactions(
        self, partition: int, offset: int = 0, *, patient: float = 0.0
    ) -> Reader[Submitted]:
        """Read transactions from an offset on, wherever they are."""
        topic = partial(self._log.read_transactions, partition, patient=patient)
        return ArchivedTransactions(self, topic, partition, offset)


class ArchivedTransactions(ReadsThrough):
    """Reads the topic, and from the archive what the topic doesn't hold; see `ports.Reader`.

    Records may be archived and given up at any time, so the archive is looked for at each gap.
    """

    def __init__(
        self,
        log: ArchivedLog,
        open_topic: Callable[[int], Reader[Submitted]],
        partition: int,
        offset: int,
    ) -> None:
        self._log = log
        self._open_topic = open_topic
        self._partition = partition
        self._position = offset
        self._archived: Iterator[RawRecord] | None = None
        # Whether one that can't be read is needed shows at the first gap.
        self._end = 0 if log.why_unread(partition) else log.archived_to(partition)
        """Where `_archived` ends."""
        if offset < self._end:
            self._archived = transactions_of(log.archive(partition), offset)
        self._below = open_topic(max(offset, self._end))

    def poll(self, *, records_max: int = 500, timeout_seconds: float = 0.1) -> list[Submitted]:
        """Return what is there."""
        if self._archived is not None:
            return self._from_archive(self._archived, records_max)
        found = self._below.poll(records_max=records_max, timeout_seconds=timeout_seconds)
        start, self._position = self._position, max(self._position, self._below.position())
        missing = _first_missing(found, start, self._position)
        # Most gaps are tombstones, or what no archive has.
        if missing == self._position or missing >= self._log.archived_to(self._partition):
            return found
        archive = self._log.archive(self._partition)
        self._position, self._end = missing, archive.end.transactions_offset
        self._archived = transactions_of(archive, missing)
        self._below.close()
        self._below = self._open_topic(self._end)
        before = [submitted for submitted in found if submitted.offset < missing]
        return before or self._from_archive(self._archived, records_max)

    def _from_archive(self, archived: Iterator[RawRecord], records_max: int) -> list[Submitted]:
        found: list[Submitted] = []
        for raw in islice(archived, records_max):
            if raw.offset >= self._end:
                break  # decided ahead of others; the topic still has it
            submitted = to_submitted(self._partition, *raw)
            assert submitted is not None
            found.append(submitted)
        if found:
            self._position = found[-1].offset + 1
        if not found or self._position >= self._end:
            self._position, self._archived = self._end, None
        return found

    def position(self) -> int:
        """Return the next offset to be read."""
        return self._position

    def seek(self, offset: int) -> None:
        """Continue from another offset."""
        archive = self._log.archive(self._partition) if offset < self._end else None
        self._archived = None if archive is None else transactions_of(archive, offset)
        self._below.seek(max(offset, self._end))
        self._position = offset


def _first_missing(found: list[Submitted], start: int, end: int) -> int:
    """Return the first offset from `start` on that records don't have, `end` if there is none."""
    if len(found) == end - start:
        return end
    present = enumerate((submitted.offset for submitted in found), start)
    return next((at for at, offset in present if at != offset), start + len(found))


def transactions_of(archive: Archive, offset: int) -> Iterator[RawRecord]:
    """Yield archived transactions from an offset on, by offset.

    Segments follow each other in the order of outcomes, so their offsets may overlap a little.
    """
    # Loaded here: reading the topic alone needs no Parquet.
    from consumers.tools.archive.files import read_file

    def read(segment: DecidedSegment) -> Iterator[RawRecord]:
        records = read_file(archive.folder, segment.transactions)
        return (record for record in records if record.offset >= offset)

    waiting = [s for s in archive.segments if s.transactions.last_offset >= offset]
    waiting.sort(key=lambda segment: segment.transactions.first_offset, reverse=True)
    heads: list[tuple[int, int, RawRecord, Iterator[RawRecord]]] = []
    number = 0
    while waiting or heads:
        while waiting and (not heads or waiting[-1].transactions.first_offset <= heads[0][0]):
            records = read(waiting.pop())
            number += 1
            for first in islice(records, 1):
                heapq.heappush(heads, (first.offset, number, first, records))
        if not heads:
            continue
        _, order, record, records = heapq.heappop(heads)
        yield record
        for following in islice(records, 1):
            heapq.heappush(heads, (following.offset, order, following, records))


def with_archive(log: ArchivableLog, root: Path | None) -> ArchivableLog:
    """Return the log together with the archive in a root, also one that is made later."""
    return log if root is None else cast(ArchivableLog, ArchivedLog(log, root / FOLDER))
