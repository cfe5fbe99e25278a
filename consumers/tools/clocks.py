"""Is this machine's clock right? By it, files are old enough to be removed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from commitlog import CommitLog

CLOCK_SECONDS_MAX = 60.0


def leader_ahead(status: Mapping[str, Any], now_ms: int) -> float | None:
    """Return by how many seconds a leader's clock is ahead; None if it is too old to say its time.

    Its `status` was asked for at `now_ms`.
    """
    said = status.get("clock_ms")
    return None if said is None else (int(said) - now_ms) / 1000


def clock_difference(log: CommitLog) -> str:
    """Say by how much this machine's clock differs from a leader's; empty: by nothing that matters.

    Raises Unavailable if a leader doesn't answer.
    """
    runtime = log.runtime()
    for partition in range(runtime.partitions):
        status: Any = runtime.request(partition, "status")
        ahead = leader_ahead(status, time.time_ns() // 1_000_000)
        if ahead is not None and abs(ahead) > CLOCK_SECONDS_MAX:
            side = "behind" if ahead > 0 else "ahead of"
            return (
                f"this machine's clock is {abs(ahead):,.0f} s {side} that of the leader"
                f" (partition {partition}); set the clocks of both machines by NTP"
            )
    return ""
