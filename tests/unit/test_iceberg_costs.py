"""What a thousand updates of an Iceberg table cost, counted: what it has is copied once."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.core.iceberg import layout_actions, rebase, snapshot_renewal, views
from commitlog.core.iceberg.domain import IcebergRefused, decide_iceberg
from commitlog.core.iceberg.metadata_draft import MetadataDraft
from commitlog.core.iceberg.reading import dump_json
from commitlog.core.iceberg.shelf import Index
from commitlog.core.iceberg.views import ASSERT_UUID
from commitlog.model.limits import PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import CreateNamespace, IcebergChange
from commitlog.model.records import Status
from tests.core_world import ROOT
from tests.unit.iceberg_examples import (
    EVENTS,
    TIME_MS,
    TRANSACTION,
    change,
    decide,
    snapshot,
    table,
    updated,
)
from tests.unit.test_iceberg_machine import IcebergWorld
from tests.unit.test_iceberg_views import SCHEMA, UUID, VIEW, made_view, version

COUNT = 40
HEAD = COUNT + 1
REFS = {f"t{n}": {"snapshot-id": n, "type": "tag"} for n in range(1, HEAD)}


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often a draft gets another value of a member."""
    counts: Counter[str] = Counter()
    change = MetadataDraft.change

    def counted(draft: MetadataDraft, **members: Any) -> None:
        counts.update(list(members))
        change(draft, **members)

    monkeypatch.setattr(MetadataDraft, "change", counted)
    return counts


def tag(name: str) -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": name, "type": "tag", "snapshot-id": HEAD}


def untag(name: str) -> dict[str, Any]:
    return {"action": "remove-snapshot-ref", "ref-name": name}


def removal(*snapshot_ids: int) -> dict[str, Any]:
    return {"action": "remove-snapshots", "snapshot-ids": list(snapshot_ids)}


@pytest.mark.parametrize(
    ("updates", "left"),
    [
        ([tag(f"u{n}") for n in range(COUNT)], 2 * COUNT + 1),
        ([untag(f"t{n}") for n in range(COUNT)], 2),
        ([removal(*range(1, HEAD))], 1),
        ([removal(n) for n in range(1, HEAD)], 1),
        ([removal(1), tag("t2"), removal(2, 3)], COUNT - 1),
        ([removal(1), untag("t2"), removal(2), tag("t1")], COUNT),
    ],
)
def test_branches_and_tags_are_copied_once(
    updates: list[dict[str, Any]], left: int, changed: Counter[str]
) -> None:
    refs = {**REFS, "main": {"snapshot-id": HEAD, "type": "branch"}}
    after = updated(replace(table(snapshots=HEAD), refs=refs), *updates)
    assert len(refs) == COUNT + 1, "the table before is as it was"
    assert len(after.refs) == left
    assert changed["refs"] == 1
    assert all(ref["snapshot-id"] in after.snapshots for ref in after.refs.values())


def test_encryption_keys_are_copied_once(changed: Counter[str]) -> None:
    key = {"key-id": "", "encrypted-key-metadata": "YQ=="}
    known = {f"k{n}": {**key, "key-id": f"k{n}"} for n in range(COUNT)}
    added = [
        {"action": "add-encryption-key", "encryption-key": {**key, "key-id": f"n{n}"}}
        for n in range(COUNT)
    ]
    gone = [{"action": "remove-encryption-key", "key-id": name} for name in [*known, "none"]]
    after = updated(replace(table(), encryption_keys=known), *added, *gone)
    assert list(after.encryption_keys) == [f"n{n}" for n in range(COUNT)]
    assert len(known) == COUNT
    assert changed["encryption_keys"] == 1


def test_no_choice_of_ids_fills_one_bucket() -> None:
    """Each change copies the bucket of its key."""
    index: Index[int, int] = Index((number << 32, number) for number in range(4_000))
    for number in range(4_000, 5_000):
        index = index.set(number << 32, number)
    assert all(index.get(number << 32) == number for number in range(5_000))
    assert max(map(len, index._buckets)) < 200


def specs(*buckets: int) -> list[dict[str, Any]]:
    part = {"name": "p", "source-id": 1}
    fields = [[{**part, "transform": f"bucket[{number}]"}] for number in buckets]
    return [{"action": "add-spec", "spec": {"fields": one}} for one in fields]


def orders(*buckets: int) -> list[dict[str, Any]]:
    part = {"source-id": 1, "direction": "asc", "null-order": "nulls-first"}
    fields = [[{**part, "transform": f"bucket[{number}]"}] for number in buckets]
    return [{"action": "add-sort-order", "sort-order": {"fields": one}} for one in fields]


def schemas(*numbers: int) -> list[dict[str, Any]]:
    column = {"id": 1, "required": False, "type": "long"}
    fields = [[{**column, "name": f"c{number}"}] for number in numbers]
    return [{"action": "add-schema", "schema": {"type": "struct", "fields": one}} for one in fields]


@pytest.mark.parametrize(
    ("module", "content", "added", "gone"),
    [
        (layout_actions, "_spec_content", specs, ("remove-partition-specs", "spec-ids")),
        (layout_actions, "_order_content", orders, None),
        (layout_actions, "schema_content", schemas, ("remove-schemas", "schema-ids")),
    ],
)
def test_what_is_added_is_looked_up_and_not_compared_with_all(
    module: Any, content: str, added: Any, gone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = updated(table(), *added(*range(1, COUNT)))
    calls, found = 0, getattr(module, content)

    def counted(value: Any) -> Any:
        nonlocal calls
        calls += 1
        return found(value)

    monkeypatch.setattr(module, content, counted)
    updates = []
    for number in range(COUNT, 2 * COUNT):
        updates += added(number)
        if gone is not None:
            action, ids = gone
            updates.append({"action": action, ids: [number - COUNT + 1]})
    updated(base, *updates)
    assert calls <= 3 * COUNT


@given(
    st.lists(
        st.one_of(
            st.integers(1, 5).map(lambda n: ("add", n)),
            st.integers(1, 6).map(lambda n: ("remove", n)),
        ),
        max_size=12,
    )
)
def test_specs_and_schemas_get_the_ids_that_a_search_through_all_gives(
    steps: list[tuple[str, int]],
) -> None:
    wanted: dict[str, dict[int, int]] = {"specs": {0: 0}, "schemas": {0: 0}}
    updates: list[dict[str, Any]] = []
    for step, number in steps:
        if step == "add":
            updates += [*specs(number), *schemas(number)]
        else:
            updates.append({"action": "remove-partition-specs", "spec-ids": [number]})
            updates.append({"action": "remove-schemas", "schema-ids": [number]})
        for kept in wanted.values():
            if step == "remove":
                kept.pop(number, None)
            elif number not in kept.values():
                kept[max(kept) + 1] = number
    after = updated(table(), *updates)
    assert {spec["spec-id"]: _number(spec, "transform") for spec in after.specs} == wanted["specs"]
    assert {one["schema-id"]: _number(one, "name") for one in after.schemas} == wanted["schemas"]


def _number(value: Any, member: str) -> int:
    """Return the number in the only field's member; 0 for what the table began with."""
    if len(value["fields"]) != 1:
        return 0
    return int("".join(filter(str.isdigit, value["fields"][0][member])))


@pytest.mark.parametrize(
    ("updates", "is_changed"),
    [
        ([], False),
        ([{"action": "add-schema", "schema": SCHEMA}], False),
        ([{"action": "set-location", "location": f"{ROOT}/ice/totals"}], False),
        ([{"action": "set-properties", "updates": {"a": "1"}}], False),
        ([{"action": "remove-properties", "removals": ["c"]}], False),
        ([{"action": "set-properties", "updates": {"a": "2"}}] * 40, True),
        (
            [
                {"action": "set-properties", "updates": {"c": "1"}},
                {"action": "remove-properties", "removals": ["c"]},
            ],
            True,
        ),
        (
            [
                {"action": "set-location", "location": f"{ROOT}/ice/other"},
                {"action": "set-location", "location": f"{ROOT}/ice/totals"},
            ],
            True,
        ),
        ([{"action": "assign-uuid", "uuid": UUID.upper()}], True),
        (
            [
                {
                    "action": "add-view-version",
                    "view-version": version("SELECT 5", **{"schema-id": 0}),
                }
            ]
            * 2,
            True,
        ),
    ],
)
def test_a_view_is_another_version_if_an_update_changed_it(
    updates: list[dict[str, Any]],
    is_changed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if a later one changed it back. No update costs what the whole view does."""
    core = IcebergWorld(rules=Rules(PROTOCOL_SUPPORTED))
    core.ask("ns", CreateNamespace(("db",)))
    core.ask("c", made_view())
    requirements = dump_json([{"type": ASSERT_UUID, "uuid": UUID}])
    properties = dump_json([{"action": "set-properties", "updates": {"a": "1", "b": "2"}}])
    core.ask("p", IcebergChange(VIEW, requirements, properties))
    before, written = core.machine.iceberg.tables[VIEW], 0

    def counted(value: Any) -> str:
        nonlocal written
        written += 1
        return dump_json(value)

    monkeypatch.setattr(views, "dump_json", counted)
    outcome = core.ask("u", IcebergChange(VIEW, requirements, dump_json(updates)))
    assert outcome.status is Status.COMMITTED
    assert (core.machine.iceberg.tables[VIEW] is not before) is is_changed
    assert written <= 4, "its file, for each of two decisions"
    core.check_replay()


def test_what_a_commit_overtakes_is_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many snapshots it adds."""
    calls, found = 0, snapshot_renewal.summary_of

    def counted(value: Any) -> Any:
        nonlocal calls
        calls += 1
        return found(value)

    monkeypatch.setattr(rebase, "summary_of", counted)
    summary = {"operation": "append", "kafka.connect.offsets.a": "1"}
    numbers = range(COUNT + 1, 2 * COUNT + 1)
    mine = [snapshot(n, n, 1 if n == HEAD else n - 1, summary=summary) for n in numbers]
    updates = [
        *({"action": "add-snapshot", "snapshot": one} for one in mine),
        {**tag("main"), "type": "branch", "snapshot-id": 2 * COUNT},
    ]
    required = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1}
    decided = decide_iceberg(
        {EVENTS: table(snapshots=COUNT)},
        [change(updates, [required])],
        time_ms=TIME_MS,
        transaction_id=TRANSACTION,
        namespaces={("analytics",)},
        others={},
        fits=lambda plans: None,
    )
    assert not isinstance(decided, IcebergRefused), decided
    assert decided[0].plan is not None
    assert decided[0].plan.overtaken == COUNT - 1
    assert calls <= 2 * COUNT


def in_a_struct(name: str, *names: str, **more: Any) -> dict[str, Any]:
    """Return an update that adds a struct with these columns in it."""
    inner = [
        {"id": 10 + n, "name": one, "required": False, "type": "long"}
        for n, one in enumerate(names)
    ]
    kind = {"type": "struct", "fields": inner}
    fields = [{"id": 1, "name": name, "required": False, "type": kind}, *more.values()]
    return {"action": "add-schema", "schema": {"type": "struct", "fields": fields}}


def test_a_long_name_of_a_struct_is_not_kept_for_each_column_in_it() -> None:
    """All of them together are 200 MB: 16 MB of a record could name a terabyte."""
    update = in_a_struct("x" * 200_000, *(f"c{n}" for n in range(1_000)))
    base = table()
    tracemalloc.start()
    try:
        after = updated(base, update)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(after.schemas) == 2
    assert peak < 20_000_000


@pytest.mark.parametrize(
    ("updates", "reason"),
    [
        (
            [in_a_struct("a", "b", c={"id": 2, "name": "a.b", "required": False, "type": "long"})],
            "iceberg_field_name_twice",
        ),
        (
            [
                in_a_struct("a", "b", "c"),
                {"action": "set-current-schema", "schema-id": -1},
                {
                    "action": "add-spec",
                    "spec": {"fields": [{"name": "a.c", "source-id": 10, "transform": "identity"}]},
                },
            ],
            "iceberg_partition_name_of_column",
        ),
    ],
)
def test_columns_are_known_by_their_full_names(updates: list[Any], reason: str) -> None:
    decided = decide({EVENTS: table()}, change(updates))
    assert isinstance(decided, IcebergRefused)
    assert reason in repr(decided.phrase)
