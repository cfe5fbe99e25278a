"""Every type by every path: values are the same, or refused as the documentation says."""

from pathlib import Path

import pytest

from tests.namespace_world import World
from tests.types.matrix import WRITTEN, differing, document, run

NEWER = ["map", "map of structs", "blob"]
"""The types that older files can't hold."""
OTHERWISE = {
    "2.0": ["vector without nulls", "struct", "struct of structs and lists"],
    "2.1": [],
}
"""Those that they hold otherwise, beside blobs as large_binary, which an update sets there."""


def test_the_table_of_types_is_what_the_paths_do(tmp_path: Path) -> None:
    world = World(tmp_path)
    try:
        found = dict(run(world))
    finally:
        world.close()
    assert document(found) == WRITTEN.read(), "write it anew: python -m tests.types --write"


@pytest.mark.parametrize("storage_version", OTHERWISE)
def test_older_files_hold_the_same_but_for_what_is_documented(
    storage_version: str, tmp_path: Path
) -> None:
    world = World(tmp_path)
    try:
        found = dict(run(world, storage_version))
    finally:
        world.close()
    others = [*OTHERWISE[storage_version], "blob, as large_binary"]
    assert sorted(differing(found)) == sorted(others + NEWER)
    assert all("create" in found[name] for name in NEWER)
