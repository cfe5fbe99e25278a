"""The version index's rows by machine code beside Python's: the same, or left to Python."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from commitlog.core.log.replica import Decided
from commitlog.model.operations import LanceCommit, Operation
from commitlog.model.records import Application, Status, Transaction
from consumers.views.version_index.appends import Appends
from consumers.views.version_index.contents import Recordings
from consumers.views.version_index.counting import Counting
from consumers.views.version_index.heads import IndexedLife, fold
from consumers.views.version_index.operation_results import DoneAppend
from consumers.views.version_index.relation import arrow_schema
from consumers.views.version_index.rows import no_recordings, rows_of
from consumers.views.version_index.schema import EVENTS
from tests.fakes.log_stream import PartitionLog

if TYPE_CHECKING:
    from commitlog.codecs._native import AppendColumns

Mutated = Callable[[bytes, random.Random], bytes]
Seen = tuple[dict[str, list[str]], dict[str, IndexedLife], Any]


def _seen(
    native: type[AppendColumns] | None,
    batches: Sequence[Sequence[Decided]],
    recordings: Recordings,
) -> tuple[Seen, int]:
    """Return all rows, heads and fragments of batches, and how many appends machine code took."""
    appends, counting = Appends(native), Counting()
    heads: dict[str, IndexedLife] = {}
    found: dict[str, list[str]] = {one.name: [] for one in EVENTS}
    taken = 0
    for batch in batches:
        told, columns = appends.read(batch, counting)
        taken += sum(isinstance(done, DoneAppend) for _, done in told)
        rows = rows_of(told, recordings, counting)
        fold(heads, told)
        for relation in EVENTS:
            schema = arrow_schema(relation)
            made = zip(*rows[relation.name], strict=True)
            arrays = [pa.array(c, f.type) for c, f in zip(made, schema, strict=False)]
            tables = [pa.table(arrays, schema=schema)] if arrays else []
            if relation.name in columns:
                tables.append(columns[relation.name])
                tables[-1].validate(full=True)
            for table in tables:
                found[relation.name] += map(repr, table.cast(_numeric(schema)).to_pylist())
    return (
        {name: sorted(rows) for name, rows in found.items()},
        heads,
        dict(counting._tables),
    ), taken


def _numeric(schema: pa.Schema) -> pa.Schema:
    """Return a schema with times as numbers: Python's own have fewer years."""
    times = (pa.field(f.name, pa.int64()) if f.type == pa.timestamp("us") else f for f in schema)
    return pa.schema(list(times))


def indexed_alike(
    native: type[AppendColumns],
    batches: Iterable[Sequence[Decided]],
    recordings: Recordings = no_recordings,
) -> int:
    """Make rows in both lanes; return how many appends machine code took."""
    given = [list(batch) for batch in batches]
    (found, taken), (expected, none) = (_seen(lane, given, recordings) for lane in (native, None))
    assert none == 0
    assert found == expected
    return taken


_TEXTS = ("", "a", "\u00e9\U0001f600", 'a "quoted" \\', "\n", "\x7f", "\ud800", 1, None, b"a")
_NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), True, None, "1", 1.5)


def _odd(value: object, chance: random.Random) -> object:
    """Return another value for a field: of its type, mostly."""
    if isinstance(value, bool) or value is None:
        return chance.choice((None, True, False, 0, 1, 5))
    if isinstance(value, str):
        return chance.choice(_TEXTS)
    if isinstance(value, int):
        return chance.choice(_NUMBERS)
    if isinstance(value, bytes):
        return chance.choice((b"", b"\x00\xff", bytearray(b"a"), "a", None))
    if isinstance(value, tuple):
        pairs = tuple((chance.choice(_TEXTS), chance.choice(_TEXTS)) for _ in range(2))
        return chance.choice(
            ((), value * 2, pairs, [*value], None, ("a",), (chance.choice(_TEXTS),))
        )
    return chance.choice((None, value, "a"))


def _changed(value: Any, chance: random.Random) -> Any:
    field = chance.choice(dataclasses.fields(value)).name
    return dataclasses.replace(value, **{field: _odd(getattr(value, field), chance)})


def _with_operation(transaction: Transaction, operation: Operation) -> Transaction:
    return dataclasses.replace(transaction, operations=(operation,))


def odd_ones(base: Sequence[Decided], chance: random.Random, mutated: Mutated) -> Iterator[Decided]:
    """Yield committed appends with something changed in them, without an end."""
    while True:
        one = chance.choice(base)
        submitted, outcome = one.submitted, one.outcome
        transaction: Any = submitted.record
        (operation,), (result,) = transaction.operations, outcome.results
        act = chance.randrange(7)
        if act == 0:
            outcome = _changed(outcome, chance)
        elif act == 1:
            outcome = dataclasses.replace(outcome, results=(_changed(result, chance),))
        elif act == 2:
            transaction = _changed(transaction, chance)
        elif act == 3:
            transaction = _with_operation(transaction, _changed(operation, chance))
        elif act == 4:
            application = _changed(Application("stream", 1, "run"), chance)
            transaction = dataclasses.replace(transaction, application=application)
        elif act == 5:
            one = _changed(one, chance)
            yield one
            continue
        else:
            message = mutated(operation.message, chance)
            operation = dataclasses.replace(operation, message=message)
            transaction = _with_operation(transaction, operation)
        submitted = dataclasses.replace(submitted, record=transaction)
        yield dataclasses.replace(one, submitted=submitted, outcome=outcome)


def committed_appends(count: int, seed: int) -> list[Decided]:
    """Return those of a made-up log of so many transactions."""
    log = PartitionLog(seed=seed)
    log.grow(count)
    found = []
    for one in log.decided():
        record = one.submitted.record
        if isinstance(record, Transaction) and len(record.operations) == 1:
            operation = record.operations[0]
            is_append = isinstance(operation, LanceCommit) and operation.operation == "Append"
            if is_append and one.outcome.status is Status.COMMITTED and one.outcome.results:
                found.append(one)
    return found


def search_rows(
    native: type[AppendColumns], mutated: Mutated, seconds: float, seed: int
) -> tuple[int, int]:
    """Try changed appends for so long; return how many, and how many machine code took."""
    chance = random.Random(seed)
    appends = Appends(native)._native
    assert appends is not None
    taken = 0
    until = time.process_time() + seconds
    for tried, one in enumerate(odd_ones(committed_appends(300, seed), chance, mutated)):
        if appends.add(one) is not None:
            # What machine code takes, Python makes rows of without an error.
            taken += 1
            indexed_alike(native, [[one] * 3])
        if tried % 1_000 == 999:
            appends.take()
        if time.process_time() >= until:
            return tried, taken
    raise AssertionError
