"""A socket's time limits, kept by the system: Python asks it before each call if it may go on."""

from __future__ import annotations

import select
import socket
import struct


def have_system_wait(opened: socket.socket, *, receive_seconds: float, send_seconds: float) -> None:
    """Have `recv` and `send` wait for so long at most, and then raise BlockingIOError."""
    opened.settimeout(None)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _duration(receive_seconds))
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _duration(send_seconds))


def is_readable(opened: socket.socket, timeout_seconds: float) -> bool:
    """Wait for something to receive; return False if nothing came in time."""
    poller = select.poll()
    poller.register(opened, select.POLLIN)
    return bool(poller.poll(timeout_seconds * 1000))


def _duration(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
