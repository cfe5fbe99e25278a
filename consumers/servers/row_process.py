"""A child of `row_processes`: makes its handler, then answers one piece of work after the other.

It ends when its parent does, since the connection ends with that.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pickle
import resource
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

from commitlog.errors import CommitLogError

# What a server and its processes say to each other: objects, one frame each. A frame is a pickled
# object and, beside it, the one `pickle.PickleBuffer` in it: rows go as they are, and the receiver
# gets them where they arrived.
_SIZES = struct.Struct("!QQ")
HEAD_BYTES = _SIZES.size


def packed(value: Any) -> list[Any]:
    """Return the pieces of a frame, in order."""
    buffers: list[pickle.PickleBuffer] = []
    said = pickle.dumps(value, 5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    if len(raw) > 1:
        raise ValueError(f"{type(value).__name__} has {len(raw)} buffers; a frame takes one")
    return [_SIZES.pack(len(said), sum(map(len, raw))) + said, *raw]


def frame_bytes(head: Any) -> int:
    """Return how long a frame is whose first `HEAD_BYTES` are these."""
    said, beside = _SIZES.unpack_from(head)
    return HEAD_BYTES + int(said) + int(beside)


def unpacked(frame: memoryview) -> Any:
    """Return the object of a frame; its buffer stays where it is in the frame."""
    said, _ = _SIZES.unpack_from(frame)
    end = HEAD_BYTES + said
    return pickle.loads(frame[HEAD_BYTES:end], buffers=[frame[end:]])


def send(to: socket.socket, value: Any) -> None:
    """Send an object; OSError."""
    for piece in packed(value):
        to.sendall(piece)


def receive(source: socket.socket) -> Any:
    """Receive an object; EOFError where the other end is closed, OSError."""
    frame = bytearray(_more(source, 65536))
    while len(frame) < HEAD_BYTES:
        frame += _more(source, HEAD_BYTES - len(frame))
    known, total = len(frame), frame_bytes(frame)
    frame += bytes(total - known)
    rest = memoryview(frame)[known:]
    while rest:
        count = source.recv_into(rest)
        if not count:
            raise EOFError
        rest = rest[count:]
    return unpacked(memoryview(frame))


def _more(source: socket.socket, bytes_max: int) -> bytes:
    found = source.recv(bytes_max)
    if not found:
        raise EOFError
    return found


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
