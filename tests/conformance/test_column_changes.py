"""Do changes of columns land beside writers at full speed, by whatever way they are asked for?"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pytest

from commitlog import CommitLog
from commitlog.client.columns import ChangesColumns
from commitlog.client.new_columns import NewColumns
from commitlog.client.upkeep import TRY_PROPERTY, Kept
from commitlog.errors import InvalidTransaction
from commitlog.model.operations import LanceCommit
from consumers.tools.verify import VerifyOptions, verify
from tests.namespace_world import World
from tests.operations_world import T, decided_again_alike, opened, three_fragments
from tests.service import SCHEMA, rows
from tests.waiting import at_once, meanwhile, wait_until

WRITERS = 8


@contextmanager
def writers(log: CommitLog, table: str) -> Iterator[list[int]]:
    """Append rows with an `id` alone by eight threads; yield how often each one did."""
    ended, counts = threading.Event(), [0] * WRITERS
    failures: list[Exception] = []

    def write(number: int) -> None:
        while not ended.is_set():
            try:
                log.append(table, pa.table({"id": [counts[number]], "name": ["new"]}))
                counts[number] += 1
            except InvalidTransaction:
                pass  # written with the columns of before
            except Exception as error:
                failures.append(error)

    with meanwhile(lambda _: at_once(write, range(WRITERS)), ended):
        wait_until(lambda: all(counts), "a commit of each writer")
        yield counts
    assert failures == []


TABLE = "home$t"
CHANGES: list[tuple[Callable[[Any], None], str, dict[str, Any]]] = [
    (
        lambda dataset: dataset.add_columns({"x": "id * 2", "y": "id * 3", "z": "id"}),
        "add_columns",
        {
            "new_columns": [
                {"name": "x", "expression": "id * 2"},
                {"name": "y", "expression": "id * 3"},
                {"name": "z", "expression": "id"},
            ]
        },
    ),
    (
        lambda dataset: dataset.alter_columns(
            {"path": "x", "name": "twice"}, {"path": "z", "nullable": True}
        ),
        "alter_columns",
        {"alterations": [{"path": "x", "rename": "twice"}, {"path": "z", "nullable": True}]},
    ),
    (
        lambda dataset: dataset.alter_columns(
            {"path": "y", "data_type": pa.int32(), "name": "thrice"}
        ),
        "alter_columns",
        {"alterations": [{"path": "y", "rename": "thrice", "data_type": {"type": "int32"}}]},
    ),
    (
        lambda dataset: dataset.alter_columns({"path": "name", "nullable": False}),
        "alter_columns",
        {"alterations": [{"path": "name", "nullable": False}]},
    ),
    (
        lambda dataset: dataset.drop_columns(["z"]),
        "drop_columns",
        {"columns": ["z"]},
    ),
]


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Of each change of columns: why its tries were refused."""
    found: list[tuple[str, ...]] = []
    change = ChangesColumns._change_columns

    def noted(*given: Any) -> Kept:
        kept = change(*given)
        found.append(kept.refusals)
        return kept

    monkeypatch.setattr(ChangesColumns, "_change_columns", noted)
    return found


@pytest.mark.parametrize("way", ["handle", "HTTP"])
def test_each_change_lands_at_its_first_try(
    way: str, tmp_path: Path, refused: list[tuple[str, ...]]
) -> None:
    world = World(tmp_path)
    try:
        log = world.log
        log.create_table(TABLE, SCHEMA)
        log.append(TABLE, rows(1, 2, 3))
        log.open(TABLE).update_schema_metadata({"owner": "ann"})
        with writers(log, TABLE):
            for change, path, body in CHANGES:
                if way == "handle":
                    dataset: Any = log.open(TABLE)
                    change(dataset)
                    made = dataset.version
                    transaction = world.record(dataset.read_transaction(made).uuid)
                else:
                    key = str(uuid.uuid4())
                    given = {"Idempotency-Key": key}
                    status, answer = world.post(f"/v1/table/{TABLE}/{path}", body, headers=given)
                    assert status == 200, answer
                    made, transaction = answer["version"], world.record(key)
                    again = world.post(f"/v1/table/{TABLE}/{path}", body, headers=given)
                    assert again[1]["version"] == made
                    assert answer["transaction_id"] == key
                assert [type(one) for one in transaction.operations] == [LanceCommit]
                assert dict(transaction.properties)[TRY_PROPERTY] == "1"
        assert refused == [()] * len(CHANGES)
        found = lance.dataset(log.table(TABLE).location)
        found.validate()  # type: ignore[no-untyped-call]
        assert found.schema.names == ["id", "name", "twice", "thrice"]
        assert found.schema.metadata == {b"owner": b"ann"}
        assert found.schema.field("thrice").type == pa.int32()
        assert not found.schema.field("name").nullable
        for row in found.to_table().to_pylist():
            # Rows that came once the columns were there have no values.
            assert row["twice"] in (2 * row["id"], None)
            assert row["thrice"] in (3 * row["id"], None)
        verdict = verify(world._log, 0, VerifyOptions(root=tmp_path))
        assert (verdict.problems, verdict.decided_again) == ([], verdict.outcomes)
    finally:
        world.close()


def test_no_null_comes_into_a_column_that_is_refused_them_meanwhile(
    tmp_path: Path, refused: list[tuple[str, ...]]
) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=False) as made:
        log = made.client
        strict: Any = {"path": "name", "nullable": False}
        upon = NewColumns.attempt

        def beaten_by(*appended: pa.Table) -> Any:
            left = list(appended)

            def attempt(columns: NewColumns, *given: Any) -> Any:
                done = upon(columns, *given)
                while left:
                    log.append(T, left.pop())
                return done

            return mock.patch.object(NewColumns, "attempt", attempt)

        with beaten_by(rows(100)):
            log.open(T).alter_columns(strict)
        assert refused == [()], "the row that came meanwhile is looked at, not all of them again"
        assert not opened(made).schema.field("name").nullable
        log.alter_columns(T, {"path": "name", "nullable": True})
        null = pa.table({"id": [101], "name": [None]}, schema=SCHEMA)
        with beaten_by(null), pytest.raises(OSError, match="NULL"):
            log.open(T).alter_columns(strict)
        assert opened(made).schema.field("name").nullable
        decided_again_alike(made)


def test_values_that_a_reader_brings_are_added_to_the_version_that_was_opened(
    tmp_path: Path, refused: list[tuple[str, ...]]
) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=False) as made:
        values = pa.table({"rank": list(range(12))})
        made.client.open(T).add_columns(values.to_reader())
        assert opened(made).to_table()["rank"].to_pylist() == list(range(12))
        made.client.drop_columns(T, ["rank"])
        late = made.client.open(T)
        made.client.append(T, rows(100))
        with pytest.raises(
            InvalidTransaction, match="version 6 of ns.t, and 7 is the newest.*merge_"
        ):
            late.add_columns(values.to_reader())
        more = pa.table({"rank": list(range(13))})
        done = NewColumns.attempt

        def beaten(columns: NewColumns, *given: Any) -> Any:
            message = done(columns, *given)
            made.client.append(T, rows(101))
            return message

        with (
            mock.patch.object(NewColumns, "attempt", beaten),
            pytest.raises(InvalidTransaction, match="added meanwhile.*merge_insert"),
        ):
            made.client.add_columns(T, more.to_reader())
        assert opened(made).schema.names == ["id", "name"]
        assert refused == [()]
