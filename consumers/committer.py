"""The committer: follows a partition, leads it when nobody else does, and answers its writers.

There is no consumer group and no lock service. A standby follows the log and keeps a connection to
the leader's socket; when that is silent, it waits a random while, appends LeaderStarted with the
next epoch, and decides only after reading it back as valid. When a term ends, everything that was
decided ahead of Kafka is thrown away with the state it was decided on: the committer starts again
from its checkpoint and the log.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from commitlog import wire
from commitlog.codecs.avro import (
    decode_log_record,
    encode_leader_started,
    encode_transaction,
    seal_outcome,
)
from commitlog.core.creation import empty_state, state_of
from commitlog.core.decisions import Need
from commitlog.core.machine import Machine
from commitlog.core.manifest import diff
from commitlog.core.replica import Replica
from commitlog.errors import CommitLogError, Fenced, InvalidTransaction, Unavailable
from commitlog.model.records import Genesis, LeaderStarted, Outcome, Submitted, Transaction
from commitlog.model.table import parse_table_id
from commitlog.ports import Log
from consumers.answers import Answers
from consumers.catalogue import Catalogue
from consumers.checkpoint import Checkpoint, Checkpoints
from consumers.events import Event
from consumers.follower import Follower, Recordings
from consumers.leader import Leader
from consumers.materializer import Materializer
from consumers.observer import StoreObserver
from consumers.old_versions import OldVersions

CATCH_UP_SECONDS = 600.0
CAMPAIGN_SECONDS = 30.0
REQUEST_SECONDS = 30.0
SILENCE_SECONDS = 1.0
STANDBY_DELAY_SECONDS = 2.0

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


class Committer:
    """One process's part in one partition, over any number of terms."""

    def __init__(
        self,
        log: Log,
        options: CommitterOptions,
        *,
        on_ready: Callable[[str], None] | None = None,
    ) -> None:
        """Check the log's identity and settings; `on_ready(node)` is called as a term begins."""
        log.check_settings()
        self._log = log
        self._options = options
        self._on_ready = on_ready or (lambda node: None)
        self._genesis: Genesis = log.genesis(options.partition)
        self._checkpoints = Checkpoints(options.root, log.identity(), self._genesis)
        self._random = random.Random()
        self._leader: Leader | None = None
        self._follower: Follower | None = None
        self._catalogue: Catalogue | None = None
        self._materializer: Materializer | None = None
        recordings = Recordings(self._genesis.tables_root)
        self._old_versions = OldVersions(log, options.partition, recordings)
        self._answers = Answers(
            identity={
                "log": self._genesis.log,
                "log_id": self._genesis.log_id,
                "partition": options.partition,
            },
            handler=self._handle,
            finder=self._find,
            host=options.host,
            port=options.port,
            token=options.token,
        )
        self.node = ""

    def run(self, stop: threading.Event) -> None:
        """Follow and lead until `stop`."""
        self.node = self._answers.start()
        try:
            while not stop.is_set():
                self._session(stop)
        finally:
            self._answers.close()

    def _session(self, stop: threading.Event) -> None:
        """Recover, stand by, lead one term."""
        checkpoint = self._checkpoints.load()
        machine = checkpoint.machine if checkpoint else Machine(self._genesis)
        replica = checkpoint.replica() if checkpoint else Replica()
        materializer = Materializer(self._readable, delay_seconds=STANDBY_DELAY_SECONDS)
        for table in machine.tables.values():
            if table.manifest is not None:
                materializer.adopt(
                    table.table_id,
                    table.incarnation,
                    table.location,
                    table.policy,
                    state_of(diff(empty_state(), table.manifest)),
                )
        materializer.written_sequence = replica.chain.sequence
        follower = Follower(self._log, self._genesis, machine, replica)
        self._follower, self._materializer = follower, materializer
        self._catalogue = Catalogue(machine.tables, machine.catalogue.namespaces)
        materializer.start()
        try:
            self._publish(follower.catch_up(CATCH_UP_SECONDS))
            self._stand_by(follower, stop)
            if not stop.is_set():
                epoch = self._campaign(follower)
                if epoch:
                    self._lead(epoch, follower, materializer, stop)
        finally:
            self._leader = None
            self._answers.end_term()
            materializer.close()
            follower.close()

    def _stand_by(self, follower: Follower, stop: threading.Event) -> None:
        """Follow until the leader's socket is silent, then a random while longer."""
        while not stop.is_set():
            started = follower.replica.chain.leader
            if started is None:
                return
            with _LeaderWatch(started.node, self._genesis.log_id) as watch:
                while watch.alive and not stop.is_set():
                    self._publish(follower.step(0.2))
                    if follower.replica.chain.leader is not started:
                        break
            if follower.replica.chain.leader is not started:
                continue
            stop.wait(self._random.uniform(0.0, 0.3))
            self._publish(follower.catch_up(CATCH_UP_SECONDS))
            if follower.replica.chain.leader is started:
                return

    def _campaign(self, follower: Follower) -> int:
        """Append LeaderStarted and read on; return the epoch if ours is the valid one, else 0."""
        chain = follower.replica.chain
        started = LeaderStarted(
            epoch=chain.epoch + 1,
            node=self.node,
            leader_id=str(uuid.uuid4()),
            sequence=chain.sequence,
            previous_hash=chain.hash,
            state_digest=follower.machine.digest(),
            version=package_version("lance-commitlog"),
            started_at_ms=time.time_ns() // 1_000_000,
        )
        landed: Future[int] = Future()

        def delivered(offset: int, error: Exception | None) -> None:
            if error is not None:
                landed.set_exception(error)
            else:
                landed.set_result(offset)

        writer = self._log.outcomes_writer(self._options.partition)
        deadline = time.monotonic() + CAMPAIGN_SECONDS
        try:
            key = f"leader/{started.epoch}/{started.leader_id}"
            writer.append(key, encode_leader_started(started), delivered)
            while not landed.done() and time.monotonic() < deadline:
                writer.poll(0.1)
            offset = landed.result(0)
        except (CommitLogError, TimeoutError) as error:
            logger.warning("epoch %d was not started: %s", started.epoch, error)
            return 0
        finally:
            writer.close()
        self._publish(follower.catch_up(CATCH_UP_SECONDS))
        leader = follower.replica.chain.leader
        if leader is None or leader.leader_id != started.leader_id:
            logger.info("epoch %d went to %s", started.epoch, leader.node if leader else "nobody")
            return 0
        if follower.replica.outcomes_position != offset + 1:
            raise Fenced(f"records follow our LeaderStarted at {offset} already")
        return started.epoch

    def _lead(
        self, epoch: int, follower: Follower, materializer: Materializer, stop: threading.Event
    ) -> None:
        observer = StoreObserver(self._genesis.tables_root, materializer.wait_for)
        materializer.hurry()
        leader = Leader(
            follower,
            self._log.outcomes_writer(self._options.partition),
            observer,
            epoch=epoch,
            node=self.node,
            on_acknowledged=self._publish,
        )
        self._leader = leader
        sequence = follower.replica.chain.sequence
        self._answers.begin_term(epoch, self.node, sequence, package_version("lance-commitlog"))
        logger.info("leading partition %d in epoch %d", self._options.partition, epoch)
        self._on_ready(self.node)
        try:
            failure = leader.run(stop, self._checkpoint, self._options.checkpoint_seconds)
            if failure is None:
                self._checkpoint(wait_seconds=5.0)
            elif not isinstance(failure, Fenced | Unavailable):
                raise failure
        finally:
            observer.close()

    def _checkpoint(self, wait_seconds: float = 1.0) -> bool:
        """Save the state, if everything acknowledged has its files; else leave it for later."""
        follower, materializer = self._follower, self._materializer
        assert follower is not None
        assert materializer is not None
        sequence = follower.replica.chain.sequence
        deadline = time.monotonic() + wait_seconds
        while materializer.written_sequence < sequence:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        self._checkpoints.save(Checkpoint.of(follower.machine, follower.replica))
        return True

    def _publish(self, events: list[Event]) -> None:
        """Pass acknowledged events on: heads, files, writers."""
        if not events:
            return
        assert self._catalogue is not None
        assert self._materializer is not None
        for event in events:
            self._catalogue.apply(event.changes)
            self._catalogue.apply_namespaces(event.submitted, event.outcome)
        self._materializer.put(events)
        if self._leader is not None:
            self._answers.committed(events)

    def _readable(self, events: list[Event]) -> None:
        if self._leader is not None:
            self._answers.readable(events)

    async def _find(self, transaction_id: str) -> tuple[Outcome, int, bytes] | None:
        """Look an outcome up that is no longer in memory."""
        follower = self._follower
        if follower is None:
            return None
        info = follower.machine.outcome_of(transaction_id)
        if info is None:
            return None
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            None, self._old_versions.outcome, info.sequence, transaction_id
        )

    async def _handle(self, method: str, params: Mapping[str, Any]) -> Any:
        """Answer a writer's request."""
        methods: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "ping": lambda params: {},
            "status": self._status,
            "table": self._table,
            "tables": self._tables,
            "namespaces": self._namespaces,
        }
        if method in methods:
            return methods[method](params)
        if method == "materialize":
            return await self._materialize(params)
        if method == "transaction":
            return await self._transaction(params)
        if method == "dry_run":
            return await self._dry_run(params)
        raise InvalidTransaction(
            f"there is no request {method!r}", field="method", value=method, advice="Upgrade"
        )

    def _status(self, params: Mapping[str, Any]) -> dict[str, Any]:
        follower, leader, materializer = self._follower, self._leader, self._materializer
        assert follower is not None
        assert materializer is not None
        chain = follower.replica.chain
        return {
            "node": self.node,
            "epoch": chain.epoch,
            "sequence": chain.sequence,
            "written_sequence": materializer.written_sequence,
            "undecided": leader.undecided_count if leader else len(follower.replica.undecided),
            "failing_tables": materializer.failing(),
            "voids": follower.replica.void_count,
            "ready": leader is not None,
        }

    def _table(self, params: Mapping[str, Any]) -> dict[str, Any]:
        assert self._catalogue is not None
        assert self._materializer is not None
        head = self._catalogue.head(parse_table_id(params.get("table", "")))
        readable = self._materializer.readable_version(head.incarnation)
        return {**head.to_json(readable), **head.schema_json()}

    def _tables(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        assert self._catalogue is not None
        materializer = self._materializer
        assert materializer is not None
        return [
            head.to_json(materializer.readable_version(head.incarnation))
            for head in self._catalogue.heads()
        ]

    def _namespaces(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        assert self._catalogue is not None
        return [
            {"namespace": list(namespace), "properties": dict(properties)}
            for namespace, properties in self._catalogue.namespaces()
        ]

    async def _transaction(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the outcome of an id with its record; None if the log knows none by now."""
        found = await self._find(str(params.get("transaction_id", "")))
        if found is None:
            return None
        outcome, _, record = found
        loop = asyncio.get_running_loop()
        submitted = await loop.run_in_executor(
            None, self._old_versions.transaction, outcome.transaction_offset
        )
        content = b""
        if isinstance(submitted.record, Transaction):
            content = encode_transaction(submitted.record)
        return {
            "outcome": base64.b64encode(record).decode(),
            "transaction": base64.b64encode(content).decode(),
        }

    async def _materialize(self, params: Mapping[str, Any]) -> dict[str, Any]:
        assert self._catalogue is not None
        assert self._materializer is not None
        head = self._catalogue.head(parse_table_id(params.get("table", "")))
        version = int(params.get("version") or head.version)
        if version >= head.version:
            waiting = self._materializer.wait_for(head.incarnation, version)
            await asyncio.wait_for(asyncio.wrap_future(waiting), REQUEST_SECONDS)
        loop = asyncio.get_running_loop()
        path = await loop.run_in_executor(None, self._old_versions.materialize, head, version)
        return {"version": version, "path": path}

    async def _dry_run(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Decide a transaction on the present head and tell, without appending anything."""
        leader, follower = self._leader, self._follower
        if leader is None or follower is None:
            raise Unavailable("this committer doesn't lead; ask again")
        record = decode_log_record(None, base64.b64decode(str(params.get("transaction", ""))))
        result: Future[Outcome] = Future()

        def work() -> None:
            try:
                result.set_result(self._decide_dry(follower, record))
            except Exception as error:
                result.set_exception(error)

        leader.call(work)
        outcome = await asyncio.wait_for(asyncio.wrap_future(result), REQUEST_SECONDS)
        _, encoded = seal_outcome(outcome, previous_hash=bytes(32), epoch=0, node=self.node)
        return {"outcome": base64.b64encode(encoded).decode()}

    def _decide_dry(self, follower: Follower, record: Any) -> Outcome:
        machine = follower.machine
        at = Submitted(
            self._options.partition,
            follower.replica.transactions_position,
            machine.time_ms,
            record,
        )
        observer = StoreObserver(self._genesis.tables_root, lambda *_: Future())
        observed = {wanted: observer.observe(wanted) for wanted in machine.prefetch(at)}
        decision = machine.decide(at, observed)
        if isinstance(decision, Need):
            raise Unavailable(
                "the transaction passes the conflict check; pylance would build its manifest, "
                "which a dry run doesn't do"
            )
        return decision.outcome


class _LeaderWatch:
    """A connection to the leader's socket: it is alive as long as that stands."""

    def __init__(self, node: str, log_id: str) -> None:
        self._node = node
        self._log_id = log_id
        self._socket: socket.socket | None = None
        self.alive = False
        self._ended = threading.Event()

    def __enter__(self) -> _LeaderWatch:
        host, _, port = self._node.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), SILENCE_SECONDS)
            hello = {"protocol": wire.WIRE_VERSION, "log_id": self._log_id, "token": ""}
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


def run_committer(
    log: Log,
    options: CommitterOptions,
    *,
    stop: threading.Event,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Run a committer until `stop` is set."""
    Committer(log, options, on_ready=on_ready).run(stop)
