"""Columns that are added beside whoever appends.

A new column names all fragments of the table, so whoever appends meanwhile refuses it. Pylance
would compute all of it again. Here what was computed is kept by fragment: a new try computes the
column of those fragments only that have come or whose values have changed since, and is
submitted only if nobody was faster.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from commitlog.adapters.storage import store_for
from commitlog.client.opening import materialize
from commitlog.client.runtime import Runtime
from commitlog.codecs.manifest_file import decode_manifest
from commitlog.errors import InvalidTransaction
from commitlog.lancepb.table_pb2 import DataFile, DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.table import TableId

if TYPE_CHECKING:
    import lance

    from commitlog.client.tables import TableInfo


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
        """Return the transaction that adds the columns to the newest version."""
        while True:
            message = self._upon(info)
            now = self._describe(info.table_id)
            is_newest = (now.incarnation, now.version) == (info.incarnation, info.version)
            if message is None or is_newest or time.monotonic() > deadline:
                return None if message is None else (message, None)
            info = now

    def _upon(self, info: TableInfo) -> Transaction | None:
        path = materialize(self._runtime, info, info.version)
        state, _ = decode_manifest(store_for(info.location).read(path))
        if self._schema != tuple(info.fields):
            self._made, self._files, self._schema = None, {}, tuple(info.fields)
        fragments = [DataFragment.FromString(encoded) for encoded in state.fragments.values()]
        lacking = {one.id for one in fragments if _values(one) not in self._files}
        if self._made is None or lacking:
            made = self._compute(info, path, None if self._made is None else lacking)
            if made is None:
                return None
            before = self._made
            if before is not None and list(before.merge.schema) != list(made.merge.schema):
                # Fields got other numbers, of which fewer fragments know.
                self._made, self._files = None, {}
                return self._upon(info)
            self._made = self._made or made
            self._note(fragments, made)
        message = Transaction()
        message.CopyFrom(self._made)
        message.uuid, message.read_version = str(uuid.uuid4()), info.version
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


def _values(fragment: DataFragment) -> bytes:
    """Return what a fragment's values depend on, which its dead rows are no part of."""
    alone = DataFragment()
    alone.CopyFrom(fragment)
    alone.ClearField("deletion_file")
    return alone.SerializeToString(deterministic=True)
