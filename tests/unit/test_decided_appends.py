"""Are runs of appends that machine code decides again what the machine makes of them one by one?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from commitlog.adapters.memory import MemoryLog
from consumers.tools.verify import VerifyOptions, verify
from tests.lanes import search_logs, verified_alike
from tests.made_appends import odd_appends

if TYPE_CHECKING:
    from commitlog.codecs._native import Chain

SECONDS, SEED, STEPS = 4.0, 1, 400


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED, SEED + 6))
def test_odd_appends_are_decided_alike(native_chain: type[Chain], seed: int) -> None:
    made = odd_appends(seed, STEPS)
    assert verify(made.log, 0, VerifyOptions(log_only=True)).is_whole, seed
    followed, digest = verified_alike(made.log, native_chain, again=True)
    assert followed > STEPS // 8, seed
    assert digest == made.machine.digest(), seed


@pytest.mark.slow
def test_golden_logs_are_decided_alike(
    native_chain: type[Chain], released_logs: dict[str, MemoryLog]
) -> None:
    for log in released_logs.values():
        verified_alike(log, native_chain, again=True)


@pytest.mark.slow
def test_logs_that_were_tampered_with_are_decided_alike(native_chain: type[Chain]) -> None:
    logs = [odd_appends(seed, 60).log for seed in range(SEED, SEED + 3)]
    tried, followed = search_logs(logs, native_chain, SECONDS, SEED, again=True)
    assert tried > 10
    assert followed > tried
