"""The Rewrite of a finished compaction, as pylance would commit it, without committing it.

Pylance refuses to commit a compaction over newer deletions, which the log carries it over. So it
commits in private: to a copy of the manifest that the compaction read, after which the next free
fragment ids are those that the log reserved. What it stages is read and removed; the remapped
indices that it wrote stay, and the Rewrite names them.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

import lance
from lance.optimize import Compaction, RewriteResult

from commitlog.adapters.lance_namespace import StagingNamespace, object_path
from commitlog.adapters.storage import store_for
from commitlog.codecs.manifest_file import (
    TRANSACTIONS_DIRECTORY,
    decode_manifest,
    encode_manifest,
    manifest_name,
    transaction_path,
)
from commitlog.errors import CorruptLog
from commitlog.lancepb.transaction_pb2 import Transaction

PRIVATE_DIRECTORY = "_commitlog-private"
_FAR_AHEAD = 2**40
"""How far behind the head the private version is numbered: pylance looks for conflicts in the
versions that come after the one it read, and there are none."""


class Rewritten(NamedTuple):
    """A compaction that is ready to be committed."""

    message: Transaction
    fragments_removed: int
    fragments_added: int
    files_removed: int
    files_added: int


def new_fragment_count(results: Sequence[Any]) -> int:
    """Return how many fragments a compaction's finished tasks made."""
    return sum(len(json.loads(result.json())["new_fragments"]) for result in results)


def reserved_ids(location: str, manifest_path: str, count: int) -> int:
    """Return the first of `count` fragment ids that a version reserved."""
    state, _ = decode_manifest(store_for(location).read(manifest_path))
    assert state.max_fragment_id is not None
    return state.max_fragment_id - count + 1


def rewrite_of(
    location: str, version: int, manifest_path: str, first_id: int, results: Sequence[Any]
) -> Rewritten:
    """Return the Rewrite of a compaction's finished tasks, which read `version`.

    Its new fragments have ids from `first_id` on; -1 if it has none.
    """
    store = store_for(location)
    state, transaction = decode_manifest(store.read(manifest_path))
    state = state.copy()
    if first_id >= 0:
        state.max_fragment_id = first_id - 1
    state.version = private_version = version + _FAR_AHEAD
    private = f"{PRIVATE_DIRECTORY}/{uuid.uuid4()}/{manifest_name(private_version)}"
    namespace = _PrivateNamespace(location, private_version, private)
    store.write(private, encode_manifest(state, transaction))
    try:
        dataset = lance.dataset(
            namespace_client=namespace, table_id=["table"], version=private_version
        )
        metrics = Compaction.commit(dataset, [_read_at(private_version, one) for one in results])
        if not namespace.staged:
            raise CorruptLog(f"pylance committed to {location} without staging a manifest")
        built, encoded = decode_manifest(store.read(namespace.staged[-1].path))
        message = Transaction.FromString(encoded or store.read(transaction_path(built)))
    finally:
        store.delete(private)
        for staged in namespace.staged:
            _discard(store, staged.path)
    return Rewritten(
        message,
        metrics.fragments_removed,
        metrics.fragments_added,
        metrics.files_removed,
        metrics.files_added,
    )


class _PrivateNamespace(StagingNamespace):
    """Names another manifest for the head than everybody else sees."""

    def __init__(self, location: str, head: int, manifest_path: str) -> None:
        """Describe the version `head` by the manifest at `manifest_path`."""
        super().__init__(location, head)
        self._manifest_path = manifest_path

    def version_entry(self, version: int) -> dict[str, Any]:
        """Return a version as the protocol spells it."""
        if version != self.head:
            return super().version_entry(version)
        return {
            "version": version,
            "manifest_path": object_path(self.location, self._manifest_path),
        }


def _read_at(version: int, result: Any) -> Any:
    described = json.loads(result.json())
    return RewriteResult.from_json(json.dumps({**described, "read_version": version}))


def _discard(store: Any, staged_path: str) -> None:
    """Remove a staged manifest and the file of its transaction."""
    state, encoded = decode_manifest(store.read(staged_path))
    if encoded is not None:
        message = Transaction.FromString(encoded)
        store.delete(f"{TRANSACTIONS_DIRECTORY}/{message.read_version}-{message.uuid}.txn")
    elif state.transaction_file:
        store.delete(transaction_path(state))
    store.delete(staged_path)
