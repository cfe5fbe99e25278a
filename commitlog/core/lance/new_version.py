"""Whether Lance can open the version that an operation makes of a table.

Asked of each version that changes more than fragments, and of each that somebody else built. Only
what the operation changed is looked at, so a table that has something bad from before stays usable
as far as it is.
"""

from __future__ import annotations

from collections.abc import Container
from enum import Enum
from typing import Any

from commitlog.core.decisions import Refused, rejected
from commitlog.core.draft import Draft, Parsed, View
from commitlog.core.lance.bases import check_bases_kept
from commitlog.core.lance.operation_check import operation_problem
from commitlog.core.lance.shared_files import (
    changed_columns,
    columns_that_stay,
    fields_of_other_type,
    renewed_blobs,
)
from commitlog.core.manifest.data_files import check_fragment, place_in
from commitlog.core.manifest.feature_flags import FLAG_STABLE_ROW_IDS, MANAGED_BLOBS_KEY
from commitlog.core.manifest.fragment_changes import FRAGMENT_ID_MAX
from commitlog.core.manifest.header import ManifestHeader, header_in
from commitlog.core.manifest.manifest_state import DeltaRefused, ManifestDelta, ManifestState
from commitlog.core.manifest.metadata_changes import verify_primary_key
from commitlog.core.manifest.row_lineage import check_lineage
from commitlog.core.operations.operation import LanceOperation
from commitlog.core.schema_check.file_presence import (
    check_brought_files,
    check_deletions,
    check_index_files,
    indices_in,
)
from commitlog.core.schema_check.index_entries import index_problem, section_problem
from commitlog.core.schema_check.schema import (
    FIELD_ID_END,
    format_problem,
    nesting_problem,
    schema_key_problem,
    schema_problem,
)
from commitlog.core.tables.creation import STORAGE_VERSIONS
from commitlog.lancepb.table_pb2 import DataFragment, Manifest
from commitlog.model.limits import (
    BASES_KEPT_SINCE,
    BLOBS_RENEWED_SINCE,
    NAMES_CHECKED_SINCE,
    NESTING_SINCE,
    PROTOCOL_SUPPORTED,
    SHARED_FILES_SINCE,
)
from commitlog.model.names import NameProblem, first_problem, key_problem
from commitlog.model.operations import Operation, target
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code
from commitlog.model.table import format_table_id

_DROPPED = -2
"""In a file's list of fields: a column that was dropped or replaced."""


class Builder(Enum):
    """Who made a version's manifest."""

    HERE = "the machine"
    PYLANCE = "pylance, of an operation"
    CLIENT = "a client, who staged it"


def check_operation(draft: Draft, operation: Operation, parsed: Parsed | None) -> None:
    """Refuse an operation that brings what Lance can't open, whatever the table is like."""
    if draft.rules.protocol < NAMES_CHECKED_SINCE:
        return
    message = parsed.transaction if parsed is not None else None
    problem = operation_problem(operation, message, draft.rules.protocol)
    if problem is not None:
        raise problem_refused(problem, format_table_id(target(operation)))


def check_version(
    draft: Draft, view: View, delta: ManifestDelta, of_kind: LanceOperation[Any], built_by: Builder
) -> None:
    """Refuse a version that Lance couldn't open, read or continue from."""
    state = view.state
    if draft.rules.protocol < NAMES_CHECKED_SINCE or state is None:
        return
    if of_kind.returns_to_version and built_by is Builder.PYLANCE:
        return  # the log has had it before
    header = bases = state.header
    if delta.header is not None:
        header = header_in(delta.header)
        by_file = draft.rules.protocol >= SHARED_FILES_SINCE
        renewed = draft.rules.protocol >= BLOBS_RENEWED_SINCE and renewed_blobs(
            state.header, header
        )
        check_header(
            state.header,
            header,
            format_table_id(view.table.table_id),
            renumbers_fields=of_kind.renumbers_fields
            and (by_file or not _keeps_files(state, delta)),
            renewed=renewed or (),
            protocol=draft.rules.protocol,
        )
        if draft.rules.protocol >= BASES_KEPT_SINCE:
            bases = header
            check_bases_kept(state, header, delta)
        if renewed or (of_kind.renumbers_fields and by_file):
            _check_shared_files(view, state, header, delta)
    if not of_kind.only_adds or built_by is not Builder.HERE:
        _check_fragments(state, delta, of_kind, header)
    section = state.index_section if delta.index_section is None else delta.index_section
    if section and (delta.index_section or header.fields != state.header.fields):
        _check_indices(draft, view, state, section, header, bases)
    if not of_kind.only_adds or built_by is not Builder.HERE:
        _check_fragment_ids(state, delta, of_kind)
    if built_by is Builder.CLIENT:
        _check_row_ids(state, delta)
    if delta.fragments and (not of_kind.only_adds or built_by is Builder.CLIENT):
        check_deletions(draft, view, state, bases, delta)
        check_brought_files(draft, view, state, header, delta)


def check_header(
    before: ManifestHeader,
    after: ManifestHeader,
    name: str,
    *,
    renumbers_fields: bool,
    renewed: Container[int] = (),
    protocol: int = PROTOCOL_SUPPORTED,
) -> None:
    """Refuse a schema, metadata or format that Lance can't open."""
    old, new = before.message, after.message
    # As lists: by id, a field that is there twice is one.
    has_other_fields = list(old.fields) != list(new.fields)
    problem = None
    if has_other_fields or new.data_format != old.data_format:
        problem = schema_problem(new.fields)
        problem = problem or format_problem(new.fields, new.data_format.version)
    problem = problem or _new_keys(old, new)
    if problem is None and has_other_fields and protocol >= NESTING_SINCE:
        problem = nesting_problem(new.fields)
    if problem is not None:
        raise problem_refused(problem, name)
    if has_other_fields:
        verify_primary_key(new, after.fields)
    others = [] if renumbers_fields else fields_of_other_type(before, after)
    others = [field_id for field_id in others if field_id not in renewed]
    if others:
        raise _of_another_type(others[0], name)
    lowest = max((field.id for field in new.fields), default=-1)
    mark = new.max_allocated_field_id if new.HasField("max_allocated_field_id") else lowest
    if not lowest <= mark < FIELD_ID_END:
        raise rejected(
            Code.INVALID_OPERATION,
            "field_id_mark_unusable",
            table=name,
            value=mark,
            lowest=lowest,
            end=FIELD_ID_END,
        )
    managed = new.schema_metadata.get(MANAGED_BLOBS_KEY, b"false")
    if managed not in (b"true", b"false"):
        raise rejected(
            Code.INVALID_OPERATION, "managed_blobs_unusable", table=name, value=managed[:40]
        )
    # Lance writes no files of the oldest format any more, and never beside newer ones.
    if new.data_format != old.data_format and new.data_format.version not in STORAGE_VERSIONS:
        raise rejected(
            Code.INVALID_OPERATION,
            "table_format_unknown",
            table=name,
            format=new.data_format.version,
            known=STORAGE_VERSIONS,
        )
    ids = [base.id for base in new.base_paths]
    if len(set(ids)) != len(ids):
        raise rejected(Code.INVALID_OPERATION, "base_path_ids_twice", table=name)


def _new_keys(old: Manifest, new: Manifest) -> NameProblem | None:
    checks = {"schema_metadata": schema_key_problem}
    for field in ("schema_metadata", "config", "table_metadata"):
        keys = (key for key in getattr(new, field) if key not in getattr(old, field))
        if problem := first_problem("metadata key", keys, checks.get(field, key_problem)):
            return problem
    return first_problem("base path", (base.path for base in new.base_paths), key_problem)


def _check_shared_files(
    view: View, state: ManifestState, header: ManifestHeader, delta: ManifestDelta
) -> None:
    """Refuse another type for a field of which a file that stays has a column."""
    changed = changed_columns(state.header, header)
    held = changed and columns_that_stay(view.table.location, state, header, delta, changed)
    if held:
        raise _of_another_type(min(held), format_table_id(view.table.table_id))


def _of_another_type(field_id: int, name: str) -> Refused:
    return rejected(Code.WRONG_SCHEMA, "field_of_another_type", table=name, field=field_id)


def problem_refused(problem: NameProblem, name: str) -> Refused:
    """Return the refusal of a name or schema that Lance can't open."""
    codes = {"column": Code.WRONG_SCHEMA, "location": Code.LOCATION_NOT_ALLOWED}
    code = codes.get(problem.field, Code.INVALID_OPERATION)
    return rejected(code, "operation_unusable", table=name, detail=problem.phrase)


def _check_indices(
    draft: Draft,
    view: View,
    state: ManifestState,
    encoded: bytes,
    header: ManifestHeader,
    bases: ManifestHeader,
) -> None:
    name = format_table_id(view.table.table_id)
    known = {i.SerializeToString(deterministic=True) for i in indices_in(state.index_section)}
    indices = indices_in(encoded)
    new = [i for i in indices if i.SerializeToString(deterministic=True) not in known]
    for index in new:
        problem = index_problem(index)
        if not problem and index.HasField("base_id") and index.base_id not in header.bases:
            problem = Phrase("index_base_unknown", {"base": index.base_id})
        if problem:
            raise problem_refused(NameProblem("index", index.name, problem), name)
    bad, problem = section_problem(indices, header.fields)
    kept = {index.uuid.uuid: index for index in indices_in(state.index_section)}
    for index in new if not problem else ():
        known_index = kept.get(index.uuid.uuid, index)
        if known_index.files and list(known_index.files) != list(index.files):
            bad, problem = index.name, Phrase("index_files_differ")
    if problem:
        raise problem_refused(NameProblem("index", bad, problem), name)
    check_index_files(draft, view, state, bases, new)


def _check_fragments(
    state: ManifestState, delta: ManifestDelta, of_kind: LanceOperation[Any], header: ManifestHeader
) -> None:
    """Refuse fragments that Lance couldn't read; those that stay keep their rows and files."""
    is_stable = bool(delta.reader_feature_flags & FLAG_STABLE_ROW_IDS)
    for fragment_id, encoded in delta.fragments:
        fragment = DataFragment.FromString(encoded)
        check_fragment(header, fragment)
        check_lineage(fragment, is_stable=is_stable)
        known = None if of_kind.renumbers_fields else state.fragments.get(fragment_id)
        if known is not None:
            _check_kept(DataFragment.FromString(known), fragment)


def _keeps_files(state: ManifestState, delta: ManifestDelta) -> bool:
    """Return True if a version has files of the head as they are, fields included."""
    replaced = [i for i, _ in delta.fragments if i in state.fragments]
    if len(replaced) + len(delta.removed) < len(state.fragments):
        return True
    new = dict(delta.fragments)
    return any(_files(new[i]) & _files(state.fragments[i]) for i in replaced)


def _files(encoded: bytes) -> set[tuple[str, int, tuple[int, ...]]]:
    files = DataFragment.FromString(encoded).files
    return {(file.path, file.base_id, tuple(file.fields)) for file in files}


def _check_kept(before: DataFragment, after: DataFragment) -> None:
    where = f"fragments[{before.id}]"
    if after.physical_rows != before.physical_rows:
        raise DeltaRefused(
            "rows_differ", field=where, value=after.physical_rows, rows=before.physical_rows
        )
    if after.inline_row_ids != before.inline_row_ids:
        raise DeltaRefused("row_ids_differ", field=where)
    files = {(file.path, file.base_id): file for file in before.files}
    for file in after.files:
        known = files.get((file.path, file.base_id))
        if known is None:
            continue
        if len(file.fields) != len(known.fields) or any(
            new not in (old, _DROPPED) for old, new in zip(known.fields, file.fields, strict=True)
        ):
            holds = list(known.fields)
            raise DeltaRefused(
                "fields_differ", field=place_in(file), value=list(file.fields), holds=holds
            )
        for name in ("column_indices", "file_major_version", "file_minor_version"):
            if getattr(file, name) != getattr(known, name):
                raise DeltaRefused("file_differs", field=place_in(file, f".{name}"))


def _check_fragment_ids(
    state: ManifestState, delta: ManifestDelta, of_kind: LanceOperation[Any]
) -> None:
    """Refuse ids of fragments that leave no room for others: they end at 2**32."""
    last = state.last_fragment_id
    new = [i for i, _ in delta.fragments if i not in state.fragments]
    highest = max(new, default=-1)
    if delta.max_fragment_id is not None and delta.max_fragment_id < highest:
        raise _counter_refused(
            "max_fragment_id", delta.max_fragment_id, highest, highest=FRAGMENT_ID_MAX
        )
    maximum = max(highest, delta.max_fragment_id or 0)
    allowed = max(last, 0) + len(new)
    if not of_kind.reserves_ids and maximum > allowed:
        raise _counter_refused("max_fragment_id", maximum, 0, highest=allowed)
    if maximum > FRAGMENT_ID_MAX:
        raise _counter_refused("max_fragment_id", maximum, 0, highest=FRAGMENT_ID_MAX)


def _check_row_ids(state: ManifestState, delta: ManifestDelta) -> None:
    """Refuse a next row id that leaves no room: they end at 2**64."""
    rows = sum(DataFragment.FromString(encoded).physical_rows for _, encoded in delta.fragments)
    if delta.next_row_id > state.next_row_id + rows:
        most = state.next_row_id + rows
        raise _counter_refused("next_row_id", delta.next_row_id, 0, highest=most)


def _counter_refused(counter: str, value: int, lowest: int, *, highest: int) -> Refused:
    bounds = {"lowest": lowest, "highest": highest}
    return rejected(
        Code.INVALID_OPERATION, "staged_counter_unusable", counter=counter, value=value, **bounds
    )
