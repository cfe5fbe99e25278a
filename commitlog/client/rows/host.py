"""What the parts of the client need of the `CommitLog` that they work for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import lance

    from commitlog.client.leader.runtime import Runtime
    from commitlog.client.leader.tables import TableInfo
    from commitlog.client.leader.tickets import Ticket
    from commitlog.client.rows.opening import Opened
    from commitlog.model.records import Transaction
    from commitlog.model.table import TableId

TableName = str | Sequence[str]
Pairs = Mapping[str, str] | Sequence[tuple[str, str]]


class Host(Protocol):
    """A log, its tables, and this process's connection to it; `CommitLog` is one."""

    opened: Opened
    if TYPE_CHECKING:
        # Verbs with many options; `CommitLog` has them from its parts.
        open: Callable[..., lance.LanceDataset]
        submit: Callable[..., Ticket]
        transact: Callable[..., Any]
        transaction: Callable[..., Transaction]
        position: Callable[..., dict[int, int]]
        snapshot: Callable[..., Any]

    def runtime(self) -> Runtime:
        """Return this process's part."""

    def tables(self) -> list[TableInfo]:
        """Return all tables, by name, without their schemas."""

    def describe(self, table: TableId, *, fresh: bool, readable: bool = False) -> TableInfo:
        """Return a table's description, asked for now or known already."""
