"""A checkpoint's ids are compressed on the disk, and no hash of the state knows of that."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.storage import sha256_of
from commitlog.core.log import deduplication
from commitlog.core.log.replica import Replica
from commitlog.core.partition import effects
from commitlog.core.partition.machine import Machine
from commitlog.core.partition.snapshot import IDS
from commitlog.errors import CorruptLog, UnsupportedFormat
from commitlog.model.limits import IDS_PACKED_SINCE, PROTOCOL_SUPPORTED, Rules
from commitlog.model.records import ProtocolVersion, Status
from commitlog.ports import LogIdentity
from consumers.partition.checkpoints import checkpoint, packed_parts
from consumers.partition.checkpoints.checkpoint import Checkpoint, Checkpoints
from consumers.partition.checkpoints.checkpoint_heads import HEAD, named_files
from consumers.partition.checkpoints.packed_parts import pack, unpack
from consumers.partition.checkpoints.table_places import check_tables
from consumers.partition.files.folders import DiskFolder, break_seal, encode_sealed
from consumers.tools.backup.checkpoints import damage as damage_of
from consumers.tools.backup.checkpoints import put_back, save_checkpoints
from consumers.tools.backup.cut import RestorePoint
from consumers.tools.upgrade import _kept
from consumers.views.health import Level
from tests.core_world import World, append

IDENTITY = LogIdentity("c", "t", "o", "log")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "CHUNK_OUTCOMES", 16)


def appended(
    count: int, protocol: int = PROTOCOL_SUPPORTED, id_of: Callable[[int], str] = str
) -> World:
    world = World(rules=Rules(protocol))
    world.create()
    more(world, range(count), id_of)
    return world


def more(world: World, numbers: range, id_of: Callable[[int], str] = str) -> None:
    for number in numbers:
        outcome = world.ask(id_of(number), append(0, f"a{number}.lance"))
        assert outcome.status is Status.COMMITTED


def checkpoints(root: Path, world: World) -> Checkpoints:
    return Checkpoints(root, IDENTITY, world.genesis)


def save(kept: Checkpoints, machine: Machine) -> None:
    kept.save(Checkpoint.of(machine, Replica()))


def loaded(root: Path, world: World) -> Machine:
    found = checkpoints(root, world).load()
    assert found is not None
    return found.machine


def head_of(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "checkpoints" / "0" / HEAD).read_bytes())
    return found


def files_of_ids(root: Path) -> set[Path]:
    folder, head = root / "checkpoints" / "0", head_of(root)
    ids = {"parts": {n: e for n, e in head["parts"].items() if n.startswith(IDS)}}
    named = {**head, **ids}
    return {folder / name for name, _, _ in named_files(named)}


def size_of_ids(root: Path) -> int:
    return sum(path.stat().st_size for path in files_of_ids(root))


def test_ids_are_packed_and_the_states_hash_is_that_of_their_content(tmp_path: Path) -> None:
    world = appended(100)
    save(checkpoints(tmp_path, world), world.machine)
    again = loaded(tmp_path, world)
    assert again.digest() == world.machine.digest()
    assert head_of(tmp_path)["state_digest"] == world.machine.digest().hex()
    assert all(again.deduplication.is_known(str(number)) for number in range(100))
    content = sum(
        len(part.encode())
        for name, part in world.machine.to_parts().items()
        if name.startswith(IDS)
    )
    assert size_of_ids(tmp_path) < content / 2
    assert {path.suffix for path in files_of_ids(tmp_path)} == {".part"}, "with their hints"
    for path in (tmp_path / "checkpoints" / "0").glob("*.part"):
        assert sha256_of(path.read_bytes()) == path.stem, "a backup looks at that"


def test_an_older_log_keeps_the_files_that_an_older_program_reads(tmp_path: Path) -> None:
    world = appended(100, IDS_PACKED_SINCE - 1)
    save(checkpoints(tmp_path, world), world.machine)
    head, folder = head_of(tmp_path), tmp_path / "checkpoints" / "0"
    assert head.keys() == {
        *("format", "identity", "chain", "transactions_position", "decided_beyond"),
        *("outcomes_position", "outcome_offset", "parts", "hints", "state_digest", "sha256"),
    }
    for name, part in world.machine.to_parts().items():
        counter, digest, size = head["parts"][name]
        data = part.encode()
        assert (counter, size) == (part.counter, len(data))
        assert (folder / f"{digest}.part").read_bytes() == data


def test_an_older_program_finds_all_parts_that_it_knows_of_and_names_the_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If files seemed to be missing, its advice would be to delete what a newer one continues."""
    world = appended(40)
    save(checkpoints(tmp_path, world), world.machine)
    head = head_of(tmp_path)
    assert break_seal(head)
    assert head.pop("packed")
    (tmp_path / "checkpoints" / "0" / HEAD).write_bytes(encode_sealed(head))
    monkeypatch.setattr(effects, "PROTOCOL_SUPPORTED", IDS_PACKED_SINCE - 1)
    with pytest.raises(UnsupportedFormat, match="uses protocol 10, but this program knows only 9"):
        loaded(tmp_path, world)
    monkeypatch.undo()
    with pytest.raises(CorruptLog, match="the state's digest differs"):
        loaded(tmp_path, world)


def test_what_an_older_program_or_protocol_left_whole_stays_until_it_changes(
    tmp_path: Path,
) -> None:
    """The protocol comes into force in the middle of a log, and of a chunk of ids."""
    world = appended(40, IDS_PACKED_SINCE - 1)
    save(checkpoints(tmp_path, world), world.machine)
    before = files_of_ids(tmp_path)
    kept = checkpoints(tmp_path, world)
    found = kept.load()
    assert found is not None
    world.machine = found.machine
    rules = (world.machine.rules.id_horizon_ms, world.machine.rules.history_versions, 10)
    world.run(ProtocolVersion("rules", IDS_PACKED_SINCE, *rules))
    more(world, range(40, 80))
    save(kept, world.machine)
    stayed = before & files_of_ids(tmp_path)
    assert len(stayed) == 4, "two full chunks with their hints"
    packed = head_of(tmp_path)["packed"]
    assert len(packed) == 4
    again = loaded(tmp_path, world)
    assert again.digest() == world.machine.digest()
    assert all(again.deduplication.is_known(str(number)) for number in range(80))
    names = {path.name for path in (tmp_path / "checkpoints" / "0").iterdir()}
    named = {name for name, _, _ in named_files(head_of(tmp_path))}
    assert names == {HEAD, *named}, "what isn't named is gone"


def test_a_packed_part_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ahead of its checkpoint or with it, and neither again nor after a restart."""
    monkeypatch.setattr(checkpoint, "AHEAD_OUTCOMES", 10)
    put: list[str] = []
    replace_all = DiskFolder.replace_all

    def noted(folder: DiskFolder, files: dict[str, bytes]) -> None:
        put.extend(files)
        replace_all(folder, files)

    monkeypatch.setattr(DiskFolder, "replace_all", noted)
    world = appended(60)
    kept = checkpoints(tmp_path, world)
    while (prepared := kept.prepare_ahead(world.machine)) is not None:
        kept.write(prepared)
        kept.written(prepared)
    save(kept, world.machine)
    full = sorted(files_of_ids(tmp_path))
    again = checkpoints(tmp_path, world)
    found = again.load()
    assert found is not None
    world.machine = found.machine
    more(world, range(60, 70))
    save(again, world.machine)
    assert len(set(full) & files_of_ids(tmp_path)) == 3
    names = [path.name for path in files_of_ids(tmp_path)]
    assert [put.count(name) for name in names] == [1] * len(names)
    assert loaded(tmp_path, world).digest() == world.machine.digest()


def test_the_files_of_packed_parts_without_their_head_leave_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = appended(20)
    kept = checkpoints(tmp_path, world)
    save(kept, world.machine)
    digest = world.machine.digest()
    more(world, range(20, 60))

    def ended(*_: object) -> None:
        raise OSError("the process ended here")

    with monkeypatch.context() as patched:
        patched.setattr(DiskFolder, "replace", ended)
        with pytest.raises(OSError, match="ended here"):
            save(kept, world.machine)
    assert loaded(tmp_path, world).digest() == digest
    save(kept, world.machine)
    assert loaded(tmp_path, world).digest() == world.machine.digest()
    names = {path.name for path in (tmp_path / "checkpoints" / "0").iterdir()}
    named = {name for name, _, _ in named_files(head_of(tmp_path))}
    assert names == {HEAD, *named}


@pytest.mark.parametrize("length", [1, 300, 3_000])
def test_ids_of_any_length_are_packed(tmp_path: Path, length: int) -> None:
    def id_of(number: int) -> str:
        return chr(0x1F600 + number) * length

    world = appended(40, id_of=id_of)
    save(checkpoints(tmp_path, world), world.machine)
    again = loaded(tmp_path, world)
    assert again.digest() == world.machine.digest()
    assert all(again.deduplication.is_known(id_of(number)) for number in range(40))


def test_a_part_that_would_unpack_to_too_much_is_left_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_parts, "PACKED_BYTES_MAX", 2000)
    world = appended(20)
    save(checkpoints(tmp_path, world), world.machine)
    assert len(files_of_ids(tmp_path)) == 3, "the first chunk with its hint, and the second packed"
    assert loaded(tmp_path, world).digest() == world.machine.digest()


def test_a_damaged_packed_part_is_refused_with_advice(tmp_path: Path) -> None:
    world = appended(40)
    save(checkpoints(tmp_path, world), world.machine)
    path = min(files_of_ids(tmp_path))
    data, chance = path.read_bytes(), random.Random(7)
    flipped = bytearray(data)
    flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    for damaged in (bytes(flipped), data[:-1], b"", data + data):
        path.write_bytes(damaged)
        with pytest.raises(CorruptLog, match="is damaged. Delete this folder"):
            loaded(tmp_path, world)
    path.unlink()
    with pytest.raises(CorruptLog, match="is missing. Delete this folder"):
        loaded(tmp_path, world)


@pytest.mark.parametrize("data", [b"", b"other bytes", None])
def test_whoever_copies_or_checks_a_damaged_packed_part_names_the_folder_to_delete(
    tmp_path: Path, data: bytes | None
) -> None:
    """A log may have many partitions, and so many folders. A backup without it would seem whole."""
    root, world = tmp_path / "root", appended(40)
    save(checkpoints(root, world), world.machine)
    assert save_checkpoints(str(tmp_path / "backup"), root, 1) > 1
    shutil.rmtree(tmp_path / "backup")
    path, folder = min(files_of_ids(root)), re.escape(str(root / "checkpoints" / "0"))
    [found, _] = _kept(root, 1)
    assert found.level is Level.OK
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    problem = "missing" if data is None else "damaged"
    told = rf"{folder}: {path.name} is {problem}\. Delete this"
    with pytest.raises(CorruptLog, match=told):
        save_checkpoints(str(tmp_path / "backup"), root, 1)
    [found, _] = _kept(root, 1)
    assert found.level is Level.FAIL
    assert re.search(told, found.message)


def test_all_damaged_checkpoints_are_named_at_once(tmp_path: Path) -> None:
    """A root has one for each partition, and each start that is refused costs its minute."""
    log = MemoryLog()
    log.create(partitions=3, domains={"a": 1, "b": 2}, tables_root=str(tmp_path / "tables"))
    for number in range(3):
        genesis = log.genesis(number)
        kept = Checkpoints(tmp_path, log.identity(), genesis)
        kept.save(Checkpoint.of(Machine(genesis), Replica()))
    assert check_tables(log, tmp_path) == 0
    for number in (1, 2):
        min((tmp_path / "checkpoints" / f"{number}").glob("*.part")).unlink()
    with pytest.raises(CorruptLog, match=r"checkpoints/1: .*missing.*; checkpoint .*/2: .*missing"):
        check_tables(log, tmp_path)


@pytest.mark.parametrize("damage", [b'"transactions_position": 1', b"{"])
def test_a_head_is_copied_as_its_committer_wrote_it_or_not_at_all(
    tmp_path: Path, damage: bytes
) -> None:
    """A restore makes it the new log's: with another position, transactions would be passed over.

    An older program copied one that was damaged, and such a backup says so.
    """
    root, world, place = tmp_path / "root", appended(4), tmp_path / "backup"
    save(checkpoints(root, world), world.machine)
    path = root / "checkpoints" / "0" / HEAD
    before = path.read_bytes()
    flipped = before.replace(b'"transactions_position": 0', damage) if len(damage) > 1 else damage
    assert flipped != before
    path.write_bytes(flipped)
    with pytest.raises(CorruptLog, match=rf"{HEAD} is .*Delete this folder"):
        save_checkpoints(str(place), root, 1)
    assert not (place / "checkpoints").exists()
    path.write_bytes(before)
    save_checkpoints(str(place), root, 1)
    assert list(damage_of(str(place), 1)) == []
    [kept] = (place / "checkpoints" / "0" / "heads").iterdir()
    kept.unlink()
    kept.with_name(f"{0:020}-{sha256_of(flipped)}.json").write_bytes(flipped)
    [found] = damage_of(str(place), 1)
    assert "isn't what was written" in str(found)
    harm: list[str] = []
    end = RestorePoint(outcomes_end=10)
    assert put_back(str(place), tmp_path / "new", MemoryLog(), {0: end}, harm) == 0
    assert "isn't what was written" in harm[0]


def test_what_unpacks_to_other_or_more_bytes_than_the_head_says_is_refused(
    tmp_path: Path,
) -> None:
    """Though the head is sealed and names the file: who writes both is not believed either."""
    world = appended(40)
    save(checkpoints(tmp_path, world), world.machine)
    folder, head = tmp_path / "checkpoints" / "0", head_of(tmp_path)
    assert break_seal(head)
    [name, *_] = head["packed"]
    for content in (
        pa.Codec("zstd").compress(bytes(1 << 26), asbytes=True),
        pack([b"other bytes"]),
        b"not packed",
    ):
        head["packed"][name][2] = [sha256_of(content), len(content)]
        (folder / f"{sha256_of(content)}.part").write_bytes(content)
        (folder / HEAD).write_bytes(encode_sealed(head))
        with pytest.raises(CorruptLog, match="is damaged"):
            loaded(tmp_path, world)


def test_only_as_much_is_unpacked_as_is_said_and_allowed() -> None:
    pieces = [os.urandom(5000) + bytes(100_000), b"hint"]
    wanted = [(sha256_of(piece), len(piece)) for piece in pieces]
    packed = pack(pieces)
    assert unpack(packed, wanted) == pieces
    (data, size), hint = wanted
    for wrong in (
        [(data, size - 1), hint],
        [(data, size + 1), hint],
        [(data, size)],
        [(data, 1 << 50), hint],
        [(data, -size), hint],
        [(hint[0], size), hint],
        [],
    ):
        with pytest.raises(ValueError, match=r"ZSTD|unpack|bytes"):
            unpack(packed, wrong)
