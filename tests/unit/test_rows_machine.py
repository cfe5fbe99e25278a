"""Are writes of rows accepted in order, and each range of them applied once?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commitlog.client.accepted.row_tail import rows_of
from commitlog.core.rows.deciding import dropped_columns, schema_digest
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model import limits
from commitlog.model.limits import ROWS_COLUMNS_SINCE, Rules
from commitlog.model.names import ROWS_EXPIRED_THROUGH
from commitlog.model.operations import (
    AlterProperties,
    AppliedWrite,
    ApplyRows,
    DropTable,
    LanceCommit,
    RenameTable,
    RowsColumn,
    RowsMode,
    WriteRows,
)
from commitlog.model.records import Code, Malformed, Outcome, Status, Transaction
from tests.core_world import World, append, column, commit, replayed_from_parts

FIELDS = [Field.FromString(column(f"c{i}", i)) for i in range(2)]
HASH = b"h" * 32


def write(mode: str = "upsert", rows: int = 2, **more: Any) -> WriteRows:
    """Return a good write into table t, with what is to be different."""
    names = more.pop("names", ("c0", "c1"))
    nulls = more.pop("nulls", {})
    options: dict[str, Any] = {
        "columns": tuple(RowsColumn(int(n[1:]), n, nulls.get(n, 0)) for n in names),
        "schema_digest": schema_digest(FIELDS, names),
        "sha256": HASH,
        "size": 100,
        "on": () if mode == "append" else ("c0",),
        "update_all": mode == "upsert",
        "insert_all": mode == "upsert",
    }
    return WriteRows(("t",), RowsMode(mode), rows, **{**options, **more})


def applied(after: int, *sequences: int, through: int = 0, **more: Any) -> ApplyRows:
    """Say that writes were applied."""
    writes = tuple(AppliedWrite(sequence, 0, inserted=2) for sequence in sequences)
    return ApplyRows(("t",), "i-t", after, through or sequences[-1], more.get("writes", writes))


@pytest.fixture
def world() -> World:
    """A table of two columns under the newest rules."""
    world = World(rules=Rules(limits.PROTOCOL_SUPPORTED))
    assert world.create(columns=2).status is Status.COMMITTED
    return world


def refused(outcome: Outcome) -> tuple[Code, str]:
    assert outcome.status is not Status.COMMITTED
    assert outcome.reason is not None
    return outcome.code, outcome.reason.name


def test_writes_are_accepted_and_ranges_follow_one_another(world: World) -> None:
    first, second = world.ask("w1", write()), world.ask("w2", write("append"))
    assert [one.status for one in (first, second)] == [Status.COMMITTED] * 2
    assert first.versions() == {}, "accepting makes no version"
    third = world.ask("w3", write("delete", names=("c0",)))

    commit = append(1, "f.lance", fields=(0, 1))
    done = world.ask("a1", applied(0, first.sequence, second.sequence), commit)
    assert done.status is Status.COMMITTED
    assert done.version == 2
    rows = world.machine.tables["t",].rows
    assert rows is not None
    assert list(rows.pending) == [third.sequence]
    assert rows.applied == second.sequence
    found = rows.application_of(first.sequence)
    assert found is not None
    assert (found.version, found.sequence) == (2, done.sequence)
    assert rows.application_of(third.sequence) is None

    # A row writer that died in between, or never noticed, comes again with the same range.
    late = world.ask("a2", applied(0, first.sequence, second.sequence), commit)
    assert refused(late) == (Code.ROWS_RANGE, "rows_range_not_next")
    assert world.state().version == 2, "nothing of a refused record is done"

    # What is left needs no commit: a delete that found nothing.
    last = world.ask("a3", applied(second.sequence, third.sequence))
    assert last.status is Status.COMMITTED
    assert rows.size == 0


def test_a_range_names_all_that_was_accepted_and_nothing_else(world: World) -> None:
    one, two = (world.ask(f"w{i}", write()).sequence for i in range(2))
    cases = (
        applied(0, two),
        applied(0, one, through=two),
        applied(0, one, two, two),
        applied(0, one, two + 1),
        applied(0, two, one, through=two),
        applied(0, one, through=one, writes=(AppliedWrite(one, 1),)),
    )
    for number, case in enumerate(cases):
        assert refused(world.ask(f"a{number}", case)) == (Code.ROWS_RANGE, "rows_range_differs")
    assert refused(world.ask("b", applied(one, two)))[1] == "rows_range_not_next"
    assert refused(world.ask("c", applied(0, one, writes=())))[1] == "rows_range_not_next"
    both = world.ask("d", applied(0, one), applied(0, one))
    assert refused(both) == (Code.ROWS_RANGE, "rows_applied_twice")
    assert world.ask("e", applied(0, one)).status is Status.COMMITTED


@pytest.mark.parametrize(
    ("operation", "code", "reason"),
    [
        (replace(write(), table=("u",)), "NO_SUCH_TABLE", ""),
        (write(incarnation="other"), "TABLE_REPLACED", "table_replaced"),
        (write(rows=0), "INVALID_OPERATION", "rows_malformed"),
        (write(nulls={"c1": 3}), "INVALID_OPERATION", "rows_malformed"),
        (write(sha256=b""), "INVALID_OPERATION", "rows_malformed"),
        (write(size=limits.ROWS_INLINE_BYTES_MAX + 1), "INVALID_OPERATION", "rows_too_large"),
        (write(on=()), "INVALID_OPERATION", "rows_key_wrong"),
        (write("append", on=("c0",)), "INVALID_OPERATION", "rows_key_wrong"),
        (write(on=("c0", "c0")), "INVALID_OPERATION", "rows_key_wrong"),
        (write(on=("c7",)), "INVALID_OPERATION", "rows_key_missing"),
        (write(nulls={"c0": 1}), "INVALID_OPERATION", "rows_key_null"),
        (write("append", update_all=True), "INVALID_OPERATION", "rows_settings_wrong"),
        (write(update_all=False, insert_all=False), "INVALID_OPERATION", "rows_settings_wrong"),
        (write(update_all=False, update_if="x"), "INVALID_OPERATION", "rows_settings_wrong"),
        (write(names=("c0", "c2")), "WRONG_SCHEMA", "rows_columns_unknown"),
        (write(names=("c0", "c0")), "WRONG_SCHEMA", "rows_columns_unknown"),
        (write(schema_digest=HASH), "WRONG_SCHEMA", "rows_schema_differs"),
        (write(path="../x"), "INVALID_OPERATION", "rows_path_wrong"),
        (write(path="_rows/a/b"), "INVALID_OPERATION", "rows_path_wrong"),
        (write(path="_rows/.."), "INVALID_OPERATION", "rows_path_wrong"),
        (write(path="_rows/gone"), "MISSING_FILE", "data_file_missing"),
        (write(path="_rows/cut", size=101), "MISSING_FILE", "data_file_cut"),
    ],
)
def test_a_wrong_write_is_refused(
    world: World, operation: WriteRows, code: str, reason: str
) -> None:
    world.missing.add("_rows/gone")
    found = refused(world.ask("w", operation))
    assert found[0] == code
    assert not reason or found[1] == reason
    assert world.machine.tables["t",].rows is None


def test_the_writes_of_a_record_to_one_table_have_one_key(world: World) -> None:
    other = world.ask("w1", write(), write(on=("c1",)))
    assert refused(other) == (Code.INVALID_OPERATION, "rows_keys_differ")
    both = world.ask("w2", write(), write("append"), write("delete", names=("c0",)))
    assert both.status is Status.COMMITTED
    writes = tuple(AppliedWrite(both.sequence, index) for index in range(3))
    done = world.ask("a", applied(0, both.sequence, writes=writes))
    assert done.status is Status.COMMITTED


def test_columns_that_may_not_be_null_have_values() -> None:
    world = World(rules=Rules(limits.PROTOCOL_SUPPORTED))
    strict = Field.FromString(column("c1", 1))
    strict.nullable = False
    world.create(columns=2)
    from commitlog.model.operations import CreateTable

    fields = (column("c0", 0), strict.SerializeToString())
    made = CreateTable(("s",), "i-s", "/tables/s", fields, data_storage_version="2.0")
    assert world.ask("create-s", made).status is Status.COMMITTED

    def to_s(**more: Any) -> WriteRows:
        names = more.get("names", ("c0", "c1"))
        digest = schema_digest([FIELDS[0], strict], names)
        return replace(write(schema_digest=digest, **more), table=("s",))

    assert world.ask("w1", to_s()).status is Status.COMMITTED
    assert refused(world.ask("w2", to_s(nulls={"c1": 1}))) == (Code.WRONG_SCHEMA, "rows_nulls")
    assert refused(world.ask("w3", to_s(names=("c0",))))[1] == "rows_nulls"
    # An upsert that only updates keeps what it doesn't bring.
    only_updates = to_s(names=("c0",), insert_all=False)
    assert world.ask("w4", only_updates).status is Status.COMMITTED


def test_a_full_backlog_is_refused_and_has_room_again_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlog.core.rows.deciding.ROWS_PENDING_MAX", 1)
    first = world.ask("w1", write())
    late = world.ask("w2", write())
    assert (late.status, late.code) == (Status.RETRYABLE, Code.ROWS_BACKLOG)
    assert world.ask("a", applied(0, first.sequence)).status is Status.COMMITTED
    assert world.ask("w3", write()).status is Status.COMMITTED


def test_the_state_survives_checkpoints_renames_and_drops(world: World) -> None:
    first = world.ask("w1", write())
    world.ask("a1", applied(0, first.sequence), append(1, "f.lance", fields=(0, 1)))
    second = world.ask("w2", write("append"))
    restored = replayed_from_parts(world.machine)
    assert restored.digest() == world.machine.digest() == world.replayed().digest()
    rows = restored.tables["t",].rows
    assert rows is not None
    assert list(rows.pending) == [second.sequence]

    assert world.ask("r", RenameTable(("t",), ("n",))).status is Status.COMMITTED
    renamed = world.machine.tables["n",].rows
    assert renamed is not None
    assert list(renamed.pending) == [second.sequence]
    assert world.ask("d", DropTable(("n",))).status is Status.COMMITTED
    assert world.machine.catalogue.ended_rows == {"i-t": first.sequence}
    restored = replayed_from_parts(world.machine)
    assert restored.catalogue.ended_rows == {"i-t": first.sequence}
    assert restored.digest() == world.replayed().digest()


def overwritten(read: int, *fields: bytes) -> LanceCommit:
    """Give the table these columns, and no rows."""
    transaction = LanceTransaction(read_version=read, uuid=f"o{read}")
    transaction.overwrite.schema.extend(Field.FromString(one) for one in fields)
    return commit(transaction)


@pytest.mark.parametrize("protocol", [ROWS_COLUMNS_SINCE - 1, ROWS_COLUMNS_SINCE])
def test_rows_of_a_column_that_was_dropped_are_refused_though_its_id_is_given_again(
    protocol: int,
) -> None:
    world = World(rules=Rules(protocol))
    world.create(columns=2)
    both = world.ask("w1", write(), write(names=("c0",)))
    for transaction_id, fields in (("p1", (0,)), ("p2", (0, 1))):
        change = overwritten(world.state().version, *(column(f"c{i}", i) for i in fields))
        assert world.ask(transaction_id, change).status is Status.COMMITTED
    late = world.ask("w2", write())
    restored = replayed_from_parts(world.machine)
    assert restored.digest() == world.machine.digest() == world.replayed().digest()
    rows = restored.tables["t",].rows
    assert rows is not None
    is_known = protocol >= ROWS_COLUMNS_SINCE
    assert list(rows.stale()) == ([(both.sequence, 0)] if is_known else [])
    assert all(len(one) == 5 for one in rows.to_json()[1]) is not is_known, "states stay as bytes"

    first, second = (AppliedWrite(both.sequence, index) for index in range(2))
    last = AppliedWrite(late.sequence, 0)
    taken = world.ask("a1", applied(0, late.sequence, writes=(first, second, last)))
    if not is_known:
        assert taken.status is Status.COMMITTED
        return
    assert refused(taken) == (Code.ROWS_RANGE, "rows_stale")
    first = replace(first, refused=Code.WRONG_SCHEMA.value, problem="dropped")
    told = world.ask("a2", applied(0, late.sequence, writes=(first, second, last)))
    assert told.status is Status.COMMITTED


def test_a_column_is_dropped_with_a_part_of_it_or_under_another_name() -> None:
    def of(*fields: tuple[int, int, str]) -> dict[int, Field]:
        return {i: Field(id=i, parent_id=parent, name=name) for i, parent, name in fields}

    before = of((0, -1, "a"), (1, -1, "s"), (2, 1, "x"), (3, 2, "y"), (4, -1, "b"))
    assert dropped_columns(before, before) == set()
    assert dropped_columns(before, {i: before[i] for i in (0, 1, 2, 4)}) == {1}
    assert dropped_columns(before, before | of((4, -1, "c"), (5, -1, "d"))) == {4}
    assert dropped_columns(before, {}) == {0, 1, 4}


def test_only_rows_that_are_applied_are_said_to_have_expired(world: World) -> None:
    first, second = (world.ask(f"w{i}", write()).sequence for i in range(2))
    world.ask("a", applied(0, first))

    def say(number: int, *values: str, removals: tuple[str, ...] = ()) -> Outcome:
        upserts = tuple((ROWS_EXPIRED_THROUGH, value) for value in values)
        return world.ask(f"e{number}", AlterProperties(("t",), False, upserts, removals))

    for number, value in enumerate((str(second), "0", "-1", "x", "", "٣", "9" * 5_000)):
        wrong = say(number, value)
        assert refused(wrong) == (Code.INVALID_OPERATION, "rows_expired_wrong"), value
    assert say(20, str(first)).status is Status.COMMITTED
    assert refused(say(21, str(first)))[1] == "rows_expired_wrong", "it only goes on"
    assert refused(say(22, removals=(ROWS_EXPIRED_THROUGH,)))[1] == "rows_expired_wrong"
    made = world.create("u", properties=((ROWS_EXPIRED_THROUGH, "1000"),))
    assert refused(made)[1] == "rows_expired_wrong"


@pytest.mark.parametrize("protocol", [1, 2, 3])
def test_older_rules_know_no_rows(protocol: int) -> None:
    world = World(rules=Rules(protocol))
    world.create(columns=2)
    unread = Malformed("w", "a record of schema 00, which this program doesn't know", HASH)
    record = Transaction("w", (write(),), payload_hash=b"p" * 32, unread=unread)
    outcome = world.run(record)
    assert (outcome.status, outcome.code) == (Status.REJECTED, Code.MALFORMED_RECORD)
    assert outcome.payload_hash == HASH
    assert world.machine.tables["t",].rows is None


def test_the_rows_of_a_record_are_told_apart_by_looking_at_its_operations_once() -> None:
    looked = 0

    class Counting(tuple[Any, ...]):
        def __iter__(self) -> Any:
            nonlocal looked
            looked += 1
            return super().__iter__()

    writes = Counting(write("append") for _ in range(100))
    payloads = tuple(bytes([number]) for number in range(99))
    record = replace(Transaction("t", operations=tuple(writes)), payloads=payloads)
    object.__setattr__(record, "operations", writes)
    looked = 0
    found = dict(rows_of(record, range(100), "/nowhere"))
    assert found == {**dict(enumerate(payloads)), 99: None}
    assert looked == 1
