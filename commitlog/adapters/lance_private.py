"""What pylance would commit, without committing it: for work that the log commits in its place.

Pylance refuses a compaction over newer deletions, and an index or a new column is staged for the
next version, which busy writers take again and again. So pylance works on a private version: a copy
of the manifest that it read, numbered far behind the head, where no other writer commits. What it
stages there is read and removed. The files that the transaction names stay.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import lance
from lance.optimize import CompactionTask, RewriteResult
from pyroaring import BitMap

from commitlog.adapters.lance_namespace import StagingNamespace, object_path
from commitlog.adapters.storage import ObjectStore, store_for
from commitlog.codecs.manifest_file import (
    TRANSACTIONS_DIRECTORY,
    decode_manifest,
    encode_manifest,
    manifest_name,
    transaction_path,
    with_scalars,
)
from commitlog.core.manifest.feature_flags import FLAG_STABLE_ROW_IDS
from commitlog.core.manifest.fragments import Fragments
from commitlog.core.manifest.indices import FRAGMENT_REUSE_INDEX, covered_fragments
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.manifest.roaring import portable
from commitlog.core.operations.awaited_columns import PRIVATE_DIRECTORY
from commitlog.errors import UnsupportedFormat
from commitlog.lancepb.table_pb2 import IndexMetadata, IndexSection, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction

_FAR_AHEAD = 2**40
"""Pylance looks for conflicts in the versions after the one it read. Here there are none."""

_RANKING = "VectorIndexDetails", "InvertedIndexDetails"
"""Indices that find so many rows, the best ones; others find all that fit."""

T = TypeVar("T")


def captured(
    location: str,
    version: int,
    manifest_path: str,
    work: Callable[[lance.LanceDataset], T],
    *,
    first_free_id: int = -1,
    only: Collection[int] | None = None,
) -> tuple[Transaction | None, T]:
    """Return the transaction that `work` commits to a version, and what `work` returns.

    The transaction is None if `work` commits nothing. New fragments get ids from `first_free_id`
    on; -1: from the version's own next one. `only` are the fragments that the version has there;
    None: all.
    """
    store = store_for(location)
    data = store.read(manifest_path)
    state, inline = decode_manifest(data)
    if only is not None:
        kept = (encoded for one, encoded in state.fragments.items() if one in only)
        state.fragments = Fragments(kept)
        data = encode_manifest(state, inline)
    scalars = Manifest(version=version + _FAR_AHEAD)
    if first_free_id >= 0:
        scalars.max_fragment_id = first_free_id - 1
    folder = f"{PRIVATE_DIRECTORY}/{uuid.uuid4()}"
    path = f"{folder}/{manifest_name(scalars.version)}"
    namespace = _PrivateNamespace(location, scalars.version, path)
    store.write(path, with_scalars(data, scalars))
    committed: list[Transaction] = []
    try:
        returned = work(namespace.open(["table"], scalars.version))
    finally:
        store.delete(path)
        store.prune(folder)
        for staged in namespace.staged:
            committed.append(_take(store, staged.path))
    wanted = [one for one in committed if not one.HasField("reserve_fragments")]
    if len(wanted) > 1:
        names = ", ".join(str(one.WhichOneof("operation")) for one in wanted)
        raise UnsupportedFormat(
            f"pylance split this call into {len(wanted)} commits ({names}) at {location}: "
            "make one call for each"
        )
    return (_as_of(wanted[0], version) if wanted else None), returned


def as_read_privately(dataset: lance.LanceDataset, results: Sequence[Any]) -> list[Any]:
    """Return a compaction's finished tasks as ones of a private version's."""
    # Missing in pylance's type stubs.
    from_json = RewriteResult.from_json  # type: ignore[attr-defined]
    version = dataset.version
    return [
        from_json(json.dumps({**json.loads(result.json()), "read_version": version}))
        for result in results
    ]


def fragments_of(task: CompactionTask, *, with_deletions: bool = False) -> list[int]:
    """Return a compaction task's fragments; pylance makes no objects of those with overlays."""
    fragments = json.loads(task.json())["task"]["fragments"]  # type: ignore[attr-defined]
    return [one["id"] for one in fragments if one.get("deletion_file") or not with_deletions]


def unmasked_indices(state: ManifestState, tasks: Iterable[CompactionTask]) -> list[IndexMetadata]:
    """Return the vector and full-text indices that would find rows which compaction tasks remove.

    Where row ids are stable, an index keeps those of deleted rows. Lance 14.0.2 leaves them out of
    a search's best rows if the index covers a fragment with deletions, or one that is gone. After a
    compaction it may cover neither: then they take the place of rows that a search should find.
    """
    cut = BitMap(one for task in tasks for one in fragments_of(task, with_deletions=True))
    if not cut:
        return []
    if not state.reader_feature_flags & FLAG_STABLE_ROW_IDS:
        return []
    standing, found = BitMap(state.fragments), []
    for index in IndexSection.FromString(state.index_section or b"").indices:
        covered = covered_fragments(index)
        ranks = index.index_details.type_url.endswith(_RANKING)
        if ranks and covered and covered & cut and covered <= standing:
            found.append(index)
    return found


def masked(indices: Iterable[IndexMetadata], gone: int, version: int) -> Transaction:
    """Return what has indices cover one more fragment, whose id no fragment will ever have."""
    made = Transaction(read_version=version, uuid=str(uuid.uuid4()))
    for index in indices:
        made.create_index.removed_indices.append(index)
        covered = BitMap(covered_fragments(index) or ()) | BitMap([gone])
        made.create_index.new_indices.append(index)
        made.create_index.new_indices[-1].fragment_bitmap = portable(covered)
    return made


def new_fragment_count(results: Sequence[Any]) -> int:
    """Return how many fragments a compaction's finished tasks made."""
    return sum(len(json.loads(result.json())["new_fragments"]) for result in results)


def state_at(location: str, manifest_path: str) -> ManifestState:
    """Return what a manifest says."""
    return decode_manifest(store_for(location).read(manifest_path))[0]


def first_reserved_id(location: str, manifest_path: str, count: int) -> int:
    """Return the first of the `count` fragment ids that a version reserved."""
    state = state_at(location, manifest_path)
    assert state.max_fragment_id is not None
    return state.max_fragment_id - count + 1


def stale_fragments(state: ManifestState) -> set[int]:
    """Return the fragments of which an index has addresses from before a compaction of Lance's own.

    Lance looks these up in an index of its own (`defer_index_remap`). Another compaction, which
    remaps indices at once, would lose such rows from the index.
    """
    indices = IndexSection.FromString(state.index_section or b"").indices
    return {
        fragment
        for since in indices
        if since.name == FRAGMENT_REUSE_INDEX
        for one in indices
        if not one.name.startswith("__lance_") and one.dataset_version < since.dataset_version
        for covered in (one, since)
        for fragment in covered_fragments(covered) or state.fragments
    }


class _PrivateNamespace(StagingNamespace):
    """Names the private manifest for its head."""

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


def _take(store: ObjectStore, staged_path: str) -> Transaction:
    """Return a staged manifest's transaction, and remove what was staged."""
    state, encoded = decode_manifest(store.read(staged_path))
    message = Transaction.FromString(encoded or store.read(transaction_path(state)))
    store.delete(f"{TRANSACTIONS_DIRECTORY}/{message.read_version}-{message.uuid}.txn")
    store.delete(staged_path)
    return message


def _as_of(message: Transaction, version: int) -> Transaction:
    """Put the version that was read into a transaction, instead of its private number."""
    message.read_version = version
    for index in message.create_index.new_indices if message.HasField("create_index") else ():
        if index.dataset_version > _FAR_AHEAD:
            index.dataset_version = version
    return message
