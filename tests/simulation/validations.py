"""What must hold when everything has settled: rebuilt from the log alone, all is the same."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.codecs.manifest_file import decode_manifest, parse_manifest_name
from commitlog.core.log.replica import Replica
from commitlog.core.partition.machine import Machine
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.table import Policy, format_table_id
from consumers.partition.checkpoints.checkpoint import Checkpoints
from consumers.partition.follower import Follower
from tests.simulation.auditor import Auditor, manifest_path
from tests.simulation.disk import MemoryFolder
from tests.simulation.history import FinalRows, check

if TYPE_CHECKING:
    from tests.simulation.world import World


def validate(world: World) -> None:
    """Raise Violation for the first thing that isn't so."""
    auditor = world.auditor
    auditor.follow()
    check_replay(world)
    check_checkpoints(world)
    check_manifests(world)
    check_standing(world)
    check_totality(world)
    check_answers(world)
    problems = check(auditor.entries, auditor.told_times(), rows_by_path(auditor))
    auditor.expect(not problems, "; ".join(problems[:5]))


def replayed(world: World, machine: Machine, replica: Replica) -> Follower:
    """Follow the log from a position to its end."""
    auditor = world.auditor
    follower = Follower(
        auditor.simulated_log,
        world.genesis,
        machine,
        replica,
        open_store=auditor.open_store,
        clock=world.scheduler.clock,
    )
    follower.catch_up(10, list)
    return follower


def check_replay(world: World) -> None:
    """I11: everybody who read the same log has the same state."""
    auditor = world.auditor
    digest, sequence = auditor.machine.digest(), auditor.machine.sequence
    again = replayed(world, Machine(world.genesis), Replica())
    auditor.expect(again.machine.sequence == sequence, "I11 a replay ends elsewhere")
    auditor.expect(again.machine.digest() == digest, "I11 a replay comes to another state")
    for node in world.nodes:
        if node.session is not None:
            machine = node.session.follower.machine
            if machine.sequence == sequence:
                auditor.expect(machine.digest() == digest, f"I11 {node.process.name} differs")


def check_checkpoints(world: World) -> None:
    """I11: a checkpoint and the rest of the log come to the same state."""
    auditor = world.auditor
    for node in world.nodes:
        folder = MemoryFolder(world.scheduler, auditor.process, node.disk)
        checkpoints = Checkpoints(
            Path("checkpoints"), world.log.identity(), world.genesis, folder=folder
        )
        checkpoint = checkpoints.load()
        if checkpoint is None:
            continue
        world.count("replays from a checkpoint")
        follower = replayed(world, checkpoint.machine, checkpoint.replica())
        auditor.expect(
            follower.machine.digest() == auditor.machine.digest(),
            f"I11 node {node.number}'s checkpoint and the rest of the log differ",
        )


def check_manifests(world: World) -> None:
    """I9, I10, I13: under canonical names stands what the log says, and nothing else."""
    auditor, objects = world.auditor, world.objects
    heads = {t.location: t.version for t in auditor.machine.tables.values()}
    for path, data in objects.bytes.items():
        folder, _, name = path.rpartition("/")
        location, _, kind = folder.rpartition("/")
        parsed = parse_manifest_name(name) if kind == "_versions" else None
        if parsed is None or parsed.staged_by:
            continue
        made = auditor.tables[auditor.by_location[location]]
        is_beyond = parsed.version > heads.get(location, 0)
        is_rogue = hashlib.sha256(data).digest() in auditor.rogue
        if is_rogue and (is_beyond or made.policy is Policy.LATEST):
            # Found when that version gets its file, which under `latest` may be never.
            world.count("bypass not found yet")
            continue
        auditor.expect(
            hashlib.sha256(data).digest() == made.hashes.get(parsed.version),
            f"I9 {path} isn't what the log says",
        )
    for table_id, table in auditor.machine.tables.items():
        is_every = table.policy is Policy.EVERY
        for version in range(1 if is_every else table.version, table.version + 1):
            if auditor.is_expired(table.incarnation, version):
                continue
            path = manifest_path(table.location, version)
            name = format_table_id(table_id)
            auditor.expect(path in objects.bytes, f"I10 {name} has no file of version {version}")
    for path, data in world.rogue_paths:
        location = path.rpartition("/_versions/")[0]
        if auditor.standing is not None:
            continue  # after a while it may be removed
        kept = any(
            stored == data for name, stored in objects.bytes.items() if name.startswith(location)
        )
        auditor.expect(kept, f"I13 what was written around the log to {path} is lost")


def check_standing(world: World) -> None:
    """I21: every version that stands has its files, and one with a tag its manifest, too."""
    auditor, objects = world.auditor, world.objects
    if auditor.standing is None:
        return
    for table_id, table in auditor.machine.tables.items():
        made, name = auditor.tables[table.incarnation], format_table_id(table_id)
        for version, files in auditor.standing.needed(table.incarnation, made):
            missing = sorted(files - objects.bytes.keys())[:3]
            auditor.expect(not missing, f"I21 version {version} of {name} misses {missing}")
            world.count("versions that stand")
        for version in auditor.standing.expired[table.incarnation]:
            world.count("versions that are gone")
            if manifest_path(table.location, version) in objects.bytes:
                world.count("expired version has a file")
    for (location, tag), (version, _) in auditor.standing.tags.items():
        incarnation = auditor.by_location[location]
        is_gone = auditor.tables[incarnation].is_dropped or auditor.is_expired(incarnation, version)
        is_gone = is_gone or (location, version) in auditor.standing.overtaken
        is_there = is_gone or manifest_path(location, version) in objects.bytes
        auditor.expect(is_there, f"I21 version {version} of {location}, tagged {tag}, is gone")


def check_answers(world: World) -> None:
    """I16: every answer that was ever given is still what the log says."""
    auditor = world.auditor
    records = world.cluster.partition(world.topics[1], 0).records
    at = {record.offset: record.value for record in records}
    for chosen, sequence, offset, digest in auditor.answered.by_id:
        is_so = auditor.outcomes[sequence] == (offset, digest) and at.get(offset) is not None
        auditor.expect(is_so, f"I16 {chosen} was answered with {sequence}, which isn't the log's")
    for chosen, sequence, digest in auditor.answered.by_ticket:
        found = auditor.outcomes[sequence]
        is_so = found[1] == digest and at.get(found[0]) is not None
        auditor.expect(is_so, f"I16 {chosen} was told {sequence}, which isn't the log's")
    for chosen, attempt in auditor.surely_not:
        is_so = all((e.transaction_id, e.attempt) != (chosen, attempt) for e in auditor.entries)
        auditor.expect(is_so, f"I16 {chosen} was told not to be appended, and is in the log")
    for incarnation, version, digest in auditor.answered.by_version:
        is_so = auditor.tables[incarnation].hashes[version] == digest
        auditor.expect(is_so, f"I16 version {version} of {incarnation} was answered wrongly")


def rows_by_path(auditor: Auditor) -> FinalRows:
    """Return the rows that live in each table as it can be opened by path."""
    rows: FinalRows = {}
    for table_id, table in sorted(auditor.machine.tables.items()):
        store = auditor.open_store(table.location)
        path = manifest_path(table.location, table.version)[len(table.location) + 1 :]
        state, _ = decode_manifest(store.read(path))
        rows[format_table_id(table_id)] = {
            fragment_id: frozenset(auditor.living(table.location, DataFragment.FromString(encoded)))
            for fragment_id, encoded in state.fragments.items()
        }
    return rows


def check_totality(world: World) -> None:
    """I7: each record of the transactions topic has exactly one outcome."""
    auditor = world.auditor
    partition = world.cluster.topics[world.topics[0]].partitions[0]
    answered = [entry.offset for entry in auditor.entries]
    auditor.expect(len(set(answered)) == len(answered), "I4 a record has two outcomes")
    # A tombstone is no record: it is gone tomorrow.
    asked = {record.offset for record in partition.records if record.value is not None}
    missing = asked - set(answered)
    auditor.expect(not missing, f"I7 the records at {sorted(missing)[:5]} have no outcome")
