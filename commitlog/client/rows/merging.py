"""Upserts: pylance joins the source with the table; what it leaves out of the transaction is added.

pylance's uncommitted merge says neither which rows it touched nor which keys it inserts. The rows
are read off its deletion files; the keys are the source's, if it inserted any.

A source may lack columns. pylance then keeps what the table has: it moves whole rows, or, where the
key has an index or a struct lacks fields, writes only the columns that the source has, in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance.dataset import MergeInsertBuilder
from lance.fragment import FragmentMetadata
from pyroaring import BitMap

from commitlog.adapters.row_contract import check_columns
from commitlog.adapters.row_values import is_json
from commitlog.adapters.shown_values import python_rows
from commitlog.adapters.storage import ObjectStore, store_for
from commitlog.client.leader.arguments import heed_interrupt
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.full_storage import names_full_storage
from commitlog.client.rows.lost_files import files_stay
from commitlog.client.rows.rows import (
    ROW_ADDRESS,
    ROW_ID,
    Prepared,
    delete_rows,
    fragment_of,
    hashes_of,
    key_ids,
    keys_in,
    patches_of,
    read_deletions,
    whole,
    whole_keys,
    with_children,
    write_moved,
)
from commitlog.client.rows.rows_at import KnowsPlaces, rows_at
from commitlog.codecs.keys import hashed, packed
from commitlog.codecs.lance_objects import to_deletion_file
from commitlog.errors import InvalidTransaction
from commitlog.model.operations import KeyHashes


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """What a merge does with rows that match, with new rows, and with rows the source lacks."""

    when_matched_update_all: bool | None = None
    """Updates rows that match; the default, unless `when_matched_delete` or `_fail` is set.

    Columns that the data lacks, and fields of structs, keep their values.
    """
    when_matched_update_all_filt: str | None = None
    """Updates only where this holds; `target.x` is a column of the table, `source.x` of the data.
    """
    when_not_matched_insert_all: bool = True
    """Columns that the data lacks are null in new rows; refused if one of them may not be null."""
    when_not_matched_by_source_delete: bool = False
    when_not_matched_by_source_delete_filt: str | None = None
    when_matched_delete: bool = False
    when_matched_fail: bool = False
    """Refuses the merge if any row matches."""
    use_index: bool = True

    def __post_init__(self) -> None:
        """Reject wrong types, empty conditions, and two things to do with rows that match."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.endswith("_filt"):
                if value is not None and not (isinstance(value, str) and value.strip()):
                    raise InvalidTransaction(
                        f"{each.name}={value!r} is no condition",
                        field=each.name,
                        value=value,
                        advice="Give a condition in SQL, such as 'source.x > target.x'",
                    )
            elif value is not None and type(value) is not bool:
                raise InvalidTransaction(
                    f"{each.name} must be True or False", field=each.name, value=value
                )
        if self.when_matched_update_all is None:
            updates = not (self.when_matched_delete or self.when_matched_fail)
            object.__setattr__(self, "when_matched_update_all", updates)
        matched = ("when_matched_update_all", "when_matched_delete", "when_matched_fail")
        chosen = [name for name in matched if getattr(self, name)]
        if len(chosen) > 1:
            raise InvalidTransaction(
                f"{chosen[0]} and {chosen[1]} exclude each other",
                field=chosen[1],
                value=True,
                advice="Set one of them",
            )

    @property
    def only_deletes_others(self) -> bool:
        """Whether the data only says which rows stay."""
        matched = self.when_matched_update_all or self.when_matched_delete or self.when_matched_fail
        return not (matched or self.when_not_matched_insert_all)

    @classmethod
    def taken_from(cls, options: Mapping[str, Any]) -> tuple[MergeOptions, dict[str, Any]]:
        """Split options into those of the merge, and the others."""
        if not options:
            return DEFAULTS, {}
        own = {each.name for each in fields(cls)}
        merge = cls(**{name: value for name, value in options.items() if name in own})
        return merge, {name: value for name, value in options.items() if name not in own}


DEFAULTS = MergeOptions()


@names_full_storage
def prepare_merge(
    info: TableInfo,
    dataset: lance.LanceDataset,
    source: pa.Table,
    on: Sequence[str],
    options: MergeOptions,
    known: KnowsPlaces | None = None,
) -> Prepared:
    """Join the source with the table; the source's columns have the table's types.

    pylance does it, unless the source holds whole rows and it is known where their keys are.
    """
    check_merge(info, source, on, options)
    is_whole = _is_whole(info, source)
    if known is not None and replaces_rows(info, source, on, options):
        with files_stay(info.name, dataset.version):
            places = known.places(info, dataset, on[0], source.column(on[0]))
            if places is not None:
                return _replace(info, dataset, source, on, options, places)
    # pylance panics where an index covers only some rows and a struct lacks fields.
    builder = dataset.merge_insert(list(on))
    builder = builder.use_index(is_whole and may_use_index(source, on, options))
    try:
        with files_stay(info.name, dataset.version):
            transaction, counts = as_told(builder, options).execute_uncommitted(source)
    except (ValueError, OSError, RuntimeError) as error:
        heed_interrupt(error)
        if options.when_not_matched_insert_all:
            check_columns(source.schema, info.schema, info.name)
        raise InvalidTransaction(
            f"the merge into {info.name} cannot be executed: {error}", field="merge_insert"
        ) from error
    operation: Any = transaction.operation
    inserts = counts["num_inserted_rows"] > 0
    return Prepared(
        operation=operation,
        read_version=dataset.version,
        affected=_rows_taken(info, dataset, operation),
        keys=KeyHashes(key_ids(info, on), packed(hashes_of(info, on, source) if inserts else ())),
        counts={name.split("_")[1]: count for name, count in counts.items()},
        patches=patches_of(
            (fragment_of(dataset, image.id).metadata, image)
            for image in operation.updated_fragments
        ),
    )


def may_use_index(source: pa.Table, on: Sequence[str], options: MergeOptions) -> bool:
    """Return False for keys with nulls: by an index, pylance would leave their rows out."""
    return options.use_index and not has_nulls(source, on)


def has_nulls(rows: pa.Table | pa.RecordBatch, names: Sequence[str]) -> bool:
    """Return True if a column of these, which Lance takes in any case, holds a null."""
    keys = {name.lower() for name in names}
    given = zip(rows.schema.names, rows.columns, strict=True)
    return any(column.null_count for name, column in given if name.lower() in keys)


def as_told(builder: MergeInsertBuilder, options: MergeOptions) -> MergeInsertBuilder:
    """Set what pylance is to do; it reads a condition on the table's own rows at once."""
    if options.when_matched_update_all:
        condition = options.when_matched_update_all_filt
        builder = builder.when_matched_update_all(whole(condition) if condition else None)
    if options.when_matched_delete:
        builder = builder.when_matched_delete()
    if options.when_matched_fail:
        builder = builder.when_matched_fail()
    if options.when_not_matched_insert_all:
        builder = builder.when_not_matched_insert_all()
    if options.when_not_matched_by_source_delete:
        condition = options.when_not_matched_by_source_delete_filt
        builder = builder.when_not_matched_by_source_delete(whole(condition) if condition else None)
    return builder


def _is_whole(info: TableInfo, source: pa.Table) -> bool:
    return all(info.schema.field(field.name).type == field.type for field in source.schema)


def replaces_rows(
    info: TableInfo, source: pa.Table, on: Sequence[str], options: MergeOptions
) -> bool:
    """Return True for whole rows, each with a key of one column, in place of those that match."""
    return (
        replace(options, when_not_matched_insert_all=True, use_index=True) == DEFAULTS
        and len(on) == 1
        and not source.column(on[0]).null_count
        and len(source.schema) == len(info.schema)
        and _is_whole(info, source)
        and not info.has_blobs
    )


def _replace(
    info: TableInfo,
    dataset: lance.LanceDataset,
    source: pa.Table,
    on: Sequence[str],
    options: MergeOptions,
    places: Sequence[int],
) -> Prepared:
    """Write rows in place of those that have their keys, which are at some of these places."""
    there = rows_at(dataset, on, places)
    keys = list(whole_keys(info, on, source))
    numbers = {key: number for number, key in enumerate(keys)}
    [found] = [there.column(name) for name in on]
    valid = there.filter(pc.is_valid(found)) if found.null_count else there
    pairs = [
        (row, numbers[key]) for row, key in enumerate(whole_keys(info, on, valid)) if key in numbers
    ]
    matched = _taken(valid, [row for row, _ in pairs])
    moved = [number for _, number in pairs]
    updated, removed, affected = delete_rows(dataset, matched[ROW_ADDRESS])
    made = replaced(info, dataset, source, on, options, moved, matched[ROW_ID])
    made.operation.removed_fragment_ids, made.operation.updated_fragments = removed, updated
    return replace(made, read_version=dataset.version, affected=affected)


def replaced(
    info: TableInfo,
    dataset: lance.LanceDataset,
    source: pa.Table,
    on: Sequence[str],
    options: MergeOptions,
    moved: Sequence[int],
    row_ids: pa.ChunkedArray | None = None,
) -> Prepared:
    """Write the source's rows in place of others, which are still to be removed.

    `moved` has the number of the row that follows each of those, `row_ids` their stable ids.
    """
    keys = list(whole_keys(info, on, source))
    taken = set(moved) if options.when_not_matched_insert_all else set(range(len(keys)))
    new = [number for number in range(len(keys)) if number not in taken]
    rows = _taken(source.select(info.schema.names), [*moved, *new])
    operation = lance.LanceOperation.Update(
        new_fragments=write_moved(info, dataset, rows, row_ids),
        fields_modified=[],
        fields_for_preserving_frag_bitmap=with_children(info, info.schema.names),
        update_mode="rewrite_rows",
    )
    inserted = hashed(keys[number] for number in new)
    return Prepared(
        operation,
        0,
        keys=KeyHashes(key_ids(info, on), packed(inserted)),
        counts={"inserted": len(new), "updated": len(moved), "deleted": 0},
    )


def _taken(table: pa.Table, rows: list[int]) -> pa.Table:
    """Return some rows, by their numbers; mostly those are all."""
    is_whole = rows == list(range(table.num_rows))
    return table if is_whole else table.take(pa.array(rows, pa.int64()))


def check_key_types(table: str, schema: pa.Schema, on: Sequence[str]) -> None:
    """Reject key columns whose values Lance never finds equal."""
    for name in on:
        if is_json(schema.field(name).type):
            raise InvalidTransaction(
                f"column {name!r} of {table} is JSON, which cannot be part of a key:"
                " Lance finds no two of its values equal",
                field="on",
                value=name,
                advice="Choose columns of numbers, text, bytes, dates, times, lists or structs",
            )


def check_merge(
    info: TableInfo,
    source: pa.Table | pa.RecordBatch,
    on: Sequence[str],
    options: MergeOptions = DEFAULTS,
) -> None:
    """Refuse unknown columns, and keys that come twice, unless only their absence matters."""
    _check_key_columns(info.name, info.schema, source, on)
    if not options.only_deletes_others:
        _refuse_doubles(source, on, list(whole_keys(info, on, source)))


def check_first_merge(name: str, source: pa.Table, on: Sequence[str]) -> None:
    """Check data that a table without versions gets its columns from, as `check_merge` does."""
    _check_key_columns(name, source.schema, source, on)
    _refuse_doubles(source, on, list(keys_in(on, source)))


def _check_key_columns(
    table: str, schema: pa.Schema, source: pa.Table | pa.RecordBatch, on: Sequence[str]
) -> None:
    unknown = [name for name in on if name not in schema.names]
    if len(set(on)) != len(on):
        raise InvalidTransaction(
            f"on={on!r} names a column twice", field="on", value=on, advice="Name each once"
        )
    if unknown or not on:
        raise InvalidTransaction(
            f"{table} has no column {unknown[0]!r}" if unknown else "no key column is given",
            field="on",
            value=unknown,
            advice=f"Its columns are {', '.join(schema.names)}",
        )
    missing = [name for name in on if name not in source.schema.names]
    if missing:
        raise InvalidTransaction(
            f"the data lacks the key column {missing[0]!r}",
            field="on",
            value=missing,
            advice=f"Its columns are {', '.join(source.schema.names)}",
        )
    check_key_types(table, schema, on)


def _refuse_doubles(
    source: pa.Table | pa.RecordBatch, on: Sequence[str], keys: Sequence[bytes]
) -> None:
    if len(set(keys)) != len(keys):
        counts = Counter(keys)
        doubled = [key for key, count in counts.items() if count > 1][:3]
        twice = list(python_rows(source.select(list(on)).take([*map(keys.index, doubled)])))
        raise InvalidTransaction(
            f"the data has duplicate keys, such as {', '.join(map(repr, twice))}",
            field="on",
            value=twice,
            advice="Keep one row for each key",
        )


def _rows_taken(info: TableInfo, dataset: lance.LanceDataset, operation: Any) -> dict[int, BitMap]:
    """Return the rows that post-images lack against the version that was read.

    A vector that is with the source of a shallow clone is left to the leader to look at.
    """
    store = store_for(info.location)
    taken: dict[int, BitMap] = {}
    images = {image.id: image for image in operation.updated_fragments}
    for fragment_id in (*images, *operation.removed_fragment_ids):
        before = fragment_of(dataset, fragment_id).metadata
        if before.deletion_file is not None and before.deletion_file.base_id is not None:
            continue
        image = images.get(fragment_id)
        after = BitMap(range(before.physical_rows)) if image is None else _deleted(store, image)
        taken[fragment_id] = after - _deleted(store, before)
    return taken


def _deleted(store: ObjectStore, fragment: FragmentMetadata) -> BitMap:
    if fragment.deletion_file is None:
        return BitMap()
    return read_deletions(store, fragment.id, to_deletion_file(fragment.deletion_file))
