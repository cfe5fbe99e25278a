"""Taking back what was done to tables of both formats: drops, and changes since a position."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from commitlog.errors import NoSuchTable, NoSuchVersion, TableAlreadyExists, Unavailable
from consumers import cli
from consumers.commands import undo
from consumers.commands.exit_codes import ExitCode
from tests.namespace_world import World, numbers

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")

_ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


@pytest.fixture(scope="module")
def catalog(world: World) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("undoing", type="rest", uri=world.uri)


@pytest.fixture
def space(world: World, catalog: Any) -> str:
    name = world.fresh_name()
    catalog.create_namespace(name)
    return name


def rows_of(catalog: Any, name: str) -> list[int]:
    found = catalog.load_table(name).scan().to_arrow()["id"].to_pylist()
    return sorted(found)


def test_a_lance_client_is_told_that_a_table_is_one_of_icebergs(
    world: World, catalog: Any, space: str
) -> None:
    catalog.create_table(f"{space}.t", _ROWS.schema)
    asked: list[Callable[[], Any]] = [
        lambda: world.log.open([space, "t"]),
        lambda: world.log.append([space, "t"], _ROWS),
        lambda: world.log.table([space, "t"]),
    ]
    for ask in asked:
        with pytest.raises(NoSuchTable, match="is an Iceberg table"):
            ask()


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_an_iceberg_table_comes_back_as_it_was(
    world: World, catalog: Any, space: str, codec: str
) -> None:
    properties = {"write.metadata.compression-codec": codec}
    table = catalog.create_table(f"{space}.t", _ROWS.schema, properties=properties)
    table.append(_ROWS)
    before = table.refresh().metadata
    catalog.drop_table(f"{space}.t")
    outcome = world.log.undrop([space, "t"])
    assert outcome.results[0].metadata_location == table.metadata_location
    again = catalog.load_table(f"{space}.t")
    assert again.metadata == before
    again.append(_ROWS)
    assert rows_of(catalog, f"{space}.t") == [1, 1, 2, 2, 3, 3]
    with pytest.raises(TableAlreadyExists):
        world.log.undrop([space, "t"])

    catalog.drop_table(f"{space}.t")
    catalog.create_table(f"{space}.t", _ROWS.schema)
    status, body = world.post(
        "/v1/log/undrop", {"table": f"{space}$t", "name": [space, "old"]},
    )  # fmt: skip
    assert (status, body["results"][0]["operation"]) == (200, "IcebergChange")
    assert rows_of(catalog, f"{space}.old") == [1, 1, 2, 2, 3, 3]
    assert rows_of(catalog, f"{space}.t") == []


def test_what_was_purged_does_not_come_back(world: World, catalog: Any, space: str) -> None:
    table = catalog.create_table(f"{space}.t", _ROWS.schema)
    table.append(_ROWS)
    catalog.drop_table(f"{space}.t")
    for file in (Path(table.location()) / "data").iterdir():
        file.unlink()
    with pytest.raises(NoSuchTable, match="its files were removed"):
        world.log.undrop([space, "t"])
    with pytest.raises(NoSuchTable, match="was dropped from the log"):
        world.log.undrop([space, "never"])


def test_a_table_without_its_data_does_not_come_back(world: World, space: str) -> None:
    """A committer that starts without a checkpoint writes manifests of dropped tables again."""
    folder = Path(world.write([space, "gone"], numbers(0, 3)).uri)
    world.log.drop_table([space, "gone"])
    [file] = (folder / "data").iterdir()
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(NoSuchTable, match=rf"files were removed: its data file {file.name}"):
        world.log.undrop([space, "gone"])
    file.write_bytes(content)
    world.log.undrop([space, "gone"])
    world.log.drop_table([space, "gone"])
    [manifest] = (folder / "_versions").glob("*.manifest")
    manifest.unlink()
    with pytest.raises(NoSuchTable, match="files were removed: the manifest of version 1"):
        world.log.undrop([space, "gone"])


@pytest.mark.slow
def test_tables_of_both_formats_go_back_by_one_record(
    world: World, catalog: Any, space: str
) -> None:
    from pyiceberg.types import StringType

    table = catalog.create_table(f"{space}.t", _ROWS.schema, properties={"a": "1"})
    table.append(_ROWS)
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "one").commit()
    world.write([space, "l"], numbers(0, 3))
    empty = catalog.create_table(f"{space}.empty", _ROWS.schema)
    same = catalog.create_table(f"{space}.same", _ROWS.schema)
    position = world.log.position()[0]
    then = catalog.load_table(f"{space}.t")

    table.append(_ROWS)
    table.update_schema().add_column("name", StringType()).commit()
    table.transaction().set_properties({"a": "2", "b": "3"}).commit_transaction()
    table.manage_snapshots().remove_tag("one").commit()
    empty.append(_ROWS)
    world.open([space, "l"]).insert(numbers(3, 9))
    names = [f"{space}${name}" for name in ("t", "l", "empty", "same")]

    status, body = world.post("/v1/log/restore", {"tables": names, "position": position})
    assert status == 200, body
    assert {one["table"][-1] for one in body["results"]} == {"t", "l", "empty"}
    now = catalog.load_table(f"{space}.t")
    assert now.current_snapshot() == then.current_snapshot()
    assert now.schema() == then.schema()
    assert now.metadata.refs == then.metadata.refs
    own = "commitlog.position"
    assert {k: v for k, v in now.properties.items() if k != own} == {
        k: v for k, v in then.properties.items() if k != own
    }
    assert now.properties[own] == str(body["sequence"])
    assert len(now.metadata.snapshots) == 2, "what was committed since stays in the history"
    assert rows_of(catalog, f"{space}.empty") == []
    assert world.open([space, "l"]).count_rows() == 3
    assert catalog.load_table(f"{space}.same").metadata == same.metadata
    assert world.log.restore(names, position) is None
    again = world.post("/v1/log/restore", {"tables": names, "position": position})
    assert again == (200, {"results": []})
    # And forward again, and on.
    world.log.restore(names, body["sequence"] - 1)
    assert len(rows_of(catalog, f"{space}.t")) == 6
    catalog.load_table(f"{space}.empty").append(_ROWS)
    assert rows_of(catalog, f"{space}.empty") == [1, 1, 2, 2, 3, 3]


def test_a_table_that_is_another_one_by_now_stays_as_it_is(
    world: World, catalog: Any, space: str
) -> None:
    table = catalog.create_table(f"{space}.t", _ROWS.schema)
    table.append(_ROWS)
    position = world.log.position()[0]
    first = table.current_snapshot().snapshot_id
    table.append(_ROWS)
    table.maintenance.expire_snapshots().by_id(first).commit()
    with pytest.raises(NoSuchVersion, match="was expired"):
        world.log.restore([[space, "t"]], position)
    catalog.drop_table(f"{space}.t")
    with pytest.raises(NoSuchTable, match="restore the old one"):
        world.log.restore([[space, "t"]], position)
    catalog.create_table(f"{space}.t", _ROWS.schema)
    with pytest.raises(NoSuchTable, match="restore the old one"):
        world.log.restore([[space, "t"]], position)


def test_a_request_that_is_sent_again_undoes_once(world: World, catalog: Any, space: str) -> None:
    table = catalog.create_table(f"{space}.t", _ROWS.schema)
    position = world.log.position()[0]
    table.append(_ROWS)
    body = {"tables": [f"{space}$t"], "position": position}
    headers = {"Idempotency-Key": "0190b0a0-0000-7000-8000-000000000001"}
    first = world.post("/v1/log/restore", body, headers=headers)
    assert first[0] == 200
    table.refresh().append(_ROWS)
    assert world.post("/v1/log/restore", body, headers=headers) == first
    assert rows_of(catalog, f"{space}.t") == [1, 2, 3]
    assert json.loads(world.record(first[1]["transaction_id"]).operations[0].updates)  # type: ignore[union-attr]
    for wrong in ({"tables": [], "position": 1}, {"tables": ["t"]}, {**body, "more": 1}):
        assert world.post("/v1/log/restore", wrong)[0] == 400


@pytest.mark.parametrize(
    "command", ["tag x --at 1", "tag x --remove", "rollback t --to 1", "undrop t"]
)
def test_who_undoes_in_a_long_log_can_give_it_time(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reads the log tells to ask again with a longer timeout."""
    log = MagicMock()
    for name in ("tag", "untag", "restore", "undrop"):
        getattr(log, name).side_effect = Unavailable("time ran out")
    monkeypatch.setattr(undo, "connect_client", lambda *_: nullcontext(log))
    assert cli.main([*command.split(), "--timeout", "7200"]) == ExitCode.UNAVAILABLE
    ((_, _, how),) = log.mock_calls
    assert how["timeout"] == 7200
