"""Keeps an index until it is killed: `ROOT LOG HOW COUNT`; HOW names where it kills itself.

LOG is a file with a log, pickled. Its next COUNT records are shown from the index's position on, a
few at a time: the next ones once the index has those. Then they come one by one until it dies, and
at the end of the log it says that this brought it nowhere near the place, and dies all the same.
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
RECORDS_PER_STEP = 10
PAUSE_SECONDS = 0.004
LATER_SECONDS = 0.1
"""Between the records that come one by one: what waits for the grace to pass needs few of them."""


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
    with VersionIndex(
        root, hot_transactions_max=HOT_TRANSACTIONS_MAX, grace_seconds=GRACE_SECONDS
    ) as index:
        start = index.position(0).outcomes_offset
        whole.answered = answered[: max(start, 1)]

        def show(records: int) -> None:
            """Show so many more, and wait until the index has them."""
            shown = len(whole.answered)
            whole.answered.extend(answered[shown : shown + records])
            while index.position(0).outcomes_offset < len(whole.answered):
                time.sleep(PAUSE_SECONDS)

        def reveal() -> None:
            if how == "to the end":
                show(len(answered))
                stop.set()
                return
            show(RECORDS_PER_STEP)
            print("moving", flush=True)
            while len(whole.answered) < min(len(answered), start + int(count)):
                show(RECORDS_PER_STEP)
            while how != "outside" and len(whole.answered) < len(answered):
                show(1)
                time.sleep(LATER_SECONDS)
            if how != "outside":
                print("it came nowhere near the place", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=reveal, daemon=True).start()
        log = cast(Log, ReadOnlyLog([whole]))
        follow(log, index, stop=stop, publish_interval_seconds=0.02)


if __name__ == "__main__":
    main()
