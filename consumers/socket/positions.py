"""Tables as of a position in the log: which version was the newest then."""

from __future__ import annotations

from commitlog.core.partition.machine import Machine
from commitlog.errors import NoSuchVersion
from commitlog.model.table import format_table_id
from consumers.partition.catalogue import Head


def newest_at(machine: Machine, head: Head, sequence: int) -> int:
    """Return the newest version up to the head that was committed at or before a position."""
    table = machine.tables.get(head.table)
    if table is None or table.incarnation != head.incarnation:
        raise NoSuchVersion(f"table {format_table_id(head.table)} is gone; ask again")
    history = table.history
    low, high = history.floor, head.version
    while low < high:
        middle = (low + high + 1) // 2
        decided = machine.deduplication.get(history.committed(middle).transaction_id)
        # What is forgotten was long ago.
        if decided is None or decided.sequence <= sequence:
            low = middle
        else:
            high = middle - 1
    if low == history.floor and low > 0:
        raise NoSuchVersion(
            f"position {sequence} is before version {low + 1} of {format_table_id(head.table)},"
            " and what was before that is no longer compared; ask the index"
        )
    return low
