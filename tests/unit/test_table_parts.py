"""A table's state in chunks: equal however it came to be, and written where it changed."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.core.conflicts import history
from commitlog.core.log import deduplication
from commitlog.core.log.parts import Part
from commitlog.core.log.replica import Replica
from commitlog.core.manifest import fragments
from commitlog.core.partition import snapshot, table_parts
from commitlog.core.partition.machine import Machine
from commitlog.core.partition.snapshot import MACHINE
from commitlog.core.tables.lance_tables import Table
from commitlog.errors import CorruptLog
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import PROTOCOL_SUPPORTED, TABLES_IN_CHUNKS_SINCE, Rules
from commitlog.model.operations import AlterProperties, DropTable, LanceCommit, RenameTable
from commitlog.model.records import ProtocolVersion, Status
from commitlog.ports import LogIdentity
from consumers.partition.checkpoints import checkpoint
from consumers.partition.checkpoints.checkpoint import Checkpoint, Checkpoints
from consumers.partition.checkpoints.prepared_checkpoint import PreparedCheckpoint
from consumers.partition.files.folders import DiskFolder
from tests.core_world import (
    DAY_MS,
    World,
    append,
    commit,
    delete,
    new_fragment,
    replayed_from_parts,
)
from tests.unlistable import refuse_to_list

CHUNK = 4


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "CHUNK_FRAGMENTS", CHUNK)
    monkeypatch.setattr(table_parts, "CHUNK_FRAGMENTS", CHUNK)
    monkeypatch.setattr(history, "CHUNK_VERSIONS", CHUNK)


def rewrite(world: World, chance: random.Random, number: int) -> LanceCommit:
    """Replace some fragments by one."""
    state = world.state()
    transaction = LanceTransaction(read_version=state.version, uuid=f"r{number}")
    group = transaction.rewrite.groups.add()
    for fragment_id in sorted(chance.sample(list(state.fragments), 2)):
        group.old_fragments.append(DataFragment.FromString(state.fragments[fragment_id]))
    group.new_fragments.append(new_fragment(f"r{number}.lance"))
    return commit(transaction)


def change(world: World, chance: random.Random, number: int) -> LanceCommit:
    """Return an append, mostly, or what takes fragments away or replaces them."""
    state, kind = world.state(), chance.randrange(8)
    if len(state.fragments) > 2 and kind == 0:
        return delete(world, state.version, {}, whole=[chance.choice(list(state.fragments))])
    if len(state.fragments) > 2 and kind == 1:
        return delete(world, state.version, {chance.choice(list(state.fragments)): [number % 10]})
    if len(state.fragments) > 2 and kind == 2:
        return rewrite(world, chance, number)
    keys = [b"k%d" % number] if kind == 3 else None
    return append(state.version, f"a{number}.lance", keys=keys)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_the_hash_is_that_of_a_machine_that_never_kept_one(seed: int) -> None:
    chance = random.Random(seed)
    first = TABLES_IN_CHUNKS_SINCE - (seed % 3 == 0)
    world = World(rules=Rules(first, history_versions=chance.choice([7, 1000])))
    world.create()
    for number in range(60):
        if number == 30 and first < TABLES_IN_CHUNKS_SINCE:
            rules = (DAY_MS, world.rules.history_versions, 10)
            world.run(ProtocolVersion("rules", TABLES_IN_CHUNKS_SINCE, *rules))
        world.ask(f"t{number}", change(world, chance, number))
        if chance.random() < 0.5:
            assert world.machine.digest() == world.replayed().digest(), number
        if chance.random() < 0.2:
            world.machine = replayed_from_parts(world.machine)
    parts = world.machine.to_parts()
    assert any(name.startswith(table_parts.FRAGMENTS) for name in parts)
    assert any(name.startswith(table_parts.HISTORY) for name in parts)


def appended(count: int) -> World:
    world = World(rules=Rules(PROTOCOL_SUPPORTED))
    world.create()
    for number in range(count):
        outcome = world.ask(f"a{number}", append(0, f"a{number}.lance"))
        assert outcome.status is Status.COMMITTED
    return world


@pytest.mark.parametrize("size", [10, 200])
def test_what_an_append_changes_is_as_much_in_a_large_and_old_table(size: int) -> None:
    world = appended(size)
    world.machine.digest()
    world.ask("next", append(0, "next.lance"))
    encoded: list[str] = []
    for name, part in world.machine.to_parts().items():
        if part.digests is None or part.counter not in part.digests:
            encoded.append(name.partition("/")[0])
    assert sorted(encoded).count("fragments") <= 1
    assert sorted(encoded).count("history") <= 1
    [rest] = [p for n, p in world.machine.to_parts().items() if n.startswith(table_parts.REST)]
    assert len(rest.encode()) < 1_500


def test_a_checkpoint_writes_only_the_chunks_that_changed(tmp_path: Path) -> None:
    world = appended(50)

    def checkpoints() -> Checkpoints:
        return Checkpoints(tmp_path, LogIdentity("c", "t", "o", "log"), world.genesis)

    def save(kept: Checkpoints, machine: Machine) -> set[str]:
        before = {path.name for path in tmp_path.rglob("*.part")}
        kept.save(Checkpoint.of(machine, Replica()))
        return {path.name for path in tmp_path.rglob("*.part")} - before

    kept = checkpoints()
    assert len(save(kept, world.machine)) > 20
    again = checkpoints()
    loaded = again.load()
    assert loaded is not None
    assert loaded.machine.digest() == world.machine.digest()
    world.machine = loaded.machine
    world.ask("next", append(0, "next.lance"))
    # The machine's own part, the ids, and of the table the rest: its newest chunks are there.
    assert len(save(again, world.machine)) <= 5


def test_the_logs_own_properties_are_read_without_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process of a service asks for them as it starts, however many tables there are."""
    world = appended(50)
    world.ask("owned", AlterProperties((), is_namespace=True, upserts=(("owner", "me"),)))
    kept = Checkpoints(tmp_path, LogIdentity("c", "t", "o", "log"), world.genesis)
    kept.save(Checkpoint.of(world.machine, Replica()))
    names, read = list[str](), DiskFolder.read

    def noted(self: DiskFolder, name: str) -> bytes:
        names.append(name)
        return read(self, name)

    monkeypatch.setattr(DiskFolder, "read", noted)
    whole = kept.load()
    assert whole is not None
    assert len(names) > 20
    names.clear()
    part = kept.load(MACHINE)
    assert part is not None
    assert part.machine.catalogue.namespaces[()] == (("owner", "me"),)
    assert part.machine.catalogue.namespaces == whole.machine.catalogue.namespaces
    assert part.place == whole.place
    assert [Path(name).suffix for name in names] == [".json", ".json", ".part"], "of both heads"


def test_a_checkpoint_that_was_looked_at_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A committer looks at its tables' places before it takes their state."""
    world = appended(50)
    writer, reader = (
        Checkpoints(tmp_path, LogIdentity("c", "t", "o", "log"), world.genesis) for _ in range(2)
    )
    assert reader.look() is None
    writer.save(Checkpoint.of(world.machine, Replica()))
    looked_at = reader.look()
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "_read", None)
        assert reader.load() is looked_at
    assert looked_at is not None
    world.machine = looked_at.machine
    world.ask("next", append(0, "next.lance"))
    prepared = reader.prepare(Checkpoint.of(world.machine, Replica()))
    files = [*prepared.files.whole, *prepared.files.to_pack]
    assert len(files) <= 5, "it knows what is saved"
    again = reader.load()
    assert again is not None
    assert again is not looked_at, "a second term reads it"

    reader.look()
    writer.save(Checkpoint.of(world.machine, Replica()))
    newest = reader.load()
    assert newest is not None
    assert newest.machine.digest() == world.machine.digest()


def test_a_checkpoint_names_no_part_that_somebody_removed(tmp_path: Path) -> None:
    """It would be damaged, and the next start would be refused."""
    world = appended(50)
    kept, fresh = (
        Checkpoints(tmp_path, LogIdentity("c", "t", "o", "log"), world.genesis) for _ in range(2)
    )
    kept.save(Checkpoint.of(world.machine, Replica()))
    shutil.rmtree(tmp_path / "checkpoints")
    world.ask("next", append(0, "next.lance"))
    with pytest.raises(FileNotFoundError, match="the next checkpoint is written whole"):
        kept.save(Checkpoint.of(world.machine, Replica()))
    assert fresh.load() is None
    kept.save(Checkpoint.of(world.machine, Replica()))
    loaded = fresh.load()
    assert loaded is not None
    assert loaded.machine.digest() == world.machine.digest()


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `commitlog doctor`, beside a leader."""
    world = appended(3)
    identity = LogIdentity("c", "t", "o", "log")
    writer, reader = (Checkpoints(tmp_path, identity, world.genesis) for _ in range(2))
    writer.save(Checkpoint.of(world.machine, Replica()))
    read = DiskFolder.read

    def beside(folder: DiskFolder, name: str) -> bytes:
        if name.endswith(".part") and world.machine.sequence < 9:
            world.ask(
                f"more {world.machine.sequence}", append(0, f"{world.machine.sequence}.lance")
            )
            writer.save(Checkpoint.of(world.machine, Replica()))
        return read(folder, name)

    monkeypatch.setattr(DiskFolder, "read", beside)
    loaded = reader.load()
    assert loaded is not None
    assert loaded.machine.digest() == world.machine.digest()
    [lost, *_] = tmp_path.rglob("*.part")
    lost.unlink()
    with pytest.raises(CorruptLog, match="is missing"):
        reader.load()


def test_a_folder_of_state_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DiskFolder(tmp_path / "state")
    assert folder.names() == []
    folder.replace("1.json", b"{}")
    assert folder.names() == ["1.json"]
    refuse_to_list(monkeypatch, "/state", errno.EIO)
    # So says Python 3.14 after any error.
    monkeypatch.setattr(Path, "is_dir", lambda self, **_: False)
    with pytest.raises(OSError, match="Input/output error"):
        folder.names()


def save_ahead(kept: Checkpoints, machine: Machine) -> None:
    if (prepared := kept.prepare_ahead(machine)) is not None:
        kept.write(prepared)
        kept.written(prepared)


def test_what_gets_full_is_written_before_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "AHEAD_OUTCOMES", 10)
    monkeypatch.setattr(checkpoint, "AHEAD_BYTES", 1)
    world = appended(50)
    kept = Checkpoints(tmp_path, LogIdentity("c", "t", "o", "log"), world.genesis)

    def written() -> set[str]:
        return {path.name for path in tmp_path.rglob("*.part")}

    counts = [0]
    while True:
        save_ahead(kept, world.machine)
        counts.append(len(written()))
        assert counts[-1] - counts[-2] <= 1, "one by one"
        if counts[-1] == counts[-2]:
            break
    assert counts[-1] > 15
    ahead = written()
    kept.save(Checkpoint.of(world.machine, Replica()))
    assert len(written() - ahead) <= 5
    loaded = Checkpoints(tmp_path, LogIdentity("c", "t", "o", "log"), world.genesis).load()
    assert loaded is not None
    assert loaded.machine.digest() == world.machine.digest()


def test_tables_that_are_left_alone_are_written_before_their_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "AHEAD_OUTCOMES", 10)
    world = World(rules=Rules(PROTOCOL_SUPPORTED))
    kept = Checkpoints(tmp_path, LogIdentity("c", "t", "o", "log"), world.genesis)
    for number in range(100):
        world.create(f"t{number}")
        save_ahead(kept, world.machine)
        if number == 90:
            world.create("late")
            del world.machine.tables["t1",]  # it was dropped while others are looked at
    prepared = kept.prepare(Checkpoint.of(world.machine, Replica()))
    tables = [name for name in prepared.parts if name.startswith(table_parts.REST)]
    assert len(tables) == 100
    assert len([name for name in prepared.files.whole if name.endswith(".part")]) <= 35
    kept.write(prepared)
    loaded = Checkpoints(tmp_path, LogIdentity("c", "t", "o", "log"), world.genesis).load()
    assert loaded is not None
    assert loaded.machine.digest() == world.machine.digest()


def test_a_checkpoint_looks_only_at_tables_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is prepared nothing is decided, and another thread makes the head of all tables."""
    world = World(rules=Rules(PROTOCOL_SUPPORTED))
    kept = Checkpoints(tmp_path, LogIdentity("c", "t", "o", "log"), world.genesis)
    for number in range(20):
        world.create(f"t{number}")
    kept.save(Checkpoint.of(world.machine, Replica()))
    looked_at = list[str]()

    def noted(table: Table, protocol: int) -> Iterator[tuple[str, Part]]:
        looked_at.append(table.table_id[0])
        return table_parts.table_parts(table, protocol)

    world.create("new")
    world.ask("moved", RenameTable(("t3",), ("moved",)))
    world.ask("gone", DropTable(("t5",), world.machine.tables["t5",].incarnation))
    with monkeypatch.context() as patched:
        patched.setattr(snapshot, "table_parts", noted)
        patched.setattr(PreparedCheckpoint, "encoded_head", None)
        prepared = kept.prepare(Checkpoint.of(world.machine, Replica()))
    assert sorted(looked_at) == ["moved", "new"]
    kept.write(prepared)
    kept.written(prepared)
    loaded = Checkpoints(tmp_path, LogIdentity("c", "t", "o", "log"), world.genesis).load()
    assert loaded is not None
    assert loaded.machine.tables.keys() == world.machine.tables.keys()
    assert loaded.machine.digest() == world.machine.digest()


def test_what_was_written_ahead_is_not_believed_after_the_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcomes may not have come into the log, where others have their numbers then."""
    monkeypatch.setattr(checkpoint, "AHEAD_OUTCOMES", 10)
    monkeypatch.setattr(deduplication, "CHUNK_OUTCOMES", 16)
    kept = Checkpoints(tmp_path, LogIdentity("c", "t", "o", "log"), World().genesis)
    lost, true = appended(40), appended(20)
    for number in range(20):
        true.ask(f"b{number}", append(0, f"b{number}.lance"))
    for _ in range(40):
        save_ahead(kept, lost.machine)
    assert kept.load() is None
    kept.save(Checkpoint.of(true.machine, Replica()))
    loaded = kept.load()
    assert loaded is not None
    assert loaded.machine.deduplication.get("b19") is not None
    assert loaded.machine.digest() == true.machine.digest()
