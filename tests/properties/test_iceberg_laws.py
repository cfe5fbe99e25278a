"""Laws of the Iceberg decisions: all or nothing, everywhere the same, rebuilt from the requests."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.core.iceberg.domain import IcebergRefused, encode_state
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.metadata import table_of
from commitlog.core.iceberg.views import decode_state
from commitlog.model.table import TableId
from tests.child import ended
from tests.unit.iceberg_examples import TIME_MS, change, create_updates, decide, schema, snapshot

_NAMES: list[TableId] = [("analytics", name) for name in "abc"]
_SMALL = st.integers(0, 6)


def _snapshot(snapshot_id: int, number: int, parent: int) -> dict[str, Any]:
    return {"action": "add-snapshot", "snapshot": snapshot(snapshot_id, number, parent or None)}


def _ref(name: str, kind: str, snapshot_id: int) -> dict[str, Any]:
    return {
        "action": "set-snapshot-ref",
        "ref-name": name,
        "type": kind,
        "snapshot-id": snapshot_id,
    }


def _spec(source: int, transform: str, name: str) -> dict[str, Any]:
    part = {"source-id": source, "transform": transform, "name": name}
    return {"action": "add-spec", "spec": {"fields": [part]}}


_UPDATE = st.one_of(
    st.builds(_snapshot, _SMALL, _SMALL, _SMALL),
    st.builds(_snapshot, _SMALL, _SMALL, _SMALL),
    st.builds(_ref, st.sampled_from(["main", "main", "b"]), st.just("branch"), _SMALL),
    st.builds(_ref, st.sampled_from(["t", "b"]), st.just("tag"), _SMALL),
    st.builds(
        lambda ids: {"action": "remove-snapshots", "snapshot-ids": ids},
        st.lists(_SMALL, max_size=3),
    ),
    st.builds(
        lambda name: {"action": "remove-snapshot-ref", "ref-name": name},
        st.sampled_from(["main", "b", "t"]),
    ),
    st.builds(
        lambda names: {"action": "add-schema", "schema": schema(*names)},
        st.lists(st.sampled_from("abcd"), unique=True, max_size=4),
    ),
    st.builds(lambda i: {"action": "set-current-schema", "schema-id": i}, st.integers(-1, 2)),
    st.builds(lambda i: {"action": "remove-schemas", "schema-ids": [i]}, st.integers(0, 2)),
    st.builds(_spec, st.integers(1, 3), st.sampled_from(["identity", "bucket[2]"]), st.just("p")),
    st.builds(lambda i: {"action": "set-default-spec", "spec-id": i}, st.integers(-1, 2)),
    st.builds(
        lambda key, value: {"action": "set-properties", "updates": {key: value}},
        st.sampled_from(["a", "b", "write.metadata.previous-versions-max"]),
        st.sampled_from(["1", "2", "\u00e9"]),
    ),
    st.just({"action": "remove-properties", "removals": ["a"]}),
    st.builds(
        lambda version: {"action": "upgrade-format-version", "format-version": version},
        st.integers(1, 3),
    ),
)
_REQUIREMENT = st.one_of(
    st.builds(
        lambda i: {"type": "assert-default-spec-id", "default-spec-id": i}, st.integers(0, 1)
    ),
    st.builds(
        lambda i: {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": i},
        st.none() | _SMALL,
    ),
)
_ALTER = st.tuples(
    st.sampled_from(_NAMES),
    st.just([]) | st.lists(_REQUIREMENT, max_size=1),
    st.lists(_UPDATE, min_size=1, max_size=3),
)
_TRANSACTION = st.lists(_ALTER, min_size=1, max_size=3, unique_by=lambda item: item[0])
# Two tables are there, the third one may come.
_START = [
    [
        (name, [{"type": "assert-create"}], create_updates(f"s3://bucket/{name[-1]}"))
        for name in _NAMES[:2]
    ],
    [(name, [], [_snapshot(1, 1, 0), _ref("main", "branch", 1)]) for name in _NAMES[:2]],
]
_COME = [(_NAMES[2], [{"type": "assert-create"}], create_updates("s3://bucket/c"))]
_HISTORY = st.lists(_TRANSACTION | st.just(_COME), max_size=12).map(lambda more: [*_START, *more])

Tables = dict[TableId, IcebergTable]


def _run(history: Any, *, through_checkpoint: bool = False) -> tuple[Tables, list[Any]]:
    tables: Tables = {}
    answers: list[Any] = []
    for i, transaction in enumerate(history):
        if through_checkpoint:
            tables = {name: decode_state(encode_state(table)) for name, table in tables.items()}
        changes = [change(updates, wishes, name) for name, wishes, updates in transaction]
        before = {name: table.encode() for name, table in tables.items()}
        decided = decide(tables, *changes, time_ms=TIME_MS + i, transaction_id=f"transaction-{i}")
        assert {name: table.encode() for name, table in tables.items()} == before
        if isinstance(decided, IcebergRefused):
            answers.append((decided.code, decided.message, decided.failed))
        else:
            tables = {**tables, **{result.table: result.after for result in decided}}
            answers.append([result.after.metadata_location for result in decided])
    return tables, answers


@pytest.mark.slow
@given(_HISTORY)
@settings(deadline=None)
def test_a_replay_gives_the_same_bytes(history: Any) -> None:
    tables, answers = _run(history)
    again, same_answers = _run(history, through_checkpoint=True)
    assert answers == same_answers
    assert {n: t.encode() for n, t in tables.items()} == {n: t.encode() for n, t in again.items()}
    assert tables == again


@pytest.mark.slow
@given(_HISTORY)
@settings(deadline=None)
def test_every_metadata_file_is_whole(history: Any) -> None:
    for table in _run(history)[0].values():
        written = json.loads(table.encode())
        assert table_of(written, table.metadata_location) == table
        ids = {one["snapshot-id"] for one in written["snapshots"]}
        assert {ref["snapshot-id"] for ref in written["refs"].values()} <= ids
        assert written.get("current-snapshot-id") == written["refs"].get("main", {}).get(
            "snapshot-id"
        )
        numbers = [one["sequence-number"] for one in written["snapshots"]]
        assert max(numbers, default=0) <= written.get("last-sequence-number", 0)
        assert written["current-schema-id"] in {one["schema-id"] for one in written["schemas"]}
        assert written["default-spec-id"] in {one["spec-id"] for one in written["partition-specs"]}
        for name in ("schemas", "partition-specs", "sort-orders", "snapshots"):
            key = {"schemas": "schema-id", "partition-specs": "spec-id", "sort-orders": "order-id"}
            keys = [one[key.get(name, "snapshot-id")] for one in written[name]]
            assert len(keys) == len(set(keys))


@pytest.mark.slow
@given(_HISTORY)
@settings(deadline=None)
def test_names_of_metadata_files_are_never_used_twice(history: Any) -> None:
    made: list[str] = []
    tables: Tables = {}
    for i, transaction in enumerate(history):
        changes = [change(updates, wishes, name) for name, wishes, updates in transaction]
        decided = decide(tables, *changes, time_ms=TIME_MS + i, transaction_id=f"transaction-{i}")
        if not isinstance(decided, IcebergRefused):
            made += [result.after.metadata_location for result in decided if result.writes_file]
            tables = {**tables, **{result.table: result.after for result in decided}}
    assert len(made) == len(set(made))


_PROGRAM = """
from commitlog.core.iceberg.domain import state_digest
from tests.unit.iceberg_examples import create_updates, main_at, snapshot, updated
table = updated(None, *create_updates())
added = ({"action": "add-snapshot", "snapshot": snapshot(i, i)} for i in range(1, 90))
table = updated(table, *added)
for i in (5, 80):
    table = updated(table, main_at(i), {"action": "set-properties", "updates": {f"k{i}": "v"}})
table = updated(table, {"action": "remove-snapshots", "snapshot-ids": [3, 70, 9]})
print(state_digest(table).hex())
"""


@pytest.mark.slow
def test_two_processes_with_other_hash_seeds_agree() -> None:
    digests = {
        ended(
            [sys.executable, "-c", _PROGRAM], env={**os.environ, "PYTHONHASHSEED": seed}, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop()) == 65
