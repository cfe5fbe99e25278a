"""Whether Lance can open a schema: its names, its types, and how its fields lie in each other.

Lance reads a manifest's fields without checking them. An unknown type or a list without an item
makes it panic, and a name that its planner takes apart makes every scan fail. What is refused
here was tried on Lance 14.0.2: the table could be created, and then not be opened, read or written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from commitlog.lancepb.file_pb2 import Field
from commitlog.model.json_depth import is_too_deep
from commitlog.model.limits import NESTING_MAX
from commitlog.model.names import NameProblem, column_problem, first_problem, key_problem
from commitlog.model.reasons import Phrase, cut

_PLAIN = re.compile(
    r"null|bool|u?int(?:8|16|32|64)|halffloat|float|double|string|binary|large_string|large_binary"
    r"|json|blob|lance\.bfloat16|date32:day|date64:ms|time32:(?:s|ms)|time64:(?:us|ns)"
    r"|timestamp:(?:s|ms|us|ns):.+|duration:(?:s|ms|us|ns)|fixed_size_binary:[0-9]{1,9}"
    r"|decimal:128:(?:[1-9]|[12][0-9]|3[0-8]):-?[0-9]{1,3}"
    r"|decimal:256:(?:[1-9]|[1-6][0-9]|7[0-6]):-?[0-9]{1,3}"
    r"|dict:[^:]+:u?int(?:8|16|32|64):(?:true|false)"
)
_DICTIONARY = re.compile(r"dict:([^:]+):.*")
_FIXED_SIZE_LIST = "fixed_size_list:"
_NESTED = re.compile(f"(?:{_FIXED_SIZE_LIST})*")
_SIZE = re.compile(r"[0-9]{1,10}")
_UNSIZED = re.compile(r"struct|(?:large_)?(?:string|binary)|json|blob|dict:.+")
"""Elements that Lance can't write in lists of fixed size, or can't read again."""
_LISTS = {"list": False, "large_list": False, "list.struct": True, "large_list.struct": True}
"""Types that have one item, and whether it is a struct."""
FIELD_ID_END = 2**30
"""Lance gives each new field the next id, a signed integer of 32 bits."""
_STRUCTS = {"struct", "blob"}
_FORMATS_BEFORE_EMPTY_STRUCTS = frozenset({"", "0.1", "2.0"})
_FORMATS_WITHOUT_MAPS = frozenset({"0.1", "2.0", "2.1"})

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


def schema_problem(fields: Sequence[Field]) -> NameProblem | None:
    """Return why Lance couldn't open a schema or write by it, None if it can."""
    if not fields:
        return NameProblem("schema", "", Phrase("schema_empty"))
    known: set[int] = set()
    named: set[tuple[int, str]] = set()
    children: dict[int, list[Field]] = {}
    for field in fields:
        is_nested = field.parent_id != -1
        problem = column_problem(field.name, is_nested=is_nested)
        if problem:
            pass
        elif (field.parent_id, field.name) in named:
            problem = Phrase("column_name_twice")
        elif not 0 <= field.id < FIELD_ID_END or field.id in known:
            problem = Phrase("column_id_unusable", {"id": field.id})
        elif is_nested and field.parent_id not in known:
            problem = Phrase("column_before_parent", {"parent": field.parent_id})
        if problem:
            return NameProblem("column", field.name, problem)
        children.setdefault(field.parent_id, []).append(field)
        named.add((field.parent_id, field.name))
        known.add(field.id)
    for field in fields:
        problem = (
            _type_problem(field, children.get(field.id, []), children)
            or _extension_problem(field)
            or _encoding_problem(field)
        )
        if problem:
            return NameProblem("column", field.name, problem)
        if found := first_problem("metadata key", field.metadata, key_problem):
            return found
    return None


def format_problem(fields: Sequence[Field], storage_version: str) -> NameProblem | None:
    """Return a column that Lance couldn't write or read in a file format, None if there is none.

    From 2.1 on, a struct without fields takes a column of the file when Lance reads and none when
    it writes: later columns are read as null, or as their neighbours.
    """
    if storage_version in _FORMATS_WITHOUT_MAPS:
        for field in fields:
            if field.logical_type == "map":
                needs = {"format": storage_version}
                return NameProblem("column", field.name, Phrase("map_in_old_format", needs))
    if storage_version in _FORMATS_BEFORE_EMPTY_STRUCTS:
        return None
    parents = {field.parent_id for field in fields}
    columns = [field for field in fields if field.parent_id == -1]
    for field in columns[:-1]:
        if field.logical_type == "struct" and field.id not in parents:
            return NameProblem("column", field.name, Phrase("struct_empty_before_others"))
    return None


def nesting_problem(fields: Iterable[Field]) -> NameProblem | None:
    """Return the first column of a sound schema that lies too deep, None if there is none."""
    levels: dict[int, int] = {}
    for field in fields:
        own = 1 + field.logical_type.count(_FIXED_SIZE_LIST)
        level = levels[field.id] = levels.get(field.parent_id, 0) + own
        if level > NESTING_MAX:
            problem = Phrase("column_too_deep", {"level": level, "level_max": NESTING_MAX})
            return NameProblem("column", field.name, problem)
    return None


def schema_key_problem(key: str) -> Phrase | None:
    """Return why a key can't be in a schema's own metadata, None if it can."""
    return Phrase("key_of_columns") if key == _EXTENSION else key_problem(key)


def _type_problem(
    field: Field, items: Sequence[Field], children: Mapping[int, Sequence[Field]]
) -> Phrase | None:
    kind = field.logical_type
    named = {"kind": cut(kind)}
    if kind in _STRUCTS:
        is_empty = not items and field.parent_id != -1
        return Phrase("struct_empty") if is_empty else None
    if kind in _LISTS:
        if len(items) == 1 and (items[0].logical_type in _STRUCTS) == _LISTS[kind]:
            return None
        return Phrase("list_without_item", named)
    if kind == "map":
        pair = children.get(items[0].id, []) if len(items) == 1 else []
        is_map = len(items) == 1 and items[0].logical_type == "struct" and len(pair) == 2
        return None if is_map else Phrase("map_without_pair")
    if kind.startswith(_FIXED_SIZE_LIST) and _UNSIZED.fullmatch(_unwrapped(kind)[0]):
        return Phrase("list_of_unsized", named)
    if items:
        return Phrase("type_holds_no_fields", named)
    return None if _is_leaf(kind) else Phrase("type_unknown", named)


def _unwrapped(kind: str) -> tuple[str, list[str]]:
    """Return the type in lists of fixed size, and their sizes; of a broken type, anything."""
    whole = _NESTED.match(kind)
    assert whole is not None  # of nothing, if need be
    count = len(whole[0]) // len(_FIXED_SIZE_LIST)
    inner, *sizes = kind[whole.end() :].rsplit(":", count)
    return (inner, sizes) if len(sizes) == count else ("", sizes)


def _is_leaf(kind: str) -> bool:
    kind, sizes = _unwrapped(kind)
    if not all(_SIZE.fullmatch(size) and 0 < int(size) < 2**31 for size in sizes):
        return False
    if dictionary := _DICTIONARY.fullmatch(kind):
        value = dictionary[1]
        return _PLAIN.fullmatch(kind) is not None and _PLAIN.fullmatch(value) is not None
    return _PLAIN.fullmatch(kind) is not None


def _extension_problem(field: Field) -> Phrase | None:
    name = field.metadata.get(_EXTENSION, b"").decode("utf-8", "replace")
    storage = _STORAGE.get(name)
    match = storage.fullmatch(field.logical_type) if storage is not None else None
    if storage is not None and match is None:
        return Phrase("extension_unfit", {"extension": name, "kind": cut(field.logical_type)})
    content = field.metadata.get(_EXTENSION_METADATA, b"")
    if name == "arrow.fixed_shape_tensor" and match is not None:
        shape = _json_of(content).get("shape")
        if not isinstance(shape, list) or not _holds(shape, int(match[1])):
            return Phrase("extension_undescribed", {"extension": name})
    if name == "arrow.opaque":
        said = _json_of(content)
        if not all(isinstance(said.get(key), str) for key in ("type_name", "vendor_name")):
            return Phrase("extension_undescribed", {"extension": name})
    return None


def _holds(shape: Sequence[Any], size: int) -> bool:
    """Return True if a tensor of this shape has so many values, more than none."""
    product = 1
    for length in shape:
        if type(length) is not int or length < 0 or product > size:
            return False  # without multiplying on: numbers may be many, and long
        product *= length
    return product == size


def _json_of(content: bytes) -> dict[str, Any]:
    try:
        value = None if is_too_deep(content.decode("latin-1")) else json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _encoding_problem(field: Field) -> Phrase | None:
    for key, known in _ENCODINGS.items():
        encoded = field.metadata.get(key)
        if encoded is None:
            continue
        value = encoded.decode("utf-8", "replace")
        if (value.lower() if key == _LOWERED else value) not in known:
            return Phrase(
                "encoding_unknown", {"key": key, "value": cut(value), "known": sorted(known)}
            )
    return None
