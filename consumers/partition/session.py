"""One stay in a partition's log: recover, follow, campaign, lead, checkpoint.

A session owns the state that the records make. When a term ends, that state has decisions
that Kafka may not have. So the whole session is discarded, and the next one begins at the
checkpoint.

Events (`consumers.partition.files.events`) come one after the other, on one thread: the loop's.
Only the loop touches what it owns; other threads post to its mailbox and get replies.
No thread and no socket is started here. The session's owner drives it step by step: the committer
with threads, a simulation with a seed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf
from typing import Any

from commitlog.adapters.storage import ObjectStore, store_for
from commitlog.core.log.chain import ChainPlace
from commitlog.core.log.replica import Replica
from commitlog.core.partition.machine import Machine
from commitlog.model.records import Genesis, LeaderStarted, Outcome
from commitlog.model.table import format_table_id, parse_table_id
from commitlog.ports import Log
from commitlog.wire import program
from consumers.partition.adopting import adopt_tables
from consumers.partition.campaigning import append_started
from consumers.partition.checkpoints.checkpoint import Checkpoint, Checkpoints
from consumers.partition.checkpoints.checkpoint_proof import check_log_holds
from consumers.partition.checkpoints.prepared_checkpoint import PreparedCheckpoint
from consumers.partition.files.catalogue import Head, PartitionHeads
from consumers.partition.files.events import Ended, Event, Filed, versions_of
from consumers.partition.files.folders import Folder
from consumers.partition.files.offset_index import EVERY, OffsetIndex
from consumers.partition.files.owed import Owed
from consumers.partition.files.owed_writer import OwedWriter
from consumers.partition.files.past_outcomes import maker_of
from consumers.partition.files.unwritten import USUAL, Unwritten, UnwrittenMax
from consumers.partition.follower import Follower
from consumers.partition.lanes import Job, Lanes
from consumers.partition.leader import Leader
from consumers.partition.mailbox import LoopRequest, Mailbox, Reply
from consumers.partition.materializer import Materializer
from consumers.partition.meters import Meters
from consumers.partition.observer import StoreObserver
from consumers.partition.others import newest_in_log, only_retained
from consumers.partition.readable import Readable
from consumers.partition.saving import Saving

CATCH_UP_SECONDS = 600.0
STANDBY_DELAY_SECONDS = 2.0
SLOW_SECONDS = 5.0
"""Tables whose files are this late are reported, even if no call has failed."""
BEHIND_MAX = 1_000
"""With more outcomes than this that lack files, the leader doesn't wait for a checkpoint."""
AHEAD_SECONDS = 0.02
"""The interval between parts that are written ahead of a checkpoint; each takes milliseconds."""
OVERDUE = 2
"""A checkpoint that comes after so many times its interval waits for no files."""
STILL_SECONDS = 0.25
"""If files make no progress for this long, no checkpoint waits for them either: writing hangs."""
REPEAT_SECONDS = 600.0
"""How long a duplicate's answer waits for the first commit's files; then the client asks again."""

Listener = Callable[[list[Event]], None]
_Ending = tuple[Outcome, Callable[[], None], float]
"""What waits, until when, for the files of a table that has left the log."""

logger = logging.getLogger(__name__)


class Session:
    """From a checkpoint to the end of a term."""

    def __init__(
        self,
        log: Log,
        genesis: Genesis,
        checkpoints: Checkpoints,
        *,
        offset_folder: Folder | None = None,
        lanes: Lanes | None = None,
        open_store: Callable[[str], ObjectStore] = store_for,
        unwritten_max: UnwrittenMax = USUAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Recover from the newest checkpoint; refuse if the log isn't the one it was made from.

        The index of outcome offsets is kept in `offset_folder`, or in memory if it is None.
        """
        self.mailbox = Mailbox()
        self.readable = Readable()
        self.lanes = lanes or Lanes("worker", self.mailbox.post, clock=clock)
        self.leader: Leader | None = None
        """While this process leads."""
        self._log, self._partition, self._clock = log, genesis.partition, clock
        self.outcomes: Counter[str] = Counter()
        """Acknowledged outcomes of this stay by their status."""
        self.meters = Meters()
        self.published: int
        """Up to this sequence, the catalogue has what was acknowledged."""
        # Told of acknowledged outcomes after heads, and of events whose files are all there.
        self.on_committed: Listener = lambda events: None
        self.on_readable: Listener = lambda events: None
        self.on_stranger: Callable[[str, int, str], None] = lambda table, version, target: None
        """Called with a version written around the log, and where it was moved."""
        self.on_saved: Callable[[PreparedCheckpoint], None] = lambda prepared: None
        """Called with each saved checkpoint; by now the state may be further."""
        checkpoint = checkpoints.load()
        if checkpoint is not None:
            check_log_holds(log, genesis.partition, checkpoint)
        machine = checkpoint.machine if checkpoint else Machine(genesis)
        replica = checkpoint.replica() if checkpoint else Replica()
        self.materializer = Materializer(
            self.mailbox.post,
            open_store=open_store,
            delay_seconds=STANDBY_DELAY_SECONDS,
            clock=clock,
            on_end=lambda error: self.mailbox.post(Ended(error)),
            newest_in_log=partial(newest_in_log, log, genesis.partition),
            heard_offset=replica.outcomes_position,
        )
        self.unwritten = Unwritten(machine.tables, unwritten_max)
        self.published = replica.chain.sequence
        self._ahead_at, self._saved_at, self._checkpoint_seconds = 0.0, clock(), inf
        self.saving = Saving(checkpoints, self.lanes, lambda prepared: self.on_saved(prepared))
        self.offset_index = OffsetIndex(offset_folder, genesis.log_id, replica.chain.sequence)
        owed = checkpoint.owed if checkpoint else ()
        if owed:
            pays = OwedWriter(log, genesis, owed, machine, self.offset_index, open_store, clock)
            self.materializer.writer.pays_owed = pays
        adopt_tables(machine, owed, self.materializer, self.readable, self.unwritten)
        self.written_sequence = self.materializer.written_sequence
        """Up to this outcome, everything has its files, as the materializer said."""
        self.failing_tables: tuple[str, ...] = ()
        self._ending: list[_Ending] = []
        self._followed_at = clock()
        """When files were last complete, or made progress."""
        self.catalogue = PartitionHeads(
            machine.tables, machine.catalogue.namespaces, machine.iceberg.tables
        )
        self.follower = Follower(log, genesis, machine, replica, open_store=open_store, clock=clock)

    def now(self) -> float:
        """Return the time on which deadlines are based."""
        return self._clock()

    def status(self) -> dict[str, Any]:
        """Return how far files and acknowledgements are."""
        lag = self._clock() - self._followed_at if self._behind() > 0 else 0.0
        late = self.unwritten.tables() if lag > SLOW_SECONDS else []
        return {
            **self.unwritten.status(),
            "written_sequence": self.written_sequence,
            "failing_tables": list(self.failing_tables) or late,
            "files_lag_seconds": round(lag, 3),
            "acknowledge_lag_seconds": round(self.leader.silence_seconds if self.leader else 0, 3),
        }

    def measures(self) -> dict[str, Any]:
        """Return the counters, and the sizes of the tables that are counted separately."""
        sizes: dict[str, dict[str, int]] = {}
        tables = self.follower.machine.tables
        for name in self.meters.tables:
            table = tables.get(parse_table_id(name))
            if table is not None:
                manifest = table.manifest
                fragments = 0 if manifest is None else len(manifest.fragments)
                deleted = sum(last - first + 1 for first, last in table.deleted)
                sizes[name] = {"version": table.version, "fragments": fragments}
                sizes[name]["versions"] = table.version - deleted
                readable = self.readable.newest(table.incarnation)
                sizes[name]["unwritten"] = max(0, table.version - readable)
                if (looked := self.meters.looked_at.get(name)) is not None:
                    sizes[name]["unmaintained"] = max(0, table.version - looked[0])
                    sizes[name]["bytes"] = looked[1]
        found = {**self.meters.to_json(), "sizes": sizes}
        self.meters.make_room(tables, self.follower.machine.iceberg.tables)
        if self.meters.looked_on:
            found["maintained_seconds"] = round(self._clock() - self.meters.looked_on, 3)
        return found

    def maintained(self, tables: Mapping[str, tuple[int, int]]) -> None:
        """Take from maintenance which versions it has looked at, and their bytes."""
        known = self.meters.tables
        self.meters.looked_at = {name: tables[name] for name in known if name in tables}
        self.meters.looked_on = self._clock()

    def step(self, events: Iterable[object]) -> None:
        """Handle events and everything that follows from them."""
        assert self.mailbox.is_loop(), "only the loop touches what it owns"
        for event in events:
            if isinstance(event, Filed):
                self._filed(event)
            elif isinstance(event, LoopRequest):
                event.run()
            elif isinstance(event, Job):
                self.lanes.done(event)
            elif self.leader is not None:
                self.leader.hear(event)
            elif isinstance(event, Ended):
                raise event.error
        if self.written_sequence >= self.published:
            self._followed_at = self._clock()
        self.readable.tick(self._clock())
        self.lanes.tick()
        if self.leader is not None:
            self.leader.step()
            if self._clock() >= self._ahead_at:
                self._ahead_at = self._clock() + AHEAD_SECONDS
                self.saving.go_ahead(self.follower.machine)

    def follow(self, timeout_seconds: float) -> None:
        """Read new records; wait at most this long for some."""
        self._follow(self.follower.step(timeout_seconds))

    def catch_up(self) -> None:
        """Read the outcomes to their present end."""
        self.follower.catch_up(CATCH_UP_SECONDS, self._follow)

    def _follow(self, events: list[Event]) -> None:
        """Pass on what was read, and hear what came meanwhile: it would gather in memory."""
        self.publish(events)
        self.step(self.mailbox.take(0))

    def campaign(self, node: str, started_at_ms: int) -> int:
        """Append LeaderStarted and read on; return the epoch if ours is the valid one, else 0."""
        chain = self.follower.replica.chain
        started = LeaderStarted(
            epoch=chain.epoch + 1,
            node=node,
            leader_id=str(uuid.uuid4()),
            sequence=chain.sequence,
            previous_hash=chain.hash,
            state_digest=self.follower.machine.digest(),
            version=program()["version"],
            started_at_ms=started_at_ms,
        )
        if not append_started(self._log, self._partition, started, self._clock):
            return 0
        self.catch_up()
        leader = chain.leader
        if leader is None or leader.leader_id != started.leader_id:
            logger.info("epoch %d went to %s", started.epoch, leader.node if leader else "no node")
            return 0
        return started.epoch

    def lead(
        self, epoch: int, node: str, observer: StoreObserver, checkpoint_seconds: float = 30.0
    ) -> Leader:
        """Begin the term that `campaign` won; every while, with nothing in flight, save."""
        self.materializer.hurry()
        self._checkpoint_seconds, self._saved_at = checkpoint_seconds, self._clock()
        self.leader = Leader(
            self.follower,
            self._log.outcomes_writer(self._partition),
            self._log.records_writer(self._partition),
            observer,
            epoch=epoch,
            node=node,
            mailbox=self.mailbox,
            lanes=self.lanes,
            readable=self.readable,
            on_acknowledged=self.publish,
            on_pause=self.checkpoint,
            may_pause=self._may_pause,
            pause_seconds=checkpoint_seconds,
            only_retained=partial(only_retained, self._log, self._partition),
            meters=self.meters,
            clock=self._clock,
        )
        self.leader.appending.why_not = self.unwritten.why_not
        return self.leader

    def checkpoint(self, *, is_last: bool = False) -> bool:
        """Begin to save the state; return False to wait for files that will exist soon.

        Nothing may be in flight. If files don't follow for long, or this is the term's last
        chance, the checkpoint says which versions lack theirs.
        """
        owed: tuple[Owed, ...] = ()
        if self.written_sequence < self.follower.replica.chain.sequence:
            if not (self._is_overdue() or (is_last and self._is_stuck())):
                return False
            owed = self.unwritten.owed(self.offset_index.before, self.readable.newest)
        self._saved_at = self._clock()
        checkpoint = Checkpoint.of(self.follower.machine, self.follower.replica, owed)
        self.saving.begin(checkpoint, self.offset_index)
        return True

    def publish(self, events: list[Event]) -> None:
        """Pass acknowledged events on: heads, files, writers."""
        if not events:
            return
        for event in events:
            outcome = event.outcome
            self.outcomes[str(outcome.status)] += 1
            self.meters.count(event)
            if outcome.sequence % EVERY == 0:
                self.offset_index.note(
                    ChainPlace(outcome.sequence, event.offset + 1, outcome.epoch, outcome.hash)
                )
            self.catalogue.apply(event.changes)
            self.catalogue.apply_namespaces(event.submitted, event.outcome)
            # Who waited for a table that was dropped looks for it at once.
            self.readable.begin(event.changes)
        if not self._behind():
            self._followed_at = self._clock()
        self.published = events[-1].outcome.sequence
        self.unwritten.committed(events)
        self.materializer.put(events)
        self.on_committed(events)

    def close(self) -> None:
        """End the materializer with what it can still write, and the readers."""
        self.leader = None
        self.materializer.close()
        self.lanes.close()
        self.mailbox.close()
        self.readable.close()
        self.follower.close()

    def _behind(self) -> int:
        return self.published - self.written_sequence

    def _may_pause(self) -> bool:
        """Return True if files that are missing will exist soon, or have been waited for."""
        return self._is_overdue() or not (self._behind() > BEHIND_MAX or self._is_stuck())

    def _is_stuck(self) -> bool:
        """Return True if files are missing that won't exist soon."""
        if self.failing_tables:
            return True
        return self._behind() > 0 and self._clock() >= self._followed_at + STILL_SECONDS

    def _is_overdue(self) -> bool:
        return self._clock() >= self._saved_at + OVERDUE * self._checkpoint_seconds

    def _filed(self, filed: Filed) -> None:
        """Handle a report of the materializer."""
        if filed.written_sequence > self.written_sequence:
            self.written_sequence, self._followed_at = filed.written_sequence, self._clock()
        self.failing_tables = filed.failing
        for table, version, target in filed.strangers:
            self.on_stranger(format_table_id(table), version, target)
        for incarnation, version in filed.versions:
            self.readable.written(incarnation, version)
        self.unwritten.filed(filed.filings)
        self.meters.filed(filed.events, self._clock())
        done = []
        for event in filed.events:
            # A duplicate's record made no file; those that it names belong to the first commit.
            if event.outcome.answers is None or self._is_readable(event.outcome):
                done.append(event)
            else:
                self._await(event.outcome, partial(self.on_readable, [event]))
        if done:
            self.on_readable(done)
        ending, self._ending = self._ending, []
        for outcome, work, until in (one for one in ending if self._clock() < one[2]):
            self._await(outcome, work, until)

    def place_before_version(self, head: Head, version: int) -> ChainPlace | None:
        """Return a place of the outcomes topic before a table's version; None: it was forgotten."""
        machine = self.follower.machine
        transaction_id = maker_of(machine, head, version)
        known = machine.deduplication.get(transaction_id) if transaction_id else None
        return None if known is None else self.offset_index.before(known.sequence)

    def tell_readable(self, outcome: Outcome, tell: Callable[..., None]) -> None:
        """Call `tell(readable=…)` now, and again once its files are there if they aren't."""
        is_readable = self._is_readable(outcome)
        tell(readable=is_readable)
        if not is_readable:
            self._await(outcome, lambda: tell(readable=True))

    def _is_readable(self, outcome: Outcome) -> bool:
        return self.readable.has(versions_of(outcome)) and not self.unwritten.ends(outcome)

    def _await(self, outcome: Outcome, work: Callable[[], None], until: float = 0.0) -> None:
        """Do it once an outcome's files are there; nothing after some time."""
        until = until or self._clock() + REPEAT_SECONDS

        def heard(_: None, error: BaseException | None) -> None:
            if error is None and self.unwritten.ends(outcome):
                self._ending.append((outcome, work, until))
            elif error is None:
                work()

        self.readable.when(versions_of(outcome), Reply(heard), until)
