"""Heads follow what is acknowledged, however far the machine is ahead."""

from __future__ import annotations

from commitlog.model.operations import DropTable, RenameTable
from consumers.partition.catalogue import PartitionHeads
from tests.core_world import World, append


def test_a_table_that_was_renamed_and_then_dropped_leaves_no_head() -> None:
    """Both were decided before the first of them was acknowledged."""
    world = World()
    world.create()
    heads = PartitionHeads(world.machine.tables)
    seen = len(world.changes)
    world.ask("append", append(1, "1.lance"))
    world.ask("rename", RenameTable(("t",), ("u",)))
    world.ask("again", RenameTable(("u",), ("v",)))
    world.ask("drop", DropTable(("v",)))
    names = []
    for change in world.changes[seen:]:
        heads.apply([change])
        names.append([(head.table, head.version) for head in heads.heads()])
    assert names == [[(("t",), 2)], [(("u",), 2)], [(("v",), 2)], []]
