"""The broker that integration tests share.

One for the session, started at its first use; COMMITLOG_TEST_BOOTSTRAP names a cluster to use
instead. The cleaner is set to work within a second, so that a test sees what compaction removes.
"""

import os
from collections.abc import Iterator

import pytest

from consumers.broker import EmbeddedBroker

# How often the cleaner looks; what it cleans, and when, is for each topic to say.
QUICK_CLEANER = {
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "100",
    "log.initial.task.delay.ms": "100",
}


class NamedCluster:
    """A cluster that somebody else runs."""

    def __init__(self, bootstrap_servers: str) -> None:
        """Remember where it is."""
        self.bootstrap_servers = bootstrap_servers


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker | NamedCluster]:
    """A broker for the whole session; tests make topics of their own on it."""
    named = os.environ.get("COMMITLOG_TEST_BOOTSTRAP")
    if named:
        yield NamedCluster(named)
        return
    root = tmp_path_factory.mktemp("broker")
    with EmbeddedBroker.start(root, settings=QUICK_CLEANER) as embedded:
        yield embedded
