"""Appends that say nothing of their fragments but files and rows: most of what a log holds.

Such a message is read once, as a value, instead of being asked field by field. It counts only as
protobuf itself would write it, so that a fragment's bytes are what a manifest holds.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from commitlog.codecs.lanes import READ_PLAIN_APPEND, PlainAppend, PlainFragment
from commitlog.core.manifest.data_files import leads_out
from commitlog.core.manifest.feature_flags import FLAG_STABLE_ROW_IDS
from commitlog.core.manifest.fragment_changes import FRAGMENT_ID_MAX, Added
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.manifest.row_lineage import new_row_lineage
from commitlog.core.manifest.wire import varint
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import INT64_MAX

KIND = Transaction().append.DESCRIPTOR.name
"""The operation's name."""
_NUMBER_MAX = 2**63 - 1


def read_in_python(message: bytes) -> PlainAppend | None:
    """Return a message's value, None if it isn't a plain append."""
    try:
        found = Transaction.FromString(message)
    except DecodeError:
        return None
    written = Transaction(read_version=found.read_version, uuid=found.uuid)
    fragments = tuple(
        [_fragment(one, written.append.fragments.add()) for one in found.append.fragments]
    )
    is_whole = written.SerializeToString(deterministic=True) == message
    is_plain = is_whole and fragments and None not in fragments and _is_name(found.uuid)
    if not is_plain or found.read_version > _NUMBER_MAX:
        return None
    return found.read_version, found.uuid, fragments  # type: ignore[return-value]


def _fragment(found: DataFragment, written: DataFragment) -> PlainFragment | None:
    """Return a fragment's value, and write all that there may be of it; None for what can't be."""
    layout: list[Any] = []
    files: list[tuple[str, int]] = []
    written.physical_rows = found.physical_rows
    for file in found.files:
        numbers = tuple(file.fields), tuple(file.column_indices)
        layout += (file.file_major_version, file.file_minor_version, *numbers)
        files.append((file.path, file.file_size_bytes))
        written.files.add(
            path=file.path,
            fields=numbers[0],
            column_indices=numbers[1],
            file_major_version=file.file_major_version,
            file_minor_version=file.file_minor_version,
            file_size_bytes=file.file_size_bytes,
        )
    is_usable = files and 0 < found.physical_rows <= _NUMBER_MAX
    if not is_usable or not all(_is_path(path) and 0 < n <= _NUMBER_MAX for path, n in files):
        return None
    encoded = written.SerializeToString(deterministic=True)
    return found.physical_rows, tuple(layout), encoded, tuple(files)


def _is_name(uuid: str) -> bool:
    return uuid.isascii() and uuid.replace("-", "").isalnum()


def _is_path(path: str) -> bool:
    return path.isascii() and "/" not in path and not leads_out(path)


read_plain_append = READ_PLAIN_APPEND or read_in_python


def plainly_added(state: ManifestState, plain: PlainAppend) -> Added | None:
    """Return what `with_ids` would for plain fragments; None if it has to check them."""
    read_version, _, fragments = plain
    accepted = state.header.accepted_layouts
    is_current = read_version == state.version
    is_stable = bool(state.reader_feature_flags & FLAG_STABLE_ROW_IDS)
    fragment_id = state.last_fragment_id + 1
    next_row_id, is_mixed = state.next_row_id, False
    added: list[tuple[int, bytes]] = []
    for rows, layout, encoded, _ in fragments:
        mixes = accepted.get((is_current, *layout))
        if mixes is None:
            return None
        is_mixed |= mixes
        if fragment_id:
            encoded = b"\x08" + varint(fragment_id) + encoded
        if is_stable:
            encoded += new_row_lineage(next_row_id, rows, state.version + 1)
            next_row_id += rows
        added.append((fragment_id, encoded))
        fragment_id += 1
    if fragment_id - 1 > FRAGMENT_ID_MAX or next_row_id > INT64_MAX:
        return None
    return Added(tuple(added), 0, is_mixed, fragment_id - 1, next_row_id)
