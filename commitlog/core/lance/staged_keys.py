"""The keys that a staged manifest's rows have, as its record carries them.

The client that submits the manifest reads them from the new fragments: a manifest says nothing of
keys, and what pylance itself notes of them compares with nothing.
"""

from __future__ import annotations

from commitlog.core.conflicts.write_sets import EXPLICIT_HASH_BYTES
from commitlog.core.decisions import rejected
from commitlog.model.limits import DIGITS_MAX
from commitlog.model.operations import KeyHashes, Properties
from commitlog.model.records import Code

INSERTED_KEYS = "commitlog.inserted_keys"
BASE_VERSION = "commitlog.base_version"
"""Which version a client had really read: Lance's own rebase writes a newer one down."""


def with_keys(metadata: Properties, keys: KeyHashes | None) -> Properties:
    """Return a version's metadata with these keys, and with no others."""
    kept = tuple(pair for pair in metadata if pair[0] != INSERTED_KEYS)
    if keys is None:
        return kept
    fields = ",".join(map(str, keys.field_ids))
    return (*kept, (INSERTED_KEYS, f"{fields}:{keys.hashes.hex()}"))


def keys_in(metadata: Properties) -> KeyHashes | None:
    """Return the keys in a version's metadata, None if they aren't known."""
    text = next((value for name, value in metadata if name == INSERTED_KEYS), None)
    if text is None:
        return None
    fields, _, encoded = text.partition(":")
    try:
        hashes = bytes.fromhex(encoded)
        field_ids = tuple(int(field) for field in fields.split(","))
    except ValueError as error:
        raise _malformed() from error
    if len(hashes) % EXPLICIT_HASH_BYTES:
        raise _malformed()
    return KeyHashes(field_ids, hashes)


def base_version(metadata: Properties, read_version: int) -> int:
    """Return the version that the client had read, as far as is known."""
    text = next((value for name, value in metadata if name == BASE_VERSION), "")
    if not (text.isascii() and text.isdecimal()) or len(text) > DIGITS_MAX:
        return read_version
    return min(int(text), read_version)


def _malformed() -> Exception:
    return rejected(
        Code.MALFORMED_RECORD,
        "staged_keys_malformed",
        property=INSERTED_KEYS,
        hash_bytes=EXPLICIT_HASH_BYTES,
    )
