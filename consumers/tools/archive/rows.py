"""Rows in archived transactions: which are applied, and how those are taken out that were erased.

A segment is never edited. It gets a new file of transactions, the proof is replaced by one that
names it, and then the old file goes: killed at any moment, the proof names files that are there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from commitlog.adapters.log_records import to_submitted
from commitlog.codecs.payloads import inline_rows, without_rows
from commitlog.model.operations import (
    ApplyRows,
    DeregisterTable,
    DropNamespace,
    DropTable,
    WriteRows,
)
from commitlog.model.records import Outcome, Transaction, is_commit
from commitlog.model.table import TableId
from commitlog.ports import RawRecord
from consumers.tools.archive.files import (
    check_segment,
    outcomes_of,
    read_file,
    transactions_in,
    write_file,
)
from consumers.tools.archive.proof import Archive, DecidedSegment

_ENDS = frozenset({DropTable.__name__, DeregisterTable.__name__})

Erased = Mapping[int, Collection[int]]
"""Positions of transactions, each with the operations whose rows were erased."""


class _Write(NamedTuple):
    segment: int
    incarnation: str
    sequence: int


def applied_segments(
    archive: Archive, pending: Sequence[DecidedSegment]
) -> Sequence[DecidedSegment]:
    """Return the first of `pending`, up to one with a write that the archive sees not applied.

    A row writer reads what it applies from the topic, so that has to stay.
    """
    if not pending:
        return ()
    through: dict[str, int] = {}
    names: dict[str, TableId] = {}
    waiting: list[_Write] = []
    for number, segment in enumerate(archive.segments[archive.segments.index(pending[0]) :]):
        for outcome, transaction in decided(archive, segment):
            if not is_commit(outcome):
                continue
            for operation, result in zip(transaction.operations, outcome.results, strict=False):
                if isinstance(operation, WriteRows):
                    waiting.append(_Write(number, result.incarnation, outcome.sequence))
                elif isinstance(operation, ApplyRows):
                    through[result.incarnation] = operation.through
            for result in outcome.results:
                names[result.incarnation] = result.table
                if result.operation in _ENDS:
                    through[result.incarnation] = outcome.sequence
                elif result.operation == DropNamespace.__name__:  # its result names no table
                    depth = len(result.table)
                    inside = (i for i, name in names.items() if name[:depth] == result.table)
                    through.update(dict.fromkeys(inside, outcome.sequence))
    late = [w.segment for w in waiting if through.get(w.incarnation, 0) < w.sequence]
    first = archive.segments.index(pending[0]) + min(late, default=len(archive.segments))
    return [one for one in pending if archive.segments.index(one) < first]


def take_out(archive: Archive, erased: Erased) -> tuple[Archive, int]:
    """Take erased rows out of the archive's files; return it as saved, and how many writes had any.

    Segments that were given up before are to be given up again, since the log has their digests.
    """
    count = 0
    for segment in archive.segments:
        here = _of(segment, erased)
        if not here:
            continue
        check_segment(archive.folder, segment)
        records, taken = _without(archive, segment, here)
        if not taken:
            continue
        name = _next_name(segment.transactions.name)
        file = write_file(archive.folder, name, records)
        changed = replace(segment, transactions=file, given_up=False)
        archive = archive.with_changed(segment, changed)
        check_segment(archive.folder, changed)
        count += taken
    remove_unnamed(archive)
    return archive, count


def has_rows(archive: Archive, erased: Erased) -> int:
    """Return how many writes still have rows in the archive that were erased."""
    return sum(
        _without(archive, segment, here)[1]
        for segment in archive.segments
        if (here := _of(segment, erased))
    )


def decided(archive: Archive, segment: DecidedSegment) -> Iterator[tuple[Outcome, Transaction]]:
    """Yield the outcomes of a segment with their transactions, in the order of the chain."""
    found = transactions_in(archive.folder, segment)
    for outcome in outcomes_of(archive.folder, segment):
        submitted = found.get(outcome.transaction_offset)
        if submitted is not None and isinstance(submitted.record, Transaction):
            yield outcome, submitted.record


def remove_unnamed(archive: Archive) -> None:
    """Remove files that no segment names: what was replaced, and what a killed run has left."""
    named = {f.name for s in archive.segments for f in (s.outcomes, s.transactions)}
    # Not by `glob`, which takes a folder that it can't list for an empty one.
    for name in os.listdir(archive.folder):
        if name.endswith((".parquet", ".parquet.tmp")) and name not in named:
            (archive.folder / name).unlink()


def _without(
    archive: Archive, segment: DecidedSegment, erased: Erased
) -> tuple[list[RawRecord], int]:
    """Return a segment's transactions without erased rows, and how many writes had any."""
    at = {o.transaction_offset: erased[o.sequence] for o in outcomes_of(archive.folder, segment)
          if o.sequence in erased}  # fmt: skip
    taken = 0
    records: list[RawRecord] = []
    for raw in read_file(archive.folder, segment.transactions):
        operations = at.get(raw.offset, ())
        submitted = to_submitted(0, *raw) if operations else None
        record = submitted.record if submitted is not None else None
        value = raw.value
        if isinstance(record, Transaction) and value is not None:
            inline = inline_rows(record)
            had = sum(inline.get(number) is not None for number in operations)
            taken += had
            value = without_rows(value, record, operations) if had else value
        records.append(raw._replace(value=value))
    return records, taken


def _of(segment: DecidedSegment, erased: Erased) -> Erased:
    """Return what of `erased` is in a segment."""
    first, last = segment.first_sequence, segment.end.sequence
    return {sequence: ops for sequence, ops in erased.items() if first <= sequence <= last}


def _next_name(name: str) -> str:
    """Return the name of a file that replaces this one: `A-B.transactions.2.parquet`."""
    parts = Path(name).name.split(".")
    number = int(parts[2]) + 1 if parts[2].isdigit() else 2
    return ".".join([*parts[:2], str(number), "parquet"])
