"""Schemas: their fields by id, what makes one valid, and when two are the same."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Protocol

from commitlog.core.iceberg.by_content import frozen
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.reading import Node

_PLAIN = frozenset(
    {
        "boolean",
        "int",
        "long",
        "float",
        "double",
        "date",
        "time",
        "timestamp",
        "timestamptz",
        "timestamp_ns",
        "timestamptz_ns",
        "string",
        "uuid",
        "binary",
        "unknown",
        "variant",
        "geometry",
        "geography",
    }
)
_FIXED = re.compile(r"fixed\[\s*([0-9]{1,9})\s*\]")
_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*\)")
_PLACED = re.compile(r"(geometry|geography)\s*\((.*)\)", re.IGNORECASE)
_SINCE_V3 = frozenset(
    {"timestamp_ns", "timestamptz_ns", "variant", "unknown", "geometry", "geography"}
)
_DEFAULTS_SINCE = 3
_DECIMAL_DIGITS_MAX = 38


@dataclass(frozen=True, slots=True)
class Field:
    """One field, nested ones included; a list's element and a map's key and value are fields."""

    field_id: int
    own_name: str
    required: bool
    type: str
    """A primitive type's canonical name, or `struct`, `list`, `map`."""
    above: Field | None
    has_default: bool = False

    @property
    def name(self) -> str:
        """The full name: `address.street`."""
        parts, field = [self.own_name], self.above
        while field is not None:
            parts.append(field.own_name)
            field = field.above
        return ".".join(reversed(parts))


Found = tuple[Field, bytes, Node]
"""A field, the digest of its full name, and its place in the document."""


class Digest(Protocol):
    """A hash that is being computed, as those of `hashlib`."""

    def update(self, data: bytes, /) -> object:
        """Take more bytes."""

    def digest(self) -> bytes:
        """Return the hash so far."""

    def copy(self) -> Digest:
        """Return one that goes on by itself."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A schema's fields, by id and by full name.

    Names are kept as digests: the name of a struct is part of those of all fields in it.
    """

    by_id: Mapping[int, Field]
    by_digest: Mapping[bytes, Field]

    @property
    def highest_id(self) -> int:
        """The highest id in use, or 0."""
        return max(self.by_id, default=0)

    def named(self, name: str) -> Field | None:
        """Return the field of a full name, or None."""
        return self.by_digest.get(sha256(name.encode(errors="surrogatepass")).digest())

    def ancestors(self, field: Field) -> Iterator[Field]:
        """Yield the fields that a field is in, from the inside."""
        above = field.above
        while above is not None:
            yield above
            above = above.above


def read_schema(node: Node) -> dict[str, Any]:
    """Return a schema that is whole in itself, as it was sent."""
    if node.member("type").string() != "struct":
        node.member("type").fail("iceberg_not_a_struct")
    fields = fields_of(node)
    identifiers = node.optional("identifier-field-ids")
    for item in identifiers.items() if identifiers else ():
        _check_identifier(item, fields)
    if (schema_id := node.optional("schema-id")) is not None:
        schema_id.int32()
    return node.object()


def fields_of(node: Node) -> Fields:
    """Return a schema's fields; raise Invalid where two share an id or a name."""
    by_id: dict[int, Field] = {}
    by_digest: dict[bytes, Field] = {}
    for field, digest, where in _struct(node, None, sha256()):
        if field.field_id in by_id:
            where.fail(
                "iceberg_field_id_twice",
                field_id=field.field_id,
                name=field.name,
                owner=by_id[field.field_id].name,
            )
        if digest in by_digest:
            where.fail("iceberg_field_name_twice", name=field.name)
        by_id[field.field_id] = by_digest[digest] = field
    return Fields(by_id, by_digest)


def stored_fields(schema: Mapping[str, Any]) -> Fields:
    """Return the fields of a schema that a table already has."""
    return fields_of(Node(dict(schema), f"schema {schema.get('schema-id', 0)}"))


def check_format(fields: Fields, format_version: int) -> None:
    """Refuse types and defaults that the table's format version doesn't have."""
    if format_version >= _DEFAULTS_SINCE:
        return
    for field in fields.by_id.values():
        if field.type.split("(")[0] in _SINCE_V3:
            raise Invalid(
                "iceberg_type_needs_version_3",
                name=field.name,
                type=field.type,
                format_version=format_version,
            )
        if field.has_default:
            raise Invalid(
                "iceberg_default_needs_version_3", name=field.name, format_version=format_version
            )


def schema_content(schema: Mapping[str, Any]) -> Hashable:
    """Return what is equal if two schemas differ in nothing but their ids."""
    identifiers = frozenset(schema.get("identifier-field-ids") or ())
    return _canonical_fields(schema["fields"]), identifiers


def primitive(name: str) -> str | None:
    """Return a primitive type's canonical name, or None if there is no such type."""
    lower = name.lower()
    if lower in _PLAIN:
        return lower
    if fixed := _FIXED.fullmatch(lower):
        return f"fixed[{int(fixed[1])}]"
    if decimal := _DECIMAL.fullmatch(lower):
        precision, scale = int(decimal[1]), int(decimal[2])
        return f"decimal({precision}, {scale})" if precision <= _DECIMAL_DIGITS_MAX else None
    if placed := _PLACED.fullmatch(name):
        return f"{placed[1].lower()}({placed[2].strip()})"
    return None


def _struct(node: Node, above: Field | None, prefix: Digest) -> Iterator[Found]:
    for item in node.member("fields").items():
        field_id = item.member("id").int32(low=0)
        name = item.member("name").text()
        required = item.member("required").boolean()
        if (doc := item.optional("doc")) is not None:
            doc.string()
        kind = item.member("type")
        field = Field(
            field_id=field_id,
            own_name=name,
            required=required,
            type=_name(kind),
            above=above,
            has_default=item.optional("initial-default") is not None,
        )
        yield from _with_nested(kind, field, prefix, item)


def _with_nested(kind: Node, field: Field, prefix: Digest, where: Node) -> Iterator[Found]:
    """Yield a field, with its full name's digest and its place, and the fields in it."""
    named = prefix.copy()
    named.update(field.own_name.encode(errors="surrogatepass"))
    yield field, named.digest(), where
    if field.type not in ("struct", "list", "map"):
        return
    named.update(b".")
    if field.type == "struct":
        yield from _struct(kind, field, named)
    elif field.type == "list":
        required = kind.member("element-required").boolean()
        yield from _part(kind, "element", field, required, named)
    else:
        yield from _part(kind, "key", field, True, named)
        required = kind.member("value-required").boolean()
        yield from _part(kind, "value", field, required, named)


def _part(kind: Node, part: str, above: Field, required: bool, prefix: Digest) -> Iterator[Found]:
    part_id = kind.member(f"{part}-id").int32(low=0)
    inner = kind.member(part)
    field = Field(
        field_id=part_id, own_name=part, required=required, type=_name(inner), above=above
    )
    yield from _with_nested(inner, field, prefix, kind)


def _name(kind: Node) -> str:
    if isinstance(kind.value, str):
        name = primitive(kind.value)
        if name is None:
            kind.fail("iceberg_type_unknown", value=kind.value)
        return name
    which = kind.member("type").string()
    if which not in {"struct", "list", "map"}:
        kind.member("type").fail("iceberg_nested_type_unknown", value=which)
    return which


def _check_identifier(item: Node, fields: Fields) -> None:
    field = fields.by_id.get(item.int32())
    if field is None:
        item.fail("iceberg_identifier_unknown", value=item.value)
    if field.type in {"struct", "list", "map", "variant"} or field.type in {"float", "double"}:
        item.fail("iceberg_identifier_type", name=field.name, type=field.type)
    if not field.required:
        item.fail("iceberg_identifier_optional", name=field.name)
    for above in fields.ancestors(field):
        if above.type != "struct" or not above.required:
            item.fail("iceberg_identifier_nested", name=field.name, above=above.name)


def _canonical_fields(fields: Sequence[Mapping[str, Any]]) -> tuple[Hashable, ...]:
    return tuple(
        (
            field["id"],
            field["name"],
            field["required"],
            _canonical(field["type"]),
            field.get("doc"),
            frozen(field.get("initial-default")),
            frozen(field.get("write-default")),
        )
        for field in fields
    )


def _canonical(kind: Any) -> Hashable:
    if isinstance(kind, str):
        return primitive(kind)
    if kind["type"] == "struct":
        return _canonical_fields(kind["fields"])
    if kind["type"] == "list":
        return ("list", kind["element-id"], kind["element-required"], _canonical(kind["element"]))
    return (
        "map",
        kind["key-id"],
        _canonical(kind["key"]),
        kind["value-id"],
        kind["value-required"],
        _canonical(kind["value"]),
    )
