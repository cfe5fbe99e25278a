"""Tables opened for reading, and for native writes that go through the log."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any

import lance

from commitlog.adapters.lance_namespace import LogNamespace, StagedManifest, VersionStore
from commitlog.adapters.storage import store_for
from commitlog.client.runtime import Runtime
from commitlog.client.submission import new_transaction_id, parse_message
from commitlog.client.tables import TableInfo, Tables
from commitlog.codecs.manifest_file import (
    VERSIONS_DIRECTORY,
    NamingScheme,
    decode_manifest,
    manifest_name,
    parse_manifest_name,
)
from commitlog.errors import NoSuchVersion, OutcomeUnknown
from commitlog.model.operations import CreateTableVersion
from commitlog.model.records import Code, Outcome, Status, Transaction
from commitlog.model.table import Policy

COMMIT_TIMEOUT_SECONDS = 120.0
BASE_VERSION = "commitlog.base_version"
"""In a staged version's metadata: what the writer's handle had read, before Lance rebased it.
Under the policy `latest` Lance saw only the versions that have files."""
_CACHED_DATASETS = 8


class Opened:
    """Datasets by location and version, so that writers don't open one per commit."""

    def __init__(self, runtime: Callable[[], Runtime], tables: Tables) -> None:
        """Share one of pylance's caches among all."""
        self._runtime = runtime
        self._tables = tables
        self._lock = threading.Lock()
        self._session = lance.Session()  # type: ignore[attr-defined]
        self._datasets: dict[tuple[str, str, int], lance.LanceDataset] = {}

    def plain(self, info: TableInfo, version: int) -> lance.LanceDataset:
        """Open a version by path, without the log behind it."""
        key = (info.location, info.incarnation, version)
        found = self._datasets.get(key)
        if found is None:
            found = self._open(info, version)
            with self._lock:
                while len(self._datasets) >= _CACHED_DATASETS:
                    self._datasets.pop(next(iter(self._datasets)))
                self._datasets[key] = found
        return found

    def for_writing(self, info: TableInfo) -> lance.LanceDataset:
        """Return any opened version of the present schema: new files need no more."""
        for (location, incarnation, _), dataset in list(self._datasets.items()):
            if (location, incarnation) == (info.location, info.incarnation) and (
                dataset.schema.equals(info.schema, check_metadata=False)
                and dataset.lance_schema == info.lance_schema
            ):
                return dataset
        return self.plain(info, info.version)

    def managed(self, info: TableInfo, version: int | None) -> lance.LanceDataset:
        """Open a version whose native writes go through the log."""
        wanted = info.version if version is None else version
        store = LogVersions(self._runtime, self._tables, info)
        store.materialize(wanted)
        namespace = LogNamespace(store, wanted)
        return lance.dataset(
            namespace_client=namespace, table_id=list(info.table_id), version=version
        )

    def _open(self, info: TableInfo, version: int) -> lance.LanceDataset:
        if not is_there(info.location, version):
            LogVersions(self._runtime, self._tables, info).materialize(version)
        return lance.dataset(info.location, version=version, session=self._session)


class LogVersions(VersionStore):
    """One table's versions, as the leader knows them."""

    def __init__(self, runtime: Callable[[], Runtime], tables: Tables, info: TableInfo) -> None:
        """Take a table's description; its location and incarnation must not change."""
        self.table = info.table_id
        self.location = info.location
        self._runtime = runtime
        self._tables = tables
        self._info = info
        self._lock = threading.Lock()
        self._attempts: dict[str, int] = {}

    def head(self) -> int:
        """Return the newest committed version."""
        return self._ask().version

    def materialize(self, version: int) -> str:
        """Return the canonical path of a version, once its manifest can be read."""
        head = self._info.version
        if version > head:
            head = self._ask().version
        if not 1 <= version <= head:
            raise NoSuchVersion(
                f"{self._info.name} has no version {version}; its head is {head}. Ask for a"
                " version that exists"
            )
        runtime = self._runtime()
        partition = runtime.domains.partition(self.table)
        answer = runtime.request(partition, "materialize", table=list(self.table), version=version)
        path: str = answer["path"]
        return path if path.startswith(VERSIONS_DIRECTORY) else f"{VERSIONS_DIRECTORY}/{path}"

    def commit(self, staged: StagedManifest) -> bool:
        """Commit a staged manifest; return False if another one has its version."""
        data = store_for(self.location).read(staged.path)
        state, message = decode_manifest(data)
        if message is None:
            message = store_for(self.location).read(f"_transactions/{state.transaction_file}")
        lance_message = parse_message(message)
        which = lance_message.WhichOneof("operation") or "unknown"
        operation = CreateTableVersion(
            table=self.table,
            version=staged.version,
            manifest_path=staged.path,
            manifest_size=len(data),
            e_tag=staged.e_tag,
            naming_scheme=staged.naming_scheme,
            sha256=hashlib.sha256(data).digest(),
            message=message,
            operation="".join(part.capitalize() for part in which.split("_")),
            incarnation=self._info.incarnation,
            branch=staged.branch,
            metadata=((BASE_VERSION, str(staged.base_version)),) if staged.base_version else (),
        )
        outcome = self._decide(lance_message.uuid or new_transaction_id(), operation)
        if outcome.status is Status.COMMITTED:
            return True
        is_taken = self._ask().version >= staged.version
        if is_taken and (outcome.status is Status.RETRYABLE or outcome.code is Code.NOT_LATEST):
            return False
        outcome.raise_for_conflict()
        return False

    def _decide(self, transaction_id: str, operation: CreateTableVersion) -> Outcome:
        """Submit under the Lance transaction's own id; each of its tries is an attempt."""
        with self._lock:
            attempt = self._attempts.get(transaction_id, -1) + 1
            self._attempts[transaction_id] = attempt
        transaction = Transaction(transaction_id, (operation,), attempt=attempt)
        deadline = time.monotonic() + COMMIT_TIMEOUT_SECONDS
        ticket = self._runtime().submit(transaction, id_is_new=attempt == 0)
        outcome = ticket.result(COMMIT_TIMEOUT_SECONDS, wait="committed")
        if outcome.status is Status.COMMITTED:
            try:
                return ticket.result(max(deadline - time.monotonic(), 1), wait="readable")
            except OutcomeUnknown:
                return outcome
        return outcome

    def _ask(self) -> TableInfo:
        info = self._tables.ask(self._runtime(), self.table)
        if info.incarnation != self._info.incarnation:
            raise NoSuchVersion(
                f"{self._info.name} was dropped and made again since it was opened; open it again"
            )
        self._info = info
        return info


def is_there(location: str, version: int) -> bool:
    """Return whether a version's manifest is under its canonical name."""
    store = store_for(location)
    return any(
        store.size(f"{VERSIONS_DIRECTORY}/{manifest_name(version, scheme)}") >= 0
        for scheme in (NamingScheme.V2, NamingScheme.V1)
    )


def is_readable(info: TableInfo, version: int) -> bool:
    """Return whether a committed version can be seen by path, as its table's policy has it."""
    if is_there(info.location, version):
        return True
    if info.policy is Policy.EVERY:
        return False
    found: Any = map(parse_manifest_name, store_for(info.location).names(VERSIONS_DIRECTORY))
    return any(
        name and not name.staged_by and not name.is_detached and name.version >= version
        for name in found
    )
