"""The broker that integration tests share.

One for a run, whose workers it serves all; COMMITLOG_TEST_BOOTSTRAP names a cluster to use instead.
The cleaner is set to work within a second, so that a test sees what compaction removes.
"""

import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from consumers.broker.embedded import EmbeddedBroker
from tests.waiting import wait_until

# How often the cleaner looks; what it cleans, and when, is for each topic to say.
QUICK_CLEANER = {
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "100",
    "log.initial.task.delay.ms": "100",
}
START_SECONDS = 600.0
"""Only a first start takes long: it fetches Kafka."""
_INPUT = "commitlog_broker"


class NamedCluster:
    """A cluster that somebody else runs."""

    def __init__(self, bootstrap_servers: str) -> None:
        """Remember where it is."""
        self.bootstrap_servers = bootstrap_servers


@dataclass(frozen=True)
class SharedBroker:
    """A broker that runs beside the workers."""

    bootstrap_servers: str
    log_path: Path


class _Shared:
    """Runs a broker for all workers; it starts while they collect their tests."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="commitlog-broker-"))
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with EmbeddedBroker.start(self.folder / "root", settings=QUICK_CLEANER) as broker:
                self._say(servers=broker.bootstrap_servers, log_path=str(broker.log_path))
                self._is_over.wait()
        except Exception as error:
            self._say(error=str(error))
            raise

    def _say(self, **said: str) -> None:
        written = self.folder / "written"
        written.write_text(json.dumps(said))
        written.rename(self.folder / "said")

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        shutil.rmtree(self.folder)


_SHARED = pytest.StashKey[_Shared]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where the broker is."""
    if "COMMITLOG_TEST_BOOTSTRAP" not in os.environ:
        if _SHARED not in node.config.stash:
            node.config.stash[_SHARED] = _Shared()
        node.workerinput[_INPUT] = str(node.config.stash[_SHARED].folder / "said")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the broker of the workers."""
    if _SHARED in config.stash:
        config.stash[_SHARED].close()


@pytest.fixture(scope="session")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedBroker | NamedCluster | SharedBroker]:
    """A broker for the whole run; tests make topics of their own on it."""
    if named := os.environ.get("COMMITLOG_TEST_BOOTSTRAP"):
        yield NamedCluster(named)
    elif shared := getattr(request.config, "workerinput", {}).get(_INPUT):
        what = "the broker that workers share"
        wait_until(Path(shared).exists, what, seconds=START_SECONDS)
        said = json.loads(Path(shared).read_text())
        assert "error" not in said, said["error"]
        yield SharedBroker(said["servers"], Path(said["log_path"]))
    else:
        root = tmp_path_factory.mktemp("broker")
        with EmbeddedBroker.start(root, settings=QUICK_CLEANER) as embedded:
            yield embedded
