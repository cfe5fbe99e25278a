"""Whether Lance can open a schema: its names, its types, and how its fields lie in each other.

Lance reads a manifest's fields without checking them. An unknown type or a list without an item
makes it panic, and a name that its planner takes apart makes every scan fail. What is refused
here was tried on Lance 14.0.2: the table could be created, and then not be opened, read or written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from google.protobuf.message import DecodeError

from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.names import (
    NameProblem,
    column_problem,
    first_problem,
    key_problem,
    label_problem,
    problem_of,
)
from commitlog.model.operations import CreateTable, LanceCommit, Operation

_PLAIN = re.compile(
    r"null|bool|u?int(?:8|16|32|64)|halffloat|float|double|string|binary|large_string|large_binary"
    r"|json|blob|lance\.bfloat16|date32:day|date64:ms|time32:(?:s|ms)|time64:(?:us|ns)"
    r"|timestamp:(?:s|ms|us|ns):.+|duration:(?:s|ms|us|ns)|fixed_size_binary:[0-9]{1,9}"
    r"|decimal:128:(?:[1-9]|[12][0-9]|3[0-8]):-?[0-9]{1,3}"
    r"|decimal:256:(?:[1-9]|[1-6][0-9]|7[0-6]):-?[0-9]{1,3}"
    r"|dict:[^:]+:u?int(?:8|16|32|64):(?:true|false)"
)
_DICTIONARY = re.compile(r"dict:([^:]+):.*")
_FIXED_SIZE_STRUCT = re.compile(r"fixed_size_list:struct:[1-9][0-9]{0,8}")
_LISTS = {"list": False, "large_list": False, "list.struct": True, "large_list.struct": True}
"""Types that have one item, and whether it is a struct."""
_STRUCTS = {"struct", "blob"}

_EXTENSION, _EXTENSION_METADATA = "ARROW:extension:name", "ARROW:extension:metadata"
_STORAGE = {
    "arrow.uuid": re.compile(r"fixed_size_binary:16"),
    "arrow.bool8": re.compile(r"int8"),
    "arrow.json": re.compile(r"json"),
    "lance.json": re.compile(r"json|large_binary"),
    "lance.blob.v2": re.compile(r"struct|blob"),
    "arrow.variable_shape_tensor": re.compile(r"struct"),
    "arrow.fixed_shape_tensor": re.compile(r"fixed_size_list:.+:([0-9]+)"),
}
_ENCODINGS = {
    "lance-encoding:compression": frozenset({"none", "zstd", "lz4", "fsst"}),
    "lance-encoding:structural-encoding": frozenset({"miniblock", "fullzip", "sparse"}),
}
_LOWERED = "lance-encoding:structural-encoding"
_TYPE_ADVICE = "Use a type that Lance has"


def operation_problem(operation: Operation, message: Transaction | None) -> NameProblem | None:
    """Return what an operation brings that Lance couldn't open, None if nothing.

    `message` is Lance's own, of a LanceCommit. The client, the servers and the machine all ask
    this.
    """
    if isinstance(operation, CreateTable):
        try:
            fields = [Field.FromString(encoded) for encoded in operation.fields]
        except DecodeError:
            return None  # told apart where the fields are read
        return (
            problem_of(operation)
            or schema_problem(fields)
            or first_problem("metadata key", dict(operation.schema_metadata), key_problem)
        )
    if isinstance(operation, LanceCommit):
        if message is None or message.HasField("append"):
            return None
        return message_problem(message) or first_problem(
            "metadata key", dict(operation.schema_metadata or ()), key_problem
        )
    return problem_of(operation)


def message_problem(message: Transaction) -> NameProblem | None:
    """Return what is wrong with the schema and the names in a message, None if nothing."""
    which = message.WhichOneof("operation")
    if which in {"overwrite", "merge", "project"}:
        body = getattr(message, which)
        problem = schema_problem(body.schema) if body.schema else None
        if which == "overwrite":
            problem = problem or first_problem("config key", body.config_upsert_values, key_problem)
        return problem
    if which == "update_config":
        return first_problem("metadata key", _config_keys(message.update_config), key_problem)
    if which == "create_index":
        names = (index.name for index in message.create_index.new_indices)
        return first_problem("index", names, label_problem)
    if which in {"update_bases", "clone"}:
        return first_problem("location", _paths(message), key_problem)
    return None


def _paths(message: Transaction) -> Iterable[str]:
    if message.HasField("clone"):
        return (message.clone.ref_path,)
    return (text for base in message.update_bases.new_bases for text in (base.name, base.path))


def _config_keys(operation: Transaction.UpdateConfig) -> Iterable[str]:
    yield from operation.upsert_values
    yield from operation.schema_metadata
    for old in operation.field_metadata.values():
        yield from old.metadata
    maps = [operation.config_updates, operation.table_metadata_updates]
    maps += [operation.schema_metadata_updates, *operation.field_metadata_updates.values()]
    for update in maps:
        # A bad key that is there already may be removed.
        yield from (entry.key for entry in update.update_entries if entry.HasField("value"))


def schema_problem(fields: Sequence[Field]) -> NameProblem | None:
    """Return why Lance couldn't open a schema or write by it, None if it can."""
    known: dict[int, Field] = {}
    children: dict[int, list[Field]] = {}
    for field in fields:
        is_nested = field.parent_id != -1
        problem = column_problem(field.name, is_nested=is_nested)
        advice = "Give the column another name"
        siblings = children.setdefault(field.parent_id, [])
        if problem:
            pass
        elif any(other.name == field.name for other in siblings):
            problem = "has the name of another column"
        elif field.id < 0 or field.id in known:
            problem, advice = f"has the id {field.id}", "Give distinct ids, from 0"
        elif is_nested and field.parent_id not in known:
            problem = f"comes before its parent {field.parent_id}"
            advice = "List parents before their children"
        if problem:
            return NameProblem("column", field.name, problem, advice)
        siblings.append(field)
        known[field.id] = field
    for field in fields:
        problem = (
            _type_problem(field, children.get(field.id, []), children)
            or _extension_problem(field)
            or _encoding_problem(field)
        )
        if problem:
            return NameProblem("column", field.name, problem, _TYPE_ADVICE)
        if found := first_problem("metadata key", field.metadata, key_problem):
            return found
    return None


def _type_problem(
    field: Field, items: Sequence[Field], children: Mapping[int, Sequence[Field]]
) -> str:
    kind = field.logical_type
    if kind in _STRUCTS:
        return ""
    if kind in _LISTS:
        if len(items) == 1 and (items[0].logical_type in _STRUCTS) == _LISTS[kind]:
            return ""
        return f"has the type {kind} with other fields in it than one item"
    if kind == "map":
        pair = children.get(items[0].id, []) if len(items) == 1 else []
        is_map = len(items) == 1 and items[0].logical_type == "struct" and len(pair) == 2
        return "" if is_map else "has the type map without a struct of a key and a value in it"
    if _FIXED_SIZE_STRUCT.fullmatch(kind):
        is_struct = len(items) == 1 and items[0].logical_type == "struct"
        return "" if is_struct else f"has the type {kind} without a struct in it"
    if items:
        return f"has fields in it, and its type {kind[:60]} holds none"
    return "" if _is_leaf(kind) else f"has the type {ascii(kind[:60])}, which Lance doesn't know"


def _is_leaf(kind: str) -> bool:
    while kind.startswith("fixed_size_list:"):
        kind = kind.removeprefix("fixed_size_list:")
        kind, _, size = kind.rpartition(":")
        if not (size.isascii() and size.isdigit() and 0 < int(size) < 2**31 and len(size) < 11):
            return False
    if dictionary := _DICTIONARY.fullmatch(kind):
        value = dictionary[1]
        return _PLAIN.fullmatch(kind) is not None and _PLAIN.fullmatch(value) is not None
    return _PLAIN.fullmatch(kind) is not None


def _extension_problem(field: Field) -> str:
    name = field.metadata.get(_EXTENSION, b"").decode("utf-8", "replace")
    storage = _STORAGE.get(name)
    match = storage.fullmatch(field.logical_type) if storage is not None else None
    if storage is not None and match is None:
        return f"is {name} by its metadata and {field.logical_type[:60]} by its type"
    content = field.metadata.get(_EXTENSION_METADATA, b"")
    if name == "arrow.fixed_shape_tensor" and match is not None:
        shape = _json_of(content).get("shape")
        if not (
            isinstance(shape, list)
            and all(type(size) is int and size >= 0 for size in shape)
            and prod(shape) == int(match[1])
        ):
            return "is a tensor whose shape doesn't follow from its metadata"
    if name == "arrow.opaque":
        said = _json_of(content)
        if not all(isinstance(said.get(key), str) for key in ("type_name", "vendor_name")):
            return "is opaque without the names of its type and vendor"
    return ""


def _json_of(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _encoding_problem(field: Field) -> str:
    for key, known in _ENCODINGS.items():
        encoded = field.metadata.get(key)
        if encoded is None:
            continue
        value = encoded.decode("utf-8", "replace")
        if (value.lower() if key == _LOWERED else value) not in known:
            return f"has {ascii(value[:40])} for {key}, which is one of {', '.join(sorted(known))}"
    return ""
