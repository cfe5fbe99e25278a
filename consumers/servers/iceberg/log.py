"""The Iceberg catalogue's service over the log: asks the leader, appends, reads metadata files.

Nothing is kept but metadata by its location, which never changes: names, heads and outcomes are
the leader's, as of what Kafka acknowledged. Files are read only below the tables root, wherever a
request points to.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

from lance_namespace import LanceNamespaceError, PermissionDeniedError, TableNotFoundError
from pydantic import ValidationError

from commitlog import CommitLog
from commitlog.adapters.lance_datasets import behind
from commitlog.client.commits.iceberg_text import number_problem
from commitlog.codecs.avro import decode_outcome_record
from commitlog.core.iceberg.creating import register_change, register_reference
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.metadata_references import read_table
from commitlog.core.iceberg.reading import Node, dump_json, load_json
from commitlog.core.iceberg.requests import registers_read_only
from commitlog.core.iceberg.updates import REGISTER
from commitlog.core.iceberg.views import read_any
from commitlog.errors import InvalidTransaction, NoSuchTable
from commitlog.messages import (
    DecidedRecords,
    IcebergDescription,
    TableDescription,
    TableHead,
)
from commitlog.model.limits import ICEBERG_REFERENCES_SINCE
from commitlog.model.operations import IcebergChange, Operation
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code, Outcome, Status
from commitlog.model.table import TableId
from commitlog.newest import Newest
from commitlog.words import say
from consumers.partition.files.iceberg_files import IcebergFiles
from consumers.servers.iceberg.service import CatalogView
from consumers.servers.namespace.batch import batch_operations
from consumers.servers.namespace.call import IDEMPOTENCY_KEY, Call
from consumers.servers.namespace.service import Service
from consumers.servers.namespace.settings import Settings
from consumers.servers.namespace.status import HttpError, message_of
from consumers.servers.security.grants import Principal
from consumers.servers.security.identity import Security

_TABLES_KEPT = 64
_PRINCIPAL = "iceberg-rest"
"""Who submits what nobody was named for."""

V = TypeVar("V")


class LogIcebergService:
    """One log, for all requests. Thread-safe."""

    def __init__(
        self, log: CommitLog, names: Settings | None = None, security: Security | None = None
    ) -> None:
        """Serve this log, and Lance's tables in it as `names` says."""
        self._log = log
        self._lance = Service(log, names, security)
        self._kept: Newest[str, IcebergTable] = Newest(_TABLES_KEPT)
        self._lock = threading.Lock()

    @cached_property
    def files(self) -> IcebergFiles:
        """The files of the log's tables."""
        return IcebergFiles(self.tables_root)

    @property
    def tables_root(self) -> str:
        """Where the log keeps its tables: nothing is read or written elsewhere."""
        return self._log.runtime().genesis.tables_root

    def view(self, within: TableId | None = None, **part: Any) -> CatalogView:
        """Return the catalogue as of the log's end; each thing is asked for when it is looked at.

        With a `limit`, lists of a namespace have at least so many names that follow `after`.
        """
        names, namespaces = partial(self._names, within, **part), self._lance.namespaces
        alone = partial(namespaces, alone=True)
        return CatalogView(
            OnDemand(names, self._table),
            OnDemand(partial(self._others, within), self._other),
            OnDemand(partial(namespaces, within, **part), lambda name: alone(name).get(name)),
            OnDemand(partial(names, is_view=True), lambda name: self._table(name, True)),
            heads=OnDemand(names, self._place),
        )

    def submit(
        self,
        operations: Sequence[Operation],
        *,
        transaction_id: str,
        id_is_new: bool,
        timeout_seconds: float,
    ) -> Outcome:
        """Append one transaction and return its outcome; the same id returns the same outcome.

        `id_is_new`: this id can't have been used before, which is cheaper.
        """
        runtime = self._log.runtime()
        made = self._log.transaction(tuple(operations), transaction_id=transaction_id)
        transaction = replace(made, principal=made.principal or _PRINCIPAL)
        if not id_is_new and runtime.partitions > 1:
            # A leader knows the ids of its own partition only.
            known = self._lance.transaction(transaction_id)
            here = runtime.partition_of(transaction)
            if known is not None and runtime.partition_of(known[1]) != here:
                about = {"sequence": known[0].sequence, "status": known[0].status}
                phrase = Phrase("id_reused", {"transaction_id": transaction_id, **about})
                return replace(
                    known[0], status=Status.REJECTED, code=Code.ID_REUSED, message=say(phrase)
                )
        ticket = runtime.submit(transaction, id_is_new=id_is_new)
        try:
            # Alone they have no files to come, so the leader tells of them unasked; beside Lance's
            # the tables' own files must not hold up the answer.
            alone = all(isinstance(operation, IcebergChange) for operation in operations)
            outcome = ticket.result(timeout_seconds, "readable" if alone else "committed")
        finally:
            runtime.forget(ticket)
        if outcome.status is not Status.COMMITTED and outcome.answers is not None:
            return self._first(outcome, runtime.partition_of(transaction))
        return outcome

    def operations(self, transaction_id: str) -> Sequence[Operation]:
        """Return the operations of a decided transaction; none if there is no such id."""
        known = self._lance.transaction(transaction_id)
        return known[1].operations if known is not None else ()

    def registration(
        self,
        table: TableId,
        location: str,
        replaces: str,
        *,
        read_only: bool = False,
        repeats: str = "",
    ) -> IcebergChange:
        """Return what registers a metadata file; raise OSError, or Invalid if it isn't one.

        It is named by its digest, where the log's protocol has that. `replaces` is the uuid of the
        table that leaves the name; empty: there must be none. With `read_only` it may be the
        metadata of another table. If the transaction that it `repeats` registered the file
        already, its own change is returned: the table that it replaced is gone.
        """
        for known in self.operations(repeats) if repeats else ():
            if isinstance(known, IcebergChange) and known.table == table:
                named = f'"metadata-location":{dump_json(location)}'
                is_same = REGISTER in known.updates and named in known.updates
                if is_same and registers_read_only(known) is read_only:
                    return known
        data = self.files.read(location)
        _check_usable(data, location)
        runtime = self._log.runtime()
        status = runtime.request(runtime.domains.partition(table), "status", newest_rules=True)
        if status["rules"]["protocol"] >= ICEBERG_REFERENCES_SINCE:
            return register_reference(
                table, data=data, metadata_location=location, replaces=replaces, read_only=read_only
            )
        if read_only:
            raise InvalidTransaction(
                "a second name of a table needs protocol 4",
                field="read-only",
                advice="Run `commitlog rules --upgrade` once all programs are upgraded",
            )
        metadata = load_json(self.files.metadata(location), location)
        return register_change(
            table, metadata=metadata, metadata_location=location, replaces=replaces
        )

    def lance_operations(
        self, items: Sequence[Any], transaction_id: str, who: Principal
    ) -> tuple[Operation, ...]:
        """Return the operations of a request's `lance-operations`, as batch-commit reads them.

        Those of the first request under this id, if there was one: what they name may be gone.
        Raises InvalidTransaction, and NoSuchTable.
        """
        try:
            found = self.operations(transaction_id) or self._read(items, transaction_id, who)
        except (InvalidTransaction, NoSuchTable):
            # The first request may have committed in between.
            if not (found := self.operations(transaction_id)):
                raise
        return tuple(one for one in found if not isinstance(one, IcebergChange))

    def _read(
        self, items: Sequence[Any], transaction_id: str, who: Principal
    ) -> tuple[Operation, ...]:
        call = Call(
            "BatchCommitTables",
            "lance-operations",
            headers={IDEMPOTENCY_KEY: transaction_id},
            body=json.dumps({"operations": list(items)}).encode(),
            security=self._lance.security,
            principal=who,
        )
        try:
            with behind(self._lance.reach.gate(who)):
                return batch_operations(self._lance, call)
        except PermissionDeniedError:
            raise
        except NoSuchTable as error:
            text = self._lance.security.shown(who, error)
            raise NoSuchTable(f"lance-{text}") from error
        except TableNotFoundError as error:
            raise NoSuchTable(f"lance-{error}") from error
        except ValidationError as error:
            raise InvalidTransaction(
                f"lance-{message_of(error)}", field="lance-operations"
            ) from error
        except (LanceNamespaceError, HttpError, ValueError) as error:
            raise InvalidTransaction(f"lance-{error}", field="lance-operations") from error

    def _first(self, repeated: Outcome, partition: int) -> Outcome:
        """Return the outcome that another one repeats: it says all that was wrong."""
        found = self._log.runtime().request(
            partition, "transaction", transaction_id=repeated.transaction_id
        )
        if found is None:
            return repeated
        first = decode_outcome_record(DecidedRecords.from_json(found).outcome)
        return first if isinstance(first, Outcome) else repeated

    def _names(
        self, within: TableId | None, *, is_view: bool = False, **part: Any
    ) -> dict[TableId, None]:
        found = self._all_tables(within, is_view=is_view, **part)
        return {entry.table: None for entry in found if entry.is_view is is_view}

    def _all_tables(self, within: TableId | None, **part: Any) -> Iterator[IcebergDescription]:
        told = self._log.runtime().request_all("iceberg_tables", within, **part)
        return map(IcebergDescription.from_json, told)

    def _others(self, within: TableId | None) -> dict[TableId, str]:
        told = self._log.runtime().request_all("tables", within, brief=True)
        found = map(TableHead.from_json, told)
        views = {entry.table: entry.uuid for entry in self._all_tables(within) if entry.is_view}
        return {**views, **{entry.table_id: entry.incarnation for entry in found}}

    def _head(self, name: TableId, **asked: bool) -> IcebergDescription | None:
        runtime = self._log.runtime()
        partition = runtime.domains.partition(name)
        told = runtime.request(partition, "iceberg_table", table=list(name), **asked)
        return None if told is None else IcebergDescription.from_json(told)

    def _other(self, name: TableId) -> str | None:
        head = self._head(name)
        if head is not None:
            return head.uuid if head.is_view else None
        runtime = self._log.runtime()
        try:
            found = runtime.request(runtime.domains.partition(name), "table", table=list(name))
        except NoSuchTable:
            return None
        return TableDescription.from_json(found).incarnation

    def _place(self, name: TableId) -> str | None:
        head = self._head(name)
        return None if head is None or head.is_view else head.metadata_location

    def _table(self, name: TableId, is_view: bool = False) -> IcebergTable | None:
        head = self._head(name)
        if head is None or head.is_view is not is_view:
            return None
        location = head.metadata_location
        with self._lock:
            kept = self._kept.get(location)
        if kept is not None and kept.uuid == head.uuid:
            return kept
        try:
            table = self.files.table(location)
        except (OSError, Invalid):
            # The log has it all the same.
            head = self._head(name, metadata=True)
            if head is None:
                return None
            location = head.metadata_location
            return read_any(load_json(head.metadata, location), location)
        with self._lock:
            self._kept[location] = table
        return table


def _check_usable(data: bytes, location: str) -> None:
    """Refuse metadata that the log couldn't write again, or couldn't put a commit upon."""
    try:
        table = read_table(data, location)
        if problem := number_problem(data):
            raise ValueError(problem)
        for snapshot in table.snapshots:
            node = Node(snapshot, f"{location}: snapshot {snapshot['snapshot-id']}")
            if (parent := node.optional("parent-snapshot-id")) is not None:
                parent.integer()
            if (summary := node.optional("summary")) is not None:
                summary.strings()
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidTransaction(
            f"the metadata file {location} is not usable: {error}", field="metadata-location"
        ) from error


class OnDemand(Mapping[TableId, V], Generic[V]):
    """A mapping whose names and values are asked for only when they are looked at, once."""

    def __init__(
        self, names: Callable[[], Mapping[TableId, Any]], value: Callable[[TableId], V | None]
    ) -> None:
        self._ask_names = names
        self._ask_value = value
        self._names: Mapping[TableId, Any] | None = None
        self._values: dict[TableId, V | None] = {}

    def __getitem__(self, name: TableId) -> V:
        if name not in self._values:
            self._values[name] = self._ask_value(name)
        value = self._values[name]
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[TableId]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> Mapping[TableId, Any]:
        if self._names is None:
            self._names = self._ask_names()
        return self._names
