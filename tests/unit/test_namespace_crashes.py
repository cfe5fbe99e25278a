"""Does a batch commit wholly or not at all, wherever the leader dies in between?

The leader is stopped at each of its effects in turn: records of the log, files of the tables. From
there on nothing that it does has any effect, as if its process had been killed; another one begins
where the log and the checkpoint stand.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from commitlog.adapters.memory import MemoryOutcomesWriter
from commitlog.adapters.storage import LocalStore
from commitlog.errors import Unavailable
from consumers.partition.session import Session
from consumers.servers.committer import Committer
from tests.namespace_world import World, numbers

BATCH = "/v1/table/batch-commit"
TABLES = 2


class Doom:
    """Counts the leader's effects, and from a chosen one on lets none happen."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.last: int | None = None
        self.struck = threading.Event()
        for name in ("create", "write", "delete", "move"):
            self._wrap(patch, LocalStore, name, OSError("killed"))
        self._wrap(patch, MemoryOutcomesWriter, "append", Unavailable("killed"))

    def arm(self, last: int | None) -> None:
        """Let this many more effects happen; all if None."""
        self.count, self.last = 0, last
        self.struck.clear()

    def _wrap(self, patch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception) -> None:
        real = getattr(owner, name)

        def guarded(*arguments: Any, **more: Any) -> Any:
            if self.last is not None and self.count >= self.last:
                self.struck.set()
                raise error
            self.count += 1
            return real(*arguments, **more)

        patch.setattr(owner, name, guarded)


@pytest.fixture(scope="module")
def doom() -> Iterator[Doom]:
    with pytest.MonkeyPatch.context() as patch:
        # Who is killed saves nothing.
        patch.setattr(Committer, "_checkpoint", lambda *arguments, **more: None)
        patch.setattr(Session, "checkpoint", lambda *arguments, **more: False)
        yield Doom(patch)


@pytest.fixture(scope="module")
def world(doom: Doom, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    running = World(tmp_path_factory.mktemp("crashes"))
    yield running
    running.close()


def prepared(world: World, space: str) -> list[dict[str, Any]]:
    """Return a batch of every kind of operation, on tables of its own."""
    operations: list[dict[str, Any]] = []
    for number in range(TABLES):
        table = [space, f"t{number}"]
        world.write(table, numbers(0, 5))
        (staged,) = world.stage(table, lambda dataset: dataset.insert(numbers(5, 7)))
        operations.append({"create_table_version": staged})
    world.write([space, "gone"], numbers(0, 1))
    world.write([space, "old"], numbers(0, 1)).insert(numbers(1, 2))
    ranges = [{"start_version": 1, "end_version": 2}]
    return [
        *operations,
        {"declare_table": {"id": [space, "declared"]}},
        {"deregister_table": {"id": [space, "gone"]}},
        {"delete_table_versions": {"id": [space, "old"], "ranges": ranges}},
    ]


def landed(world: World, space: str) -> list[bool]:
    """Return for each operation of the batch whether it took effect."""

    def status(table: str, operation: str, body: Any = None) -> int:
        return world.post(f"/v1/table/{space}${table}/{operation}", body)[0]

    found = []
    for number in range(TABLES):
        dataset = world.open([space, f"t{number}"])
        assert (dataset.version, dataset.count_rows()) in ((1, 5), (2, 7))
        found.append(dataset.version == 2)
    return [
        *found,
        status("declared", "describe") == 200,
        status("gone", "describe") == 404,
        status("old", "version/describe", {"version": 1}) == 404,
    ]


def ask(world: World, request: Any, answers: list[tuple[int, Any]]) -> None:
    answers.append(world.post(BATCH, request))


@pytest.mark.slow
def test_a_batch_is_whole_wherever_the_leader_dies(world: World, doom: Doom) -> None:
    operations = prepared(world, "whole")
    doom.arm(None)
    assert world.post(BATCH, {"operations": operations})[0] == 200
    assert all(landed(world, "whole"))
    effects = doom.count
    assert effects > 2 * TABLES, "the outcome, and files of each table"
    for last in range(effects):
        space = f"crash{last}"
        request = {"operations": prepared(world, space)}
        doom.arm(last)
        answers: list[tuple[int, Any]] = []
        asking = threading.Thread(target=ask, args=(world, request, answers))
        asking.start()
        assert doom.struck.wait(120), f"effect {last} of {effects} never came"
        world.stop_leader()
        doom.arm(None)
        world.start_leader()
        asking.join(60)
        done = landed(world, space)
        assert all(done) or not any(done), (last, done)
        assert answers[0][0] in (200, 500), "never a definite failure of what may stand"
        assert all(done) or answers[0][0] != 200
        again = world.post(BATCH, request)
        assert again[0] == 200, (last, again)
        assert all(landed(world, space)), "asked again, it is there, and once"
