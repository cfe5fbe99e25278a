"""Names that follow from the transaction: the metadata file's, and a uuid that no client sent.

Deciding a transaction again after a crash names the same file, so a retry writes the same bytes
to the same place, and a file whose transaction has no outcome is an orphan by its name alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from uuid import UUID, uuid5

from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import COMPRESSION, METADATA_PATH

_SPACE = UUID("9b8c0f0e-2c40-5d0a-9d53-0f6a0e1c7b11")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/+[^/]")
_NUMBER = re.compile(r"(?:^|/)v?([0-9]{1,9})[-.][^/]*$")
_SUFFIXES = {"none": ".metadata.json", "gzip": ".gz.metadata.json"}


def derived_uuid(transaction_id: str, *what: str) -> str:
    """Return the uuid of one thing that a transaction makes."""
    return str(uuid5(_SPACE, "\x1f".join((transaction_id, *what))))


def check_place(location: str, what: str) -> str:
    """Return a location without its last slashes; refuse one that isn't absolute."""
    stripped = location.rstrip("/")
    is_absolute = stripped.startswith("/") or _SCHEME.match(stripped)
    if not is_absolute or "\0" in stripped or ".." in stripped.split("/"):
        raise Invalid("iceberg_not_a_location", what=what, location=location)
    return stripped


def metadata_folder(location: str, properties: Mapping[str, str]) -> str:
    """Return where a table's metadata goes."""
    if METADATA_PATH in properties:
        return check_place(properties[METADATA_PATH], f"property {METADATA_PATH}")
    return f"{location.rstrip('/')}/metadata"


def next_metadata_location(
    location: str, properties: Mapping[str, str], previous: str, uuid: str
) -> str:
    """Return where the metadata goes that follows the one at `previous` (empty: there is none)."""
    folder = metadata_folder(location, properties)
    number = _NUMBER.search(previous)
    following = int(number[1]) + 1 if number else 0
    codec = properties.get(COMPRESSION, "none").lower()
    suffix = _SUFFIXES.get(codec)
    if suffix is None:
        raise Invalid("iceberg_codec_unknown", property=COMPRESSION, codec=codec)
    return f"{folder}/{following:05d}-{uuid}{suffix}"
