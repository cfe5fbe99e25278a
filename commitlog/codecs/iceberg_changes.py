"""What an Iceberg change asks for, read from the JSON that its client sent.

A committed change was checked by the leader; a refused one may hold anything. So whatever has
another shape than the specification's is left out, and nothing here raises.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from commitlog.codecs.field_names import full_name
from commitlog.model.limits import DIGITS_MAX, INT64_MAX
from commitlog.model.operations import IcebergChange, Summary, operation_name


@dataclass(frozen=True, slots=True)
class IndexedSnapshot:
    """A snapshot to be added."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int | None
    operation: str
    manifest_list: str
    summary: str
    """A JSON object."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or tag to be set; without kind and snapshot: to be removed."""

    name: str
    kind: str | None = None
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True)
class IcebergField:
    """A field of a schema to be added; `name` is the full one."""

    field_id: int
    parent_id: int | None
    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class IcebergChanges:
    """A change's updates, sorted by what they are about."""

    name: str
    """The snapshot's operation; without one: create, or the first update's action."""
    summary: Summary | None = None
    snapshots: tuple[IndexedSnapshot, ...] = ()
    refs: tuple[Ref, ...] = ()
    properties: tuple[tuple[str, str | None], ...] = ()
    fields: tuple[IcebergField, ...] = ()


def read_changes(operation: IcebergChange) -> IcebergChanges:
    """Read what an operation asks for."""
    updates = _objects(operation.updates)
    requirements = _objects(operation.requirements)
    snapshots = tuple(_snapshots(updates))
    if snapshots:
        name = _name_of({one.operation for one in snapshots})
    elif any(one.get("type") == "assert-create" for one in requirements):
        name = "create"
    elif any(one.get("type") == "assert-view-create" for one in requirements):
        name = "create-view"
    elif any(one.get("action") == "add-view-version" for one in updates):
        name = "replace-view"
    else:
        name = next((str(one["action"]) for one in updates if "action" in one), "check")
    schemas = [one.get("schema") for one in updates if one.get("action") == "add-schema"]
    return IcebergChanges(
        name=name or operation_name(operation),
        summary=_summary([one.summary for one in snapshots]) if snapshots else None,
        snapshots=snapshots,
        refs=tuple(_refs(updates)),
        properties=tuple(_properties(updates)),
        fields=tuple(_fields(_object(schemas[-1]).get("fields"))) if schemas else (),
    )


def _name_of(operations: Set[str]) -> str:
    """Return what snapshots do together: pyiceberg's overwrite is a deletion and an append."""
    return next(iter(operations)) if len(operations) == 1 else "overwrite"


def _objects(text: str) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _integer(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > INT64_MAX:
        return None
    return value


def _snapshots(updates: list[Mapping[str, Any]]) -> Iterator[IndexedSnapshot]:
    for update in updates:
        one = _object(update.get("snapshot"))
        snapshot_id = _integer(one.get("snapshot-id"))
        if update.get("action") == "add-snapshot" and snapshot_id is not None:
            summary = _object(one.get("summary"))
            parent = _integer(one.get("parent-snapshot-id"))
            yield IndexedSnapshot(
                snapshot_id=snapshot_id,
                parent_id=None if parent == -1 else parent,
                sequence_number=_integer(one.get("sequence-number")),
                operation=str(summary.get("operation") or ""),
                manifest_list=str(one.get("manifest-list") or ""),
                summary=json.dumps(summary),
            )


def _summary(texts: Sequence[str]) -> Summary:
    """Sum up what a change's snapshots say: pyiceberg's overwrite is a deletion and an append.

    Rows removed are those of removed data files, and those that deletions by position name, but for
    the ones that an earlier such deletion had named.
    """
    given: list[Mapping[str, Any]] = [json.loads(text) for text in texts]

    def number(name: str) -> int:
        values = (str(one.get(name, "")) for one in given)
        plain = (one for one in values if one.isascii() and one.isdigit())
        total = sum(int(one) if len(one) <= DIGITS_MAX else INT64_MAX for one in plain)
        return min(total, INT64_MAX)

    removed = number("deleted-records") + number("added-position-deletes")
    return Summary(
        rows_added=number("added-records"),
        rows_removed=min(max(removed - number("removed-position-deletes"), 0), INT64_MAX),
        bytes_added=number("added-files-size"),
        fragments_added=number("added-data-files"),
        fragments_removed=number("deleted-data-files"),
    )


def _refs(updates: list[Mapping[str, Any]]) -> Iterator[Ref]:
    for update in updates:
        name = str(update.get("ref-name") or "")
        match update.get("action"):
            case "set-snapshot-ref":
                kind, snapshot_id = update.get("type"), _integer(update.get("snapshot-id"))
                yield Ref(name, str(kind), snapshot_id)
            case "remove-snapshot-ref":
                yield Ref(name)


def _properties(updates: list[Mapping[str, Any]]) -> Iterator[tuple[str, str | None]]:
    for update in updates:
        match update.get("action"):
            case "set-properties":
                for key, value in _object(update.get("updates")).items():
                    yield key, str(value)
            case "remove-properties":
                removals = update.get("removals")
                for key in removals if isinstance(removals, list) else ():
                    yield str(key), None


def _fields(fields: object) -> Iterator[IcebergField]:
    """Yield a schema's fields, each before those in it; there may be thousands of levels."""
    waiting: list[tuple[Mapping[str, Any], int | None, str]] = []
    waiting.extend((one, None, "") for one in _last_first(fields))
    while waiting:
        field, parent_id, parent = waiting.pop()
        name, kind = full_name(parent, str(field.get("name"))), field.get("type")
        field_id = _integer(field.get("id"))
        if field_id is None or field_id > 2**31 - 1:
            continue
        shown = kind if isinstance(kind, str) else str(_object(kind).get("type"))
        yield IcebergField(
            field_id=field_id,
            parent_id=parent_id,
            name=name,
            type=shown,
            nullable=not field.get("required"),
        )
        inside = _last_first(_object(kind).get("fields"))
        waiting.extend((one, field_id, name) for one in inside)


def _last_first(fields: object) -> list[Mapping[str, Any]]:
    return [_object(one) for one in reversed(fields)] if isinstance(fields, list) else []
