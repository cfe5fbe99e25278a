"""What a record or the state has many of costs its number, not the square of it.

Each of these took minutes or hours where now it takes a second: a leader that decides one record
for so long is a log that stands still.
"""

from __future__ import annotations

import json
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from commitlog import words
from commitlog.core.catalogue.namespaces import altered
from commitlog.core.catalogue.version_deletion import extended, merged, without
from commitlog.core.decisions import Found
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.layout_actions import read_spec
from commitlog.core.iceberg.reading import Node, dump_json
from commitlog.core.lance import versions
from commitlog.core.manifest import header, metadata_changes
from commitlog.core.tables.by_name import ByName
from commitlog.core.tables.lance_tables import Place, Table, has_any
from commitlog.lancepb.table_pb2 import Manifest
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import HEADERS_BOUNDED_SINCE, PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    DeleteTableVersions,
    DeregisterTable,
    DropNamespace,
    IcebergChange,
    RegisterTable,
)
from commitlog.model.records import Observation, Transaction
from commitlog.model.table import Policy, TableId
from tests.core_world import ROOT, World, append, commit
from tests.unit.iceberg_examples import create_updates
from tests.unit.test_iceberg_machine import IcebergWorld

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def world() -> World:
    """Return a log with a table of one version."""
    made = World(rules=Rules(PROTOCOL_SUPPORTED))
    made.create()
    made.ask("first", append(1, "a.lance"))
    return made


@pytest.mark.slow
def test_a_thousand_namespaces_are_dropped_among_many(world: World) -> None:
    count, machine = 20_000, world.machine
    for number in range(count):
        name, place = (f"n{number}", "t"), f"{ROOT}/n{number}"
        machine.catalogue.namespaces[name[:1]] = ()
        machine.tables[name] = Table(name, f"i{number}", place, Policy.EVERY, None)
        machine.locations.take(place, Place(name, f"i{number}", is_live=True))
    drops = [DropNamespace((f"n{number}",), cascade=True) for number in range(1_000)]
    outcome = world.ask("drop", *drops)
    assert outcome.status == "committed"
    assert (len(machine.tables), len(machine.catalogue.namespaces)) == (count - 999, count - 1_000)


@pytest.mark.slow
def test_many_ranges_of_versions_are_deleted_among_many(world: World) -> None:
    count, table = 50_000, world.machine.tables["t",]
    assert table.manifest is not None
    table.manifest.version = 10 * count
    holds = tuple((f"commitlog.hold.{i}", f"{4 * i + 2}") for i in range(count // 10))
    assert world.ask("holds", AlterProperties(("t",), upserts=holds)).status == "committed"
    for name, first, code in (("a", 1, ""), ("b", 3, ""), ("c", 3, "EXPECTATION_FAILED")):
        ranges = tuple((4 * i + first, 4 * i + first) for i in range(count))
        outcome = world.ask(name, DeleteTableVersions(("t",), ranges))
        assert outcome.code == code
    outcome = world.ask("d", DeleteTableVersions(("t",), ((2, 2), (4 * count, 4 * count))))
    assert (outcome.code, outcome.reason.name if outcome.reason else "") == (
        "INVALID_OPERATION",
        "versions_held",
    )


@pytest.mark.slow
def test_an_iceberg_change_has_many_requirements() -> None:
    world = IcebergWorld(rules=Rules(PROTOCOL_SUPPORTED))
    one = {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 1}
    many = json.dumps([one] * 25_000)
    assert world.ask("none", IcebergChange(("t",), many, "[]")).code == "NO_SUCH_TABLE"
    create = dump_json(create_updates(f"{ROOT}/t"))
    made = world.ask("made", IcebergChange(("t",), '[{"type":"assert-create"}]', create))
    assert made.status == "committed"
    outcome = world.ask("many", IcebergChange(("t",), many, "[]"))
    assert (outcome.code, len(outcome.failed_requirements)) in (
        ("", 0),
        ("EXPECTATION_FAILED", 100),
    )


def test_an_iceberg_partition_spec_has_many_fields() -> None:
    parts = [{"name": f"p{i}", "transform": "identity", "source-id": 1} for i in range(40_000)]
    assert len(read_spec(Node({"fields": parts}, ""))) == len(parts)
    with pytest.raises(Invalid, match="p7"):
        read_spec(Node({"fields": [*parts, parts[7]]}, ""))


@pytest.mark.slow
def test_a_thousand_alterations_of_many_properties(world: World) -> None:
    many = tuple((f"k{number}", "v") for number in range(10_000))
    for target, is_namespace in ((("t",), False), (("n",), True)):
        world.ask(f"made {target}", CreateNamespace(("n",), exist_ok=True))
        alter = partial(AlterProperties, target, is_namespace=is_namespace)
        assert world.ask(f"many {target}", alter(upserts=many)).status == "committed"
        few = [alter(upserts=((f"k{number}", "w"),)) for number in range(1_000)]
        assert world.ask(f"few {target}", *few).status == "committed"
    assert world.machine.tables["t",].properties == world.machine.catalogue.namespaces["n",]
    assert dict(world.machine.tables["t",].properties)["k999"] == "w"


@pytest.mark.parametrize("protocol", [HEADERS_BOUNDED_SINCE - 1, HEADERS_BOUNDED_SINCE])
def test_changes_of_large_config_are_bounded_together(
    protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each version has all of its config: a thousand changes would make a thousand copies."""
    monkeypatch.setattr(versions, "HEADERS_BYTES_MAX", 50_000)
    world = World(rules=Rules(protocol))
    world.create()
    for name, count, is_committed in (("a", 1, True), ("b", 9, True), ("c", 11, False)):
        operations = []
        for number in range(count):
            change = LanceTransaction(read_version=world.state().version, uuid=f"{name}{number}")
            value = "v" * 5_000 if name == "a" else "1"
            entries = change.update_config.config_updates.update_entries
            entries.add(key=f"{name}{number}", value=value)
            operations.append(commit(change))
        outcome = world.ask(name, *operations)
        is_bounded = protocol >= HEADERS_BOUNDED_SINCE
        assert (outcome.status == "committed") is (is_committed or not is_bounded)
    if is_bounded:
        assert outcome.code == "INVALID_OPERATION"
        assert "Make several changes of one table's config one" in words.worded(outcome).message
    assert world.replayed().digest() == world.machine.digest()


@pytest.mark.parametrize("protocol", [HEADERS_BOUNDED_SINCE - 1, HEADERS_BOUNDED_SINCE])
def test_registered_manifests_are_bounded_together(
    protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file can be registered again and again, and each time its manifest is recorded."""
    monkeypatch.setattr(versions, "HEADERS_BYTES_MAX", 50_000)
    world, path = World(rules=Rules(protocol)), "_versions/1.manifest"
    world.create()
    message = Manifest.FromString(world.state().header.encoded)
    message.config["k"] = "v" * 20_000
    state = world.state().copy()
    state.header = header.ManifestHeader.of(message)
    world.manifests[f"{ROOT}/r", path] = Found(Observation(path, 10, bytes(32)), state=state)
    back = RegisterTable(("r",), "ir", f"{ROOT}/r", 1, path)
    gone = DeregisterTable(("r",))
    is_bounded = protocol >= HEADERS_BOUNDED_SINCE
    for name, count, fits in (("a", 2, True), ("b", 3, False)):
        outcome = world.ask(name, *(one for _ in range(count) for one in (back, gone)))
        assert (outcome.status == "committed") is (fits or not is_bounded)
    if is_bounded:
        assert outcome.code == "INVALID_OPERATION"
        assert "the manifests that it registers" in words.worded(outcome).message
    monkeypatch.setattr(versions, "HEADERS_BYTES_MAX", 10_000)
    assert world.ask("alone", back).status == "committed"
    assert world.replayed().digest() == world.machine.digest()


def test_a_config_of_many_keys_is_read_twice_for_each_change(world: World) -> None:
    """Once to change it, and once for all that is checked of what the change made."""
    keys = LanceTransaction(read_version=2, uuid="k")
    for number in range(40):
        keys.update_config.config_updates.update_entries.add(key=f"key{number}", value="v")
    assert world.ask("keys", commit(keys)).status == "committed"
    changes = []
    for number in range(50):
        change = LanceTransaction(read_version=3, uuid=f"c{number}")
        change.update_config.config_updates.update_entries.add(key=f"new{number}", value="v")
        changes.append(commit(change))
    reads = 0

    def read(data: bytes) -> Manifest:
        nonlocal reads
        reads += 1
        return Manifest.FromString(data)

    stand_in = SimpleNamespace(FromString=read, WriterVersion=Manifest.WriterVersion)
    with pytest.MonkeyPatch.context() as patch:
        for module in (header, metadata_changes):
            patch.setattr(module, "Manifest", stand_in)
        world.decide(world.submitted(Transaction("many", tuple(changes))))
    assert len(changes) < reads <= 2 * len(changes) + 2


def test_config_that_is_set_to_what_it_is_makes_the_same_version_on_any_machine(
    world: World,
) -> None:
    """Whether a delta has a header doesn't depend on what this process has read before."""
    change = LanceTransaction(read_version=2, uuid="c")
    change.update_config.config_updates.update_entries.add(key="k", value="v")
    assert world.ask("set", commit(change)).status == "committed"
    change.read_version, change.uuid = 3, "d"
    decided = world.decide(world.submitted(Transaction("again", (commit(change),))))
    assert decided.changes[0].delta is not None
    assert decided.changes[0].delta.header is not None


def test_alterations_leave_what_a_dict_would_hold() -> None:
    seed = Random().randrange(1 << 32)
    print(f"seed {seed}")
    chance = Random(seed)
    for _ in range(300):
        keys = chance.choices("abcdefgh", k=chance.randrange(5))
        properties = tuple(sorted((key, chance.choice("xy")) for key in keys))
        values = dict(properties)
        for _ in range(4):
            removals = tuple(chance.choices("abcdefgh", k=chance.randrange(3)))
            keys = chance.choices("abcdefgh", k=chance.choice((0, 1, 2, 20)))
            upserts = tuple((key, chance.choice("xyz")) for key in keys)
            properties = altered(
                properties, AlterProperties((), upserts=upserts, removals=removals)
            )
            values = {key: value for key, value in values.items() if key not in removals}
            values.update(upserts)
            assert properties == tuple(sorted(values.items()))


@pytest.mark.slow
@pytest.mark.parametrize("adds", ["schemas", "specs"])
def test_a_wide_iceberg_table_gets_many_schemas_or_specs(adds: str) -> None:
    world = IcebergWorld(rules=Rules(PROTOCOL_SUPPORTED))
    create = dump_json(create_updates(f"{ROOT}/t"))
    world.ask("made", IcebergChange(("t",), '[{"type":"assert-create"}]', create))

    def schema(named: str, columns: int) -> dict[str, object]:
        fields = [
            {"id": i + 1, "name": f"{named}{i}", "required": False, "type": "long"}
            for i in range(columns)
        ]
        return {"action": "add-schema", "schema": {"type": "struct", "fields": fields}}

    wide = [schema("wide", 4_000), {"action": "set-current-schema", "schema-id": -1}]
    many: dict[str, Any] = {
        "schemas": [schema(f"s{number}_", 20) for number in range(300)],
        "specs": [
            {"action": "add-spec", "spec": {"fields": [part, {**part, "name": f"p{number}"}]}}
            for number in range(400)
            for part in [{"source-id": 1, "transform": f"bucket[{number + 1}]", "name": "p"}]
        ],
    }
    change = IcebergChange(("t",), "[]", dump_json([*wide, *many[adds]]))
    assert world.ask("many", change).status == "committed"
    table = world.machine.iceberg.tables["t",]
    assert (len(table.schemas), len(table.specs)) in ((302, 1), (2, 401))
    if adds == "specs":
        ids = [part["field-id"] for spec in table.specs for part in spec["fields"]]
        assert ids == list(range(1000, 1800))
        ids = ids_of_specs(world, [[9_999]], [1], [[2, 1]])
        assert ids[-2:] == [[1800], [1002, 1801]], "what was removed gives no ids"


def ids_of_specs(world: World, *changes: list[Any]) -> list[list[int]]:
    """Add specs by their buckets, and remove others by their ids; return the ids of fields."""
    updates: list[dict[str, Any]] = []
    for change in changes:
        if isinstance(change[0], int):
            updates.append({"action": "remove-partition-specs", "spec-ids": change})
            continue
        [buckets] = change
        fields = [
            {"source-id": 1, "transform": f"bucket[{number}]", "name": f"again{number}"}
            for number in buckets
        ]
        updates.append({"action": "add-spec", "spec": {"fields": fields}})
    changed = IcebergChange(("t",), "[]", dump_json(updates))
    assert world.ask("again", changed).status == "committed"
    specs = world.machine.iceberg.tables["t",].specs
    return [[part["field-id"] for part in spec["fields"]] for spec in specs]


def test_ranges_are_compared_as_sets_of_versions() -> None:
    seed = Random().randrange(1 << 32)
    print(f"seed {seed}")
    chance = Random(seed)
    for _ in range(500):
        some, gone = (
            merged((a, a + chance.randrange(4)) for a in chance.sample(range(30), number))
            for number in (chance.randrange(6), chance.randrange(6))
        )
        versions, away = ({v for a, b in of for v in range(a, b + 1)} for of in (some, gone))
        left = without(some, gone)
        assert {v for a, b in left for v in range(a, b + 1)} == versions - away
        assert all(a[1] < b[0] for a, b in zip(left, left[1:], strict=False))
        assert extended(some, gone) == merged(some, gone)
        for first, last in some:
            assert has_any(first, last, gone) == bool(away.intersection(range(first, last + 1)))


def test_names_are_found_in_their_namespaces_whatever_came_and_went() -> None:
    seed = Random().randrange(1 << 32)
    print(f"seed {seed}")
    chance = Random(seed)
    named, plain = ByName[int](), dict[TableId, int]()
    parts = ("a", "a\0", "a\x01", "b", "aa")
    for number in range(2_000):
        name = tuple(chance.choice(parts) for _ in range(chance.randrange(4)))
        match chance.randrange(4):
            case 0:
                named[name] = plain[name] = number
            case 1:
                assert named.setdefault(name, number) == plain.setdefault(name, number)
            case 2 if name in plain:
                assert named.pop(name) == plain.pop(name)
            case 3 if name in plain:
                del named[name], plain[name]
        if chance.random() < 0.5:
            within = sorted(one for one in plain if one[: len(name)] == name)
            assert named.within(name) == within
            assert named.below(name) == [one for one in within if len(one) > len(name)]
    assert named == plain
