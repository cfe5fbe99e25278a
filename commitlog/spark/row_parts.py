"""Small batches as rows for the log, which a row writer applies; see `CommitLog.write_rows`.

Nothing of the table is read here, and no file is written: a small merge costs a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from commitlog.adapters.row_digest import joined_digests, rows_digest
from commitlog.client.accepted.row_shapes import NotForTheLog
from commitlog.client.accepted.row_writes import encode_write, settings_of
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.data import rows_table
from commitlog.client.rows.merging import MergeOptions, check_merge
from commitlog.model.limits import ROWS_INLINE_BYTES_MAX
from commitlog.model.operations import RowsMode
from commitlog.spark.files import brought
from commitlog.spark.merge_files import DELETE
from commitlog.spark.wanted import Merge


@dataclass(frozen=True)
class RowsPart:
    """One write of rows to one table."""

    mode: RowsMode
    rows: pa.Table
    on: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def add_to(self, record: Any, info: TableInfo) -> None:
        """Add it to a transaction that is being built."""
        record.write_rows(
            info.table_id, self.rows, mode=self.mode.value, on=self.on or None, **self.settings
        )


def appended(info: TableInfo, rows: pa.Table | None) -> RowsPart | None:
    """Return an append of rows; None if the log can't have them as they are."""
    part = None if rows is None else RowsPart(RowsMode.APPEND, rows)
    return part if part is not None and _fits(info, part) else None


class SmallMerge(NamedTuple):
    """A merge as writes of rows."""

    parts: list[RowsPart]
    """At most an upsert and a delete; none if the merge changes no row."""
    source: Mapping[str, int]
    """What the source brought, for the transaction's notes."""


def merged(info: TableInfo, rows: pa.Table | None, wanted: Merge) -> SmallMerge | None:
    """Return a merge as writes of rows; None if there are too many, or they aren't for the log.

    Raises InvalidTransaction for keys that come twice.
    """
    if rows is None or rows.nbytes > ROWS_INLINE_BYTES_MAX:
        return None
    if any(rows.column(name).null_count for name in wanted.on):
        return None
    given = rows_table(rows.drop_columns([DELETE]), info.schema, info.name)
    check_merge(info, given, wanted.on)
    deletes = rows.column(DELETE)
    parts = []
    if wanted.update or wanted.insert:
        settings = {
            "when_matched_update_all": wanted.update,
            "when_matched_update_all_filt": wanted.update_where or None,
            "when_not_matched_insert_all": wanted.insert,
        }
        kept = given.filter(pc.invert(deletes))
        parts.append(RowsPart(RowsMode.UPSERT, kept, wanted.on, settings))
    parts.append(RowsPart(RowsMode.DELETE, given.filter(deletes), wanted.on))
    parts = [part for part in parts if part.rows.num_rows]
    if not all(_fits(info, part) for part in parts):
        return None
    noted = given.append_column(DELETE, deletes).combine_chunks().to_batches()
    digest = joined_digests([sum(map(rows_digest, noted))])
    return SmallMerge(parts, brought(info.name, given.num_rows, digest))


def _fits(info: TableInfo, part: RowsPart) -> bool:
    options, _ = MergeOptions.taken_from(part.settings)
    try:
        encode_write(info, part.rows, part.mode, part.on, **settings_of(part.mode, options))
    except NotForTheLog:
        return False
    return True
