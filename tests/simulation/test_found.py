"""What simulation found, in the fewest words; what still stands is marked so."""

from __future__ import annotations

from commitlog.adapters.memory import MemoryLog
from commitlog.model.limits import Rules
from commitlog.model.operations import CreateTable, DropTable
from commitlog.model.records import Malformed
from tests.core_world import FORMAT, ROOT, World, column, replayed_from_parts


def test_a_machine_that_forgot_all_its_ids_is_restored_as_it_was() -> None:
    world = World(rules=Rules(id_horizon_ms=1_000))
    world.create()
    world.now_ms += 10_000
    # Nothing is remembered of this one, and the ids before it are older than the horizon.
    world.run(Malformed("x", "not Avro", b"hash"))
    assert replayed_from_parts(world.machine).digest() == world.machine.digest()


def test_a_tombstone_is_no_record() -> None:
    """It got an outcome once; the cleaner took it, and nobody could read that log any more."""
    log = MemoryLog()
    log.create()
    log.cluster.append("commitlog.transactions", 0, b"00000000-0000-4000-8000-000000000001/x", None)
    reader = log.read_transactions(0)
    assert [r.offset for r in reader.poll(timeout_seconds=0)] == [0]
    assert reader.position() == reader.end_offset() == 2


def test_a_dropped_incarnation_is_not_made_again() -> None:
    world = World()
    fields = (column("c0", 0),)
    create = CreateTable(("t",), "i-t", f"{ROOT}/t", fields, data_storage_version=FORMAT)
    assert world.ask("a", create).status == "committed"
    assert world.ask("b", DropTable(("t",))).status == "committed"
    # Its manifests from version 1 on stand there under their canonical names.
    assert world.ask("c", create).code == "LOCATION_TAKEN"
