"""The eight requirements: what a table must be before a request's updates may be applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.reading import Node

ASSERT_CREATE = "assert-create"


class Requirement(NamedTuple):
    """One requirement of a request, read."""

    type: str
    """The official name, in lower case."""
    arguments: Any
    sent: Mapping[str, Any]
    """As the client wrote it; a refusal shows it so."""


class _Kind(NamedTuple):
    read: Callable[[Node], Any]
    """The expected value, from the request."""
    actual: Callable[[IcebergTable, Any], Any]
    """The table's value."""
    member: str
    """What the value is called in `actual`."""


def _read_ref(node: Node) -> tuple[str, int | None]:
    # No snapshot-id means null, as all clients read it: the ref must not exist.
    snapshot_id = node.optional("snapshot-id")
    return node.member("ref").text(), None if snapshot_id is None else snapshot_id.integer()


def _actual_ref(table: IcebergTable, expected: tuple[str, int | None]) -> int | None:
    ref = table.refs.get(expected[0])
    return None if ref is None else int(ref["snapshot-id"])


def _number(member: str, actual: Callable[[IcebergTable], int]) -> _Kind:
    return _Kind(lambda node: node.member(member).int32(), lambda table, _: actual(table), member)


_KINDS: dict[str, _Kind] = {
    "assert-table-uuid": _Kind(
        lambda node: node.member("uuid").text(), lambda table, _: table.uuid, "uuid"
    ),
    "assert-ref-snapshot-id": _Kind(_read_ref, _actual_ref, "snapshot-id"),
    "assert-last-assigned-field-id": _number(
        "last-assigned-field-id", lambda table: table.last_column_id
    ),
    "assert-current-schema-id": _number("current-schema-id", lambda table: table.current_schema_id),
    "assert-last-assigned-partition-id": _number(
        "last-assigned-partition-id", lambda table: table.last_partition_id
    ),
    "assert-default-spec-id": _number("default-spec-id", lambda table: table.default_spec_id),
    "assert-default-sort-order-id": _number(
        "default-sort-order-id", lambda table: table.default_sort_order_id
    ),
}

REQUIREMENT_TYPES = frozenset({ASSERT_CREATE, *_KINDS})


def read_requirement(node: Node) -> Requirement:
    """Read one requirement; an unknown type is refused."""
    name = node.member("type").string().lower()
    if name == ASSERT_CREATE:
        return Requirement(name, None, node.object())
    kind = _KINDS.get(name)
    if kind is None:
        node.member("type").fail(
            "iceberg_one_of", value=node.value["type"], known=sorted(REQUIREMENT_TYPES)
        )
    return Requirement(name, kind.read(node), node.object())


def unmet(requirement: Requirement, table: IcebergTable | None) -> Mapping[str, Any] | None:
    """Return what the table has instead of what is required; None if the requirement holds."""
    if requirement.type == ASSERT_CREATE:
        return None if table is None else {"uuid": table.uuid}
    assert table is not None, "a missing table is refused before requirements are looked at"
    kind = _KINDS[requirement.type]
    actual = kind.actual(table, requirement.arguments)
    expected = requirement.arguments
    if requirement.type == "assert-ref-snapshot-id":
        expected = expected[1]
    elif requirement.type == "assert-table-uuid":
        return None if actual.lower() == expected.lower() else {kind.member: actual}
    return None if actual == expected else {kind.member: actual}
