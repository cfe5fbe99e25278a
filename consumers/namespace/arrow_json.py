"""Arrow schemas as the protocol's JSON, with the names that Lance's own server gives types."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_PLAIN = {
    "string": "utf8",
    "large_string": "large_utf8",
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "date32[day]": "date32",
    "date64[ms]": "date64",
}


def schema_json(schema: pa.Schema) -> dict[str, Any]:
    """Return a schema as JSON."""
    body: dict[str, Any] = {"fields": [_field(field) for field in schema]}
    if schema.metadata:
        body["metadata"] = _metadata(schema.metadata)
    return body


def _field(field: pa.Field) -> dict[str, Any]:
    body: dict[str, Any] = {
        "name": field.name,
        "nullable": field.nullable,
        "type": _type(field.type),
    }
    if field.metadata:
        body["metadata"] = _metadata(field.metadata)
    return body


def _type(kind: pa.DataType) -> dict[str, Any]:
    if isinstance(kind, pa.BaseExtensionType):
        return _type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type)
    if pa.types.is_decimal(kind):
        name = str(kind).partition("(")[0]
        return {"type": name, "length": kind.precision * 1000 + kind.scale}
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_field(field) for field in kind]}
    if pa.types.is_map(kind):
        entries = pa.field("entries", pa.struct([kind.key_field, kind.item_field]), nullable=False)
        return {"type": "map", "fields": [_field(entries)]}
    if pa.types.is_fixed_size_list(kind):
        return {
            "type": "fixed_size_list",
            "fields": [_field(kind.value_field)],
            "length": kind.list_size,
        }
    if pa.types.is_large_list(kind):
        return {"type": "large_list", "fields": [_field(kind.value_field)]}
    if pa.types.is_list(kind):
        return {"type": "list", "fields": [_field(kind.value_field)]}
    if pa.types.is_fixed_size_binary(kind):
        return {"type": "fixed_size_binary", "length": kind.byte_width}
    text = str(kind)
    # Units and time zones have no place in this JSON.
    return {"type": _PLAIN.get(text, text.partition("[")[0])}


def _metadata(metadata: Any) -> dict[str, str]:
    return {key.decode(): value.decode(errors="replace") for key, value in metadata.items()}
