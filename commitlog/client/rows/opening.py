"""Tables opened for reading, and for native writes that go through the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from commitlog.adapters.lance_datasets import let_through, open_dataset
from commitlog.adapters.lance_refs import manifest_in, manifests_in
from commitlog.adapters.storage import is_local, store_for
from commitlog.client.leader.runtime import Runtime
from commitlog.client.leader.tables import TableInfo, Tables
from commitlog.client.rows.version_files import VersionFile, VersionFiles
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY
from commitlog.errors import NoSuchVersion
from commitlog.model.records import Outcome
from commitlog.model.table import Policy
from commitlog.newest import Newest

if TYPE_CHECKING:
    import lance

    from commitlog.client.rows.row_keys import KnownKeys

_CACHED_DATASETS = 8
_INDEX_CACHE_BYTES, _METADATA_CACHE_BYTES = 256 << 20, 64 << 20
"""A writer reads ever newer versions; pylance would keep 6 GiB and 1 GiB of them."""


class Opened:
    """Datasets by location and version, so that writers don't open one per commit."""

    def __init__(self, runtime: Callable[[], Runtime]) -> None:
        self._runtime = runtime
        self._datasets: Newest[tuple[str, str, int], lance.LanceDataset]
        self._datasets = Newest(_CACHED_DATASETS)
        self._excerpts: Newest[str, lance.LanceDataset] = Newest(_CACHED_DATASETS)
        """The last one of each place in an object store: it keeps the store."""
        self._empty: Newest[tuple[str, str], lance.LanceDataset] = Newest(_CACHED_DATASETS)
        """Excerpts without fragments, by location and incarnation."""
        self._files = VersionFiles()

    def renew_locks(self) -> None:
        """In a forked child, wait for no thread that the parent has."""
        vars(self).pop("keys", None)
        vars(self).pop("_session", None)  # with connections that the parent writes to

    def plain(self, info: TableInfo, version: int) -> lance.LanceDataset:
        """Open a version by path, without the log behind it; one that was deleted, anew."""
        key = (info.location, info.incarnation, version)
        found = None if _is_deleted(info, version) else self._datasets.get(key)
        if found is None:
            found = self._datasets[key] = self.alone(info, version)
            return found
        return let_through(found, info.location)

    def alone(self, info: TableInfo, version: int) -> lance.LanceDataset:
        """Open a version for a caller who changes tags: pylance allows no other use meanwhile."""
        if not is_there(info.location, version):
            materialize(self._runtime(), info, version)
        return open_dataset(info.location, version, session=self._session)

    def has(self, info: TableInfo, version: int) -> bool:
        """Return True if a version is open already."""
        return (info.location, info.incarnation, version) in self._datasets

    def newest(self, info: TableInfo) -> lance.LanceDataset:
        """Open the newest version that has its file; the head where the schema changed since.

        Under policy `latest` most versions never get a file, and making one takes a search of
        the log.
        """
        if readable := _readable(info):
            dataset = self.plain(info, readable)
            if dataset.lance_schema == info.lance_schema:
                return dataset
        return self.plain(info, info.version)

    def newest_file(self, info: TableInfo) -> VersionFile | None:
        """Return what the manifest of that version says, if Lance isn't needed to read it."""
        return self._files.read(info, _readable(info) or info.version)

    def excerpt(self, file: VersionFile, fragments: Iterable[bytes]) -> lance.LanceDataset:
        """Open some fragments of a version.

        Where they are in an object store, Lance looks up credentials and connects for each store
        that it makes. A session finds the one that a dataset of the same place still has.
        """
        if is_local(file.location):
            return file.excerpt(fragments, None)
        found = file.excerpt(fragments, self._session)
        self._excerpts[file.location] = found
        return found

    def for_writing(self, info: TableInfo) -> lance.LanceDataset:
        """Return any opened version of the present schema: new files need no more.

        None that was deleted: Lance may read its manifest again, for its indices. An excerpt has
        none, so it serves whatever becomes of its version.
        """
        place = info.location, info.incarnation
        empty = self._empty.get(place)
        if empty is not None and _has_schema_of(info, empty):
            return empty
        for (location, incarnation, version), dataset in list(self._datasets.items()):
            if (
                (location, incarnation) == place
                and not _is_deleted(info, version)
                and _has_schema_of(info, dataset)
            ):
                return dataset
        if (file := self.newest_file(info)) is not None:
            empty = self.excerpt(file, ())
            if _has_schema_of(info, empty):
                self._empty[place] = empty
                return empty
        return self.plain(info, info.version)

    @cached_property
    def keys(self) -> KnownKeys:
        """Where rows are that operations look for by a key."""
        from commitlog.client.rows.row_keys import CLIENT_ROWS_MAX, KnownKeys

        return KnownKeys(CLIENT_ROWS_MAX, files=self._files)

    @cached_property
    def _session(self) -> Any:
        """One of pylance's caches, which all share."""
        import lance

        return lance.Session(  # type: ignore[attr-defined]
            index_cache_size_bytes=_INDEX_CACHE_BYTES,
            metadata_cache_size_bytes=_METADATA_CACHE_BYTES,
        )


def _has_schema_of(info: TableInfo, dataset: lance.LanceDataset) -> bool:
    is_same: bool = dataset.schema.equals(info.schema, check_metadata=False)
    return is_same and dataset.lance_schema == info.lance_schema


def materialize(runtime: Runtime, info: TableInfo, version: int) -> str:
    """Return the canonical path of a version, once its manifest can be read."""
    if not 1 <= version <= info.version:
        raise NoSuchVersion(
            f"{info.name} has no version {version}; its head is {info.version}. Ask for a version"
            " that exists."
        )
    partition = runtime.domains.partition(info.table_id)
    answer = runtime.request(partition, "materialize", table=list(info.table_id), version=version)
    path: str = answer["path"]
    return path if path.startswith(VERSIONS_DIRECTORY) else f"{VERSIONS_DIRECTORY}/{path}"


def _readable(info: TableInfo) -> int:
    """Return the newest version that has its file and wasn't deleted; 0 if none is known."""
    readable = info.readable_version
    return 0 if _is_deleted(info, readable) else readable


def _is_deleted(info: TableInfo, version: int) -> bool:
    from commitlog.core.tables.lance_tables import is_in

    return is_in(version, info.deleted)


def is_there(location: str, version: int) -> bool:
    """Return True if a version's manifest is under its canonical name."""
    return canonical_path(location, version) is not None


def canonical_path(location: str, version: int) -> str | None:
    """Return the path of a version's file, by whichever name it has; None if there is none."""
    return manifest_in(store_for(location), version)


def path_of_head(info: TableInfo, version: int) -> str | None:
    """Return the path of a file that the leader has just said to be written; None: ask it.

    Asked for the head's, it only looks whether the file is there. Whoever opens a table in another
    store may have nothing to look there with but pylance.
    """
    if version == info.version == info.readable_version and is_local(info.location):
        return canonical_path(info.location, version)
    return None


def are_readable(tables: Tables, outcome: Outcome) -> bool:
    """Return True if the versions that an outcome made can be seen by path."""
    # An Iceberg table's metadata file was written before the outcome.
    for result in (each for each in outcome.results if not each.metadata_location):
        info = tables.at_location(result.table)
        if info is None or info.incarnation != result.incarnation:
            return False
        if result.version and not is_readable(info, result.version):
            return False
    return True


def is_readable(info: TableInfo, version: int) -> bool:
    """Return True if a committed version can be seen by path, as its table's policy has it."""
    if is_there(info.location, version):
        return True
    if info.policy is Policy.EVERY:
        return False
    return any(found >= version for found, _ in manifests_in(store_for(info.location)))
