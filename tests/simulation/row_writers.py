"""Rows by the log under simulation: writers hand them over, two row writers race to apply them.

The row writer is the product's own, through the product's own client. Only what Lance does is done
here: a group's rows become a data file that the twin knows. The log fences the two: each accepted
write is applied once, in order, or refused by record.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pyarrow as pa

from commitlog.client.row_groups import Write
from commitlog.client.row_tail import Tail, Waiting
from commitlog.client.rows import Prepared
from commitlog.client.tables import TableInfo
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
from consumers.tools.row_writer import RowWriter
from tests.simulation.clients import SimulatedRuntime
from tests.simulation.requests import FILE_BYTES, Request
from tests.simulation.rows import Asked, Intent, Row
from tests.simulation.scheduler import Process
from tests.simulation.versions import has_two_versions
from tests.simulation.writers import Writer

if TYPE_CHECKING:
    from tests.simulation.world import World

EVERY, FIRST = 20, 11
"""One seed in so many writes rows, from this one on: their logs begin by the newest protocol."""
ROW_WRITERS = 2
WRITTEN = 0.5
"""How often, when its turn has come, the sender writes."""
UNREADABLE = 0.15
"""How many writes say that they have another number of rows than they have."""
PAUSE_SECONDS = (0.02, 0.3)
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
            self._write(request, chance.choice(names)) for _ in range(chance.choice((1, 1, 2)))
        ]
        transaction = Transaction(
            world.requests.uuid(),
            tuple(request.operations),
            submitted_at_ms=world.now_ms() + self.clock_skew_ms,
            properties=properties,
            payloads=tuple(payloads),
        )
        self.send_as(transaction, Asked(tuple(request.intents)))

    def _write(self, request: Request, name: TableId) -> bytes:
        world = self.world
        table, rows = world.auditor.machine.tables[name], world.requests.rows()
        assert table.manifest is not None
        columns = {"k": [key for key, _ in rows], "v": [value for _, value in rows]}
        made, sink = pa.table(columns), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, made.schema) as stream:
            stream.write_table(made)
        payload: bytes = sink.getvalue().to_pybytes()
        is_bad = world.scheduler.random.random() < UNREADABLE
        fields = table.manifest.header.message.fields
        operation = WriteRows(
            table=name,
            mode=RowsMode.APPEND,
            rows=len(rows) + is_bad,
            columns=(RowsColumn(0, "k", 0), RowsColumn(1, "v", 0)),
            schema_digest=schema_digest(fields, ("k", "v")),
            sha256=hashlib.sha256(payload).digest(),
            size=len(payload),
            incarnation=table.incarnation,
        )
        text = format_table_id(name)
        meant = Intent("write", text, table.incarnation, adds=(rows,), is_bad=is_bad)
        request.add(operation, meant)
        world.count("rows written")
        return payload


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
        self._writer = RowWriter(cast(Any, self))
        self._rows: tuple[Row, ...] = ()
        world.scheduler.add(self.process, "rows", self._step)

    def runtime(self) -> SimulatedRuntime:
        """Return the client's runtime."""
        return self._runtime

    def newest(self, info: TableInfo) -> Applier:
        """Return what `prepare` is asked of."""
        del info
        return self

    def describe(self, table: TableId, *, fresh: bool, readable: bool) -> TableInfo:
        """Return a table as it stands."""
        del fresh, readable
        self._world.scheduler.point(self.process, "describe")
        self._world.auditor.follow()
        found = self._world.auditor.machine.tables.get(table)
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
            stable_row_ids=found.stable_row_ids,
            fields=tuple(field.SerializeToString(deterministic=True) for field in fields),
        )

    def prepare(self, info: TableInfo, writes: Sequence[Write]) -> Prepared:
        """Put a group's rows into a data file."""
        world = self._world
        self._rows = tuple(
            (row["k"], row["v"]) for write in writes for row in write.rows.to_pylist()
        )
        for write in writes:
            write.inserted = write.rows.num_rows
        path, message = f"{world.requests.uuid()}.lance", LanceTransaction()
        fragment = DataFragment(physical_rows=len(self._rows))
        fragment.files.add(
            path=path,
            fields=[0, 1],
            column_indices=[0, 1],
            file_major_version=2,
            file_minor_version=0,
            file_size_bytes=len(FILE_BYTES),
        )
        message.append.fragments.append(fragment)
        self._point("put rows")
        world.put_file(self.process, info.location, f"data/{path}", FILE_BYTES)
        self._point("submit rows")
        return Prepared(message.SerializeToString(deterministic=True), 0)

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
        if isinstance(operation, LanceCommit):
            return Intent("append", name, operation.incarnation, adds=(self._rows,))
        writes = tuple((one.sequence, one.operation, bool(one.refused)) for one in operation.writes)
        return Intent("apply", name, operation.incarnation, writes=writes, after=operation.after)

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
                outcome = self._writer.apply(one, known)
                world.count("rows applied" if outcome else "row writer was late")
        except CommitLogError as error:
            world.count(f"row writer waits: {type(error).__name__}")
        self._next_at = world.scheduler.now + self._random.choice(PAUSE_SECONDS)
        return True


def _prepare(info: TableInfo, dataset: Any, writes: Sequence[Write], read: Any) -> Prepared:
    del read
    return cast(Prepared, dataset.prepare(info, writes))


@contextmanager
def in_force(world: World) -> Iterator[None]:
    """Let what Lance does for row writers be done here."""
    module = "consumers.tools.row_writer"
    with ExitStack() as stack:
        stack.enter_context(mock.patch(f"{module}.prepare_group", _prepare))
        stack.enter_context(mock.patch(f"{module}.new_transaction_id", world.requests.uuid))
        stack.enter_context(mock.patch(f"{module}.remove_files"))
        # The store isn't a folder that a client could look into.
        stack.enter_context(mock.patch("commitlog.client.submission._local_root", return_value=""))
        yield
