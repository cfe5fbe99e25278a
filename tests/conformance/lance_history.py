"""Versions of real datasets as pylance wrote them, and how they are compared with ours."""

from __future__ import annotations

from pathlib import Path

import lance

from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY, decode_manifest, manifest_name
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.operations.registry import operation_of
from commitlog.lancepb.table_pb2 import DataFragment, IndexSection
from commitlog.lancepb.transaction_pb2 import Transaction


def read_version(root: Path, version: int) -> tuple[ManifestState, Transaction]:
    """Return a version of a dataset and the transaction that made it."""
    data = (root / VERSIONS_DIRECTORY / manifest_name(version)).read_bytes()
    state, transaction = decode_manifest(data)
    assert transaction is not None
    return state, Transaction.FromString(transaction)


def head(root: Path) -> tuple[ManifestState, Transaction]:
    return read_version(root, lance.dataset(str(root)).version)


def is_direct(transaction: Transaction) -> bool:
    """Return True if the core builds the manifest of the transaction's operation itself."""
    operation = operation_of(transaction)
    return operation is not None and operation.built_here_since is not None


def validate(dataset: lance.LanceDataset) -> None:
    """Let Lance check a version against itself."""
    dataset.validate()  # type: ignore[no-untyped-call]


def comparable(state: ManifestState) -> dict[str, object]:
    """Return everything in a manifest but the time it was written.

    Nothing else differs: both sides are given the same transaction, so uuids and generated file
    names are equal as well. Maps are compared as maps.
    """
    section = IndexSection.FromString(state.index_section or b"")
    return {
        "version": state.version,
        "reader_feature_flags": state.reader_feature_flags,
        "writer_feature_flags": state.writer_feature_flags,
        "max_fragment_id": state.max_fragment_id,
        "next_row_id": state.next_row_id,
        "transaction_file": state.transaction_file,
        "tag": state.tag,
        "header": state.header.message,
        "fragments": {i: DataFragment.FromString(f) for i, f in state.fragments.items()},
        "indices": list(section.indices),
    }


def assert_same_version(ours: ManifestState, pylance: ManifestState) -> None:
    left, right = comparable(ours), comparable(pylance)
    for name in left:
        assert left[name] == right[name], name
