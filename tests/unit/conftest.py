"""A log in memory with a small leader, for tests of clients; a module may define its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.adapters.memory import MemoryLog
from tests.fakes.leader import FakeLeader, memory_log


@pytest.fixture
def log(tmp_path: Path) -> MemoryLog:
    return memory_log(tmp_path / "tables")


@pytest.fixture
def leader(log: MemoryLog) -> Iterator[FakeLeader]:
    leader = FakeLeader(log)
    yield leader
    leader.close()
