"""The cases of the multi-table commit over a catalogue in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.iceberg_cases import DATA, World, in_memory, run_case


@pytest.fixture
def world() -> Iterator[World]:
    with in_memory() as made:
        yield made


@pytest.mark.parametrize("case", DATA["cases"], ids=lambda case: case["id"])
def test_case(case: dict[str, Any], world: World) -> None:
    run_case(case, world)


def test_the_cases_are_all_there() -> None:
    assert len(DATA["cases"]) == DATA["meta"]["count"] == 63
