"""The next manifest of a table, built without Lance: the operations that need the manifest alone.

`direct_delta` changes nothing and looks at nothing but its arguments. It raises `DeltaRefused`
for what no builder could do, and `NotDirect` for what only pylance can. Whether the transaction
may commit at all is decided before, by the conflict rules; what it writes is its post-image.

Manifests built here equal pylance's field by field, at a hundredth of the cost.
"""

from __future__ import annotations

from commitlog.codecs.lanes import PlainAppend
from commitlog.core.manifest.data_files import LEGACY_FILE_FORMAT
from commitlog.core.manifest.feature_flags import (
    FLAG_COVERED_INDEX_METADATA,
    FLAG_FRAGMENT_REUSE_INDEX,
    FLAG_MIXED_DATA_FILE_VERSIONS,
    FLAG_STABLE_ROW_IDS,
    STICKY,
)
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.indices import NO_INDICES, IndexList, index_list
from commitlog.core.manifest.manifest_state import (
    DeltaRefused,
    ManifestDelta,
    ManifestState,
    NotDirect,
)
from commitlog.core.manifest.plain_appends import plainly_added
from commitlog.core.operations.registry import operation_of
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import LANCE_RELEASE_AT_FIRST


def direct_delta(
    state: ManifestState,
    transaction: Transaction,
    *,
    timestamp_ms: int,
    release: str = LANCE_RELEASE_AT_FIRST,
) -> ManifestDelta:
    """Return what `transaction` makes of `state`, in a manifest written for a release of Lance."""
    operation = operation_of(transaction)
    if operation is None or operation.built_here_since is None:
        raise NotDirect(f"{transaction.WhichOneof('operation') or 'an unknown operation'}")
    name = transaction.uuid
    if not name.replace("-", "").isalnum():
        raise DeltaRefused("bad_uuid", field="uuid", value=name)
    indices = index_list(state.index_section) if state.index_section else NO_INDICES
    if why := _not_direct(state, indices):
        raise NotDirect(why)
    change = operation.build(state, transaction)
    header = (change.header or state.header).by(release)
    # A header that an operation set is recorded even if its bytes are those of the head's.
    has_header = change.header is not None or header.encoded != state.header.encoded
    if change.index_section is not None:
        indices = index_list(change.index_section)
    features = state.fragments.features() if change.features is None else change.features
    features |= FLAG_MIXED_DATA_FILE_VERSIONS if change.is_mixed else 0
    reader, writer = _flags(state, features, header, indices)
    maximum = state.max_fragment_id
    if maximum is None and len(state.fragments):
        maximum = state.fragments.last_id
    return ManifestDelta(
        version=state.version + 1,
        timestamp_nanos=timestamp_ms * 1_000_000,
        reader_feature_flags=reader,
        writer_feature_flags=writer,
        max_fragment_id=maximum if change.max_fragment_id is None else change.max_fragment_id,
        next_row_id=state.next_row_id if change.next_row_id is None else change.next_row_id,
        transaction_file=f"{transaction.read_version}-{name}.txn",
        tag=transaction.tag,
        removed=change.removed,
        fragments=change.fragments,
        header=header.encoded if has_header else None,
        index_section=change.index_section,
    )


def append_delta(
    state: ManifestState, plain: PlainAppend, *, timestamp_ms: int, release: str
) -> ManifestDelta | None:
    """Return what `direct_delta` would for a plain append; None if that has to be asked."""
    added = plainly_added(state, plain)
    flags = added and append_flags(state, release, is_mixed=added.is_mixed)
    if added is None or flags is None:
        return None
    return ManifestDelta(
        version=state.version + 1,
        timestamp_nanos=timestamp_ms * 1_000_000,
        reader_feature_flags=flags[0],
        writer_feature_flags=flags[1],
        max_fragment_id=added.max_fragment_id,
        next_row_id=added.next_row_id,
        transaction_file=f"{plain[0]}-{plain[1]}.txn",
        fragments=added.fragments,
    )


def append_flags(state: ManifestState, release: str, *, is_mixed: bool) -> tuple[int, int] | None:
    """Return the reader and writer flags of a version that only adds plain fragments.

    None if `direct_delta` has to be asked.
    """
    header = state.header
    indices = index_list(state.index_section) if state.index_section else NO_INDICES
    if header.by(release) is not header or _not_direct(state, indices):
        return None
    features = state.fragments.features()
    features |= FLAG_MIXED_DATA_FILE_VERSIONS if is_mixed else 0
    return _flags(state, features, header, indices)


def _not_direct(state: ManifestState, indices: IndexList) -> str:
    """Return why only pylance can build on a version; empty if that isn't so."""
    if indices.needs_pylance:
        return indices.needs_pylance
    if state.reader_feature_flags & FLAG_FRAGMENT_REUSE_INDEX:
        return "a tagged fragment reuse index is carried over by Lance"
    if state.header.message.data_format.version in ("", LEGACY_FILE_FORMAT):
        return "manifests of file format 0.1 hold dictionaries"
    return ""


def _flags(
    state: ManifestState, features: int, header: ManifestHeader, indices: IndexList
) -> tuple[int, int]:
    shared = state.reader_feature_flags & (STICKY | FLAG_STABLE_ROW_IDS) | features
    if indices.has_covering_fields:
        shared |= FLAG_COVERED_INDEX_METADATA
    reader, writer = header.flags
    return reader | shared, writer | shared
