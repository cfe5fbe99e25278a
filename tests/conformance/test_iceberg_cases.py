"""The cases of the multi-table commit over a log in memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.iceberg_cases import DATA, World, over_memory, run_case
from tests.namespace_world import World as NamespaceWorld


@pytest.fixture(scope="module")
def served(world: NamespaceWorld) -> World:
    return over_memory(world)


@pytest.mark.parametrize("case", DATA["cases"], ids=lambda case: case["id"])
def test_case(case: dict[str, Any], served: World) -> None:
    try:
        run_case(case, served)
    finally:
        served.forget_tables()


def test_the_cases_are_all_there() -> None:
    assert len(DATA["cases"]) == DATA["meta"]["count"] == 63
