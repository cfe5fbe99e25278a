"""What is wrong with a `LanceCommit`, whichever rows others changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from commitlog.core.conflicts.candidate import Nearest
from commitlog.core.conflicts.write_sets import EXPLICIT_HASH_BYTES, UNKNOWN
from commitlog.core.decisions import FileWanted, Refused, VectorWanted, rejected
from commitlog.core.draft import Draft, Parsed, View
from commitlog.core.manifest.deletion_vectors import deletion_file_of
from commitlog.core.manifest.fragment_changes import FRAGMENT_ID_MAX
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.operations.operation import LanceOperation
from commitlog.core.operations.references import DROPPED_BY, no_version, repeated
from commitlog.core.operations.registry import OPERATION_NAMED, OPERATIONS, operation_of
from commitlog.core.refusals import conflict_refused, winner_of
from commitlog.core.schema_check.file_presence import check_data_file
from commitlog.core.tables.lance_tables import Table
from commitlog.lancepb.table_pb2 import DataFile, DataFragment
from commitlog.model.limits import INT64_MAX
from commitlog.model.operations import LanceCommit, Operation
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code, Status
from commitlog.model.table import format_table_id

COMMITTED_HERE = frozenset(of_kind.name for of_kind in OPERATIONS if not of_kind.makes_table)
_FIRST_OPERATION = 100
"""From here on, the field numbers of Lance's Transaction are operations."""


def check_request(view: View, operation: LanceCommit, parsed: Parsed) -> None:
    """Refuse an operation that contradicts itself or the table."""
    kind, read_version = parsed.kind, operation.read_version
    if kind not in COMMITTED_HERE or operation.branch or operation.operation != kind:
        raise _unsupported(operation, parsed)
    if view.state is None:
        raise no_version(view)
    if view.version == INT64_MAX:
        raise rejected(
            Code.INVALID_OPERATION,
            "versions_exhausted",
            table=format_table_id(operation.table),
            version=view.version,
        )
    if read_version <= 0 or read_version != parsed.transaction.read_version:
        _check_read_version(operation, parsed)
    if read_version > view.table.version:
        raise rejected(
            Code.FUTURE_READ_VERSION,
            "read_version_in_future",
            kind=kind,
            table=format_table_id(operation.table),
            read_version=read_version,
            head=view.table.version,
        )
    keys = operation.inserted_keys
    if keys is not None and len(keys.hashes) % EXPLICIT_HASH_BYTES:
        raise rejected(
            Code.MALFORMED_RECORD, "inserted_keys_malformed", hash_bytes=EXPLICIT_HASH_BYTES
        )
    _check_ids(parsed)


def _unsupported(operation: LanceCommit, parsed: Parsed) -> Refused:
    name, kind = format_table_id(operation.table), parsed.kind
    of_kind = operation_of(parsed.transaction)
    if of_kind is not None and of_kind.makes_table:
        return rejected(Code.UNSUPPORTED_OPERATION, "clone_of_existing_table", table=name)
    if kind not in COMMITTED_HERE:
        return rejected(
            Code.UNSUPPORTED_OPERATION,
            "operation_unknown",
            what=_foreign(parsed),
            table=name,
            known=sorted(COMMITTED_HERE),
        )
    if operation.branch:
        return rejected(
            Code.UNSUPPORTED_OPERATION, "branch_unsupported", branch=operation.branch, table=name
        )
    return rejected(
        Code.INVALID_OPERATION, "record_operation_differs", operation=operation.operation, kind=kind
    )


def _foreign(parsed: Parsed) -> Phrase:
    """Name what stands where the operation should be."""
    fields = UnknownFieldSet(parsed.transaction)
    found = sorted(fields[at].field_number for at in range(len(fields)))
    numbers = [number for number in found if number >= _FIRST_OPERATION]
    if not numbers:
        return Phrase("no_operation")
    return Phrase("foreign_operation", {"number": numbers[0]})


def _check_read_version(operation: LanceCommit, parsed: Parsed) -> None:
    read_version, name = operation.read_version, format_table_id(operation.table)
    if read_version != parsed.transaction.read_version and read_version:
        raise rejected(
            Code.INVALID_OPERATION,
            "record_read_version_differs",
            read_version=read_version,
            of_message=parsed.transaction.read_version,
        )
    if read_version < 0 or (not read_version and not OPERATION_NAMED[parsed.kind].only_adds):
        raise rejected(
            Code.INVALID_OPERATION,
            "read_version_missing",
            kind=parsed.kind,
            table=name,
            read_version=read_version,
        )


def _check_ids(parsed: Parsed) -> None:
    of_kind = OPERATION_NAMED[parsed.kind]
    ids = of_kind.named_fragments(of_kind.body(parsed.transaction))
    if not ids:
        return
    if twice := repeated(ids):
        raise rejected(
            Code.DUPLICATE_FRAGMENT, "named_fragments_twice", kind=parsed.kind, fragments=twice
        )
    if max(ids) > FRAGMENT_ID_MAX:
        raise rejected(
            Code.INVALID_OPERATION,
            "fragment_id_too_large",
            kind=parsed.kind,
            fragment=max(ids),
            end=FRAGMENT_ID_MAX + 1,
        )


def check_window(draft: Draft, view: View, kind: str, read_version: int) -> None:
    """Refuse a read version so old that the history doesn't reach back to it."""
    table = view.table
    oldest = max(table.history.floor, table.version - draft.rules.history_versions)
    if read_version < oldest:
        arguments = {
            "kind": kind,
            "table": format_table_id(table.table_id),
            "read_version": read_version,
            "oldest": oldest,
            "head": table.version,
        }
        raise Refused(
            Status.RETRYABLE,
            Code.READ_VERSION_PRUNED,
            Phrase("read_version_pruned", arguments),
            winner_of(table, table.history, table.version, "read_version_pruned"),
        )


FilesWanted = tuple[tuple[FileWanted, ...], tuple[int, ...]]


def files_wanted(location: str, header: ManifestHeader, parsed: Parsed) -> FilesWanted:
    """Name the data files that an operation surely brings, with their sizes (0: unknown)."""
    known = parsed.files
    if known is not None and known[0] is header:
        kept: FilesWanted = known[1]
        return kept
    if parsed.plain is not None:
        files = [file for *_, files in parsed.plain[2] for file in files]
        wanted = [FileWanted(location, f"data/{path}") for path, _ in files]
        found = tuple(wanted), tuple([size for _, size in files])
    else:
        brought: Iterable[DataFile] = ()
        if parsed.kind != UNKNOWN:
            of_kind = OPERATION_NAMED[parsed.kind]
            brought = of_kind.brought_files(of_kind.body(parsed.transaction))
        found = _wanted(location, header, brought)
    parsed.files = (header, found)
    return found


def _wanted(location: str, header: ManifestHeader, files: Iterable[DataFile]) -> FilesWanted:
    wanted: list[FileWanted] = []
    sizes: list[int] = []
    for data_file in files:
        root, path = location, f"data/{data_file.path}"
        if data_file.HasField("base_id"):
            bases = header.message.base_paths
            base = next((b for b in bases if b.id == data_file.base_id), None)
            if base is None:
                continue  # refused where the layout is checked
            root = base.path
            path = path if base.is_dataset_root else data_file.path
        wanted.append(FileWanted(root, path))
        sizes.append(data_file.file_size_bytes)
    return tuple(wanted), tuple(sizes)


def vectors_wanted(table: Table, operation: Operation, parsed: Parsed) -> Iterator[VectorWanted]:
    """Name the deletion files that an operation brings, and that its version surely names.

    Of a fragment that lost more rows since, the version names a file that the rebase makes.
    """
    if table.manifest is None or parsed.kind == UNKNOWN:
        return
    of_kind = OPERATION_NAMED[parsed.kind]
    images = of_kind.less_rows(of_kind.body(parsed.transaction))
    are_rows_said = isinstance(operation, LanceCommit) and bool(operation.affected_rows)
    for image in images:
        path = deletion_file_of(image)
        current = table.manifest.fragments.get(image.id)
        if not path or current is None or image.deletion_file.HasField("base_id"):
            continue
        read_version = parsed.transaction.read_version
        if are_rows_said and table.history.deletion_file_at(image.id, read_version) is not None:
            continue
        if path != deletion_file_of(DataFragment.FromString(current)):
            yield VectorWanted(table.location, path)


def _patches(state: ManifestState, images: Iterable[DataFragment]) -> Iterable[DataFile]:
    """Return the data files that images of fragments have and the head's fragments have not."""
    for image in images:
        encoded = state.fragments.get(image.id)
        if encoded == image.SerializeToString(deterministic=True):
            continue
        known = DataFragment.FromString(encoded).files if encoded is not None else ()
        paths = {(file.path, file.base_id) for file in known}
        yield from (f for f in image.files if (f.path, f.base_id) not in paths)


def check_files(draft: Draft, view: View, parsed: Parsed) -> None:
    """Refuse an operation if one of its data files is missing or incomplete."""
    state = view.state
    assert state is not None
    location, header = view.table.location, state.header
    wanted, sizes = files_wanted(location, header, parsed)
    of_kind = OPERATION_NAMED[parsed.kind]
    images = of_kind.images(of_kind.body(parsed.transaction))
    if images:
        more, more_sizes = _wanted(location, header, _patches(state, images))
        wanted, sizes = wanted + more, sizes + more_sizes
    if not wanted:
        return
    for file, size, found in zip(wanted, sizes, draft.want_all(wanted), strict=True):
        check_data_file(file, found, size)


def check_field_ids(
    view: View, of_kind: LanceOperation[Any], parsed: Parsed, read_version: int
) -> None:
    """Refuse files with a column that was dropped since, and whose id another column has now.

    A file names its columns by their ids. Lance gives a new column the highest id that no column
    and no fragment has, so the id of a dropped column comes back once the fragments that had it are
    compacted or gone. Files that were written before would then be read as the new column. A column
    that the head doesn't have is ignored, as by Lance.
    """
    history, state = view.table.history, view.state
    kinds = {how: how.partition(".")[0] for how in DROPPED_BY}
    hows = [how for how, kind in kinds.items() if history.first_of_kind(kind, read_version)]
    if not hows or state is None or of_kind.replaces_fragments:
        return
    files = of_kind.brought_files(of_kind.body(parsed.transaction))
    named = {field_id for file in files for field_id in file.fields}
    nearest = Nearest("field_dropped")
    for field_id in sorted(named.intersection(state.header.fields)):
        for how in hows:
            nearest.offer(history.first(how, field_id, read_version), key=field_id)
    if nearest.finding is not None:
        raise conflict_refused(
            view.table, of_kind.name, nearest.finding, read_version, view.table.version
        )
