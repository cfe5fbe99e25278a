"""Is this machine's clock right? By it, files are old enough to be removed."""

from __future__ import annotations

import time
from typing import Any

from commitlog import CommitLog

CLOCK_SECONDS_MAX = 60.0


def clock_difference(log: CommitLog) -> str:
    """Say by how much this machine's clock differs from a leader's; empty: by nothing that matters.

    Raises Unavailable if a leader doesn't answer.
    """
    runtime = log.runtime()
    for partition in range(runtime.partitions):
        status: Any = runtime.request(partition, "status")
        if "clock_ms" not in status:
            continue  # an older leader
        ahead = (time.time_ns() // 1_000_000 - int(status["clock_ms"])) / 1000
        if abs(ahead) > CLOCK_SECONDS_MAX:
            side = "ahead of" if ahead > 0 else "behind"
            return (
                f"this machine's clock is {abs(ahead):,.0f} s {side} that of the leader"
                f" (partition {partition}); set the clocks of both machines by NTP"
            )
    return ""
