"""How a session begins: with the tables' files as its checkpoint has them, and what that owes."""

from __future__ import annotations

from collections.abc import Sequence

from commitlog.core.partition.machine import Machine
from commitlog.core.tables.creation import empty_state
from consumers.partition.files.owed import Owed
from consumers.partition.files.unwritten import Unwritten
from consumers.partition.materializer import Materializer
from consumers.partition.readable import Readable


def adopt_tables(
    machine: Machine,
    owed: Sequence[Owed],
    materializer: Materializer,
    readable: Readable,
    unwritten: Unwritten,
) -> None:
    """Tell those who know of files which ones there are, and which ones are owed."""
    waiting = {one.incarnation: one for one in owed}
    for name, table in machine.tables.items():
        made, place, state = table.incarnation, table.location, table.manifest
        due = waiting.pop(made, None)
        newest = due.base if due is not None and due.has_versions else table.version
        readable.adopt(made, newest if state else 0)
        if state is not None:
            materializer.adopt(name, made, place, table.policy, state.copy(), due)
    for made, due in waiting.items():  # their tables have left the log
        state = empty_state()
        materializer.adopt(due.table, made, due.location, due.policy, state, due)
    for due in owed:
        unwritten.adopt(due)
    materializer.begin_at(machine.sequence)
