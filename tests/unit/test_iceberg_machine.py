"""Iceberg tables in the machine: decided with the rest of a record, replayed, saved."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from commitlog.core.decisions import ChangeKind, FileWanted, Found, Need, PlaceWanted, Wanted
from commitlog.core.iceberg.creating import register_change
from commitlog.core.partition.machine import Machine
from commitlog.errors import CorruptLog
from commitlog.model.limits import PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    DeclareTable,
    DropNamespace,
    DropTable,
    IcebergChange,
    RenameTable,
)
from commitlog.model.records import Code, Observation, Outcome, Status, TableAbsent
from consumers.partition.allowed_places import AllowedPlaces
from tests.core_world import ROOT, World, append, replayed_from_parts
from tests.unit.iceberg_examples import LOCATION, change, create_updates, metadata

EVENTS, OTHER = ("db", "events"), ("db", "other")
CREATE = ({"type": "assert-create"},)


def made(name: tuple[str, ...] = EVENTS, location: str = "") -> IcebergChange:
    """What makes a table."""
    return change(create_updates(location or f"{ROOT}/ice/{name[-1]}"), CREATE, name)


def set_property(name: tuple[str, ...] = EVENTS, **values: str) -> IcebergChange:
    return change([{"action": "set-properties", "updates": values}], (), name)


def rounds_of_looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many things each decision from now on wants to look at; 0: none, it decided."""
    rounds: list[int] = []
    decide = Machine.decide

    def counted(machine: Machine, *arguments: Any) -> Any:
        decision = decide(machine, *arguments)
        rounds.append(len(decision.wanted) if isinstance(decision, Need) else 0)
        return decision

    monkeypatch.setattr(Machine, "decide", counted)
    return rounds


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 200])
def test_however_many_tables_a_record_makes_it_looks_once(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = IcebergWorld(rules=Rules(PROTOCOL_SUPPORTED))
    world.ask("ns", CreateNamespace(("db",)))
    rounds = rounds_of_looks(monkeypatch)
    outcome = world.ask("many", *(made(("db", f"t{number}")) for number in range(count)))
    assert outcome.status is Status.COMMITTED
    # The folder of all, and two of each table's own.
    assert rounds[:2] == [1 + 2 * count, 0]


def metadata_at(location: str) -> IcebergChange:
    updates = {"write.metadata.path": location}
    return change([{"action": "set-properties", "updates": updates}], (), EVENTS)


def wants_uuid(uuid: str, name: tuple[str, ...] = EVENTS) -> IcebergChange:
    updates = [{"action": "set-properties", "updates": {"a": "b"}}]
    return change(updates, [{"type": "assert-table-uuid", "uuid": uuid}], name)


@pytest.fixture
def world() -> IcebergWorld:
    made_world = IcebergWorld()
    made_world.ask("ns", CreateNamespace(("db",)))
    return made_world


class IcebergWorld(World):
    """Keeps metadata files as well; tables may name files below `LOCATION`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.files: dict[str, bytes] = {}

    def run(self, record: Any) -> Outcome:
        submitted = self.submitted(record)
        decision = self.decide(submitted)
        assert decision == self.decide(submitted), "deciding changes nothing"
        for file in decision.files:
            self.files.setdefault(f"{file.location}/{file.path}", file.data)
        for data in decision.recordings:
            self.recordings[hashlib.sha256(data).digest()] = data
        changes = self.machine.apply(submitted, decision.outcome, changes=decision.changes)
        assert changes == decision.changes
        self.log.append((submitted, decision.outcome))
        self.changes.extend(changes)
        return decision.outcome

    def observe(self, wanted: Wanted) -> Found:
        if isinstance(wanted, FileWanted) and wanted.location == ROOT:
            data = self.files.get(f"{ROOT}/{wanted.path}")
            return Found(Observation(wanted.path, -1 if data is None else len(data)))
        if isinstance(wanted, PlaceWanted):
            is_allowed = AllowedPlaces(ROOT, [LOCATION]).holds(wanted.path)
            return Found(Observation(wanted.path, 0 if is_allowed else -1))
        return super().observe(wanted)

    def check_replay(self) -> None:
        """A follower and a checkpoint come to the same state, and go on from it alike."""
        replayed = self.replayed()
        restored = replayed_from_parts(self.machine)
        assert replayed.iceberg.tables == self.machine.iceberg.tables
        assert restored.iceberg.tables == self.machine.iceberg.tables
        assert replayed.digest() == restored.digest() == self.machine.digest()


def test_a_table_is_made_and_changed(world: IcebergWorld) -> None:
    first = world.ask("c", made())
    assert first.status is Status.COMMITTED, first.message
    (result,) = first.results
    assert (result.operation, result.version, result.snapshot_id) == ("IcebergChange", 0, -1)
    assert json.loads(world.files[result.metadata_location])["location"] == f"{ROOT}/ice/events"
    second = world.ask("p", set_property(a="1"))
    (after,) = second.results
    assert after.incarnation == result.incarnation
    assert after.metadata_location.startswith(f"{ROOT}/ice/events/metadata/00001-")
    assert json.loads(world.files[after.metadata_location])["properties"] == {"a": "1"}
    assert [c.kind for c in world.changes] == [ChangeKind.ICEBERG, ChangeKind.ICEBERG]
    unchanged = world.ask("n", change([], (), EVENTS))
    assert unchanged.results[0].metadata_location == after.metadata_location
    assert len(world.changes) == len(world.files) == 2
    world.check_replay()


def test_all_requirements_that_fail_are_told_and_told_again(world: IcebergWorld) -> None:
    world.ask("c", made())
    world.ask("d", made(OTHER))
    operations = (wants_uuid("x"), wants_uuid("y", OTHER))
    refused = world.ask("f", *operations)
    assert (refused.status, refused.code) == (Status.RETRYABLE, Code.EXPECTATION_FAILED)
    assert not refused.message.startswith("operations[")
    told = [(f.table, json.loads(f.requirement)["uuid"]) for f in refused.failed_requirements]
    assert told == [(EVENTS, "x"), (OTHER, "y")]
    uuid = world.machine.iceberg.tables[EVENTS].uuid
    assert json.loads(refused.failed_requirements[0].actual) == {"uuid": uuid}
    again = world.ask("f", *operations)
    assert again.answers == refused.sequence
    assert again.failed_requirements == refused.failed_requirements
    world.machine = replayed_from_parts(world.machine)
    assert world.ask("f", *operations).failed_requirements == refused.failed_requirements


def test_lance_and_iceberg_commit_together_or_not_at_all(world: IcebergWorld) -> None:
    world.create("t")
    world.ask("c", made())
    both = world.ask("both", append(1, "a.lance"), set_property(a="1"), made(OTHER))
    assert both.status is Status.COMMITTED, both.message
    assert [r.table for r in both.results] == [("t",), EVENTS, OTHER]
    assert [r.version for r in both.results] == [2, 0, 0]
    files, tables = dict(world.files), dict(world.machine.iceberg.tables)
    stale = world.ask("s", append(1, "b.lance"), wants_uuid("x"))
    assert stale.failed_requirements
    missing = world.ask("m", set_property(a="2"), append(1, "c.lance", table=("nowhere",)))
    assert missing.code is Code.NO_SUCH_TABLE
    assert missing.message.startswith("operations[1]: ")
    assert world.state().version == 2
    assert (world.files, world.machine.iceberg.tables) == (files, tables)
    world.check_replay()


def test_names_are_one_tree(world: IcebergWorld) -> None:
    world.create("t")
    world.ask("c", made())
    taken = world.ask("d", DeclareTable(EVENTS, "i", f"{ROOT}/elsewhere"))
    assert taken.code is Code.TABLE_EXISTS
    assert world.ask("l", made(("t",))).failed_requirements
    assert world.ask("r", RenameTable(("t",), EVENTS)).code is Code.TABLE_EXISTS
    assert world.ask("s", RenameTable(EVENTS, ("t",))).code is Code.TABLE_EXISTS
    assert world.ask("a", append(1, "a.lance", table=EVENTS)).code is Code.NO_SUCH_TABLE
    assert world.ask("i", set_property(("t",), a="1")).code is Code.NO_SUCH_TABLE
    absent = world.ask("e", append(1, "a.lance"), expects=(TableAbsent(EVENTS),))
    assert absent.code is Code.EXPECTATION_FAILED
    assert world.ask("p", AlterProperties(EVENTS, upserts=(("a", "b"),))).code is Code.NO_SUCH_TABLE
    lost = world.ask("n", made(("nowhere", "t")))
    assert lost.code is Code.NO_SUCH_NAMESPACE


def test_tables_are_renamed_dropped_and_made_again(world: IcebergWorld) -> None:
    world.ask("c", made())
    uuid = world.machine.iceberg.tables[EVENTS].uuid
    assert world.ask("n", RenameTable(EVENTS, ("x", "y"))).code is Code.NO_SUCH_NAMESPACE
    assert world.ask("r", RenameTable(EVENTS, OTHER)).status is Status.COMMITTED
    world.check_replay()
    assert world.ask("w", DropTable(OTHER, "x")).code is Code.TABLE_REPLACED
    assert world.ask("k", DropNamespace(("db",))).code is Code.INVALID_OPERATION
    assert world.ask("d", DropTable(OTHER, uuid)).status is Status.COMMITTED
    assert not world.machine.iceberg.tables
    assert world.ask("m", made(OTHER)).status is Status.COMMITTED
    in_one = world.ask("one", DropTable(OTHER), made(OTHER))
    assert in_one.status is Status.COMMITTED, in_one.message
    world.check_replay()
    gone = world.ask("g", DropNamespace(("db",), cascade=True))
    assert gone.status is Status.COMMITTED
    assert not world.machine.iceberg.tables
    assert world.changes[-1].kind is ChangeKind.DROPPED
    world.check_replay()


@pytest.mark.parametrize(
    "location",
    [
        "/elsewhere/t",
        "s3://bucket/t",
        f"{ROOT}",
        f"{ROOT}/_commitlog/t",
        f"file://{ROOT}/%2e%2e/t",
        f"{ROOT}/{'x' * 300}",
    ],
)
def test_the_leader_writes_below_the_tables_root_only(world: IcebergWorld, location: str) -> None:
    refused = world.ask("c", made(EVENTS, location))
    assert (refused.status, refused.code) == (Status.REJECTED, Code.LOCATION_NOT_ALLOWED)
    world.ask("m", made())
    moved = {"action": "set-location", "location": location}
    assert world.ask("l", change([moved], (), EVENTS)).code is Code.LOCATION_NOT_ALLOWED
    elsewhere = metadata_at(location)
    if location != ROOT:
        assert world.ask("p", elsewhere).code is Code.LOCATION_NOT_ALLOWED
    assert not [path for path in world.files if not path.startswith(f"{ROOT}/ice/events/")]


def test_no_table_lies_in_another_formats_location(world: IcebergWorld) -> None:
    world.create("t")
    world.ask("c", made())
    assert world.ask("i", made(OTHER, f"{ROOT}/t/x")).code is Code.LOCATION_TAKEN
    path = metadata_at(f"{ROOT}/t/x")
    assert world.ask("p", path).code is Code.LOCATION_TAKEN
    inside = DeclareTable(("l",), "i", f"{ROOT}/ice/events/x")
    assert world.ask("l", inside).code is Code.LOCATION_TAKEN
    world.ask("d", DropTable(EVENTS))
    world.machine = replayed_from_parts(world.machine)
    assert world.ask("m", inside).code is Code.LOCATION_TAKEN
    both = world.ask("b", made(OTHER, f"{ROOT}/new"), DeclareTable(("l",), "i", f"{ROOT}/new/x"))
    assert both.code is Code.LOCATION_TAKEN


def test_one_metadata_file_may_be_registered_twice(world: IcebergWorld) -> None:
    found = metadata(location=f"{ROOT}/ice/events")
    place = f"{ROOT}/ice/events/metadata/00001-x.metadata.json"
    for name in (EVENTS, OTHER):
        operation = register_change(name, metadata=found, metadata_location=place)
        assert world.ask(f"r-{name[-1]}", operation).status is Status.COMMITTED
    assert not world.files
    assert world.ask("p", set_property(a="1")).status is Status.COMMITTED
    assert world.machine.iceberg.tables[OTHER].metadata_location == place
    world.check_replay()


def test_a_follower_refuses_an_outcome_that_it_doesnt_come_to(world: IcebergWorld) -> None:
    from dataclasses import replace

    world.ask("c", made())
    submitted, outcome = world.log[-1]
    wrong = replace(outcome.results[0], metadata_location=f"{ROOT}/ice/events/metadata/x.json")
    other = Machine(world.genesis, world.rules)
    other.apply(*world.log[0])
    with pytest.raises(CorruptLog, match="commitlog verify"):
        other.apply(submitted, replace(outcome, results=(wrong,)))


def test_a_file_in_the_way_is_a_refusal_that_replays(world: IcebergWorld) -> None:
    world.files[f"{ROOT}/ice/plain"] = b"somebody's"
    refused = world.ask("c", made(location=f"{ROOT}/ice/plain/events"))
    assert (refused.status, refused.code) == (Status.REJECTED, Code.LOCATION_NOT_ALLOWED)
    assert f"{ROOT}/ice/plain is a file" in refused.message
    assert [o.path for o in refused.observed if o.size >= 0] == ["ice/plain"]
    assert world.ask("d", made()).status is Status.COMMITTED
    moved = world.ask("m", metadata_at(f"{ROOT}/ice/plain"))
    assert moved.code is Code.LOCATION_NOT_ALLOWED
    assert not world.ask("p", set_property(a="1")).observed, "a folder is looked at once"
    world.check_replay()


@pytest.mark.parametrize("protocol", [3, 4])
def test_metadata_says_its_position_since_protocol_4(protocol: int) -> None:
    world = IcebergWorld(rules=Rules(protocol))
    world.ask("n", CreateNamespace(("db",)))
    made_at = world.ask("c", made())
    changed = world.ask(
        "p",
        change(
            [{"action": "set-properties", "updates": {"a": "1", "commitlog.position": "9"}}],
            (),
            EVENTS,
        ),
    )
    said = [
        json.loads(world.files[one.results[0].metadata_location])["properties"]
        for one in (made_at, changed)
    ]
    if protocol < 4:
        assert said == [{}, {"a": "1", "commitlog.position": "9"}]
    else:
        positions = [{"commitlog.position": str(one.sequence)} for one in (made_at, changed)]
        assert said == [positions[0], {"a": "1", **positions[1]}]
    unchanged = world.ask("u", change([], (), EVENTS))
    assert unchanged.results[0].metadata_location == changed.results[0].metadata_location
    world.check_replay()


@pytest.mark.parametrize("protocol", [3, 4])
def test_the_log_has_properties_since_protocol_4(protocol: int) -> None:
    world = IcebergWorld(rules=Rules(protocol))
    world.create("t")
    tagged = world.ask("a", AlterProperties((), True, upserts=(("commitlog.tag.x", "1"),)))
    if protocol < 4:
        assert tagged.code is Code.NO_SUCH_NAMESPACE
        return
    assert tagged.status is Status.COMMITTED, tagged.message
    refused = world.ask("d", DropNamespace((), cascade=True))
    assert refused.code is Code.NO_SUCH_NAMESPACE
    assert ("t",) in world.machine.tables
    world.ask("b", AlterProperties((), True, removals=("commitlog.tag.x",)))
    assert world.machine.catalogue.namespaces[()] == ()
    world.check_replay()
