"""Every type by every path: values are the same, or refused as the documentation says."""

from collections.abc import Collection
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


ALIKE = (
    *("append in transact", "append of Python values", "HTTP insert", "HTTP merge", "HTTP update"),
    "log.open",
)
"""Paths that write and read files as others do, whatever these are of: tried with the newest."""
Found = dict[str, dict[str, str]]


def found_in(folder: Path, *storage_version: str, but: Collection[str] = ()) -> Found:
    """Return what each path but some did with each type."""
    world = World(folder)
    try:
        return dict(run(world, *storage_version, but=but))
    finally:
        world.close()


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return found_in(tmp_path_factory.mktemp("newest"))


def test_the_table_of_types_is_what_the_paths_do(newest: Found) -> None:
    assert document(newest) == WRITTEN.read(), "write it anew: python -m tests.types --write"


@pytest.mark.parametrize("storage_version", OTHERWISE)
def test_older_files_hold_the_same_but_for_what_is_documented(
    storage_version: str, newest: Found, tmp_path: Path
) -> None:
    found = found_in(tmp_path, storage_version, but=ALIKE)
    for name, paths in found.items():
        if "create" not in paths:
            paths.update({path: newest[name][path] for path in ALIKE})
    others = [*OTHERWISE[storage_version], "blob, as large_binary"]
    assert sorted(differing(found)) == sorted(others + NEWER)
    assert all("create" in found[name] for name in NEWER)
