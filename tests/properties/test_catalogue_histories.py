"""Does whoever follows a log agree on which tables there are? Random changes of the catalogue.

Records make, end, rename and write to tables of few names, places and incarnations, several at
once, right or wrong. Compared with the machine: a replica, a restored one, the leader's heads, a
client's fold, and what `undrop` finds.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from commitlog.client.history.folds import Fold
from commitlog.client.history.lives import Life, Lives
from commitlog.codecs.avro import seal_outcome
from commitlog.core.decisions import (
    BuildWanted,
    Change,
    ChangeKind,
    Decision,
    Found,
    ManifestWanted,
    Wanted,
)
from commitlog.core.lance.direct import direct_delta
from commitlog.core.lance.staged import manifest_version
from commitlog.core.manifest.manifest_state import ManifestState, apply_delta
from commitlog.core.operations.clone import cloned
from commitlog.core.partition.driving import drive
from commitlog.core.rows.deciding import schema_digest
from commitlog.core.tables.branch_names import branch_location
from commitlog.core.tables.creation import first_version
from commitlog.core.tables.lance_tables import Table
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import (
    BRANCHES_SINCE,
    INCARNATION_OF_ONE_SINCE,
    LANCE_RELEASE_AT_FIRST,
    LAST_VERSIONS_SINCE,
    PLACES_SORTED_SINCE,
    PROTOCOL_SUPPORTED,
    ROWS_SINCE,
    Rules,
)
from commitlog.model.operations import (
    AlterProperties,
    AppliedWrite,
    ApplyRows,
    CreateNamespace,
    CreateTable,
    CreateTableVersion,
    DeclareTable,
    DeleteTableVersions,
    DeregisterTable,
    DropNamespace,
    DropTable,
    LanceCommit,
    Operation,
    RegisterTable,
    RenameTable,
    RowsColumn,
    RowsMode,
    WriteRows,
)
from commitlog.model.records import (
    Application,
    Code,
    Expect,
    LogRecord,
    Observation,
    Outcome,
    Status,
    Submitted,
    TableAbsent,
    TableVersionIs,
    Transaction,
)
from commitlog.model.table import TableId, format_table_id
from consumers.partition.files.catalogue import Head, PartitionHeads
from tests.core_world import FORMAT, ROOT, append, column, commit, new_fragment, replayed_from_parts
from tests.unit.iceberg_examples import change, create_updates
from tests.unit.test_iceberg_machine import IcebergWorld
from tests.unit.test_staged import stage

WORLDS, RECORDS = 8, 60
NAMES: tuple[TableId, ...] = (("a",), ("b",), ("n", "a"), ("n", "b"), ("n", "m", "a"))
NAMESPACES: tuple[TableId, ...] = (("n",), ("n", "m"), ("o",))
PLACES = ("x", "y", "z", "u", "v", "w", "x/in", "x/an")
FIELDS = (column("c0", 0),)


class Catalogues(IcebergWorld):
    """Has the manifests of all versions, and whoever follows what becomes of the tables."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.versions: dict[tuple[str, int], ManifestState] = {}
        self.newest: dict[str, int] = {}
        self.restarted_at: Submitted | None = None
        self.heads = PartitionHeads(self.machine.tables)
        self.fold, self.lives = Fold(), Lives()

    def observe(self, wanted: Wanted) -> Found:
        if isinstance(wanted, ManifestWanted):
            version = manifest_version(wanted.path, is_staged=False)
            state = self.versions.get((wanted.location, version))
            if state is not None:
                return Found(Observation(wanted.path, 10, bytes(32)), state=state.copy())
        return super().observe(wanted)

    def build(self, wanted: BuildWanted) -> Found:
        clone = LanceTransaction.FromString(wanted.message).clone
        if not wanted.target:
            return super().build(wanted)
        source = self.versions.get((wanted.location, clone.ref_version))
        if source is None:
            return Found(Observation("", -1), error="the version has no manifest")
        state = cloned(source.copy(), clone, "1-u.txn")
        return Found(Observation("_versions/1.manifest-built", 1, bytes(32)), state=state)

    def decide(self, submitted: Submitted) -> Decision:
        decision = super().decide(submitted)
        if submitted is self.restarted_at:
            return decision  # Each is decided twice, and one restart before it is enough.
        self.restarted_at = submitted
        restored = drive(replayed_from_parts(self.machine), submitted, self.observe).outcome
        is_owner_open = decision.outcome.code is Code.LOCATION_TAKEN
        if is_owner_open and self.rules.protocol < PLACES_SORTED_SINCE:
            assert (restored.status, restored.code) == (Status.REJECTED, Code.LOCATION_TAKEN)
        else:
            assert restored == decision.outcome, "a leader that was restarted decides alike"
        return decision

    def run(self, record: LogRecord) -> Outcome:
        before, count = self.parts(), len(self.changes)
        outcome = super().run(record)
        submitted = self.log[-1][0]
        seal_outcome(outcome, previous_hash=bytes(32), epoch=0, node="n")
        if outcome.status is not Status.COMMITTED or outcome.answers is not None:
            assert self.parts() == before, "all of a record or nothing"
        self.heads.apply(self.changes[count:])
        self.heads.apply_namespaces(submitted, outcome)
        self.fold.apply(outcome, submitted)
        self.lives.apply(outcome, submitted)
        self._note(outcome)
        self.compare()
        if self.rules.protocol >= INCARNATION_OF_ONE_SINCE:
            for change in self.changes[count:]:
                if change.kind is ChangeKind.DROPPED and change.iceberg is None:
                    self._compare_dropped(change)
        return outcome

    def parts(self) -> dict[str, bytes]:
        """Return all parts but what each outcome changes."""
        parts = self.machine.to_parts().items()
        return {name: part.encode() for name, part in parts if "/" in name and name[:4] != "ids/"}

    def _note(self, outcome: Outcome) -> None:
        for operation, result in zip(self.log[-1][0].operations, outcome.results, strict=False):
            is_made = result.incarnation == getattr(operation, "incarnation", "")
            gives = isinstance(operation, LanceCommit | CreateTableVersion | RegisterTable) or (
                isinstance(operation, CreateTable) and is_made
            )
            if outcome.answers is None and result.version and gives:
                known = self.newest.get(result.incarnation, 0)
                is_next = not isinstance(operation, RegisterTable)
                if self.rules.protocol >= LAST_VERSIONS_SINCE:
                    assert result.version >= known + is_next, "each version is given once"
                self.newest[result.incarnation] = result.version
        for table in self.machine.tables.values():
            if table.manifest is not None:
                state = table.manifest.copy()
                self.versions.setdefault((table.location, table.version), state)

    def compare(self) -> None:
        """Compare what follows the log with the machine."""
        machine = self.machine
        tables, iceberg = machine.tables, machine.iceberg.tables
        expected = PartitionHeads(tables)
        assert [_told(one) for one in self.heads.heads()] == [_told(o) for o in expected.heads()]
        assert dict(self.heads.iceberg_tables()) == iceberg
        assert dict(self.heads.namespaces()) == machine.catalogue.namespaces
        assert {
            name: (one.incarnation, one.version, one.location, dict(one.properties))
            for name, one in self.fold.tables.items()
            if not one.is_iceberg
        } == {
            name: (table.incarnation, table.version, table.location, dict(table.properties))
            for name, table in tables.items()
        }
        assert {
            name: (one.incarnation, one.metadata_location)
            for name, one in self.fold.tables.items()
            if one.is_iceberg
        } == {name: (one.uuid, one.metadata_location) for name, one in iceberg.items()}
        assert self.fold.namespaces == machine.catalogue.namespaces
        if self.rules.protocol >= INCARNATION_OF_ONE_SINCE:
            for name, table in tables.items():
                self._compare_life(name, table)

    def _compare_life(self, name: TableId, table: Table) -> None:
        life = self.lives.tables[name]
        assert isinstance(life, Life)
        assert (life.incarnation, life.version) == (table.incarnation, table.version)
        assert tuple(life.properties.items()) == table.properties
        assert (life.policy, life.primary_key) == (table.policy, table.primary_key)
        assert not life.dropped_at

    def _compare_dropped(self, change: Change) -> None:
        live = [table.incarnation for table in self.machine.tables.values()]
        if change.incarnation not in live:
            found = {
                one.incarnation: one for one in self.lives.dropped(format_table_id(change.table))
            }
            assert found[change.incarnation].version == self.newest.get(change.incarnation, 0)


def _told(head: Head) -> Head:
    """Return a head whose schema compares by its bytes."""
    encoded: Any = head.header.encoded if head.header is not None else None
    return replace(head, header=encoded)


class Changes:
    """Makes records of the catalogue."""

    def __init__(self, chance: random.Random, world: Catalogues) -> None:
        self._chance, self._world, self._made = chance, world, 0
        self.protocol = world.rules.protocol

    def operations(self) -> list[Operation]:
        """Return what one record does."""
        chance = self._chance
        made: list[Operation] = []
        for _ in range(chance.choice([1, 1, 1, 2, 3])):
            kinds = [self._make, self._make, self._end, self._write, self._write, self._write]
            kinds += [self._rename, self._namespace, self._properties, self._delete_versions]
            kinds += [self._register, self._register, self._iceberg, self._clone, self._rows]
            kinds += [self._stage, self._stage]
            more = chance.choice(kinds)()
            is_back = any(isinstance(one, RegisterTable) for one in more)
            if is_back and self.protocol < LAST_VERSIONS_SINCE:
                return more  # a record that wrote to the table would give a number twice
            made += more
        return made

    def expects(self) -> tuple[Expect, ...]:
        """Return what a record expects, of one in eight."""
        if self._chance.random() < 0.88:
            return ()
        name = self._chance.choice(NAMES)
        table = self._world.machine.tables.get(name)
        version = table.version if table is not None else 1
        return self._chance.choice([(TableAbsent(name),), (TableVersionIs(name, version),)])

    def _name(self) -> TableId:
        standing = list(self._world.machine.tables)
        is_there = standing and self._chance.random() < 0.7
        return self._chance.choice(standing if is_there else NAMES)

    def _place(self) -> tuple[str, str]:
        """Return an incarnation and a place: mostly of one that is new, or was there."""
        chance, known = self._chance, self._world.machine.locations.items()
        if known and chance.random() < 0.3:
            parts, place = chance.choice(list(known.items()))
            return place.incarnation, "/".join(parts)
        self._made += 1
        is_of_one = self.protocol >= INCARNATION_OF_ONE_SINCE
        number = chance.choice([self._made, self._made, 1]) if is_of_one else self._made
        return f"i{number}", f"{ROOT}/{chance.choice([*PLACES, f'p{number}', f'p{number}'])}"

    def _properties_of(self) -> tuple[tuple[str, str], ...]:
        value = str(self._chance.randrange(3))
        return self._chance.choice([(), (), (("k", value),), (("commitlog.hold.x", "1-"),)])

    def _make(self) -> list[Operation]:
        chance, name = self._chance, self._chance.choice(NAMES)
        incarnation, place = self._place()
        if chance.random() < 0.3:
            return [DeclareTable(name, incarnation, place, properties=self._properties_of())]
        is_new = self._world.machine.locations.of(incarnation) is None
        made = CreateTable(
            name, incarnation, place, FIELDS, properties=self._properties_of(),
            data_storage_version=FORMAT, exist_ok=is_new and chance.random() < 0.3,
            primary_key=chance.choice([(), (), ("c0",)]),
        )  # fmt: skip
        return [made]

    def _register(self) -> list[Operation]:
        chance, (incarnation, place) = self._chance, self._place()
        known = [version for at, version in self._world.versions if at == place] or [1]
        version = chance.choice([max(known), max(known), min(known), 3])
        if self.protocol < LAST_VERSIONS_SINCE:
            version = max(known)
        if chance.random() < 0.2 and (place, max(known)) in self._world.versions:
            state = self._world.versions[place, max(known)].copy()  # plain Lance's
            state.version = version = max(known) + 1
            self._world.versions[place, version] = state
        path = f"_versions/{version}.manifest"
        made = RegisterTable(
            chance.choice(NAMES), incarnation, place, version, path,
            properties=self._properties_of(),
        )  # fmt: skip
        ends = [DeregisterTable(made.table)] if chance.random() < 0.3 else []
        return [*ends, made]

    def _end(self) -> list[Operation]:
        name, is_drop = self._name(), self._chance.random() < 0.6
        table = self._world.machine.tables.get(name)
        known = table.incarnation if table is not None else "gone"
        incarnation = self._chance.choice(["", "", known, "other"])
        return [DropTable(name, incarnation) if is_drop else DeregisterTable(name, incarnation)]

    def _rename(self) -> list[Operation]:
        names = [*self._world.machine.iceberg.tables, self._name()]
        return [RenameTable(self._chance.choice(names), self._chance.choice(NAMES))]

    def _namespace(self) -> list[Operation]:
        chance, name = self._chance, self._chance.choice(NAMESPACES)
        if chance.random() < 0.4:
            return [DropNamespace(name, cascade=chance.random() < 0.6)]
        return [CreateNamespace(name, self._properties_of(), exist_ok=chance.random() < 0.7)]

    def _properties(self) -> list[Operation]:
        chance, target = self._chance, self._name()
        is_namespace = chance.random() < 0.3
        if is_namespace:
            target = chance.choice([*NAMESPACES, ()])
        removals = chance.choice([(), ("k",), ("commitlog.hold.x",)])
        return [AlterProperties(target, is_namespace, self._properties_of(), removals)]

    def _delete_versions(self) -> list[Operation]:
        chance, name = self._chance, self._name()
        table = self._world.machine.tables.get(name)
        last = chance.randrange(1, 1 + max(1, table.version if table is not None else 1))
        return [DeleteTableVersions(name, ((chance.randrange(1, last + 1), last),))]

    def _write(self) -> list[Operation]:
        chance, name = self._chance, self._name()
        self._made += 1
        table = self._world.machine.tables.get(name)
        head = table.version if table is not None else 1
        read = chance.choice([head, head, 0, max(head - chance.randrange(3), 1), head + 1])
        if chance.random() < 0.6:
            return [append(read, f"f{self._made}.lance", table=name)]
        made = LanceTransaction(read_version=read, uuid=f"u{self._made}")
        if chance.random() < 0.5:
            made.update_config.config_updates.update_entries.add(key=chance.choice("ab"), value="1")
        else:
            made.overwrite.schema.append(Field.FromString(FIELDS[0]))
            made.overwrite.fragments.append(new_fragment(f"o{self._made}.lance"))
        return [commit(made, table=name)]

    def _stage(self) -> list[Operation]:
        """Offer a manifest: of a declared table's first version, or of an append to the head."""
        chance, name = self._chance, self._name()
        self._made += 1
        table, first = self._world.machine.tables.get(name), list[Operation]()
        if table is None:
            incarnation, place = self._place()
            first = [DeclareTable(name, incarnation, place)]
        else:
            incarnation, place = table.incarnation, table.location
        if table is None or table.manifest is None:
            made = CreateTable(name, incarnation, place, FIELDS, data_storage_version=FORMAT)
            state, encoded = first_version(made, f"s{self._made}", 7, LANCE_RELEASE_AT_FIRST)
            message = LanceTransaction.FromString(encoded)
        else:
            head = table.version
            read = chance.choice([head, head, max(head - 1, 1)])
            message = LanceTransaction.FromString(append(read, f"s{self._made}.lance").message)
            state = table.manifest.copy()
            apply_delta(state, direct_delta(state, message, timestamp_ms=7))
        staged = stage(self._world, message, state, location=place)
        said = chance.choice([(), (), (("k", "v"),)])
        return [*first, replace(staged, table=name, e_tag=chance.choice(["", "e"]), metadata=said)]

    def _clone(self) -> list[Operation]:
        chance, name = self._chance, self._chance.choice(NAMES)
        sources = [t for t in self._world.machine.tables.values() if t.manifest is not None]
        if not sources:
            return []
        source = chance.choice(sources)
        incarnation, place = self._place()
        made = LanceTransaction(read_version=source.version, uuid=f"c{self._made}")
        version = chance.choice([source.version, source.version, 1])
        made.clone.is_shallow, made.clone.ref_version = True, version
        made.clone.ref_path = source.location
        if chance.random() < 0.4 and self.protocol >= BRANCHES_SINCE:
            made.clone.branch_name = "dev"
            place = branch_location(source.location, "dev")
            self._made += 1
            if self.protocol < INCARNATION_OF_ONE_SINCE:
                incarnation = f"i{self._made}"
        declared = DeclareTable(name, incarnation, place)
        return [declared, commit(made, table=name)]

    def _iceberg(self) -> list[Operation]:
        chance, standing = self._chance, list(self._world.machine.iceberg.tables)
        if standing and chance.random() < 0.5:
            name = chance.choice(standing)
            if chance.random() < 0.4:
                return [DropTable(name) if chance.random() < 0.5 else DeregisterTable(name)]
            update = {"action": "set-properties", "updates": {"step": str(self._made)}}
            return [change([update], (), name)]
        _, place = self._place()
        updates = create_updates(place)
        return [change(updates, [{"type": "assert-create"}], chance.choice(NAMES))]

    def _rows(self) -> list[Operation]:
        chance, name = self._chance, self._name()
        table = self._world.machine.tables.get(name)
        rows = table.rows if table is not None else None
        if self.protocol < ROWS_SINCE or table is None:
            return []
        if rows is not None and rows.pending and chance.random() < 0.5:
            through = chance.choice(list(rows.pending))
            done = tuple(AppliedWrite(*one, inserted=1) for one in rows.through(through))
            return [ApplyRows(name, table.incarnation, rows.applied, through, done)]
        columns = (RowsColumn(0, "c0", 0),)
        digest = schema_digest([Field.FromString(FIELDS[0])], ["c0"])
        return [WriteRows(name, RowsMode.APPEND, 1, columns, digest, b"h" * 32, 10)]


def made(name: TableId, incarnation: str, *, exist_ok: bool = False) -> CreateTable:
    place = f"{ROOT}/{incarnation}"
    return CreateTable(
        name, incarnation, place, FIELDS, data_storage_version=FORMAT, exist_ok=exist_ok
    )


def test_what_a_record_ends_and_makes_again() -> None:
    world, name = Catalogues(rules=Rules(PROTOCOL_SUPPORTED)), ("n", "t")
    world.ask("1", made(name, "i1"))
    world.ask("2", DropTable(name), made(name, "i2"))
    world.ask("3", AlterProperties(name, upserts=(("k", "1"),)))
    world.ask("4", DropNamespace(("n",), cascade=True), made(name, "i3"))
    world.ask("5", CreateNamespace(("n",), (("k", "1"),), exist_ok=True))
    assert world.fold.namespaces == {("n",): ()}
    world.ask("6", DeregisterTable(name))
    world.ask("7", made(name, "i4", exist_ok=True))
    world.ask("8", DropNamespace(("n",), cascade=True))
    assert [one.incarnation for one in world.lives.dropped("n$t")] == ["i1", "i2", "i4"]
    world.ask("9", CreateNamespace(("o",), (("k", "2"), ("k", "1"))))
    assert dict(world.fold.namespaces[("o",)]) == {"k": "2"}
    assert all(outcome.status is Status.COMMITTED for _, outcome in world.log)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", range(1, PROTOCOL_SUPPORTED + 1))
def test_whoever_follows_a_catalogue_agrees(protocol: int, seed: int) -> None:
    chance = random.Random(f"{seed} {protocol}")
    for number in range(WORLDS):
        follow(chance, protocol, number)


def follow(chance: random.Random, protocol: int, number: int, records: int = RECORDS) -> None:
    """Make a history, and compare after each record."""
    world = Catalogues(rules=Rules(protocol, history_versions=chance.choice([3, 1_000])))
    changes = Changes(chance, world)
    for step in range(records):
        if chance.random() < 0.05 and world.log:
            record = chance.choice(world.log)[0].record
            assert isinstance(record, Transaction)
            world.run(record)
            continue
        operations = changes.operations()
        if not operations:
            continue
        application = None
        if chance.random() < 0.1:
            application = Application(chance.choice("pq"), chance.randrange(4))
        world.ask(f"t{step}", *operations, expects=changes.expects(), application=application)
        if step % 10 == 0:
            restored = replayed_from_parts(world.machine)
            assert restored.digest() == world.machine.digest()
    assert world.replayed().digest() == world.machine.digest()
