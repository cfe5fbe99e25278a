"""One connection to the log per worker process.

Spark makes a new writer for every micro-batch and again for its commit, but keeps the worker
process for a while: a connection that stays in the module saves the second and later ones. It is
a cache only. Nothing depends on it being there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from commitlog.adapters.kafka_file import read_kafka_file
from commitlog.adapters.places import use_places
from commitlog.errors import InvalidSettings, Unavailable

if TYPE_CHECKING:
    from commitlog.spark.options import Connection

RETRY_SECONDS = 0.5
Answer = TypeVar("Answer")

_logs: dict[Connection, tuple[dict[str, str], Any]] = {}
"""Each log with the settings of the `kafkaFile` with which it was reached."""
_locks: dict[Connection, threading.Lock] = {}
"""One for each log: who waits for a log that is away holds up nobody who uses another."""
_lock = threading.Lock()


def connect(connection: Connection) -> Any:
    """Return this process's connection to a log, made on first use.

    If the `kafkaFile` has other settings by now, such as a new password, another one is made: a
    driver runs for longer than its passwords are valid.

    The type is `commitlog.CommitLog`; it isn't named so that executors, which only write files,
    never load a Kafka client.
    """
    with _lock:
        own = _locks.setdefault(connection, threading.Lock())
    with own:
        known, log = _logs.get(connection, (None, None))
        try:
            # The file is read here, in each process, so that no secret travels with a plan.
            filed = read_kafka_file(connection.kafka_file) if connection.kafka_file else {}
        except InvalidSettings:
            if log is None:
                raise
            return log  # the file is being replaced, perhaps
        if filed != known:
            from commitlog import CommitLog

            if connection.places:
                use_places(connection.places)
            settings: dict[str, Any] = {**filed, **dict(connection.settings)}
            # The former one is left to those who still wait for its answers.
            log = CommitLog.connect(
                connection.bootstrap_servers,
                log=connection.log,
                principal=connection.principal,
                timeout=connection.connect_seconds,
                **settings,
            )
            _logs[connection] = filed, log
        return log


def while_away(ask: Callable[[], Answer], deadline: float) -> Answer:
    """Ask again while the log is away, until a deadline (monotonic clock); then raise Unavailable.

    A question takes as long as its client's own timeout, so the last one may end after that.
    """
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)
