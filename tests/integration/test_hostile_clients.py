"""Does the server outlive a crowd of hostile clients, in bounded memory and with others served?

How much longer the others wait is printed, and not held to a bound: the crowd and the server share
the machine's cores. `COMMITLOG_HOSTILE_SECONDS` makes it an hour.
"""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from consumers.tools.bench.environment import descendants
from tests.hostile import ANSWERS_MIN, Polite, crowd, forget_peak, resident_mib
from tests.integration.test_up import log_on, service

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SECONDS = float(os.environ.get("COMMITLOG_HOSTILE_SECONDS", "5"))
QUIET_SECONDS = 2.0
"""What it yields is printed and held to nothing."""
MEMORY_MIB_MAX = 1024


def is_server(pid: int) -> bool:
    """Return True for the process of the HTTP server."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"consumers.cli" in words and b"server" in words


def test_a_crowd_of_hostile_clients_takes_nothing_down(broker: Any, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with service(tmp_path / "root", *log_on(broker)) as running:
        polite = Polite("127.0.0.1", running.port)
        polite.make_table()
        polite.run(QUIET_SECONDS)
        quiet = polite.p99
        polite.seconds.clear()
        (pid,) = (one for one in descendants(running.process.pid) if is_server(one))
        forget_peak(pid)
        hostile = crowd(f"http://127.0.0.1:{running.port}", SECONDS, seed)
        polite.run(SECONDS, hostile)
        answers = json.loads(hostile.communicate(timeout=SECONDS + 300)[0])["answers"]
        peak = resident_mib(pid)
        print(
            f"p99 {quiet * 1000:.0f} ms alone, {polite.p99 * 1000:.0f} ms beside the crowd;"
            f" the server took {peak:.0f} MiB; {answers}"
        )
        assert sum(answers.values()) >= ANSWERS_MIN, "the crowd was at work"
        assert running.process.poll() is None
        assert running.get("/readyz")[0] == 200
        assert not polite.refused, "a polite client is served"
        assert polite.count() == polite.inserted
        assert peak < MEMORY_MIB_MAX
