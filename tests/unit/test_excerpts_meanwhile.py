"""Does a change whose fragments are open hold if another writer changes the table meanwhile?

The other writer comes after the fragments were opened, and before the operation is submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import lance
import pyarrow as pa
import pytest

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows import direct
from commitlog.client.rows.opening import Opened
from commitlog.model.records import Outcome, Status
from tests.service import Service, service

T = "e$t"
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.int64()), ("name", pa.string())])
Change = Callable[[CommitLog], object]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("meanwhile")) as made:
        yield made


@pytest.fixture
def log(shared: Service) -> Iterator[CommitLog]:
    """Make a table of three fragments with three rows each, of which one is deleted."""
    made = shared.client
    filled(made, 0)
    yield made
    made.drop_table(T)


@pytest.fixture(scope="module")
def other(shared: Service) -> Iterator[CommitLog]:
    with CommitLog(lambda: MemoryLog(shared.cluster)) as client:
        yield client


def filled(log: CommitLog, x: int) -> None:
    log.create_table(T, SCHEMA, primary_key="id")
    for start in (0, 3, 6):
        rows = [{"id": start + i, "x": x, "name": f"name {start + i}"} for i in range(3)]
        log.append(T, rows)
    log.delete(T, "id = 3")


def update(log: CommitLog) -> Outcome:
    return log.update(T, {"x": "x + 1"}, "id = 4")


def delete(log: CommitLog) -> Outcome:
    return log.delete(T, "id = 4 AND x < 1000")


def partial(log: CommitLog) -> Outcome:
    return log.merge_insert(T, pa.table({"id": [4], "x": pa.array([7], pa.int64())}), "id")


def again(log: CommitLog) -> None:
    log.drop_table(T)
    filled(log, 100)


def done(act: Callable[[CommitLog], Outcome], rows: dict[int, Any]) -> dict[int, Any]:
    """Return what an operation makes of the rows."""
    x = rows[4]
    rest = {number: one for number, one in rows.items() if number != 4}
    return rest if act is delete else rest | {4: 7 if act is partial else x + 1}


def held(dataset: lance.LanceDataset) -> dict[int, Any]:
    rows = dataset.to_table().to_pylist()
    assert all(one["name"] == f"name {one['id']}" for one in rows)
    return {one["id"]: one["x"] for one in rows}


@pytest.mark.slow
@pytest.mark.parametrize("act", [update, delete, partial])
@pytest.mark.parametrize(
    ("change", "before", "moved"),
    [
        (lambda log: log.update(T, {"x": "x + 10"}, "id = 4"), 0, {4: 10}),
        (lambda log: log.update(T, {"x": "x + 10"}, "id = 5"), 0, {5: 10}),
        (lambda log: log.add_columns(T, {"more": "id * 2"}), 0, {}),
        (lambda log: log.compact(T), 0, {}),
        (again, 100, {}),
    ],
    ids=["same_row", "same_fragment", "added_column", "compacted", "made_anew"],
)
def test_what_comes_between_is_kept(
    log: CommitLog,
    other: CommitLog,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[CommitLog], Outcome],
    change: Change,
    before: int,
    moved: dict[int, int],
) -> None:
    narrowed, changes = direct.narrowed, [change]

    def meanwhile(info: TableInfo, opened: Opened, *given: Any) -> direct.Narrowed | None:
        found = narrowed(info, opened, *given)
        if opened is log.opened and changes:
            assert found is not None
            changes.pop()(other)
        return found

    monkeypatch.setattr(direct, "narrowed", meanwhile)
    outcome = act(log)
    assert not changes
    assert outcome.status is Status.COMMITTED
    rows = dict.fromkeys((0, 1, 2, 4, 5, 6, 7, 8), before) | moved
    assert held(log.open(T)) == done(act, rows)
    if "more" in log.table(T).schema.names:
        table = log.open(T).to_table()
        assert table["more"].to_pylist() == [2 * one for one in table["id"].to_pylist()]


def test_a_handle_of_an_older_version_reads_and_writes_that_one(log: CommitLog) -> None:
    old = log.open(T)
    rows = held(old)
    for act in (update, partial, delete):
        assert act(log).status is Status.COMMITTED
        assert held(log.open(T, log.table(T).version)) == (rows := done(act, rows))
    assert held(old) == dict.fromkeys((0, 1, 2, 4, 5, 6, 7, 8), 0)
    old.update({"x": "x + 5"}, "id = 7")
    assert held(log.open(T)) == rows | {7: 5}
