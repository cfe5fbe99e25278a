"""Keeps an index until it is killed: `ROOT LOG HOW COUNT`; HOW names where it kills itself.

LOG is a file with a log, pickled; its next COUNT records are shown little by little, from the
index's position on. When that brings it nowhere near the place, it says so and dies all the same.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from commitlog.ports import Log
from consumers.views.version_index import VersionIndex
from consumers.views.version_index import publish as publish_module
from consumers.views.version_index import segments as segments_module
from consumers.views.version_index.live import Live
from consumers.views.version_index.process import follow
from tests.fakes.log_stream import PartitionLog, ReadOnlyLog

HOT_TRANSACTIONS_MAX = 150
GRACE_SECONDS = 3.0
SEGMENTS_PER_MERGE = 2
RECORDS_PER_STEP = 2
STEP_SECONDS = 0.004
IDLE_SECONDS_MAX = 60.0


def die_at_call(owner: Any, name: str, number: int, *, after: bool) -> None:
    """Kill this process at the nth call of a function: before or after its body."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if calls >= number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, wrapped)


HOW: dict[str, Callable[[], None]] = {
    "outside": lambda: None,
    "in a transaction": lambda: die_at_call(Live, "insert", 40, after=True),
    "before the rename": lambda: die_at_call(publish_module, "_copy", 3, after=True),
    "segment written": lambda: die_at_call(segments_module, "_write", 8, after=True),
    "in a swap": lambda: die_at_call(Live, "show_events", 8, after=True),
    "in a merge's swap": lambda: die_at_call(segments_module, "_merge", 2, after=True),
    "while removing": lambda: die_at_call(Path, "unlink", 2, after=True),
    "to the end": lambda: None,
}


def main() -> None:
    """Run until killed, or to the end of the log."""
    root, log_file, how, count = sys.argv[1:]
    whole: PartitionLog = pickle.loads(Path(log_file).read_bytes())
    answered = whole.answered
    # So that a short round merges, too.
    segments_module.FANOUT = SEGMENTS_PER_MERGE
    HOW[how]()
    stop = threading.Event()
    with VersionIndex.open(
        root, hot_transactions_max=HOT_TRANSACTIONS_MAX, grace_seconds=GRACE_SECONDS
    ) as index:
        start = index.position(0).outcomes_offset
        whole.answered = answered[: max(start, 1)]

        told = False

        def tell_if_moving() -> None:
            nonlocal told
            position = index.position(0).outcomes_offset
            if not told and (position > start or position >= len(answered)):
                told = True
                print("moving", flush=True)

        def reveal() -> None:
            to_the_end = how == "to the end"
            end = len(answered) if to_the_end else min(len(answered), start + int(count))
            step = end if to_the_end else RECORDS_PER_STEP
            while (shown := len(whole.answered)) < end:
                whole.answered.extend(answered[shown : min(shown + step, end)])
                tell_if_moving()
                time.sleep(STEP_SECONDS)
            while index.position(0).outcomes_offset < end:
                tell_if_moving()
                time.sleep(STEP_SECONDS)
            tell_if_moving()
            if to_the_end:
                stop.set()
            elif how != "outside":
                time.sleep(IDLE_SECONDS_MAX)
                print("it came nowhere near the place", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=reveal, daemon=True).start()
        log = cast(Log, ReadOnlyLog([whole]))
        follow(log, index, stop=stop, publish_interval_seconds=0.02)


if __name__ == "__main__":
    main()
