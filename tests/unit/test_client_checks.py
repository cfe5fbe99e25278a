"""What is surely wrong is refused before anything is appended."""

import copy
import errno
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance.fragment import FragmentMetadata, write_fragments

from commitlog import (
    CommitLog,
    InvalidRequest,
    InvalidTransaction,
    MissingDataFile,
    NoSuchTable,
    NoSuchVersion,
    RecordTooLarge,
    TableAbsent,
    TableAlreadyExists,
    TableVersionIs,
    WrongLog,
)
from commitlog.adapters.memory import MemoryLog
from commitlog.client.commits import append_records, catalogue
from commitlog.codecs.lanes import NATIVE, lane
from commitlog.core.log.attribution import attributed
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage
from commitlog.model.operations import DropTable, LanceCommit
from commitlog.model.records import Status, Transaction, found_standing
from tests.lance_messages import to_transaction_bytes
from tests.steered_leader import SCHEMA, SteeredLeader

L = lance.LanceOperation


@pytest.fixture
def client(client: CommitLog) -> CommitLog:
    client.create_table("a$t", SCHEMA)
    client.append("a$t", {"id": [1, 2], "v": ["a", "b"]})
    return client


def _end(log: MemoryLog) -> int:
    return log.read_transactions(0).end_offset()


def _fragment(client: CommitLog, schema: pa.Schema = SCHEMA) -> FragmentMetadata:
    data = pa.table({f.name: pa.nulls(1, f.type) for f in schema}, schema=schema)
    place = Path(client.table("a$t").location)
    aside = place.with_name(f"aside-{uuid4()}")
    fragment = write_fragments(data, str(aside), mode="create")[0]
    name = fragment.files[0].path
    (aside / "data" / name).rename(place / "data" / name)
    return fragment


def _image(client: CommitLog) -> FragmentMetadata:
    fragment = client.open("a$t").get_fragments()[0].delete_rows([0])
    assert fragment is not None
    return fragment


def _missing(client: CommitLog) -> Any:
    fragment = _fragment(client)
    (Path(client.table("a$t").location) / "data" / fragment.files[0].path).unlink()
    return L.Append([fragment])


def _cut_off(client: CommitLog) -> Any:
    fragment = _fragment(client)
    path = Path(client.table("a$t").location) / "data" / fragment.files[0].path
    path.write_bytes(path.read_bytes()[:-1])
    return L.Append([fragment])


def _elsewhere(client: CommitLog) -> Any:
    fragment = _fragment(client)
    path = Path(client.table("a$t").location) / "data" / fragment.files[0].path
    path.rename(path.parent.parent / "elsewhere")
    fragment.files[0]._path = "../elsewhere"
    return L.Append([fragment])


def _wrong_schema(client: CommitLog) -> Any:
    wide = pa.schema([pa.field(f"c{i}", pa.int64()) for i in range(3)])
    return L.Append([_fragment(client, wide)])


def _negative(client: CommitLog) -> Any:
    return L.Delete([], [-1], "true")


def _unknown_fragment(client: CommitLog) -> Any:
    return L.Delete([], [7], "true")


def _plain_dict(client: CommitLog) -> Any:
    return L.UpdateConfig(config_updates={"a": "b"})  # type: ignore[arg-type]


def _twice(client: CommitLog) -> Any:
    return L.Delete([_image(client)], [0], "true")


def _not_an_operation(client: CommitLog) -> Any:
    return "append"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (_missing, MissingDataFile, "isn't in .*/data"),
        (_cut_off, MissingDataFile, "bytes instead of"),
        (_elsewhere, InvalidTransaction, "leads out of the data files"),
        (_wrong_schema, InvalidTransaction, r"field ids \[2\]"),
        (_negative, InvalidTransaction, "ids and versions are at least 0"),
        (_plain_dict, InvalidTransaction, "UpdateConfig holds .*'dict' object"),
        (_unknown_fragment, InvalidTransaction, "no fragment 7 at version 2"),
        (_twice, InvalidTransaction, "fragment 0 is named twice"),
        (_not_an_operation, InvalidTransaction, "is not an operation"),
    ],
)
def test_what_is_surely_wrong_is_refused_before_anything_is_appended(
    client: CommitLog,
    log: MemoryLog,
    make: Callable[[CommitLog], Any],
    kind: type[Exception],
    message: str,
) -> None:
    operation = make(client)
    before = _end(log)
    with pytest.raises(kind, match=message):
        client.submit("a$t", operation)
    assert _end(log) == before
    assert not client.runtime().connection(0).outstanding()


def test_files_that_only_the_leader_may_look_at_are_left_to_it(
    client: CommitLog, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation, before, stat = L.Append([_fragment(client)]), _end(log), os.stat

    def denied(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith(".lance") and "/data/" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", denied)
    client.submit("a$t", operation)
    assert _end(log) == before + 1


def test_read_versions_from_the_future_and_below_zero_are_refused(
    client: CommitLog, log: MemoryLog
) -> None:
    before = _end(log)
    with pytest.raises(InvalidTransaction, match="in the future: the head is 2"):
        client.submit("a$t", L.Append([_fragment(client)]), read_version=3)
    with pytest.raises(InvalidTransaction, match="is negative"):
        client.submit("a$t", L.Append([_fragment(client)]), read_version=-1)
    with pytest.raises(NoSuchVersion, match="no version 9; its head is 2"):
        client.open("a$t", 9)
    assert _end(log) == before


def test_bytes_that_are_no_transaction_are_refused(client: CommitLog) -> None:
    with pytest.raises(InvalidTransaction, match="not a Lance transaction"):
        client.submit("a$t", b"\xff\xff\xff")


def test_an_oversized_record_is_refused(client: CommitLog, log: MemoryLog) -> None:
    before = _end(log)
    with pytest.raises(RecordTooLarge, match="Split"):
        client.submit("a$t", L.Delete([], [], "x" * (17 << 20)))
    assert _end(log) == before
    assert not client.runtime().connection(0).outstanding()


@pytest.mark.parametrize("table", ["", "a$", "a$..", ["a", "b/c"], "a$.", {"id": [1]}, {"a", "t"}])
def test_a_bad_name_is_refused(client: CommitLog, table: Any) -> None:
    with pytest.raises(InvalidTransaction):
        client.table(table)


def test_an_unknown_table_is_refused_naming_near_ones(client: CommitLog, log: MemoryLog) -> None:
    before = _end(log)
    for call in (
        lambda: client.append("a$tt", {"id": [1]}),
        lambda: client.submit("a$tt", L.Append([])),
        lambda: client.open("a$tt"),
        lambda: client.drop_table("a$tt"),
    ):
        with pytest.raises(NoSuchTable, match=r"Did you mean a\$t\?"):
            call()
    assert client.drop_table("a$tt", missing_ok=True) is None
    assert _end(log) == before


def test_names_that_the_leader_has_compared_are_not_asked_for(
    client: CommitLog, leader: SteeredLeader
) -> None:
    with pytest.raises(NoSuchTable, match=r"the log has no table zzz\. Create it first"):
        client.open("zzz")
    assert "tables" not in leader.requests


def test_tables_are_made_once(client: CommitLog) -> None:
    with pytest.raises(TableAlreadyExists, match="choose another name"):
        client.create_table("a$t", SCHEMA)
    assert client.create_table("a$t", SCHEMA, exist_ok=True).version == 2
    client.create_table("b", SCHEMA, policy="latest", properties={"x": "y"})
    assert [(info.name, info.policy) for info in client.tables()] == [
        ("a$t", "every"),
        ("b", "latest"),
    ]
    info = client.table("b")
    assert info.schema.equals(SCHEMA)
    assert info.incarnation in info.location
    assert dict(info.properties) == {"x": "y"}
    dropped = client.drop_table("b")
    assert dropped is not None
    with pytest.raises(NoSuchTable):
        client.table("b")


@pytest.mark.parametrize(
    ("schema", "key", "said"),
    [
        (pa.schema([("id", pa.string())]), None, "column 'id' .*is int64"),
        (pa.schema([("id", pa.int64()), ("z", pa.int8())]), None, "has no column 'z'"),
        (SCHEMA, "id", r"its primary key is \(\), not \('id',\)"),
    ],
)
def test_a_standing_table_that_cannot_serve_is_not_accepted(
    client: CommitLog, schema: pa.Schema, key: str | None, said: str
) -> None:
    with pytest.raises(TableAlreadyExists, match=f"table a\\$t already exists.*{said}"):
        client.create_table("a$t", schema, primary_key=key, exist_ok=True)


def test_a_standing_table_may_have_got_more_columns(client: CommitLog) -> None:
    client.add_columns("a$t", pa.schema([("more", pa.int64())]))
    assert client.create_table("a$t", SCHEMA, exist_ok=True).version == 3
    client.create_table("b", SCHEMA, primary_key="id")
    assert client.create_table("b", SCHEMA, exist_ok=True).version == 1


def test_a_standing_table_may_have_its_key_in_another_order_or_in_its_schema(
    client: CommitLog,
) -> None:
    names = ["a", "b"]
    plain = pa.schema([(name, pa.int64()) for name in names])
    client.create_table("ordered", plain, primary_key=names)
    key = {"lance-schema:unenforced-primary-key": "true"}
    keyed = pa.schema([pa.field(one, pa.int64(), nullable=False, metadata=key) for one in names])
    client.create_table("lances", keyed)
    for table, schema in (("ordered", plain), ("lances", keyed)):
        found = client.create_table(table, schema, primary_key=["b", "a"], exist_ok=True)
        assert found.version == 1


def test_a_standing_table_may_be_dropped_before_it_is_looked_at(
    client: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(*asked: Any) -> bool:
        return found_standing(*asked) and client.drop_table("a$t") is not None

    monkeypatch.setattr(catalogue, "found_standing", found)
    assert client.create_table("a$t", SCHEMA, exist_ok=True).status == "committed"


@pytest.mark.parametrize(
    "arguments",
    [
        {"policy": "sometimes"},
        {"primary_key": "nope"},
        {"primary_key": ["id", "id"]},
        {"schema": pa.schema([])},
        {"schema": "id int"},
    ],
)
def test_a_table_that_cannot_be_is_not_made(client: CommitLog, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidTransaction):
        client.create_table("c", **{"schema": SCHEMA, **arguments})


def test_registering_needs_a_dataset(client: CommitLog, tmp_path: Path) -> None:
    with pytest.raises(InvalidTransaction, match="no Lance dataset"):
        client.register_table("c", str(tmp_path / "nothing"))


def test_an_operation_must_be_about_the_table_that_is_named(client: CommitLog) -> None:
    with pytest.raises(InvalidTransaction, match=r"is for b"):
        client.submit("a$t", DropTable(("b",)))
    with pytest.raises(InvalidTransaction, match="no table"):
        client.submit(None, L.Restore(1))


def test_one_record_stays_in_one_partition(tmp_path: Path) -> None:
    log = MemoryLog()
    log.create(partitions=2, domains={"x": 1}, tables_root=str(tmp_path))
    with CommitLog(lambda: log) as client:
        t = client.transact()
        t.submit(None, DropTable(("a", "t")))
        t.submit(None, DropTable(("x", "t")))
        with pytest.raises(InvalidTransaction, match=r"a\$t .* partition 0 and x\$t .* 1:"):
            t.__exit__(None, None, None)


def test_a_log_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongLog):
        CommitLog(MemoryLog).runtime()


def test_a_closed_client_lets_go_of_its_log(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(log, "close", lambda: closed.append(True))
    with CommitLog(lambda: log) as client:
        client.runtime()
        assert closed == []
    assert closed == [True]


@pytest.mark.parametrize("timeout", [None, "5", float("nan")])
def test_a_timeout_is_a_number_of_seconds(client: CommitLog, timeout: Any) -> None:
    ticket = client.submit("a$t", L.Append([_fragment(client)]))
    calls: list[Callable[[], Any]] = [
        lambda: ticket.result(timeout),
        lambda: client.append("a$t", {"id": [3], "v": ["c"]}, timeout=timeout),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest, match="timeout=.* is not a number of seconds"):
            call()
    assert ticket.result(60).version == 3


def test_an_expectation_names_its_table_as_everything_else_does(client: CommitLog) -> None:
    named: Any = "a$t"
    for expects in ([TableVersionIs(named, 2)], [TableAbsent(named)]):
        [expected] = client.transaction((), expects=expects).expects
        assert expected.table == ("a", "t")
    wrong: Any = "a$"
    with pytest.raises(InvalidTransaction, match="cannot name a table"):
        client.transaction((), expects=[TableAbsent(wrong)])


def test_lance_s_own_bytes_are_kept_verbatim(client: CommitLog, leader: SteeredLeader) -> None:
    given = "77777777-7777-4777-8777-777777777777"
    encoded = to_transaction_bytes(
        L.Append([_fragment(client)]), read_version=1, uuid=given, properties={"k": "v"}
    )
    ticket = client.submit("a$t", encoded.message, expects=[TableVersionIs(("a", "t"), 2)])
    assert ticket.transaction_id == given
    assert ticket.result(120).version == 3
    transaction = leader.committed[-1][1]
    operation = transaction.operations[0]
    assert isinstance(operation, LanceCommit)
    assert (operation.message, operation.read_version) == (encoded.message, 1)
    assert transaction.expects == (TableVersionIs(("a", "t"), 2),)
    assert operation.summary.data_files


def test_the_head_is_the_default_read_version(client: CommitLog, leader: SteeredLeader) -> None:
    client.submit("a$t", L.Restore(1)).result(120)
    operation = leader.committed[-1][1].operations[0]
    assert isinstance(operation, LanceCommit)
    assert operation.read_version == 2
    leader.requests.clear()
    client.submit("a$t", L.Append([_fragment(client)])).result(120)
    assert leader.requests == ["table"], "only for its location, which this test asked for"


def test_a_transaction_of_another_incarnation_is_not_sent_blindly(
    client: CommitLog, leader: SteeredLeader
) -> None:
    operation = L.Append([_fragment(client)])
    client.submit("a$t", operation).result(120)
    commit = leader.committed[-1][1].operations[0]
    assert isinstance(commit, LanceCommit)
    assert commit.incarnation == client.table("a$t").incarnation
    assert replace(commit, incarnation="") != commit


@pytest.mark.parametrize("name", [None, 5, b"me", "a\nb", "\0", "\x1b[2J", "\ud800", "x" * 5000])
def test_a_principal_that_a_terminal_or_the_log_cannot_carry_is_refused(
    log: MemoryLog, name: object
) -> None:
    with pytest.raises(InvalidTransaction, match="principal"):
        CommitLog(lambda: log, principal=name)  # type: ignore[arg-type]


@pytest.mark.parametrize("table", [None, 5, b"a$t", ("a", None), [1]])
def test_what_is_no_name_of_a_table_is_named(client: CommitLog, table: Any) -> None:
    for ask in (client.table, client.open, lambda table: client.append(table, {"id": [1]})):
        with pytest.raises(InvalidTransaction, match="is not a valid name"):
            ask(table)


@pytest.mark.parametrize("principal", ["", "jo"])
def test_an_append_is_the_same_transaction_whichever_lane_encodes_it(
    log: MemoryLog, client: CommitLog, monkeypatch: pytest.MonkeyPatch, principal: str
) -> None:
    with CommitLog(lambda: log, principal=principal) as writer:
        append = L.Append([_fragment(client), _fragment(client)])
        versions = [None, 0, 1, 2]
        quick = [writer.submit("a$t", append, read_version=one) for one in versions]
        monkeypatch.setattr(append_records, "ENCODE_APPEND_RECORD", None)
        slow = [writer.submit("a$t", append, read_version=one) for one in versions]
        for one, other in zip(quick, slow, strict=True):
            assert bool(one.record) == (lane() == NATIVE)
            assert not other.record
            assert _said(one.transaction) == _said(other.transaction)
            assert one.transaction.principal == principal
            # All of them: what isn't decided yet would be while the table's folder is removed.
            assert one.result().status is other.result().status is Status.COMMITTED


def _said(transaction: Transaction) -> Transaction:
    """Return a transaction but for what differs between two of the same content."""
    (commit,) = transaction.operations
    assert isinstance(commit, LanceCommit)
    message = LanceMessage.FromString(commit.message)
    message.uuid = "u"
    commit = replace(commit, message=message.SerializeToString(deterministic=True))
    return replace(
        attributed(transaction),
        operations=(commit,),
        transaction_id="",
        submitted_at_ms=0,
        payload_hash=b"",
    )


@pytest.mark.parametrize("wrong", [None, "", 7, b"x", "x" * 200])
def test_an_outcome_is_asked_for_by_an_id(client: CommitLog, wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="transaction.id"):
        client.outcome(wrong, timeout=0.1)


@pytest.mark.parametrize("send", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_client_that_is_sent_says_what_to_do(client: CommitLog, send: Any) -> None:
    with pytest.raises(TypeError, match=r"call CommitLog.connect in each process"):
        send(client)
