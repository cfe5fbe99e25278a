"""Operations on rows: what they carry, what they leave, when they are done again."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.dataset
import pytest
from pyroaring import BitMap

from commitlog import (
    CommitLog,
    InvalidRequest,
    InvalidTransaction,
    OutcomeUnknown,
    Status,
    TableVersionIs,
    Unavailable,
)
from commitlog.client.accepted.row_writes import made_write
from commitlog.client.rows.lance_request import new_transaction_id
from commitlog.client.rows.rows import whole
from commitlog.codecs.keys import key_hashes
from commitlog.model.operations import CreateTable, DropTable, LanceCommit
from commitlog.model.records import Code, Conflict, Outcome, Submitted, Transaction
from tests.steered_leader import SCHEMA, SteeredLeader, blank


@pytest.fixture(params=[False, True], ids=["plain", "stable"])
def table(client: CommitLog, request: pytest.FixtureRequest) -> str:
    client.create_table("a$t", SCHEMA, primary_key="id", stable_row_ids=request.param)
    client.append("a$t", {"id": [1, 2, 3, 4, 5], "v": list("abcde")})
    return "a$t"


def _rows(client: CommitLog, version: int | None = None) -> dict[int, str]:
    read = client.open("a$t", version).to_table()
    return dict(zip(read["id"].to_pylist(), read["v"].to_pylist(), strict=True))


def _last(leader: SteeredLeader) -> LanceCommit:
    operation = leader.committed[-1][1].operations[-1]
    assert isinstance(operation, LanceCommit)
    return operation


def _affected(operation: LanceCommit) -> dict[int, list[int]]:
    return {
        entry.fragment_id: list(BitMap.deserialize(entry.rows)) for entry in operation.affected_rows
    }


def _stable_ids(client: CommitLog) -> dict[int, int]:
    read = client.open("a$t").scanner(with_row_id=True).to_table()
    return dict(zip(read["id"].to_pylist(), read["_rowid"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    "data",
    [
        {"id": [7], "v": ["x"]},
        [{"id": 7, "v": "x"}],
        pa.table({"v": ["x"], "id": pa.array([7], pa.int8())}),
        pa.record_batch({"id": [7], "v": ["x"]}),
        pa.table({"id": [7], "v": ["x"]}).to_reader(),
    ],
    ids=["columns", "rows", "table", "batch", "reader"],
)
def test_rows_are_appended_from_anything(client: CommitLog, data: Any) -> None:
    client.create_table("a$t", SCHEMA)
    assert client.append("a$t", data).status is Status.COMMITTED
    assert _rows(client) == {7: "x"}


def _batches(path: Path) -> Any:
    return [pa.record_batch({"id": [7], "v": ["x"]}), pa.record_batch({"id": [8], "v": ["y"]})]


def _dataset(path: Path) -> Any:
    return pyarrow.dataset.dataset(pa.Table.from_batches(_batches(path)))


def _lance(path: Path) -> Any:
    return lance.write_dataset(pa.Table.from_batches(_batches(path)), path)


SOURCES: dict[str, Callable[[Path], Any]] = {
    "batches": _batches,
    "dataset": _dataset,
    "scanner": lambda path: _dataset(path).scanner(),
    "lance": _lance,
    "lance scanner": lambda path: _lance(path).scanner(),
}


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_rows_are_what_lance_writes_as_a_dataset(
    client: CommitLog, tmp_path: Path, source: Callable[[Path], Any]
) -> None:
    client.create_table("a$t", SCHEMA, primary_key="id")
    client.append("a$t", source(tmp_path / "append"))
    assert _rows(client) == {7: "x", 8: "y"}
    merged = client.merge_insert("a$t", source(tmp_path / "merge"), "id")
    assert merged.status is Status.COMMITTED
    assert _rows(client) == {7: "x", 8: "y"}
    client.create_table("a$u", SCHEMA)
    with client.transact() as together:
        together.append("a$u", source(tmp_path / "together"))
    assert client.open("a$u").count_rows() == 2
    write, _ = made_write(client, ("a", "t"), source(tmp_path / "w"), "upsert", None, {}, None)
    assert write.rows == 2


def test_blobs_of_a_lance_dataset_are_appended(client: CommitLog, tmp_path: Path) -> None:
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("id", pa.int64()), blob])
    given = pa.table({"id": [1, 2], "b": pa.array([b"x" * 9000, None])}, schema=schema)
    client.create_table("a$t", schema)
    client.append("a$t", lance.write_dataset(given, tmp_path / "given"))
    read = client.open("a$t").scanner(blob_handling="all_binary").to_table()
    assert read["b"].to_pylist() == [b"x" * 9000, None]


def test_a_column_that_is_left_out_is_null(client: CommitLog) -> None:
    client.create_table("a$t", SCHEMA)
    client.append("a$t", [{"id": 7}])
    assert _rows(client) == {7: None}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"nope": [1]}, "no column 'nope'"),
        ({"id": ["text"]}, "column 'id' of a\\$t is int64"),
        (pa.table({"id": ["text"]}), "column 'id' of a\\$t is int64"),
        (pa.table({"id": ["text"]}).to_reader(), "column 'id' of a\\$t is int64"),
        ({"id": [1], "v": ["a", "b"]}, "differ in length"),
        ([pa.record_batch({"id": [1]}), pa.record_batch({"v": ["a"]})], "the batches differ in"),
        (42, "int cannot be read as rows"),
        ([1, 2], "a list of int cannot be read as rows"),
    ],
)
def test_data_of_another_schema_is_refused_before_anything_is_appended(
    client: CommitLog, leader: SteeredLeader, data: Any, message: str
) -> None:
    client.create_table("a$t", SCHEMA)
    before = len(leader.committed)
    with pytest.raises(InvalidTransaction, match=message):
        client.append("a$t", data)
    assert len(leader.committed) == before


def test_an_append_names_the_keys_that_its_table_declares(
    client: CommitLog, leader: SteeredLeader, table: str
) -> None:
    operation = _last(leader)
    assert operation.inserted_keys is not None
    expected = sorted(key_hashes([pa.array([1, 2, 3, 4, 5])]))
    assert operation.inserted_keys.hashes == b"".join(expected)
    assert operation.inserted_keys.field_ids == (0,)
    assert operation.summary.rows_added == 5


def test_a_delete_carries_the_rows_that_it_takes(
    client: CommitLog, leader: SteeredLeader, table: str
) -> None:
    outcome = client.delete(table, "id in (2, 4)")
    assert outcome.version == 3
    operation = _last(leader)
    assert (operation.operation, operation.read_version) == ("Delete", 2)
    assert _affected(operation) == {0: [1, 3]}
    assert operation.summary.rows_removed == 2
    assert sorted(_rows(client)) == [1, 3, 5]

    client.delete(table, "true")
    assert _affected(_last(leader)) == {0: [0, 2, 4]}, "a whole fragment's rows too"
    assert _rows(client) == {}


def test_a_delete_of_nothing_commits_nothing_but_itself(client: CommitLog, table: str) -> None:
    assert client.delete(table, "id = 99").status is Status.COMMITTED
    assert len(_rows(client)) == 5


def test_an_update_moves_rows_and_keeps_their_ids(
    client: CommitLog, leader: SteeredLeader, table: str
) -> None:
    before = _stable_ids(client)
    client.update(table, {"v": "upper(v)"}, "id > 3")
    operation = _last(leader)
    assert _affected(operation) == {0: [3, 4]}
    assert operation.inserted_keys is not None
    assert operation.inserted_keys.hashes == b"", "it inserts no key"
    assert _rows(client) == {1: "a", 2: "b", 3: "c", 4: "D", 5: "E"}
    if client.table(table).stable_row_ids:
        assert _stable_ids(client) == before


def test_an_update_takes_values_and_expressions(client: CommitLog, table: str) -> None:
    client.update(table, {"v": pa.scalar("it's")}, "id = 1")
    client.update(table, {"id": "id + 10"}, "id = 2")
    client.update(table, {"v": None}, "id = 3")
    client.update(table, {"id": 40}, "id = 4")
    assert _rows(client) == {1: "it's", 12: "b", 3: None, 40: "d", 5: "e"}


def test_an_update_of_keys_names_the_new_ones(
    client: CommitLog, leader: SteeredLeader, table: str
) -> None:
    client.update(table, {"id": 100}, "id = 1")
    keys = _last(leader).inserted_keys
    assert keys is not None
    assert keys.hashes == b"".join(key_hashes([pa.array([100])]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"nope": 1}, None),
        ({}, None),
        ({"id": [1]}, None),
        ({"v": "nope(v)"}, None),
        ({"v": 1}, "?"),
    ],
)
def test_a_wrong_update_is_refused(
    client: CommitLog, table: str, values: dict[str, Any], where: str | None
) -> None:
    with pytest.raises(InvalidTransaction):
        client.update(table, values, where)


def test_a_merge_updates_and_inserts(client: CommitLog, leader: SteeredLeader, table: str) -> None:
    before = _stable_ids(client)
    client.merge_insert(table, {"id": [2, 9], "v": ["m", "n"]}, "id")
    operation = _last(leader)
    assert (operation.operation, _affected(operation)) == ("Update", {0: [1]})
    keys = operation.inserted_keys
    assert keys is not None
    assert set(key_hashes([pa.array([9])])) <= {keys.hashes[i : i + 16] for i in (0, 16)}
    assert _rows(client) == {1: "a", 2: "m", 3: "c", 4: "d", 5: "e", 9: "n"}
    if client.table(table).stable_row_ids:
        after = _stable_ids(client)
        assert {key: after[key] for key in before} == before


def test_a_second_merge_counts_rows_that_were_deleted_before(
    client: CommitLog, leader: SteeredLeader, table: str
) -> None:
    client.delete(table, "id = 1")
    client.merge_insert(table, {"id": [2, 3, 4, 5], "v": list("wxyz")}, ["id"])
    assert _affected(_last(leader)) == {0: [1, 2, 3, 4]}
    assert _rows(client) == {2: "w", 3: "x", 4: "y", 5: "z"}


@pytest.mark.slow
def test_merges_by_the_other_options(client: CommitLog, leader: SteeredLeader, table: str) -> None:
    rows = {"id": [1, 8], "v": ["m", "n"]}
    client.merge_insert(table, rows, "id", when_matched_update_all=False)
    assert _rows(client)[1] == "a"
    assert _rows(client)[8] == "n"
    client.merge_insert(
        table, {"id": [2, 7], "v": ["m", "n"]}, "id", when_not_matched_insert_all=False
    )
    keys = _last(leader).inserted_keys
    assert keys is not None
    assert keys.hashes == b"", "it inserted nothing"
    client.merge_insert(
        table, {"id": [3], "v": ["q"]}, "id", when_matched_update_all_filt="source.id > 5"
    )
    assert _rows(client) == {1: "a", 2: "m", 3: "c", 4: "d", 5: "e", 8: "n"}
    client.merge_insert(
        table,
        {"id": [3], "v": ["q"]},
        "id",
        when_not_matched_by_source_delete=True,
        when_not_matched_by_source_delete_filt="id < 8",
    )
    assert _rows(client) == {3: "q", 8: "n"}


def test_a_key_that_comes_twice_is_refused(client: CommitLog, table: str) -> None:
    with pytest.raises(InvalidTransaction, match="duplicate keys.*'id': 7"):
        client.merge_insert(table, {"id": [7, 8, 7], "v": list("abc")}, "id")
    with pytest.raises(InvalidTransaction, match="no column"):
        client.merge_insert(table, {"id": [7]}, "nope")


def test_a_merge_that_only_deletes_takes_a_key_twice(client: CommitLog, table: str) -> None:
    rows = {"id": [1, 2, 2], "v": ["x", "y", "z"]}
    client.merge_insert(
        table,
        rows,
        "id",
        when_matched_update_all=False,
        when_not_matched_insert_all=False,
        when_not_matched_by_source_delete=True,
    )
    assert _rows(client) == {1: "a", 2: "b"}


def test_a_wrong_condition_of_a_merge_is_an_invalid_transaction(
    client: CommitLog, table: str
) -> None:
    with pytest.raises(InvalidTransaction, match="nobody") as caught:
        client.merge_insert(
            table,
            {"id": [1], "v": ["x"]},
            "id",
            when_not_matched_by_source_delete=True,
            when_not_matched_by_source_delete_filt="nobody = 1",
        )
    assert ".rs:" not in str(caught.value)


def test_what_ran_out_of_time_before_its_record_was_not_done(client: CommitLog, table: str) -> None:
    with pytest.raises(Unavailable):
        client.merge_insert(table, {"id": [9], "v": ["x"]}, "id", timeout=1e-6)
    known = new_transaction_id()
    with pytest.raises(OutcomeUnknown):  # an earlier call may have appended it
        client.append(table, {"id": [9], "v": ["x"]}, timeout=1e-6, transaction_id=known)
    assert set(_rows(client)) == {1, 2, 3, 4, 5}


def _lose_once(status: Status, code: Code = Code.CONFLICT, times: int = 1) -> Any:
    lost: list[Submitted] = []

    def decide(submitted: Submitted) -> Outcome | None:
        record = submitted.record
        if not isinstance(record, Transaction) or isinstance(record.operations[0], CreateTable):
            return None
        if len(lost) >= times:
            return None
        lost.append(submitted)
        outcome = blank(status, code)
        conflict = Conflict(("a", "t"), "winner", 2, "Delete", "delete_delete_rows_overlap")
        return replace(outcome, conflict=conflict)

    return decide, lost


@pytest.mark.parametrize("kind", ["append", "delete", "update", "merge"])
def test_a_retryable_conflict_is_executed_again(
    client: CommitLog, leader: SteeredLeader, kind: str
) -> None:
    client.create_table("a$t", SCHEMA)
    client.append("a$t", {"id": [1], "v": ["a"]})
    location = Path(client.table("a$t").location)
    leader.decide, lost = _lose_once(Status.RETRYABLE, times=2)
    calls: dict[str, Any] = {
        "append": lambda: client.append("a$t", {"id": [2]}),
        "delete": lambda: client.delete("a$t", "id = 1"),
        "update": lambda: client.update("a$t", {"v": "'z'"}),
        "merge": lambda: client.merge_insert("a$t", {"id": [1, 2], "v": ["q", "r"]}, "id"),
    }
    outcome = calls[kind]()
    assert (outcome.status, outcome.attempt) == (Status.COMMITTED, 2)
    assert len(lost) == 2
    transaction = leader.committed[-1][1]
    assert {s.record.transaction_id for s in lost} == {transaction.transaction_id}
    properties = dict(transaction.properties)
    assert "delete_delete_rows_overlap" in properties["commitlog.attempt.0"]
    assert "commitlog.attempt.1" in properties
    files = {path.name for path in (location / "data").iterdir()}
    dataset = client.open("a$t", 2)
    expected = {f.path for x in dataset.get_fragments() for f in x.metadata.files}
    expected |= {f.path for x in client.open("a$t").get_fragments() for f in x.metadata.files}
    assert files == expected, "nothing is left of the attempts that failed"


def test_an_incompatible_conflict_is_never_executed_again(
    client: CommitLog, leader: SteeredLeader, table: str
) -> None:
    leader.decide, lost = _lose_once(Status.INCOMPATIBLE)
    assert client.delete(table, "id = 1").status is Status.INCOMPATIBLE
    assert len(lost) == 1
    assert len(_rows(client)) == 5


def test_attempts_are_bounded(client: CommitLog, leader: SteeredLeader, table: str) -> None:
    leader.decide, lost = _lose_once(Status.RETRYABLE, times=100)
    outcome = client.delete(table, "id = 1", attempts_max=3)
    assert (outcome.status, outcome.attempt) == (Status.RETRYABLE, 2)
    assert len(lost) == 3


def test_many_tables_commit_as_one_record(
    client: CommitLog, leader: SteeredLeader, table: str
) -> None:
    client.create_table("a$u", SCHEMA)
    before = len(leader.committed)
    with client.transact(properties={"why": "test"}) as t:
        t.append("a$u", {"id": [1]})
        t.delete(table, "id = 1")
        t.update("a$u", {"v": "'x'"}, "id = 99")
    assert t.outcome is not None
    assert t.outcome.versions() == {"a$u": 3, "a$t": 3}
    assert len(leader.committed) == before + 1
    assert dict(leader.committed[-1][1].properties)["why"] == "test"


def test_a_block_that_fails_submits_nothing(
    client: CommitLog, leader: SteeredLeader, table: str
) -> None:
    before = len(leader.committed)
    files = len(list((Path(client.table(table).location) / "data").iterdir()))

    def fail() -> None:
        with client.transact() as t:
            t.append(table, {"id": [10]})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(leader.committed) == before
    assert len(list((Path(client.table(table).location) / "data").iterdir())) == files


def test_a_refused_block_raises(client: CommitLog, leader: SteeredLeader, table: str) -> None:
    from commitlog import RetryableConflict

    leader.decide, _ = _lose_once(Status.RETRYABLE)
    with pytest.raises(RetryableConflict), client.transact() as t:
        t.append(table, {"id": [10]})
    assert t.outcome is not None


def test_a_block_is_used_once(client: CommitLog, leader: SteeredLeader, table: str) -> None:
    """Refused under the id of the first, the second one would remove what that committed."""
    with client.transact() as t:
        t.append(table, {"id": [10], "v": ["j"]})
    before = len(leader.committed)
    with pytest.raises(InvalidRequest, match="has ended"), t:
        t.append(table, {"id": [11]})
    files = len(list(Path(client.table(table).location, "data").iterdir()))
    late: list[Callable[[], Any]] = [
        lambda: t.append(table, {"id": [11]}),
        lambda: t.delete(table, "id = 10"),
        lambda: t.update(table, {"v": "'x'"}),
        lambda: t.merge_insert(table, {"id": [12], "v": ["l"]}),
        lambda: t.write_rows(table, {"id": [13]}),
        lambda: t.submit(None, DropTable(("a", "t"))),
        lambda: t.expect(TableVersionIs(("a", "t"), 1)),
    ]
    for call in late:
        with pytest.raises(InvalidRequest, match="has ended"):
            call()
    assert len(leader.committed) == before
    assert len(list(Path(client.table(table).location, "data").iterdir())) == files
    assert _rows(client)[10] == "j"


def test_parts_of_maps_have_the_names_that_lance_compares(client: CommitLog) -> None:
    named = pa.map_(pa.field("k", pa.string(), nullable=False), pa.field("v", pa.int32()))
    schema = pa.schema([("id", pa.int64()), ("m", pa.list_(named)), ("j", pa.json_())])
    client.create_table("a$maps", schema)
    data = {"id": [1, 2], "m": [[{"a": 1, "b": None}], None], "j": ["{}", None]}
    client.append("a$maps", data)
    client.append("a$maps", pa.table({"id": [3], "m": pa.array([[[("c", 3)]]], schema.types[1])}))
    client.update("a$maps", {"m": "m"}, "id = 1")
    client.merge_insert("a$maps", {"id": [2], "m": [[{"d": 4}]]}, "id")
    found = client.open("a$maps").to_table().sort_by("id")
    assert found["m"].to_pylist() == [[[("a", 1), ("b", None)]], [[("d", 4)]], [[("c", 3)]]]
    assert found["j"].to_pylist() == ["{}", None, None]


@pytest.mark.slow
def test_rows_are_found_again_where_their_keys_are(client: CommitLog, table: str) -> None:
    expected = dict(zip(range(1, 6), "abcde", strict=True))
    for number in range(2, 9):
        outcome = client.merge_insert(table, {"id": [number], "v": ["new"]}, "id")
        assert outcome.status is Status.COMMITTED
        client.delete(table, f"id = {number - 1}")
        client.update(table, {"v": "'last'"}, where=f"id = {number}")
        expected = {**expected, number: "last"}
        del expected[number - 1]
        assert _rows(client) == expected
    assert client.opened.keys._tables


def test_what_was_made_of_a_schema_serves_the_next_version(client: CommitLog, table: str) -> None:
    first = client.table(table)
    made = first.schema, first.lance_schema
    client.append(table, {"id": [9], "v": ["x"]})
    second = client.table(table)
    assert second.version > first.version
    assert (second.schema, second.lance_schema) == made
    assert second.schema is made[0]


def test_a_key_is_found_by_its_name_in_another_case_as_by_lance(
    client: CommitLog, table: str
) -> None:
    client.merge_insert(table, {"id": [1, 6], "v": ["A", "f"]}, "ID").raise_for_conflict()
    with client.transact() as block:
        block.merge_insert(table, {"id": [2], "v": ["B"]}, ["Id"])
    assert _rows(client) == {1: "A", 2: "B", 3: "c", 4: "d", 5: "e", 6: "f"}
    operation, _ = made_write(client, ("a", "t"), {"id": [9], "v": ["z"]}, "upsert", "ID", {}, None)
    assert operation.on == ("id",)
    with pytest.raises(InvalidTransaction, match="names no key"):
        client.merge_insert(table, {"id": [1], "v": ["A"]}, ["id", "ID"])
    two = pa.schema([("id", pa.int64()), ("ID", pa.int64())])
    client.create_table("a$two", two)
    client.merge_insert("a$two", {"id": [1], "ID": [2]}, "ID")
    with pytest.raises(InvalidTransaction, match="no column 'Id'"):
        client.merge_insert("a$two", {"id": [1], "ID": [2]}, "Id")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, KeyError])
def test_what_a_callers_stream_raises_reaches_the_caller(
    client: CommitLog, table: str, error: type[BaseException]
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [9], "v": ["x"]}, schema=SCHEMA)
        raise error

    with pytest.raises(error):
        client.append(table, pa.RecordBatchReader.from_batches(SCHEMA, batches()))
    assert 9 not in _rows(client)


@pytest.mark.slow
@pytest.mark.parametrize("rest", ["; x", " LIMIT 1", " source.v = 'x'", ") OR (true"])
def test_a_merges_condition_with_something_behind_it_is_refused(
    client: CommitLog, table: str, rest: str
) -> None:
    rows = {"id": [1, 2], "v": ["A", "B"]}
    with pytest.raises(InvalidTransaction):
        client.merge_insert(table, rows, when_matched_update_all_filt=f"source.id = 2{rest}")
    with pytest.raises(InvalidTransaction):
        client.merge_insert(
            table,
            rows,
            when_not_matched_by_source_delete=True,
            when_not_matched_by_source_delete_filt=f"id = 3{rest}",
        )
    assert _rows(client) == dict(zip(range(1, 6), "abcde", strict=True))
    for wrong in (f"id = 2{rest}", f"v <> ')' AND id = 2{rest}"):
        with pytest.raises(InvalidTransaction):
            client.delete(table, wrong)
    comment = "source.id = 2 -- of two;)"
    client.merge_insert(table, rows, when_matched_update_all_filt=comment).raise_for_conflict()
    assert _rows(client)[2] == "B"
    with pytest.raises(InvalidTransaction, match="closes a bracket") as refused:
        client.scan(table, "id = 2) OR (true")
    assert refused.value.field == "filter", "as the argument is called"
    with pytest.raises(InvalidRequest, match="can't be read"):
        client.scan(table, "v = $$a$$")  # a text that Lance panics over


@pytest.mark.parametrize("rest", [" LIMIT 1", " v = 'x'", ") OR (true"])
def test_a_handles_sql_with_something_behind_it_is_refused(
    client: CommitLog, table: str, rest: str
) -> None:
    """Lance's own methods read the first expression, and change what that means."""
    before, opened = _rows(client), client.open(table)
    rows = pa.table({"id": [1, 2], "v": ["A", "B"]}, schema=SCHEMA)
    merge = opened.merge_insert("id")
    writes: list[Callable[[], object]] = [
        lambda: opened.delete(f"id = 3{rest}"),
        lambda: opened.update({"v": "'x'"}, f"id = 3{rest}"),
        lambda: opened.update({"v": f"'x'{rest}"}, "id = 3"),
        lambda: merge.when_matched_update_all(f"source.id = 2{rest}").execute(rows),
        lambda: merge.when_not_matched_by_source_delete(f"id = 3{rest}").execute(rows),
    ]
    for write in writes:
        with pytest.raises(InvalidTransaction):
            write()
    assert _rows(client) == before
    opened.delete("id = 3 -- of three;")
    opened.update({"v": "upper(v) -- of two;"}, "id = 2;")
    assert _rows(client) == {1: "a", 2: "B", 4: "d", 5: "e"}
    deleted: Any = opened.read_transaction(opened.version - 1)
    assert deleted.operation.predicate == "id = 3 -- of three;"


def test_sql_full_of_comments_that_do_not_end_takes_no_longer_than_its_length() -> None:
    """A predicate of 3 MB held one of the server's processes for rows until its deadline."""
    began = time.process_time()
    assert whole("/* " * 10_000).startswith("(/*")
    assert time.process_time() - began < 1
