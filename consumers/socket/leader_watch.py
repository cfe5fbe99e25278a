"""A standby's eye on the leader: a connection to its socket, alive as long as that answers."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from typing import TYPE_CHECKING

from commitlog import wire
from commitlog.errors import CommitLogError, InvalidRequest

if TYPE_CHECKING:
    from consumers.partition.session import Session

logger = logging.getLogger(__name__)

# Of its own: a program that seeds `random` gets from it what it would without us. Without state:
# processes that one forks don't wait alike.
_chance = random.SystemRandom()
SILENCE_SECONDS = 1.0
DEAD_SECONDS = (0.0, 0.3)
"""How long a standby waits, at random, before it takes the place of a leader that is silent."""
BEGINNING_SECONDS = (1.0, 2.0)
"""The same where somebody answers at the leader's address, and doesn't lead: it may have won just
now, and be reading its own record. A candidate would then end a term that is only beginning."""


def stand_by(
    session: Session, stop: threading.Event, *, node: str, log_id: str, token: str, home: str = ""
) -> None:
    """Follow the log until the leader's socket is silent, and a random while longer.

    `node` is this committer's own address, and `home` where the log is: the leader that a restored
    log names may still lead the one that it was copied from.
    """
    chain = session.follower.replica.chain
    waited_for, told = None, ""
    while not stop.is_set():
        started = chain.leader
        if started is None:
            return
        with LeaderWatch(started.node, log_id, token, home) as watch:
            if watch.alive:
                logger.info("on standby: %s leads in epoch %d", started.node, started.epoch)
            while watch.alive and not stop.is_set():
                session.follow(0.2)
                if chain.leader is not started:
                    break
        if watch.refusal:
            # It leads: each of the two would end the other's terms for good.
            if watch.refusal != told:
                logger.error("on standby, but unknown to %s: %s", started.node, watch.refusal)
            told = watch.refusal
            due = time.monotonic() + SILENCE_SECONDS
            while time.monotonic() < due and chain.leader is started and not stop.is_set():
                session.follow(0.2)
            continue
        if chain.leader is not started:
            continue
        is_beginning = watch.is_idle and started.node != node and started is not waited_for
        stop.wait(_chance.uniform(*(BEGINNING_SECONDS if is_beginning else DEAD_SECONDS)))
        session.catch_up()
        if chain.leader is started and not is_beginning:
            return
        waited_for = started


class LeaderWatch:
    """A connection to the leader's socket: it is alive as long as that stands."""

    def __init__(self, node: str, log_id: str, token: str, home: str = "") -> None:
        """Watch the leader at `node`."""
        self._node = node
        self._token = token
        self._log_id = log_id
        self._home = home
        self._socket: socket.socket | None = None
        self.alive = False
        self.is_idle = False
        """Whether somebody answered that it doesn't lead."""
        self.refusal = ""
        """Why the leader, which answered, doesn't let this committer watch it: its token."""
        self._ended = threading.Event()

    def __enter__(self) -> LeaderWatch:
        host, _, port = self._node.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), SILENCE_SECONDS)
            hello = wire.hello(self._token, log_id=self._log_id, home=self._home)
            self._socket.sendall(wire.json_frame(wire.FrameKind.HELLO, hello))
            frames: list[tuple[wire.FrameKind, bytes]] = []
            buffer = wire.FrameBuffer()
            while not frames:
                data = self._socket.recv(65536)
                if not data:
                    return self
                frames = buffer.feed(data)
            kind, body = frames[0]
            self.alive = kind is wire.FrameKind.WELCOME
            said = wire.parse_json(body) if kind is wire.FrameKind.ERROR else {}
            if said.get("type") == InvalidRequest.__name__:
                self.refusal = str(said.get("message"))
            self.is_idle = not self.alive and not self.refusal
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
        ping = wire.json_frame(
            wire.FrameKind.REQUEST, {"request": 0, "method": "ping", "params": {}}
        )
        try:
            while not self._ended.wait(SILENCE_SECONDS / 4):
                self._socket.sendall(ping)
                if not self._socket.recv(65536):
                    break
        except OSError:
            pass
        self.alive = False
