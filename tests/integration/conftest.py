"""What tests of whole processes share, a Spark session among it: a JVM takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from consumers.tools.verify import files
from tests.contract.worlds import KafkaWorld
from tests.service import Service, rows, service
from tests.spark_world import SparkWorld, spark_world


@pytest.fixture(scope="session")
def world(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkWorld]:
    """A Spark session over a log of its own; tests make tables of their own."""
    root = tmp_path_factory.mktemp("spark")
    with spark_world(root, broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def kafka(broker: Any) -> Iterator[KafkaWorld]:
    """A real broker."""
    with closing(KafkaWorld(broker.bootstrap_servers)) as made:
        yield made


@pytest.fixture
def nobody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a verification wait for no file: what isn't there won't come."""
    monkeypatch.setattr(files, "SETTLE_SECONDS", 0.0)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Service]:
    """A service with a table of three versions."""
    with service(tmp_path / "home") as running:
        running.client.create_table("shop$orders", rows().schema)
        running.client.append("shop$orders", rows(1, 2))
        running.client.append("shop$orders", rows(3))
        yield running
