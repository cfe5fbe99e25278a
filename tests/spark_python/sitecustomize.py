"""A Python whose path has this folder imports this first; one that Spark starts ends here.

`tests/spark_workers.py` forks the daemon that it was to be. All that is needed here comes with
Python. Where no server answers, and in any other program, Python goes on as it would have, after
what a test has it import.
"""

import os
import struct
import sys

DAEMON = ["-m", "pyspark.daemon"]
SERVER = "COMMITLOG_TEST_SPARK_WORKERS"
"""The environment variable that names the server's socket."""
FIRST = "COMMITLOG_TEST_FIRST"
"""The environment variable that names a module to import before a program's own."""
STREAMS = (0, 1, 2)
LENGTH = struct.Struct("!I")
CODE = struct.Struct("!B")


def _ask() -> None:
    import json
    import socket

    asked = [sys.argv, [os.getcwd(), *sys.path], dict(os.environ), os.getcwd()]
    said = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(os.environ[SERVER])
        except (KeyError, OSError):
            return
        socket.send_fds(server, [LENGTH.pack(len(said))], STREAMS)
        server.sendall(said)
        code = server.recv(CODE.size)  # nothing comes if the daemon was killed
    os._exit(CODE.unpack(code)[0] if code else 1)


if sys.orig_argv[1:3] == DAEMON:
    _ask()
if os.environ.get(FIRST):
    __import__(os.environ[FIRST])
