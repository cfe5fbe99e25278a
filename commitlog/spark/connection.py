"""One connection to the log per worker process.

Spark makes a new writer for every micro-batch and again for its commit, but keeps the worker
process for a while: a connection that stays in the module saves the second and later ones. It is
a cache only. Nothing depends on it being there.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from commitlog.adapters.kafka_file import read_kafka_file
from commitlog.adapters.places import use_places

if TYPE_CHECKING:
    from commitlog.spark.options import Connection

_logs: dict[Connection, Any] = {}
_lock = threading.Lock()


def connect(connection: Connection) -> Any:
    """Return this process's connection to a log, made on first use.

    The type is `commitlog.CommitLog`; it isn't named so that executors, which only write files,
    never load a Kafka client.
    """
    with _lock:
        log = _logs.get(connection)
        if log is None:
            from commitlog import CommitLog

            # The file is read here, in each process, so that no secret travels with a plan.
            settings: dict[str, Any] = {
                **(read_kafka_file(connection.kafka_file) if connection.kafka_file else {}),
                **dict(connection.settings),
            }
            if connection.places:
                use_places(connection.places)
            log = CommitLog.connect(
                connection.bootstrap_servers,
                log=connection.log,
                principal=connection.principal,
                timeout=connection.connect_seconds,
                **settings,
            )
            _logs[connection] = log
        return log
