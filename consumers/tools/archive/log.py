"""A log of which old transactions lie in an archive: for its readers nothing is missing.

Transactions before the archive's end come from the archive, all later ones from the topic; the
outcomes topic is whole and stays the truth about both.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, cast

from commitlog.adapters.log_records import to_submitted
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

    def __getattr__(self, name: str) -> Any:
        # All that isn't said here is the log's own.
        return getattr(self._log, name)

    def archive(self, partition: int) -> Archive:
        """Return a partition's archive; WrongLog if it is another log's."""
        found = self._archives.get(partition)
        if found is None:
            identity, genesis = self._log.identity(), self._log.genesis(partition)
            found = self._archives[partition] = Archive.open(self._folder, identity, genesis)
        return found

    def read_transactions(
        self, partition: int, offset: int = 0, *, patient: bool = False
    ) -> Reader[Submitted]:
        """Read transactions from an offset on, wherever they are."""
        archive = self.archive(partition)
        if offset >= archive.end.transactions_offset:
            return self._log.read_transactions(partition, offset, patient=patient)
        return ArchivedTransactions(self._log, archive, partition, offset, patient=patient)


class ArchivedTransactions:
    """Reads an archive's transactions, then the topic's; see `commitlog.ports.Reader`."""

    def __init__(
        self, log: ArchivableLog, archive: Archive, partition: int, offset: int, *, patient: bool
    ) -> None:
        """Start at an offset before the archive's end."""
        self._partition = partition
        self._position = offset
        self._end = archive.end.transactions_offset
        self._archived = transactions_of(archive, offset)
        self._topic = log.read_transactions(partition, self._end, patient=patient)

    def poll(self, *, records_max: int = 500, timeout_seconds: float = 0.1) -> list[Submitted]:
        """Return what is there."""
        if self._position >= self._end:
            return self._topic.poll(records_max=records_max, timeout_seconds=timeout_seconds)
        found: list[Submitted] = []
        for raw in islice(self._archived, records_max):
            if raw.offset >= self._end:
                break  # decided ahead of others; the topic still has it
            submitted = to_submitted(self._partition, *raw)
            assert submitted is not None
            found.append(submitted)
        self._position = found[-1].offset + 1 if found else self._end
        return found

    def position(self) -> int:
        """Return the next offset to be read."""
        return self._position if self._position < self._end else self._topic.position()

    def end_offset(self, timeout_seconds: float = 10) -> int:
        """Ask the topic where it ends now."""
        return self._topic.end_offset(timeout_seconds)

    def pause(self) -> None:
        """Fetch nothing more until the next `poll`."""
        self._topic.pause()

    def close(self) -> None:
        """Let go of the connection."""
        self._topic.close()


def transactions_of(archive: Archive, offset: int) -> Iterator[RawRecord]:
    """Yield archived transactions from an offset on, by offset.

    Segments follow each other in the order of outcomes, so their offsets may overlap a little.
    """
    # Loaded here: who only reads the topic needs no Parquet.
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
    """Return the log together with the archive in a root, if there is one."""
    folder = root / FOLDER if root is not None else None
    if folder is None or not any(folder.glob(f"*/{PROOF}")):
        return log
    return cast(ArchivableLog, ArchivedLog(log, folder))
