"""Native writes of an opened table: pylance commits, and the log decides.

Apart from `opening`, which also a writer imports that never needs pylance.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

import lance

from commitlog.adapters.lance_datasets import let_through
from commitlog.adapters.lance_namespace import LogNamespace, StagedManifest, VersionStore
from commitlog.adapters.lance_refs import guard_from_cleanup
from commitlog.adapters.storage import store_for
from commitlog.client.commits.caller import caller
from commitlog.client.leader.runtime import Runtime
from commitlog.client.leader.tables import TableInfo, Tables, at_versions
from commitlog.client.rows.lance_request import new_transaction_id, parse_message
from commitlog.client.rows.opening import materialize, path_of_head
from commitlog.client.rows.written_keys import as_carried, read_written_keys
from commitlog.codecs.manifest_file import decode_manifest, manifest_path, transaction_path
from commitlog.core.conflicts.write_sets import KINDS, UNKNOWN
from commitlog.core.lance.staged_keys import BASE_VERSION, with_keys
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.errors import NoSuchVersion, OutcomeUnknown, RetryableConflict
from commitlog.model.operations import CreateTableVersion
from commitlog.model.records import Code, Outcome, Status, Transaction

COMMIT_TIMEOUT_SECONDS = 120.0
DECIDED_TIMEOUT_SECONDS = 1.0
"""How long it takes at most to learn what is known of a commit whose file is late."""


def open_managed(
    runtime: Callable[[], Runtime],
    tables: Tables,
    info: TableInfo,
    version: int | None,
    principal: str = "",
) -> lance.LanceDataset:
    """Open a version whose native writes go through the log, in the name of `principal`."""
    wanted = info.version if version is None else version
    store = LogVersions(runtime, tables, info, principal)
    path = path_of_head(info, wanted) or store.materialize(wanted)
    dataset = LogNamespace(store, wanted).open_known(info.table_id, version, path)
    return let_through(dataset, info.location)


class LogVersions(VersionStore):
    """One table's versions, as the leader knows them."""

    def __init__(
        self, runtime: Callable[[], Runtime], tables: Tables, info: TableInfo, principal: str
    ) -> None:
        """Take a table's description; its location and incarnation must not change."""
        self.table = info.table_id
        self.location = info.location
        self._runtime = runtime
        self._tables = tables
        self._info = info
        self._lock = threading.Lock()
        self._attempts: dict[str, int] = {}
        # Lance calls back on threads of its own.
        self._caller = caller()
        self._principal = self._caller.principal or principal
        self._called: dict[str, str] = {}
        """Ids of Lance's whose transactions are called otherwise."""

    def head(self) -> int:
        """Return the newest committed version."""
        return self._ask().version

    def materialize(self, version: int) -> str:
        """Return the canonical path of a version, once its manifest can be read."""
        if version > self._info.version:
            self._ask()
        return materialize(self._runtime(), self._info, version)

    def commit(self, staged: StagedManifest) -> str | None:
        """Commit a staged manifest and return its path; None if another one has its version."""
        data = store_for(self.location).read(staged.path)
        state, message = decode_manifest(data)
        if message is None:
            message = store_for(self.location).read(transaction_path(state))
        lance_message = parse_message(message)
        base = ((BASE_VERSION, str(staged.base_version)),) if staged.base_version else ()
        written = read_written_keys(self._info, lance_message)
        guard_from_cleanup(self.location, state.header.message.config)
        operation = CreateTableVersion(
            table=self.table,
            version=staged.version,
            manifest_path=staged.path,
            manifest_size=len(data),
            e_tag=staged.e_tag,
            naming_scheme=staged.naming_scheme,
            sha256=hashlib.sha256(data).digest(),
            message=message,
            operation=KINDS.get(lance_message.WhichOneof("operation") or "", UNKNOWN),
            incarnation=self._info.incarnation,
            metadata=with_keys(base, as_carried(written)),
        )
        outcome = self._decide(lance_message.uuid or new_transaction_id(), operation)
        if outcome.status is Status.COMMITTED:
            return self._made(staged, state)
        is_taken = self._ask().version >= staged.version
        if is_taken and (outcome.status is Status.RETRYABLE or outcome.code is Code.NOT_LATEST):
            return None
        if outcome.code is Code.NOT_LATEST and self._clear_the_way():
            raise RetryableConflict(
                f"version {staged.version} of {self._info.name} was staged on top of versions "
                "that were written around the log. Nothing was committed, and those versions "
                "have been moved away: write again",
                outcome,
            )
        outcome.raise_for_conflict()
        return None

    def _made(self, staged: StagedManifest, state: ManifestState) -> str:
        """Return the path of a version that was just committed, by asking only if need be."""
        header, info = state.header, self._info
        is_same = [*header.fields.values()] == [*info.field_ids.values()]
        if is_same and staged.version > info.version:
            self._info = at_versions(info, version=staged.version)
        path = manifest_path(staged.version, staged.naming_scheme)
        if store_for(self.location).size(path) >= 0:
            return path
        return self.materialize(staged.version)

    def _clear_the_way(self) -> bool:
        """Have the leader move versions away that were written around the log, if there are any."""
        runtime = self._runtime()
        partition = runtime.domains.partition(self.table)
        return bool(runtime.request(partition, "quarantine", table=list(self.table))["quarantined"])

    def _decide(self, transaction_id: str, operation: CreateTableVersion) -> Outcome:
        """Submit under the Lance transaction's own id; each of its tries is an attempt."""
        with self._lock:
            if self._caller.transaction_id and not self._called:
                self._called[transaction_id] = self._caller.transaction_id
            transaction_id = self._called.get(transaction_id, transaction_id)
            attempt = self._attempts.get(transaction_id, -1) + 1
            self._attempts[transaction_id] = attempt
        transaction = Transaction(
            transaction_id,
            (operation,),
            attempt=attempt,
            principal=self._principal,
            properties=self._caller.properties,
        )
        is_new = attempt == 0 and transaction_id != self._caller.transaction_id
        ticket = self._runtime().submit(transaction, id_is_new=is_new)
        try:
            outcome = ticket.result(COMMIT_TIMEOUT_SECONDS, wait="readable")
        except OutcomeUnknown:
            # It may be in the log, and only its file is late.
            outcome = ticket.result(DECIDED_TIMEOUT_SECONDS, wait="committed")
        if outcome.status is Status.COMMITTED:
            # There is no next try, and a dataset may be open for years.
            self._attempts.pop(transaction_id, None)
        return outcome

    def _ask(self) -> TableInfo:
        info = self._tables.ask(self._runtime(), self.table)
        if info.incarnation != self._info.incarnation:
            raise NoSuchVersion(
                f"{self._info.name} was dropped and created again since it was opened; open it "
                "again"
            )
        self._info = info
        return info
