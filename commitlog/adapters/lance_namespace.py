"""Pylance's hook for an external manifest store, answered by us.

`describe_table_version` and `list_table_versions` name canonical manifests that can be read, never
a staged one: pylance would publish it. `ConcurrentModificationError` is raised only when the
winner can be described, for pylance then compares, checks and rebases by itself; any other error
ends as "Commit result unknown", whatever its status says.

`StagingNamespace` keeps what pylance staged, so that pylance builds a manifest that no reader
sees. `LogNamespace` sends it to the log, so that the native writes of an opened dataset are
transactions like all others.

Pylance asks any object that has these methods. So only type checkers see `LanceNamespace`: its
package takes 0.25 s of CPU to import, and only errors and requests for credentials need it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import commitlog.adapters.lean_import  # noqa: F401  # makes the imports below cheap
from commitlog.adapters.places import bound
from commitlog.adapters.storage_options import storage_options
from commitlog.codecs.manifest_file import (
    VERSIONS_DIRECTORY,
    NamingScheme,
    manifest_path,
    parse_manifest_name,
)
from commitlog.core.tables.branch_names import branch_location
from commitlog.errors import CommitLogError, InvalidTransaction, NoSuchVersion
from commitlog.model.table import TableId

if TYPE_CHECKING:
    import lance
    from lance_namespace import LanceNamespace
else:
    LanceNamespace = object

COMMIT_UNKNOWN = "Commit result for version "
"""How Lance begins when it could not find out whether it committed, or was refused."""

_LOCAL_SCHEMES = {"file", "file-object-store"}

_log = logging.getLogger("commitlog")


@dataclass(frozen=True, slots=True)
class StagedManifest:
    """A manifest that pylance wrote under a name that readers ignore."""

    version: int
    path: str
    """Relative to the table's location."""
    size: int
    e_tag: str
    naming_scheme: str
    base_version: int = 0
    """What the writer had read, as far as is known."""


def object_path(location: str, path: str) -> str:
    """Return a path as pylance's object store names it: absolute, without the leading slash."""
    return f"{_store_root(location)}/{path}"


def relative_path(location: str, path: str) -> str:
    """Return a manifest's path relative to the location, where it must be under `_versions`.

    Pylance gives paths as its object store has them; others may begin them with the location.
    """
    prefix = _store_root(location) + "/"
    relative = _without_scheme(bound(location), path).lstrip("/").removeprefix(prefix)
    folder, _, name = relative.rpartition("/")
    is_branch = folder.startswith("tree/") and folder.endswith(f"/{VERSIONS_DIRECTORY}")
    parsed = parse_manifest_name(name)
    if (
        ".." in folder.split("/")
        or not (folder == VERSIONS_DIRECTORY or is_branch)
        or parsed is None
        or not parsed.staged_by
    ):
        raise InvalidTransaction(
            f"{path!r} is not a staged manifest of the table at {location!r}",
            field="manifest_path",
            value=path,
            advice=f"Stage it as {VERSIONS_DIRECTORY}/<name>.manifest-<uuid>",
        )
    return relative


def _store_root(location: str) -> str:
    location = bound(location)
    scheme, separator, rest = location.partition("://")
    if not separator:
        return location.strip("/")
    if scheme in _LOCAL_SCHEMES:
        return rest.strip("/")
    return rest.partition("/")[2].strip("/")


def _without_scheme(location: str, path: str) -> str:
    """Return a URL below the location as its object store has it; any other path as it is."""
    kind, scheme = location.partition("://"), path.partition("://")
    is_local = scheme[0] in _LOCAL_SCHEMES and (not kind[1] or kind[0] in _LOCAL_SCHEMES)
    if scheme[1] and (is_local or path.startswith(f"{location.rstrip('/')}/")):
        return _store_root(path)
    return path


class GivenNamespace(LanceNamespace):
    """Answers about one table from what it was given: location, head, naming scheme."""

    def __init__(self, location: str, head: int, scheme: str = NamingScheme.V2) -> None:
        """Describe the version `head`, whose canonical manifest must be readable."""
        self.location = bound(location)
        self.head = head
        self.scheme = scheme

    def open(self, table: Sequence[str], version: int | None) -> lance.LanceDataset:
        """Open a version, the head if none is named, whose writes come here under `table`."""
        import lance

        return lance.LanceDataset(
            self.location,
            version,
            storage_options=storage_options(self.location) or None,
            namespace_client=self,
            table_id=list(table),
            namespace_client_managed_versioning=True,
        )

    def namespace_id(self) -> str:
        """Name this namespace in pylance's messages and caches."""
        return f"commitlog:{self.location}"

    def describe_table(self, request: Any) -> Any:
        """Say where the table is and that versions are managed."""
        from lance_namespace import DescribeTableResponse

        return DescribeTableResponse(
            location=self.location,
            managed_versioning=True,
            storage_options=storage_options(self.location),
        )

    def list_table_versions(self, request: Any) -> Any:
        """List the head alone: what pylance asks for is the newest version."""
        self._check_branch(request)
        return {"versions": [self.version_entry(self.head)]}

    def describe_table_version(self, request: Any) -> Any:
        """Name the manifest of a version up to the head."""
        self._check_branch(request)
        version = request["version"]
        if version is None:
            version = self.head
        if not 1 <= version <= self.head:
            from lance_namespace import TableVersionNotFoundError

            raise TableVersionNotFoundError(f"no version {version}; the head is {self.head}")
        return {"version": self.version_entry(version)}

    def version_entry(self, version: int) -> dict[str, Any]:
        """Return a version as the protocol spells it, with its canonical path."""
        path = manifest_path(version, self.scheme)
        return {"version": version, "manifest_path": object_path(self.location, path)}

    def _check_branch(self, request: Any) -> None:
        """Refuse another branch than this table is."""
        branch = request.get("branch") or ""
        if branch and not self.location.endswith(branch_location("", branch)):
            from lance_namespace import UnsupportedOperationError

            raise UnsupportedOperationError(
                f"{self.location} is not branch {branch!r}: open a branch that was created "
                "through the log as a table of its own, and other branches with pylance"
            )

    def staged_in(self, request: Any) -> StagedManifest:
        """Read a `create_table_version` request."""
        self._check_branch(request)
        return StagedManifest(
            version=request["version"],
            path=relative_path(self.location, request["manifest_path"]),
            size=request.get("manifest_size") or 0,
            e_tag=request.get("e_tag") or "",
            naming_scheme=request.get("naming_scheme") or NamingScheme.V2,
            base_version=self.head,
        )


class StagingNamespace(GivenNamespace):
    """Keeps what pylance staged and publishes nothing."""

    def __init__(self, location: str, head: int, scheme: str = NamingScheme.V2) -> None:
        """Expect a manifest for `head + 1`."""
        super().__init__(location, head, scheme)
        self.staged: list[StagedManifest] = []

    def create_table_version(self, request: Any) -> Any:
        """Keep the staged manifest, and answer as if it stood."""
        staged = self.staged_in(request)
        self.staged.append(staged)
        return {
            "version": {
                "version": staged.version,
                "manifest_path": request["manifest_path"],
                "manifest_size": staged.size,
            }
        }


class VersionStore:
    """What `LogNamespace` needs from the log; all calls wait, with deadlines."""

    table: TableId
    location: str

    def head(self) -> int:
        """Return the newest committed version."""
        raise NotImplementedError

    def materialize(self, version: int) -> str:
        """Return the canonical path, relative to the location, of a version that can be read.

        Raises NoSuchVersion.
        """
        raise NotImplementedError

    def commit(self, staged: StagedManifest) -> str | None:
        """Commit a staged manifest; return its canonical path, None if another has its version.

        Raises CommitConflict if it was refused for another reason.
        """
        raise NotImplementedError


class LogNamespace(GivenNamespace):
    """Sends staged manifests through the log, for the native writes of an opened dataset."""

    def __init__(self, store: VersionStore, version: int) -> None:
        """Take the opened version, from which pylance has read."""
        super().__init__(store.location, version)
        self._store = store
        self._path = ""
        """Of the head, while a dataset is opened with what the log has just said."""
        self.refused: CommitLogError | None = None
        """Why the log didn't commit the last native write: pylance itself only says "unknown"."""
        self.failed: CommitLogError | None = None
        """Why the log could not be asked the last time; pylance wraps it in words of its own."""

    def open_known(
        self, table: Sequence[str], version: int | None, path: str
    ) -> lance.LanceDataset:
        """Open the version of this namespace, whose path is known: the log isn't asked again."""
        self._path = path
        try:
            return self.open(table, version)
        finally:
            self._path = ""

    def newest(self) -> int:
        """Return the newest version; NoSuchVersion if another table has the name by now."""
        return self._store.head()

    def list_table_versions(self, request: Any) -> Any:
        """List the head, once its manifest can be read: from here on the dataset reads that."""
        self._check_branch(request)
        with self._keeping_failures():
            if not self._path:
                self.head = self._store.head()
            return {"versions": [self._readable(self.head)]}

    def describe_table_version(self, request: Any) -> Any:
        """Name the manifest of a version, once it can be read."""
        self._check_branch(request)
        with self._keeping_failures():
            version = request["version"]
            if version == 0:  # pylance reads back until it finds no file
                return {"version": self.version_entry(0)}
            return {"version": self._readable(self.newest() if version is None else version)}

    def create_table_version(self, request: Any) -> Any:
        """Commit what pylance staged."""
        self.refused = None
        try:
            staged = self.staged_in(request)
            path = self._store.commit(staged)
            if path is None:
                for version in range(max(self.head + 1, staged.version - 256), staged.version + 1):
                    with contextlib.suppress(NoSuchVersion):  # deleted since
                        self._store.materialize(version)
        except CommitLogError as error:
            self.refused = error
            _log.warning("a native write of %s failed: %s", "$".join(self._store.table), error)
            raise
        if path is None:
            from lance_namespace import ConcurrentModificationError

            raise ConcurrentModificationError(f"version {staged.version} is taken")
        self.head = staged.version
        made = {"version": staged.version, "manifest_path": object_path(self.location, path)}
        return {"version": made | {"manifest_size": staged.size}}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Travel as a read-only description: another process has no connection to the log."""
        return GivenNamespace, (self.location, self.head)

    def failure_in(self, error: Exception) -> CommitLogError | None:
        """Return why the log could not be asked, if that is what pylance's error is of.

        Pylance may look for a version that needn't be there.
        """
        is_it = not isinstance(self.failed, NoSuchVersion) or str(self.failed) in str(error)
        return self.failed if is_it else None

    @contextlib.contextmanager
    def _keeping_failures(self) -> Iterator[None]:
        self.failed = None
        try:
            yield
        except CommitLogError as error:
            self.failed = error
            raise

    def _readable(self, version: int) -> dict[str, Any]:
        try:
            is_known = version == self.head and self._path
            path = self._path if is_known else self._store.materialize(version)
        except NoSuchVersion as error:
            from lance_namespace import TableVersionNotFoundError

            self.failed = error
            raise TableVersionNotFoundError(str(error)) from error
        return {"version": version, "manifest_path": object_path(self.location, path)}


def refusal_of(dataset: Any) -> CommitLogError | None:
    """Return why the log didn't commit the last native write of a dataset, None if it did."""
    namespace = getattr(dataset, "_namespace_client", None)
    return namespace.refused if isinstance(namespace, LogNamespace) else None


@contextlib.contextmanager
def saying_why(dataset: Any) -> Iterator[None]:
    """Raise the log's own error where pylance says "unknown", or wraps it in words of its own."""
    namespace = getattr(dataset, "_namespace_client", None)
    if not isinstance(namespace, LogNamespace):
        yield
        return
    namespace.refused = namespace.failed = None
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:  # the second of an index
        if namespace.refused is not None and COMMIT_UNKNOWN in str(error):
            raise namespace.refused from error
        if (failed := namespace.failure_in(error)) is not None:
            raise failed from error
        raise
