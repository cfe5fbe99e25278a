"""Some fragments of a version, opened without its other ones.

An operation that knows where its rows are opens the fragments that they are in: Lance takes 20 ms
to open 10,000, and a merge looks into each. An excerpt has no indices.

A task of Spark may start long after its query was planned. Under policy `latest`, maintenance
removes older manifests after seconds; versions expire, too. Data files stay for hours. So a task
brings what it needs of the manifest. The version is opened by its path if that is still there, for
its indices.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from commitlog.adapters.lance_datasets import encoded_manifest, open_dataset, open_manifest
from commitlog.client.rows.lost_files import is_of_deleted_version
from commitlog.codecs.manifest_file import encode_manifest, manifest_message
from commitlog.core.manifest.fragments import Fragments
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.lancepb.table_pb2 import Manifest

if TYPE_CHECKING:
    import lance


@dataclass(frozen=True)
class Excerpt:
    """Some fragments of a version, and what its manifest says of the whole table."""

    version: int
    head: bytes
    """Part of a `lance.table.Manifest`, encoded: excerpts of one version share it."""
    fragments: tuple[bytes, ...] = ()
    """As `lance.table.DataFragment`, encoded."""

    @classmethod
    def whole(cls, dataset: lance.LanceDataset) -> Excerpt:
        """Return all of an open version, for tasks of which each may read any of it."""
        return cls(int(dataset.version), encoded_manifest(dataset))

    def open(self, location: str) -> lance.LanceDataset:
        """Return the version, which may have no other fragments than these.

        Raises ValueError or OSError if the table isn't there or can't be read.
        """
        try:
            return opened(location, self.version, self.head)
        except (ValueError, OSError) as error:
            if not is_of_deleted_version(error, self.version):
                raise
        return self.alone(location)

    def alone(self, location: str, session: Any = None) -> lance.LanceDataset:
        """Return the version with no other fragments than these, nor any index.

        Lance's caches name the version, and not which part of it. Without a session, each excerpt
        has its own; with one, `open_manifest` keeps them apart.
        """
        encoded = self.head + b"".join(Fragments(self.fragments).wire())
        return open_manifest(location, self.version, encoded, session)


def head_of(state: ManifestState) -> bytes:
    """Return the head of a version's excerpts; its fragments aren't taken apart for it."""
    whole = copy(state)
    whole.fragments, whole.index_section = Fragments(), None
    return manifest_message(encode_manifest(whole, None))


def taken_apart(dataset: lance.LanceDataset) -> tuple[bytes, dict[int, bytes]]:
    """Return the head of an open version's excerpts, and its fragments by their ids."""
    manifest = Manifest.FromString(encoded_manifest(dataset))
    fragments = {one.id: one.SerializeToString() for one in manifest.fragments}
    return without_fragments(manifest), fragments


def without_fragments(manifest: Manifest) -> bytes:
    """Take out of a manifest what excerpts lack of it; return their head."""
    for name in ("fragments", "index_section", "transaction_section"):
        manifest.ClearField(name)
    return manifest.SerializeToString()


@lru_cache(maxsize=8)
def opened(location: str, version: int, head: bytes) -> lance.LanceDataset:
    """Return a version by its path, which a worker that reads much of it opens once.

    After a restore, another one has its number, and another head.
    """
    del head
    return open_dataset(location, version)
