"""What a MERGE is to do; its condition on updates is in Lance's SQL, as every other upsert's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from commitlog.adapters.row_values import holds_blobs
from commitlog.client.rows.row_groups import RowsUnusable, fulfilling
from commitlog.client.rows.rows import whole
from commitlog.errors import InvalidTransaction

ROWS_IN_DRIVER = 100_000
"""Sources up to this many rows are joined in the driver."""
FIELD = "update_where"


@dataclass(frozen=True)
class Merge:
    """What to do with rows whose key the table has, or hasn't."""

    on: tuple[str, ...]
    update: bool = True
    insert: bool = True
    update_where: str = ""
    """Lance's SQL over `source` and `target`: only rows for which it holds are updated."""
    delete_where: str = ""
    """SQL over the source's columns: rows for which it holds are deleted from the table."""
    rows_in_driver: int = ROWS_IN_DRIVER

    def __post_init__(self) -> None:
        """Refuse a condition on updates if there are none."""
        if self.update_where and not self.update:
            raise InvalidTransaction(
                "update_where has no effect with update=False",
                field=FIELD,
                value=self.update_where,
                advice="Leave one of them out",
            )

    @classmethod
    def of(cls, on: str | Sequence[str], **options: Any) -> Merge:
        """Take one key column or several."""
        return cls((on,) if isinstance(on, str) else tuple(on), **options)


def columns_named(condition: str, columns: pa.Schema, on: Sequence[str]) -> pa.Schema:
    """Return the columns that a condition may name, and the key's; none with blobs."""
    text = condition.lower()
    named = [column for column in columns if column.name in on or column.name.lower() in text]
    return pa.schema([column for column in named if not holds_blobs(column)])


def check_condition(condition: str, table: pa.Schema, given: pa.Schema, on: Sequence[str]) -> None:
    """Refuse a condition that no rows could be held against."""
    held, rows = (columns_named(condition, each, on).empty_table() for each in (table, given))
    try:
        for sql in (condition, whole(condition)):  # also what may be behind its first expression
            fulfilling(held, rows, sql)
    except RowsUnusable as error:
        raise InvalidTransaction(
            error.problem,
            field=FIELD,
            value=condition,
            advice=f"Use SQL over target.{{{', '.join(table.names)}}} and"
            f" source.{{{', '.join(given.names)}}}",
        ) from None


def rows_that_hold(condition: str, held: pa.Table, given: pa.Table) -> pa.Array:
    """Return the numbers of the rows for which a condition holds, in order."""
    try:
        found = fulfilling(held, given, whole(condition))
    except RowsUnusable as error:
        raise InvalidTransaction(error.problem, field=FIELD, value=condition) from None
    return pa.array(sorted(found), pa.int64())
