"""What holds at a position in the log: the newest version of a table, the rules at its end."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future

from commitlog.core.machine import Machine
from commitlog.errors import NoSuchVersion, Unavailable
from commitlog.model.table import TableId, format_table_id
from consumers.catalogue import Head
from consumers.leader import Leader
from consumers.session import Session

WAIT_SECONDS = 10.0
RULES_SECONDS = 25.0
PAUSE_SECONDS = 0.01


async def version_at(session: Session, leader: Leader | None, table: TableId, sequence: int) -> int:
    """Return the newest version that a table had at a position; 0 if it had none yet.

    Raises Unavailable if the log doesn't come to the position soon, and NoSuchVersion if that is
    so long ago that nobody remembers.
    """
    if leader is None:
        raise Unavailable("this committer doesn't lead; ask again")
    waited = 0.0
    while session.published < sequence:
        if waited > WAIT_SECONDS:
            raise Unavailable(
                f"the log is at {session.published}, and {sequence} is ahead of it; ask again, or "
                "correct the position"
            )
        waited += PAUSE_SECONDS
        await asyncio.sleep(PAUSE_SECONDS)
    head = session.catalogue.head(table)
    result: Future[int] = Future()

    def work() -> None:
        try:
            result.set_result(newest_at(session.follower.machine, head, sequence))
        except Exception as error:
            result.set_exception(error)

    # Histories change under the leader's hands alone.
    leader.call(work)
    return await asyncio.wait_for(asyncio.wrap_future(result), WAIT_SECONDS)


async def until_newest_rules(session: Session, leader: Leader | None) -> None:
    """Wait until the rules in force are those that the log, up to its present end, asks for.

    A leader that has just begun its term may still have to decide a record that changes them.

    Raises:
        Unavailable: this committer doesn't lead, or doesn't get there in time.
    """
    if leader is None:
        raise Unavailable("this committer doesn't lead; ask again")
    end_offset = session.follower.transactions.end_offset
    end = await asyncio.get_running_loop().run_in_executor(None, end_offset)
    deadline = time.monotonic() + RULES_SECONDS
    while not leader.has_newest_rules(end):
        if leader.failure is not None or time.monotonic() > deadline:
            raise Unavailable("the leader has not yet decided which rules are in force; ask again")
        await asyncio.sleep(PAUSE_SECONDS)


def newest_at(machine: Machine, head: Head, sequence: int) -> int:
    """Return the newest version up to the head that was committed at or before a position."""
    table = machine.tables.get(head.table)
    if table is None or table.incarnation != head.incarnation:
        raise NoSuchVersion(f"table {format_table_id(head.table)} is gone; ask again")
    history = table.history
    low, high = history.floor, head.version
    while low < high:
        middle = (low + high + 1) // 2
        decided = machine.once.get(history.committed(middle).transaction_id)
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
