"""A wrong argument is refused by name, whatever the method, and nothing is appended."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import lance
import pytest

from commitlog import (
    Application,
    CommitLog,
    InvalidRequest,
    TableVersionIs,
    Ticket,
    use_storage_options,
)
from commitlog.client.commits.execution import Execution
from commitlog.client.commits.session import TransactionBuilder
from commitlog.client.history.feed import Subscription
from commitlog.client.history.snapshot import Snapshot
from commitlog.client.leader.arguments import refused
from commitlog.client.leader.row_tickets import RowsTicket
from commitlog.client.rows.merging import MergeOptions
from commitlog.client.rows.options import MergeChoices, MergeInsertOptions, RowsOptions
from commitlog.errors import InvalidSettings
from tests.service import SCHEMA, Service, rows, service

NAN, HUGE = float("nan"), 10**30
TEXT: list[Any] = [None, b"x", 5, NAN, ["x"], {}]
SECONDS: list[Any] = [None, "5", b"5", NAN, [], {}]
NUMBER: list[Any] = [None, "5", b"5", NAN, 1.5, True, []]
WHOLE = [*NUMBER, -1, HUGE]
FLAG: list[Any] = [None, "no", 0, 1, NAN, []]
NAME = [None, b"x", 5, NAN, [5], [None], "", [""], "a/b"]
COLUMNS = ["id", b"id", 5, NAN, [5], [None], {"id": 1}]
KEY = [b"id", 5, NAN, [5], [None], {"id": 1}]
PAIRS = ["a", b"a", 5, NAN, ["a"], [("a", 1)], {"a": 1}, {"a": None}, {1: "a"}]
PATH = [b"/x", 5, NAN, ["/x"]]
DURATION = ["5", b"5", 5, NAN, []]
WAIT: list[Any] = [None, "soon", b"readable", 5, []]
POSITION = [b"1", -1, NAN, 1.5, HUGE, True, [], {"a": 1}, ""]


def _or_none(values: list[Any]) -> list[Any]:
    return [one for one in values if one is not None]


WRONG: dict[str, list[Any]] = {
    "affected_rows": [5, "x", {"a": [1]}, {0: 5}, {0: ["x"]}, {-1: [1]}, [5]],
    "alterations": [None, 5, "id", b"id", [], {}, {"path": 5}, {"path": "nothing", "name": "x"}],
    "application": ["a", b"a", 5, NAN, Application(5, 1), Application("a", "1")],  # type: ignore[arg-type]
    "attempt": WHOLE,
    "attempts_max": WHOLE,
    "by_log": FLAG,
    "column": [None, b"id", 5, NAN, "", "nothing", [], [5]],
    "drop_columns.columns": [None, *COLUMNS, ["nothing"]],
    "columns": [*COLUMNS, ["nothing"]],
    "data": [5, b"x", "x", NAN, [5], {"id": 5}, {"id": None}, {1: [1]}, {"x": [1]}],
    "dry_run": FLAG,
    "events_max": WHOLE,
    "exist_ok": FLAG,
    "expectation": [None, 5, "a", TableVersionIs("a$t", "1"), TableVersionIs(5, 1)],  # type: ignore[arg-type]
    "expects": [None, 5, "a", [5], [None], [TableVersionIs("a$t", "1")]],  # type: ignore[arg-type]
    "filter": _or_none(TEXT) + ["nothing = 1", ")"],
    "fresh": FLAG,
    "from_position": [b"1", -1, NAN, 1.5, HUGE, True, [], {"a": 1}, "", "x"],
    "idle_seconds": _or_none(SECONDS),
    "incarnation": TEXT,
    "index": PATH,
    "index_type": [*TEXT, "", "NOTHING"],
    "inserted_keys": [5, "x", b"x"],
    "is_namespace": FLAG,
    "keep_milestones": FLAG,
    "lasting": DURATION,
    "location": PATH,
    "missing_ok": FLAG,
    "mode": [None, 5, "", "nothing", b"append", []],
    "name": TEXT,
    "set_properties.name": [None, b"x", 5, NAN, [5], [None], "", [], [""], "a/b"],
    "undrop.name": _or_none(NAME),
    "hold.position": _or_none(POSITION),
    "notes_counts": FLAG,
    "new_name": NAME,
    "older_than": DURATION,
    "on": [*KEY, "", "nothing", ["id", "id"]],
    "onwards": FLAG,
    "operation": [None, 5, "x", b"x", [], object(), lance.LanceOperation.Delete([], [-1], "true")],
    "parameters": [None, "x", b"x", 5, NAN],
    "place": TEXT,
    "policy": [None, 5, "", "nothing", b"every", []],
    "position": POSITION,
    "predicate": [*TEXT, "", ")", "nothing = 1"],
    "primary_key": [*KEY, "nothing", ["id", "id"]],
    "principal": TEXT,
    "properties": PAIRS,
    "query": [*TEXT, "", ")"],
    "read_version": _or_none(NUMBER),
    "refused": FLAG,
    "retain_versions": [0, -1, *_or_none(NUMBER)],
    "root": TEXT,
    "said": _or_none(TEXT),
    "schema": [None, 5, "x", {}, SCHEMA.empty_table(), []],
    "schema_metadata": [5, "x", [5]],
    "stable_row_ids": FLAG,
    "storage_options": PAIRS,
    "table_id": NAME,
    "submit.table_id": _or_none(NAME),
    "subscribe.tables": [b"x", 5, NAN, [5], [None], ""],
    "tables": [None, b"x", 5, NAN, [5], [None], ""],
    "timeout": SECONDS,
    "timeout_seconds": SECONDS,
    "transaction_id": [b"x", 5, NAN, ["x"], "a/b"],
    "transforms": [None, 5, "id", b"id", [], ["x"], [5], {"z": 5}, {"z": None}, {5: "id"}],
    "values": [None, 5, "x", b"x", [], ["x"], {}, {5: "x"}],
    "version": _or_none(NUMBER),
    "wait": WAIT,
    "when": POSITION,
    "where": _or_none(TEXT) + [")"],
}
"""What each parameter can't be, by its name."""


VALID: dict[str, Any] = {
    "table_id": "a$t",
    "column": "id",
    "columns": ["name"],
    "data": {"id": [1], "name": ["a"]},
    "expectation": TableVersionIs("a$t", 2),  # type: ignore[arg-type]
    "index_type": "BTREE",
    "location": "/nowhere",
    "name": "a$t",
    "new_name": "a$u",
    "on": "id",
    "operation": lance.LanceOperation.Delete([], [0], "true"),
    "place": "/nowhere",
    "position": "now",
    "predicate": "id = 1",
    "query": "SELECT 1",
    "schema": SCHEMA,
    "tables": "a$t",
    "transaction_id": "some-id",
    "transforms": {"more": "id + 1"},
    "values": {"name": "'b'"},
}
"""What a call gives that must give it."""
PLUMBING = {"ask_table", "describe", "runtime", "transaction"}
"""Methods of the client's own parts, though they are public."""
VERBS = ("append", "delete", "merge_insert", "update")
"""Methods that take the options of `Execution`, too."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("arguments")) as running:
        running.client.create_table("a$t", SCHEMA, primary_key="id")
        running.client.append("a$t", rows(1, 2))
        yield running


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [
        one
        for one in inspect.signature(function).parameters.values()
        if one.name != "self" and one.kind is not one.VAR_KEYWORD
    ]


def _cases() -> Iterator[tuple[type, str, str]]:
    for kind in (CommitLog, TransactionBuilder, Snapshot, Subscription, RowsTicket, Ticket):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or name in PLUMBING or (kind, name) in INTERNAL:
                continue
            for parameter in _parameters(method):
                if parameter.name != "rewrite":
                    yield kind, name, parameter.name
            if kind is CommitLog and name in VERBS:
                yield from (
                    (kind, name, option) for option in (*RowsOptions.__annotations__, "nothing")
                )


INTERNAL = {(Ticket, "deliver"), (Ticket, "fail")}
PARAMETERS: dict[tuple[type, str], list[str]] = {}
for _kind, _name, _parameter in _cases():
    PARAMETERS.setdefault((_kind, _name), []).append(_parameter)


def _call(running: Service, kind: type, name: str, parameter: str, value: object) -> None:
    client = running.client
    builder = client.transact()
    made: dict[type, Any] = {
        CommitLog: client,
        TransactionBuilder: builder,
        Snapshot: client.snapshot() if kind is Snapshot else None,
        Subscription: client.subscribe() if kind is Subscription else None,
    }
    if kind in (Ticket, RowsTicket):
        ticket = client.runtime().watch("some-id")
        made[kind] = ticket if kind is Ticket else RowsTicket(client.runtime(), ticket)
    method = getattr(made[kind], name)
    given = {
        one.name: VALID[one.name]
        for one in _parameters(method)
        if one.default is one.empty and one.kind is not one.VAR_POSITIONAL
    }
    try:
        if parameter == "alterations":
            method(*given.values(), value)
        else:
            answer = method(**{**given, parameter: value})
            if inspect.iscoroutine(answer):
                asyncio.run(answer)
    finally:
        if kind is Subscription:
            made[kind].close()


def test_who_connects_with_wrong_arguments_is_told() -> None:
    given: Any
    for given in ({"log": None}, {"log": 5}, {"log": b"x"}, {"token": 5}, {"token": b"x"}):
        with pytest.raises(InvalidSettings):
            CommitLog.connect("127.0.0.1:1", **given)
    for given in ((5, {}), (b"x", {}), ("s3://x", "abc"), ("s3://x", 5)):
        with pytest.raises(InvalidSettings, match="are a mapping for a location"):
            use_storage_options(*given)


def test_a_type_checker_knows_the_options_that_there_are() -> None:
    taken = inspect.signature(Execution).parameters.values()
    options = {one.name: one.annotation for one in taken if one.kind is one.KEYWORD_ONLY}
    del options["answer_seconds"]  # the HTTP server's alone
    assert options == _annotations(RowsOptions)
    assert {one.name: one.type for one in fields(MergeOptions)} == _annotations(MergeChoices)
    assert _annotations(MergeInsertOptions) == options | _annotations(MergeChoices)


def _annotations(kind: Any) -> dict[str, str]:
    return {name: one.__forward_arg__ for name, one in kind.__annotations__.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"), PARAMETERS, ids=[f"{kind.__name__}.{name}" for kind, name in PARAMETERS]
)
def test_a_wrong_argument_is_named(running: Service, kind: type, name: str) -> None:
    end = running.log.read_transactions(0).end_offset()
    told = {}
    for parameter in PARAMETERS[kind, name]:
        known = WRONG.get(f"{name}.{parameter}", WRONG.get(parameter))
        wrong = [5] if parameter == "nothing" else known
        assert wrong is not None, f"say what {parameter} can't be"
        for value in wrong:
            try:
                _call(running, kind, name, parameter, value)
            except InvalidRequest as error:
                if not (error.field and str(error)):
                    told[parameter, repr(value)] = f"names no field: {error}"
            except Exception as error:
                told[parameter, repr(value)] = repr(error)
            else:
                told[parameter, repr(value)] = "accepted"
    assert not told
    assert running.log.read_transactions(0).end_offset() == end


def test_a_store_that_fails_is_no_wrong_argument_whatever_its_files_are_called() -> None:
    with pytest.raises(OSError, match="IO error"), refused("no index", "column", "v", "Ask."):
        raise OSError("LanceError(IO): IO error: /data/Not supported/Invalid user input: EIO")
    with pytest.raises(InvalidRequest), refused("no index", "column", "v", "Ask."):
        raise OSError("Not supported: an index on structs")
