"""Reads commit requests: all that can be told without looking at a table.

Whatever is wrong here is a 400, found before it is asked whether tables exist (404) and whether
requirements hold (409).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from commitlog.core.iceberg.actions import MetadataUpdate
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.reading import Node, dump_json, load_json
from commitlog.core.iceberg.requirements import ASSERT_CREATE, Requirement, read_requirement
from commitlog.core.iceberg.updates import REGISTER, read_update
from commitlog.errors import InvalidTransaction
from commitlog.model.limits import ICEBERG_UPDATES_MAX, PROTOCOL_SUPPORTED, RECORD_BYTES_MAX
from commitlog.model.operations import IcebergChange
from commitlog.model.table import TableId, parse_table_id

READ_ONLY = "read-only"
"""In the requirement of a registration: the name is a second one, and never committed to."""
TABLES_MAX = 100
UPDATES_MAX = ICEBERG_UPDATES_MAX


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a request asks of one table."""

    table: TableId
    requirements: tuple[Requirement, ...]
    updates: tuple[MetadataUpdate, ...]
    sent: IcebergChange
    """The same as the log keeps it: with the JSON that the client wrote."""

    @property
    def is_create(self) -> bool:
        """Return True if the table must not exist yet."""
        return any(r.type == ASSERT_CREATE for r in self.requirements)

    @property
    def is_register(self) -> bool:
        """Return True if it takes over somebody else's metadata file."""
        return any(update.action == REGISTER for update in self.updates)


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A request to change several tables at once."""

    changes: tuple[TableChange, ...]
    lance_operations: tuple[Any, ...] = ()
    """Items of `lance-operations`, which commit together with the changes."""


def parse_commit(
    body: Any, *, tables_max: int = TABLES_MAX, updates_max: int = UPDATES_MAX
) -> CommitRequest:
    """Read the body of a multi-table commit; raise Invalid naming the place that is wrong."""
    node = Node(body, "")
    node.object()
    items = node.member("table-changes").items()
    if not items:
        node.member("table-changes").fail("iceberg_empty")
    if len(items) > tables_max:
        node.member("table-changes").fail(
            "iceberg_too_many_tables", count=len(items), count_max=tables_max
        )
    changes = tuple(
        _read_change(item, read_identifier(item.member("identifier")), updates_max)
        for item in items
    )
    check_distinct(changes)
    lance = node.optional("lance-operations")
    return CommitRequest(changes, tuple(i.value for i in lance.items()) if lance else ())


def parse_table_commit(body: Any, table: TableId, *, updates_max: int = UPDATES_MAX) -> TableChange:
    """Read the body of a commit to one table, whose address names it."""
    node = Node(body, "")
    identifier = node.optional("identifier")
    if identifier is not None and read_identifier(identifier) != table:
        identifier.fail("iceberg_another_table")
    return _read_change(node, table, updates_max)


def read_identifier(node: Node) -> TableId:
    """Read a table's identifier."""
    namespace = [item.string() for item in node.member("namespace").items()]
    if not namespace:
        node.member("namespace").fail("iceberg_empty")
    return _table_id(node, (*namespace, node.member("name").string()))


def read_namespace(node: Node) -> TableId:
    """Read a namespace's name."""
    parts = tuple(item.string() for item in node.items())
    if not parts:
        node.fail("iceberg_empty")
    return _table_id(node, parts)


def parse_change(
    operation: IcebergChange,
    *,
    updates_max: int = RECORD_BYTES_MAX,
    registered: Callable[[TableId], IcebergTable] | None = None,
    protocol: int = PROTOCOL_SUPPORTED,
) -> TableChange:
    """Read what the log keeps of a change; `registered` reads metadata that it refers to."""
    value = {
        "requirements": load_json(operation.requirements, "requirements"),
        "updates": load_json(operation.updates, "updates"),
    }
    read = partial(registered, operation.table) if registered is not None else None
    update = partial(read_update, is_logged=True, protocol=protocol, registered=read)
    return _read_change(Node(value, ""), operation.table, updates_max, update)


def registers_read_only(operation: IcebergChange) -> bool:
    """Return True if a change that the log has registers a second name of a table, read only."""
    if REGISTER not in operation.updates or READ_ONLY not in operation.requirements:
        return False
    sent = load_json(operation.requirements, "requirements")
    return any(isinstance(one, dict) and one.get(READ_ONLY) is True for one in sent)


def check_distinct(changes: Sequence[TableChange]) -> None:
    """Refuse a request that names a table twice."""
    seen: dict[TableId, int] = {}
    for i, change in enumerate(changes):
        first = seen.setdefault(change.table, i)
        if first != i:
            raise Invalid("iceberg_table_twice", i=i, table=".".join(change.table), first=first)


def _read_change(
    node: Node,
    table: TableId,
    updates_max: int,
    update: Callable[[Node], MetadataUpdate] = read_update,
) -> TableChange:
    requirements = node.member("requirements").items()
    updates = node.member("updates").items()
    if len(updates) > updates_max:
        node.member("updates").fail(
            "iceberg_too_many_updates", count=len(updates), count_max=updates_max
        )
    read = tuple(read_requirement(item) for item in requirements)
    makes_table = any(one.type == ASSERT_CREATE for one in read)
    for other in read:
        if makes_table and other.type != ASSERT_CREATE:
            node.member("requirements").fail(
                "iceberg_requirement_of_new_table", requirement=ASSERT_CREATE, other=other.type
            )
    return TableChange(
        table,
        read,
        tuple(update(item) for item in updates),
        IcebergChange(
            table, dump_json(node.value["requirements"]), dump_json(node.value["updates"])
        ),
    )


def _table_id(node: Node, parts: tuple[str, ...]) -> TableId:
    try:
        if any(ord(c) < 32 for part in parts for c in part):
            raise InvalidTransaction(f"{parts!r} holds a control character")
        return parse_table_id(parts)
    except InvalidTransaction as error:
        node.fail("iceberg_name_unusable", error=str(error))
