"""Broken archives, older programs and row writers: simulation has to notice each of them, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from commitlog.client.accepted import row_reading
from commitlog.client.accepted.row_reading import read_write
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.row_groups import Group, MergedGroup, RowsUnusable, Write
from commitlog.core.decisions import rejected
from commitlog.core.draft import Draft
from commitlog.core.log.replica import Replica
from commitlog.core.partition import effects
from commitlog.core.rows.deciding import _result
from commitlog.errors import UnsupportedFormat
from commitlog.model.limits import Rules
from commitlog.model.operations import ApplyRows, WriteRows
from commitlog.model.records import Code, ProtocolVersion
from commitlog.ports import RawRecord
from consumers.tools.archive import writer
from consumers.tools.archive.files import write_file
from consumers.tools.archive.proof import ArchivedFile, SegmentEnd

Break = Callable[[], AbstractContextManager[Any]]

_position = writer._position


def _behind_the_undecided(replica: Replica) -> SegmentEnd:
    """End behind all that was read, and not before the first that has no outcome."""
    end = _position(replica)
    return replace(end, transactions_offset=replica.transactions_position, decided_beyond=())


def _without_the_last(folder: Path, name: str, records: Sequence[RawRecord]) -> ArchivedFile:
    whole = records[:-1] if "transactions" in name else records
    return write_file(folder, name, whole)


def _unproven() -> AbstractContextManager[Any]:
    stack = ExitStack()
    stack.enter_context(mock.patch("tests.simulation.archivist.write_file", _without_the_last))
    stack.enter_context(mock.patch("consumers.tools.archive.writer.check_segment"))
    return stack


def _as_before(rules: Rules, record: ProtocolVersion, sequence: int) -> Rules:
    """Go on by the rules so far if the program doesn't know the protocol."""
    try:
        return effects.rules_after(rules, record, sequence)
    except UnsupportedFormat:
        return rules


def _refused_if_unknown(rules: Rules, record: ProtocolVersion, sequence: int) -> Rules:
    """Refuse a protocol by an outcome, as if it were wrong."""
    try:
        return effects.rules_after(rules, record, sequence)
    except UnsupportedFormat as error:
        raise rejected(Code.INVALID_OPERATION, "rules_cannot_follow") from error


def _any_range(draft: Draft, operation: ApplyRows) -> None:
    """Take every range of writes for the next one."""
    draft.results.append(_result(draft.view(operation.table, operation.incarnation), "ApplyRows"))


def _unusable_as_none(
    info: TableInfo, operation: WriteRows, payload: bytes | None, **more: Any
) -> Write:
    """Apply what can't be used as no rows."""
    try:
        return read_write(info, operation, payload, **more)
    except RowsUnusable:
        return Write(operation, info.schema.empty_table())


_insert = Group._insert


_merged = Group._merged


def _left(group: Group, on: Sequence[str]) -> MergedGroup:
    """Write rows and leave those that they replace."""
    merged = _merged(group, on)
    merged.gone = merged.gone.slice(0, 0)
    return merged


def _unseen(group: Group, key: bytes | None, number: int) -> None:
    """Insert a row that later writes of the group don't find."""
    _insert(group, None, number)


BROKEN_TOOLS: dict[str, Break] = {
    "an archive ends behind what isn't decided": lambda: mock.patch(
        "consumers.tools.archive.writer._position", _behind_the_undecided
    ),
    "an archive is given up to unproven": _unproven,
    "an archive that was made meanwhile isn't read": lambda: mock.patch(
        "consumers.tools.archive.log._first_missing", lambda found, start, end: end
    ),
    "an older program goes on by the rules that it knows": lambda: mock.patch(
        "commitlog.core.partition.machine.rules_after", _as_before
    ),
    "an older program refuses to upgrade the log": lambda: mock.patch(
        "commitlog.core.partition.machine.rules_after", _refused_if_unknown
    ),
    "an older program starts on a newer one's checkpoint": lambda: mock.patch(
        "commitlog.core.partition.machine.check_supported"
    ),
    "a range of rows is applied again": lambda: mock.patch(
        "commitlog.core.partition.machine.decide_application", _any_range
    ),
    "rows that can't be used are applied as none": lambda: mock.patch.object(
        row_reading, "read_write", _unusable_as_none
    ),
    "rows that have a write's keys aren't looked for": lambda: mock.patch.object(
        Group, "_load", return_value=None
    ),
    "writes of rows don't find those before in their group": lambda: mock.patch.object(
        Group, "_insert", _unseen
    ),
    "files with rows are taken for lost": lambda: mock.patch(
        "commitlog.client.accepted.row_tail._from_file", return_value=None
    ),
    "rows that are written over stay": lambda: mock.patch.object(Group, "_merged", _left),
}
