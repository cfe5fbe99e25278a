"""What an update action is: how its arguments are read, and how they change a draft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.metadata_draft import MetadataDraft
from commitlog.core.iceberg.reading import Node
from commitlog.core.iceberg.schemas import Fields, stored_fields

LAST_ADDED = -1
"""An id that means: the one that this request added last."""


class Action(NamedTuple):
    """One kind of update. `read` knows only the request; `apply` knows the table as well."""

    read: Callable[[Node], Any]
    apply: Callable[[MetadataDraft, Any], None]


class MetadataUpdate(NamedTuple):
    """One update of a request, read."""

    action: str
    """The official name, whatever alias was sent."""
    arguments: Any


def last_added(wanted: int, added: int | None, what: str) -> int:
    """Resolve -1 to what was added last in this request."""
    if wanted != LAST_ADDED:
        return wanted
    if added is None:
        raise Invalid("iceberg_nothing_added", what=what)
    return added


def current_fields(draft: MetadataDraft) -> Fields:
    """Return the fields of the current schema."""
    if draft.table.current_schema_id not in draft.table.schemas:
        raise Invalid("iceberg_no_current_schema")
    schema = draft.table.current_schema
    if id(schema) not in draft.fields_of:
        draft.fields_of[id(schema)] = schema, stored_fields(schema)
    return draft.fields_of[id(schema)][1]
