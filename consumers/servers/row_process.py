"""A child of `row_processes`: makes its handler, then answers one piece of work after the other.

It ends when its parent does, since the connection ends with that.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any

from commitlog.errors import CommitLogError
from consumers.servers.row_frames import receive, send

OUT_OF_MEMORY_FIRST = "800"
"""How much rather than others the kernel ends this process when memory runs out: up to 1000."""

logger = logging.getLogger(__name__)


def answer_on(number: int) -> None:
    """Answer on a connection, known by its descriptor, until it ends."""
    with socket.socket(fileno=number) as connection:
        connection.set_inheritable(False)
        _answer(connection)


def _answer(connection: socket.socket) -> None:
    factory, argument, memory_bytes = receive(connection)
    _limit(memory_bytes)
    try:
        handler = _handler(factory)(argument)
    except Exception as error:  # reported to the parent, and by exit
        if not isinstance(error, CommitLogError | OSError):
            logger.exception("the handler of a process for work on rows can't be made")
        send(connection, f"{type(error).__name__}: {error}")
        return
    send(connection, "")
    with contextlib.suppress(EOFError, OSError):
        while True:
            send(connection, handler(receive(connection)))


def _handler(factory: str) -> Callable[[Any], Callable[[Any], Any]]:
    module, _, name = factory.partition(":")
    found: Callable[[Any], Callable[[Any], Any]] = getattr(importlib.import_module(module), name)
    return found


def _limit(memory_bytes: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(OUT_OF_MEMORY_FIRST)


if __name__ == "__main__":
    answer_on(int(sys.argv[1]))
    # Threads of native code would keep it.
    os._exit(0)
