"""Metadata files that a record names by place, size and digest, in place of holding them.

The leader reads the file and checks its digest; the outcome holds the contents, so the log doesn't
need the file again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import IcebergTable, is_compressed
from commitlog.core.iceberg.metadata import table_of
from commitlog.core.iceberg.reading import Node, has_more_values, load_json
from commitlog.core.iceberg.updates import REGISTER
from commitlog.model.limits import ICEBERG_METADATA_BYTES_MAX, ICEBERG_METADATA_VALUES_MAX
from commitlog.model.operations import IcebergChange
from commitlog.model.table import TableId

_DIGEST_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class Reference:
    """A metadata file."""

    location: str
    size: int
    sha256: bytes


Registered = Callable[[TableId], IcebergTable]
"""Returns the table of the metadata file that a change refers to."""


def read_table(
    data: bytes, location: str, of: Callable[[Any, str], IcebergTable] = table_of
) -> IcebergTable:
    """Return the table of a metadata file; raise Invalid, also for one that is out of bounds."""
    limits = {"what": f"the metadata at {location}", "bytes_max": ICEBERG_METADATA_BYTES_MAX}
    if is_compressed(location):
        data = _decompressed(data, ICEBERG_METADATA_BYTES_MAX + 1, str(limits["what"]))
    if len(data) > ICEBERG_METADATA_BYTES_MAX or has_more_values(data, ICEBERG_METADATA_VALUES_MAX):
        limits["values_max"] = ICEBERG_METADATA_VALUES_MAX
        raise Invalid("iceberg_metadata_too_large", **limits)
    return of(load_json(data, str(limits["what"])), location)


def _decompressed(data: bytes, most: int, what: str) -> bytes:
    """Return a gzip file's content, or the beginning of it that has so many bytes."""
    found: list[bytes] = []
    left, rest = most, data
    try:
        while rest and left > 0:  # a file may be several, one after the other
            member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            found.append(member.decompress(rest, left))
            left, rest = left - len(found[-1]), member.unused_data
            if not member.eof and left > 0:
                raise Invalid("iceberg_metadata_not_gzip", what=what)
    except zlib.error:
        raise Invalid("iceberg_metadata_not_gzip", what=what) from None
    return b"".join(found)


def references(operations: Sequence[IcebergChange]) -> dict[TableId, Reference]:
    """Return the files that changes refer to; Invalid if it isn't said which."""
    found = {}
    for operation in operations:
        if f'"{REGISTER}"' not in operation.updates:
            continue
        for update in Node(load_json(operation.updates, "updates"), "updates").items():
            if update.member("action").value == REGISTER and "metadata" not in update.object():
                found[operation.table] = _reference(update)
    return found


def _reference(update: Node) -> Reference:
    digest = update.member("sha256")
    try:
        sha256 = bytes.fromhex(digest.string())
    except ValueError:
        sha256 = b""
    if len(digest.string()) != _DIGEST_CHARACTERS or not sha256:
        digest.fail("iceberg_digest_unusable", value=digest.value)
    size = update.member("size").integer(low=1, high=ICEBERG_METADATA_BYTES_MAX)
    return Reference(update.member("metadata-location").text(), size, sha256)
