"""Writes decided versions into Lance tables: canonical manifests, in version order per table.

Input is acknowledged outcomes only, so no canonical name exists before its outcome does. A manifest
is a function of the log: writing it again gives the same bytes. So recovery is a repetition,
and a standby can do the leader's work without asking. Under policy `every` each version gets its
file; under `latest` a group of versions gets one. Where that leaves a gap, a version hint goes
ahead of it: a reader may trust a hint that runs ahead, but not one that stays behind a gap.

Tables in object stores are written in parallel, since each request takes its time, and so are
local ones that were slow. Other local files, which take almost no time, are written one after
another. If one of those hangs, another thread continues with the others.

A file under a canonical name that isn't ours was written around the log: it goes to `_quarantine/`
with those after it. A table whose files can't be written is retried separately.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from commitlog.adapters.storage import ObjectStore, is_local, store_for
from commitlog.core.decisions import Change, ChangeKind
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.errors import CommitLogError
from commitlog.model.table import Policy, TableId, format_table_id
from consumers.partition.files.agenda import Agenda
from consumers.partition.files.events import Event, Filed, Filing
from consumers.partition.files.failing_store import open_or_fail_later
from consumers.partition.files.owed import Owed
from consumers.partition.files.table_files import NewestInLog, TableFiles, retry_later
from consumers.partition.files.table_writer import TableWriter
from consumers.partition.mailbox import Displaced, Outside

SIDE_BY_SIDE = 16
"""How many tables of one object store are written at once."""
END_SECONDS = 5.0
QUICK_SECONDS = 0.02
"""A local table that takes longer is written by another thread the next time."""

logger = logging.getLogger(__name__)


class Materializer:
    """Writes manifests on its own thread and reports when they can be read."""

    def __init__(
        self,
        report: Callable[[Filed], None],
        *,
        open_store: Callable[[str], ObjectStore] = store_for,
        delay_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        work_clock: Callable[[], float] | None = None,
        on_end: Callable[[BaseException], None] = lambda error: None,
        newest_in_log: NewestInLog = lambda incarnation, offset: 0,
        heard_offset: int = 0,
    ) -> None:
        """Report completed files, on the materializer's thread; `on_end` gets why it ended.

        With a `delay_seconds`, it helps the leader: it looks at an event only after that, and
        finds most files written. For records of the log beyond those put here, from `heard_offset`
        on, it asks `newest_in_log`.
        """
        self._report = report
        self._on_end = on_end
        self._open_store = open_store
        self._delay_seconds = delay_seconds
        self._clock = clock
        # A clock that is made up stands for the processor's as well.
        work_clock = work_clock or (time.thread_time if clock is time.monotonic else clock)
        is_alone = not delay_seconds
        self.writer = TableWriter(open_store, newest_in_log, clock, work_clock, is_alone=is_alone)
        self._heard_offset = heard_offset
        self._queue: queue.SimpleQueue[tuple[float, list[Event]] | None] = queue.SimpleQueue()
        self._waiting: deque[tuple[float, list[Event]]] = deque()
        """Items from the queue that aren't due yet."""
        self._by_incarnation: dict[str, TableFiles] = {}
        self._agenda = Agenda()
        self._failing: set[str] = set()
        self._strangers: list[tuple[TableId, int, str]] = []
        self._news: dict[str, int] = {}
        """The newest versions that were written and not reported yet."""
        self._filings: list[Filing] = []
        self._reported: tuple[str, ...] = ()
        self._has_failing_news = False
        self._outside = Outside()
        """Whether its thread is in a local store."""
        self.on_outside: Callable[[], None] = lambda: None
        """Called when its thread has just gone there."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._side_by_side: dict[str, ThreadPoolExecutor] = {}
        """By store: one that hangs takes no threads of others."""
        self.written_sequence = 0
        """Up to this outcome, everything has its files."""
        self._unwritten: OrderedDict[int, None] = OrderedDict()
        """The outcomes that miss a file, by sequence. It may be long: a store may be away."""
        self._readable: list[Event] = []
        """Those that miss none any more, and weren't reported yet."""
        self._owed: dict[str, int] = {}
        """The first outcome of what a checkpoint owes, by table."""
        self._newest_written = 0

    def adopt(
        self,
        table: TableId,
        incarnation: str,
        location: str,
        policy: Policy,
        state: ManifestState,
        owed: Owed | None = None,
    ) -> None:
        """Take a table as a checkpoint has it, and what it owes of it, before `start`."""
        store = open_or_fail_later(self._open_store, location)
        files = TableFiles(table, incarnation, location, policy, state=state, store=store)
        files.written_version = files.reported_version = state.version
        self._by_incarnation[incarnation] = files
        if owed is not None:
            if owed.has_versions:
                files.written_version = files.reported_version = owed.base
            files.owed, files.is_live = owed, owed.end is None
            self.writer.deletions.announce([owed.change(ChangeKind.VERSIONS_DELETED)])
            self._owed[incarnation] = owed.sequence
            self._agenda.now[incarnation] = None

    def begin_at(self, sequence: int) -> None:
        """Begin after this outcome, with what was adopted."""
        self._newest_written = sequence
        self.written_sequence = min([sequence + 1, *self._owed.values()]) - 1

    def start(self) -> None:
        """Begin to write."""
        thread = threading.Thread(target=self._run, name="materializer", daemon=True)
        self._thread = thread
        thread.start()

    def put(self, events: list[Event]) -> None:
        """Hand over acknowledged events, in sequence order."""
        self.writer.deletions.announce(change for event in events for change in event.changes)
        self._queue.put((self._clock() + self._delay_seconds, events))

    @property
    def is_outside(self) -> bool:
        """Whether its thread is in a local store now."""
        return bool(self._outside)

    def displace(self, after_seconds: float) -> None:
        """Let another thread continue if this one is stuck in a local store for longer."""
        if self._outside.displace(after_seconds):
            self.start()

    def hurry(self) -> None:
        """Drop the delay, for what is queued as well: this process leads now."""
        self._delay_seconds, self.writer.is_alone = 0.0, True

    def failing(self) -> tuple[str, ...]:
        """Return the names of tables whose files can't be written at present."""
        found = filter(None, (self._by_incarnation.get(i) for i in sorted(self._failing)))
        return tuple(format_table_id(files.table) for files in found)

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Write what is queued, as far as it can be written, and end."""
        self._stopped.set()
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def step(self, timeout_seconds: float) -> bool:
        """Write due files; wait at most this long for something. Return whether to continue."""
        ended = self._receive(timeout_seconds)
        now = self._clock() if self._delay_seconds and not self._stopped.is_set() else float("inf")
        while self._waiting and self._waiting[0][0] <= now:
            self._accept(self._waiting.popleft()[1])
        self._write_all()
        return not ended

    def _run(self) -> None:
        try:
            while self.step(self._patience()):
                pass
            self._await_writes()
        except Displaced:
            return
        except BaseException as error:
            logger.exception("the materializer stopped; no more manifests are written")
            self._on_end(error)

    def _patience(self) -> float:
        """Return for how many seconds nothing is due unless something comes."""
        return 0.05 if self._waiting else min(1.0, max(0.0005, self._agenda.due_at - self._clock()))

    def _receive(self, timeout_seconds: float) -> bool:
        """Empty the queue, waiting for its first item; return whether the end was in it."""
        ended = False
        try:
            item = self._queue.get(timeout_seconds > 0, timeout_seconds or None)
            while True:
                if item is None:
                    ended = True
                else:
                    self._waiting.append(item)
                item = self._queue.get_nowait()
        except queue.Empty:
            return ended

    def _accept(self, events: Iterable[Event]) -> None:
        for event in events:
            # An Iceberg table's metadata was written before the outcome.
            changes = [change for change in event.changes if change.iceberg is None]
            event.unwritten = len(changes)
            if changes:
                self._unwritten[event.outcome.sequence] = None
            else:
                self._readable.append(event)
            self._heard_offset = event.offset + 1
            for change in changes:
                self._files_of(change).pending.append((change, event))
                self._agenda.now[change.incarnation] = None

    def _files_of(self, change: Change) -> TableFiles:
        files = self._by_incarnation.get(change.incarnation)
        if files is None:
            store = open_or_fail_later(self._open_store, change.location)
            files = self._by_incarnation[change.incarnation] = TableFiles.begun(change, store=store)
        return files

    def _write_all(self) -> None:
        now = self._clock()
        if self._stopped.is_set():
            self._agenda.now.update(dict.fromkeys(self._by_incarnation))
        for incarnation in self._agenda.take(now):
            files = self._by_incarnation.get(incarnation)
            if files is not None and files.writing is not None:
                if not files.writing.done():
                    continue  # it will be told of
                self._settle(files, files.writing.result)
                if files.failures:
                    continue
            if files is None or not (files.pending or files.owed):
                continue
            until = max(files.retry_at, files.gather_until)
            if until > now and not self._stopped.is_set():
                self._agenda.put_off(incarnation, until)
            else:
                self._begin_write(files)
        # A table that can't be written delays only its own answers.
        readable, self._readable = self._readable, []
        if readable or self._filings:
            if readable:
                readable.sort(key=lambda event: event.outcome.sequence)
                self._newest_written = max(self._newest_written, readable[-1].outcome.sequence)
            missing = next(iter(self._unwritten), self._newest_written + 1)
            if self._owed:
                missing = min(missing, *self._owed.values())
            self.written_sequence = max(self.written_sequence, missing - 1)
        strangers, self._strangers = tuple(self._strangers), []
        if readable or strangers or self._news or self._filings or self._has_failing_news:
            if self._has_failing_news:
                self._has_failing_news, self._reported = False, self.failing()
            news, self._news = list(self._news.items()), {}
            filed = Filed(readable, news, self.written_sequence, self._reported)
            filed.strangers, filed.filings, self._filings = strangers, tuple(self._filings), []
            self._report(filed)

    def _begin_write(self, files: TableFiles) -> None:
        files.heard_offset = self._heard_offset
        is_quick = files.is_quick and files.owed is None
        if is_local(files.location) and (is_quick or self._thread is None):
            self._write_here(files)
            return
        store = "/".join(files.location.split("/")[:3])  # `s3://bucket`, or the top of a path
        pool = self._side_by_side.get(store) or ThreadPoolExecutor(SIDE_BY_SIDE, "materializer")
        self._side_by_side[store] = pool
        # One version at a time, so that each is reported once it exists.
        files.writing = pool.submit(self._write_timed, files, 1)
        files.writing.add_done_callback(lambda _: self._tell(files))

    def _tell(self, files: TableFiles) -> None:
        self._agenda.tell(files.incarnation)
        self._queue.put((0.0, []))  # it ends a wait

    def _write_here(self, files: TableFiles) -> None:
        """Write on this thread, which is cheaper than asking another one."""
        written: Future[None] = Future()
        files.writing = written
        self._outside.leave()
        self.on_outside()
        try:
            self._write_timed(files)
        except Exception as error:
            written.set_exception(error)
        else:
            written.set_result(None)
        if not self._outside.come_back():
            self._tell(files)
            raise Displaced(None, None)
        self._settle(files, written.result)

    def _write_timed(self, files: TableFiles, versions_max: int = sys.maxsize) -> None:
        began = time.monotonic()
        try:
            self.writer.write(files, versions_max)
        finally:
            files.is_quick = time.monotonic() - began < QUICK_SECONDS

    def _settle(self, files: TableFiles, write: Callable[[], None]) -> None:
        """Note how a write went; `write` does it, or raises what it raised."""
        files.writing = None
        try:
            write()
        except (OSError, MemoryError, CommitLogError) as error:
            retry_later(files, error, self._clock())
            self._agenda.put_off(files.incarnation, files.retry_at)
            self._has_failing_news |= files.incarnation not in self._failing
            self._failing.add(files.incarnation)
            return
        finally:
            if files.done or files.paid:
                self._filings.append(Filing(files.incarnation, len(files.done) + files.paid))
                files.paid = 0
            for event in files.done:
                event.unwritten -= 1
                if not event.unwritten:
                    del self._unwritten[event.outcome.sequence]
                    self._readable.append(event)
            files.done.clear()
            self._strangers += [(files.table, *one) for one in files.strangers]
            files.strangers.clear()
            if files.written_version != files.reported_version:
                files.reported_version = self._news[files.incarnation] = files.written_version
        if files.owed is None and self._owed:
            self._owed.pop(files.incarnation, None)
        files.succeeded(self._clock)
        self._has_failing_news |= files.incarnation in self._failing
        self._failing.discard(files.incarnation)
        if not files.is_live and not files.pending and files.owed is None:
            # What comes under this name again is another table's, or registered again.
            del self._by_incarnation[files.incarnation]

    def _await_writes(self) -> None:
        """Write the missing files in object stores, and report them, as far as there is time."""
        deadline = self._clock() + END_SECONDS
        while self._clock() < deadline:
            writing = [f.writing for f in self._by_incarnation.values() if f.writing is not None]
            if not writing:
                break
            wait(writing, timeout=END_SECONDS, return_when=FIRST_COMPLETED)
            self._write_all()
        for pool in self._side_by_side.values():
            pool.shutdown(wait=False, cancel_futures=True)
