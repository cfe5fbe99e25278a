"""The committer: follows a partition, leads it if no other process does, and answers its writers.

There is no consumer group and no lock service. A standby follows the log and keeps a connection to
the leader's socket; when that is silent, it waits a random while, appends LeaderStarted with the
next epoch, and decides only after reading it back as valid. When a term ends, everything that was
decided ahead of Kafka is thrown away with the state it was decided on: the committer starts again
from its checkpoint and the log.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version as package_version
from pathlib import Path
from typing import TypeVar

from commitlog.adapters.places import bindings, bound, named_here, use_named
from commitlog.adapters.recordings import Recordings
from commitlog.client.history.roots import PARTITION
from commitlog.core.catalogue.named_roots import named_roots
from commitlog.core.log.chain import ChainPlace
from commitlog.core.partition.machine import Machine
from commitlog.errors import CorruptLog, Fenced, InvalidSettings, TopicSettings, Unavailable
from commitlog.model.records import Genesis
from commitlog.ports import Log
from consumers.partition.allowed_places import AllowedPlaces
from consumers.partition.checkpoints.checkpoint import Checkpoints
from consumers.partition.checkpoints.table_places import check_followed, settle_roots
from consumers.partition.feeding import Feeding
from consumers.partition.files.catalogue import Head
from consumers.partition.files.events import Event, Read, RecordSent
from consumers.partition.files.folders import DiskFolder
from consumers.partition.files.old_versions import OldVersions
from consumers.partition.files.past_outcomes import maker_of
from consumers.partition.files.unwritten import USUAL, UnwrittenMax
from consumers.partition.follower import Follower
from consumers.partition.leader import Leader
from consumers.partition.leader_checks import LeaderChecks
from consumers.partition.mailbox import Loop
from consumers.partition.observer import StoreObserver
from consumers.partition.quotas import Quotas
from consumers.partition.session import Session
from consumers.runtime.places import RootMoved, is_marked, staying
from consumers.runtime.roots import RootUnusable
from consumers.runtime.steady_clock import SteadyClock, wall_ms
from consumers.socket.answers import Answers
from consumers.socket.leader_watch import stand_by
from consumers.socket.requests import Requests

ACKNOWLEDGE_SECONDS = 0.003
IDLE_SECONDS = 1.0
"""How long the loop waits when nothing is due, unless it is to stop."""
HELD_UP_SECONDS = 0.1
"""The same while it takes no more, in a pause for a checkpoint for example: files that get no
further are no event."""
LAST_CHECKPOINT_SECONDS = 5.0
LOOK_SECONDS = 30.0
IDLE_DAYS = 30
"""A log that stood still for longer is rarer than a clock that is wrong."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommitterOptions:
    """What one committer needs to know."""

    root: Path
    """Checkpoints go below it."""
    partition: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(default="", repr=False)
    checkpoint_seconds: float = 30.0
    quotas: Quotas | None = None
    unwritten_max: UnwrittenMax = USUAL
    allowed_locations: tuple[str, ...] = ()
    """If there are some: base paths lie below one of these prefixes or the tables root."""


class Committer:
    """One process's part in one partition, over any number of terms."""

    def __init__(
        self,
        log: Log,
        options: CommitterOptions,
        *,
        on_ready: Callable[[str], None] | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """Check the log's identity and settings; `on_ready(node)` is called as a term begins."""
        log.check_settings()
        self._log = log
        self._options = options
        self._on_ready = on_ready or (lambda node: None)
        self._genesis: Genesis = log.genesis(options.partition)
        self._identity = log.identity()
        self._checkpoints = checkpoints or Checkpoints(options.root, self._identity, self._genesis)
        self._session: Session | None = None
        self._is_ready_told = False
        self._was_marked = False
        with contextlib.suppress(RootUnusable):
            self._was_marked = is_marked(self._genesis)
        root, allowed = self._genesis.tables_root, options.allowed_locations
        self._allowed = AllowedPlaces(root, allowed) if allowed else None
        places = _Places(lambda: self._session)
        clock = SteadyClock(kept=options.root / "clock.json")  # if it fails, nothing is open yet
        self._old_versions = OldVersions(log, options.partition, Recordings(root), places)
        self._answers = Answers(
            identity={
                "log": self._genesis.log,
                "log_id": self._genesis.log_id,
                "partition": options.partition,
                "home": log.home(),
                "tables_root": root,
                "places": dict(bindings()),
                "roots": named_here(),
            },
            handler=lambda method, params: self._requests.handle(method, params),
            lookup=lambda *asked: self._requests.lookup(*asked),
            finder=lambda transaction_id, through: self._requests.find(transaction_id, through),
            taker=self._take,
            holder=lambda event, tell: self._requests.rows.hold(event, tell),
            host=options.host,
            port=options.port,
            token=options.token,
        )
        old, quotas = self._old_versions, options.quotas
        self._checks = LeaderChecks(log, options.partition, old, pace=self._answers, quotas=quotas)
        self._requests = Requests(
            options.partition,
            lambda: StoreObserver(root, places=self._allowed),
            old,
            self._checks,
            lambda: self._session,
            self._answers.found,
            self._answers.programs,
            clock,
        )
        self.node = ""

    def run(self, stop: threading.Event) -> None:
        """Follow and lead until `stop`."""
        self._answers.is_over = stop.is_set
        self.node = self._requests.node = self._answers.start()
        try:
            while not stop.is_set():
                self._run_session(stop)
                if not stop.is_set():
                    # Its parts know each other: by itself, Python may keep all of it for months.
                    gc.collect()
        finally:
            self._answers.close()
            self._requests.close()

    @property
    def _follower(self) -> Follower | None:
        return self._session.follower if self._session is not None else None

    @property
    def _leader(self) -> Leader | None:
        return self._session.leader if self._session is not None else None

    def _run_session(self, stop: threading.Event) -> None:
        """Recover, stand by, lead one term."""
        self._checks.check_here()
        if self._log.identity() != self._identity:
            raise CorruptLog(
                f"the topics of log {self._genesis.log!r} were deleted and made again while this "
                "committer ran: restore the log's backup (`commitlog restore`)"
            )
        self._checks.await_settings(stop)
        offsets = DiskFolder(self._options.root / "past" / str(self._options.partition))
        session = Session(
            self._log,
            self._genesis,
            self._checkpoints,
            offset_folder=offsets,
            unwritten_max=self._options.unwritten_max,
        )
        self._session = session
        self._old_versions.rules = lambda: session.follower.machine.rules
        session.materializer.start()
        try:
            session.catch_up()
            self._find_roots(session.follower.machine)
            log_id, home = self._genesis.log_id, self._log.home()
            token = self._options.token
            stand_by(session, stop, node=self.node, log_id=log_id, token=token, home=home)
            if not stop.is_set():
                self._check_still_there()
                began = time.monotonic()
                epoch = session.campaign(self.node, time.time_ns() // 1_000_000)
                if epoch:
                    self._lead(epoch, session, stop, began)
        finally:
            self._answers.end_term()
            self._requests.rows.end()
            session.close()
            if not stop.is_set():
                rules, self._session = session.follower.machine.rules, None
                self._old_versions.rules = lambda: rules

    def _find_roots(self, machine: Machine) -> None:
        """Look for tables where the log says by now; it may say otherwise than at the start."""
        if self._options.partition == PARTITION:
            before = named_here()
            try:
                settle_roots(self._genesis, named_roots(machine.catalogue.namespaces.get((), ())))
            except InvalidSettings as error:
                use_named(before)
                if not is_marked(self._genesis):
                    raise
                # It was started before the record that names them, and has them still.
                logger.warning("restart this committer with the missing place: %s", error)
        check_followed(machine)

    @staticmethod
    def _doubt_clock(before_ms: int) -> None:
        """Say that the log stood still for long, or that this machine's clock is wrong."""
        idle_ms = wall_ms() - before_ms
        if before_ms and idle_ms > IDLE_DAYS * 86_400_000:
            logger.warning(
                "this machine's clock is %s days beyond the log's newest outcome; if it is wrong, "
                "set it by NTP: versions and files seem old enough to be removed",
                f"{idle_ms / 86_400_000:,.0f}",
            )

    def _check_still_there(self) -> None:
        """Refuse to lead where the tables were when this process started, and aren't any more."""
        is_there = True
        with contextlib.suppress(RootUnusable):  # a store that is away says nothing
            is_there = is_marked(self._genesis)
        if self._was_marked and not is_there:
            raise RootMoved(
                f"the tables of log {self._genesis.log!r} were moved away from "
                f"{bound(self._genesis.tables_root)} while this committer was on standby: "
                "restart it with their new place"
            )

    def _lead(self, epoch: int, session: Session, stop: threading.Event, began: float) -> None:
        observer = StoreObserver(
            self._genesis.tables_root,
            write_version=lambda table, version: self._old_versions.materialize(
                session.mailbox.call(lambda: session.catalogue.head(table)).result(LOOK_SECONDS),
                version,
            ),
            places=self._allowed,
        )
        before_ms = session.follower.machine.time_ms
        leader = session.lead(epoch, self.node, observer, self._options.checkpoint_seconds)
        leader.appending.away = self._requests.rows.awaited
        # The newest record is the one that began this term, a moment ago.
        answered_ms, took = session.follower.replica.answered_ms, time.monotonic() - began
        leader.appending.brokers.acknowledged(answered_ms, took)
        session.on_committed, session.on_readable = self._committed, self._readable
        sequence = session.follower.replica.chain.sequence
        session.mailbox.wake = self._answers.wake
        version, appends = package_version("lance-commitlog"), leader.appending.is_open
        self._answers.begin_term(epoch, self.node, sequence, version, appends=appends)
        logger.info("leading partition %d in epoch %d", self._options.partition, epoch)
        self._doubt_clock(before_ms)
        self._is_ready_told = False
        loop = Loop(session.mailbox)
        try:
            with (
                staying(self._genesis),
                self._checks.during(session),
                Feeding(session, loop.begin) as feeding,
            ):
                loop.run(lambda: self._work(stop, session, leader, feeding))
            if leader.failure is not None and not isinstance(
                leader.failure, Fenced | Unavailable | TopicSettings
            ):
                raise leader.failure
        finally:
            leader.close()

    def _take(self, sent: RecordSent) -> None:
        session = self._session
        if session is None or session.leader is None:
            sent.refuse(Unavailable("this committer doesn't lead"), False)
        else:
            session.mailbox.post(sent)

    def _committed(self, events: list[Event]) -> None:
        self._answers.committed(events)
        self._requests.rows.heard(events, readable=False)

    def _readable(self, events: list[Event]) -> None:
        self._answers.readable(events)
        self._requests.rows.heard(events, readable=True)

    def _work(
        self, stop: threading.Event, session: Session, leader: Leader, feeding: Feeding
    ) -> None:
        """Be the loop of a term; another thread may continue with it from any step."""
        if not self._is_ready_told:
            self._step_until(
                lambda: stop.is_set() or self._checks.has_repaired, session, leader, feeding
            )
            self._is_ready_told = True
            if self._checks.has_repaired:
                self._on_ready(self.node)
        self._step_until(stop.is_set, session, leader, feeding)
        if leader.failure is None:
            leader.finish()
            self._checkpoint(session, leader, feeding)

    def _step_until(
        self, is_over: Callable[[], bool], session: Session, leader: Leader, feeding: Feeding
    ) -> None:
        """Step the session by what happens, until something is over or the term ends."""
        mailbox, replica = session.mailbox, session.follower.replica
        while leader.failure is None and not is_over():
            leader.poll()
            self._answers.poll(0)
            events = mailbox.take(0)
            if not events:
                if leader.awaits_kafka:
                    # What comes meanwhile could not be sent before the acknowledgement anyway.
                    leader.poll(ACKNOWLEDGE_SECONDS)
                else:
                    due_at = min(leader.due_at, self._checks.due_at, session.lanes.due_at)
                    due_at = min(due_at, self._requests.rows.due_at)
                    if not feeding.is_wanted:
                        due_at = min(due_at, leader.appending.due_at)
                    longest = IDLE_SECONDS if leader.wants_more else HELD_UP_SECONDS
                    patience = min(longest, due_at - time.monotonic())
                    mailbox.rest(self._answers.poll, max(0.0, patience))
                events = mailbox.take(0)
            # First: a step that is displaced doesn't come to what is behind it.
            feeding.received([type(event) for event in events].count(Read))
            session.step(events)
            self._checks.come_by(session)
            self._requests.rows.tick(session.now())
            feeding.want(leader.appending.wants_reading, replica.transactions_position)
            if leader.wants_more:
                feeding.resume()

    def _checkpoint(self, session: Session, leader: Leader, feeding: Feeding) -> None:
        """Save the state, as soon as everything decided is acknowledged and has its files."""
        deadline = time.monotonic() + LAST_CHECKPOINT_SECONDS
        has_begun = False

        def is_over() -> bool:
            nonlocal has_begun
            if time.monotonic() > deadline:
                return True
            if not leader.is_idle or session.saving.is_under_way:
                return False
            if has_begun:
                return True
            # Files that cannot be written now won't come in a few seconds.
            has_begun = session.checkpoint(is_last=True)
            return False

        self._step_until(is_over, session, leader, feeding)


class _Places:
    """Has the loop say where to begin to look back."""

    def __init__(self, session: Callable[[], Session | None]) -> None:
        self._session = session

    def before(self, sequence: int) -> ChainPlace:
        return self._ask(lambda session: session.offset_index.before(sequence))

    def before_version(self, head: Head, version: int) -> ChainPlace | None:
        return self._ask(lambda session: session.place_before_version(head, version))

    def indexed(self) -> list[ChainPlace]:
        return self._ask(lambda session: session.offset_index.places())

    def made_by(self, head: Head, version: int) -> str:
        return self._ask(lambda session: maker_of(session.follower.machine, head, version))

    def came_by(self, places: list[ChainPlace]) -> None:
        session = self._session()
        if session is not None:
            session.mailbox.call(lambda: session.offset_index.note_all(places))

    def _ask(self, work: Callable[[Session], T]) -> T:
        session = self._session()
        if session is None:
            raise Unavailable("this committer is starting; ask again")
        return session.mailbox.call(lambda: work(session)).result(LOOK_SECONDS)
