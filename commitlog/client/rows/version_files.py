"""A version's fragments, read from its manifest without Lance.

Lance takes half a millisecond to open a version, and more the more fragments it has. An operation
that knows where its rows are needs only the fragments that they are in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import DecodeError

from commitlog.adapters.lance_datasets import encoded_manifest, is_gated
from commitlog.adapters.storage import is_local, store_for
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.excerpts import Excerpt, without_fragments
from commitlog.codecs.manifest_file import manifest_message, manifest_path
from commitlog.core.manifest.feature_flags import (
    FLAG_DELETION_FILES,
    FLAG_STABLE_ROW_IDS,
    FLAG_TABLE_CONFIG,
)
from commitlog.core.manifest.wire import Splitter
from commitlog.errors import UnsupportedFormat
from commitlog.lancepb.table_pb2 import Manifest
from commitlog.newest import Newest

if TYPE_CHECKING:
    import lance

_FRAGMENTS = Manifest.FRAGMENTS_FIELD_NUMBER
_LOCATIONS_MAX = 8
_PLAIN = FLAG_DELETION_FILES | FLAG_STABLE_ROW_IDS | FLAG_TABLE_CONFIG
"""What a version may need of its readers that changes nothing here."""


class ReadVersion(NamedTuple):
    """A version of a table whose rows are looked for."""

    fragments: Sequence[bytes]
    """Encoded as `lance.table.DataFragment`."""
    open: Callable[[Iterable[bytes]], lance.LanceDataset]
    """Returns a dataset that has some of them, at least."""


class VersionFile(NamedTuple):
    """What a manifest says."""

    location: str
    version: int
    rest: bytes
    """The manifest without its fragments, encoded."""
    fragments: list[bytes]
    """Encoded as `lance.table.DataFragment`."""
    has_indices: bool

    def excerpt(self, fragments: Iterable[bytes], session: Any) -> lance.LanceDataset:
        """Open some of the fragments."""
        head = without_fragments(Manifest.FromString(self.rest))
        return Excerpt(self.version, head, tuple(fragments)).alone(self.location, session)


class VersionFiles:
    """Reads versions of tables, and takes apart only what the last one didn't have. Thread-safe."""

    def __init__(self) -> None:
        self._splitters: Newest[str, Splitter] = Newest(_LOCATIONS_MAX)
        """What is known of the last manifests, by location."""

    def read(self, info: TableInfo, version: int) -> VersionFile | None:
        """Read a version that has the schema of `info`; None: leave it to Lance.

        That is so as well where somebody has to let the version through first.
        """
        if is_gated():
            return None
        try:
            data = store_for(info.location).read(manifest_path(version))
            rest, fragments = self._split(info.location, manifest_message(data))
            manifest = Manifest.FromString(rest)
        except (OSError, UnsupportedFormat, DecodeError):
            return None
        is_plain = (
            manifest.version == version
            and not manifest.reader_feature_flags & ~_PLAIN
            and not manifest.base_paths
            and list(manifest.fields) == list(info.field_ids.values())
            and dict(manifest.schema_metadata) == dict(info.schema_metadata)
        )
        if not is_plain:
            return None
        has_indices = manifest.HasField("index_section")
        return VersionFile(info.location, version, rest, fragments, has_indices)

    def opened(self, info: TableInfo, dataset: lance.LanceDataset) -> ReadVersion:
        """Return a version that Lance has opened.

        Pylance takes fifty times as long to encode it as reading its file takes, but a store that
        is far away isn't asked for it once more.
        """
        file = self.read(info, dataset.version) if is_local(info.location) else None
        if file is None:
            _, fragments = self._split(info.location, encoded_manifest(dataset))
            return ReadVersion(fragments, lambda _: dataset)
        return ReadVersion(file.fragments, lambda _: dataset)

    def _split(self, location: str, message: bytes) -> tuple[bytes, list[bytes]]:
        splitter = self._splitters.get(location)
        if splitter is None:
            splitter = self._splitters[location] = Splitter(_FRAGMENTS)
        return splitter.split(message)
