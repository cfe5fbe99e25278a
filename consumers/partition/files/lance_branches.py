"""Branches that the log keeps, as plain Lance finds them: a reference file beside their table.

The reference follows from the log, so writing it again gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote
from uuid import NAMESPACE_OID, uuid5

from commitlog.adapters.storage import ObjectStore
from commitlog.codecs.manifest_file import (
    manifest_places,
)
from commitlog.core.decisions import Change, ChangeKind
from commitlog.core.tables.branch_names import branch_home
from commitlog.lancepb.transaction_pb2 import Transaction
from consumers.partition.files.table_files import TableFiles

OpenStore = Callable[[str], ObjectStore]
NANOS = 1_000_000_000


def follow_branch(open_store: OpenStore, files: TableFiles, changes: Sequence[Change]) -> None:
    """Write a branch's reference file once its first manifest exists; remove it with the branch.

    Does nothing to tables that are no branches. Raises OSError if a store fails.
    """
    branch = files.state.header.message.branch
    if not branch:
        return
    for change in changes:
        if change.kind is ChangeKind.DROPPED:
            open_store(branch_home(files.location, branch)).delete(_path(branch))
        elif change.kind is ChangeKind.VERSION:
            transaction = Transaction.FromString(change.message)
            if transaction.clone.branch_name == branch:
                assert change.delta is not None
                _put(open_store, files, transaction, change.delta.timestamp_nanos)


def _put(
    open_store: OpenStore, files: TableFiles, transaction: Transaction, time_nanos: int
) -> None:
    clone = transaction.clone
    home = open_store(branch_home(files.location, clone.branch_name))
    # Lance's own is random; this one is the same however often it is written.
    identifier = [clone.ref_version, uuid5(NAMESPACE_OID, transaction.uuid).hex]
    reference = {
        "parentBranch": clone.ref_name or None,
        "identifier": {"version_mapping": [*_mapping(home, clone.ref_name), identifier]},
        "parentVersion": clone.ref_version,
        "createAt": time_nanos // NANOS,
        "manifestSize": _manifest_size(open_store(clone.ref_path), clone.ref_version),
        "metadata": {},
    }
    home.create(_path(clone.branch_name), json.dumps(reference, indent=2).encode())


def _mapping(home: ObjectStore, parent: str) -> list[Any]:
    """Return the identifiers of a parent branch and its ancestors; empty for the main branch."""
    if not parent:
        return []
    try:
        reference = json.loads(home.read(_path(parent)))
    except FileNotFoundError:
        return []
    found: list[Any] = reference["identifier"]["version_mapping"]
    return found


def _path(branch: str) -> str:
    return f"_refs/branches/{quote(branch, safe='')}.json"


def _manifest_size(store: ObjectStore, version: int) -> int:
    """Return the size in bytes of the manifest that a branch began with, 0 if it is gone."""
    return max(0, *map(store.size, manifest_places(version)))
