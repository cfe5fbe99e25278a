"""A part that is to be nice leaves the processor to the others, however Linux groups processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os
from pathlib import Path
from consumers.runtime.process import be_nice
be_nice(7)
group = Path("/proc/self/autogroup")
print(os.nice(0), group.read_text().split()[-1] if group.exists() else 7)
"""


def niceness(*, own_session: bool) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        check=True,
        text=True,
        start_new_session=own_session,
        timeout=60,
    )
    return [int(number) for number in done.stdout.split()]


def test_a_part_in_a_session_of_its_own_makes_its_group_nice() -> None:
    assert niceness(own_session=True) == [7, 7]


def test_a_part_that_was_started_from_a_shell_leaves_the_shells_group_alone() -> None:
    group = Path("/proc/self/autogroup")
    ours = int(group.read_text().split()[-1]) if group.exists() else 7
    assert niceness(own_session=False) == [7, ours]


def test_who_is_far_behind_yields_to_nobody() -> None:
    program = """
import os, threading
from consumers.runtime.process import yielding
waiting = threading.Event()
threading.Thread(target=waiting.wait, daemon=True).start()
yields = yielding()
found = [os.nice(0)]
for to_others in (True, False):
    yields(to_others)
    found += [os.getpriority(os.PRIO_PROCESS, int(tid)) for tid in os.listdir("/proc/self/task")]
print(*found)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=60
    )
    allowed = os.geteuid() == 0
    assert done.stdout.split() == (["0", "10", "10", "0", "0"] if allowed else ["3"] * 5)
