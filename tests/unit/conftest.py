"""A log in memory with a leader, for tests of clients; a module may define its own."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.codecs import lanes
from consumers.broker.jars import locked
from infra import native
from infra.native import MODULE, SECONDS_MAX, SOURCE, NoCompiler, build, compiler
from tests.lanes import golden_logs
from tests.steered_leader import SteeredLeader, memory_log

if TYPE_CHECKING:
    from commitlog import CommitLog
    from commitlog.codecs._native import Chain
    from tests.iceberg_files_world import FilesWorld

STRICT = ("-Wall", "-Wextra", "-Werror", "-Wno-cast-function-type")


@pytest.fixture
def log(tmp_path: Path) -> MemoryLog:
    return memory_log(tmp_path / "tables")


@pytest.fixture
def leader(log: MemoryLog) -> Iterator[SteeredLeader]:
    leader = SteeredLeader(log)
    yield leader
    leader.close()


@pytest.fixture
def client(log: MemoryLog, leader: SteeredLeader) -> "Iterator[CommitLog]":
    """A client of that log."""
    from commitlog import CommitLog

    with CommitLog(lambda: log) as client:
        yield client


@pytest.fixture
def alone(tmp_path: Path) -> "Iterator[tuple[Any, FilesWorld]]":
    """An Iceberg catalogue of its own: files there may be aged, removed or broken."""
    from tests.iceberg_files_world import catalogue

    with catalogue(tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def native_module() -> Path:
    """The machine code, built once of its source, for all workers, and without a warning."""
    try:
        command = compiler()
        if os.environ.get("COMMITLOG_LANE") == "python":
            raise NoCompiler("COMMITLOG_LANE is python")
        version = subprocess.run(
            [*command, "--version"], capture_output=True, check=False, timeout=60
        ).stdout
        sources = sorted(SOURCE.parent.glob("_native*.[ch]")) + [Path(native.__file__)]
        parts = [repr((command, STRICT, sys.version)).encode(), version]
        key = hashlib.sha256(b"\0".join([*parts, *(one.read_bytes() for one in sources)]))
        folder = Path(sys.prefix) / f"tests-native-{key.hexdigest()[:12]}"
        folder.mkdir(exist_ok=True)
        with locked(folder / "lock", time.monotonic() + SECONDS_MAX, None):
            built = folder / MODULE
            return built if built.exists() else build(folder, *STRICT)
    except NoCompiler as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def native_chain() -> "type[Chain]":
    if lanes.CHAIN is None:
        pytest.skip("there is no machine code here")
    return lanes.CHAIN


@pytest.fixture(scope="module")
def released_logs() -> Iterator[dict[str, MemoryLog]]:
    """The logs that former programs wrote, by their names."""
    with ExitStack() as stack:
        yield golden_logs(stack)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Have commands write to one of 100 columns, from an empty folder."""
    from rich.console import Console

    from consumers.commands.app import app

    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.chdir(tmp_path)
    app.console = Console()  # each command keeps its own, as wide as when another test made it
    yield
    app.console = None


@pytest.fixture(scope="session", autouse=True)
def _empty_index(empty_index: None) -> None:
    """Begin version indices with copies."""
