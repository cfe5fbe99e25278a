"""The cases of the multi-table commit over a catalogue in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.iceberg_memory import MemoryIcebergService
from tests.iceberg_cases import DATA, World, run_case
from tests.iceberg_server import serving


@pytest.fixture
def world() -> Iterator[World]:
    service = MemoryIcebergService()
    with serving(service) as running:
        assert running.ask("POST", "/v1/namespaces", {"namespace": ["analytics"]}).status == 200

        def put(location: str, data: bytes) -> None:
            service.files.setdefault(location, data)

        yield World(running, put, service.read_file)


@pytest.mark.parametrize("case", DATA["cases"], ids=lambda case: case["id"])
def test_case(case: dict[str, Any], world: World) -> None:
    run_case(case, world)


def test_the_cases_are_all_there() -> None:
    assert len(DATA["cases"]) == DATA["meta"]["count"] == 63
