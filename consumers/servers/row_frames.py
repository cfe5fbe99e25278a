"""What a server and its processes for work on rows say to each other: objects, one frame each.

A frame is a pickled object and, beside it, the one `pickle.PickleBuffer` in it: rows go as they
are, and the receiver gets them where they arrived.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

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
