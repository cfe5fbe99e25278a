"""A few random histories; `python -m tests.histories --seconds 1800` lives through many more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.adapters.lance_builder import OVERLAYS_ENABLED_BY
from tests.histories.world import Step, Tally, histories, run
from tests.service import Service, service


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Run one service for all histories, each of which has a table of its own."""
    with (
        pytest.MonkeyPatch.context() as patch,
        service(tmp_path_factory.mktemp("histories")) as made,
    ):
        # Lance opens what has overlays only then.
        patch.setenv(OVERLAYS_ENABLED_BY, "1")
        yield made


@settings(max_examples=6, deadline=None)
@given(steps=histories(1), stable_row_ids=st.booleans())
def test_random_histories_agree_with_the_model(
    shared: Service, steps: list[Step], stable_row_ids: bool
) -> None:
    run(shared, steps, stable_row_ids=stable_row_ids, tally=Tally())


@pytest.mark.parametrize("stable_row_ids", [False, True], ids=["addresses", "stable_row_ids"])
def test_a_history_of_all_kinds_agrees_with_the_model(
    shared: Service, stable_row_ids: bool
) -> None:
    tally = Tally()
    kinds = ["update", "append", "delete", "index", "patch", "upsert", "rewrite", "delete"]
    kinds += ["overlay", "replace", "delete", "overlay", "update", "compact", "index", "upsert"]
    kinds += ["upsert", "config", "update", "restore", "patch", "overwrite", "upsert", "append"]
    steps = [
        Step(kind, lag, pick, 1 + pick % 4, bare=pick % 5 == 0, asks_pylance=True)
        for pick, kind in enumerate(kinds)
        for lag in (0, 2)
    ]
    run(shared, steps, stable_row_ids=stable_row_ids, tally=tally)
    assert set(tally.ended) >= {"committed", "retryable"}
    assert tally.with_pylance["both committed, rows equal"] > 5
