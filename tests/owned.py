"""Asserts, method by method, that only a session's loop touches what the session owns."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from commitlog.core.log.replica import Replica
from commitlog.core.partition.machine import Machine
from consumers.partition.appending import Appending
from consumers.partition.deciding import Deciding
from consumers.partition.files.catalogue import PartitionHeads
from consumers.partition.files.offset_index import OffsetIndex
from consumers.partition.glances import Glances
from consumers.partition.lanes import Lanes
from consumers.partition.leader import Leader
from consumers.partition.mailbox import Mailbox
from consumers.partition.meters import Meters
from consumers.partition.quotas import Quotas
from consumers.partition.readable import Readable
from consumers.partition.session import Session

OWNED: tuple[type, ...] = (
    *(Machine, Replica, Readable, PartitionHeads, OffsetIndex, Lanes, Meters),
    *(Session, Leader, Deciding, Glances, Appending, Quotas),
)
BY_WORKERS = {("Lanes", "_work")}
"""What threads run that a class of these starts."""


class Ownership:
    """Who called what from which thread."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        """Watch each session that is made from now on."""
        self.calls = 0
        self.wrong: list[str] = []
        self._owners: dict[int, tuple[object, Mailbox]] = {}
        for kind in OWNED:
            self._watch(patch, kind)
        begin, lead = Session.__init__, Session.lead

        def made(session: Session, *arguments: Any, **more: Any) -> None:
            begin(session, *arguments, **more)
            follower = session.follower
            owned: tuple[object, ...] = (session, session.readable, session.catalogue)
            owned += (session.offset_index, session.lanes, session.meters)
            for one in (*owned, follower.machine, follower.replica):
                self._own(one, session.mailbox)

        def led(session: Session, *arguments: Any, **more: Any) -> Leader:
            leader = lead(session, *arguments, **more)
            for one in (leader, leader.appending, leader._deciding):
                self._own(one, session.mailbox)
            return leader

        patch.setattr(Session, "__init__", made)
        patch.setattr(Session, "lead", led)

    def _own(self, one: object, mailbox: Mailbox) -> None:
        self._owners[id(one)] = one, mailbox

    def _watch(self, patch: pytest.MonkeyPatch, kind: type) -> None:
        for name, method in vars(kind).items():
            if (kind.__name__, name) in BY_WORKERS or name == "__init__":
                continue
            if inspect.isfunction(method):
                patch.setattr(kind, name, self._asserting(method))
            elif isinstance(method, property) and method.fget is not None:
                patch.setattr(kind, name, property(self._asserting(method.fget)))

    def _asserting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def asserting(one: object, *arguments: Any, **more: Any) -> Any:
            owned = self._owners.get(id(one))
            if owned is not None:
                self.calls += 1
                if not owned[1].is_loop():
                    self.wrong.append(f"{method.__qualname__} on {threading.current_thread().name}")
            return method(one, *arguments, **more)

        return asserting
