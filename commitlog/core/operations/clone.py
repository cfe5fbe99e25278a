"""Clone: a new table that starts as a version of another one, at that version's number.

A shallow clone's files stay where they are, and its manifest names the source as a base path; a
deep clone's files are copied first, and its manifest knows of no other place. Both are what Lance
makes of the same operation.

A shallow clone that names a branch is a table too, stored where Lance keeps that branch: in
its table's `tree/<branch>`. The log orders its commits as any table's, and plain Lance finds it by
the branch's name.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from commitlog.core.decisions import BuildWanted, rejected
from commitlog.core.draft import Draft, Parsed, View
from commitlog.core.manifest.data_files import data_files
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.core.manifest.feature_flags import (
    FLAG_COVERED_INDEX_METADATA,
    FLAG_FRAGMENT_REUSE_INDEX,
    FLAG_MANAGED_BLOBS,
    FLAG_STABLE_ROW_IDS,
    STICKY,
)
from commitlog.core.manifest.fragments import Fragments
from commitlog.core.manifest.manifest_state import (
    DeltaRefused,
    ManifestDelta,
    ManifestState,
    diff,
)
from commitlog.core.operations.operation import LanceOperation
from commitlog.core.tables.branch_names import (
    FOLDER,
    branch_home,
    branch_location,
    branch_name_problem,
)
from commitlog.core.tables.creation import empty_state
from commitlog.core.tables.lance_tables import Table, normalize_location
from commitlog.lancepb.table_pb2 import (
    DataFile,
    DataFragment,
    DeletionFile,
    IndexSection,
    Manifest,
)
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import BRANCHES_SINCE
from commitlog.model.names import NameProblem, first_problem, key_problem, label_problem
from commitlog.model.operations import LanceCommit
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code
from commitlog.model.table import TableId, format_table_id

_KEPT_FLAGS = FLAG_COVERED_INDEX_METADATA | STICKY | FLAG_STABLE_ROW_IDS


class CloneOperation(LanceOperation[Transaction.Clone]):
    """Makes a table of another one's version."""

    field = "clone"
    makes_table = True
    keeps_rows = True
    renumbers_fields = True

    def problem(self, body: Transaction.Clone) -> NameProblem | None:
        named = (body.ref_path, body.ref_name)
        return first_problem("location", named, key_problem) or first_problem(
            "branch", (body.branch_name,), label_problem
        )

    def first_version(
        self, draft: Draft, index: int, operation: LanceCommit, parsed: Parsed, view: View
    ) -> ManifestDelta:
        name, clone = format_table_id(operation.table), parsed.transaction.clone
        if (
            operation.operation != self.name
            or operation.read_version != parsed.transaction.read_version
        ):
            raise rejected(
                Code.INVALID_OPERATION,
                "clone_record_differs",
                table=name,
                operation=operation.operation,
                read_version=operation.read_version,
            )
        is_branch = clone.HasField("branch_name")
        if operation.branch or (is_branch and draft.rules.protocol < BRANCHES_SINCE):
            # First, and in these words: older logs hold such refusals, and replays compare them.
            raise rejected(Code.UNSUPPORTED_OPERATION, "branches_unsupported", table=name)
        source = _source(draft, clone)
        if is_branch:
            _check_branch(view.table, source, clone)
        wanted = BuildWanted(
            index=index,
            table=source.table_id,
            incarnation=source.incarnation,
            location=source.location,
            version=clone.ref_version + 1,
            message=operation.message,
            target=view.table.location,
        )
        found = draft.want(wanted)
        built = found.state
        if built is None:
            raise rejected(Code.BUILD_REFUSED, "clone_refused", table=name, error=found.error)
        return diff(empty_state(), built)._replace(timestamp_nanos=draft.time_ms * 1_000_000)


def _source(draft: Draft, clone: Transaction.Clone) -> Table:
    """Return the table at `ref_path`; nothing outside the log's own tables may be cloned."""
    view = draft.table_at(normalize_location(clone.ref_path))
    if view is not None and view.table.manifest is not None:
        source = view.table
        if not 1 <= clone.ref_version <= source.version:
            raise rejected(
                Code.FUTURE_READ_VERSION,
                "no_such_version",
                table=format_table_id(source.table_id),
                version=clone.ref_version,
                head=source.version,
            )
        return source
    raise rejected(Code.LOCATION_NOT_ALLOWED, "clone_source_unknown", ref_path=clone.ref_path)


def home_of(draft: Draft, table: TableId, location: str) -> str:
    """Return the location of the table that this record makes another one a branch of, or ""."""
    if FOLDER not in location or draft.rules.protocol < BRANCHES_SINCE:
        return ""
    for operation, parsed in zip(draft.transaction.operations, draft.parsed, strict=True):
        if isinstance(operation, LanceCommit) and operation.table == table and parsed is not None:
            home = branch_home(location, parsed.transaction.clone.branch_name)
            if home != location:
                return home
    return ""


def _check_branch(table: Table, source: Table, clone: Transaction.Clone) -> None:
    """Refuse a branch that Lance wouldn't make, or wouldn't find."""
    name, branch = format_table_id(table.table_id), clone.branch_name
    problem = branch_name_problem(branch)
    if problem:
        raise rejected(
            Code.INVALID_OPERATION,
            "branch_name_invalid",
            branch=branch,
            table=name,
            problem=Phrase(problem),
        )
    if not clone.is_shallow:
        raise rejected(Code.INVALID_OPERATION, "branch_not_shallow", table=name)
    assert source.manifest is not None
    from_branch = source.manifest.header.message.branch
    if clone.ref_name != from_branch:
        raise rejected(
            Code.INVALID_OPERATION,
            "clone_ref_differs",
            ref_path=clone.ref_path,
            branch=from_branch or "main",
            ref_name=clone.ref_name,
        )
    place = branch_location(branch_home(source.location, from_branch), branch)
    if table.location != place:
        raise rejected(
            Code.LOCATION_NOT_ALLOWED,
            "branch_elsewhere",
            branch=branch,
            place=place,
            table=name,
            location=table.location,
        )


def cloned(source: ManifestState, clone: Transaction.Clone, transaction_file: str) -> ManifestState:
    """Return a clone's first manifest; raises DeltaRefused for what Lance alone can move."""
    unmovable = FLAG_FRAGMENT_REUSE_INDEX | (0 if clone.is_shallow else FLAG_MANAGED_BLOBS)
    if source.reader_feature_flags & unmovable:
        raise DeltaRefused(
            "cannot_be_cloned", field="reader_feature_flags", value=source.reader_feature_flags
        )
    manifest = Manifest.FromString(source.header.encoded)
    manifest.ClearField("branch")
    if clone.HasField("branch_name"):
        manifest.branch = clone.branch_name
    base_id: int | None = None
    if clone.is_shallow:
        used = {base.id for base in manifest.base_paths}
        base_id = next(i for i in range(2**32) if i not in used)
        base = manifest.base_paths.add(id=base_id, path=clone.ref_path, is_dataset_root=True)
        if clone.HasField("ref_name"):
            base.name = clone.ref_name
    else:
        del manifest.base_paths[:]
    fragments = Fragments(_moved(encoded, base_id) for encoded in source.fragments.values())
    state = ManifestState.of(manifest, fragments, _moved_indices(source.index_section, base_id))
    reader, writer = state.header.flags
    asked = fragments.features()
    state.version = source.version
    state.reader_feature_flags = reader | asked | source.reader_feature_flags & _KEPT_FLAGS
    state.writer_feature_flags = writer | asked | source.writer_feature_flags & _KEPT_FLAGS
    state.max_fragment_id = source.max_fragment_id
    state.next_row_id = source.next_row_id
    state.transaction_file = transaction_file
    return state


def _moved(encoded: bytes, base_id: int | None) -> bytes:
    """Return a fragment seen from elsewhere: its files are at a base; None: with the fragment."""
    fragment = DataFragment.FromString(encoded)
    holders: list[DataFile | DeletionFile] = list(data_files(fragment))
    if fragment.HasField("deletion_file"):
        holders.append(fragment.deletion_file)
    for holder in holders:
        if base_id is None:
            holder.ClearField("base_id")
        elif not holder.HasField("base_id"):
            holder.base_id = base_id
    return fragment.SerializeToString(deterministic=True)


def _moved_indices(index_section: bytes | None, base_id: int | None) -> bytes | None:
    if not index_section:
        return None
    section = IndexSection.FromString(index_section)
    for index in section.indices:
        if base_id is None:
            index.ClearField("base_id")
        elif not index.HasField("base_id"):
            index.base_id = base_id
    return section.SerializeToString(deterministic=True)


class Original(NamedTuple):
    """A file, or a whole folder, that a deep clone copies to the same relative path."""

    root: str
    """The location that it is at; empty: the source's own."""
    path: str
    is_folder: bool = False


def originals(source: ManifestState) -> list[Original]:
    """Return what a deep clone has to copy."""
    roots = {base.id: base.path for base in source.header.message.base_paths}
    found: dict[Original, None] = {}
    for encoded in source.fragments.values():
        fragment = DataFragment.FromString(encoded)
        for file in data_files(fragment):
            root = roots[file.base_id] if file.HasField("base_id") else ""
            found[Original(root, f"data/{file.path}")] = None
            # Blobs are beside the file, in a folder of its name.
            found[Original(root, f"data/{file.path.removesuffix('.lance')}", True)] = None
        if fragment.HasField("deletion_file"):
            deleted = fragment.deletion_file
            root = roots[deleted.base_id] if deleted.HasField("base_id") else ""
            found[Original(root, deletion_file_path(fragment.id, deleted))] = None
    for index in IndexSection.FromString(source.index_section or b"").indices:
        root = roots[index.base_id] if index.HasField("base_id") else ""
        found[Original(root, f"_indices/{UUID(bytes=index.uuid.uuid)}", True)] = None
    return list(found)
