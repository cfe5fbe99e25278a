"""The threads beside a leading session's loop: one reads records, one stands in for a stuck loop.

Each ends with the term, and a term doesn't outlive one of them: what ends a thread is an event.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from commitlog.model.records import Submitted
from consumers.partition.files.events import Ended, EndSeen, Read
from consumers.partition.leader import RECORDS_PER_POLL
from consumers.partition.session import Session

READ_SECONDS = 0.2
"""How long reading waits for a record, and so the end of a term for reading. Kafka's client cuts
longer waits into pieces of this."""
STUCK_SECONDS = 0.05
"""A thread that is outside the loop for longer is replaced by another."""
END_CHECK_SECONDS = 2.0
AHEAD = 2
"""Batches of records that may be read before the loop has decided them."""
JOIN_SECONDS = 10.0


class Feeding:
    """Reads records while the `with` body leads, and keeps the loop running."""

    def __init__(self, session: Session, begin_loop: Callable[[], None]) -> None:
        """Feed the session's loop; `begin_loop` starts another one in place of a stuck one."""
        self._session, self._begin_loop = session, begin_loop
        self._follower, self._mailbox = session.follower, session.mailbox
        self._stopped, self._went_outside = threading.Event(), threading.Event()
        self._room = threading.Semaphore(AHEAD)
        self._read = 0
        self._wanted = threading.Event()
        self._wanted.set()
        self._from = -1
        """Where reading continues after a rest."""
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            for name, work in (("read", self._read_records), ("stand-in", self._stand_in))
        ]

    def __enter__(self) -> Feeding:
        """Begin."""
        self._mailbox.on_outside = self._session.materializer.on_outside = self._hear_outside
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End both threads."""
        self._stopped.set()
        self._went_outside.set()
        self._wanted.set()
        self._room.release()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def received(self, count: int) -> None:
        """Note that the loop took so many batches."""
        self._read += count

    def resume(self) -> None:
        """Read on: the loop has room for more."""
        while self._read:
            self._read -= 1
            self._room.release()

    @property
    def is_wanted(self) -> bool:
        """Whether it reads now."""
        return self._wanted.is_set()

    def want(self, is_wanted: bool, position: int) -> None:
        """Read on from a position, or rest; the loop has taken all records before it."""
        if is_wanted == self._wanted.is_set():
            return
        if is_wanted:
            self._from = position
            self._wanted.set()
        else:
            self._wanted.clear()

    def _rest(self) -> None:
        """Wait until reading is wanted."""
        reader = self._follower.transactions
        reader.pause()
        self._wanted.wait()
        if not self._stopped.is_set():
            reader.seek(self._from)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._mailbox.post(Ended(error))

    def _read_records(self) -> None:
        reader = self._follower.transactions
        check_at = time.monotonic()
        while True:
            self._room.acquire()
            records: list[Submitted] = []
            while not records and not self._stopped.is_set():
                if not self._wanted.is_set():
                    self._rest()
                records = reader.poll(records_max=RECORDS_PER_POLL, timeout_seconds=READ_SECONDS)
                if not records and time.monotonic() >= check_at:
                    check_at = time.monotonic() + END_CHECK_SECONDS
                    self._mailbox.post(EndSeen(self._follower.end_offset(), reader.position()))
            if self._stopped.is_set():
                return
            self._mailbox.post(Read(records))

    def _hear_outside(self) -> None:
        if not self._went_outside.is_set():
            self._went_outside.set()

    def _stand_in(self) -> None:
        """Look at the mailbox at intervals while a thread is outside of the loop."""
        mailbox, materializer = self._mailbox, self._session.materializer
        while self._went_outside.wait() and not self._stopped.wait(STUCK_SECONDS / 2):
            self._went_outside.clear()
            if self._stopped.is_set():  # and what woke this thread for that may be cleared
                return
            while mailbox.is_outside or materializer.is_outside:
                if mailbox.displace(STUCK_SECONDS):
                    self._begin_loop()
                materializer.displace(STUCK_SECONDS)
                if self._stopped.wait(STUCK_SECONDS / 2):
                    return
