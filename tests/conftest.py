"""What all tests share: seeds, Hypothesis's profiles, the order, the broker.

COMMITLOG_TEST_PROFILE chooses how much is tried: `dev` (quick, the default), `ci`, `nightly`.
Every run prints its seed; `--seed N` makes random choices the same again, Hypothesis's too.
`ci` always takes the same choices: a gate says the same thing twice about one commit, and what is
new is looked for by the other profiles.
"""

import gc
import importlib
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

# Before a test imports Lance's library of namespaces, which then costs a second less.
import commitlog.adapters.lean_import  # noqa: F401

if TYPE_CHECKING:
    from tests.iceberg_server import IcebergServer
    from tests.namespace_world import World
    from tests.service import Service

pytest_plugins = [
    "tests.broker_fixture",
    "tests.leaks",
    "tests.progress",
    "tests.second_tries",
    "tests.spark_start",
]

_SLOW_MACHINE = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile(
    "dev", max_examples=50, deadline=None, suppress_health_check=_SLOW_MACHINE
)
settings.register_profile(
    "ci",
    max_examples=100,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=_SLOW_MACHINE,
)
settings.register_profile(
    "nightly",
    max_examples=5_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW_MACHINE,
)

# Tests start many JVMs and keep none for long: with the quick compiler alone, a broker's start and
# a Spark query take about half the CPU, and without a collector's threads a sixth less again.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Some modules spent a seventh of their CPU on looking through a heap that only grows.
gc.set_threshold(20_000, 20, 20)

COSTS = {"slow": 1, "broker": 2, "spark": 3}
"""Tests with these marks run last, in this order: what can fail at once fails first. Workers beside
each other begin with what takes longest instead, so that none is left alone with it."""

ONE_SESSION = "one Spark session"
SHARED = dict.fromkeys(
    (
        "tests/integration/test_demo_stream.py",
        "tests/integration/test_spark_rows.py",
        "tests/integration/test_spark_service.py",
        "tests/integration/test_spark_sink.py",
        "tests/integration/test_spark_sql.py",
        "tests/integration/test_spark_streams.py",
        "tests/integration/test_spark_types.py",
    ),
    ONE_SESSION,
)
"""Modules that one worker runs, since each other worker would start the same once more."""

FIRST = (
    "tests/integration/test_demo_kills.py",
    ONE_SESSION,
    "tests/simulation/test_simulation.py",
    "tests/integration/test_places.py",
    "tests/integration/test_column_kills.py",
    "tests/integration/test_backup.py",
    "tests/integration/test_hostile_clients.py",
    "tests/integration/test_up.py",
    "tests/integration/test_move.py",
    "tests/faults/test_faults.py",
    "tests/integration/test_spark_drivers.py",
    "tests/integration/test_spark_cluster.py",
    "tests/integration/test_roles.py",
)
"""What takes longest, as `python -m tests.costs` tells: a minute and more on a busy machine."""

MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 12 << 30
"""Where so much of it is free, tests write into memory: on a disk their many small files take a
fifth more CPU and twice the time. Five workers' processes need up to 7.5 GB of it."""

TIMEOUTS = (300, 600, 600, 900)
"""After so many seconds a test of that cost counts as hanging: many times what it takes on a quiet
machine. A test that takes longer has a mark of its own."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="make all random choices as in an earlier run")
    parser.addoption("--rewrite", action="store_true", help="write the expected help texts anew")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    profile = os.environ.get("COMMITLOG_TEST_PROFILE", "dev")
    settings.load_profile(profile)
    seed = config.getoption("--seed")
    if seed is not None:
        settings.register_profile("seeded", settings.get_profile(profile), derandomize=False)
        settings.load_profile("seeded")
        config.option.hypothesis_seed = str(seed)
    elif profile == "ci":
        seed = 1
    elif _is_worker(config):
        seed = getattr(config, "workerinput")[_SEED_INPUT]  # noqa: B009
    config.stash[_SEED] = random.SystemRandom().randrange(2**32) if seed is None else seed
    # Workers get the controller's folder.
    if not (_is_worker(config) or config.option.basetemp or "TMPDIR" in os.environ):
        _write_into_memory()


def _write_into_memory() -> None:
    with suppress(OSError, StopIteration):  # not Linux
        lines = Path("/proc/meminfo").read_text().splitlines()
        kib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        if min(1024 * kib, shutil.disk_usage(MEMORY).free) >= MEMORY_BYTES_MIN:
            os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


_SEED = pytest.StashKey[int]()
_SEED_INPUT = "commitlog_seed"
_FOUND = "found"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker the seed of the run."""
    node.workerinput[_SEED_INPUT] = node.config.stash[_SEED]


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without looking for garbage: what is made now stays, and is never looked at later."""
    gc.disable()
    try:
        _compile_a_part(session)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _compile_a_part(session: pytest.Session) -> None:
    """Have each worker import a part of the modules first, so that it alone compiles them.

    In a fresh clone all would come to a module at the same time, and each would compile it.
    """
    if not _is_worker(session.config):
        return
    folders = [path for path in map(Path, session.config.args) if path.is_dir()]
    modules = sorted(path.resolve() for folder in folders for path in folder.rglob("test_*.py"))
    worker = getattr(session.config, "workerinput")  # noqa: B009
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for path in modules[len(modules) * number // count : len(modules) * (number + 1) // count]:
        name = ".".join(path.relative_to(session.config.rootpath).with_suffix("").parts)
        with suppress(Exception, pytest.skip.Exception):  # said when it is collected
            importlib.import_module(name)


def pytest_report_header(config: pytest.Config) -> str:
    profile = os.environ.get("COMMITLOG_TEST_PROFILE", "dev")
    return f"seed: {config.stash[_SEED]} (again: --seed), profile: {profile}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names = Counter(item.nodeid for item in items)
    if twice := [name for name, count in names.items() if count > 1]:
        raise pytest.UsageError(f"workers would run these once, being of one name: {twice}")
    costs = {item: _cost(item) for item in items}
    items.sort(key=costs.__getitem__, reverse=_is_worker(config))
    if _is_worker(config):
        items.sort(key=_turn)
    if config.getoption("timeout", None) is None:  # a search of hours gives its own
        for item in items:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUTS[costs[item][0]]))


def _unit(nodeid: str) -> str:
    """Return the name of what one worker runs as a whole: a module, or several that share."""
    path = nodeid.partition("::")[0]
    return SHARED.get(path, path)


def _turn(item: pytest.Item) -> int:
    unit = _unit(item.nodeid)
    return FIRST.index(unit) if unit in FIRST else len(FIRST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Give each worker one unit after the other, where it would get modules."""
    from xdist.scheduler import LoadFileScheduling

    if config.getoption("dist") != "loadfile":
        return None

    class ByUnit(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid)

    return ByUnit(config, log)


def _cost(item: pytest.Item) -> tuple[int, int]:
    cost = max((COSTS.get(mark.name, 0) for mark in item.iter_markers()), default=0)
    return cost, 0 if "test_house" in item.nodeid else 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what tests found out, whatever came of them."""
    from tests.leaks import write_noted  # a plugin: pytest has to be the first to import it

    write_noted(terminalreporter, _FOUND, "call", "what tests found out")


@pytest.fixture
def report_line(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Return a function whose text is printed at the end of the run."""
    return partial(record_property, _FOUND)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The run's seed."""
    return request.config.stash[_SEED]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a developer's own COMMITLOG_* settings out of the tests."""
    for name in list(os.environ):
        if name.startswith("COMMITLOG_") and not name.startswith(
            ("COMMITLOG_TEST_", "COMMITLOG_CACHE", "COMMITLOG_IVY", "COMMITLOG_JAVA")
        ):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _same_random(seed: int) -> None:
    random.seed(seed)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[World]":
    """A namespace server over a log in memory; a module or a folder may define another world."""
    from tests.namespace_world import World

    running = World(tmp_path_factory.mktemp("world"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def server(world: "World") -> "IcebergServer":
    """That world's Iceberg catalogue; a module may define another one."""
    return world.iceberg


@pytest.fixture
def no_places(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Bind no place, before a test and after it."""
    from commitlog.adapters import places

    monkeypatch.setenv(places.VARIABLE, "")
    monkeypatch.setattr(places, "_known", places._Known())
    yield
    places.use_places("")


@pytest.fixture(scope="session")
def empty_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let version indices begin with a copy of an empty file."""
    from tests.empty_index import copying

    with copying(tmp_path_factory.mktemp("index") / "empty"):
        yield


@pytest.fixture
def running(tmp_path: Path) -> "Iterator[Service]":
    """A log in memory with one leading committer and a client; a module may define its own."""
    from tests.service import service

    with service(tmp_path) as made:
        yield made
