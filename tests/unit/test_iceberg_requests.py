"""What a request may look like; every refusal names the place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from commitlog.core.iceberg.creating import parse_create
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.metadata import table_of
from commitlog.core.iceberg.reading import load_json
from commitlog.core.iceberg.requests import parse_change, parse_commit, parse_table_commit
from tests.unit.iceberg_examples import EVENTS, metadata, schema, snapshot, table

_SNAPSHOT = {"action": "add-snapshot", "snapshot": snapshot(3, 3, 2)}
_WHOLE: list[dict[str, Any]] = [
    {"action": "assign-uuid", "uuid": "550e8400-e29b-41d4-a716-446655440000"},
    {"action": "upgrade-format-version", "format-version": 2},
    {"action": "add-schema", "schema": schema("id")},
    {"action": "set-current-schema", "schema-id": 0},
    {"action": "add-spec", "spec": {"fields": []}},
    {"action": "set-default-spec", "spec-id": 0},
    {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
    {"action": "set-default-sort-order", "sort-order-id": 0},
    _SNAPSHOT,
    {"action": "set-snapshot-ref", "ref-name": "b", "type": "branch", "snapshot-id": 1},
    {"action": "remove-snapshots", "snapshot-ids": [1]},
    {"action": "remove-snapshot-ref", "ref-name": "b"},
    {"action": "set-location", "location": "s3://b/t"},
    {"action": "set-properties", "updates": {"a": "b"}},
    {"action": "remove-properties", "removals": ["a"]},
    {"action": "remove-statistics", "snapshot-id": 1},
    {"action": "remove-partition-statistics", "snapshot-id": 1},
    {"action": "remove-partition-specs", "spec-ids": [1]},
    {"action": "remove-schemas", "schema-ids": [1]},
    {"action": "remove-encryption-key", "key-id": "k"},
    {
        "action": "add-encryption-key",
        "encryption-key": {"key-id": "k", "encrypted-key-metadata": "AA=="},
    },
]


def _request(**members: Any) -> dict[str, Any]:
    change = {
        "identifier": {"namespace": ["analytics"], "name": "events"},
        "requirements": [],
        "updates": [],
    }
    return {"table-changes": [{**change, **members}]}


def _said(body: Any) -> str:
    with pytest.raises(Invalid) as caught:
        parse_commit(body)
    return str(caught.value)


def test_a_whole_request_comes_back_from_the_log_as_it_was_sent() -> None:
    wishes = [{"type": "assert-default-spec-id", "default-spec-id": 0, "more": 1}]
    request = parse_commit(_request(requirements=wishes, updates=_WHOLE))
    sent = request.changes[0].sent
    assert json.loads(sent.updates) == _WHOLE
    assert parse_change(sent) == request.changes[0]
    assert parse_change(sent).requirements[0].sent == wishes[0]


@pytest.mark.parametrize("update", _WHOLE, ids=lambda update: update["action"])
def test_every_member_is_needed_and_has_a_type(update: dict[str, Any]) -> None:
    for name, value in update.items():
        rest = {k: v for k, v in update.items() if k != name}
        for bad in (rest, {**update, name: None}, {**update, name: 1.5}, {**update, name: True}):
            said = _said(_request(updates=[update, bad]))
            assert said.startswith(f"table-changes[0].updates[1].{name} ")
        if isinstance(value, int):
            assert "between" in _said(_request(updates=[{**update, name: 2**63}]))


@pytest.mark.parametrize("name", ["snapshot-id", "timestamp-ms", "manifest-list", "summary"])
def test_a_snapshot_is_whole(name: str) -> None:
    left = {k: v for k, v in _SNAPSHOT["snapshot"].items() if k != name}
    said = _said(_request(updates=[{"action": "add-snapshot", "snapshot": left}]))
    assert said == f"table-changes[0].updates[0].snapshot.{name} is missing"


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"identifier": {"namespace": ["a"]}}, "table-changes[0].identifier.name is missing"),
        ({"identifier": {"namespace": [], "name": "t"}}, "namespace must not be empty"),
        ({"identifier": {"namespace": "a", "name": "t"}}, "namespace must be an array"),
        ({"identifier": {"namespace": ["a", ".."], "name": "t"}}, "identifier is not usable"),
        ({"identifier": {"namespace": ["a\x1fb"], "name": "t"}}, "identifier is not usable"),
        ({"identifier": {"namespace": ["a"], "name": "b/c"}}, "identifier is not usable"),
        ({"identifier": {"namespace": ["a"], "name": "\ud800"}}, "lone surrogate"),
        ({"requirements": None}, "requirements must not be null"),
        ({"requirements": [{"type": "assert-view-uuid"}]}, "requirements[0].type is"),
        ({"updates": [{"action": "add-view-version"}]}, "updates[0].action is"),
        ({"updates": [{"action": "commitlog-register"}]}, "updates[0].action is"),
        ({"updates": ["x"]}, "updates[0] must be an object"),
        (
            {
                "requirements": [
                    {"type": "assert-create"},
                    {"type": "assert-default-spec-id", "default-spec-id": 0},
                ]
            },
            "nothing else to require",
        ),
    ],
)
def test_a_wrong_request_is_told_where(members: dict[str, Any], said: str) -> None:
    assert said in _said(_request(**members))


def test_limits_are_exact() -> None:
    one = {"action": "set-properties", "updates": {}}
    assert parse_commit(_request(updates=[one] * 1_000))
    assert "1001 updates" in _said(_request(updates=[one] * 1_001))
    changes = [
        {"identifier": {"namespace": ["a"], "name": f"t{i}"}, "requirements": [], "updates": []}
        for i in range(101)
    ]
    assert len(parse_commit({"table-changes": changes[:100]}).changes) == 100
    assert "101 tables" in _said({"table-changes": changes})
    assert parse_commit({"table-changes": changes}, tables_max=101)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 101 + "]" * 101, "deeper"),
        ("[" * 100_000, "deeper"),
        ('{"a": NaN}', "NaN"),
        ("", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        ("1" * 5_000, "not JSON"),
    ],
)
def test_only_json_of_a_bounded_depth_is_read(text: str | bytes, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        load_json(text, "body")
    assert load_json("[" * 100 + "]" * 100, "body")


def test_old_and_upper_case_names_are_understood() -> None:
    old = [
        {"action": "SET-Properties", "updated": {"a": "b"}},
        {"action": "remove-properties", "removed": ["a"]},
        {"action": "add-partition-spec", "spec": {"fields": []}},
    ]
    read = parse_commit(_request(updates=old)).changes[0].updates
    assert [update.action for update in read] == ["set-properties", "remove-properties", "add-spec"]


def test_the_address_names_the_table() -> None:
    body: dict[str, Any] = {"requirements": [], "updates": []}
    assert parse_table_commit(body, EVENTS).table == EVENTS
    with pytest.raises(Invalid, match="another table"):
        parse_table_commit({**body, "identifier": {"namespace": ["a"], "name": "b"}}, EVENTS)


def test_a_new_table_gets_ids_of_its_own() -> None:
    nested = {
        "type": "struct",
        "fields": [
            {"id": 9, "name": "a", "required": True, "type": "long"},
            {
                "id": 4,
                "name": "l",
                "required": False,
                "type": {
                    "type": "list",
                    "element-id": 5,
                    "element": "int",
                    "element-required": True,
                },
            },
            {"id": 7, "name": "b", "required": False, "type": "date"},
        ],
        "identifier-field-ids": [9],
    }
    request = parse_create(
        {
            "name": "t",
            "schema": nested,
            "partition-spec": {"fields": [{"source-id": 7, "transform": "day", "name": "d"}]},
            "properties": {"format-version": "3", "k": "v"},
        }
    )
    by_action = {update["action"]: update for update in request.updates}
    made = by_action["add-schema"]["schema"]
    assert [field["id"] for field in made["fields"]] == [1, 2, 3]
    assert made["fields"][1]["type"]["element-id"] == 4
    assert made["identifier-field-ids"] == [1]
    part = by_action["add-spec"]["spec"]["fields"][0]
    assert (part["source-id"], part["field-id"]) == (3, 1000)
    assert by_action["upgrade-format-version"]["format-version"] == 3
    assert "format-version" not in by_action["set-properties"]["updates"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_metadata_is_read_as_it_was_written(version: int) -> None:
    found = {**metadata(version), "future-member": {"x": [1]}}
    read = table_of(found, "x")
    written = json.loads(read.to_json())
    legacy = {"schema", "partition-spec"} if version == 1 else set()
    assert {k: v for k, v in written.items() if k not in legacy} == found
    assert table_of(json.loads(read.to_json()), "x") == read


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"format-version": 4}, "metadata.format-version is 4"),
        ({"current-schema-id": 5}, "metadata.current-schema-id"),
        ({"default-spec-id": 5}, "metadata.default-spec-id"),
        ({"current-snapshot-id": 1}, "main names"),
        ({"refs": {"main": {"snapshot-id": 9, "type": "branch"}}}, "isn't there"),
        ({"last-sequence-number": None}, "metadata.last-sequence-number must not be null"),
    ],
)
def test_broken_metadata_is_told_where(members: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid) as caught:
        table(**members)
    assert said in str(caught.value)
