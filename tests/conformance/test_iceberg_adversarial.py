"""What a suspicious reader of the multi-table commit's document would send, over a real log.

Each case looks at the whole answer: its status, the exact members of its body, and that nothing was
appended where nothing may be.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import uuid_utils

from tests.iceberg_server import IcebergServer, Reply
from tests.namespace_world import World

Json = dict[str, Any]

COMMIT = "/v1/transactions/commit"
SET: Json = {"action": "set-properties", "updates": {"x": "1"}}
FIELDS = [{"id": 1, "name": "id", "required": False, "type": "long"}]
SCHEMA: Json = {"type": "struct", "fields": FIELDS}
WIDER: Json = {
    "type": "struct",
    "fields": [*FIELDS, {"id": 2, "name": "more", "required": False, "type": "string"}],
}


@pytest.fixture
def space(world: World, server: IcebergServer) -> str:
    """A namespace with the tables `a` and `b`."""
    name = world.fresh_name()
    server.ask("POST", "/v1/namespaces", {"namespace": [name]})
    for table in ("a", "b"):
        body = {"name": table, "schema": SCHEMA}
        assert server.ask("POST", f"/v1/namespaces/{name}/tables", body).status == 200
    return name


def change(space: str, name: str, updates: Any = (SET,), requirements: Any = ()) -> Json:
    return {
        "identifier": {"namespace": [space], "name": name},
        "requirements": list(requirements),
        "updates": list(updates),
    }


def load(server: IcebergServer, space: str, name: str = "a") -> Any:
    return server.ask("GET", f"/v1/namespaces/{space}/tables/{name}").json


def sequence(world: World) -> int:
    return int(world.log.runtime().request(0, "status")["sequence"])


def commit(server: IcebergServer, *changes: Any, **headers: str) -> Reply:
    return server.ask("POST", COMMIT, {"table-changes": list(changes)}, headers)


def snapshot(number: int, place: int, **more: Any) -> Json:
    return {
        "action": "add-snapshot",
        "snapshot": {
            "snapshot-id": number,
            "sequence-number": place,
            "timestamp-ms": time.time_ns() // 1_000_000,
            "summary": {"operation": "append"},
            "manifest-list": "s3://bucket/none.avro",
            "schema-id": 0,
            **more,
        },
    }


def ref(number: int, name: str = "main", kind: str = "branch") -> Json:
    return {
        "action": "set-snapshot-ref",
        "ref-name": name,
        "type": kind,
        "snapshot-id": number,
    }


def assert_error(reply: Reply, status: int, kind: str, *, has_list: bool = False) -> None:
    assert (reply.status, set(reply.json)) == (status, {"error"}), reply.data
    members = {"message", "type", "code"} | ({"failed-requirements"} if has_list else set())
    assert (set(reply.error), reply.error["type"]) == (members, kind), reply.data
    assert reply.error["code"] == status
    assert reply.headers["content-type"] == "application/json"


def test_a_success_has_the_documents_members_and_no_others(
    world: World, server: IcebergServer, space: str
) -> None:
    before = sequence(world)
    reply = commit(server, change(space, "b"), change(space, "a"))
    assert reply.status == 200
    assert sequence(world) == before + 1
    assert set(reply.json) == {"commit-id", "results"}
    assert reply.json["commit-id"].startswith("txn-")
    assert [one["identifier"]["name"] for one in reply.json["results"]] == ["b", "a"]
    for one in reply.json["results"]:
        assert set(one) == {"identifier", "metadata-location"}
        assert one["identifier"]["namespace"] == [space]
        metadata = json.loads(Path(one["metadata-location"]).read_bytes())
        assert metadata == load(server, space, one["identifier"]["name"])["metadata"]


def test_a_failure_repeats_each_requirement_as_it_was_sent(
    server: IcebergServer, space: str
) -> None:
    sent = {"type": "ASSERT-Current-Schema-Id", "current-schema-id": 7, "note": ["kept"]}
    missing = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 5}
    reply = commit(server, change(space, "b", requirements=[missing, sent]), change(space, "a"))
    assert_error(reply, 409, "CommitFailedException", has_list=True)
    identifier = {"namespace": [space], "name": "b"}
    assert reply.error["failed-requirements"] == [
        {"identifier": identifier, "requirement": missing, "actual": {"snapshot-id": None}},
        {"identifier": identifier, "requirement": sent, "actual": {"current-schema-id": 0}},
    ]
    assert f"{space}.b" in reply.error["message"]
    # Iceberg's Java library and pyiceberg print nothing but this.
    assert "branch or tag main is missing, expected 5, and 1 more" in reply.error["message"]
    assert f"{space}.a" not in reply.error["message"]
    assert "x" not in load(server, space)["metadata"]["properties"]


_UNREADABLE: dict[str, bytes] = {
    "nothing": b"",
    "null": b"null",
    "an array": b"[]",
    "a string": b'"table-changes"',
    "half of it": b'{"table-changes": [',
    "two documents": b"{} {}",
    "not a number": b'{"table-changes": [], "x": NaN}',
    "no UTF-8": b'{"table-changes": "\xff"}',
    "a lone surrogate": b'{"table-changes": [{"identifier": {"namespace": ["\\ud800"],'
    b' "name": "a"}, "requirements": [], "updates": []}]}',
    "too deep": b'{"table-changes": ' + b"[" * 120 + b"]" * 120 + b"}",
    "far too deep": b"[" * 100_000,
    "no changes": b"{}",
    "changes that are null": b'{"table-changes": null}',
    "changes that are an object": b'{"table-changes": {"0": {}}}',
    "no change": b'{"table-changes": []}',
    "a change that is a string": b'{"table-changes": ["events"]}',
    "a change without anything": b'{"table-changes": [{}]}',
}


@pytest.mark.parametrize("what", _UNREADABLE)
def test_a_body_that_cannot_be_meant_is_refused(
    world: World, server: IcebergServer, what: str
) -> None:
    before = sequence(world)
    assert_error(server.ask("POST", COMMIT, _UNREADABLE[what]), 400, "BadRequestException")
    assert sequence(world) == before


_INT = "assert-last-assigned-field-id", "last-assigned-field-id"
_WRONG: dict[str, tuple[str, Any]] = {
    "true for a number": ("requirements", {"type": _INT[0], _INT[1]: True}),
    "a float for a number": ("requirements", {"type": _INT[0], _INT[1]: 1.0}),
    "a number over 32 bits": ("requirements", {"type": _INT[0], _INT[1]: 2**31}),
    "a requirement's field left out": ("requirements", {"type": _INT[0]}),
    "a requirement's field null": ("requirements", {"type": _INT[0], _INT[1]: None}),
    "a requirement without type": ("requirements", {"uuid": "x"}),
    "a type that is a number": ("requirements", {"type": 1}),
    "a uuid that is none": ("requirements", {"type": "assert-table-uuid", "uuid": 5}),
    "a ref without a name": (
        "requirements",
        {"type": "assert-ref-snapshot-id", "ref": None, "snapshot-id": None},
    ),
    "an action that is null": ("updates", {"action": None}),
    "a schema left out": ("updates", {"action": "add-schema"}),
    "a schema of columns without ids": (
        "updates",
        {"action": "add-schema", "schema": {"type": "struct", "fields": [{"name": "x"}]}},
    ),
    "an unknown type": (
        "updates",
        {
            "action": "add-schema",
            "schema": {"type": "struct", "fields": [{**FIELDS[0], "type": "quark"}]},
        },
    ),
    "two columns of one id": (
        "updates",
        {"action": "add-schema", "schema": {"type": "struct", "fields": FIELDS * 2}},
    ),
    "a current schema left out": ("updates", {"action": "set-current-schema"}),
    "no schema added before -1": ("updates", {"action": "set-current-schema", "schema-id": -1}),
    "format 0": ("updates", {"action": "upgrade-format-version", "format-version": 0}),
    "format 99": ("updates", {"action": "upgrade-format-version", "format-version": 99}),
    "a format in quotes": ("updates", {"action": "upgrade-format-version", "format-version": "2"}),
    "a location elsewhere": ("updates", {"action": "set-location", "location": "/etc"}),
    "a location with ..": ("updates", {"action": "set-location", "location": "/x/../../etc"}),
    "a snapshot without an id": (
        "updates",
        {"action": "add-snapshot", "snapshot": {"timestamp-ms": 1, "manifest-list": "m"}},
    ),
    "a snapshot id over 64 bits": ("updates", snapshot(2**63, 1)),
    "a summary of numbers": ("updates", snapshot(5, 1, summary={"operation": "append", "n": 1})),
    "a ref to nothing": ("updates", ref(404)),
    "a ref without a kind": (
        "updates",
        {"action": "set-snapshot-ref", "ref-name": "b", "snapshot-id": 1},
    ),
    "an empty ref's name": ("updates", ref(5, "")),
    "removals left out": ("updates", {"action": "remove-properties"}),
    "properties left out": ("updates", {"action": "set-properties"}),
    "snapshots to remove that are a number": (
        "updates",
        {"action": "remove-snapshots", "snapshot-ids": 5},
    ),
    "a transform that is none": (
        "updates",
        {
            "action": "add-partition-spec",
            "spec": {"fields": [{"source-id": 1, "name": "p", "transform": "bucket[0"}]},
        },
    ),
}


@pytest.mark.parametrize("what", _WRONG)
def test_one_wrong_value_refuses_the_whole_request(
    server: IcebergServer, space: str, what: str
) -> None:
    member, value = _WRONG[what]
    before = load(server, space), load(server, space, "b")
    wrong = change(space, "b")
    wrong[member] = [value]
    assert_error(commit(server, change(space, "a"), wrong), 400, "BadRequestException")
    assert (load(server, space), load(server, space, "b")) == before


def test_a_new_table_has_no_default_that_java_could_not_read(
    server: IcebergServer, space: str
) -> None:
    schema = {"type": "struct", "fields": [{**FIELDS[0], "initial-default": "x"}]}
    body = {"name": "made", "schema": schema, "properties": {"format-version": "3"}}
    reply = server.ask("POST", f"/v1/namespaces/{space}/tables", body)
    assert_error(reply, 400, "BadRequestException")
    assert "schema.fields[0].initial-default is 'x'" in reply.error["message"]


@pytest.mark.parametrize(
    "identifier",
    [
        None,
        "a",
        {},
        {"namespace": ["s"]},
        {"namespace": None, "name": "a"},
        {"namespace": ["s", None], "name": "a"},
        {"namespace": ["s", ""], "name": "a"},
        {"namespace": ["."], "name": "a"},
        {"namespace": ["s"], "name": ".."},
        {"namespace": ["s"], "name": "a\u001fb"},
        {"namespace": ["s\u001fx"], "name": "a"},
        {"namespace": ["s/x"], "name": "a"},
        {"namespace": ["s"], "name": "a\u0000"},
        {"namespace": ["s"], "name": ["a"]},
    ],
)
def test_a_name_that_is_none_is_refused_with_its_place(
    world: World, server: IcebergServer, identifier: Any
) -> None:
    before = sequence(world)
    wrong = {"identifier": identifier, "requirements": [], "updates": []}
    reply = commit(server, wrong)
    assert_error(reply, 400, "BadRequestException")
    assert "table-changes[0].identifier" in reply.error["message"]
    assert sequence(world) == before


def test_a_table_named_twice_is_refused_before_it_is_looked_for(server: IcebergServer) -> None:
    twice = [change("nowhere", "t"), change("nowhere", "u"), change("nowhere", "t")]
    reply = commit(server, *twice)
    assert_error(reply, 400, "BadRequestException")
    assert "table-changes[2].identifier" in reply.error["message"]


def test_what_is_missing_is_said_before_what_does_not_hold(
    server: IcebergServer, space: str
) -> None:
    there = change(space, "a", requirements=[{"type": "assert-create"}])
    reply = commit(server, there, change(space, "gone"))
    assert_error(reply, 404, "NoSuchTableException")
    assert f"{space}.gone" in reply.error["message"]


def test_names_of_more_than_one_level_are_others(server: IcebergServer, space: str) -> None:
    deeper = change(space, "a")
    deeper["identifier"]["namespace"] = [space, "a"]
    assert_error(commit(server, change(space, "b"), deeper), 404, "NoSuchTableException")
    dotted = change(space, "a")
    dotted["identifier"] = {"namespace": [f"{space}.x"], "name": "a"}
    assert commit(server, dotted).status in (400, 404)


def test_a_snapshot_may_come_and_go_in_one_request(server: IcebergServer, space: str) -> None:
    gone = {"action": "remove-snapshots", "snapshot-ids": [8]}
    updates = [snapshot(8, 1), ref(8), ref(8, "kept", "tag"), gone]
    reply = commit(server, change(space, "a", updates))
    assert reply.status == 200, reply.data
    metadata = load(server, space)["metadata"]
    assert (metadata["snapshots"], metadata["refs"]) == ([], {})
    assert metadata.get("current-snapshot-id", -1) == -1


def test_both_names_of_a_partition_spec_are_one_update(server: IcebergServer, space: str) -> None:
    field = {"source-id": 1, "transform": "identity", "name": "p"}
    for name, action in (("a", "add-partition-spec"), ("b", "add-spec")):
        updates = [
            {"action": action, "spec": {"spec-id": 9, "fields": [field]}},
            {"action": "set-default-spec", "spec-id": -1},
        ]
        assert commit(server, change(space, name, updates)).status == 200
        metadata = load(server, space, name)["metadata"]
        assert metadata["default-spec-id"] == 1
        assert metadata["partition-specs"][1]["fields"][0]["field-id"] == 1000


def test_the_same_uuid_in_capitals_holds(server: IcebergServer, space: str) -> None:
    uuid = load(server, space)["metadata"]["table-uuid"].upper()
    holds = {"type": "assert-table-uuid", "uuid": uuid}
    assert commit(server, change(space, "a", requirements=[holds])).status == 200
    again = [{"action": "assign-uuid", "uuid": uuid}]
    assert commit(server, change(space, "a", again)).status == 200


def test_columns_of_a_later_table_are_not_those_of_an_earlier_one(
    server: IcebergServer, space: str
) -> None:
    add = {"action": "add-schema", "schema": WIDER}
    latest = {"action": "set-current-schema", "schema-id": -1}
    reply = commit(server, change(space, "a", [add]), change(space, "b", [latest]))
    assert_error(reply, 400, "BadRequestException")
    assert len(load(server, space)["metadata"]["schemas"]) == 1


def test_members_of_a_later_edition_are_passed_over(server: IcebergServer, space: str) -> None:
    body = {"table-changes": [{**change(space, "a"), "hint": 1}], "priority": "high"}
    assert server.ask("POST", COMMIT, body).status == 200


def test_a_key_repeats_the_answer_whatever_it_was(
    world: World, server: IcebergServer, space: str
) -> None:
    wrong = {"type": "assert-current-schema-id", "current-schema-id": 3}
    for requirements in ([], [wrong]):
        key = {"Idempotency-Key": str(uuid_utils.uuid7())}
        first = commit(server, change(space, "a", requirements=requirements), **key)
        again = commit(server, change(space, "a", requirements=requirements), **key)
        assert (first.status, first.data) == (again.status, again.data)
        assert first.status == (409 if requirements else 200)
        other = commit(server, change(space, "b"), **key)
        assert other.status >= 400
        assert "x" not in load(server, space, "b")["metadata"]["properties"]


@pytest.mark.parametrize("key", ["", "x", "0199a000", "0199a000-0000-7000-8000-0000000000zz"])
def test_a_key_that_is_none_is_refused(
    world: World, server: IcebergServer, space: str, key: str
) -> None:
    before = sequence(world)
    reply = commit(server, change(space, "a"), **{"Idempotency-Key": key})
    assert_error(reply, 400, "BadRequestException")
    assert sequence(world) == before


def test_a_namespace_that_is_not_there_cannot_be_dropped(server: IcebergServer) -> None:
    for headers in ({}, {"Idempotency-Key": str(uuid_utils.uuid7())}):
        reply = server.ask("DELETE", "/v1/namespaces/nowhere%1Fdeep", headers=headers)
        assert_error(reply, 404, "NoSuchNamespaceException")
        assert reply.error["message"] == "Namespace does not exist: nowhere.deep"


def test_a_commit_to_one_table_hears_why_it_was_not_rebased(
    server: IcebergServer, space: str
) -> None:
    off = {"action": "set-properties", "updates": {"commitlog.iceberg.rebase": "off"}}
    assert commit(server, change(space, "a", [off, snapshot(1, 1), ref(1)])).status == 200
    none = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}
    late = {"requirements": [none], "updates": [snapshot(2, 1), ref(2)]}
    key = {"Idempotency-Key": str(uuid_utils.uuid7())}
    path = f"/v1/namespaces/{space}/tables/a"
    for reply in (server.ask("POST", path, late, key), server.ask("POST", path, late, key)):
        assert_error(reply, 409, "CommitFailedException", has_list=True)
        started, _, why = reply.error["message"].partition("; it could not be rebased: ")
        assert started == "Requirement failed: branch or tag main was created concurrently"
        assert "commitlog.iceberg.rebase is 'off'" in why
