"""Every type by every path: values are the same, or refused as the documentation says."""

from pathlib import Path

from tests.namespace_world import World
from tests.types.matrix import document, run, written_down


def test_the_table_of_types_is_what_the_paths_do(tmp_path: Path) -> None:
    world = World(tmp_path)
    try:
        found = dict(run(world))
    finally:
        world.close()
    assert document(found) == written_down(), "write it anew: python -m tests.types --write"
