"""Removes what nobody needs, and kills itself at one step: `removal_child KAFKA LOG STEP`.

A step is a call that changes something: a record, a file that moves or goes, a folder that goes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from commitlog import CommitLog
from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.storage import LocalStore
from consumers.tools.maintenance.cleaning import clean

servers, log_name, step = sys.argv[1:]
left = int(step)


def counted(owner: type, name: str) -> None:
    """Kill this process instead of the call that is its step."""
    inner: Callable[..., Any] = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(*arguments, **options)

    setattr(owner, name, call)


def main() -> None:
    """Remove, or die."""
    for owner, name in (
        (CommitLog, "submit"), (LocalStore, "delete"), (LocalStore, "move"), (LocalStore, "prune"),
    ):  # fmt: skip
        counted(owner, name)
    log = KafkaLog.connect(servers, log_name, {}, 120)
    client = CommitLog.connect(servers, log_name)
    clean(log, None, 0, client)
    log.close()
    client.close()


if __name__ == "__main__":
    main()
