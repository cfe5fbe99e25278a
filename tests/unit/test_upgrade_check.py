"""The findings about an upgrade name partitions as `commitlog doctor` does."""

from pathlib import Path

from consumers.tools.upgrade import check_upgrade
from tests.namespace_world import World


def test_the_first_of_several_partitions_has_its_number(tmp_path: Path) -> None:
    world = World(tmp_path, domains={"sales": 1})
    try:
        found = {one.name for one in check_upgrade(world._log, tmp_path)}
    finally:
        world.close()
    assert found > {"leader 0", "leader 1", "checkpoint 0", "checkpoint 1", "rules 0", "rules 1"}
    assert not found & {"leader", "connected", "checkpoint", "rules", "lance"}
