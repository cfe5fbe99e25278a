"""Columns that are added or changed while other writers append.

A new column names all fragments of the table, so Lance refuses it if an append commits meanwhile,
and would compute the whole column again. Here the computed values are kept by fragment. When the
leader decides the new column, it holds other commits and waits for what the column lacks: values of
only those fragments that were added or changed meanwhile.

A column that gets another type is a new one in the old one's place. Other names, and columns that
go, name no fragment. That a column may not be null from now on does neither, but waits in the same
way until what others brought is looked through for nulls.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from commitlog.adapters.storage import store_for
from commitlog.client.leader.runtime import Runtime
from commitlog.client.leader.tickets import Ticket, seconds_until
from commitlog.client.rows.opening import materialize
from commitlog.codecs.manifest_file import decode_manifest
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.operations.awaited_columns import NO_NULLS, compare, delivery, delivery_path
from commitlog.errors import InvalidTransaction, OutcomeUnknown
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFile, DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import COLUMNS, COLUMNS_AWAITED
from commitlog.model.records import Outcome, Status
from commitlog.model.table import TableId

if TYPE_CHECKING:
    import lance

    from commitlog.client.leader.tables import TableInfo


WATCH_SECONDS = 0.02
"""How often it is looked whether the column's turn has come."""


class NewColumns:
    """The tries to change the columns of a table."""

    def __init__(
        self,
        runtime: Runtime,
        describe: Callable[[TableId], TableInfo],
        change: Callable[[lance.LanceDataset], None],
    ) -> None:
        """Take what changes them in a dataset; `describe` asks for the newest version."""
        self._runtime = runtime
        self._describe = describe
        self._change = change
        self._made: Transaction | None = None
        self._schema: tuple[bytes, ...] = ()
        """The table's, when the columns were computed."""
        self._files: dict[bytes, list[DataFile]] = {}
        """The new files of a fragment, by what it held; none of one that has no nulls."""

    def attempt(self, info: TableInfo, deadline: float) -> tuple[Transaction, None] | None:
        """Return the transaction that changes a version, the newest but for a few.

        The less it lacks when its turn comes, the shorter others wait.
        """
        behind = math.inf
        while (message := self._upon(info)) is not None:
            if not _is_completed(message):
                return message, None
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
        if not _is_completed(message):
            return ticket.result(seconds_until(deadline))
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
                    data, failure = b"", error  # ends the wait for it
                store.write(path, data)
        finally:
            for path in filter(None, delivered.values()):
                store.delete(path)
        if failure is not None and outcome.status is not Status.COMMITTED:
            raise failure
        return outcome

    def _lacking(self, info: TableInfo, message: Transaction) -> bytes:
        """Return what a transaction lacks of a version, as the leader wants it."""
        path, state = self._read(info)
        newer = self._made_for(info, path, state)
        if newer is None or _fields(newer) != _fields(message):
            return b""
        if newer.HasField("project"):
            return NO_NULLS
        missing = set(compare(message.merge, state.fragments).missing)
        return delivery(one for one in newer.merge.fragments if one.id in missing)

    def _read(self, info: TableInfo) -> tuple[str, ManifestState]:
        """Return the path of a version's manifest, and what it says."""
        path = materialize(self._runtime, info, info.version)
        state, _ = decode_manifest(store_for(info.location).read(path))
        return path, state

    def _upon(self, info: TableInfo) -> Transaction | None:
        return self._made_for(info, *self._read(info))

    def _made_for(self, info: TableInfo, path: str, state: ManifestState) -> Transaction | None:
        if self._schema != tuple(info.fields):
            self._made, self._files, self._schema = None, {}, tuple(info.fields)
        fragments = [DataFragment.FromString(encoded) for encoded in state.fragments.values()]
        lacking = {one.id for one in fragments if _values(one) not in self._files}
        if self._made is None or lacking:
            made = self._compute(info, path, None if self._made is None else lacking)
            if made is None or not _is_completed(made):
                return made
            before = self._made
            if before is not None and _fields(before) != _fields(made):
                # Fields got other numbers, which fewer fragments know.
                self._made, self._files = None, {}
                return self._made_for(info, path, state)
            self._made = self._made or made
            self._note([one for one in fragments if one.id in lacking], made)
        message = Transaction()
        message.CopyFrom(self._made)
        message.uuid, message.read_version = str(uuid.uuid4()), info.version
        message.transaction_properties[COLUMNS] = COLUMNS_AWAITED
        if message.HasField("project"):
            return message
        del message.merge.fragments[:]
        for fragment in fragments:
            new = self._files[_values(fragment)]
            fragment.files.extend(new)
            message.merge.fragments.append(fragment)
        return message

    def _compute(self, info: TableInfo, path: str, only: set[int] | None) -> Transaction | None:
        from commitlog.adapters.lance_private import captured

        message, _ = captured(info.location, info.version, path, self._change, only=only)
        kind = message.WhichOneof("operation") if message is not None else None
        if kind not in (None, "merge", "project"):
            raise InvalidTransaction(
                f"changing columns takes a Merge or Project operation, not {kind}",
                field="transforms",
            )
        return message

    def _note(self, fragments: list[DataFragment], made: Transaction) -> None:
        """Keep the files that a transaction adds to the fragments that it was computed for."""
        after = {one.id: one.files for one in made.merge.fragments}
        for was in fragments:
            known = {file.path for file in was.files}
            new = [file for file in after.get(was.id, ()) if file.path not in known]
            self._files[_values(was)] = new


def _is_completed(message: Transaction) -> bool:
    """Return True if it depends on rows, so that it is completed when its turn has come."""
    is_strict = message.HasField("project") and not message.project.preserves_nullability
    return message.HasField("merge") or is_strict


def _fields(message: Transaction) -> list[Field]:
    return list(message.merge.schema or message.project.schema)


def _outcome_of(ticket: Ticket, deadline: float) -> Outcome | None:
    """Return a transaction's outcome, None if it isn't decided yet."""
    if not ticket.done() and time.monotonic() < deadline:
        try:
            return ticket.result(WATCH_SECONDS)
        except OutcomeUnknown:
            return None
    return ticket.result(seconds_until(deadline))


def _values(fragment: DataFragment) -> bytes:
    """Return what a fragment's values depend on, which its dead rows are no part of."""
    alone = DataFragment()
    alone.CopyFrom(fragment)
    alone.ClearField("deletion_file")
    return alone.SerializeToString(deterministic=True)
