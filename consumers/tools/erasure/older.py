"""Looks for rows that only older versions of a table still have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from commitlog import CommitLog
from commitlog.adapters.lance_datasets import open_dataset
from commitlog.adapters.storage import store_for
from commitlog.client.leader.tables import TableInfo
from commitlog.codecs.manifest_file import (
    manifest_message,
    manifest_places,
)
from commitlog.core.catalogue.version_deletion import without
from commitlog.core.manifest.wire import Splitter
from commitlog.errors import InvalidTransaction, NoSuchVersion, UnsupportedFormat
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFragment, Manifest
from consumers.runtime.progress import OnProgress

if TYPE_CHECKING:
    import lance


def version_with(client: CommitLog, info: TableInfo, where: str, on_progress: OnProgress) -> int:
    """Return the newest older version with such rows; 0 if there is none.

    Versions share files. So each fragment's files are searched once, deleted rows included, and if
    no row there is one of those, no version of these files has to be looked at. Of other files,
    each state of their deletions is searched. A version is opened only for that; its manifest tells
    which fragments it has. The newest version is known to have no such row that lives.

    Raises:
        InvalidTransaction: a version lacks a column of the predicate.
    """
    looking = _Looking(client, info, where)
    versions = [
        v for a, b in without([(1, info.version - 1)], info.deleted) for v in range(a, b + 1)
    ]
    for done, version in enumerate(reversed(versions)):
        on_progress(done, len(versions))
        if looking.finds(version):
            return version
    return 0


class _Version(NamedTuple):
    fragments: frozenset[bytes]
    """Encoded as `lance.table.DataFragment`."""
    columns: bytes
    """Names the columns that are others here than under the same name in the newest version."""


class _Looking:
    """What is known of fragments already, as 16 bytes each."""

    def __init__(self, client: CommitLog, info: TableInfo, where: str) -> None:
        self._client, self._info, self._where = client, info, where
        self._store = store_for(info.location)
        self._columns = _by_name(info.field_ids.values())
        self._splitter = Splitter(Manifest.FRAGMENTS_FIELD_NUMBER)
        newest: Any = client.opened.newest(info)._ds
        self._last = self._version(newest.serialized_manifest())
        """What was looked at last."""
        self._seen = {_digest(self._last.columns, one) for one in self._last.fragments}
        """Fragments in a state in which no such row lives."""
        self._clear: set[bytes] = set()
        """Files in which there is no such row, deleted or not."""

    def finds(self, version: int) -> bool:
        """Return True if such a row lives in a version; one that expired meanwhile has none."""
        try:
            dataset = None
            found = self._read(version)
            if found is None:
                dataset = self._client.open(self._info.name, version)
                found = self._version(cast(Any, dataset)._ds.serialized_manifest())
            last = self._last.fragments if found.columns == self._last.columns else frozenset()
            states = {_digest(found.columns, one): one for one in found.fragments - last}
            new = [DataFragment.FromString(states[one]) for one in states.keys() - self._seen]
            unread = {one.id: _files(found.columns, one) for one in new}
            unread = {number: one for number, one in unread.items() if one not in self._clear}
            if unread and self._has(dataset or self._open(version), unread, version):
                return True
        except NoSuchVersion:
            return False
        self._seen |= states.keys()
        self._last = found
        return False

    def _read(self, version: int) -> _Version | None:
        """Read a version's manifest; None: it has no file of its own."""
        for path in manifest_places(version):
            with contextlib.suppress(FileNotFoundError, UnsupportedFormat):
                return self._version(manifest_message(self._store.read(path)))
        return None

    def _version(self, message: bytes) -> _Version:
        rest, fragments = self._splitter.split(message)
        others = {
            (name, number)
            for name, number in _by_name(Manifest.FromString(rest).fields).items()
            if self._columns.get(name, number) != number
        }
        return _Version(frozenset(fragments), repr(sorted(others)).encode() if others else b"")

    def _open(self, version: int) -> lance.LanceDataset:
        try:
            return open_dataset(self._info.location, version)
        except (ValueError, OSError):
            return self._client.open(self._info.name, version)

    def _has(self, dataset: lance.LanceDataset, unread: Mapping[int, bytes], version: int) -> bool:
        asked = [one for one in dataset.get_fragments() if one.fragment_id in unread]
        try:
            if not self._any(dataset, asked, include_deleted_rows=True, use_scalar_index=False):
                self._clear.update(unread.values())
                return False
            return self._any(dataset, asked)
        except (ValueError, OSError, RuntimeError) as error:
            raise InvalidTransaction(
                f"version {version} of {self._info.name} may have such rows, but Lance can't"
                f" evaluate {self._where!r} over it: {str(error).rstrip('. ')}",
                field="where",
                value=self._where,
                advice="Use columns that each version has, or delete the older versions first"
                " (log.expire_versions)",
            ) from error

    def _any(
        self, dataset: lance.LanceDataset, fragments: Sequence[lance.LanceFragment], **how: Any
    ) -> bool:
        scanner = dataset.scanner(
            filter=self._where, fragments=fragments, columns=[], with_row_id=True, limit=1, **how
        )
        return bool(scanner.to_table().num_rows)


def _by_name(fields: Iterable[Field]) -> dict[tuple[int, str], int]:
    return {(field.parent_id, field.name): field.id for field in fields}


def _digest(columns: bytes, data: bytes) -> bytes:
    return blake2b(columns + data, digest_size=16).digest()


def _files(columns: bytes, fragment: DataFragment) -> bytes:
    """Name a fragment's files, as they are read."""
    held = DataFragment(files=fragment.files, overlays=fragment.overlays)
    return _digest(columns, held.SerializeToString(deterministic=True))
