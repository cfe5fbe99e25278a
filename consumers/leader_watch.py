"""A standby's eye on the leader: a connection to its socket, alive as long as that answers."""

from __future__ import annotations

import socket
import threading

from commitlog import wire
from commitlog.errors import CommitLogError

SILENCE_SECONDS = 1.0


class LeaderWatch:
    """A connection to the leader's socket: it is alive as long as that stands."""

    def __init__(self, node: str, log_id: str, token: str) -> None:
        """Watch the leader at `node`."""
        self._node = node
        self._token = token
        self._log_id = log_id
        self._socket: socket.socket | None = None
        self.alive = False
        self._ended = threading.Event()

    def __enter__(self) -> LeaderWatch:
        host, _, port = self._node.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), SILENCE_SECONDS)
            hello = {"protocol": wire.WIRE_VERSION, "log_id": self._log_id, "token": self._token}
            self._socket.sendall(wire.json_frame(wire.Kind.HELLO, hello))
            frames: list[tuple[wire.Kind, bytes]] = []
            buffer = wire.FrameBuffer()
            while not frames:
                data = self._socket.recv(65536)
                if not data:
                    return self
                frames = buffer.feed(data)
            self.alive = frames[0][0] is wire.Kind.WELCOME
        except (OSError, ValueError, CommitLogError):
            return self
        if self.alive:
            threading.Thread(target=self._watch, name="leader-watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._socket is not None:
            self._socket.close()

    def _watch(self) -> None:
        """Ping once in a while; silence or a closed connection ends the watch."""
        assert self._socket is not None
        ping = wire.json_frame(wire.Kind.REQUEST, {"request": 0, "method": "ping", "params": {}})
        try:
            while not self._ended.wait(SILENCE_SECONDS / 4):
                self._socket.sendall(ping)
                if not self._socket.recv(65536):
                    break
        except OSError:
            pass
        self.alive = False
