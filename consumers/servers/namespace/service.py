"""What all operations share: the log, descriptions of tables, submitting and its answers.

It holds no truth. Everything is asked of the leader, whose answers are what Kafka acknowledged, or
read from the tables' files. A repeated request is recognized by its transaction id: the caller's
Idempotency-Key, Lance's own uuid, or one made of the request's content.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid5

import lance
from lance_namespace import (
    InvalidInputError,
    NamespaceNotFoundError,
    TableVersionNotFoundError,
)

from commitlog import CommitLog
from commitlog.adapters.places import bound, recorded
from commitlog.adapters.storage import local_path, store_for
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.lance_request import new_transaction_id, parse_message
from commitlog.codecs.avro import decode_log_record, decode_outcome_record
from commitlog.codecs.manifest_file import (
    VERSIONS_DIRECTORY,
    decode_manifest,
    manifest_path,
)
from commitlog.core.decisions import noted
from commitlog.core.tables.lance_tables import is_in
from commitlog.errors import CommitConflict, NoSuchTable, OutcomeUnknown, Unavailable
from commitlog.messages import DecidedRecords, NamespaceDescription, TableHead
from commitlog.model.operations import CreateTableVersion, Operation
from commitlog.model.records import Code, Outcome, Status, Transaction
from commitlog.model.table import TableId, format_table_id
from commitlog.newest import Newest
from consumers.servers.metrics import Metrics
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.landings import Landed, Landings, OlderClients
from consumers.servers.namespace.reach import Reach
from consumers.servers.namespace.settings import Settings
from consumers.servers.namespace.turns import KeyedLocks, VersionTaken
from consumers.servers.namespace.version_facts import KnownVersions, written
from consumers.servers.security.grants import Access
from consumers.servers.security.identity import Security
from consumers.servers.security.places import TablePlaces
from consumers.servers.vending.vendor import Vendor

BODY_HASH, ENDED = "http.body_sha256", "http.ended_properties"
"""Properties of transactions made under an Idempotency-Key: the digest of the request, since one
key is one request, and the properties of what it ended, for its repetitions."""
ATTEMPTS_REMEMBERED_MAX = 10_000
ATTEMPTS_MAX = 20
PASTS_KEPT = 32
LAST_ASK_SECONDS = 1.0


class Service:
    """One log, for all requests. Thread-safe."""

    most = Access.WRITE
    """The most that may be done with the files of the tables that it shows."""
    is_past = False
    """Whether it shows what existed at a position."""

    def __init__(
        self,
        log: CommitLog,
        settings: Settings | None = None,
        security: Security | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Serve this log."""
        self.log = log
        self.settings = settings or Settings()
        self.security = security or Security()
        self.places = TablePlaces(log, self.security, self.settings.locations)
        self.reach = Reach(self.places)
        self.vendor = Vendor(self.places, self.settings.vending)
        self.metrics = metrics or Metrics()
        self.attempts: Newest[str, int] = Newest(ATTEMPTS_REMEMBERED_MAX)
        """The last attempt of ids whose tries came through this process: saves asking."""
        self.landings = Landings()
        self.older_clients = OlderClients()
        self.turns = KeyedLocks()
        """Of those who want to make one version."""
        self.pasts: Newest[str, Service] = Newest(PASTS_KEPT)
        """What existed at the positions that were asked for last, by their names."""
        self.versions = KnownVersions()
        self.lock = threading.Lock()

    def storage_options(self, location: str) -> dict[str, str]:
        """Return what a client needs to reach a location, besides keys."""
        return self.settings.storage_options.at(bound(location))

    def info(self, table: TableId) -> TableInfo:
        """Return a table as the log has it now; NoSuchTable."""
        return self.log.table(table)

    def heads(self, within: TableId | None = None, **part: Any) -> dict[TableId, int]:
        """Return the versions of tables by name: all, or at least those in a namespace.

        Or a part of these: `limit` of them `after` a name, at least.
        """
        told = self.log.runtime().request_all("tables", within, brief=True, **part)
        return {one.table_id: one.version for one in map(TableHead.from_json, told)}

    def lately(self, table: TableId) -> TableInfo:
        """Return a table as it was learnt lately, for what the leader checks again anyway."""
        info = self.log.describe(table, fresh=False)
        # How keys are hashed follows from the schema as it is now.
        return self.info(table) if info.primary_key else info

    def is_as_known(self, known: TableInfo, error: Exception) -> bool:
        """Say whether a table, on which something failed, is the one that was learnt lately."""
        if isinstance(error, VersionTaken | Landed):
            return True
        if isinstance(error, CommitConflict):
            # The leader compared the incarnation before it decided anything else.
            return error.outcome.code not in (Code.TABLE_REPLACED, Code.NO_SUCH_TABLE)
        info = self.find(known.table_id)
        return info is not None and (info.incarnation, info.location) == (
            known.incarnation,
            known.location,
        )

    def find(self, table: TableId) -> TableInfo | None:
        """Return a table, or None if the log has none of this name."""
        try:
            return self.info(table)
        except NoSuchTable:
            return None

    def request(self, table_id: TableId, method: str, **params: Any) -> Any:
        """Ask the leader that decides for a table."""
        runtime = self.log.runtime()
        return runtime.request(runtime.domains.partition(table_id), method, **params)

    def namespaces(
        self, within: TableId | None = None, **part: Any
    ) -> dict[TableId, dict[str, str]]:
        """Return properties by namespace: of one `alone`, with those in it, of all, or a part."""
        found: dict[TableId, dict[str, str]] = {}
        told = self.log.runtime().request_all("namespaces", within, **part)
        for entry in map(NamespaceDescription.from_json, told):
            found.setdefault(entry.namespace, {}).update(entry.properties)
        found.pop((), None)  # the log's own properties
        return found

    def need_namespace(self, namespace: TableId) -> dict[str, str]:
        """Return a namespace's properties; the root always exists."""
        if not namespace:
            return {}
        found = self.namespaces(namespace, alone=True).get(namespace)
        if found is None:
            raise NamespaceNotFoundError(
                f"namespace {format_table_id(namespace)} does not exist; create it first"
            )
        return found

    def transaction(self, transaction_id: str) -> tuple[Outcome, Transaction] | None:
        """Return a decided transaction, or None if the log holds no answer to this id by now."""
        runtime = self.log.runtime()
        for partition in range(runtime.partitions):
            found = runtime.request(partition, "transaction", transaction_id=transaction_id)
            if found is None:
                continue
            records = DecidedRecords.from_json(found)
            outcome = decode_outcome_record(records.outcome)
            record = decode_log_record(f"{transaction_id}/0".encode(), records.transaction)
            if isinstance(outcome, Outcome) and isinstance(record, Transaction):
                return outcome, record
        rest = transaction_id.removeprefix("txn-")  # Iceberg's commit-id
        return self.transaction(rest) if rest != transaction_id else None

    def change(
        self, call: Call, *operations: Operation, properties: Sequence[tuple[str, str]] = ()
    ) -> tuple[Outcome, Transaction]:
        """Commit operations of the catalogue as one transaction, or raise why not.

        Under an Idempotency-Key, the first answer is given again.
        """
        first = self.first_answer(call)
        if first is not None:
            return first
        name, is_new = call.key or new_transaction_id(), call.key is None
        answer = self.submit(call, operations, name, is_new=is_new, properties=properties)
        answer[0].raise_for_conflict()
        return answer

    def first_answer(self, call: Call) -> tuple[Outcome, Transaction] | None:
        """Return what a request under the same Idempotency-Key was answered, if there was one."""
        found = self.first_decision(call)
        if found is not None:
            found[0].raise_for_conflict()
            call.position = found[0].sequence
        return found

    def first_decision(self, call: Call) -> tuple[Outcome, Transaction] | None:
        """Return what became of a request under the same Idempotency-Key, committed or not."""
        key = call.key
        found = self.transaction(key) if key is not None else None
        if found is not None and dict(found[1].properties).get(BODY_HASH) != call.digest:
            # No conflict: a client that reads again and repeats it under this key gets no further.
            raise InvalidInputError(
                f"the Idempotency-Key was used for another request, transaction {key}; use a new"
                " key for a new request"
            )
        return found

    def was_committed(self, call: Call) -> bool:
        """Say whether a request under the same Idempotency-Key has committed by now.

        Raises InvalidInputError if the key was used for another request.
        """
        found = self.first_decision(call)
        return found is not None and found[0].status is Status.COMMITTED

    def submit(
        self,
        call: Call,
        operations: Sequence[Operation],
        transaction_id: str,
        *,
        is_new: bool,
        attempt: int = 0,
        properties: Sequence[tuple[str, str]] = (),
    ) -> tuple[Outcome, Transaction]:
        """Append a transaction and wait until its versions can be read."""
        transaction = self.log.transaction(
            tuple(operations),
            transaction_id=transaction_id,
            attempt=attempt,
            properties=[*properties, *keyed(call)],
        )
        began = time.monotonic()
        is_first = call.key is None and attempt == 0 and transaction_id not in self.attempts
        ticket = self.log.runtime().submit(transaction, id_is_new=is_new, is_first=is_first)
        try:
            outcome = ticket.result(self.settings.commit_seconds, wait="readable")
        except OutcomeUnknown:
            # Raises too unless it is committed, and only its files are late.
            outcome = ticket.result(LAST_ASK_SECONDS, wait="committed")
            call.committed, call.position = transaction_id, outcome.sequence
            raise OutcomeUnknown(
                f"transaction {transaction_id} is committed (sequence {outcome.sequence}), "
                "but its files cannot be read yet: describe the version again",
                transaction_id,
            ) from None
        if outcome.status is Status.COMMITTED:
            call.committed, call.position = transaction_id, outcome.sequence
        self.metrics.outcome(outcome, time.monotonic() - began)
        return outcome, transaction

    def note_attempt(self, transaction_id: str, attempt: int) -> None:
        """Remember an id's last attempt for a while."""
        with self.lock:
            self.attempts[transaction_id] = attempt

    def incarnation(self, call: Call, number: int = 0) -> str:
        """Return a new table's uuid; the same for a repeated request."""
        seed = call.key or new_transaction_id()
        return str(uuid5(UUID(seed), f"incarnation/{number}"))

    def location(self, given: str) -> str:
        """Return a location that a caller may name: under the tables root or an allowed prefix."""
        root = self.places.root
        if "://" not in given and not given.startswith("/"):
            given = f"{root.rstrip('/')}/{given}"
        path = local_path(given)
        if path is None:
            store_for(given)
        if self.places.holds(given):
            return recorded(given if path is None else os.path.abspath(path))
        raise InvalidInputError(
            f"location {given!r} is outside of the tables root {root!r} and of the allowed"
            " prefixes; choose one inside, or have the server's operator allow it"
        )

    def readable(self, info: TableInfo, version: int) -> str:
        """Return the canonical path of a version once it can be read, relative to the location."""
        need_version(info, version)
        # The leader says who deleted it.
        path = None if is_in(version, info.deleted) else written(info, version)
        if path is not None:
            return path
        answer = self.request(
            info.table_id, "materialize", table=list(info.table_id), version=version
        )
        path = str(answer["path"])
        return path if path.startswith(VERSIONS_DIRECTORY) else f"{VERSIONS_DIRECTORY}/{path}"

    def maker(self, info: TableInfo, version: int) -> str:
        """Return the transaction that made a version through this process; "" if none did."""
        facts = self.versions.get(info.incarnation, version)
        return facts.transaction_id if facts is not None else ""

    def version_entry(self, info: TableInfo, version: int) -> dict[str, Any]:
        """Describe a version whose manifest can be read, or can be made again."""
        for _ in range(ATTEMPTS_MAX):
            if found := self.version_entries(info, {version: self.readable(info, version)}):
                return found[0]
        raise Unavailable(f"version {version} of {info.name} went before it was read; ask again")

    def made_entry(
        self, location: str, made: CreateTableVersion, outcome: Outcome
    ) -> dict[str, Any] | None:
        """Describe a version that was made just now, without asking anybody or reading it.

        None if its file isn't where such a version's usually is, or it was made before.
        """
        if outcome.answers is not None:
            return None
        path = manifest_path(made.version, made.naming_scheme)
        facts = self.versions.note(
            location,
            (made.incarnation, made.version),
            path,
            noted(made.e_tag, made.metadata),
            outcome,
        )
        return facts.entry(location, made.version, path) if facts is not None else None

    def version_entries(self, info: TableInfo, paths: Mapping[int, str]) -> list[dict[str, Any]]:
        """Describe versions by their manifests, in this order, but for those removed meanwhile."""
        known = {v: self.versions.get(info.incarnation, v) for v in paths}
        unknown = [version for version, facts in known.items() if facts is None]
        if unknown:
            said = self.request(info.table_id, "said", table=list(info.table_id), versions=unknown)
            for version, (e_tag, metadata) in zip(unknown, said, strict=True):
                with suppress(FileNotFoundError):
                    key, path = (info.incarnation, version), paths[version]
                    known[version] = self.versions.learn(info.location, key, path, e_tag, metadata)
        return [
            facts.entry(info.location, version, paths[version])
            for version, facts in known.items()
            if facts is not None
        ]

    def transaction_id_of(self, info: TableInfo, version: int) -> str:
        """Return the id of the transaction that made a version, as its manifest names it."""
        store = store_for(info.location)
        state, message = decode_manifest(store.read(self.readable(info, version)))
        if message is not None:
            return parse_message(message).uuid
        # `<read version>-<uuid>.txn`
        return state.transaction_file.partition("-")[2].removesuffix(".txn")

    def open(self, info: TableInfo, version: int | None = None) -> lance.LanceDataset:
        """Open a version for reading."""
        wanted = info.version if version is None else version
        if not info.version:
            raise TableVersionNotFoundError(f"{info.name} is declared and has no version yet")
        if wanted != info.version or not self.log.opened.has(info, wanted):
            self.readable(info, wanted)
        return self.log.opened.plain(info, wanted)

    def open_managed(self, info: TableInfo) -> lance.LanceDataset:
        """Open a table's head for native writes, which go through the log."""
        self.open(info)
        return self.log.open(info.table_id)


def need_version(info: TableInfo, version: int) -> None:
    """Raise TableVersionNotFoundError unless a table has got as far as a version."""
    if not 1 <= version <= info.version:
        raise TableVersionNotFoundError(
            f"{info.name} has no version {version}; its newest is {info.version}"
        )


def keyed(call: Call) -> list[tuple[str, str]]:
    """Return the property by which a repetition under an Idempotency-Key is known; none without."""
    return [(BODY_HASH, call.digest)] if call.key is not None else []
