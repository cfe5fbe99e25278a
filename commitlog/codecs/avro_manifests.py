"""Iceberg's manifest lists: read in any writer's form, written in one form.

Writers name a column as they like, so columns are found by their ids. What this program writes
isn't compressed: the bytes follow from the values alone, whatever library is at hand. Who wants
only the paths of files reads them of any version of a list or manifest.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import fastavro

from commitlog.codecs.avro_bounds import MAGIC, check_avro
from commitlog.codecs.avro_compiled import write_long, write_text
from commitlog.core.iceberg.manifests import ListHeader, Record
from commitlog.errors import UnsupportedFormat
from commitlog.model.limits import ICEBERG_LIST_BYTES_MAX, ICEBERG_METADATA_BYTES_MAX

_COLUMNS: tuple[tuple[int, str, str, int, Any], ...] = (
    (500, "manifest_path", "string", 1, None),
    (501, "manifest_length", "long", 1, None),
    (502, "partition_spec_id", "int", 1, None),
    (517, "content", "int", 2, 0),
    (515, "sequence_number", "long", 2, 0),
    (516, "min_sequence_number", "long", 2, 0),
    (503, "added_snapshot_id", "long", 1, None),
    (504, "added_files_count", "int", 1, None),
    (505, "existing_files_count", "int", 1, None),
    (506, "deleted_files_count", "int", 1, None),
    (512, "added_rows_count", "long", 1, None),
    (513, "existing_rows_count", "long", 1, None),
    (514, "deleted_rows_count", "long", 1, None),
)
"""Id, name, type, the format that has it first, and what is meant where it isn't there."""
_SUMMARY = {509: "contains_null", 518: "contains_nan", 510: "lower_bound", 511: "upper_bound"}
_PARTITIONS, _KEY, _FIRST_ROW = 507, 519, 520
_KNOWN = frozenset({_PARTITIONS, _KEY, _FIRST_ROW, *(column[0] for column in _COLUMNS)})
_ADDED = 1
"""The status of an entry whose file its manifest's own snapshot adds."""


def read_list(data: bytes) -> list[Record]:
    """Return what a manifest list names; UnsupportedFormat if it cannot be rewritten."""
    check_avro(data, ICEBERG_LIST_BYTES_MAX)
    try:
        reader = fastavro.reader(io.BytesIO(data))
        schema: Any = reader.writer_schema
        names, summary = _names(schema["fields"], _KNOWN), _summary_names(schema["fields"])
        return [_record(names, summary, row) for row in reader]
    except UnsupportedFormat:
        raise
    except Exception as error:  # fastavro raises whatever broken bytes lead it to
        raise UnsupportedFormat(f"not a manifest list of Iceberg: {error}") from error


def encode_record(record: Record, format_version: int) -> bytes:
    """Return a manifest's bytes in a list of this format; UnsupportedFormat if it doesn't fit."""
    out = io.BytesIO()
    try:
        fastavro.schemaless_writer(out, _schema(format_version), record)
    except Exception as error:  # fastavro raises whatever a value leads it to
        raise UnsupportedFormat(f"{record.get('manifest_path')!r} doesn't fit: {error}") from error
    return out.getvalue()


def encode_list(header: ListHeader, records: Sequence[bytes]) -> bytes:
    """Return the bytes of a manifest list."""
    schema = json.dumps(_schema_json(header.format_version), separators=(",", ":"))
    facts = {
        "avro.codec": "null",
        "avro.schema": schema,
        "format-version": str(header.format_version),
        "snapshot-id": str(header.snapshot_id),
        "parent-snapshot-id": "null" if header.parent_id is None else str(header.parent_id),
    }
    if header.format_version > 1:
        facts["sequence-number"] = str(header.sequence_number)
    if header.first_row_id is not None:
        facts["first-row-id"] = str(header.first_row_id)
    return container(facts, records)


def container(facts: Mapping[str, str], records: Sequence[bytes]) -> bytes:
    """Return an Avro file of one block."""
    body = b"".join(records)
    meta = b"".join(write_text(k) + write_text(v) for k, v in facts.items())
    head = b"".join((MAGIC, write_long(len(facts)), meta, b"\0"))
    sync = hashlib.sha256(head + body).digest()[:16]
    if not records:
        return head + sync
    return b"".join((head, sync, write_long(len(records)), write_long(len(body)), body, sync))


def _names(fields: Sequence[Mapping[str, Any]], known: frozenset[int]) -> dict[int, str]:
    found: dict[int, str] = {}
    for field in fields:
        id_ = field.get("field-id")
        if id_ not in known:
            raise UnsupportedFormat(f"column {field['name']!r} has the unknown id {id_}")
        found[int(id_)] = str(field["name"])
    return found


def _summary_names(fields: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    for field in fields:
        if field.get("field-id") == _PARTITIONS:
            kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
            array = next(kind for kind in kinds if isinstance(kind, dict))
            return _names(array["items"]["fields"], frozenset(_SUMMARY))
    return {}


def _record(names: Mapping[int, str], summary: Mapping[int, str], row: Any) -> Record:
    record = {
        name: row[names[id_]] if id_ in names else absent for id_, name, _, _, absent in _COLUMNS
    }
    partitions = row[names[_PARTITIONS]] if _PARTITIONS in names else None
    if partitions is not None:
        partitions = [
            {name: one[summary[id_]] if id_ in summary else None for id_, name in _SUMMARY.items()}
            for one in partitions
        ]
    record["partitions"] = partitions
    record["key_metadata"] = row[names[_KEY]] if _KEY in names else None
    record["first_row_id"] = row[names[_FIRST_ROW]] if _FIRST_ROW in names else None
    return record


def filtered(data: bytes) -> bytes:
    """Return a manifest with only the files that its own snapshot adds.

    Its bytes follow from the entries alone: they aren't compressed. UnsupportedFormat if it isn't
    a manifest.
    """
    check_avro(data, ICEBERG_LIST_BYTES_MAX)
    try:
        reader = fastavro.reader(io.BytesIO(data))
        facts = {name: str(value) for name, value in reader.metadata.items()}
        schema = fastavro.parse_schema(json.loads(facts["avro.schema"]))
        records = []
        for row in reader:
            entry: Any = row
            if entry["status"] == _ADDED:
                out = io.BytesIO()
                fastavro.schemaless_writer(out, schema, entry)
                records.append(out.getvalue())
    except Exception as error:  # fastavro raises whatever broken bytes lead it to
        raise UnsupportedFormat(f"not a manifest of Iceberg: {error}") from error
    return container({**facts, "avro.codec": "null"}, records)


@lru_cache(maxsize=8)
def _schema(format_version: int) -> Any:
    return fastavro.parse_schema(_schema_json(format_version))


def _schema_json(format_version: int) -> dict[str, Any]:
    optional = {"default": None}
    fields: list[dict[str, Any]] = [
        {"name": name, "type": kind, "field-id": id_}
        for id_, name, kind, since, _ in _COLUMNS
        if since <= format_version
    ]
    summary = {
        "type": "record",
        "name": "r508",
        "fields": [
            {"name": "contains_null", "type": "boolean", "field-id": 509},
            {"name": "contains_nan", "type": ["null", "boolean"], **optional, "field-id": 518},
            {"name": "lower_bound", "type": ["null", "bytes"], **optional, "field-id": 510},
            {"name": "upper_bound", "type": ["null", "bytes"], **optional, "field-id": 511},
        ],
    }
    array = {"type": "array", "items": summary, "element-id": 508}
    fields += [
        {"name": "partitions", "type": ["null", array], **optional, "field-id": _PARTITIONS},
        {"name": "key_metadata", "type": ["null", "bytes"], **optional, "field-id": _KEY},
    ]
    if format_version >= 3:
        fields.append(
            {"name": "first_row_id", "type": ["null", "long"], **optional, "field-id": _FIRST_ROW}
        )
    return {"type": "record", "name": "manifest_file", "fields": fields}


def manifest_paths(manifest_list: bytes) -> list[str]:
    """Return the manifests that a manifest list names; UnsupportedFormat if it isn't one."""
    return _paths(manifest_list, lambda record: record["manifest_path"])


def data_paths(manifest: bytes) -> list[str]:
    """Return the data and delete files that a manifest names; UnsupportedFormat if it isn't one."""
    return _paths(manifest, lambda record: record["data_file"]["file_path"])


def _paths(data: bytes, path_of: Callable[[Any], Any]) -> list[str]:
    check_avro(data, ICEBERG_METADATA_BYTES_MAX)
    try:
        return [str(path_of(record)) for record in fastavro.reader(io.BytesIO(data))]
    except Exception as error:  # fastavro raises whatever broken bytes lead it to
        raise UnsupportedFormat(f"not a manifest of Iceberg: {error}") from error
