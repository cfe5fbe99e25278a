"""Deltas and manifest files: one state, one file; what turns one into the next."""

from __future__ import annotations

import hashlib
import os
import sys

import pytest

from commitlog.codecs.manifest_file import (
    INLINE_TRANSACTION_BYTES_MAX,
    ManifestName,
    NamingScheme,
    decode_manifest,
    encode_manifest,
    manifest_name,
    parse_manifest_name,
)
from commitlog.core.lance.direct import direct_delta
from commitlog.core.manifest.feature_flags import UnknownFeatureFlag
from commitlog.core.manifest.manifest_state import ManifestDelta, apply_delta, diff
from commitlog.errors import CorruptLog, UnsupportedFormat
from commitlog.lancepb.table_pb2 import IndexSection, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction
from tests.child import ended
from tests.unit.manifest_examples import UUID, append, fragment, state


def test_a_delta_survives_its_bytes() -> None:
    delta = ManifestDelta(
        8, 123, 1, 9, None, 4, "7-u.txn", "t", (3, 9), ((4, b""), (7, b"x")), b"", b""
    )
    assert ManifestDelta.from_bytes(delta.to_bytes()) == delta
    plain = ManifestDelta(8, 123, 1, 9, 0, 4, "7-u.txn")
    assert ManifestDelta.from_bytes(plain.to_bytes()) == plain


def test_a_diff_turns_one_state_into_the_other() -> None:
    section = IndexSection()
    section.indices.add(name="i")
    old = state(fragment(0), fragment(1), fragment(4), indices=section)
    new = state(fragment(1, deleted=2), fragment(4), fragment(9), version=9, max_fragment_id=9)
    delta = diff(old, new)
    assert delta.removed == (0,)
    assert [fragment_id for fragment_id, _ in delta.fragments] == [1, 9]
    assert delta.header is None
    assert delta.index_section == b""
    apply_delta(old, delta)
    assert old == new


def test_a_fork_leaves_its_origin_alone() -> None:
    origin = state(fragment(0))
    fork = origin.fork()
    apply_delta(fork, direct_delta(fork, append(fragment()), timestamp_ms=1))
    assert origin == state(fragment(0))
    assert list(fork.fragments) == [0, 1]
    assert decode_manifest(encode_manifest(fork, None))[0] == fork


def test_a_delta_is_applied_once() -> None:
    target = state()
    delta = direct_delta(target, append(fragment()), timestamp_ms=1)
    apply_delta(target, delta)
    with pytest.raises(CorruptLog, match="version 6 meets version 6"):
        apply_delta(target, delta)


@pytest.mark.parametrize("with_indices", [False, True])
@pytest.mark.parametrize("transaction", [None, b"", b"abc"])
def test_a_file_holds_the_state_and_its_transaction(
    with_indices: bool, transaction: bytes | None
) -> None:
    section = IndexSection()
    section.indices.add(name="by_id")
    written = state(fragment(3), fragment(1), indices=section if with_indices else None)
    data = encode_manifest(written, transaction)
    assert decode_manifest(data) == (written, transaction)
    assert data[-8:] == b"\0\0\2\0LANC"


def test_a_transaction_too_large_to_inline_is_left_out() -> None:
    data = encode_manifest(state(), bytes(INLINE_TRANSACTION_BYTES_MAX + 1))
    assert decode_manifest(data) == (state(), None)


@pytest.mark.parametrize("cut", [0, 8, 15, 16, 40])
def test_a_damaged_file_is_refused(cut: int) -> None:
    data = encode_manifest(state(fragment()), b"transaction")
    with pytest.raises(UnsupportedFormat):
        decode_manifest(data[:cut])
    with pytest.raises(UnsupportedFormat):
        decode_manifest(data[cut + 1 :] if cut < 40 else data[:-1])


def test_unknown_fields_of_a_newer_lance_survive() -> None:
    newer = state(fragment()).header.message.SerializeToString() + b"\xfa\x3e\x03new"
    parsed = Manifest.FromString(newer)
    parsed.version = 1
    body = parsed.SerializeToString()
    data = len(body).to_bytes(4, "little") + body + bytes(8) + b"\0\0\2\0LANC"
    read, _ = decode_manifest(data)
    apply_delta(read, direct_delta(read, append(fragment()), timestamp_ms=1))
    assert b"\xfa\x3e\x03new" in encode_manifest(read, None)


@pytest.mark.parametrize("bit", [9, 12, 13, 16, 17, 18, 40])
@pytest.mark.parametrize("word", ["reader", "writer"])
def test_an_unknown_feature_flag_is_named(bit: int, word: str) -> None:
    written = state()
    setattr(written, f"{word}_feature_flags", 1 << bit | 1)
    with pytest.raises(UnknownFeatureFlag, match=word) as refusal:
        decode_manifest(encode_manifest(written, None))
    assert len(refusal.value.names) == 1


@pytest.mark.parametrize("scheme", NamingScheme)
@pytest.mark.parametrize("version", [1, 77, 2**40])
def test_a_name_tells_version_and_scheme(version: int, scheme: NamingScheme) -> None:
    assert parse_manifest_name(manifest_name(version, scheme)) == ManifestName(version, scheme)
    staged = f"{manifest_name(version, scheme)}-{UUID}"
    assert parse_manifest_name(staged) == ManifestName(version, scheme, staged_by=UUID)


def test_newer_versions_sort_first_in_v2() -> None:
    assert manifest_name(1) == "18446744073709551614.manifest"
    assert manifest_name(10) < manifest_name(9)


def test_the_name_of_a_detached_version_says_so() -> None:
    detached = parse_manifest_name("d9223372036854775809.manifest")
    assert detached is not None
    assert detached.is_detached


PROGRAM = """
import hashlib
from commitlog.codecs.manifest_file import encode_manifest
from commitlog.core.lance.direct import direct_delta
from commitlog.core.manifest.manifest_state import apply_delta
from tests.unit.manifest_examples import append, fragment, state
from tests.unit.test_manifest import with_many_keys
target = state(fragment(0))
delta = direct_delta(target, with_many_keys(), timestamp_ms=1)
digest = hashlib.sha256(delta.to_bytes())
apply_delta(target, delta)
digest.update(encode_manifest(target, b"t"))
print(digest.hexdigest())
"""


def with_many_keys() -> Transaction:
    transaction = Transaction(read_version=5, uuid=UUID)
    for key in (hashlib.md5(bytes([i])).hexdigest() for i in range(50)):
        transaction.update_config.upsert_values[key] = key
        transaction.update_config.schema_metadata[key] = key
        transaction.update_config.field_metadata[1].metadata[key] = key
    return transaction


@pytest.mark.slow
def test_processes_with_different_hash_seeds_agree() -> None:
    digests = {
        ended(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd()},
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(digests) == 1
