"""Ending with the process that started us, even if it was killed with -9."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from consumers.runtime.forking import die_with_parent

POLL_SECONDS = 0.5


def end_with_parent() -> None:
    """Be terminated when the parent is gone: by the kernel on Linux, else by looking."""
    expected = os.getppid()
    if sys.platform == "linux":
        die_with_parent(signal.SIGTERM)
        if os.getppid() != expected:
            os.kill(os.getpid(), signal.SIGTERM)
        return
    threading.Thread(target=_watch, args=(expected,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the command in the arguments, which then ends with this process's parent."""
    if sys.platform == "linux":
        end_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
