"""Are runs of appends that machine code decides again what the machine makes of them one by one?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.codecs import lanes
from consumers.tools.verify import VerifyOptions, verify
from tests.lanes import golden_logs, search_logs, verified_alike
from tests.made_appends import odd_appends

if TYPE_CHECKING:
    from commitlog.codecs._native import Chain

SECONDS, SEED, STEPS = 4.0, 1, 400


@pytest.fixture(scope="module")
def native() -> type[Chain]:
    if lanes.CHAIN is None:
        pytest.skip("there is no machine code here")
    return lanes.CHAIN


@pytest.fixture(scope="module")
def logs() -> Iterator[dict[str, MemoryLog]]:
    with ExitStack() as stack:
        yield golden_logs(stack)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED, SEED + 6))
def test_odd_appends_are_decided_alike(native: type[Chain], seed: int) -> None:
    made = odd_appends(seed, STEPS)
    assert verify(made.log, 0, VerifyOptions(log_only=True)).is_whole, seed
    followed, digest = verified_alike(made.log, native, again=True)
    assert followed > STEPS // 8, seed
    assert digest == made.machine.digest(), seed


def test_golden_logs_are_decided_alike(native: type[Chain], logs: dict[str, MemoryLog]) -> None:
    for log in logs.values():
        verified_alike(log, native, again=True)


@pytest.mark.slow
def test_logs_that_were_tampered_with_are_decided_alike(native: type[Chain]) -> None:
    logs = [odd_appends(seed, 60).log for seed in range(SEED, SEED + 3)]
    tried, followed = search_logs(logs, native, SECONDS, SEED, again=True)
    assert tried > 10
    assert followed > tried
