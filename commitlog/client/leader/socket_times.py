"""A socket's time limits, kept by the system: Python asks it before each call if it may go on."""

from __future__ import annotations

import select
import socket
import struct
import threading


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


class Gate:
    """Opens once, for all who wait.

    Ctrl-C within `Event.wait` would leave the event's lock held, for which `set` then waits.
    """

    def __init__(self) -> None:
        self.is_open, self._shut = False, threading.Lock()
        self._shut.acquire()

    def open(self) -> None:
        """Let everybody through, from now on; called by one thread."""
        if not self.is_open:
            self.is_open = True
            self._shut.release()

    def wait(self, timeout_seconds: float) -> None:
        """Wait until it is open, or the time is over."""
        if not self.is_open and self._shut.acquire(timeout=timeout_seconds):
            self._shut.release()
