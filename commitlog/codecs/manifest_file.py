"""A manifest as the file that Lance reads, and the name it is found by.

    [u32 length][IndexSection]     if there are indices
    [u32 length][Transaction]      up to 20 MiB
    [u32 length][Manifest]
    [i64 position of the manifest's length][u16 0][u16 2]["LANC"]

All integers are little endian; positions in the manifest point at lengths. One state and one
transaction give one file, in every process: that is how a reader may finish what a writer began.
"""

from __future__ import annotations

import re
import struct
from enum import StrEnum
from typing import NamedTuple

from google.protobuf.message import DecodeError

from commitlog.core.manifest.encoded_fragments import EncodedFragments
from commitlog.core.manifest.feature_flags import check_flags
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.manifest.wire import field_at, find
from commitlog.errors import UnsupportedFormat
from commitlog.lancepb.table_pb2 import Manifest

VERSIONS_DIRECTORY = "_versions"
TRANSACTIONS_DIRECTORY = "_transactions"
INLINE_TRANSACTION_BYTES_MAX = 20 * 1024 * 1024

_LENGTH = struct.Struct("<I")
_FOOTER = struct.Struct("<qHH4s")
MAGIC = b"LANC"
"""How each whole file of Lance's ends."""
_VERSION_MAX = 2**64 - 1
_DETACHED = 1 << 63
_NAME = re.compile(r"(d?)([0-9]{1,20})\.manifest")
_STAGED_NAME = re.compile(r"([0-9]{1,20})\.manifest-(.+)")
_TRANSACTION_NAME = re.compile(r"[0-9]+-[0-9A-Za-z-]+\.txn")


class NamingScheme(StrEnum):
    """How a dataset names its manifests: V2 sorts the newest first."""

    V1 = "V1"
    V2 = "V2"


class ManifestName(NamedTuple):
    """What a manifest's file name says."""

    version: int
    scheme: NamingScheme
    is_detached: bool = False
    staged_by: str = ""
    """What follows the name of a manifest that is staged only; empty for a published one."""


def encode_manifest(state: ManifestState, transaction_bytes: bytes | None) -> bytes:
    """Return the manifest file of a version, with the transaction that made it."""
    pieces: list[bytes | bytearray] = []
    position = 0
    sections = Manifest(
        version=state.version,
        reader_feature_flags=state.reader_feature_flags,
        writer_feature_flags=state.writer_feature_flags,
        max_fragment_id=state.max_fragment_id,
        next_row_id=state.next_row_id,
        transaction_file=state.transaction_file,
        tag=state.tag,
    )
    sections.timestamp.FromNanoseconds(state.timestamp_nanos)
    if state.index_section:
        sections.index_section = position
        pieces += (_LENGTH.pack(len(state.index_section)), state.index_section)
        position += _LENGTH.size + len(state.index_section)
    if transaction_bytes is not None and len(transaction_bytes) <= INLINE_TRANSACTION_BYTES_MAX:
        sections.transaction_section = position
        pieces += (_LENGTH.pack(len(transaction_bytes)), transaction_bytes)
        position += _LENGTH.size + len(transaction_bytes)
    scalars = sections.SerializeToString(deterministic=True)
    fragments = state.fragments.wire()
    size = len(state.header.encoded) + len(scalars) + sum(map(len, fragments))
    pieces += (_LENGTH.pack(size), state.header.encoded, scalars)
    pieces += fragments
    pieces.append(_FOOTER.pack(position, 0, 2, MAGIC))
    return b"".join(pieces)


def decode_manifest(data: bytes) -> tuple[ManifestState, bytes | None]:
    """Return the version in a manifest file and the transaction in it, if it holds one.

    Raises UnknownFeatureFlag for a table that this program is too old for.
    """
    encoded = manifest_message(data)
    try:
        manifest = Manifest.FromString(encoded)
    except DecodeError as error:
        raise UnsupportedFormat(f"a manifest's message cannot be read: {error}") from error
    check_flags(manifest.reader_feature_flags, manifest.writer_feature_flags)
    index_section = transaction = None
    if manifest.HasField("index_section"):
        index_section = _section(data, manifest.index_section)
    if manifest.HasField("transaction_section"):
        transaction = _section(data, manifest.transaction_section)
    elif manifest.HasField("transaction_section_deprecated"):
        transaction = _section(data, manifest.transaction_section_deprecated)
    fragments = EncodedFragments(encoded, [fragment.id for fragment in manifest.fragments])
    return ManifestState.of(manifest, fragments, index_section), transaction


def with_scalars(data: bytes, scalars: Manifest) -> bytes:
    """Return a manifest file with other scalars; its fragments aren't taken apart."""
    position, *rest = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    # The last value of a scalar is the one that counts.
    message = manifest_message(data) + scalars.SerializeToString(deterministic=True)
    pieces = data[:position], _LENGTH.pack(len(message)), message, _FOOTER.pack(position, *rest)
    return b"".join(pieces)


def manifest_message(data: bytes) -> bytes:
    """Return the `lance.table.Manifest` in a manifest file, encoded."""
    if len(data) < _FOOTER.size:
        raise UnsupportedFormat(f"a manifest of {len(data)} bytes is cut off")
    position, _, _, magic = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
    if magic != MAGIC:
        raise UnsupportedFormat(f"a manifest ends with {magic!r} instead of {MAGIC!r}")
    return _section(data, position)


def _section(data: bytes, position: int) -> bytes:
    start = position + _LENGTH.size
    if position < 0 or start > len(data):
        raise UnsupportedFormat(f"a manifest points at {position}, beyond its end")
    (length,) = _LENGTH.unpack_from(data, position)
    if start + length > len(data):
        raise UnsupportedFormat(f"a manifest's section at {position} is cut off")
    return data[start : start + length]


def manifest_name(version: int, scheme: str = NamingScheme.V2) -> str:
    """Return the file name of a published version, under `_versions`."""
    if version & _DETACHED:
        return f"d{version}.manifest"
    if scheme == NamingScheme.V1:
        return f"{version}.manifest"
    return f"{_VERSION_MAX - version:020}.manifest"


def manifest_path(version: int, scheme: str = NamingScheme.V2) -> str:
    """Return the path of a published version, below the table's location."""
    return f"{VERSIONS_DIRECTORY}/{manifest_name(version, scheme)}"


def manifest_places(version: int) -> tuple[str, str]:
    """Return the paths that a version may have, by either naming scheme; mostly the first."""
    return manifest_path(version), manifest_path(version, NamingScheme.V1)


def transaction_path(state: ManifestState) -> str:
    """Return where a version's transaction is, below the location; empty if nowhere.

    It stands in the manifest as well: the file is for those who look for it by its name.
    """
    return _transaction_path(state.transaction_file)


def transaction_path_in(data: bytes) -> str:
    """Return the same of a manifest file, which costs less than to decode it."""
    if len(data) < _FOOTER.size:
        return ""
    encoded = _section(data, _FOOTER.unpack_from(data, len(data) - _FOOTER.size)[0])
    start = find(encoded, Manifest.TRANSACTION_FILE_FIELD_NUMBER)
    named = Manifest.FromString(field_at(encoded, start))
    return _transaction_path(named.transaction_file)


def _transaction_path(name: str) -> str:
    return f"{TRANSACTIONS_DIRECTORY}/{name}" if _TRANSACTION_NAME.fullmatch(name) else ""


def parse_manifest_name(name: str) -> ManifestName | None:
    """Return what a file name under `_versions` says, None if it names no manifest."""
    if match := _STAGED_NAME.fullmatch(name):
        number, staged_by = match.groups()
    elif match := _NAME.fullmatch(name):
        if match[1]:
            return ManifestName(int(match[2]), NamingScheme.V2, is_detached=True)
        number, staged_by = match[2], ""
    else:
        return None
    if len(number) == 20:
        version = _VERSION_MAX - int(number)
        scheme = NamingScheme.V2
    else:
        version, scheme = int(number), NamingScheme.V1
    return None if version < 0 else ManifestName(version, scheme, staged_by=staged_by)
