"""A leader over a log in memory, for tests of clients: a real one that can be steered.

What a test wants decided otherwise it says with `decide`. Deciding can be paused, the socket be
stopped, and the leader be muted.
"""

from __future__ import annotations

import selectors
import shutil
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog import wire
from commitlog.adapters.memory import MemoryLog, MemoryReader
from commitlog.client.leader.runtime import Runtime
from commitlog.core.decisions import Decision
from commitlog.model.records import Code, Outcome, Status, Submitted, Transaction
from consumers.partition.files.events import Event
from tests.service import Running
from tests.waiting import WAIT_SECONDS

Decide = Callable[[Submitted], Outcome | None]


class _PausingLog(MemoryLog):
    """A log whose transactions nobody reads while it is paused."""

    def __init__(self, log: MemoryLog, paused: threading.Event) -> None:
        super().__init__(log.cluster, log.name)
        self._paused = paused

    def read_transactions(
        self, partition: int, offset: int = 0, *, patient: float = 0.0
    ) -> MemoryReader[Submitted]:
        reader = super().read_transactions(partition, offset, patient=patient)
        read = reader._next
        vars(reader)["_next"] = lambda most: [] if self._paused.is_set() else read(most)
        return reader


class SteeredLeader(Running):
    """Leads partition 0 of a log in memory."""

    def __init__(self, log: MemoryLog, decide: Decide | None = None) -> None:
        """Begin a term."""
        self.decide = decide
        self.committed: list[tuple[Outcome, Transaction]] = []
        self.requests: list[str] = []
        self.muted, self.paused = threading.Event(), threading.Event()
        root = Path(log.genesis(0).tables_root).parent / "leader"
        super().__init__(_PausingLog(log, self.paused), root)
        self.await_leading()

    @property
    def node(self) -> str:
        """The address of the socket."""
        return self.committer.node

    def _run(self) -> None:
        committer = self.committer
        answers, requests = committer._answers, committer._requests
        write, begin, look_up = answers._write, answers.begin_term, requests.lookup
        tell = committer._committed

        def write_unless_muted(connection: Any, data: bytes) -> None:
            [kind, _], *_ = wire.FrameBuffer().feed(data)
            if kind is wire.FrameKind.WELCOME or not self.muted.is_set():
                write(connection, data)

        def begin_term(*arguments: Any, appends: bool) -> None:
            assert committer._session is not None
            machine = committer._session.follower.machine
            honest = machine.decide

            def decide(submitted: Submitted, observed: Any) -> Any:
                wanted = self.decide(submitted) if self.decide is not None else None
                if wanted is None:
                    return honest(submitted, observed)
                record = submitted.record
                return Decision(
                    replace(
                        wanted,
                        sequence=machine.sequence + 1,
                        transaction_id=record.transaction_id,
                        transaction_offset=submitted.offset,
                        attempt=getattr(record, "attempt", 0),
                        payload_hash=getattr(record, "payload_hash", b""),
                    )
                )

            vars(machine)["decide"] = decide
            self._term = arguments
            begin(*arguments)

        def look(method: str, *asked: Any) -> bool:
            self.requests.append(method)
            return look_up(method, *asked)

        def committed(events: list[Event]) -> None:
            for event in events:
                record = event.submitted.record
                is_new = event.outcome.status is Status.COMMITTED and event.outcome.answers is None
                if isinstance(record, Transaction) and is_new:
                    self.committed.append((event.outcome, record))
            tell(events)

        vars(answers).update(_write=write_unless_muted, begin_term=begin_term)
        vars(requests).update(lookup=look)
        vars(committer).update(_committed=committed)
        super()._run()

    def stop_socket(self) -> None:
        """Refuse and drop connections; go on deciding."""
        connections = self.committer._answers._connections
        with connections.turn:
            listening, connections._listening = connections._listening, None
            assert listening is not None
            connections._selector.unregister(listening)
            listening.close()
            self.committer._answers.end_term()

    def start_socket(self) -> None:
        """Listen again at the same address."""
        answers = self.committer._answers
        with answers._turn:
            listening = socket.create_server(("127.0.0.1", answers.port))
            listening.setblocking(False)
            answers._connections._listening = listening
            answers._connections._selector.register(listening, selectors.EVENT_READ)
            answers.begin_term(*self._term, appends=False)

    def append(self, key: str, record: bytes) -> None:
        """Append to the outcomes what this leader didn't decide."""
        session = self.committer._session
        assert session is not None
        assert session.leader is not None
        session.leader.writer.append(key, record, lambda offset, error: None)

    close = Running.stop


def blank(status: Status, code: Code = Code.NONE) -> Outcome:
    """Return an outcome that only says how it ended."""
    return Outcome(0, "", 0, status, code=code)


def once_before_sending(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Have something happen when the next transaction is prepared, and isn't sent yet."""
    send = Runtime._send

    def act_and_send(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(Runtime, "_send", send)
        # Lance may have called this, and can't be called from within.
        acting = threading.Thread(target=act)
        acting.start()
        acting.join(WAIT_SECONDS)
        return send(*arguments, **named)

    monkeypatch.setattr(Runtime, "_send", act_and_send)


def memory_log(root: Path) -> MemoryLog:
    """Make a log in memory whose tables lie under a folder."""
    shutil.rmtree(root, ignore_errors=True)
    log = MemoryLog()
    log.create(tables_root=str(root))
    return log


SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])
