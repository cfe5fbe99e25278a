"""Ctrl-C anywhere in a call leaves no lock of the leader's socket held: the next call works.

Python handles a signal when a function begins and after a function of C returns: after a lock was
acquired, too, and before the next statement. So each of these moments is interrupted, one by one.
"""

from __future__ import annotations

import gc
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any
from unittest.mock import MagicMock

import lance
import pytest
from lance.dataset import MergeInsertBuilder

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.client.leader.connection import LeaderConnection
from commitlog.client.leader.leader_socket import LeaderSocket
from commitlog.client.leader.socket_times import Gate
from commitlog.client.leader.tickets import Ticket
from commitlog.client.rows import row_keys
from commitlog.errors import CommitLogError
from commitlog.model.records import Outcome, Status, Transaction
from commitlog.wire import FrameKind, json_frame
from tests.steered_leader import SCHEMA, SteeredLeader
from tests.waiting import WAIT_SECONDS


def interrupted(call: Callable[[], object], at: int) -> bool:
    """Interrupt a call at one of its moments; return False if it has fewer."""
    moments = 0

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal moments
        # Nobody gets what is raised when something is forgotten. From Python 3.14 on, `with` is
        # open to an interrupt once its lock is held, and no program in Python can close that gap.
        if (
            event in ("call", "c_return")
            and "weakref" not in frame.f_code.co_filename
            and getattr(argument, "__name__", "") != "__enter__"
        ):
            moments += 1
            if moments == at:
                sys.setprofile(None)
                raise KeyboardInterrupt

    gc.disable()
    try:
        sys.setprofile(look)  # whose own return may be the first moment
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


def attend(leader: LeaderSocket) -> None:
    with leader.attended(lambda: True):
        pass


CALLS: list[Callable[[LeaderSocket], object]] = [
    lambda leader: leader.read_until(lambda: False, time.monotonic() + 0.001),
    lambda leader: leader.send(json_frame(FrameKind.REQUEST, {})),
    attend,
    lambda leader: leader.start(),
]


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS, ids=("read", "send", "attend", "start"))
def test_no_lock_stays_held(call: Callable[[LeaderSocket], object]) -> None:
    at, was_interrupted = 0, True
    while was_interrupted:
        at += 1
        leader = LeaderSocket(MagicMock(), 0, {}, MagicMock())
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(json_frame(FrameKind.REPLY, {}))
            leader.opened = None if call is CALLS[-1] else ours
            leader._thread = threading.current_thread()  # So none begins.
            was_interrupted = interrupted(lambda: call(leader), at)  # noqa: B023
        found: list[bool] = []

        def look(leader: LeaderSocket = leader, found: list[bool] = found) -> None:
            for lock in (leader._waking, leader._reading, leader._sending):
                found.append(lock.acquire(blocking=False))

        other = threading.Thread(target=look)
        other.start()
        other.join()
        assert all(found), (at, found)
    assert at > 2


def for_a_ticket() -> tuple[Callable[[], object], Callable[[], object]]:
    ticket = Ticket(Transaction("t", ()), lambda *_: None, asked=False)
    outcome = Outcome(1, "t", 0, Status.REJECTED)
    return lambda: ticket.result(0.001, "committed"), lambda: ticket.deliver(outcome, False)


def for_a_request() -> tuple[Callable[[], object], Callable[[], object]]:
    connection = LeaderConnection(MagicMock(), name="l", log_id="i", partition=0, token="")
    connection._socket._thread = threading.current_thread()  # So none begins.
    wait = connection.ask("table", {}, 0.001)
    [number] = connection._requests
    return wait, lambda: connection._on_reply({"request": number, "result": 1})


def for_a_leader() -> tuple[Callable[[], object], Callable[[], object]]:
    gate = Gate()
    return lambda: gate.wait(0.001), gate.open


@pytest.mark.parametrize("made", [for_a_ticket, for_a_request, for_a_leader])
def test_who_answers_never_waits_for_a_caller_that_was_interrupted(
    made: Callable[[], tuple[Callable[[], object], Callable[[], object]]],
) -> None:
    at, was_interrupted = 0, True
    while was_interrupted:
        at += 1
        wait, answer = made()
        with suppress(CommitLogError):
            was_interrupted = False
            was_interrupted = interrupted(wait, at)
        other = threading.Thread(target=answer, daemon=True)
        other.start()
        other.join(WAIT_SECONDS)
        assert not other.is_alive(), at
    assert at > 2


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        ("KeyboardInterrupt: ", KeyboardInterrupt()),
        ("SystemExit: 143", SystemExit(143)),
        ("SystemExit: None", SystemExit()),
        ("SystemExit: no more", SystemExit("no more")),
    ],
)
def test_what_a_signals_handler_raised_and_lance_has_made_an_error_is_raised(
    log: MemoryLog,
    leader: SteeredLeader,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    raised: BaseException,
) -> None:
    """A program that ends by SIGTERM went on with an error of its arguments."""

    def interrupted(*_: object, **__: object) -> None:
        raise ValueError(f"External error: {said}")

    def is_raised(call: Callable[[], object]) -> None:
        with pytest.raises(type(raised)) as found:
            call()
        assert getattr(found.value, "code", None) == getattr(raised, "code", None)

    with CommitLog(lambda: log) as client:
        client.create_table("a$t", SCHEMA)
        for reads in ("to_table", "scanner"):
            monkeypatch.setattr(lance.LanceDataset, reads, interrupted)
        is_raised(lambda: client.scan("a$t"))
        is_raised(lambda: client.update("a$t", {"v": "upper(v)"}, "id = 1"))
        merges = partial(client.merge_insert, when_not_matched_by_source_delete=True)
        monkeypatch.setattr(MergeInsertBuilder, "execute_uncommitted", interrupted)
        is_raised(lambda: merges("a$t", [{"id": 1}], "id"))
    monkeypatch.setattr(row_keys._Keys, "_look", interrupted)
    # And not a search that goes on.
    is_raised(lambda: row_keys._Keys().find(MagicMock(), MagicMock(), MagicMock(), 1))
