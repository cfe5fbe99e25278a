"""Is each accepted write of rows applied once, in order, whatever row writers do or die of?"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from commitlog import CommitLog
from commitlog.adapters import log_start
from commitlog.adapters.memory import MemoryLog
from commitlog.client.accepted.row_application import prepare_group
from commitlog.client.accepted.row_tail import Tail, Waiting
from commitlog.client.leader.row_tickets import RowsOutcome, RowsTicket
from commitlog.errors import (
    InvalidRequest,
    InvalidTransaction,
    NoSuchTable,
    NoSuchVersion,
    TransactionRejected,
    Unavailable,
)
from commitlog.model.limits import ROWS_SINCE
from commitlog.model.records import Code, Outcome, Status
from commitlog.spark.log_positions import outcomes_end
from commitlog.spark.recompute import audit_partition
from consumers.tools.rows import attempt as row_attempt
from consumers.tools.rows.writer import RowWriter, _may_pass
from consumers.tools.verify import VerifyOptions, verify
from tests.kills import Killed
from tests.properties.test_row_groups import Model, random_write
from tests.service import Service, applying, service

T = "ns$t"
SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.string())])
ALL, IF = "when_matched_update_all", "when_matched_update_all_filt"


@pytest.fixture(params=[False, True], ids=["addresses", "stable_row_ids"])
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    """A service with one table that has a key, and no row writer."""
    with service(tmp_path) as made:
        made.client.create_table(
            T, SCHEMA, primary_key="id", stable_row_ids=request.param, properties={"rows": "log"}
        )
        yield made


@contextmanager
def writing(running: Service, **options: Any) -> Iterator[RowWriter]:
    """Run a row writer with a client of its own."""
    with (
        CommitLog(lambda: MemoryLog(running.cluster)) as client,
        applying(client, **options) as writer,
    ):
        yield writer


def waiting(client: CommitLog) -> Waiting:
    """Return what waits for a row writer."""
    [body] = client.runtime().request(0, "rows_pending", table=["ns", "t"])
    return Waiting.of(body)


def apply_once(writer: RowWriter, client: CommitLog, seen: Waiting | None = None) -> Outcome | None:
    """Apply one group on this thread: of what waits, or of what was seen before."""
    seen = seen or waiting(client)
    tail = Tail(client.runtime().log, 0)
    try:
        return writer.apply(seen, tail.read(offset for _, offset, _ in seen.pending))
    finally:
        tail.close()


def write(client: CommitLog, mode: str, rows: list[Any], settings: dict[str, Any]) -> RowsTicket:
    """Write rows with the settings of a random write."""
    options: dict[str, Any] = {}
    if mode == "upsert":
        options = {
            "when_matched_update_all": settings["update_all"],
            "when_matched_update_all_filt": settings["update_if"] or None,
            "when_not_matched_insert_all": settings["insert_all"],
        }
    return client.write_rows(T, rows, mode=mode, **options)


def content(running: Service) -> list[tuple[str, ...]]:
    """Return the table's rows as plain pylance reads them."""
    # A row writer waits for commits, not for their files.
    running.client.describe(("ns", "t"), fresh=True, readable=True)
    found = lance.dataset(str(running.location(T))).to_table().to_pylist()
    return sorted(tuple(repr(row[name]) for name in SCHEMA.names) for row in found)


def in_order(model: Model) -> list[tuple[str, ...]]:
    return sorted(tuple(repr(row[name]) for name in SCHEMA.names) for row in model.rows)


@pytest.mark.parametrize("seed", [1, 2])
def test_writes_of_all_modes_come_to_what_they_come_to_one_by_one(
    running: Service, seed: int
) -> None:
    chance, model = random.Random(seed), Model([])
    counts, tickets = [], []
    with writing(running, age_seconds=0.01):
        for number in range(60):
            mode, rows, settings = random_write(chance, number)
            tickets.append(write(running.client, mode, rows, settings))
            counts.append(model.apply(mode, rows, **settings))
            if chance.random() < 0.15:
                tickets[-1].result(60)
        outcomes = [ticket.result(60) for ticket in tickets]
    assert content(running) == in_order(model), f"seed {seed}"
    assert [(o.inserted, o.updated, o.deleted) for o in outcomes] == counts, f"seed {seed}"
    versions = [outcome.version for outcome in outcomes]
    assert versions == sorted(versions)
    assert all(outcome.status is Status.COMMITTED for outcome in outcomes)
    for ticket, outcome in zip(tickets, outcomes, strict=True):
        again = running.client.outcome(ticket.transaction_id)
        assert (again.version, again.sequence) == (outcome.version, outcome.sequence)


def test_row_writers_that_race_die_and_wake_late_apply_each_write_once(running: Service) -> None:
    client = running.client
    writer = RowWriter(client)
    first = client.write_rows(T, [{"id": 1, "a": 1, "b": "x"}], mode="append")
    first.result(60, "accepted")
    seen = waiting(client)
    done = apply_once(writer, client, seen)
    assert done is not None
    assert done.version == 2
    # Another one that read the same, and was paused before it wrote its files.
    assert apply_once(writer, client, seen) is None
    client.write_rows(T, [{"id": 2, "a": 1, "b": "x"}], mode="append").result(60, "accepted")
    assert apply_once(writer, client, seen) is None, "nor with a part of what waits now"
    assert apply_once(writer, client) is not None
    assert len(content(running)) == 2


@pytest.mark.parametrize("step", ["before it submits", "after it submitted", "after it was told"])
def test_a_row_writer_that_is_killed_leaves_its_group_to_the_next(
    running: Service, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.client
    tickets = [client.write_rows(T, [{"id": 7, "a": n, "b": "x"}], mode="append") for n in range(3)]
    for ticket in tickets:
        ticket.result(60, "accepted")
    doomed = CommitLog(lambda: MemoryLog(running.cluster))
    runtime = doomed.runtime()
    submit: Callable[..., Any] = runtime.submit

    def dies(*given: Any, **more: Any) -> Any:
        if step == "before it submits":
            raise Killed
        ticket = submit(*given, **more)
        if step == "after it was told":
            ticket.result(60)
        raise Killed

    monkeypatch.setattr(runtime, "submit", dies)
    with pytest.raises(Killed):
        apply_once(RowWriter(doomed), doomed)
    with writing(running):
        outcomes = [ticket.result(60) for ticket in tickets]
    assert [outcome.inserted for outcome in outcomes] == [1, 1, 1]
    assert len(content(running)) == 3
    doomed.close()


def test_two_row_writers_and_other_commits_at_once(running: Service) -> None:
    client = running.client
    with writing(running, age_seconds=0.01), writing(running, age_seconds=0.01):
        tickets = []
        for number in range(40):
            row = {"id": number % 10, "a": number, "b": "log"}
            tickets.append(client.write_rows(T, [row], mode="upsert"))
            if number % 10 == 5:
                tickets[-1].result(60)
                client.delete(T, f"id = {number % 10}")
        outcomes = [ticket.result(60) for ticket in tickets]
    assert all(outcome.status is Status.COMMITTED for outcome in outcomes)
    ids = sorted(int(row[0]) for row in content(running))
    assert ids == sorted(set(ids)), "no key twice"
    assert sum(o.inserted + o.updated for o in outcomes) == 40


def test_a_write_whose_column_is_gone_is_refused_by_record_and_no_other(running: Service) -> None:
    client = running.client
    client.append(T, [{"id": 1, "a": 1, "b": "x"}], by_log=False)
    bad = client.write_rows(T, [{"id": 1, "a": 5}], mode="upsert")
    good = client.write_rows(T, [{"id": 2, "b": "y"}], mode="upsert")
    bad.result(60, "accepted")
    good.result(60, "accepted")
    client.open(T).drop_columns(["a"])
    with writing(running):
        refused, done = bad.result(60), good.result(60)
    assert (refused.status, refused.code) == (Status.REJECTED, Code.WRONG_SCHEMA)
    assert "'a' was dropped" in refused.message
    with pytest.raises(TransactionRejected):
        refused.raise_for_conflict()
    assert (done.status, done.inserted) == (Status.COMMITTED, 1)
    assert client.outcome(bad.transaction_id).code is Code.WRONG_SCHEMA
    assert client.outcome(bad.transaction_id, wait="accepted").status is Status.COMMITTED


def test_rows_that_can_never_be_applied_hold_up_no_others(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever Lance makes of them, as long as the store is there."""

    def prepare(info: Any, dataset: Any, writes: list[Any], *given: Any) -> Any:
        if any(13 in write.rows["id"].to_pylist() for write in writes):
            raise OSError("LanceError(Arrow): it has no words for this")
        return prepare_group(info, dataset, writes, *given)

    monkeypatch.setattr(row_attempt, "find_rows", lambda *_: None)
    monkeypatch.setattr(row_attempt, "prepare_group", prepare)
    tickets = [
        running.client.write_rows(T, [{"id": number, "a": 1, "b": "x"}], mode="upsert")
        for number in range(10, 17)
    ]
    with writing(running, age_seconds=0.01):
        outcomes = [ticket.result(100) for ticket in tickets]
    assert [outcome.code for outcome in outcomes if outcome.status is not Status.COMMITTED] == [
        Code.ROWS_REFUSED
    ]
    assert [row[0] for row in content(running)] == ["10", "11", "12", "14", "15", "16"]


def test_partial_upserts_of_a_table_with_blobs_are_no_rows_for_the_log(tmp_path: Path) -> None:
    blob = pa.field("data", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([("id", pa.int64()), blob, ("n", pa.int64())])
    with service(tmp_path) as made:
        client = made.client
        client.create_table(T, schema, primary_key="id", properties={"rows": "log"})
        client.append(T, pa.table({"id": [1], "data": [b"x"], "n": [1]}, schema=schema))
        merged = client.merge_insert(T, pa.table({"id": [1, 2], "n": [7, 8]}), "id")
        assert merged.version == 3, "no row writer runs"
        with pytest.raises(InvalidTransaction, match="has blob columns"):
            client.write_rows(T, [{"id": 1, "n": 9}], mode="upsert")
        client.write_rows(T, [{"id": 3, "n": 9}]).result(60, "accepted")
        client.write_rows(T, [{"id": 2}], mode="delete").result(60, "accepted")
        shown = client.scan(T, columns=["id", "n"], fresh=True).sort_by("id").to_pylist()
        assert shown == [{"id": 1, "n": 7}, {"id": 3, "n": 9}]
        with writing(made):
            client.write_rows(T, [{"id": 4, "n": 9}]).result(60).raise_for_conflict()
        found = client.open(T).scanner(blob_handling="all_binary").to_table().sort_by("id")
        assert found["data"].to_pylist() == [b"x", None, None]


def test_writes_to_a_table_that_is_dropped_are_refused(running: Service) -> None:
    client = running.client
    ticket = client.write_rows(T, [{"id": 1, "a": 1, "b": "x"}])
    ticket.result(60, "accepted")
    client.drop_table(T)
    with writing(running):
        assert ticket.result(60).code is Code.NO_SUCH_TABLE
    with pytest.raises(NoSuchTable):
        client.write_rows(T, [{"id": 1}])


def test_a_restarted_leader_knows_what_came_of_writes(running: Service) -> None:
    client = running.client
    with writing(running):
        ticket = client.write_rows(T, [{"id": 1, "a": 1, "b": "x"}])
        assert ticket.result(60).inserted == 1
        running.running.pop().stop()
        running.start().await_leading()
        again = client.outcome(ticket.transaction_id)
        assert isinstance(again.version, int)
        assert (again.version, getattr(again, "inserted", None)) == (2, 1)
        assert client.write_rows(T, [{"id": 1}], mode="delete").result(60).deleted == 1


def test_small_appends_and_upserts_of_such_tables_take_this_way(running: Service) -> None:
    client = running.client
    with writing(running):
        outcome = client.append(T, [{"id": n, "a": n, "b": "x"} for n in range(5)])
        assert outcome.version == 2
        assert [one.operation for one in outcome.results] == ["WriteRows"]
        merged = client.merge_insert(T, [{"id": 1, "a": 9}, {"id": 8, "a": 8}], "id")
        assert (merged.version, merged.status) == (3, Status.COMMITTED)
        # What no write of rows can say goes the other way.
        direct = client.merge_insert(
            T, [{"id": 1, "a": 0, "b": "-"}], "id", when_matched_delete=True
        )
        assert [one.operation for one in direct.results] == ["Update"]
    assert len(content(running)) == 5


@pytest.mark.parametrize(
    ("data", "options", "field"),
    [
        ([{"id": 1, "nothing": 2}], {}, "schema"),
        ([{"id": "x", "a": 1, "b": "x"}], {}, "id"),
        ([{"id": None, "a": 1, "b": "x"}], {"mode": "upsert"}, "id"),
        ([{"a": 1, "b": "x"}], {"mode": "upsert"}, "on"),
        ([{"id": 1}, {"id": 1}], {"mode": "upsert"}, "on"),
        ([{"id": 1}], {"mode": "merge"}, "mode"),
        ([{"id": 1}], {"mode": "upsert", "on": "nothing"}, "on"),
        ([{"id": 1}], {"mode": "upsert", "when_matched_delete": True}, "when_matched_delete"),
        ([{"id": 1}], {"mode": "append", "when_matched_update_all": True}, None),
        ([{"id": 1, "a": 1, "b": "x"}], {"on": "id"}, "on"),
        ([{"id": 1, "a": 1}], {"mode": "upsert", ALL: "yes"}, ALL),
        ([{"id": 1}], {"mode": "upsert", "on": 5}, "on"),
        ([{"id": 1}], {"mode": "upsert", "on": ["id", "id"]}, "on"),
        ([{"id": 1}], {"mode": "upsert", ALL: False, "when_not_matched_insert_all": False}, ALL),
        ([{"id": 1, "a": 2}], {"mode": "upsert", ALL: False, IF: "source.a > 1"}, IF),
        ([{"id": 1}], {"mode": "upsert", IF: 5}, IF),
        ([{"id": 1}], {"mode": "upsert", IF: "source.a > 1"}, IF),
        ([{"id": 1, "a": 2}], {"mode": "upsert", IF: "source.a >"}, IF),
        ([{"id": 1, "a": 2}], {"mode": "upsert", IF: "source.a > 1 LIMIT 1"}, IF),
        ([], {}, "data"),
    ],
)
def test_wrong_writes_are_refused_before_anything_is_appended(
    running: Service, data: Any, options: dict[str, Any], field: str | None
) -> None:
    before = running.client.runtime().request(0, "status")["sequence"]
    with pytest.raises(InvalidTransaction) as error:
        running.client.write_rows(T, data, **options)
    assert field is None or error.value.field == field, str(error.value)
    assert running.client.runtime().request(0, "status")["sequence"] == before


def test_a_fresh_read_equals_what_a_later_version_holds(running: Service) -> None:
    client, chance, model = running.client, random.Random(7), Model([])
    for round_number in range(3):
        tickets = []
        for number in range(12):
            mode, rows, settings = random_write(chance, 100 * round_number + number)
            tickets.append(write(client, mode, rows, settings))
            model.apply(mode, rows, **settings)
        for ticket in tickets:
            ticket.result(60, "accepted")
        fresh = client.open(T, fresh=True)
        shown = fresh.to_table().to_pylist()
        assert sorted(tuple(repr(r[n]) for n in SCHEMA.names) for r in shown) == in_order(model)
        assert content(running) != in_order(model), "nothing was applied meanwhile"
        some = client.scan(T, "id < 5", ["a"], fresh=True)
        wanted = [row for row in model.rows if row["id"] is not None and row["id"] < 5]
        assert (some.num_rows, some.schema.names) == (len(wanted), ["a"])
        while apply_once(RowWriter(client), client) is not None:
            pass
        assert content(running) == in_order(model)
        again = client.scan(T, fresh=True).to_pylist()
        assert sorted(tuple(repr(r[n]) for n in SCHEMA.names) for r in again) == in_order(model)


def test_a_position_makes_a_fresh_read_repeatable(running: Service) -> None:
    client, chance = running.client, random.Random(11)
    seen: list[tuple[int, list[Any]]] = []

    def in_words(rows: list[Any]) -> list[Any]:
        return sorted(repr(sorted(row.items())) for row in rows)

    for number in range(40):
        mode, rows, settings = random_write(chance, number)
        write(client, mode, rows, settings).result(60, "accepted")
        if chance.random() < 0.2:
            client.append(T, [{"id": 100 + number, "a": 0, "b": "by file"}], by_log=False)
        if chance.random() < 0.3:
            apply_once(RowWriter(client), client)
        if number == 25:
            client.add_columns(T, {"c": "a + 1"})
        if chance.random() < 0.5:
            view = client.open(T, fresh=True)
            seen.append((view.position, in_words(view.to_table().to_pylist())))
    assert len({position for position, _ in seen}) > 10
    for position, rows in seen:
        again = client.scan(T, fresh=True, position=position).to_pylist()
        assert in_words(again) == rows, position
    with pytest.raises(InvalidRequest, match="in the future"):
        client.open(T, fresh=True, position=10_000)
    with pytest.raises(InvalidRequest, match="only applies to fresh views"):
        client.open(T, position=seen[0][0])
    with pytest.raises(NoSuchVersion, match="no version at position 1"):
        client.open(T, fresh=True, position=1)


@pytest.mark.parametrize("position", [0, -1, True, 1.5])
def test_what_is_no_position_makes_no_fresh_view(running: Service, position: Any) -> None:
    with pytest.raises(InvalidRequest, match="is no position") as error:
        running.client.scan(T, fresh=True, position=position)
    assert (error.value.field, error.value.value) == ("position", position)


@pytest.mark.parametrize(
    ("asked", "field"),
    [(("nothing = 1",), "filter"), ((None, ["nothing"]), "columns"), ((None, "id"), "columns")],
)
def test_a_scan_that_cannot_be_says_why(running: Service, asked: Any, field: str) -> None:
    for fresh in (False, True):
        with pytest.raises(InvalidRequest) as error:
            running.client.scan(T, *asked, fresh=fresh)
        assert error.value.field == field
        assert "/home/" not in str(error.value)


def test_large_rows_that_are_sent_again_by_id_are_written_once(running: Service) -> None:
    client, count = running.client, 200_000
    large = pa.table({"id": range(count), "a": range(count), "b": ["x"] * count}, schema=SCHEMA)
    made = [client.write_rows(T, large, mode="upsert", transaction_id="once") for _ in range(2)]
    outcomes = [ticket.result(60, "accepted") for ticket in made]
    assert [outcome.status for outcome in outcomes] == [Status.COMMITTED] * 2
    assert len(list((running.location(T) / "_rows").iterdir())) == 1
    assert client.write_rows(T, large, transaction_id="once").result(60).code is Code.ID_REUSED
    apply_once(RowWriter(client), client)
    assert getattr(client.outcome("once"), "inserted", None) == count


@pytest.mark.parametrize("kind", ["BITMAP", "BTREE"])
@pytest.mark.parametrize(
    "second", [("delete", [{"id": 1}]), ("upsert", [{"id": 1, "b": "u"}])], ids=["delete", "upsert"]
)
def test_an_index_leads_to_rows_that_came_in_a_group_with_others(
    running: Service, kind: str, second: tuple[str, list[Any]]
) -> None:
    """Lance takes fragments of moved rows for indexed if no column of the index was set."""
    client = running.client
    client.append(T, [{"id": n, "a": n, "b": "x"} for n in range(4)], by_log=False)
    client.create_index(T, "a", kind)
    for mode, rows in (("append", [{"id": 10, "a": 10, "b": "y"}]), second):
        client.write_rows(T, rows, mode=mode).result(60, "accepted")
    fresh = client.scan(T, "a = 10", ["id"], fresh=True)
    apply_once(RowWriter(client), client)
    applied = client.scan(T, "a = 10", ["id"])
    assert fresh.to_pylist() == applied.to_pylist() == [{"id": 10}]


def test_a_fresh_view_can_only_be_read(running: Service) -> None:
    client = running.client
    client.write_rows(T, [{"id": 1, "a": 1, "b": "x"}]).result(60, "accepted")
    view = client.open(T, fresh=True)
    writes: list[tuple[str, Any]] = [("delete", "true"), ("merge_insert", "id"), ("insert", None)]
    for name, given in writes:
        with pytest.raises(InvalidRequest, match=f"fresh view is read-only, and {name}"):
            getattr(view, name)(given)
    with pytest.raises(InvalidRequest, match="fresh view"):
        view.optimize.compact_files()
    folder = Path(view.uri)
    assert view.count_rows() == 1
    del view
    gc.collect()
    assert not folder.exists()
    with pytest.raises(InvalidRequest, match="Pass only one"):
        client.open(T, 1, fresh=True)


def test_rows_and_commits_of_many_tables_are_one_record(running: Service) -> None:
    client = running.client
    client.create_table("ns$u", SCHEMA, primary_key="id")
    one = [{"id": 1, "a": 1, "b": "x"}]
    with writing(running):
        with client.transact() as t:
            t.write_rows(T, one)
            t.write_rows("ns$u", one, mode="upsert")
            t.append("ns$u", pa.table({"id": [2], "a": [2], "b": ["y"]}, schema=SCHEMA))
            t.write_rows(T, [{"id": 1}], mode="delete")
        assert t.outcome is not None
        assert isinstance(t.outcome, RowsOutcome)
        came = [(write.inserted, write.deleted) for write in t.outcome.writes]
        assert came == [(1, 0), (1, 0), (0, 1)]
        assert t.outcome.versions()[T] == 1, "a row that comes and goes in one group makes none"
        assert content(running) == []
        assert client.scan("ns$u").sort_by("id")["id"].to_pylist() == [1, 2]
        bad = client.transact()
        bad.write_rows(T, one)
        bad.write_rows("ns$u", one, mode="upsert")
        bad.write_rows("ns$u", [{"id": 1, "a": 1}], mode="upsert", on="a")
        with pytest.raises(TransactionRejected, match="by the key"):
            bad.__exit__(None, None, None)
        assert client.scan(T, fresh=True).num_rows == 0, "all of a record or nothing"


def test_who_knew_another_table_by_this_name_can_write_again(running: Service) -> None:
    other = CommitLog(lambda: MemoryLog(running.cluster))
    assert running.client.table(T).version == 1
    other.drop_table(T)
    other.create_table(T, SCHEMA, primary_key="id")
    row = [{"id": 1, "a": 1, "b": "x"}]
    late = running.client.write_rows(T, row).result(60, "accepted")
    assert late.code is Code.TABLE_REPLACED
    assert running.client.write_rows(T, row).result(60, "accepted").status is Status.COMMITTED
    other.close()


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError("LanceError(IO): no route to the store, /b/rust/lance-io/src/a.rs:1:1"), True),
        (ConnectionResetError("the store is away"), True),
        (Unavailable("no leader"), True),
        (OSError("Append with different schema: `c`, location: /b/rust/lance-core/s.rs:1"), False),
        (OSError("LanceError(Arrow): a wrong value, /b/rust/lance/src/a.rs:1:1"), False),
        (KeyError("a fault of ours"), False),
    ],
    ids=str,
)
def test_what_no_later_try_mends_is_told_from_what_passes(error: Exception, passes: bool) -> None:
    assert _may_pass(error) is passes


def test_verify_rebuilds_rows_from_the_log_and_names_the_one_that_differs(
    running: Service,
) -> None:
    client, chance = running.client, random.Random(7)
    with writing(running, age_seconds=0.01):
        for number in range(30):
            mode, rows, settings = random_write(chance, number)
            ticket = write(client, mode, rows, settings)
            if number % 5 == 0:
                ticket.result(60)
            if number == 12:
                client.update(T, {"b": "'by hand'"}, "id < 4")  # rows that the log hasn't
            if number == 20:
                client.compact(T)
        client.write_rows(T, [{"id": 900, "a": 1, "b": "x"}], mode="upsert").result(60)
        last = client.write_rows(T, [{"id": 901, "a": 1, "b": "x"}], mode="upsert").result(60)
        client.write_rows(T, [{"id": 902, "a": 1, "b": "x"}], mode="upsert").result(60)
    options = VerifyOptions(contents=True)
    whole = verify(running.log, 0, options)
    rows_now = client.open(T).count_rows()
    assert (whole.problems, whole.rows_rebuilt) == ([], rows_now)
    audited = audit_partition(running.log, 0, outcomes_end(running.log, 0), contents=True)
    assert (audited.differences, audited.rows) == ([], rows_now)

    # Somebody changes a value in a data file: as many rows, in a file of the same size.
    location, dataset = running.location(T), client.open(T)
    [row] = dataset.to_table(filter="id = 901", with_row_address=True).to_pylist()
    fragment = dataset.get_fragment(row["_rowaddr"] >> 32)
    assert fragment is not None
    [file] = fragment.metadata.files
    changed = fragment.to_table().to_pylist()
    for one in changed:
        one["a"] = 2 if one["id"] == 901 else one["a"]
    other = location.parent / "other"
    [made] = lance.fragment.write_fragments(pa.Table.from_pylist(changed, SCHEMA), str(other))
    written = other / "data" / made.files[0].path
    (location / "data" / file.path).write_bytes(written.read_bytes())
    [problem] = [p for p in verify(running.log, 0, options).problems if p.kind == "rows"]
    assert (problem.table, problem.version, problem.sequence) == (T, last.version, last.sequence)
    assert "'id': 901" in problem.message
    assert "has it otherwise" in problem.message
    audited = audit_partition(running.log, 0, outcomes_end(running.log, 0), contents=True)
    [difference] = audited.differences
    assert (difference.sequence, difference.problem) == (problem.sequence, problem.message)

    (location / "data" / file.path).unlink()
    told = [one.message for one in verify(running.log, 0, options).problems]
    assert any(f"files of {T}'s rows cannot be read" in one for one in told)
    audited = audit_partition(running.log, 0, outcomes_end(running.log, 0), contents=True)
    assert [one.problem in told for one in audited.differences] == [True]


@pytest.mark.parametrize("protocol", [1, ROWS_SINCE - 1])
def test_a_log_whose_rules_know_no_rows_takes_them_as_files_or_says_so(
    tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_start, "PROTOCOL_SUPPORTED", protocol)
    with service(tmp_path) as made:
        client = made.client
        client.create_table(T, SCHEMA, primary_key="id", properties={"rows": "log"})
        # The table's policy is only a wish: these go the old way, and are committed.
        assert client.append(T, [{"id": 1, "a": 1, "b": "x"}]).version == 2
        assert client.merge_insert(T, [{"id": 1, "a": 2, "b": "x"}], "id").version == 3
        ticket = client.write_rows(T, [{"id": 1, "a": 3, "b": "x"}], mode="upsert")
        refused = ticket.result(60)
        assert (refused.status, refused.code) == (Status.REJECTED, Code.MALFORMED_RECORD)
        with pytest.raises(TransactionRejected, match="commitlog rules --upgrade"):
            refused.raise_for_conflict()
        assert content(made) == [("1", "2", "'x'")]
        assert verify(made.log, 0, VerifyOptions(contents=True)).problems == []
