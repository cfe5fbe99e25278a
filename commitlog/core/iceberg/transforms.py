"""Partition and sort transforms: their canonical names, and which types each one takes."""

from __future__ import annotations

import re

from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.reading import INT32, Node
from commitlog.core.iceberg.schemas import Field, Fields
from commitlog.model.reasons import Phrase

IDENTITY, VOID = "identity", "void"
_WIDTH = re.compile(r"(bucket|truncate)\[([0-9]{1,10})\]", re.IGNORECASE)
_TIMES = frozenset({"timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns"})
_TAKES = {
    "year": _TIMES | {"date"},
    "month": _TIMES | {"date"},
    "day": _TIMES | {"date"},
    "hour": _TIMES,
    "bucket": _TIMES | {"int", "long", "date", "time", "string", "binary", "uuid"},
    "truncate": frozenset({"int", "long", "string", "binary"}),
}
_NOT_IDENTITY = frozenset({"variant", "geometry", "geography", "struct", "list", "map"})


def read_transform(node: Node) -> str:
    """Return a transform's canonical name."""
    text = node.string()
    if width := _WIDTH.fullmatch(text):
        if not 0 < int(width[2]) <= INT32:
            node.fail("iceberg_width_invalid", value=text, width_max=INT32)
        return f"{width[1].lower()}[{int(width[2])}]"
    if text.lower() not in {IDENTITY, "year", "month", "day", "hour", VOID}:
        node.fail("iceberg_transform_unknown", value=text)
    return text.lower()


def check_partition_name(name: str, source_id: int, fields: Fields) -> None:
    """Refuse a partition field that has the name of a column that it isn't made from."""
    column = fields.named(name)
    if column is not None and column.field_id != source_id:
        raise Invalid("iceberg_partition_name_of_column", name=name)


def check_source(what: Phrase, source_id: int, transform: str, fields: Fields) -> Field | None:
    """Refuse a transform of a column that isn't there or whose type it doesn't take."""
    field = fields.by_id.get(source_id)
    if transform == VOID:
        return field
    if field is None:
        raise Invalid("iceberg_source_column_unknown", what=what, source_id=source_id)
    base, base_type = transform.split("[")[0], re.split(r"[(\[]", field.type)[0]
    if base == IDENTITY:
        taken = base_type not in _NOT_IDENTITY
    else:
        taken = base_type in _TAKES[base]
        taken = taken or (base in {"bucket", "truncate"} and base_type == "decimal")
        taken = taken or (base == "bucket" and base_type == "fixed")
    if not taken:
        raise Invalid(
            "iceberg_transform_type",
            what=what,
            transform=transform,
            name=field.name,
            type=field.type,
        )
    return field
