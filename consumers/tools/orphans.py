"""Files of a Lance table that no committed transaction names: what lost attempts left behind.

A writer that died after writing and before its append, a task that Spark ran twice, a batch that
was committed already when it was replayed, an attempt that lost a conflict: each leaves files that
no version will ever read. Files that an undecided transaction names are no orphans, nor are files
younger than `age_seconds`, which somebody may be about to name.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Iterable, Iterator

from google.protobuf.message import Message

from commitlog.adapters.storage import local_path, store_for
from commitlog.core.log.replica import Replica
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.core.partition.machine import Machine
from commitlog.errors import InvalidRequest, NoSuchTable, Unavailable
from commitlog.lancepb.table_pb2 import DataFile, DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage
from commitlog.model.operations import CreateTableVersion, LanceCommit
from commitlog.model.records import Outcome, Status, Transaction
from commitlog.model.table import DomainMap, TableId, format_table_id, parse_table_id
from commitlog.ports import Log
from consumers.partition.events import Event
from consumers.partition.follower import Follower
from consumers.tools.iceberg_orphans import Orphan

AGE_SECONDS = 3600.0
CATCH_UP_SECONDS = 600.0
FOLDERS = ("data", "_deletions")


class _Named:
    """Paths below one table's location, by what the log says of them."""

    def __init__(self, table: TableId) -> None:
        self._table = table
        self.committed: dict[str, set[str]] = {}
        """By location."""
        self.refused: dict[str, str] = {}
        self.undecided: set[str] = set()

    def take(self, event: Event) -> None:
        """Note what an outcome did with files."""
        for change in event.changes:
            if change.delta is not None:
                paths = self.committed.setdefault(change.location, set())
                for _, encoded in change.delta.fragments:
                    paths.update(paths_in(DataFragment.FromString(encoded)))
        outcome = event.outcome
        if outcome.status is not Status.COMMITTED or outcome.answers is not None:
            for path in self._asked(event.submitted.record):
                self.refused[path] = _reason(outcome)

    def leave_undecided(self, records: Iterable[object]) -> None:
        """Note what may still be committed."""
        for record in records:
            self.undecided.update(self._asked(record))

    def _asked(self, record: object) -> Iterator[str]:
        if not isinstance(record, Transaction):
            return
        for operation in record.operations:
            if not isinstance(operation, LanceCommit | CreateTableVersion):
                continue
            if operation.table == self._table:
                yield from paths_in(LanceMessage.FromString(operation.message))


def find_table_orphans(log: Log, table: str, *, age_seconds: float = AGE_SECONDS) -> list[Orphan]:
    """Compare the files of a table with its partition of the log, to the log's present end.

    Reads the whole partition. Raises NoSuchTable, naming tables that are called alike.
    """
    if age_seconds < 0:
        raise InvalidRequest(
            f"an age of {age_seconds:g} s is in the future", field="age", value=age_seconds,
            advice="Give seconds from 0 on",
        )  # fmt: skip
    table_id = parse_table_id(table)
    genesis = log.genesis(DomainMap(log.genesis().domains).partition(table_id))
    machine, named = Machine(genesis), _Named(table_id)
    follower = Follower(log, genesis, machine, Replica())
    try:
        # The files first: one that is there now is named later, if anybody names it.
        for event in follower.catch_up(CATCH_UP_SECONDS):
            named.take(event)
        found = machine.tables.get(table_id)
        if found is None:
            names = [format_table_id(known) for known in machine.tables]
            near = difflib.get_close_matches(table, names, n=3)
            hint = f"Did you mean {', '.join(near)}?" if near else "`commitlog tables` lists them."
            raise NoSuchTable(f"the log {log.name} knows no table {table}. {hint}")
        listed = sorted(_old_files(found.location, age_seconds))
        for event in follower.catch_up(CATCH_UP_SECONDS):
            named.take(event)
        _read_transactions(follower)
        named.leave_undecided(s.record for s in follower.replica.undecided.values())
    finally:
        follower.close()
    kept = named.committed.get(found.location, set()) | named.undecided
    return [
        Orphan(path, named.refused.get(path, "no transaction names it"))
        for path in listed
        if path not in kept
    ]


def paths_in(message: Message) -> Iterator[str]:
    """Yield the paths, below a table's location, of all data and deletion files in a message."""
    if isinstance(message, DataFile):
        if not message.HasField("base_id"):
            yield f"data/{message.path}"
        return
    if isinstance(message, DataFragment) and message.HasField("deletion_file"):
        yield deletion_file_path(message.id, message.deletion_file)
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for inner in value if field.is_repeated else (value,):
            yield from paths_in(inner)


def _read_transactions(follower: Follower) -> None:
    """Read what may be committed yet."""
    end, deadline = follower.transactions.end_offset(), time.monotonic() + CATCH_UP_SECONDS
    while follower.transactions.position() < end:
        for submitted in follower.transactions.poll(timeout_seconds=0.5):
            follower.replica.receive_submitted(submitted)
        if time.monotonic() > deadline:
            raise Unavailable("Kafka didn't send the transactions in time; try again later")


def _old_files(location: str, age_seconds: float) -> Iterator[str]:
    root, newest = local_path(location), time.time() - age_seconds
    store = store_for(location)
    for folder in FOLDERS:
        for name in store.names(folder):
            path = f"{folder}/{name}"
            # An object store's listing has no times here: all its files are looked at.
            if root is None or _modified(root / path) <= newest:
                yield path


def _modified(path: os.PathLike[str]) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return float("inf")


def _reason(outcome: Outcome) -> str:
    if outcome.answers is not None:
        return f"{outcome.transaction_id} repeated what outcome {outcome.answers} had committed"
    return f"{outcome.transaction_id} was {outcome.status}"
