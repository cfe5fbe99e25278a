"""Odd metadata that somebody registered ends no leader: what it decides of it is an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from commitlog.core.iceberg.domain import IcebergRefused, IcebergResult, decide_iceberg
from commitlog.core.iceberg.metadata import table_of
from commitlog.core.iceberg.reading import dump_json, load_json
from commitlog.model.limits import PROTOCOL_SUPPORTED
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code
from tests.unit.iceberg_examples import (
    EVENTS,
    LOCATION,
    TIME_MS,
    TRANSACTION,
    change,
    main_at,
    metadata,
    snapshot,
    table,
)

UNREADABLE = Phrase("iceberg_rebase_off", {"property": "list", "value": "unreadable"})


def decide(
    before: Any, *updates: Any, requires: Any = (), why_not: Phrase | None = None, protocol: int = 6
) -> tuple[IcebergResult, ...] | IcebergRefused:
    return decide_iceberg(
        {EVENTS: before},
        [change(updates, requires)],
        time_ms=TIME_MS,
        transaction_id=TRANSACTION,
        namespaces={("analytics",)},
        others={},
        fits=lambda _: why_not,
        protocol=protocol,
    )


def added(decided: tuple[IcebergResult, ...]) -> Mapping[str, Any]:
    found = decided[0].after.snapshots.get(9)
    assert found is not None
    return found


@pytest.mark.parametrize("operation", ["append", "overwrite"])
@pytest.mark.parametrize(
    "edit",
    [
        lambda one: one.pop("summary"),
        lambda one: one.update(summary=None),
        lambda one: one.update(summary="append"),
        lambda one: one.update(summary={}),
        lambda one: one.update(summary={"operation": ["append"], "total-records": 5}),
    ],
)
def test_a_late_snapshot_goes_over_one_whose_summary_is_odd(
    edit: Callable[[dict[str, Any]], object], operation: str
) -> None:
    found = metadata(2, snapshots=3)
    edit(found["snapshots"][2])
    found["refs"]["main"]["snapshot-id"] = found["current-snapshot-id"] = 3
    summary = {"operation": operation, "added-records": "1", "total-records": "1"}
    late = snapshot(9, 9, 2, summary=summary)
    decided = decide(
        table_of(found, f"{LOCATION}/metadata/00007-x.metadata.json"),
        {"action": "add-snapshot", "snapshot": late},
        main_at(9),
        requires=[{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 2}],
    )
    if operation == "append":
        assert not isinstance(decided, IcebergRefused), decided
        assert "total-records" not in added(decided)["summary"]
    else:  # what the overtaken one did isn't known
        assert isinstance(decided, IcebergRefused)
        assert decided.code is Code.EXPECTATION_FAILED


@pytest.mark.parametrize("parent", [None, "one", [1], 1e400])
def test_a_snapshot_whose_parent_is_no_number_has_none(parent: object) -> None:
    found = metadata(2, snapshots=3)
    found["snapshots"][0]["parent-snapshot-id"] = parent
    found["refs"]["main"]["snapshot-id"] = found["current-snapshot-id"] = 1
    decided = decide(
        table_of(found, f"{LOCATION}/metadata/00007-x.metadata.json"),
        {"action": "add-snapshot", "snapshot": snapshot(9, 9, 3)},
        main_at(9),
        requires=[{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 3}],
    )
    assert not isinstance(decided, IcebergRefused), decided
    assert added(decided)["parent-snapshot-id"] == 1


def test_what_was_read_as_infinity_is_written_as_such() -> None:
    text = '{"x":1e400,"y":[-1E+999,1.5],"z":"\\"Infinity, NaN\\\\","Infinity":{"n":-1e400}}'
    value = load_json(text, "x")
    written = dump_json(value)
    assert load_json(written, "x") == value
    assert dump_json(load_json(written, "x")) == written
    assert '"y":[-1e999,1.5],"z":"\\"Infinity, NaN\\\\"' in written
    with pytest.raises(ValueError, match="NaN"):
        dump_json({"x": [float("nan"), "Infinity"]})
    registered = table(2, properties={"owner": "me"}, x=float("inf"))
    assert table_of(load_json(registered.to_bytes(), "x"), "m").to_bytes() == registered.to_bytes()


def test_the_only_schema_of_an_old_table_may_have_a_null_id() -> None:
    found = metadata(1, snapshots=0)
    found["schema"] = {**found.pop("schemas")[0], "schema-id": None}
    made = table_of(found, "m")
    assert made.current_schema_id == 0
    assert dump_json("schema-id") + ":0" in made.to_bytes().decode()


@pytest.mark.parametrize("number", [None, 0, 1])
@pytest.mark.parametrize("version", [2, 3])
def test_the_first_snapshot_needs_no_number_though_its_list_cannot_be_read(
    number: int | None, version: int
) -> None:
    more = {} if version == 2 else {"first-row-id": 0, "added-rows": 3}
    first = snapshot(9, 1, **more)
    first.pop("sequence-number")
    if number is not None:
        first["sequence-number"] = number
    updates = ({"action": "add-snapshot", "snapshot": first}, main_at(9))
    empty = table(version, snapshots=0)
    decided = decide(empty, *updates, why_not=UNREADABLE, protocol=PROTOCOL_SUPPORTED)
    assert not isinstance(decided, IcebergRefused), decided
    assert decided[0].after.refs["main"]["snapshot-id"] == 9
    if not number:
        before = decide(empty, *updates, why_not=UNREADABLE, protocol=5)
        assert isinstance(before, IcebergRefused)
