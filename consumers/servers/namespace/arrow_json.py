"""Arrow schemas as JSON: with the names that Lance's own server gives types, or Lance itself does.

The protocol's names leave units and time zones out; Lance's own, by which LanceDB's remote client
reads a schema, have them. Types are read by either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from lance_namespace import InvalidInputError

_PLAIN = {
    "string": "utf8",
    "large_string": "large_utf8",
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "date32[day]": "date32",
    "date64[ms]": "date64",
}
_PLAIN_EXTENSIONS = frozenset({"arrow.uuid", "arrow.json", "arrow.bool8"})
_LANCE = {"date32[day]": "date32:day", "date64[ms]": "date64:ms"}
_READ: Mapping[str, Any] = {
    **{name: getattr(pa, name)() for name in ("null", "int8", "int16", "int32", "int64", "uint8")},
    **{name: getattr(pa, name)() for name in ("uint16", "uint32", "uint64", "binary", "string")},
    **{name: getattr(pa, name)() for name in ("large_binary", "large_string", "float16")},
    "bool": pa.bool_(),
    "boolean": pa.bool_(),
    "utf8": pa.string(),
    "large_utf8": pa.large_string(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "double": pa.float64(),
    "date32": pa.date32(),
    "date64": pa.date64(),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
}

_Name = Callable[[pa.DataType], dict[str, Any]]


def schema_json(schema: pa.Schema, *, by_lance: bool = False) -> dict[str, Any]:
    """Return a schema as JSON, with the protocol's names of types or with Lance's."""
    name = _lance_name if by_lance else _plain_name
    body: dict[str, Any] = {"fields": [_field(field, name) for field in schema]}
    if schema.metadata:
        body["metadata"] = _metadata(schema.metadata)
    return body


def _field(field: pa.Field, name: _Name) -> dict[str, Any]:
    body: dict[str, Any] = {
        "name": field.name,
        "nullable": field.nullable,
        "type": _type(field.type, name),
    }
    metadata = _metadata(field.metadata or {}) | _extension(field.type)
    if metadata:
        body["metadata"] = metadata
    return body


def _extension(kind: pa.DataType) -> dict[str, str]:
    """Return which extension a type is as Arrow's metadata say it, since JSON has its storage.

    Not of blobs: LanceDB's client would ask for their bytes, which it can't get here. Nor of
    tensors, whose parameters pyarrow keeps for itself.
    """
    if not isinstance(kind, pa.BaseExtensionType):
        return {}
    name, parameters = kind.extension_name, b""
    if isinstance(kind, pa.ExtensionType) and not name.startswith("lance.blob"):
        parameters = kind.__arrow_ext_serialize__()
    elif name not in _PLAIN_EXTENSIONS:
        return {}
    return {
        "ARROW:extension:name": name,
        "ARROW:extension:metadata": parameters.decode(errors="replace"),
    }


def _type(kind: pa.DataType, name: _Name) -> dict[str, Any]:
    if isinstance(kind, pa.BaseExtensionType):
        return _type(kind.storage_type, name)
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_field(field, name) for field in kind]}
    if pa.types.is_map(kind):
        entries = pa.field("entries", pa.struct([kind.key_field, kind.item_field]), nullable=False)
        return {"type": "map", "fields": [_field(entries, name)]}
    if pa.types.is_fixed_size_list(kind):
        return {
            "type": "fixed_size_list",
            "fields": [_field(kind.value_field, name)],
            "length": kind.list_size,
        }
    if pa.types.is_large_list(kind):
        return {"type": "large_list", "fields": [_field(kind.value_field, name)]}
    if pa.types.is_list(kind):
        return {"type": "list", "fields": [_field(kind.value_field, name)]}
    if pa.types.is_fixed_size_binary(kind):
        return {"type": "fixed_size_binary", "length": kind.byte_width}
    return name(kind)


def _plain_name(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type, _plain_name)
    if pa.types.is_decimal(kind):
        name = str(kind).partition("(")[0]
        return {"type": name, "length": kind.precision * 1000 + kind.scale}
    text = str(kind)
    # Units and time zones have no place in this JSON.
    return {"type": _PLAIN.get(text, text.partition("[")[0])}


def _lance_name(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_dictionary(kind):
        value, index = _lance_name(kind.value_type)["type"], _lance_name(kind.index_type)["type"]
        return {"type": f"dict:{value}:{index}:{str(kind.ordered).lower()}"}
    if pa.types.is_decimal(kind):
        return {"type": f"decimal:{kind.bit_width}:{kind.precision}:{kind.scale}"}
    if pa.types.is_timestamp(kind):
        return {"type": f"timestamp:{kind.unit}:{kind.tz or '-'}"}
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return {"type": f"{str(kind).partition('[')[0]}:{kind.unit}"}
    return {"type": _LANCE.get(str(kind), str(kind))}


def type_of(described: Any, where: str) -> pa.DataType:
    """Return the type that JSON describes, by the names of the protocol or of Lance."""
    if isinstance(described, str):
        described = {"type": described}
    name = described.get("type") if isinstance(described, dict) else None
    if not isinstance(name, str):
        raise InvalidInputError(
            f"{where}: {described!r} is not a type description; it needs a `type`"
        )
    plain = _READ.get(name.lower())
    try:
        return plain if plain is not None else _compound(name, described, where)
    except (ValueError, TypeError, KeyError, IndexError, pa.ArrowException) as error:
        raise InvalidInputError(f"{where}: {name!r} is not a known type") from error


def _compound(name: str, described: Mapping[str, Any], where: str) -> pa.DataType:
    kind, _, rest = name.partition(":")
    parts = rest.split(":")
    if kind == "timestamp":
        unit, _, zone = rest.partition(":")
        return pa.timestamp(unit or "us", zone if zone not in ("", "-") else None)
    if kind in ("time32", "time64", "duration"):
        make = {"time32": pa.time32, "time64": pa.time64, "duration": pa.duration}[kind]
        return make(rest)
    if kind == "decimal":
        make_decimal = {"128": pa.decimal128, "256": pa.decimal256}[parts[0]]
        return make_decimal(int(parts[1]), int(parts[2]))
    if kind in ("decimal128", "decimal256"):
        precision, scale = divmod(int(described["length"]), 1000)
        return getattr(pa, kind)(precision, scale)
    if kind == "fixed_size_binary":
        return pa.binary(int(rest or described["length"]))
    fields = [
        pa.field(
            str(inner["name"]), type_of(inner["type"], where), bool(inner.get("nullable", True))
        )
        for inner in described.get("fields") or ()
    ]
    if kind == "struct":
        return pa.struct(fields)
    if kind == "fixed_size_list":
        return pa.list_(fields[0], int(described["length"]))
    return {"list": pa.list_, "large_list": pa.large_list}[kind](fields[0])


def _metadata(metadata: Any) -> dict[str, str]:
    return {key.decode(): value.decode(errors="replace") for key, value in metadata.items()}
