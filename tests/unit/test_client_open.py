"""Opened tables: versions by number, and native writes through the log."""

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance.optimize import Compaction
from lance_namespace import InvalidInputError, UnsupportedOperationError

from commitlog import (
    CommitLog,
    InvalidRequest,
    InvalidTransaction,
    NoSuchTable,
    NoSuchVersion,
    OutcomeUnknown,
    TableAlreadyExists,
    TransactionRejected,
)
from commitlog.adapters.lance_namespace import GivenNamespace, LogNamespace, relative_path
from commitlog.adapters.memory import MemoryLog
from commitlog.client.commits import native
from commitlog.client.commits.caller import Caller, acting_for
from commitlog.client.commits.native import LogVersions
from commitlog.client.leader.runtime import Runtime
from commitlog.core.lance.staged_keys import keys_in
from commitlog.model.operations import CreateTableVersion
from commitlog.model.records import Code, Outcome, Status, Submitted, Transaction
from consumers.servers.namespace.native import refused_commit
from tests.steered_leader import SCHEMA, SteeredLeader, blank, once_before_sending


@pytest.fixture
def client(client: CommitLog) -> CommitLog:
    client.create_table("a$t", SCHEMA)
    client.append("a$t", {"id": list(range(10)), "v": list("abcdefghij")})
    return client


def _staged(leader: SteeredLeader) -> list[CreateTableVersion]:
    operations = [o for _, t in leader.committed for o in t.operations]
    return [o for o in operations if isinstance(o, CreateTableVersion)]


def _files(client: CommitLog) -> set[Path]:
    return {path for path in Path(client.table("a$t").location).rglob("*") if path.is_file()}


def _rows(**columns: list[Any]) -> pa.Table:
    return pa.table(columns)


WRITES: dict[str, Callable[[Any], Any]] = {
    "Delete": lambda d: d.delete("id = 1"),
    "Update": lambda d: d.update({"v": "'z'"}, where="id = 2"),
    "Append": lambda d: d.insert(_rows(id=[50], v=["q"])),
    "CreateIndex": lambda d: d.create_scalar_index("id", "BTREE"),
    "UpdateConfig": lambda d: d.update_config({"a": "b"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITES)
def test_native_writes_go_through_the_log(
    client: CommitLog, leader: SteeredLeader, name: str
) -> None:
    dataset = client.open("a$t")
    WRITES[name](dataset)
    (operation,) = _staged(leader)
    assert (operation.operation, operation.version) == (name, 3)
    assert operation.sha256
    assert operation.message
    assert operation.manifest_path.startswith("_versions/")
    assert dict(operation.metadata) == {"commitlog.base_version": "2"}
    assert client.table("a$t").version == dataset.version == 3


def test_a_native_commit_asks_nothing_once_it_is_readable(
    client: CommitLog, leader: SteeredLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    ask = Runtime._watch

    def noting(self: Runtime, connection: Any, ticket: Any, readable: bool) -> None:
        asked.append(readable)
        ask(self, connection, ticket, readable)

    monkeypatch.setattr(Runtime, "_watch", noting)
    dataset = client.open("a$t")
    leader.requests.clear()
    dataset.insert(_rows(id=[50], v=["q"]))
    dataset.delete("id = 50")
    assert (leader.requests, asked) == ([], [])
    assert (dataset.version, dataset.count_rows()) == (4, 10)


def test_native_writes_after_a_change_of_columns_carry_the_keys_of_the_new_ones(
    log: MemoryLog, leader: SteeredLeader
) -> None:
    with CommitLog(lambda: log) as client:
        client.create_table("a$k", SCHEMA, primary_key="id")
        dataset = client.open("a$k")
        lance.LanceDataset.drop_columns(dataset, ["v"])
        dataset.insert(_rows(id=[1]))
        dataset.insert(_rows(id=[2]))
    keys = [keys_in(operation.metadata) for operation in _staged(leader)]
    assert [one is not None and len(one.hashes) > 0 for one in keys] == [False, True, True]


def test_native_writes_name_the_principal(log: MemoryLog, leader: SteeredLeader) -> None:
    with CommitLog(lambda: log, principal="ann") as client:
        client.create_table("a$p", SCHEMA)
        dataset = client.open("a$p")
        dataset.insert(_rows(id=[1], v=["q"]))
        with acting_for(Caller("bob")):
            client.open("a$p").insert(_rows(id=[2], v=["q"]))
        native = [t for _, t in leader.committed if isinstance(t.operations[0], CreateTableVersion)]
        assert [one.principal for one in native] == ["ann", "bob"]


def test_a_native_merge_goes_through_the_log(client: CommitLog, leader: SteeredLeader) -> None:
    dataset = client.open("a$t")
    merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(_rows(id=[3, 70], v=["m", "m"]))
    assert [o.operation for o in _staged(leader)] == ["Update"]
    assert client.open("a$t").count_rows() == 11


def test_lance_rebases_by_itself_over_a_winner(client: CommitLog, leader: SteeredLeader) -> None:
    first, second = client.open("a$t"), client.open("a$t")
    first.delete("id = 1")
    second.delete("id = 2")
    attempts = {t.attempt for _, t in leader.committed if t.operations[0] == _staged(leader)[-1]}
    assert [o.version for o in _staged(leader)] == [3, 4]
    assert attempts <= {0, 1}
    assert sorted(client.open("a$t").to_table()["id"].to_pylist()) == [0, *range(3, 10)]


def test_a_race_that_lance_cannot_see_before_is_answered_as_one(
    client: CommitLog, leader: SteeredLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = client.open("a$t")
    other = client.open("a$t")
    once_before_sending(monkeypatch, lambda: client.delete("a$t", "id = 5"))
    dataset.delete("id = 6")
    assert dataset.version == 4
    (committed,) = _staged(leader)
    assert committed.version == 4
    assert leader.committed[-1][1].attempt == 1
    assert sorted(client.open("a$t").to_table()["id"].to_pylist()) == [0, 1, 2, 3, 4, 7, 8, 9]
    other.checkout_latest()  # type: ignore[no-untyped-call]
    assert other.version == 4


@pytest.mark.slow
def test_the_log_s_reason_for_a_refusal_is_kept(
    client: CommitLog, leader: SteeredLeader, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(submitted: Submitted) -> Outcome | None:
        record = submitted.record
        if isinstance(record, Transaction) and isinstance(record.operations[0], CreateTableVersion):
            return blank(Status.REJECTED, Code.BUILD_REFUSED)
        return None

    leader.decide = refuse
    dataset = client.open("a$t")
    merge = dataset.merge_insert("id").when_matched_update_all()
    writes: list[Callable[[Any], Any]] = [
        *WRITES.values(),
        lambda _: merge.execute({"id": [1], "v": ["z"]}),
    ]
    for write in writes:
        with pytest.raises(TransactionRejected) as refused:
            write(dataset)
        assert refused.value.outcome.code is Code.BUILD_REFUSED
    assert "BUILD_REFUSED" in caplog.text
    assert client.open("a$t").count_rows() == 10


def test_versions_are_opened_by_number(client: CommitLog) -> None:
    client.delete("a$t", "id > 4")
    assert client.open("a$t").count_rows() == 5
    assert client.open("a$t", 2).count_rows() == 10
    assert client.open("a$t", 1).count_rows() == 0
    for version in (0, 4, -1):
        with pytest.raises(NoSuchVersion):
            client.open("a$t", version)
    opened: Any = client.open("a$t")
    for wanted in (0, 4, -1, (None, 4), "nope"):
        with pytest.raises(NoSuchVersion, match=r"a\$t.* (has no version|tag nope)"):
            opened.checkout_version(wanted)
    with pytest.raises(NoSuchVersion, match="tag nope does not exist. Its tags: none"):
        opened.tags.delete("nope")
    with pytest.raises(InvalidTransaction, match=r"a\$t has no index 'nope'. Its indices: none"):
        opened.drop_index("nope")
    read = [transaction.read_version for transaction in opened.get_transactions(9)]
    assert read == [2, 1, 0]


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an aggregate": (lambda d: d.delete("max(id) > 1"), "AggregateFunction"),
    "no column": (lambda d: d.update({"w": "1"}), "'w' does not exist"),
    "an index of no column": (lambda d: d.create_scalar_index("w", "BTREE"), ": w not found"),
    "an index of no type": (lambda d: d.create_scalar_index("id", "BTRE"), ': Only "BTREE"'),
    "no field": (lambda d: d.update_field_metadata({"w": {}}), "Field 'w' not found"),
    "no key": (lambda d: d.merge_insert("w").when_matched_delete(), "'w' does not exist"),
    "keys twice": (
        lambda d: d.merge_insert("id").when_matched_update_all().execute(_rows(id=[1, 1])),
        "Ambiguous merge inserts",
    ),
    "a type": (lambda d: d.insert(_rows(id=["x"])), "should have type int64"),
    "a column": (lambda d: lance.write_dataset(_rows(w=[1]), d, mode="append"), "unexpected=.w"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_native_write_of_wrong_arguments_is_refused_in_the_log_s_words(
    client: CommitLog, name: str
) -> None:
    write, said = WRONG[name]
    handle = client.open("a$t")
    with pytest.raises(InvalidTransaction, match=rf"a\$t.*{said}") as refused:
        write(handle)
    assert str(refused.value).endswith(". The columns are id, v.")
    assert ".rs" not in str(refused.value)
    assert "{" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("an aggregate", UnsupportedOperationError), ("no column", InvalidInputError)],
)
def test_what_lance_refuses_of_a_handle_s_write_keeps_its_status_over_http(
    client: CommitLog, name: str, kind: type[Exception]
) -> None:
    handle = client.open("a$t")
    with pytest.raises(InvalidTransaction) as refused:
        WRONG[name][0](handle)
    assert isinstance(refused_commit(handle, refused.value), kind)


READ: dict[str, Callable[[Any, Any], Any]] = {
    "insert": lambda d, rows: d.insert(rows, schema=SCHEMA),
    "write_dataset": lambda d, rows: lance.write_dataset(rows, d, SCHEMA, mode="append"),
    "merge_insert": lambda d, rows: (
        d.merge_insert("id").when_not_matched_insert_all().execute(rows, schema=SCHEMA)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("raised", [KeyError("mine"), KeyboardInterrupt()])
@pytest.mark.parametrize("as_reader", [True, False])
@pytest.mark.parametrize("name", READ)
def test_what_a_reader_raises_in_a_native_write_is_the_caller_s_own(
    client: CommitLog, name: str, as_reader: bool, raised: BaseException
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [70], "v": ["q"]}, schema=SCHEMA)
        raise raised

    rows = pa.RecordBatchReader.from_batches(SCHEMA, batches()) if as_reader else batches()
    handle = client.open("a$t")
    with pytest.raises(type(raised)) as caught:
        READ[name](handle, rows)
    assert caught.value is raised
    assert client.open("a$t").count_rows() == 10


def _refuses_what_is_given_it(handle: lance.LanceDataset) -> None:
    rows = _rows(id=[60], v=["q"])
    append = lance.LanceOperation.Append(lance.fragment.write_fragments(rows, handle))
    transaction = lance.Transaction(read_version=handle.version, operation=append)
    writes: list[Callable[[], Any]] = [
        lambda: lance.write_dataset(rows, handle, mode="append"),
        lambda: lance.LanceDataset.commit(handle, append, read_version=handle.version),
        lambda: lance.LanceDataset.commit_batch(handle, [transaction]),
        lambda: Compaction.commit(handle, []),
        lambda: Compaction.execute(handle, {}),
    ]
    for write in writes:
        with pytest.raises(InvalidRequest, match="read-only, and .* writes"):
            write()


COMMITS: dict[str, Callable[[Any, Any], Any]] = {
    "commit": lambda d, a: lance.LanceDataset.commit(d, a, read_version=d.version),
    "commit_batch": lambda d, a: lance.LanceDataset.commit_batch(
        d, [lance.Transaction(read_version=d.version, operation=a)]
    )["dataset"],
    "write_dataset": lambda d, a: lance.write_dataset(_rows(id=[50], v=["q"]), d, mode="append"),
}


@pytest.mark.parametrize("name", COMMITS)
def test_what_lance_s_functions_return_for_a_handle_is_looked_after_too(
    client: CommitLog, leader: SteeredLeader, name: str
) -> None:
    handle = client.open("a$t")
    rows = _rows(id=[50], v=["q"])
    append = lance.LanceOperation.Append(lance.fragment.write_fragments(rows, handle))
    made = COMMITS[name](handle, append)
    assert (made.version, made.count_rows(), client.table("a$t").version) == (3, 11, 3)
    with pytest.raises(InvalidRequest, match="pickled is read-only"):
        pickle.loads(pickle.dumps(made)).delete("id = 1")
    made.drop_columns(["v"])  # by the log's own record, not by Lance
    assert [type(t.operations[0]).__name__ for _, t in leader.committed][-1] == "LanceCommit"
    leader.decide = lambda submitted: blank(Status.REJECTED, Code.BUILD_REFUSED)
    append = lance.LanceOperation.Append(lance.fragment.write_fragments(rows, handle))
    with pytest.raises(TransactionRejected):
        COMMITS[name](handle, append)


def test_an_opened_table_travels_for_reading_only(client: CommitLog) -> None:
    sent = pickle.loads(pickle.dumps(client.open("a$t")))
    assert sent.count_rows() == 10
    for handle in (sent, sent.checkout_version(1), pickle.loads(pickle.dumps(sent))):
        for write in WRITES.values():
            with pytest.raises(InvalidRequest, match="pickled is read-only"):
                write(handle)
        with pytest.raises(InvalidRequest, match="optimize writes"):
            _ = handle.optimize
        _refuses_what_is_given_it(handle)
    # A worker writes files for it, and whoever has a connection submits them.
    fragments = lance.fragment.write_fragments(_rows(id=[50], v=["q"]), sent)
    client.submit("a$t", lance.LanceOperation.Append(fragments)).result().raise_for_conflict()
    assert client.open("a$t").count_rows() == 11


def test_a_version_that_a_handle_checks_out_is_looked_after_by_the_log_too(
    client: CommitLog, leader: SteeredLeader
) -> None:
    client.append("a$t", {"id": [10], "v": ["k"]})
    first = client.open("a$t").checkout_version(2)
    assert (first.version, first.count_rows()) == (2, 10)
    first.drop_columns(["v"])
    assert [type(t.operations[0]).__name__ for _, t in leader.committed][-1] == "LanceCommit"
    assert (first.version, first.schema.names) == (4, ["id"])
    leader.decide = lambda submitted: blank(Status.REJECTED, Code.BUILD_REFUSED)
    with pytest.raises(TransactionRejected):
        copy.copy(client.open("a$t")).delete("id = 1")


REFUSABLE: dict[str, Callable[[Any], Any]] = {
    "initialize_mem_wal": lambda d: d.initialize_mem_wal(),
    "enable_auto_cleanup": lambda d: d.optimize.enable_auto_cleanup(
        {"interval": 5, "older_than_seconds": 60}
    ),
    "disable_auto_cleanup": lambda d: d.optimize.disable_auto_cleanup(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSABLE)
def test_each_write_of_a_handle_says_why_it_was_refused(
    client: CommitLog, leader: SteeredLeader, name: str
) -> None:
    handle = client.open("a$t")
    leader.decide = lambda submitted: blank(Status.REJECTED, Code.BUILD_REFUSED)
    with pytest.raises(TransactionRejected):
        REFUSABLE[name](handle)


def test_a_handle_of_a_dropped_table_says_so_when_asked_for_a_version(client: CommitLog) -> None:
    handle = client.open("a$t")
    handle.tags.create("first", 2)
    client.drop_table("a$t")
    asks: list[Callable[[], Any]] = [
        lambda: handle.latest_version,
        lambda: handle.tags.create("late", 1),
        lambda: handle.tags.update("first", 1),
    ]
    for ask in asks:
        with pytest.raises(NoSuchTable):
            ask()


def test_a_handle_commits_no_detached_version(client: CommitLog) -> None:
    handle = client.open("a$t")
    there = _files(client)
    append = lance.LanceOperation.Append([])
    with pytest.raises(InvalidRequest, match="detached from all others"):
        lance.LanceDataset.commit(handle, append, read_version=2, detached=True)
    assert (client.table("a$t").version, _files(client)) == (2, there)


def test_a_handle_opens_no_writer_of_rows_that_no_version_has(client: CommitLog) -> None:
    handle: Any = client.open("a$t")
    handle.initialize_mem_wal()
    there = _files(client)
    with pytest.raises(InvalidRequest, match=r"no version in the log has.*log\.write_rows"):
        handle.mem_wal_writer(str(uuid4()))
    assert _files(client) == there


def test_a_handle_changes_no_other_table_that_has_its_name_by_now(client: CommitLog) -> None:
    handle: Any = client.open("a$t")
    client.drop_table("a$t")
    client.create_table("a$t", SCHEMA)
    changes: list[Callable[[], Any]] = [
        lambda: handle.add_columns({"w": "id + 1"}),
        lambda: handle.alter_columns({"path": "v", "name": "w"}),
        lambda: handle.drop_columns(["v"]),
        lambda: handle.cleanup_old_versions(retain_versions=1),
        lambda: handle.optimize.compact_files(),
    ]
    for change in changes:
        with pytest.raises(NoSuchVersion, match="created again since it was opened"):
            change()
    assert client.table("a$t").version == 1


def test_an_opened_table_can_be_cloned_to_places_outside_the_log(
    client: CommitLog, tmp_path: Path
) -> None:
    client.append("a$t", {"id": [10], "v": ["k"]})
    opened = client.open("a$t")
    for clone in (opened.shallow_clone, opened.deep_clone):
        made = clone(tmp_path / clone.__name__, 2)
        assert (made.count_rows(), type(made)) == (10, lance.LanceDataset)
        made.delete("id < 5")
        assert lance.dataset(tmp_path / clone.__name__).count_rows() == 5
    with pytest.raises(InvalidRequest, match="makes no branch 'dev' in the log"):
        opened.create_branch("dev")
    assert client.open("a$t").count_rows() == 11


def test_nothing_staged_is_ever_named() -> None:
    namespace = GivenNamespace("/tables/t.lance", 3)
    (listed,) = namespace.list_table_versions({"id": ["t"]})["versions"]
    assert listed["version"] == 3
    assert listed["manifest_path"].endswith(".manifest")
    from lance_namespace import TableVersionNotFoundError

    with pytest.raises(TableVersionNotFoundError):
        namespace.describe_table_version({"version": 4})


@pytest.mark.parametrize(
    "path",
    [
        "tables/t.lance/_versions/18446744073709551612.manifest",
        "tables/t.lance/etc/passwd",
        "tables/t.lance/_versions/../../x/18446744073709551612.manifest-1",
        "tables/other.lance/_versions/18446744073709551612.manifest-1",
        "tables/t.lance/_versions/x/18446744073709551612.manifest-1",
    ],
)
def test_a_path_that_is_no_staged_manifest_is_refused(path: str) -> None:
    with pytest.raises(InvalidTransaction, match="not a staged manifest"):
        relative_path("/tables/t.lance", path)


def test_staged_paths_become_relative() -> None:
    name = "_versions/18446744073709551612.manifest-1"
    assert relative_path("/tables/t.lance", f"tables/t.lance/{name}") == name
    assert relative_path("file:///tables/t.lance", f"tables/t.lance/{name}") == name
    assert relative_path("/tables/t.lance", f"tables/t.lance/tree/dev/{name}") == f"tree/dev/{name}"


def test_a_version_that_is_not_a_number_is_refused_by_name(client: CommitLog) -> None:
    with pytest.raises(InvalidRequest, match="version cannot be 'v1'.*for a tag") as refused:
        client.open("a$t", "v1")  # type: ignore[arg-type]
    assert refused.value.field == "version"


def test_an_index_that_lance_refuses_names_the_column(client: CommitLog) -> None:
    for column, kind in (("idd", "BTREE"), ("id", "BTREEE")):
        with pytest.raises(InvalidTransaction, match=f"no {kind} index .* '{column}'") as refused:
            client.create_index("a$t", column, kind)
        assert "The columns are id, v." in str(refused.value)


@pytest.mark.parametrize("rest", ["; x", " LIMIT 1", " + ", ") + (1"])
def test_a_new_column_s_expression_with_something_behind_it_is_refused(
    client: CommitLog, rest: str
) -> None:
    for add in (client.open("a$t").add_columns, partial(client.add_columns, "a$t")):
        with pytest.raises(InvalidTransaction):
            add({"w": f"id{rest}"})
    assert client.table("a$t").version == 2


@lance.batch_udf()
def _other_v(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"v": pa.array([1] * batch.num_rows)})


def _reader(name: str, count: int) -> pa.RecordBatchReader:
    values = pa.record_batch({name: pa.array(range(count))})
    return pa.RecordBatchReader.from_batches(values.schema, [values])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: _other_v, "Type conflicts between v"),
        (lambda: _reader("v", 10), "Type conflicts between v"),
        (lambda: _reader("w", 9), "before producing values for all rows"),
        (lambda: _reader("w", 11), "more values than expected"),
        (lambda: {"w": "nope"}, "'nope' not found"),
        (lambda: {"w": "max(id)"}, r"logical expression AggregateFunction\. The columns"),
    ],
)
def test_a_new_column_that_lance_refuses_is_an_invalid_transaction(
    client: CommitLog, make: Callable[[], Any], says: str
) -> None:
    for add in (client.open("a$t").add_columns, partial(client.add_columns, "a$t")):
        with pytest.raises(InvalidTransaction, match=says) as refused:
            add(make())
        assert ".rs:" not in str(refused.value)
        assert "The columns are id, v." in str(refused.value)
    assert client.table("a$t").version == 2


def test_what_a_new_column_s_reader_raises_reaches_its_caller(client: CommitLog) -> None:
    mine = KeyError("mine")

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"w": [1]})
        raise mine

    for add in (client.open("a$t").add_columns, partial(client.add_columns, "a$t")):
        schema = pa.schema([("w", pa.int64())])
        with pytest.raises(KeyError) as raised:
            add(pa.RecordBatchReader.from_batches(schema, batches()))
        assert raised.value is mine


def test_a_client_shows_its_log(client: CommitLog, log: MemoryLog) -> None:
    assert repr(client) == f"CommitLog({log!r})"
    client.close()
    assert repr(client) == "CommitLog(closed)"


def test_an_id_that_was_never_submitted_is_not_said_to_be_on_its_way(client: CommitLog) -> None:
    with pytest.raises(OutcomeUnknown, match="nothing has been decided under this id"):
        client.outcome("00000000-0000-0000-0000-000000000000", timeout=0.2)


def test_a_table_that_exists_is_named_with_one_advice(client: CommitLog) -> None:
    with pytest.raises(TableAlreadyExists) as refused:
        client.create_table("a$t", SCHEMA)
    assert str(refused.value).lower().count("open it") <= 1


def test_a_tag_that_lance_would_not_find_again_is_refused(client: CommitLog) -> None:
    dataset = client.open("a$t")
    with pytest.raises(InvalidRequest, match="not a valid tag name"):
        dataset.tags.create("\u00e9", 2)
    dataset.tags.create("first", 2)
    assert set(dataset.tags.list()) == {"first"}


def test_a_dataset_that_is_open_for_years_keeps_nothing_of_its_commits(
    client: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[LogVersions] = []

    def namespace(store: LogVersions, version: int) -> LogNamespace:
        made.append(store)
        return LogNamespace(store, version)

    monkeypatch.setattr(native, "LogNamespace", namespace)
    dataset = client.open("a$t")
    for number in range(3):
        dataset.delete(f"id = {number}")
    assert client.open("a$t").count_rows() == 7
    assert made[0]._attempts == {}


def test_a_scan_tells_a_missing_file_from_a_mistake_in_what_is_asked(client: CommitLog) -> None:
    # The last two have something behind an expression, which Lance ignores.
    filters = ("nope = 1", "id / 0 = 1", "id > 5; x", "id > 5 LIMIT 1")
    for wrong in filters:
        with pytest.raises(InvalidRequest, match="can't be read"):
            client.scan("a$t", wrong)
    with pytest.raises(InvalidRequest, match="can't be read"):
        client.scan("a$t", columns=["nope"])
    asked = r"^filter='idd > 1' can't be read: .* Did you mean 'id'\? Use the columns id, v\.$"
    with pytest.raises(InvalidRequest, match=asked):
        client.scan("a$t", "idd > 1")
    assert client.scan("a$t", "id > 5 -- few;").num_rows == 4
    [file] = Path(client.table("a$t").location, "data").glob("*.lance")
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"a file of a\$t can't be read") as told:
        client.scan("a$t", "id >= 0")
    assert file.name in str(told.value)
    assert ".rs" not in str(told.value)
