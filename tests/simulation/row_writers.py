"""Rows by the log under simulation: writers hand them over, two row writers race to apply them.

The row writer is the product's own, through the product's own client, and so is what a group of
writes comes to. Only what Lance does is done here: reading a version, and data and deletion files.
The log fences the two: each accepted write is applied once, in order, or refused by record. The
twin applies them one by one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pyarrow as pa
from pyroaring import BitMap

from commitlog.client.accepted.row_application import prepare_group
from commitlog.client.accepted.row_tail import Tail, Waiting
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.row_groups import BaseScan
from commitlog.client.rows.rows import OFFSET_BITS, ROW_ADDRESS, ROW_ID
from commitlog.codecs.avro import payload_hash
from commitlog.core.rows.deciding import schema_digest
from commitlog.errors import CommitLogError, NoSuchTable
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.operations import (
    ApplyRows,
    LanceCommit,
    Operation,
    RowsColumn,
    RowsMode,
    WriteRows,
)
from commitlog.model.records import Transaction
from commitlog.model.table import TableId, format_table_id
from consumers.tools.rows.writer import RowWriter
from tests.simulation.clients import SimulatedRuntime
from tests.simulation.requests import Request, View
from tests.simulation.rows import Asked, Intent, Row
from tests.simulation.scheduler import Process
from tests.simulation.versions import has_two_versions
from tests.simulation.writers import Writer

if TYPE_CHECKING:
    from tests.simulation.world import World

EVERY, FIRST = 20, 11
"""One seed in so many writes rows, from this one on: their logs begin by the newest protocol. Those
with two versions (91, 431, …) write none, since an older program may not know such records."""
ROW_WRITERS = 2
WRITTEN = 0.5
"""How often, when its turn has come, the sender writes."""
UNREADABLE = 0.15
"""How many writes say that they have another number of rows than they have."""
PAUSE_SECONDS = (0.02, 0.3)
IN_FILES = 0.3
"""How many writes have their rows in a file beside the record."""
MODES = ("append", "append", "delete", "insert", "update", "upsert", "upsert", "touch")
KILLED = 0.1
"""How often a row writer dies at a group, before and after its file is put."""


def has_row_writers(seed: int) -> bool:
    """Say whether a seed writes rows by the log."""
    return seed % EVERY == FIRST and not has_two_versions(seed)


class RowSender(Writer):
    """A writer of rows: it leaves it to others to apply them."""

    def _submit_new(self) -> None:
        world, chance = self.world, self.world.scheduler.random
        tables = world.auditor.machine.tables
        names = sorted(name for name, table in tables.items() if table.manifest is not None)
        if not names or chance.random() > WRITTEN:
            return
        request, properties = Request(), (("n", world.requests.uuid()),)
        payloads = [
            self._write(request, chance.choice(names)) for _ in range(chance.choice((1, 1, 2, 3)))
        ]
        transaction = Transaction(
            world.requests.uuid(),
            tuple(request.operations),
            submitted_at_ms=world.now_ms() + self.clock_skew_ms,
            properties=properties,
            payloads=tuple(payload for payload in payloads if payload),
        )
        for location, path, data in request.files:
            world.put_file(self.process, location, path, data)
        self.send_as(transaction, Asked(tuple(request.intents)))

    def _write(self, request: Request, name: TableId) -> bytes:
        world = self.world
        table, rows = world.auditor.machine.tables[name], world.requests.rows()
        assert table.manifest is not None
        # Rows with stable ids would need theirs, which Lance gives.
        chance = world.scheduler.random
        mode = "append" if table.stable_row_ids else chance.choice(MODES)
        columns = {"k": [key for key, _ in rows], "v": [value for _, value in rows]}
        names = ("k",) if mode in {"delete", "touch"} else ("k", "v")
        made, sink = pa.table({one: columns[one] for one in names}), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, made.schema) as stream:
            stream.write_table(made)
        payload: bytes = sink.getvalue().to_pybytes()
        path = f"_rows/{world.requests.uuid()}" if chance.random() < IN_FILES else ""
        if path:
            request.files.append((table.location, path, payload))
        is_bad = chance.random() < UNREADABLE
        operation = WriteRows(
            table=name,
            mode=_MODE.get(mode, RowsMode.UPSERT),
            rows=len(rows) + is_bad,
            columns=tuple(RowsColumn(number, one, 0) for number, one in enumerate(names)),
            schema_digest=schema_digest(table.manifest.header.message.fields, names),
            sha256=hashlib.sha256(payload).digest(),
            size=len(payload),
            path=path,
            on=() if mode == "append" else ("k",),
            incarnation=table.incarnation,
            update_all=mode in {"update", "upsert", "touch"},
            insert_all=mode in {"insert", "upsert"},
        )
        text = format_table_id(name)
        meant = Intent("write", text, table.incarnation, adds=(rows,), is_bad=is_bad, mode=mode)
        request.add(operation, meant)
        world.count("rows written")
        return b"" if path else payload


_MODE = {"append": RowsMode.APPEND, "delete": RowsMode.DELETE}


class Applier:
    """A process that applies rows, and what it takes for the log's client."""

    def __init__(self, world: World, number: int) -> None:
        """Start."""
        self._world, self._number = world, number
        self._random = random.Random(f"rows {number} {world.seed}")
        self._boots = 0
        self._next_at = 0.0
        self.opened = self
        self.boot()

    def boot(self) -> None:
        """Start a process, which knows nothing."""
        world = self._world
        self._boots += 1
        self.process = Process(f"a{self._number}.{self._boots}")
        self._runtime = SimulatedRuntime(world, self.process)
        self._tail = Tail(cast(Any, self._runtime.log), 0)
        self._writer = RowWriter(cast(Any, self), read=self.read)
        self._view: View | None = None
        self._request = Request()
        self._done = Intent("rows", "")
        world.scheduler.add(self.process, "rows", self._step)

    def runtime(self) -> SimulatedRuntime:
        """Return the client's runtime."""
        return self._runtime

    def newest(self, info: TableInfo) -> Applier:
        """Return what `prepare` is asked of."""
        del info
        self._request, self._done = Request(), Intent("rows", "")
        return self

    @property
    def version(self) -> int:
        """Return the version that was read."""
        assert self._view is not None
        return self._view.version

    def describe(self, table: TableId, *, fresh: bool, readable: bool) -> TableInfo:
        """Return a table as it stands."""
        del fresh, readable
        self._world.scheduler.point(self.process, "describe")
        info = description(self._world, table)
        found = self._world.auditor.machine.tables[table]
        assert found.manifest is not None
        name, twin = format_table_id(table), self._world.auditor.spec.tables[format_table_id(table)]
        self._view = View(
            name,
            found.incarnation,
            found.location,
            found.version,
            dict(found.manifest.fragments),
            {number: dict(fragment.rows) for number, fragment in twin.fragments.items()},
            twin.has_key,
            frozenset(),
        )
        return info

    def read(self, info: TableInfo, dataset: Any, scan: BaseScan) -> pa.Table:
        """Read what a group needs of a version."""
        del info, dataset
        rows = self._base()
        places = [fragment << OFFSET_BITS | offset for (fragment, offset), _ in rows]
        values = dict(zip(("k", "v"), zip(*(row for _, row in rows), strict=True), strict=False))
        columns = {name: pa.array(values.get(name, ()), pa.int64()) for name in scan.columns}
        numbers = pa.array(places, pa.uint64())
        return pa.table({**columns, ROW_ADDRESS: numbers, ROW_ID: numbers})

    def _base(self) -> tuple[tuple[tuple[int, int], Row], ...]:
        assert self._view is not None
        fragments = sorted(self._view.rows.items())
        return tuple(((n, o), row) for n, rows in fragments for o, row in sorted(rows.items()))

    def delete(self, addresses: pa.ChunkedArray) -> tuple[list[Any], list[int], dict[int, BitMap]]:
        """Make the files of deletions."""
        view, updated, removes, drops = self._view, [], [], []
        assert view is not None
        affected = {}
        places = sorted(addresses.to_pylist())
        for fragment_id, group in groupby(places, lambda place: place >> OFFSET_BITS):
            chosen = tuple(place & (1 << OFFSET_BITS) - 1 for place in group)
            affected[fragment_id] = BitMap(chosen)
            if len(chosen) == len(view.rows[fragment_id]):
                drops.append((fragment_id, chosen))
                continue
            requests = self._world.requests
            updated.append(requests.with_deletions(self._request, view, fragment_id, chosen))
            removes.append((fragment_id, chosen))
        self._done = replace(self._done, removes=tuple(removes), drops=tuple(drops))
        return updated, [fragment_id for fragment_id, _ in drops], affected

    def write(self, rows: pa.Table) -> list[DataFragment]:
        """Make a file of rows."""
        made = tuple((row["k"], row["v"]) for row in rows.to_pylist())
        self._done = replace(self._done, adds=(made,) if made else ())
        if not made:
            return []
        assert self._view is not None
        return [self._world.requests.fragment(self._request, self._view, made)]

    def message(self, kind: str, **given: Any) -> bytes:
        """Make Lance's operation, whose files are put first."""
        message = LanceTransaction()
        body = getattr(message, kind)
        for name, value in given.items():
            if isinstance(value, list):
                getattr(body, name).extend(value)
            else:
                setattr(body, name, value)
        self._point("put rows")
        for location, path, data in self._request.files:
            self._world.put_file(self.process, location, path, data)
        self._point("submit rows")
        return message.SerializeToString(deterministic=True)

    def transaction(
        self, operations: tuple[Operation, ...], *, transaction_id: str, properties: Any
    ) -> Transaction:
        """Make a transaction, and note what it is meant to do."""
        transaction = Transaction(
            transaction_id,
            operations,
            submitted_at_ms=self._world.now_ms(),
            properties=tuple(properties),
        )
        intents = tuple(map(self._meant, operations))
        self._world.auditor.meant[payload_hash(transaction)] = Asked(intents)
        return transaction

    def _meant(self, operation: Operation) -> Intent:
        assert isinstance(operation, ApplyRows | LanceCommit)
        name = format_table_id(operation.table)
        meant = replace(self._done, table=name, incarnation=operation.incarnation)
        if isinstance(operation, LanceCommit):
            return replace(meant, read_version=operation.read_version)
        writes = tuple((one.sequence, one.operation, bool(one.refused)) for one in operation.writes)
        base, after = self._base(), operation.after
        return Intent("apply", name, meant.incarnation, writes=writes, after=after, base=base)

    def _point(self, what: str) -> None:
        world = self._world
        if self._random.random() < KILLED and not world.faults.is_over:
            world.scheduler.kill(self.process, what)
        world.scheduler.point(self.process, what)

    def _step(self) -> bool:
        world = self._world
        if world.scheduler.now < self._next_at:
            return False
        try:
            body = self._runtime.request(0, "rows_pending", seconds=0.0)
            waiting = [Waiting.of(one) for one in body]
            known = self._tail.read(offset for one in waiting for _, offset, _ in one.pending)
            for one in waiting:
                self._apply(one, known)
        except CommitLogError as error:
            world.count(f"row writer waits: {type(error).__name__}")
        self._next_at = world.scheduler.now + self._random.choice(PAUSE_SECONDS)
        return True

    def _apply(self, one: Waiting, known: dict[int, Transaction]) -> None:
        try:
            outcome = self._writer.apply(one, known)
        except _Pauses:
            # Two that sleep in turn, one within the other's sleep, would sleep for hours.
            self._world.count("row writer's clock is behind")
        else:
            self._world.count("rows applied" if outcome else "row writer was late")


def description(world: World, table: TableId) -> TableInfo:
    """Return a table as it stands; raise NoSuchTable."""
    world.auditor.follow()
    found = world.auditor.machine.tables.get(table)
    if found is None or found.manifest is None:
        raise NoSuchTable(f"{format_table_id(table)} isn't there")
    fields = found.manifest.header.message.fields
    return TableInfo(
        table_id=table,
        incarnation=found.incarnation,
        location=found.location,
        version=found.version,
        readable_version=found.version,
        policy=found.policy,
        primary_key=(),
        properties={},
        deleted=found.deleted,
        stable_row_ids=found.stable_row_ids,
        fields=tuple(field.SerializeToString(deterministic=True) for field in fields),
    )


_OPERATIONS = SimpleNamespace(
    Append=lambda fragments: partial(Applier.message, kind="append", fragments=fragments),
    Delete=lambda updated, removed, predicate: partial(
        Applier.message,
        kind="delete",
        updated_fragments=updated,
        deleted_fragment_ids=removed,
        predicate=predicate,
    ),
    Update=lambda **given: partial(
        Applier.message,
        kind="update",
        **given | {"update_mode": LanceTransaction.REWRITE_ROWS},
    ),
)
"""Operations as pylance has them, of which the process that submits them makes messages."""


def _prepare(info: TableInfo, dataset: Applier, *given: Any) -> Any:
    made = prepare_group(info, cast(Any, dataset), *given)
    return made and replace(made, operation=made.operation(dataset))


class _Pauses(Exception):
    """The row writer would sleep here, on a thread of that table's own."""


def _sleep(seconds: float) -> None:
    raise _Pauses(seconds)


@contextmanager
def in_force(world: World) -> Iterator[None]:
    """Let what Lance does for row writers be done here."""
    module = "consumers.tools.rows.attempt"
    with ExitStack() as stack:
        stack.enter_context(mock.patch(f"{module}.prepare_group", _prepare))
        made_by = "commitlog.client.accepted.row_application"
        stack.enter_context(
            mock.patch(f"{made_by}.delete_rows", lambda applier, gone: applier.delete(gone))
        )
        stack.enter_context(
            mock.patch(f"{made_by}.write_moved", lambda _, applier, rows, ids: applier.write(rows))
        )
        lance = SimpleNamespace(LanceOperation=_OPERATIONS)
        stack.enter_context(mock.patch(f"{made_by}.lance", lance))
        stack.enter_context(
            mock.patch("commitlog.client.accepted.row_tail.store_for", world.auditor.open_store)
        )
        stack.enter_context(mock.patch(f"{module}.new_transaction_id", world.requests.uuid))
        stack.enter_context(mock.patch(f"{module}.remove_files"))
        clocks = SimpleNamespace(sleep=_sleep, monotonic=world.scheduler.clock)
        stack.enter_context(mock.patch("consumers.tools.rows.writer.time", clocks))
        # The store isn't a folder that a client could look into.
        stack.enter_context(
            mock.patch("commitlog.client.commits.submission._local_root", return_value="")
        )
        yield
