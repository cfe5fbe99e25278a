"""A part that is to be nice leaves the processor to the others, however Linux groups processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.child import ended

PROGRAM = """
import os
from consumers.runtime.process import be_nice
from tests.unit.test_niceness import niceness_of_group
before = niceness_of_group()
be_nice(7)
print(os.nice(0), before, niceness_of_group())
"""
BEGAN = os.getpriority(os.PRIO_PROCESS, 0)


def niceness_of_group() -> int | None:
    """Return what this process's group has; outside of any session, Linux groups none."""
    group = Path("/proc/self/autogroup")
    told = group.read_text().split() if group.exists() else []
    return int(told[-1]) if told else None


def niceness(*, own_session: bool) -> tuple[str, str, str]:
    """Return a nice part's own niceness, and its group's before and after.

    A session may have a group though its parent has none, so the part itself looks before.
    """
    done = ended(
        [sys.executable, "-c", PROGRAM], check=True, start_new_session=own_session, timeout=60
    )
    own, before, after = done.stdout.split()
    return own, before, after


@pytest.mark.slow
def test_a_part_in_a_session_of_its_own_makes_its_group_nice() -> None:
    own, before, after = niceness(own_session=True)
    assert (int(own), after) == (BEGAN + 7, "None" if before == "None" else "7")


@pytest.mark.slow
def test_a_part_that_was_started_from_a_shell_leaves_the_shells_group_alone() -> None:
    own, before, after = niceness(own_session=False)
    assert (int(own), after) == (BEGAN + 7, before)


@pytest.mark.slow
@pytest.mark.parametrize("began", [0, 4])
def test_who_is_far_behind_yields_to_nobody(began: int) -> None:
    """Nor has it more of a processor afterwards than whoever started it by `nice` gave it."""
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
    command = ["nice", "-n", str(began), sys.executable, "-c", program]
    found = [int(one) for one in ended(command, check=True, timeout=60).stdout.split()]
    added = [0, 10, 10, 0, 0] if os.geteuid() == 0 else [3] * 5
    assert found == [BEGAN + began + one for one in added]
