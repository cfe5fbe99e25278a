"""What archived segments have of rows: noted, since a segment's file never changes.

The notes are no part of the proof. Without them each file is read once more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from commitlog.codecs.payloads import inline_rows
from commitlog.model.operations import ApplyRows
from commitlog.model.records import Transaction, is_commit
from consumers.partition.files.folders import DiskFolder
from consumers.tools.archive.proof import Archive, DecidedSegment
from consumers.tools.archive.rows import decided
from consumers.tools.erasure.acts import Position

NOTES = "rows.json"
_FORMAT = 1


@dataclass(slots=True)
class SegmentRows:
    """What one segment has of rows."""

    newest_ms: int = 0
    """The time of its last outcome."""
    held: dict[str, int] = field(default_factory=dict)
    """How many writes have rows in it, by incarnation."""
    refused: list[Position] = field(default_factory=list)
    """Writes that its transactions refused instead of applying them."""
    settled: list[str] = field(default_factory=list)
    """Incarnations whose rows in it all stay."""


class RowNotes:
    """Notes of one partition's archive."""

    def __init__(self, archive: Archive) -> None:
        """Read the notes, and the segments that have none."""
        self._archive = archive
        known = self._known()
        self.segments: Mapping[str, SegmentRows] = {
            one.transactions.sha256: known.get(one.transactions.sha256) or _read(archive, one)
            for one in archive.segments
        }
        """By the digest of the file of transactions, in the order of the log."""

    def of(self, segment: DecidedSegment) -> SegmentRows:
        """Return what a segment has."""
        return self.segments[segment.transactions.sha256]

    def refused(self) -> set[Position]:
        """Return all writes that were refused when they were to be applied."""
        return {position for one in self.segments.values() for position in one.refused}

    def save(self) -> None:
        """Keep the notes."""
        body = {
            "format": _FORMAT,
            "segments": {
                digest: [one.newest_ms, one.held, one.refused, one.settled]
                for digest, one in self.segments.items()
            },
        }
        DiskFolder(self._archive.folder).replace(NOTES, json.dumps(body).encode())

    def _known(self) -> dict[str, SegmentRows]:
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            body = json.loads(DiskFolder(self._archive.folder).read(NOTES))
            if body["format"] == _FORMAT:
                return {digest: _noted(*one) for digest, one in body["segments"].items()}
        return {}


def held_rows(archive: Archive, segment: DecidedSegment) -> Iterator[tuple[Position, str]]:
    """Yield the writes whose rows a segment has, each with its table's incarnation."""
    for outcome, transaction in decided(archive, segment):
        if is_commit(outcome):
            for number, rows in inline_rows(transaction).items():
                if rows is not None:
                    incarnation = outcome.results[number].incarnation
                    yield Position(outcome.sequence, number), incarnation


def _noted(newest_ms: int, held: dict[str, int], refused: Any, settled: list[str]) -> SegmentRows:
    return SegmentRows(newest_ms, held, [Position(*one) for one in refused], settled)


def _read(archive: Archive, segment: DecidedSegment) -> SegmentRows:
    found = SegmentRows()
    for outcome, transaction in decided(archive, segment):
        found.newest_ms = max(found.newest_ms, outcome.time_ms)
        if is_commit(outcome):
            found.refused += _refused(transaction)
    for _, incarnation in held_rows(archive, segment):
        found.held[incarnation] = found.held.get(incarnation, 0) + 1
    return found


def _refused(transaction: Transaction) -> list[Position]:
    return [
        Position(write.sequence, write.operation)
        for operation in transaction.operations
        if isinstance(operation, ApplyRows)
        for write in operation.writes
        if write.refused
    ]
