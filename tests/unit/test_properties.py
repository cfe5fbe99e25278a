"""Properties are set by Python, HTTP and the command, each by one record; wrong policies never."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.errors import InvalidRequest, NoSuchTable, TableAlreadyExists
from commitlog.model.operations import CreateNamespace
from consumers.commands import properties as commands
from consumers.runtime.config import ConfigurationError
from consumers.tools.maintenance.maintenance_policy import Policies
from tests.namespace_world import World
from tests.service import SCHEMA

KEY = "commitlog.maintain.target-rows"


class Known(World):
    """Others can connect to its log."""

    def __init__(self, root: Path) -> None:
        self.cluster = MemoryCluster()
        super().__init__(root, lambda: MemoryLog(self.cluster))

    def connect(self, *given: object) -> CommitLog:
        return CommitLog(lambda: MemoryLog(self.cluster))

    def policy(self, table: str) -> int:
        """Return how many rows maintenance gives a table's fragments."""
        policies = Policies(self.log, {})
        policies.refresh()
        return policies.of(self.log.table(table)).target_rows


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    running = Known(tmp_path_factory.mktemp("properties"))
    running.log.submit(None, CreateNamespace(("shop",))).result().raise_for_conflict()
    yield running
    running.close()


@pytest.fixture
def table(world: Known) -> str:
    name = f"shop${world.fresh_name()}"
    world.log.create_table(name, SCHEMA)
    return name


def test_properties_of_a_table_its_namespace_and_the_log(world: Known, table: str) -> None:
    world.log.set_properties([], {KEY: "300"}, is_namespace=True)
    assert world.policy(table) == 300
    world.log.set_properties("shop", {KEY: "200"}, is_namespace=True)
    assert world.policy(table) == 200
    outcome = world.log.set_properties(table, {KEY: "100", "mine": "yes"})
    assert world.policy(table) == 100
    assert outcome.sequence
    assert world.log.table(table).properties == {KEY: "100", "mine": "yes"}
    world.log.set_properties(table, {KEY: None})
    world.log.set_properties("shop", {KEY: None}, is_namespace=True)
    world.log.set_properties([], {KEY: None}, is_namespace=True)
    assert world.policy(table) == 1_048_576
    assert world.log.table(table).properties == {"mine": "yes"}
    with pytest.raises(NoSuchTable, match="nowhere"):
        world.log.set_properties("shop$nowhere", {KEY: "100"})


WRONG = [
    ({KEY: "many"}, "cannot be 'many'; it is a whole number from 1 to"),
    ({"commitlog.maintain.nix": "1"}, "unknown property commitlog.maintain.nix"),
    ({"commitlog.hold.x": "1"}, "'commitlog.hold.x' can't be set"),
    ({"": "1"}, "'' can't be set"),
    ({}, "no property is given"),
]


@pytest.mark.parametrize(("values", "told"), WRONG)
def test_what_cannot_be_is_refused_before_it_is_recorded(
    world: Known, table: str, values: dict[str, str], told: str
) -> None:
    end = world.log.position()
    with pytest.raises(InvalidRequest, match=told):
        world.log.set_properties(table, values)
    status, body = world.post("/v1/log/properties", {"table": table, "values": values})
    assert status == 400
    assert not values or told in json.dumps(body).replace("\\'", "'")
    assert world.log.position() == end


def test_a_table_is_not_created_with_a_policy_that_cannot_be(world: Known) -> None:
    wrong = {KEY: "many"}
    with pytest.raises(InvalidRequest, match="cannot be 'many'"):
        world.log.create_table("shop$wrong", SCHEMA, properties=wrong)
    asked = {"id": ["shop", "wrong"], "properties": wrong}
    status, body = world.post("/v1/table/shop$wrong/declare", asked)
    assert (status, "cannot be 'many'" in json.dumps(body)) == (400, True)


def test_a_namespace_gets_no_policy_that_cannot_be(world: Known) -> None:
    wrong = {KEY: "many"}
    for path, body in (
        ("/v1/namespace/wrong/create", {"id": ["wrong"], "properties": wrong}),
        ("/v1/namespaces", {"namespace": ["wrong"], "properties": wrong}),
        ("/v1/namespaces/shop/properties", {"updates": wrong}),
    ):
        status, told = world.post(path, body)
        assert (path, status, "cannot be 'many'" in json.dumps(told)) == (path, 400, True)
    found = {one.namespace: dict(one.properties) for one in world.log.namespaces()}
    assert ("wrong",) not in found
    assert found["shop",] == {}


def test_a_table_gets_another_name(world: Known) -> None:
    log, (old, new, taken) = world.log, (f"shop${world.fresh_name()}" for _ in range(3))
    log.create_table(old, SCHEMA, primary_key="id", properties={"mine": "yes"})
    log.create_table(taken, SCHEMA)
    log.append(old, {"id": [1, 2], "name": ["a", "b"]})
    handle = log.open(old)
    with pytest.raises(TableAlreadyExists, match=f"{re.escape(taken)} already exists"):
        log.rename_table(old, taken)
    outcome = log.rename_table(old, new, properties={"why": "clearer"})
    found = log.table(new)
    assert (found.version, found.properties, found.location) == (2, {"mine": "yes"}, handle.uri)
    assert outcome.transaction_id != ""
    rows = pa.table({"id": [3], "name": ["c"]}, schema=handle.schema)
    for gone in (
        lambda: log.append(old, rows),
        lambda: handle.insert(rows),
        lambda: log.open(old),
    ):
        with pytest.raises(NoSuchTable):
            gone()
    with pytest.raises(NoSuchTable, match=f"table {re.escape(old)} does not exist"):
        log.rename_table(old, new)
    log.merge_insert(new, {"id": [2, 3], "name": ["b", "c"]})
    assert sorted(log.open(new).to_table()["id"].to_pylist()) == [1, 2, 3]
    log.rename_table(new, world.fresh_name())


def test_properties_over_http(world: Known, table: str) -> None:
    headers = {"Idempotency-Key": "0190b0a0-0000-7000-8000-00000000000a"}
    body = {"table": table, "values": {KEY: "100", "mine": "yes"}}
    first = world.post("/v1/log/properties", body, headers=headers)
    assert first[0] == 200
    assert world.post("/v1/log/properties", body, headers=headers) == first
    assert world.policy(table) == 100
    assert world.post("/v1/log/properties", {"table": table, "values": {KEY: None}})[0] == 200
    assert world.log.table(table).properties == {"mine": "yes"}
    spaces: tuple[str | list[str], ...] = ("shop", [])
    for space in spaces:
        asked: dict[str, object] = {"namespace": space, "values": {KEY: "50"}}
        assert world.post("/v1/log/properties", asked)[0] == 200
        assert world.policy(table) == 50
        asked = {"namespace": space, "values": {KEY: None}}
        assert world.post("/v1/log/properties", asked)[0] == 200
    for wrong in ({"values": {KEY: "1"}}, {**body, "namespace": "shop"}, {**body, "more": 1}):
        assert world.post("/v1/log/properties", wrong)[0] == 400


def test_properties_by_the_command(
    world: Known, table: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "connect_client", world.connect)

    def told(*name: str, **more: object) -> dict[str, str]:
        commands.properties(*name, as_json=True, **more)  # type: ignore[arg-type]
        return {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)}

    assert told(table) == {}
    assert told(table, set=(f"{KEY}=100", "mine=a=b")) == {KEY: "100", "mine": "a=b"}
    assert told(table, unset=("mine",)) == {KEY: "100"}
    assert told("shop", namespace=True, set=(f"{KEY}=9",)) == {KEY: "9"}
    assert told("shop", namespace=True, unset=(KEY,)) == {}
    assert told(namespace=True, set=(f"{KEY}=9",)) == {KEY: "9"}
    assert told(namespace=True, unset=(KEY,)) == {}
    for name, more, why in (
        ("", {}, "no table is given"),
        (table, {"set": ("mine",)}, "NAME=VALUE"),
        (table, {"set": ("=value",)}, "NAME=VALUE"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            commands.properties(name, **more)  # type: ignore[arg-type]
    with pytest.raises(NoSuchTable, match="no namespace 'nowhere'. The namespaces are shop"):
        commands.properties("nowhere", namespace=True)
