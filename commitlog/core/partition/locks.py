"""Which tables and ids a transaction locks while it waits for bytes; other records go on."""

from __future__ import annotations

from typing import Any

from commitlog.core.tables.by_name import ByName
from commitlog.model.operations import DropNamespace, RenameTable, target
from commitlog.model.records import LogRecord, Transaction
from commitlog.model.table import TableId


def locks_of(record: LogRecord, *tables: ByName[Any]) -> frozenset[TableId | str]:
    """Return the tables and ids that no other record may touch while this one waits."""
    if not isinstance(record, Transaction):
        return frozenset()
    held: list[TableId | str] = [record.transaction_id]
    for operation in record.operations:
        name = target(operation)
        held.append(name)
        if isinstance(operation, RenameTable):
            held.append(operation.new_table)
        elif isinstance(operation, DropNamespace):
            held.extend(t for some in tables for t in some.within(name))
    held.extend(expect.table for expect in record.expects)
    return frozenset(held)
