"""A schema as Lance keeps it: a list of fields with ids, and metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from lance.schema import LanceSchema

from commitlog.errors import InvalidTransaction
from commitlog.lancepb.file_pb2 import Field
from commitlog.model.names import column_problem, first_problem, key_problem

_EXTENSION, _EXTENSION_NAME, _JSON = b"ARROW:extension:", b"ARROW:extension:name", b"lance.json"
SchemaMetadata = tuple[tuple[str, bytes], ...]


def schema_fields(schema: pa.Schema | LanceSchema) -> tuple[list[Field], SchemaMetadata]:
    """Return a schema's fields with their ids, parents first, and its own metadata."""
    if isinstance(schema, pa.Schema):
        # Arrow hands names over as C strings, so Lance would see them cut at a NUL.
        problem = first_problem("column", schema.names, column_problem) or first_problem(
            "column", _nested_names(schema), key_problem
        )
        if problem is not None:
            raise problem.error()
        try:
            schema = LanceSchema.from_pyarrow(schema)
        except (ValueError, pa.ArrowException) as error:
            raise InvalidTransaction(
                f"Lance cannot store this schema: {error}", field="schema", value=schema
            ) from error
    metadata, fields = _parts(schema)
    pairs = {key: bytes(value) for key, value in json.loads(metadata).items()}
    return fields, tuple(sorted(pairs.items()))


def _parts(schema: LanceSchema) -> tuple[str, list[Field]]:
    parts: tuple[Any, ...] = schema.__reduce__()[1]  # type: ignore[assignment]
    return parts[0], [Field.FromString(field) for field in parts[1:]]


def check_schema_names(schema: pa.Schema) -> None:
    """Refuse a schema with names or metadata that native code can't take; InvalidTransaction."""
    texts = [key.decode(errors="replace") for key in schema.metadata or {}]
    problem = (
        first_problem("column", schema.names, key_problem)
        or first_problem("column", _nested_names(schema), key_problem)
        or first_problem("metadata", texts, key_problem)
    )
    if problem is not None:
        raise problem.error()


def arrow_schema(schema: LanceSchema) -> pa.Schema:
    """Return the Arrow schema of what Lance reads and writes.

    JSON is text to its users, whatever Lance stores it as. The parts of a map have the names that
    they have in Lance, which compares them: Arrow calls them `key` and `value` when it imports.
    """
    stored = schema.to_pyarrow()
    children: dict[int, list[Field]] = {}
    for field in _parts(schema)[1]:
        children.setdefault(field.parent_id, []).append(field)
    top = children.get(-1, [])  # a declared table has none
    read = [_as_read(field, its, children) for field, its in zip(stored, top, strict=True)]
    return pa.schema(read, stored.metadata)


def _as_read(
    field: pa.Field[Any], its: Field, children: Mapping[int, Sequence[Field]]
) -> pa.Field[Any]:
    kind: Any = field.type
    metadata = field.metadata or {}
    if metadata.get(_EXTENSION_NAME) == _JSON:
        others = {k: v for k, v in metadata.items() if not k.startswith(_EXTENSION)}
        return pa.field(field.name, pa.json_(), field.nullable, others or None)
    if isinstance(kind, pa.BaseExtensionType) or not pa.types.is_nested(kind):
        return field
    if pa.types.is_map(kind):
        [entries] = children[its.id]
        key, value = (
            _as_read(part, named, children).with_name(named.name)
            for part, named in zip(
                (kind.key_field, kind.item_field), children[entries.id], strict=True
            )
        )
        return field.with_type(pa.map_(key, value, kind.keys_sorted))
    parts = children.get(its.id)
    if parts is None:
        return field
    inner = [_as_read(kind.field(at), part, children) for at, part in enumerate(parts)]
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct(inner))
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(inner[0]))
    if pa.types.is_large_list(kind):
        return field.with_type(pa.large_list(inner[0]))
    if pa.types.is_fixed_size_list(kind):
        return field.with_type(pa.list_(inner[0], kind.list_size))
    return field


def _nested_names(fields: Iterable[pa.Field[Any]]) -> Iterator[str]:
    for field in fields:
        kind: Any = field.type
        inner = [kind.field(at) for at in range(kind.num_fields)]
        yield from (one.name for one in inner)
        yield from _nested_names(inner)
