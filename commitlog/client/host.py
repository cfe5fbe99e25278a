"""What the parts of the client need of the `CommitLog` that they work for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from commitlog.client.opening import Opened
from commitlog.client.runtime import Runtime
from commitlog.client.tables import TableInfo
from commitlog.model.operations import Operation
from commitlog.model.records import Application, Expect, Transaction
from commitlog.model.table import TableId

TableName = str | Sequence[str]
Pairs = Mapping[str, str] | Sequence[tuple[str, str]]


class Host(Protocol):
    """A log, its tables, and this process's connection to it."""

    opened: Opened

    def runtime(self) -> Runtime:
        """Return this process's part."""

    def tables(self) -> list[TableInfo]:
        """Return all tables, by name, without their schemas."""

    def describe(self, table: TableId, *, fresh: bool, readable: bool = False) -> TableInfo:
        """Return a table's description, asked for now or known already."""

    def transaction(
        self,
        operations: tuple[Operation, ...],
        *,
        transaction_id: str | None = None,
        attempt: int = 0,
        application: Application | None = None,
        properties: Pairs = (),
        expects: Sequence[Expect] = (),
        payloads: tuple[bytes, ...] = (),
    ) -> Transaction:
        """Make a transaction of operations, under a new id if none is given."""
