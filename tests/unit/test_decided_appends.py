"""Are runs of appends that machine code decides again what the machine makes of them one by one?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.core.partition import decided_appends
from commitlog.core.partition.machine import Machine
from consumers.tools.verify import VerifyOptions, verify
from tests.core_world import GENESIS
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


@pytest.mark.parametrize("field", ["clock_ms", "appended_ms", "forgotten_ms", "oldest_ms"])
@pytest.mark.parametrize("time_ms", [-(2**63), 2**63 - 1])
def test_times_whose_sums_have_more_than_64_bits_are_left_to_python(
    monkeypatch: pytest.MonkeyPatch, field: str, time_ms: int
) -> None:
    machine = Machine(GENESIS)
    monkeypatch.setattr(decided_appends, "APPENDS", dict)
    assert decided_appends.appends_on(machine) is not None
    setattr(machine.deduplication, field, time_ms)
    assert decided_appends.appends_on(machine) is None


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
