"""Spark's Python workers, forked from a process that has imported what they import.

Spark starts a daemon for each kind of worker: one for tasks, and one for each kind of question
about a data source. A daemon and each of its workers import PySpark, Arrow, Lance and this package
anew, a second of CPU in all. Here what Spark starts (`tests/spark_python`) imports nearly nothing,
and asks this server to fork the daemon. All else is Spark's own.

    python -m tests.spark_workers SOCKET
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
import warnings
from contextlib import suppress

from tests.spark_python.sitecustomize import CODE, LENGTH, STREAMS

IMPORTS = (
    *("pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.lookup_data_sources"),
    *("pyspark.sql.worker.create_data_source", "pyspark.sql.worker.plan_data_source_read"),
    *("pyspark.sql.worker.write_into_data_source", "pyspark.sql.worker.commit_data_source_write"),
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "commitlog.spark",
)


def main(path: str) -> None:
    """Fork daemons until standard input ends."""
    warnings.filterwarnings("ignore", "lance is not fork-safe")
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as events:
        listening.bind(path)
        listening.listen()
        for name in IMPORTS:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # a collection would write to pages that all children share
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a daemon
        for awaited in (listening, sys.stdin):
            events.register(awaited, selectors.EVENT_READ)
        while all(key.fileobj is listening for key, _ in events.select()):
            asking, _ = listening.accept()
            if not os.fork():
                events.close()
                listening.close()
                _be_daemon(asking)
            asking.close()


def _be_daemon(asking: socket.socket) -> None:
    code = 1
    try:
        head, received, _, _ = socket.recv_fds(asking, LENGTH.size, len(STREAMS))
        with asking.makefile("rb") as said:
            asked = json.loads(said.read(*LENGTH.unpack(head)))
        sys.argv, sys.path[:], environment, folder = asked
        for number, standard in zip(received, STREAMS, strict=True):
            os.dup2(number, standard)
            os.close(number)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        from pyspark.daemon import manager

        manager()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # its standard error is Spark's
        traceback.print_exc()
    finally:
        with suppress(BrokenPipeError):  # whoever asked was ended
            asking.sendall(CODE.pack(code))
        os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
