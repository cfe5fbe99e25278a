"""Every way to restore a version does what plain Lance does, whatever the ids of columns became."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from tests.namespace_world import World, numbers

NAME, T = ["n", "t"], "n$t"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Serve a log."""
    running = World(tmp_path)
    yield running
    running.close()


def by_http(world: World, version: int) -> None:
    """Restore a version as LanceDB's clients do."""
    status, answer = world.post(f"/v1/table/{T}/restore", {"version": version})
    assert status == 200, answer


def by_operation(world: World, version: int) -> None:
    """Restore a version by Lance's operation, whose manifest the leader has built."""
    read = world.log.describe(tuple(NAME), fresh=True).version
    operation = lance.LanceOperation.Restore(version)
    world.log.submit(T, operation, read_version=read).result().raise_for_conflict()


def restored(dataset: Any) -> None:
    """Make an older version the newest, as pylance does."""
    dataset.restore()


RESTORES: dict[str, Callable[[World, int], Any]] = {
    "a handle of the log": lambda world, version: restored(world.log.open(T, version)),
    "pylance": lambda world, version: restored(world.open(NAME, version)),
    "HTTP": by_http,
    "an operation": by_operation,
}


def steps(
    opened: Callable[[], lance.LanceDataset], restore: Callable[[int], Any]
) -> Iterator[lance.LanceDataset]:
    """Give one id to columns of two types, with values and without, and go back to each."""
    struct = pa.struct([pa.field("p", pa.int32()), pa.field("q", pa.string())])
    opened().add_columns(pa.field("w", pa.int32()))
    yield opened()
    restore(1)
    opened().add_columns(pa.field("y", struct))
    yield opened()
    restore(2)
    yield opened()
    opened().insert(numbers(3, 5).append_column("w", pa.array([7, None], pa.int32())))
    yield opened()
    restore(4)
    yield opened()
    restore(6)
    yield opened()


@pytest.mark.parametrize("way", RESTORES)
def test_a_restore_gives_an_id_back_to_a_column_of_another_type(
    world: World, tmp_path: Path, way: str
) -> None:
    plain = str(tmp_path / "plain")
    lance.write_dataset(numbers(0, 3), plain)
    world.write(NAME, numbers(0, 3))
    ours = steps(lambda: world.open(NAME), lambda version: RESTORES[way](world, version))
    theirs = steps(
        lambda: lance.dataset(plain), lambda version: restored(lance.dataset(plain, version))
    )
    for our, their in zip(ours, theirs, strict=True):
        assert our.version == their.version
        assert our.schema == their.schema
        assert [f.id() for f in our.lance_schema.fields()] == [
            f.id() for f in their.lance_schema.fields()
        ]
        assert our.to_table() == their.to_table()
