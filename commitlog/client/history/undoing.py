"""Undoes a drop, or changes since a position, and holds versions.

The log itself is never undone. A dropped table is registered again, at its last version, and
older content becomes a newer version. Both need the old files: those of a dropped table, and those
of versions that a record deleted, are removed after a grace period. A hold is a
property of a table that keeps versions from being deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from commitlog.adapters.lance_refs import manifest_in
from commitlog.adapters.places import is_moved
from commitlog.adapters.storage import store_for
from commitlog.client.commits.catalogue import commit
from commitlog.client.history.positions import NOW, When
from commitlog.client.leader.tickets import seconds_until
from commitlog.client.rows.host import Host, Pairs, TableName
from commitlog.client.rows.opening import materialize
from commitlog.codecs.manifest_file import decode_manifest
from commitlog.core.manifest.data_files import data_files
from commitlog.errors import (
    InvalidRequest,
    InvalidTransaction,
    NoSuchTable,
    NoSuchVersion,
    RetryableConflict,
    TableAlreadyExists,
    Unavailable,
)
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.messages import IcebergDescription
from commitlog.model.operations import (
    AlterProperties,
    DeleteTableVersions,
    IcebergChange,
    Operation,
    RegisterTable,
)
from commitlog.model.records import Outcome
from commitlog.model.table import TableId, format_table_id, parse_table_id

if TYPE_CHECKING:
    from commitlog.client.commits.session import TransactionBuilder
    from commitlog.client.history.folds import TableAt
    from commitlog.client.history.lives import Life
    from commitlog.client.history.snapshot import Snapshot
    from commitlog.client.leader.tables import TableInfo
    from commitlog.core.manifest.manifest_state import ManifestState

TIMEOUT_SECONDS = 120.0
LOOK_AGAIN_SECONDS = 0.2


class UndoesChanges(Host):
    """Adds to `CommitLog` the methods that undo."""

    def undrop(
        self,
        table_id: TableName,
        *,
        incarnation: str = "",
        name: TableName | None = None,
        index: str | os.PathLike[str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        properties: Pairs = (),
        transaction_id: str | None = None,
    ) -> Outcome:
        """Bring back the table of this name that was dropped last, with its versions.

        An Iceberg table comes back with its metadata and snapshots.

        `incarnation` selects an earlier table of this name; `name` gives it another name. A drop
        forgets which batches applications have sent, so a stream that repeats a batch writes it
        again. Reads the table's partition of the log, or with the path of an `index.duckdb` as
        `index` only what made the table, unless that index is behind.

        Raises:
            NoSuchTable: no table of this name was dropped, or its files are removed already.
            Unavailable: its last version has no file yet; its store may be away.
            TableAlreadyExists: a table has the name now.
        """
        from commitlog.client.history.dropped import dropped_table

        table = parse_table_id(table_id)
        to = parse_table_id(name) if name is not None else table
        deadline = time.monotonic() + timeout
        how: dict[str, Any] = {"properties": properties, "transaction_id": transaction_id}
        life = dropped_table(self.runtime(), table, incarnation, deadline, index)
        if life.metadata_location:
            _check_followed(life, [life.metadata_location])
            again = _iceberg_again(life, to)
            try:
                return commit(self, [again], seconds_until(deadline), **how)
            except RetryableConflict as error:
                raise TableAlreadyExists(
                    f"table {format_table_id(to)} already exists: give the old one another name"
                ) from error
        if not life.version:
            raise NoSuchVersion(
                f"{format_table_id(table)} was dropped before it had a version; create it again"
            )
        path, newest = self._newest(life, deadline)
        _check_followed(life, [base.path for base in newest.header.message.base_paths])
        _check_data(life, newest)
        operations: list[Operation] = [
            RegisterTable(
                table=to,
                incarnation=life.incarnation,
                location=life.location,
                version=life.version,
                manifest_path=path,
                policy=life.policy,
                primary_key=_key_there(life, newest),
                properties=tuple(life.properties.items()),
            )
        ]
        if life.deleted:
            operations.append(DeleteTableVersions(to, life.deleted))
        return commit(self, operations, seconds_until(deadline), **how)

    def restore(
        self,
        tables: TableName | Sequence[TableName],
        position: When,
        *,
        index: str | os.PathLike[str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        properties: Pairs = (),
        transaction_id: str | None = None,
    ) -> Outcome | None:
        """Give tables the content that they had at a position of the log, all in one record.

        Each Lance table gets a new version with the older one's rows and schema. Each Iceberg
        table gets new metadata that brings back its branches, tags, schema, layout and
        properties; later snapshots stay in its history. Returns None if nothing has
        changed since, or since an earlier restore to it. If names are lists, pass a list of
        lists. `index` is as in `snapshot`, but if that is behind, the log is read.

        Raises:
            NoSuchTable: a table didn't exist at the position, or is another one now.
            NoSuchVersion: its version of then was deleted.
            RetryableConflict: another commit changed a table meanwhile; restore again.
        """
        import lance

        then: Snapshot = self._then(position, index, timeout)
        changed = []
        iceberg: list[IcebergChange] = []
        for table_id in _ids(tables):
            was = then.table(table_id)
            if was.is_iceberg:
                iceberg += self._iceberg_then(table_id, was)
                continue
            info = self.describe(table_id, fresh=True, readable=True)
            if info.incarnation != was.incarnation:
                raise _replaced(was.name)
            if not was.version:
                raise NoSuchVersion(
                    f"{was.name} can't be restored to position {position}: it had no version"
                )
            if was.version != info.version and not self._is_restored(info, was.version):
                # The builder of the new version reads the old one.
                materialize(self.runtime(), info, was.version)
                changed.append((info, lance.LanceOperation.Restore(version=was.version)))
        if not changed and not iceberg:
            return None
        builder: TransactionBuilder = self.transact(
            transaction_id=transaction_id, properties=properties, timeout=timeout
        )
        with builder as record:
            for info, operation in changed:
                record.submit(info.table_id, operation, read_version=info.version)
            for change in iceberg:
                record.submit(None, change)
        return builder.outcome

    def _then(
        self, position: When, index: str | os.PathLike[str] | None, timeout: float
    ) -> Snapshot:
        if index is not None:
            with contextlib.suppress(Unavailable):
                known: Snapshot = self.snapshot(position, index=index, timeout=timeout)
                return known
        then: Snapshot = self.snapshot(position, timeout=timeout)
        return then

    def _is_restored(self, info: TableInfo, version: int) -> bool:
        """Return True if a table's newest version is the restore of this one."""
        path = materialize(self.runtime(), info, info.version)
        _, made_by = decode_manifest(store_for(info.location).read(path))
        return Transaction.FromString(made_by or b"").restore.version == version

    def _iceberg_then(self, table: TableId, was: TableAt) -> list[IcebergChange]:
        """Return what makes an Iceberg table as it was; nothing if it is so."""
        from commitlog.client.history.iceberg_undo import (
            is_view,
            metadata_at,
            undoing_change,
            undoing_view,
        )

        runtime = self.runtime()
        partition = runtime.domains.partition(table)
        told = runtime.request(partition, "iceberg_table", table=list(table), metadata=True)
        if told is None or told["uuid"] != was.incarnation:
            raise _replaced(was.name)
        head = IcebergDescription.from_json(told)
        if head.metadata_location == was.metadata_location:
            return []
        then, now = metadata_at(was.metadata_location), json.loads(head.metadata)
        change = (undoing_view if is_view(then) else undoing_change)(table, then, now)
        return [] if change is None else [change]

    def hold(
        self,
        name: str,
        tables: TableName | Sequence[TableName],
        position: When = None,
        *,
        onwards: bool = False,
        lasting: timedelta | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Outcome:
        """Keep the versions of a position (None: the current ones) from being deleted.

        With `onwards`, later versions are kept too, for a feed that continues from there. The hold
        lasts until `release`, or for the time `lasting`, as a reader's lease. One record holds all
        tables; using the same name again moves the hold.

        Raises:
            NoSuchVersion: a version was deleted already; nothing is held.
        """
        if not name or not tables:
            raise InvalidRequest(
                "a hold needs a name and a table", field="tables" if name else "name",
                advice="For example log.hold('report', ['ns$table'])",
            )  # fmt: skip
        from commitlog.core.catalogue.version_deletion import HOLD
        from commitlog.core.tables.lance_tables import is_in

        held = self._versions(_ids(tables), position, timeout)
        until = ""
        if lasting is not None:
            now_ms = self.runtime().leader_time_ms(_ids(tables)[0])
            until = f" until {now_ms + round(lasting.total_seconds() * 1000)}"
        for table, version in held.items():
            if not version:
                raise NoSuchVersion(f"{format_table_id(table)} has no version to hold")
        operations: list[Operation] = [
            AlterProperties(
                table, upserts=((HOLD + name, f"{version}{'-' if onwards else ''}{until}"),)
            )
            for table, version in held.items()
        ]
        outcome = commit(self, operations, timeout)
        # In the order of the log: what was deleted before the hold isn't held.
        for table, version in held.items():
            if is_in(version, self.describe(table, fresh=True).deleted):
                self.release(name, timeout=timeout)
                raise NoSuchVersion(
                    f"version {version} of {format_table_id(table)} was deleted; hold a newer one"
                )
        return outcome

    def _versions(
        self, tables: Sequence[TableId], position: When, timeout: float
    ) -> dict[TableId, int]:
        """Return the versions of tables at a position; 0 for one without versions."""
        if position is not None and position != NOW:
            then: Snapshot = self.snapshot(position, timeout=timeout)
            return {one: then.table(one).version for one in tables}
        # Not by a snapshot: a client makes its first one from the whole log. A list is of one
        # moment.
        listed = {one.table_id: one.version for one in (self.tables() if tables[1:] else ())}
        return {one: listed.get(one) or self.describe(one, fresh=True).version for one in tables}

    def release(self, name: str, *, timeout: float = TIMEOUT_SECONDS) -> Outcome | None:
        """Release the hold of this name; return None if there is none."""
        from commitlog.core.catalogue.version_deletion import HOLD

        operations: list[Operation] = [
            AlterProperties(info.table_id, removals=(HOLD + name,))
            for info in self.tables()
            if HOLD + name in info.properties
        ]
        if not operations:
            return None
        return commit(self, operations, timeout)

    def _newest(self, life: Life, deadline: float) -> tuple[str, ManifestState]:
        """Return the path of a dropped table's newest manifest, once it is there; what it says."""
        runtime, store = self.runtime(), store_for(life.location)
        partition, is_written = runtime.domains.partition(parse_table_id(life.name)), False
        while True:
            if (path := manifest_in(store, life.version)) is not None:
                return path, decode_manifest(store.read(path))[0]
            if is_written:
                missing = f"the manifest of version {life.version} isn't there"
                why = "it was never written if the store was away at the drop, and for long"
                raise _removed(life, f"{missing} ({why})")
            written = int(runtime.request(partition, "status")["written_sequence"])
            is_written = written >= life.dropped_at
            if is_written:
                continue  # to look once more: it may have come before that was asked
            if time.monotonic() >= deadline:
                raise Unavailable(
                    f"version {life.version} of {life.name} has no manifest: "
                    f"the files of outcomes since {written + 1} are not written yet, as if a "
                    "store were away. Call undrop again once `commitlog doctor` says that none "
                    "are missing"
                )
            time.sleep(LOOK_AGAIN_SECONDS)


def _ids(tables: TableName | Sequence[TableName]) -> list[TableId]:
    return [parse_table_id(one) for one in ([tables] if isinstance(tables, str) else tables)]


def _replaced(name: str) -> NoSuchTable:
    return NoSuchTable(
        f"{name} was dropped since that position, or another table now has its name; "
        "rename that one, and restore the old one with `undrop`"
    )


def _iceberg_again(life: Life, to: TableId) -> IcebergChange:
    """Return what registers a dropped Iceberg table; NoSuchTable if its files are gone."""
    from commitlog.client.history.iceberg_undo import check_files, is_view, metadata_at, view_again
    from commitlog.core.iceberg.creating import register_change

    try:
        metadata = metadata_at(life.metadata_location)
        if is_view(metadata):
            return view_again(to, metadata)
        check_files(metadata)
    except FileNotFoundError as error:
        raise _removed(life, str(error)) from error
    return register_change(to, metadata=metadata, metadata_location=life.metadata_location)


def _check_followed(life: Life, followed: Sequence[str]) -> None:
    """Refuse a table whose files name a place that was moved: readers would go there."""
    for place in followed:
        if is_moved(place):
            raise InvalidTransaction(
                f"the files of {life.name} name their former place {place}, "
                "which is now bound to another one",
                field="table",
                value=life.name,
                advice="Link the old place to the new one instead of binding it; see the"
                " documentation's `Where tables are`",
            )


def _check_data(life: Life, newest: ManifestState) -> None:
    """Refuse a table without its data: a committer that starts anew writes its manifests again."""
    store = store_for(life.location)
    there = frozenset(store.names("data"))
    fragments = (DataFragment.FromString(one) for _, one in newest.fragments.items())
    for file in (file for fragment in fragments for file in data_files(fragment)):
        is_here = file.HasField("base_id") or file.path in there
        if not is_here and store.size(f"data/{file.path}") < 0:
            raise _removed(life, f"its data file {file.path} isn't there")


def _removed(life: Life, what: str) -> NoSuchTable:
    return NoSuchTable(
        f"{life.name} was dropped by outcome {life.dropped_at}, and its files were removed: {what}"
    )


def _key_there(life: Life, newest: ManifestState) -> tuple[str, ...]:
    """Return a dropped table's key; none if one of its columns had been renamed or dropped."""
    names = {field.name for field in newest.header.message.fields if field.parent_id == -1}
    return life.primary_key if names.issuperset(life.primary_key) else ()
