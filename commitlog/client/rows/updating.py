"""Updates: columns of chosen rows, set to SQL expressions or values.

Rows are moved: read whole, changed, written to new fragments. Where the table has blob columns and
none of them is set, the columns are patched in place instead, and no blob is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata
from pyarrow import types

from commitlog.adapters.row_contract import conform_column
from commitlog.adapters.row_text import is_text
from commitlog.adapters.row_values import holds_blobs
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.full_storage import names_full_storage
from commitlog.client.rows.literals import literal_column
from commitlog.client.rows.rows import (
    OFFSET_BITS,
    ROW_ADDRESS,
    ROW_ID,
    Prepared,
    Search,
    delete_rows,
    fragment_of,
    hashes_of,
    key_ids,
    patches_of,
    scan,
    with_children,
    write_moved,
)
from commitlog.codecs.keys import packed
from commitlog.errors import InvalidTransaction
from commitlog.model.operations import KeyHashes

_UNITS = ("ns", "us", "ms", "s")
"""Of times, the finest first."""


@names_full_storage
def prepare_update(
    info: TableInfo,
    dataset: lance.LanceDataset,
    values: Mapping[str, Any],
    where: str | None,
    search: Search | None = None,
) -> Prepared:
    """Compute rows again: a value is a SQL expression if it is a string, else the value itself."""
    schema = info.schema
    there = set(schema.names)
    unknown = [name for name in values if name not in there]
    if unknown or not values:
        raise InvalidTransaction(
            f"{info.name} has no column {unknown[0]!r}" if unknown else "no column is given",
            field="values",
            value=unknown,
            advice=f"Its columns are {', '.join(schema.names)}",
        )
    for field in schema:
        if field.name in values and holds_blobs(field, legacy=False):
            raise InvalidTransaction(
                f"column {field.name!r} of {info.name} holds blobs, which an update cannot set",
                field=field.name,
                advice="Use merge_insert, whose data may have blobs",
            )
    blobs = [field.name for field in schema if holds_blobs(field)]
    patches = bool(blobs) and not any(name in values for name in blobs)
    key = set(info.primary_key) if not set(info.primary_key).isdisjoint(values) else set()
    columns = [field for field in schema if not patches or field.name in key.union(values)]
    found = _read(dataset, columns, values, where, info, search)
    rows = _computed(found, columns, values, info.name)
    prepared = (
        _patch(dataset, rows, found) if patches else _move(info, dataset, rows, found, values)
    )
    keys, counts = _changed_keys(info, rows, values), {"updated": found.num_rows}
    return replace(prepared, keys=keys, counts=counts)


def _read(
    dataset: lance.LanceDataset,
    columns: list[pa.Field],
    values: Mapping[str, Any],
    where: str | None,
    info: TableInfo,
    search: Search | None,
) -> pa.Table:
    """Read the rows, with what expressions make of them."""
    projection = {
        field.name: values.get(field.name, f"`{field.name}`")
        for field in columns
        if isinstance(values.get(field.name, ""), str)
    }
    has_blobs = any(holds_blobs(field) for field in columns)
    return scan(dataset, projection or [], where, info, reads_blobs=has_blobs, search=search)


def _computed(
    found: pa.Table, columns: list[pa.Field], values: Mapping[str, Any], table: str
) -> pa.Table:
    """Return the new rows in the table's types."""
    made = []
    for field in columns:
        value = values.get(field.name, "")
        if not isinstance(value, str):
            made.append(_constant(value, field, found.num_rows, table))
            continue
        is_set = field.name in values
        chunks, row = [], 0
        # Also if no row matches: what can't be set is told now, not when one does.
        for chunk in found[field.name].chunks or [found[field.name].combine_chunks()]:
            if is_set and types.is_temporal(field.type) and is_text(chunk.type):
                chunk = _parsed(chunk, field, table)
            elif is_set and types.is_timestamp(field.type) and types.is_timestamp(chunk.type):
                chunk = _cut(chunk, field.type)
            chunks.append(conform_column(chunk, field, table, first_row=row, rounds=is_set))
            row += len(chunk)
        made.append(pa.chunked_array(chunks, field.type))
    return pa.Table.from_arrays(made, schema=pa.schema(columns))


def _constant(value: Any, field: pa.Field, count: int, table: str) -> pa.Array:
    if isinstance(value, pa.Scalar):
        one = conform_column(_array_of(value), field, table)
    else:
        one = literal_column([value], field, table)
    return one.take(pa.array([0] * count, pa.int64()))


def _array_of(value: pa.Scalar) -> pa.Array:
    if not value.is_valid:
        return pa.nulls(1, value.type)
    if isinstance(value.type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(value.type, _array_of(value.value))
    return pa.repeat(value, 1)


def _cut(times: pa.Array, kind: pa.TimestampType) -> pa.Array:
    """Return what SQL computes in the column's unit: `now()` has nanoseconds, and says no zone."""
    given = times.type
    unit = max(given.unit, kind.unit, key=_UNITS.index)
    if given.tz is None and kind.tz is not None:
        times = pc.assume_timezone(times, "UTC")
    return times.cast(pa.timestamp(unit, times.type.tz), safe=False)


def _parsed(text: pa.Array, field: pa.Field, table: str) -> pa.Array:
    """Read the dates and times that SQL writes as text; Arrow reads times of day with a date."""
    try:
        if not types.is_time(field.type):
            return text.cast(field.type)
        dated = pc.binary_join_element_wise("1970-01-01T", text.cast(pa.string()), "")
        return dated.cast(pa.timestamp(field.type.unit)).cast(field.type)
    except pa.ArrowException as error:
        example = "12:00:00" if types.is_time(field.type) else "2013-07-01T12:00:00"
        raise InvalidTransaction(
            f"column {field.name!r} of {table} is {field.type}: {error}",
            field=field.name,
            advice=f"Write it in ISO 8601, such as {example!r}",
        ) from error


def _move(
    info: TableInfo,
    dataset: lance.LanceDataset,
    rows: pa.Table,
    found: pa.Table,
    values: Mapping[str, Any],
) -> Prepared:
    updated, removed, affected = delete_rows(dataset, found[ROW_ADDRESS])
    operation = lance.LanceOperation.Update(
        removed_fragment_ids=removed,
        updated_fragments=updated,
        new_fragments=write_moved(info, dataset, rows, found[ROW_ID]),
        fields_modified=[],
        fields_for_preserving_frag_bitmap=with_children(info, values),
        update_mode="rewrite_rows",
    )
    return Prepared(operation, dataset.version, affected)


def _patch(dataset: lance.LanceDataset, rows: pa.Table, found: pa.Table) -> Prepared:
    """Write the columns of whole fragments again, which keep their rows in place."""
    addresses = found[ROW_ADDRESS]
    fragments = pc.shift_right(addresses, pa.scalar(OFFSET_BITS, addresses.type))
    keyed = rows.append_column(ROW_ADDRESS, addresses)
    changed: list[tuple[FragmentMetadata, FragmentMetadata]] = []
    offsets: dict[int, bytes] = {}
    fields: set[int] = set()
    for fragment_id in sorted(pc.unique(fragments).to_pylist()):
        fragment = fragment_of(dataset, fragment_id)
        part = keyed.filter(pc.equal(fragments, fragment_id))
        image, modified, offsets[fragment_id] = fragment.update_columns(
            part, ROW_ADDRESS, ROW_ADDRESS, with_offsets=True
        )
        changed.append((fragment.metadata, image))
        fields.update(modified)
    operation = lance.LanceOperation.Update(
        updated_fragments=[image for _, image in changed],
        fields_modified=sorted(fields),
        update_mode="rewrite_columns",
        updated_fragment_offsets=offsets,
    )
    return Prepared(operation, dataset.version, patches=patches_of(changed))


def _changed_keys(info: TableInfo, rows: pa.Table, values: Mapping[str, Any]) -> KeyHashes | None:
    if not info.primary_key:
        return None
    hashes = []
    if not set(info.primary_key).isdisjoint(values):
        hashes = hashes_of(info, info.primary_key, rows)
    return KeyHashes(key_ids(info, info.primary_key), packed(hashes))
