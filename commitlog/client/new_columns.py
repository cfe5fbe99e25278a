"""Columns that are added beside whoever appends.

A new column names all fragments of the table, so Lance refuses it over whoever appends meanwhile,
and would compute all of it again. Here what was computed is kept by fragment. When it is the new
column's turn to be decided, the leader waits for what it lacks: then the column is computed for
those fragments only that have come or whose values have changed, while nobody else commits.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from commitlog.adapters.storage import store_for
from commitlog.client.opening import materialize
from commitlog.client.runtime import Runtime
from commitlog.client.tickets import Ticket
from commitlog.codecs.manifest_file import decode_manifest
from commitlog.core.operations.awaited_columns import compare, delivery, delivery_path
from commitlog.errors import InvalidTransaction, OutcomeUnknown
from commitlog.lancepb.table_pb2 import DataFile, DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import COLUMNS, COLUMNS_AWAITED
from commitlog.model.records import Outcome, Status
from commitlog.model.table import TableId

if TYPE_CHECKING:
    import lance

    from commitlog.client.tables import TableInfo


WATCH_SECONDS = 0.02
"""How often it is looked whether the column's turn has come."""


class NewColumns:
    """The tries to add some columns to a table."""

    def __init__(
        self,
        runtime: Runtime,
        describe: Callable[[TableId], TableInfo],
        transforms: Any,
        options: Mapping[str, Any],
    ) -> None:
        """Take what pylance's `add_columns` does; `describe` asks for the newest version."""
        self._runtime = runtime
        self._describe = describe
        self._transforms = transforms
        self._options = options
        self._made: Transaction | None = None
        self._schema: tuple[bytes, ...] = ()
        """The table's, when the columns were computed."""
        self._files: dict[bytes, list[DataFile]] = {}
        """The new files of a fragment, by what it held."""

    def attempt(self, info: TableInfo, deadline: float) -> tuple[Transaction, None] | None:
        """Return the transaction that adds the columns to a version, the newest but for a few.

        The less it lacks when its turn comes, the shorter others wait.
        """
        behind = math.inf
        while (message := self._upon(info)) is not None:
            now = self._describe(info.table_id)
            newer = now.version - info.version
            is_closer = 0 < newer < behind / 2 and now.incarnation == info.incarnation
            if not is_closer or time.monotonic() > deadline:
                return message, None
            info, behind = now, newer
        return None

    def finish(
        self, ticket: Ticket, info: TableInfo, message: Transaction, deadline: float
    ) -> Outcome:
        """Return the outcome; until it comes, compute what the transaction lacks of each head."""
        store, delivered = store_for(info.location), {info.version: ""}
        failure: Exception | None = None
        try:
            while (outcome := _outcome_of(ticket, deadline)) is None:
                now = self._describe(info.table_id)
                is_other = now.incarnation != info.incarnation or now.fields != info.fields
                if is_other or now.version in delivered:
                    continue  # it landed, lost against another schema, or waits for the leader
                path = delivery_path(ticket.transaction_id, now.version)
                delivered[now.version] = path
                try:
                    data = self._lacking(now, message)
                except Exception as error:
                    data, failure = b"", error  # so that nobody waits for it any longer
                store.write(path, data)
        finally:
            for path in filter(None, delivered.values()):
                store.delete(path)
        if failure is not None and outcome.status is not Status.COMMITTED:
            raise failure
        return outcome

    def _lacking(self, info: TableInfo, message: Transaction) -> bytes:
        """Return what a transaction lacks of a version, as the leader wants it."""
        path, fragments = self._read(info)
        newer = self._merge(info, path, fragments)
        if newer is None or newer.merge.schema != message.merge.schema:
            return b""
        missing = set(compare(message.merge, fragments).missing)
        return delivery(one for one in newer.merge.fragments if one.id in missing)

    def _read(self, info: TableInfo) -> tuple[str, Mapping[int, bytes]]:
        """Return the path of a version's manifest, and its fragments."""
        path = materialize(self._runtime, info, info.version)
        state, _ = decode_manifest(store_for(info.location).read(path))
        return path, state.fragments

    def _upon(self, info: TableInfo) -> Transaction | None:
        return self._merge(info, *self._read(info))

    def _merge(self, info: TableInfo, path: str, there: Mapping[int, bytes]) -> Transaction | None:
        if self._schema != tuple(info.fields):
            self._made, self._files, self._schema = None, {}, tuple(info.fields)
        fragments = [DataFragment.FromString(encoded) for encoded in there.values()]
        lacking = {one.id for one in fragments if _values(one) not in self._files}
        if self._made is None or lacking:
            made = self._compute(info, path, None if self._made is None else lacking)
            if made is None:
                return None
            before = self._made
            if before is not None and list(before.merge.schema) != list(made.merge.schema):
                # Fields got other numbers, of which fewer fragments know.
                self._made, self._files = None, {}
                return self._merge(info, path, there)
            self._made = self._made or made
            self._note(fragments, made)
        message = Transaction()
        message.CopyFrom(self._made)
        message.uuid, message.read_version = str(uuid.uuid4()), info.version
        message.transaction_properties[COLUMNS] = COLUMNS_AWAITED
        del message.merge.fragments[:]
        for fragment in fragments:
            new = self._files[_values(fragment)]
            fragment.files.extend(new)
            message.merge.fragments.append(fragment)
        return message

    def _compute(self, info: TableInfo, path: str, only: set[int] | None) -> Transaction | None:
        from commitlog.adapters.lance_private import captured

        def work(dataset: lance.LanceDataset) -> None:
            dataset.add_columns(self._transforms, **self._options)

        message, _ = captured(info.location, info.version, path, work, only=only)
        if message is not None and not message.HasField("merge"):
            raise InvalidTransaction(
                f"columns are added by a Merge, not by {message.WhichOneof('operation')}",
                field="transforms",
                value=str(self._transforms)[:100],
            )
        return message

    def _note(self, fragments: list[DataFragment], made: Transaction) -> None:
        """Keep the files that a transaction adds to fragments."""
        before = {one.id: one for one in fragments}
        for after in made.merge.fragments:
            was = before[after.id]
            known = {file.path for file in was.files}
            self._files[_values(was)] = [file for file in after.files if file.path not in known]


def _outcome_of(ticket: Ticket, deadline: float) -> Outcome | None:
    """Return a transaction's outcome, None if it isn't decided yet."""
    if not ticket.done() and time.monotonic() < deadline:
        try:
            return ticket.result(WATCH_SECONDS)
        except OutcomeUnknown:
            return None
    return ticket.result(max(deadline - time.monotonic(), 1.0))


def _values(fragment: DataFragment) -> bytes:
    """Return what a fragment's values depend on, which its dead rows are no part of."""
    alone = DataFragment()
    alone.CopyFrom(fragment)
    alone.ClearField("deletion_file")
    return alone.SerializeToString(deterministic=True)
