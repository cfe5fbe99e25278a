"""Leads a log until it kills itself: `BOOTSTRAP LOG ROOT HOW`, where HOW names the moment.

Only a commit whose metadata holds the property `crash` with this value is deadly.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.kafka_writers import KafkaOutcomesWriter
from consumers.partition.observer import StoreObserver
from consumers.partition.session import Session
from consumers.servers.committer import Committer, CommitterOptions

_FLUSH_SECONDS = 180

BEFORE_FILE, AFTER_FILE = "before the file", "after the file"
AFTER_OUTCOME, BEFORE_ANSWER = "after the outcome", "before the answer"
HOW = (BEFORE_FILE, AFTER_FILE, AFTER_OUTCOME, BEFORE_ANSWER)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(how: str) -> None:
    """Let this process die at the moment named."""
    armed = threading.Event()
    write: Callable[..., Any] = StoreObserver.write
    append: Callable[..., None] = KafkaOutcomesWriter.append
    publish: Callable[..., None] = Session.publish

    def deadly_write(self: Any, files: Any, *more: Any) -> Any:
        if any(f'"crash":"{how}"'.encode() in file.data for file in files):
            armed.set()
        if armed.is_set() and how == BEFORE_FILE:
            die()
        in_the_way = write(self, files, *more)
        if armed.is_set() and how == AFTER_FILE:
            die()
        return in_the_way

    def deadly_append(self: Any, *arguments: Any) -> None:
        append(self, *arguments)
        if armed.is_set() and how == AFTER_OUTCOME:
            # Not by `poll`: nothing hears of the acknowledgement.
            self.flush(_FLUSH_SECONDS)
            die()

    def deadly_publish(self: Any, events: Any) -> None:
        if armed.is_set() and events and how == BEFORE_ANSWER:
            die()
        publish(self, events)

    StoreObserver.write = deadly_write  # type: ignore[assignment, method-assign]
    KafkaOutcomesWriter.append = deadly_append  # type: ignore[assignment, method-assign]
    Session.publish = deadly_publish  # type: ignore[method-assign]


def main() -> None:
    """Lead until killed."""
    servers, name, root, how = sys.argv[1:]
    arm(how)
    log = KafkaLog.connect(servers, log=name, settings={}, timeout_seconds=30)
    options = CommitterOptions(Path(root))
    committer = Committer(log, options, on_ready=lambda node: print("leads", flush=True))
    committer.run(threading.Event())


if __name__ == "__main__":
    main()
