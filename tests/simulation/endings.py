"""How a run may end: something is taken from the log or the disk, and a node starts again.

What was lost must be noticed: the node refuses, and says which kind of loss it was. What can be
rebuilt is rebuilt, to the byte. Each seed plays one ending.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.codecs.manifest_file import parse_manifest_name
from commitlog.core.log.replica import Replica
from commitlog.core.partition.machine import Machine
from commitlog.errors import CommitLogError, CorruptLog, WrongLog
from commitlog.model.records import Transaction
from consumers.partition.checkpoints.checkpoint import Checkpoint, Checkpoints
from consumers.partition.session import Session
from tests.simulation.disk import MemoryFolder
from tests.simulation.log import SimulatedLog
from tests.simulation.requests import ROOT
from tests.simulation.validations import replayed

if TYPE_CHECKING:
    from tests.simulation.world import World


def run_ending(world: World) -> None:
    """Play the ending that the seed chooses."""
    scheduler = world.scheduler
    for node in world.nodes:
        scheduler.kill(node.process, "the end")
    scheduler.stop()
    world.expects_refusal = True
    ending = ENDINGS[world.seed % len(ENDINGS)]
    if world.archivist is not None:
        ending = OF_ARCHIVES.get(ending, ending)
    world.count(f"ending: {ending.__name__.replace('_', ' ').strip()}")
    scheduler.trace("ending", ending.__name__)
    ending(world)


def _start(world: World, disk: dict[str, bytes]) -> Session:
    """Start a node as its process does: recover, then read to the end."""
    process = world.auditor.process
    log = world.with_archive(
        SimulatedLog(world.log, world.auditor.decoders, world.scheduler, process)
    )
    genesis = world.log.genesis()
    folder = MemoryFolder(world.scheduler, process, disk)
    checkpoints = Checkpoints(Path("checkpoints"), log.identity(), genesis, folder=folder)
    session = Session(
        log,
        genesis,
        checkpoints,
        open_store=world.auditor.open_store,
        clock=world.scheduler.clock,
    )
    session.catch_up()
    return session


def _checkpointed(world: World, log_id: str = "") -> dict[str, bytes]:
    """Return a disk with a checkpoint at the end of the log, by default of this log."""
    disk: dict[str, bytes] = {}
    follower = replayed(world, Machine(world.genesis), Replica())
    folder = MemoryFolder(world.scheduler, world.auditor.process, disk)
    identity = world.log.identity()
    genesis = replace(world.genesis, log_id=log_id or world.genesis.log_id)
    checkpoints = Checkpoints(Path("checkpoints"), identity, genesis, folder=folder)
    checkpoints.save(Checkpoint.of(follower.machine, follower.replica))
    return disk


def _must_refuse(
    world: World, disk: dict[str, bytes], kind: type[CommitLogError], what: str
) -> None:
    try:
        _start(world, disk)
    except kind:
        return
    except Exception as error:
        world.auditor.expect(False, f"I12 {what}: {error!r} instead of {kind.__name__}")
    world.auditor.expect(False, f"I12 {what}: nobody noticed")


def _outcomes(world: World) -> int:
    return world.cluster.partition(world.topics[1], 0).end


def _outcomes_lost_their_tail(world: World) -> None:
    lost = 3
    if world.seed // len(ENDINGS) % 2 == 0:
        # Only what nobody heeds: the last outcome is still where the checkpoint says.
        world.cluster.append(world.topics[1], 0, b"other/0", b"other")
        lost = 1
    disk = _checkpointed(world)
    world.cluster.truncate(world.topics[1], 0, _outcomes(world) - lost)
    _must_refuse(world, disk, CorruptLog, "the outcomes lost their tail")


def _outcomes_lost_their_tail_and_grew_again(world: World) -> None:
    """Another leader went on from what was left, before the node starts."""
    disk = _checkpointed(world)
    offset = world.auditor.follower.replica.outcome_offset
    end = _outcomes(world)
    world.cluster.truncate(world.topics[1], 0, offset)
    while _outcomes(world) <= end:
        world.cluster.append(world.topics[1], 0, b"other/%d" % _outcomes(world), b"other")
    _must_refuse(world, disk, CorruptLog, "the outcomes lost their tail and grew again")


def _transactions_lost_their_tail(world: World) -> None:
    """The outcomes answer records that are gone: from nothing and from a checkpoint."""
    disk = _checkpointed(world)
    last = max(entry.offset for entry in world.auditor.entries)
    last_answered = world.auditor.entries[-1].offset
    world.cluster.truncate(world.topics[0], 0, min(last, last_answered))
    _must_refuse(world, disk, CorruptLog, "the transactions lost their tail")
    _must_refuse(world, {}, CorruptLog, "the transactions lost their tail, read from nothing")


def _transactions_lost_their_tail_and_grew_again(world: World) -> None:
    disk = _checkpointed(world)
    offset = world.auditor.entries[-1].offset
    end = world.end_of_transactions()
    world.cluster.truncate(world.topics[0], 0, offset)
    writer = world.log.transactions_writer()
    while world.end_of_transactions() < end + 3:
        writer.append(Transaction(world.requests.uuid(), ()), partition=0)
    what = "the transactions lost their tail and grew again"
    _must_refuse(world, disk, CorruptLog, what)
    _must_refuse(world, {}, CorruptLog, f"{what}, read from nothing")


def _topics_made_again(world: World) -> None:
    disk = _checkpointed(world)
    for topic in world.topics:
        del world.cluster.topics[topic]
    world.log.create(tables_root=ROOT)
    _must_refuse(world, disk, WrongLog, "the topics were made again")


def _checkpoint_of_another_cluster(world: World) -> None:
    disk = _checkpointed(world)
    other = MemoryLog(MemoryCluster())
    other.create(tables_root=ROOT)
    world.log = other
    _must_refuse(world, disk, WrongLog, "the checkpoint is of another cluster")


def _checkpoint_damaged(world: World) -> None:
    """One bit is flipped, in the head or in a part."""
    disk = _checkpointed(world)
    name = world.scheduler.random.choice(sorted(disk))
    data = bytearray(disk[name])
    data[world.scheduler.random.randrange(len(data))] ^= 1 << world.scheduler.random.randrange(8)
    _must_refuse(world, {**disk, name: bytes(data)}, CorruptLog, f"a bit of {name} is flipped")


def _committed_record_tombstoned(world: World) -> None:
    """Somebody names a decided record by a tombstone, and the cleaner takes it away."""
    disk = _checkpointed(world)
    records = world.cluster.partition(world.topics[0], 0).records
    decided = [r for r in records[1:-1] if r.value is not None]
    victim = world.scheduler.random.choice(decided[:-1])
    world.cluster.append(world.topics[0], 0, victim.key, None)
    world.cluster.compact(world.topics[0])
    _must_refuse(world, {}, CorruptLog, "a decided record is gone")
    if victim.offset != world.auditor.entries[-1].offset:
        session = _start(world, disk)
        machine = session.follower.machine
        world.auditor.expect(
            machine.digest() == world.auditor.machine.digest(), "I11 a checkpoint goes on"
        )


def _beginning_lost(world: World) -> None:
    """Retention took the first outcomes."""
    world.cluster.delete_before(world.topics[1], 0, 3)
    _must_refuse(world, {}, CommitLogError, "the outcomes lost their beginning")


def _manifests_deleted(world: World) -> None:
    """All files of the tables that follow from the log are gone; a node writes them again."""
    auditor, objects = world.auditor, world.objects
    before = {
        path: data
        for path, data in objects.bytes.items()
        if "/_versions/" in path and path.endswith(".manifest")
    }
    for path in [p for p in objects.bytes if "/_versions/" in p]:
        del objects.bytes[path]
    auditor.readable.clear()
    session = _start(world, {})
    session.materializer.hurry()
    session.materializer.step(0)
    session.step(session.mailbox.take(0))
    auditor.expect(not session.failing_tables, "I9 the rebuild fails")
    live = {table.location for table in auditor.machine.tables.values()}
    for path, data in before.items():
        location, _, name = path.rpartition("/_versions/")
        again = objects.bytes.get(path)
        is_ours = hash_is_ours(world, location, data)
        parsed = parse_manifest_name(name)
        incarnation = auditor.by_location[location]
        is_expired = parsed is not None and auditor.is_expired(incarnation, parsed.version)
        if location in live and is_ours and auditor.is_every(location) and not is_expired:
            auditor.expect(again == data, f"I9 {name} of {location} was rebuilt with other bytes")


def hash_is_ours(world: World, location: str, data: bytes) -> bool:
    """Say whether bytes are a version that the log made."""
    incarnation = world.auditor.by_location[location]
    return data in world.auditor.tables[incarnation].expected.values()


def _log_compacted(world: World) -> None:
    """The cleaner alone changes nothing."""
    world.cluster.compact(world.topics[0])
    session = _start(world, {})
    machine = session.follower.machine
    world.auditor.expect(
        machine.digest() == world.auditor.machine.digest(), "I11 compaction changed the state"
    )


def _checkpoint_of_another_log(world: World) -> None:
    """On the same topics, but made when another log's Genesis stood there."""
    disk = _checkpointed(world, log_id=world.requests.uuid())
    _must_refuse(world, disk, WrongLog, "the checkpoint is of a log with another id")


def _archive_lost_a_file(world: World) -> None:
    """Transactions that the topic gave up are nowhere any more."""
    assert world.archivist is not None
    for path in world.archivist.files()[:1]:
        path.unlink()
        _must_refuse(world, {}, CorruptLog, f"the archive lost {path.name}")


def _archive_has_another_byte(world: World) -> None:
    assert world.archivist is not None
    files = world.archivist.files()
    if not files:
        return  # nothing was archived
    path = world.scheduler.random.choice(files)
    data = bytearray(path.read_bytes())
    data[world.scheduler.random.randrange(len(data))] ^= 1 << world.scheduler.random.randrange(8)
    path.write_bytes(bytes(data))
    try:
        world.archivist.check_files()
    except CorruptLog:
        return
    world.auditor.expect(False, f"I12 a bit of {path.name} is flipped: nobody noticed")


def _archive_lost(world: World) -> None:
    """All of it, its proof too."""
    assert world.archivist is not None
    for path in [*world.archivist.files()[:1]]:
        for one in list(path.parent.iterdir()):
            one.unlink()
        _must_refuse(world, {}, CorruptLog, "the archive is gone")


ENDINGS: tuple[Callable[[World], None], ...] = (
    _outcomes_lost_their_tail,
    _outcomes_lost_their_tail_and_grew_again,
    _transactions_lost_their_tail,
    _transactions_lost_their_tail_and_grew_again,
    _topics_made_again,
    _checkpoint_of_another_cluster,
    _checkpoint_damaged,
    _committed_record_tombstoned,
    _beginning_lost,
    _manifests_deleted,
    _log_compacted,
    _checkpoint_of_another_log,
)
OF_ARCHIVES: dict[Callable[[World], None], Callable[[World], None]] = {
    _transactions_lost_their_tail: _archive_lost_a_file,
    _transactions_lost_their_tail_and_grew_again: _archive_has_another_byte,
    _committed_record_tombstoned: _archive_lost,
}
"""What happens instead to an archived log: what the topic lost may be in the archive."""
