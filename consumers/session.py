"""One stay in a partition's log: recover, follow, stand for leader, lead, checkpoint.

A session owns the state that the records make. When a term ends, what was decided ahead of Kafka
is in that state, so the whole session is thrown away and the next one begins at the checkpoint.

No thread and no socket is started here: whoever owns the session drives it step by step, the
committer with threads, a simulation with a seed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from importlib.metadata import version as package_version

from commitlog.adapters.storage import ObjectStore, store_for
from commitlog.codecs.avro import encode_leader_started
from commitlog.core.machine import Machine
from commitlog.core.replica import Replica
from commitlog.errors import CommitLogError
from commitlog.model.records import Genesis, LeaderStarted
from commitlog.ports import Log
from consumers.catalogue import Catalogue
from consumers.checkpoint import Checkpoint, Checkpoints
from consumers.checkpoint_proof import check_log_holds
from consumers.events import Event
from consumers.follower import Follower
from consumers.iceberg.pruning import remove, superseded
from consumers.leader import Leader, Observer
from consumers.materializer import Materializer

CATCH_UP_SECONDS = 600.0
CAMPAIGN_SECONDS = 30.0
STANDBY_DELAY_SECONDS = 2.0

Listener = Callable[[list[Event]], None]

logger = logging.getLogger(__name__)


class Session:
    """From a checkpoint to the end of a term."""

    def __init__(
        self,
        log: Log,
        genesis: Genesis,
        checkpoints: Checkpoints,
        *,
        on_readable: Listener,
        open_store: Callable[[str], ObjectStore] = store_for,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Recover from the newest checkpoint; refuse if the log isn't the one it was made from."""
        self._log = log
        self._partition = genesis.partition
        self._tables_root = genesis.tables_root
        self._checkpoints = checkpoints
        self._clock = clock
        self.outcomes: Counter[str] = Counter()
        """How many acknowledged outcomes of each status were seen in this stay."""
        self.published: int
        """Up to this sequence, the catalogue has what was acknowledged."""
        self.on_committed: Listener = lambda events: None
        """Told of acknowledged outcomes, after heads and files."""
        checkpoint = checkpoints.load()
        if checkpoint is not None:
            check_log_holds(log, genesis.partition, checkpoint, clock=clock)
        machine = checkpoint.machine if checkpoint else Machine(genesis)
        replica = checkpoint.replica() if checkpoint else Replica()
        self.materializer = Materializer(
            on_readable, open_store=open_store, delay_seconds=STANDBY_DELAY_SECONDS, clock=clock
        )
        for table in machine.tables.values():
            if table.manifest is not None:
                self.materializer.adopt(
                    table.table_id,
                    table.incarnation,
                    table.location,
                    table.policy,
                    table.manifest.copy(),
                )
        self.materializer.written_sequence = self.published = replica.chain.sequence
        self.catalogue = Catalogue(
            machine.tables, machine.catalogue.namespaces, machine.iceberg.tables
        )
        self.follower = Follower(log, genesis, machine, replica, open_store=open_store, clock=clock)

    def follow(self, timeout_seconds: float) -> None:
        """Read what there is, waiting for something at most so long."""
        self.publish(self.follower.step(timeout_seconds))

    def catch_up(self) -> None:
        """Read the outcomes to their present end."""
        self.publish(self.follower.catch_up(CATCH_UP_SECONDS))

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
            version=package_version("lance-commitlog"),
            started_at_ms=started_at_ms,
        )
        if not self._append(started):
            return 0
        self.catch_up()
        leader = chain.leader
        if leader is None or leader.leader_id != started.leader_id:
            logger.info("epoch %d went to %s", started.epoch, leader.node if leader else "nobody")
            return 0
        return started.epoch

    def lead(self, epoch: int, node: str, observer: Observer) -> Leader:
        """Begin the term that `campaign` won."""
        self.materializer.hurry()
        return Leader(
            self.follower,
            self._log.outcomes_writer(self._partition),
            observer,
            epoch=epoch,
            node=node,
            on_acknowledged=self.publish,
            clock=self._clock,
        )

    def checkpoint(self) -> bool:
        """Save the state; return False if some of it has no files yet. Nothing may be in flight.

        A full disk is no reason to stop: the next start then reads more of the log.
        """
        if self.materializer.written_sequence < self.follower.replica.chain.sequence:
            return False
        try:
            self._checkpoints.save(Checkpoint.of(self.follower.machine, self.follower.replica))
        except OSError as error:
            logger.warning("no checkpoint was saved: %s", error)
        return True

    def publish(self, events: list[Event]) -> None:
        """Pass acknowledged events on: heads, files, writers."""
        if not events:
            return
        pruned: list[tuple[str, str]] = []
        for event in events:
            pruned += superseded(event.changes, self.catalogue.iceberg_table)
            self.outcomes[str(event.outcome.status)] += 1
            self.catalogue.apply(event.changes)
            self.catalogue.apply_namespaces(event.submitted, event.outcome)
        self.published = events[-1].outcome.sequence
        self.materializer.put(events)
        self.on_committed(events)
        if pruned:
            remove(pruned, self._tables_root)

    def close(self) -> None:
        """End the materializer with what it can still write, and the readers."""
        self.materializer.close()
        self.follower.close()

    def _append(self, started: LeaderStarted) -> bool:
        landed: Future[int] = Future()

        def delivered(offset: int, error: Exception | None) -> None:
            if landed.done():
                return
            if error is not None:
                landed.set_exception(error)
            else:
                landed.set_result(offset)

        writer = self._log.outcomes_writer(self._partition)
        deadline = self._clock() + CAMPAIGN_SECONDS
        try:
            key = f"leader/{started.epoch}/{started.leader_id}"
            writer.append(key, encode_leader_started(started), delivered)
            while not landed.done() and self._clock() < deadline:
                writer.poll(0.1)
            landed.result(0)
        except (CommitLogError, TimeoutError) as error:
            logger.warning("epoch %d was not started: %s", started.epoch, error)
            return False
        finally:
            writer.close()
        return True
