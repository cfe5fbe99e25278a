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
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from commitlog.codecs.avro import decode_log_record, encode_transaction, seal_outcome
from commitlog.core.decisions import BuildWanted, Need
from commitlog.errors import Fenced, InvalidTransaction, TopicSettings, Unavailable
from commitlog.model.records import Genesis, Outcome, Submitted, Transaction
from commitlog.model.table import parse_table_id
from commitlog.ports import Log
from consumers.allowed_places import Places
from consumers.answers import Answers
from consumers.catalogue import Head
from consumers.checkpoint import Checkpoints
from consumers.events import Event
from consumers.follower import Follower, Recordings
from consumers.guards import Guards
from consumers.leader import Leader
from consumers.leader_watch import stand_by
from consumers.observer import StoreObserver, unbuilt
from consumers.old_versions import OldVersions
from consumers.positions import until_newest_rules, version_at
from consumers.quotas import Quotas
from consumers.session import Session
from consumers.unusable import why_unreachable

REQUEST_SECONDS = 30.0
REACH_SECONDS = 10.0

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
    ) -> None:
        """Check the log's identity and settings; `on_ready(node)` is called as a term begins."""
        log.check_settings()
        self._log = log
        self._options = options
        self._on_ready = on_ready or (lambda node: None)
        self._genesis: Genesis = log.genesis(options.partition)
        self._checkpoints = Checkpoints(options.root, log.identity(), self._genesis)
        self._leader: Leader | None = None
        self._session: Session | None = None
        root, allowed = self._genesis.tables_root, options.allowed_locations
        self._places = Places(root, allowed) if allowed else None
        self._old_versions = OldVersions(log, options.partition, Recordings(root))
        self._answers = Answers(
            identity={
                "log": self._genesis.log,
                "log_id": self._genesis.log_id,
                "partition": options.partition,
            },
            handler=self._handle,
            finder=self._find_decided,
            host=options.host,
            port=options.port,
            token=options.token,
        )
        old, quotas = self._old_versions, options.quotas
        self._guards = Guards(log, options.partition, old, pace=self._answers, quotas=quotas)
        self.node = ""

    def run(self, stop: threading.Event) -> None:
        """Follow and lead until `stop`."""
        self.node = self._answers.start()
        try:
            while not stop.is_set():
                self._run_session(stop)
        finally:
            self._answers.close()

    def _run_session(self, stop: threading.Event) -> None:
        """Recover, stand by, lead one term."""
        self._guards.await_settings(stop)
        session = Session(self._log, self._genesis, self._checkpoints, on_readable=self._readable)
        self._session = session
        session.materializer.start()
        try:
            session.catch_up()
            log_id, token = self._genesis.log_id, self._options.token
            stand_by(session, stop, node=self.node, log_id=log_id, token=token)
            if not stop.is_set():
                epoch = session.campaign(self.node, time.time_ns() // 1_000_000)
                if epoch:
                    self._lead(epoch, session, stop)
        finally:
            self._leader = None
            self._answers.end_term()
            session.close()

    def _lead(self, epoch: int, session: Session, stop: threading.Event) -> None:
        observer = StoreObserver(
            self._genesis.tables_root,
            session.materializer.wait_for,
            write_version=lambda table, version: self._old_versions.materialize(
                session.catalogue.head(table), version
            ),
            places=self._places,
        )
        leader = session.lead(epoch, self.node, observer)
        self._leader = leader
        session.on_committed = self._answers.committed
        sequence = session.follower.replica.chain.sequence
        self._answers.begin_term(epoch, self.node, sequence, package_version("lance-commitlog"))
        logger.info("leading partition %d in epoch %d", self._options.partition, epoch)
        self._on_ready(self.node)
        try:
            with self._guards.during(leader, session):
                failure = leader.run(stop, self._checkpoint, self._options.checkpoint_seconds)
            if failure is None:
                self._checkpoint(wait_seconds=5.0)
            elif not isinstance(failure, Fenced | Unavailable | TopicSettings):
                raise failure
        finally:
            observer.close()

    def _checkpoint(self, wait_seconds: float = 1.0) -> bool:
        """Save the state, if everything acknowledged has its files; else leave it for later."""
        session = self._session
        assert session is not None
        deadline = time.monotonic() + wait_seconds
        while not session.checkpoint():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True

    @property
    def _follower(self) -> Follower | None:
        return self._session.follower if self._session is not None else None

    @property
    def _open_session(self) -> Session:
        if self._session is None:
            raise Unavailable("this committer is starting; ask again")
        return self._session

    def _readable(self, events: list[Event]) -> None:
        if self._leader is not None:
            self._answers.readable(events)

    def _find_decided(
        self, transaction_id: str, through: int
    ) -> Awaitable[tuple[Outcome, int, bytes] | None] | None:
        """Look an outcome up that was decided at or before sequence `through`."""
        follower = self._follower
        info = follower.machine.outcome_of(transaction_id) if follower is not None else None
        if info is None or info.sequence > through:
            return None
        return self._find(transaction_id)

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
            "iceberg_table": self._iceberg_table,
            "iceberg_tables": self._iceberg_tables,
            "said": self._said,
        }
        if method == "table" and params.get("readable"):
            await self._until_readable(params)
        if method == "status" and params.get("newest_rules"):
            await until_newest_rules(self._open_session, self._leader)
        if method in methods:
            return methods[method](params)
        if method == "materialize":
            return await self._materialize(params)
        if method == "transaction":
            return await self._transaction(params)
        slow = {"version_at": self._version_at, "quarantine": self._quarantine}
        slow |= {"dry_run": self._dry_run, "reach": self._reach}
        if method in slow:
            return await slow[method](params)
        raise InvalidTransaction(
            f"there is no request {method!r}", field="method", value=method, advice="Upgrade"
        )

    def _status(self, params: Mapping[str, Any]) -> dict[str, Any]:
        session, leader = self._open_session, self._leader
        follower, materializer = session.follower, session.materializer
        chain = follower.replica.chain
        return {
            "node": self.node,
            "epoch": chain.epoch,
            "sequence": chain.sequence,
            "written_sequence": materializer.written_sequence,
            "undecided": leader.undecided_count if leader else len(follower.replica.undecided),
            "failing_tables": materializer.failing(),
            "voids": follower.replica.void_count,
            "outcomes": dict(session.outcomes),
            "rules": asdict(follower.machine.rules),
            "ready": leader is not None,
            **self._guards.status(),
        }

    def _table(self, params: Mapping[str, Any]) -> dict[str, Any]:
        session = self._open_session
        head = session.catalogue.head(parse_table_id(params.get("table", "")))
        readable = session.materializer.readable_version(head.incarnation)
        return {**head.to_json(readable), **head.schema_json()}

    def _tables(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        session = self._open_session
        return [
            head.to_json(session.materializer.readable_version(head.incarnation))
            for head in session.catalogue.heads()
        ]

    def _namespaces(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        session = self._open_session
        return [
            {"namespace": list(namespace), "properties": dict(properties)}
            for namespace, properties in session.catalogue.namespaces()
        ]

    def _iceberg_table(self, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return where an Iceberg table's metadata is; itself too, if it is asked for."""
        name = parse_table_id(params.get("table", ""))
        table = self._open_session.catalogue.iceberg_table(name)
        if table is None:
            return None
        found = {"uuid": table.uuid, "metadata_location": table.metadata_location}
        if params.get("metadata"):
            found["metadata"] = table.to_json()
        return found

    def _iceberg_tables(self, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {"table": list(name), "uuid": table.uuid, "metadata_location": table.metadata_location}
            for name, table in self._open_session.catalogue.iceberg_tables()
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

    async def _version_at(self, params: Mapping[str, Any]) -> int:
        """Return a table's newest version at a position of the log."""
        table, sequence = parse_table_id(params.get("table", "")), int(params.get("sequence", 0))
        return await version_at(self._open_session, self._leader, table, sequence)

    async def _quarantine(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Move versions that were written around the log, ahead of a table's head, away."""
        session, table = self._open_session, parse_table_id(params.get("table", ""))
        loop = asyncio.get_running_loop()
        moved = loop.run_in_executor(None, self._guards.quarantine, session, table)
        return {"quarantined": await moved}

    async def _until_readable(self, params: Mapping[str, Any]) -> Head:
        """Wait until a version, or else the present head, or a later one opens by path."""
        session = self._open_session
        head = session.catalogue.head(parse_table_id(params.get("table", "")))
        version = int(params.get("version") or head.version)
        if version >= head.version > 0:
            waiting = session.materializer.wait_for(head.incarnation, version)
            await asyncio.wait_for(asyncio.wrap_future(waiting), REQUEST_SECONDS)
        return head

    async def _materialize(self, params: Mapping[str, Any]) -> dict[str, Any]:
        head = await self._until_readable(params)
        version = int(params.get("version") or head.version)
        loop = asyncio.get_running_loop()
        path = await loop.run_in_executor(None, self._old_versions.materialize, head, version)
        return {"version": version, "path": path}

    async def _reach(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Say why a location can't be reached from here; an empty problem if it can."""
        location = str(params.get("location", ""))
        looking = asyncio.get_running_loop().run_in_executor(None, why_unreachable, location)
        try:
            return {"problem": await asyncio.wait_for(looking, REACH_SECONDS)}
        except TimeoutError:
            return {"problem": f"it doesn't answer within {REACH_SECONDS:g} s."}

    def _said(self, params: Mapping[str, Any]) -> list[Any]:
        """Return what clients said of versions, in their order."""
        head = self._open_session.catalogue.head(parse_table_id(params.get("table", "")))
        return [head.said(int(version)) for version in params.get("versions", ())]

    async def _dry_run(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Decide a transaction on the present head and tell, without appending anything."""
        leader, follower = self._leader, self._follower
        if leader is None or follower is None:
            raise Unavailable("this committer doesn't lead; ask again")
        key = f"{params.get('transaction_id', '')}/dry-run".encode()
        record = decode_log_record(key, base64.b64decode(str(params.get("transaction", ""))))
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
        root = self._genesis.tables_root
        observer = StoreObserver(root, lambda *_: Future(), places=self._places)
        observed = {wanted: observer.observe(wanted) for wanted in machine.prefetch(at)}
        decision = machine.decide(at, observed)
        while isinstance(decision, Need):
            for wanted in decision.wanted:
                if isinstance(wanted, BuildWanted):
                    observed[wanted] = unbuilt(machine, wanted)
                else:
                    observed[wanted] = observer.observe(wanted)
            decision = machine.decide(at, observed)
        return decision.outcome
