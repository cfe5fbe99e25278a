"""How fast appends by several writers are, here and now: by the log, and by Lance alone.

They are two short rounds of `commitlog bench commit`, which measures longer, and more.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from commitlog.protocol import LOG_NAME_DEFAULT
from consumers.tools.bench.commit import run_ours
from consumers.tools.bench.measure import Round
from consumers.tools.bench.peers import PYLANCE, installed, run_peer

if TYPE_CHECKING:
    from commitlog import CommitLog

WRITERS = 8
SECONDS = 2.0


def measure(log: CommitLog, kafka: str, folder: Path) -> list[Round]:
    """Return a round of Lance alone and one through the log, run one after the other."""
    [pylance] = installed((PYLANCE,))
    alone = run_peer(pylance, str(folder / f"rates-{time.time_ns()}.lance"), WRITERS, SECONDS)
    ours = run_ours(log, (kafka, LOG_NAME_DEFAULT), "latest", WRITERS, SECONDS)
    return [replace(alone, system="Lance alone"), replace(ours, system="through the log")]
