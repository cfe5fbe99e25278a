"""Does a replay write the rows of tables again whose data files are gone, from the log alone?"""

from __future__ import annotations

import random
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lance
import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.storage import store_for
from commitlog.client.accepted.row_reading import read_write
from commitlog.client.accepted.row_rebuild import content_of
from consumers.tools.from_json import from_json
from consumers.tools.replay import replay_rows
from consumers.tools.replay.rebuilt import RebuiltTable
from consumers.tools.replay.replay import Replayed, ReplayOptions, replay
from consumers.tools.rows.writer import RowWriter
from consumers.tools.verify import ProblemKind
from tests.integration.test_row_writer import SCHEMA, T, write, writing
from tests.object_store import log_over_objects, s3_server
from tests.properties.test_row_groups import random_write
from tests.service import Service, service
from tests.verified import place

pytestmark = pytest.mark.usefixtures("nobody_writes")

SEED = 5


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A stopped service with tables of which the log has all rows, some, and none."""
    chance = random.Random(SEED)
    with service(tmp_path_factory.mktemp("rows") / "root") as running, writing(running):
        client = running.client
        options: dict[str, Any] = {"primary_key": "id", "properties": {"rows": "log"}}
        client.create_table(T, SCHEMA, stable_row_ids=True, **options)
        tickets = []
        for number in range(60):
            mode, rows, settings = random_write(chance, number)
            tickets.append(write(client, mode, rows, settings))
            if number % 7 == 0:
                tickets[-1].result(60)
            if number == 30:
                client.compact(T)
        for ticket in tickets:
            ticket.result(60)
        client.create_table("later", SCHEMA, policy="latest", **options)
        client.open("later").add_columns({"more": "cast(null as bigint)"})
        client.append("later", [{"id": n, "a": n, "b": "x", "more": n} for n in range(5)])
        client.create_table("mixed", SCHEMA, **options)
        client.append("mixed", [{"id": 1, "a": 1, "b": "log"}])
        client.append("mixed", [{"id": 2, "a": 1, "b": "file"}], by_log=False)
        client.append("mixed", [{"id": 3, "a": 1, "b": "log"}])
        client.create_table("large", SCHEMA, **options)
        large = {"id": list(range(200_000)), "a": list(range(200_000)), "b": ["x"] * 200_000}
        client.write_rows("large", large, mode="append").result(60)
        client.create_table("files", SCHEMA)
        client.append("files", [{"id": 1, "a": 1, "b": "file"}])
    return running


def rebuilt(made: Service, into: Path, **options: Any) -> dict[str, RebuiltTable]:
    result = replay(made.log, 0, ReplayOptions(into, **options))
    assert result.problems == [], f"seed {SEED}"
    assert from_json(Replayed, asdict(result)).rebuilt == result.rebuilt
    return {one.table: one for one in result.rebuilt}


def test_rows_come_back_where_their_files_are_gone(made: Service, tmp_path: Path) -> None:
    into, hidden = tmp_path / "new", made.root.with_name("hidden")
    before = lance.dataset(str(place(made.root, "t-"))).to_table()
    made.root.rename(hidden)
    try:
        found = rebuilt(made, into)
        assert found.keys() == {T, "later", "mixed", "large"}, "the log has rows of no other one"
        for name in (T, "later"):
            assert (found[name].version, found[name].why) == (found[name].newest, ""), name
        assert content_of(lance.dataset(found[T].path)) == content_of(before)
        assert found[T].rows == before.num_rows > 5
        later = lance.dataset(found["later"].path).to_table().to_pylist()
        assert later == [{"id": n, "a": n, "b": "x", "more": n} for n in range(5)]
        # Of the others it is said from which version on, and why; what was before is there.
        assert (found["mixed"].version, found["mixed"].newest) == (2, 4)
        assert "version 3 (Append)" in found["mixed"].why
        assert lance.dataset(found["mixed"].path).to_table().to_pylist() == [
            {"id": 1, "a": 1, "b": "log"}
        ]
        assert (found["large"].version, found["large"].path) == (1, "")
        assert "its rows are missing" in found["large"].why
    finally:
        hidden.rename(made.root)


def test_rows_are_compared_with_the_table_where_it_is_there(made: Service, tmp_path: Path) -> None:
    assert rebuilt(made, tmp_path / "seen") == {}, "no data is missing"
    assert rebuilt(made, tmp_path / "none", rows="none") == {}
    found = rebuilt(made, tmp_path / "all", rows="all")
    assert found["large"].rows == 200_000, "their file is in the old root"
    assert all(one.is_equal for one in found.values() if not one.why)


def test_other_rows_than_the_log_has_are_told(
    made: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(info: Any, operation: Any, payload: bytes | None) -> Any:
        found = read_write(info, operation, payload)
        found.rows = found.rows.slice(1) if info.name == "later" else found.rows
        found.keys = found.keys[1:] if info.name == "later" else found.keys
        return found

    monkeypatch.setattr(replay_rows, "read_write", other)
    result = replay(made.log, 0, ReplayOptions(tmp_path / "new", rows="all"))
    [problem] = result.problems
    assert (problem.kind, problem.table) == (ProblemKind.ROWS, "later")
    assert "come to 4 rows, and the log says that there are 5" in problem.message


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_rows_of_a_bucket_come_back_where_its_files_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("moto", reason="moto is not installed")
    pytest.importorskip("obstore", reason="obstore is not installed")
    with s3_server(), log_over_objects(tmp_path / "home") as (cluster, client):
        client.create_table(T, SCHEMA, primary_key="id", properties={"rows": "log"})
        rows = [[{"id": number, "a": 1, "b": "x"}] for number in range(3)]
        tickets = [client.write_rows(T, row, mode="upsert") for row in rows]
        tickets[-1].result(60, "accepted")
        RowWriter(client).drain(threading.Event())
        assert tickets[-1].result(60).inserted == 1
        log, store = MemoryLog(cluster), store_for(client.table(T).location)

        def found(into: str) -> list[RebuiltTable]:
            return replay(log, 0, ReplayOptions(tmp_path / into)).rebuilt

        assert found("there") == []
        for name in list(store.names("data")):
            store.delete(f"data/{name}")
        [gone] = found("gone")
        assert (gone.version, gone.rows, gone.why) == (gone.newest, 3, "")
        monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:1")
        [away] = found("away")
        assert (away.version, away.rows, away.why) == (away.newest, 3, "")
