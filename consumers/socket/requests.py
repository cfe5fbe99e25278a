"""Requests to a leader's socket: descriptions, positions, versions, dry runs.

A request runs on the socket's thread and owns nothing. The loop looks up the partition's state,
and a worker does anything slow. If the client has left by then, the answer is dropped.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from importlib.metadata import version as package_version
from typing import Any, TypeVar

from commitlog.adapters.disk import with_advice
from commitlog.codecs.avro import decode_log_record, encode_transaction, seal_outcome
from commitlog.core.decisions import BuildWanted, Decision, Found, Need, Wanted
from commitlog.core.iceberg.views import IcebergView
from commitlog.core.log.known_ids import KnownId
from commitlog.core.partition.driving import next_step
from commitlog.errors import InvalidRequest, Unavailable
from commitlog.messages import NO_SUCH_REQUEST, DecidedRecords, IcebergDescription
from commitlog.model.records import LogRecord, Outcome, Submitted, Transaction
from commitlog.model.table import format_table_id, parse_table_id
from commitlog.wire import program
from consumers.partition.files.catalogue import Head
from consumers.partition.files.failing_store import why_unreachable
from consumers.partition.files.old_versions import OldVersions
from consumers.partition.leader_checks import LeaderChecks
from consumers.partition.mailbox import PendingReply, Reply
from consumers.partition.observer import StoreObserver, unbuilt
from consumers.partition.session import Session
from consumers.runtime.steady_clock import SteadyClock
from consumers.socket.http_servers import HttpServers
from consumers.socket.lookups import LOOKUPS, Listings, awaited_by, head_of
from consumers.socket.row_answers import RowAnswers
from consumers.socket.row_states import Params

REQUEST_SECONDS = 30.0
FILES_SECONDS = 25.0
"""Less than a client waits for an answer: so it hears that files are missing."""
REACH_SECONDS = 10.0
RULES_SECONDS = 25.0
STATUS_SECONDS = 1.0
"""The loop answers at least this often; if it hangs, its last status is repeated."""
WORKER_SECONDS = 60.0
FINDERS = 4
"""How many old outcomes are looked up in parallel."""
PAUSE_SECONDS = 0.01
PYLANCE = package_version("pylance")

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Requests:
    """Answers the requests of one partition's writers and readers."""

    def __init__(
        self,
        partition: int,
        observer: Callable[[], StoreObserver],
        old_versions: OldVersions,
        checks: LeaderChecks,
        session: Callable[[], Session | None],
        tell: Callable[..., None],
        programs: Callable[[], Mapping[tuple[str, int], int]] = dict,
        clock: SteadyClock | None = None,
    ) -> None:
        """Ask the session that leads now, if any does; tell the time by `clock`.

        A dry run reads through its own `observer`; `tell(outcome, offset, record, readable=…)`
        gets the results of `find`.
        """
        self._tell, self._programs = tell, programs
        self._workers = ThreadPoolExecutor(FINDERS, "finding")
        self._partition, self._observer = partition, observer
        self._old_versions, self._checks = old_versions, checks
        self._session_now = session
        listings = Listings(self._ask)
        self.rows = RowAnswers(self._ask, old_versions.transaction_at)
        self._last_status: tuple[float, dict[str, Any]] | None = None
        self._servers = HttpServers()
        self._clock = clock or SteadyClock()
        self.node = ""
        self._methods: dict[str, Callable[[Params], Any]] = {
            "status": self._status,
            "tables": listings.tables,
            "namespaces": listings.namespaces,
            "iceberg_table": self._iceberg_table,
            "iceberg_tables": listings.iceberg_tables,
            "materialize": self._materialize,
            "transaction": self._transaction,
            "http_servers": self._servers.counted,
            "quarantine": self._quarantine,
            "maintained": self._maintained,
            "dry_run": self._dry_run,
            "reach": self._reach,
            "rows_pending": self.rows.pending,
            "rows_applied": self.rows.applied,
        }

    def find(self, transaction_id: str, through: int) -> None:
        """Look up an outcome that was decided at or before sequence `through`.

        `tell` gets it, and again once its files exist if they don't yet.
        """
        session = self._session_now()
        if session is None:
            return

        def look() -> None:
            known = session.follower.machine.outcome_of(transaction_id)
            if known is not None and known.sequence <= through:
                self._workers.submit(self._find, session, known, transaction_id)

        session.mailbox.call(look)

    def close(self) -> None:
        """End the workers."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _find(self, session: Session, known: KnownId, transaction_id: str) -> None:
        try:
            found = self._old_versions.outcome(known, transaction_id)
        except Exception as error:
            # The client asks again.
            logger.warning("outcome %d could not be looked up: %s", known.sequence, error)
            return
        if found is not None:
            tell = partial(self._tell, *found)
            session.mailbox.call(lambda: session.tell_readable(found[0], tell))

    def lookup(self, method: str, params: Params, answer: Callable[..., None]) -> bool:
        """Let the loop answer a request, now or later; False if that isn't possible.

        The loop reads requests from the sockets itself, so answers that it knows wake no thread.
        """
        session = self._session_now()
        if session is None or not session.mailbox.runs_here():
            return False
        if method in LOOKUPS:
            head = head_of(session, params) if params.get("readable") else None
            awaited = awaited_by(head, params) if head is not None else ()

            def look(_: None, error: BaseException | None) -> None:
                try:
                    if head is not None and isinstance(error, TimeoutError):
                        raise _unwritten(head, params)
                    if error is not None:
                        raise error
                    found = LOOKUPS[method](session, params)
                except Exception as failure:
                    answer(error=failure)
                else:
                    answer(found)

            session.readable.when(awaited, Reply(look), session.now() + FILES_SECONDS)
            return True
        return method == "rows_applied" and self.rows.take(session, params, answer)

    async def handle(self, method: str, params: Params) -> Any:
        """Answer a request."""
        if method not in self._methods and method not in LOOKUPS:
            raise InvalidRequest(
                f"{NO_SUCH_REQUEST} {method!r}", field="method", value=method, advice="Upgrade"
            )
        try:
            if method not in LOOKUPS:
                return await self._methods[method](params)
            if params.get("readable"):
                await self._until_readable(params)
            return await self._ask(partial(LOOKUPS[method], params=params))
        except TimeoutError:
            raise Unavailable(
                f"the leader had no time for `{method}`; make the same call again"
            ) from None

    def _session(self) -> Session:
        session = self._session_now()
        if session is None:
            raise Unavailable("this committer is not the leader; ask again")
        return session

    async def _ask(self, work: Callable[[Session], T], seconds: float | None = None) -> T:
        """Let the loop look something up."""
        session = self._session()
        limit = REQUEST_SECONDS if seconds is None else seconds
        return await session.mailbox.ask(partial(work, session), limit)

    async def _until_newest_rules(self) -> None:
        """Wait until the rules in force are those of the log up to its current end.

        A leader that has just begun its term may still have to decide a record that changes them.
        """
        end = await _worker(self._session().follower.transactions.end_offset)
        deadline = time.monotonic() + RULES_SECONDS

        def has_them(session: Session) -> bool:
            if session.leader is None or session.leader.failure is not None:
                raise Unavailable("this committer is not the leader; ask again")
            return session.leader.has_newest_rules(end)

        while not await self._ask(has_them):
            if time.monotonic() > deadline:
                raise Unavailable(
                    "the leader has not yet decided which rules are in force; ask again"
                )
            await asyncio.sleep(PAUSE_SECONDS)

    async def _status(self, params: Params) -> dict[str, Any]:
        if params.get("newest_rules"):
            await self._until_newest_rules()
        try:
            found = await self._ask(self._status_now, STATUS_SECONDS)
            found["http_servers"] = await self._servers.counted(params)
            if params.get("measures"):
                found["measures"] = await self._ask(Session.measures, STATUS_SECONDS)
        except TimeoutError:
            if self._last_status is None:
                raise
            at, found = self._last_status
            silence = round(time.monotonic() - at, 3)
            return {**found, "deciding_silence_seconds": silence}
        self._last_status = (time.monotonic(), found)
        return found

    def _status_now(self, session: Session) -> dict[str, Any]:
        follower, leader = session.follower, session.leader
        chain, now_ms = follower.replica.chain, self._clock.now_ms()
        return {
            "node": self.node,
            "clock_ms": now_ms,
            "brokers_ahead_ms": leader.appending.brokers.ahead_of(now_ms) if leader else None,
            "ids_clock_ms": follower.machine.deduplication.clock_ms,
            "ids_forgotten_ms": follower.machine.deduplication.forgotten_ms,
            "epoch": chain.epoch,
            # Another leader may decide differently what Kafka hasn't acknowledged.
            "sequence": chain.sequence - (leader.in_flight_count if leader else 0),
            "undecided": len(follower.replica.undecided),
            "voids": follower.replica.void_count,
            "outcomes": dict(session.outcomes),
            "rules": asdict(follower.machine.rules),
            "pylance": PYLANCE,
            **program(),
            "programs": [[*one, count] for one, count in sorted(self._programs().items())],
            "ready": leader is not None,
            "rows_lag_seconds": round(self.rows.lag_seconds(session), 3),
            **session.status(),
            **self._checks.status(),
        }

    async def _iceberg_table(self, params: Params) -> dict[str, Any] | None:
        """Return an Iceberg table's metadata location, and the metadata itself on request."""
        name = parse_table_id(params.get("table", ""))
        table = await self._ask(lambda session: session.catalogue.iceberg_table(name))
        if table is None:
            return None
        metadata = table.to_json() if params.get("metadata") else None
        return IcebergDescription(
            table=name,
            uuid=table.uuid,
            metadata_location=table.metadata_location,
            metadata=metadata,
            is_view=isinstance(table, IcebergView),
        ).to_json()

    async def _transaction(self, params: Params) -> dict[str, Any] | None:
        """Return the outcome of an id with its record; None if the log has none by now."""
        chosen = str(params.get("transaction_id", ""))
        known = await self._ask(lambda session: session.follower.machine.outcome_of(chosen))
        if known is None:
            return None
        found = await _worker(lambda: self._old_versions.outcome(known, chosen))
        if found is None:
            return None
        outcome, _, record = found
        submitted = await _worker(lambda: self._old_versions.transaction(outcome))
        content = b""
        if isinstance(submitted.record, Transaction):
            content = encode_transaction(submitted.record)
        return DecidedRecords(record, content).to_json()

    async def _quarantine(self, params: Params) -> dict[str, Any]:
        """Move versions away that were written around the log, ahead of a table's head."""
        session, table = self._session(), parse_table_id(params.get("table", ""))
        return {"quarantined": await _worker(lambda: self._checks.quarantine(session, table))}

    async def _maintained(self, params: Params) -> dict[str, Any]:
        """Take the progress that maintenance reports."""
        told = params.get("tables")
        given = told.items() if isinstance(told, dict) else ()
        tables = {str(name): (int(version), int(size)) for name, (version, size) in given}
        await self._ask(lambda session: session.maintained(tables), STATUS_SECONDS)
        return {}

    async def _until_readable(self, params: Params) -> Head:
        """Wait until a version, or else the present head, or a later one opens by path."""
        pending = PendingReply[None]()

        def wait(session: Session) -> Head:
            head = head_of(session, params)
            # What is said below says more than the session, which only forgets who waited.
            deadline = session.now() + FILES_SECONDS + STATUS_SECONDS
            session.readable.when(awaited_by(head, params), pending.reply, deadline)
            return head

        head = await self._ask(wait)
        try:
            await pending.result(FILES_SECONDS)
        except TimeoutError:
            raise _unwritten(head, params) from None
        return head

    async def _materialize(self, params: Params) -> dict[str, Any]:
        head = await self._until_readable(params)
        version = int(params.get("version") or head.version)
        try:
            path = await _worker(lambda: self._old_versions.materialize(head, version))
        except OSError as error:
            raise Unavailable(
                f"version {version} of {format_table_id(head.table)} can't be looked for in its"
                f" store: {with_advice(error)}. Ask again; `commitlog doctor` says what the"
                " stores do"
            ) from error
        return {"version": version, "path": path}

    async def _reach(self, params: Params) -> dict[str, Any]:
        """Say why a location can't be reached from here; an empty problem if it can."""
        location = str(params.get("location", ""))
        try:
            looking = _worker(lambda: why_unreachable(location))
            return {"problem": await asyncio.wait_for(looking, REACH_SECONDS)}
        except TimeoutError:
            return {"problem": f"it did not answer within {REACH_SECONDS:g} s."}

    async def _dry_run(self, params: Params) -> dict[str, Any]:
        """Decide a transaction on the current head and return the outcome, without appending it."""
        key = f"{params.get('transaction_id', '')}/dry-run".encode()
        record = decode_log_record(key, base64.b64decode(str(params.get("transaction", ""))))
        outcome = await self._decide_dry(record)
        _, encoded = seal_outcome(outcome, previous_hash=bytes(32), epoch=0, node=self.node)
        return DecidedRecords(encoded).to_json()

    async def _decide_dry(self, record: LogRecord) -> Outcome:
        """Read with a worker and decide on the loop, until nothing more is needed."""
        observer = self._observer()
        observed: dict[Wanted, Found] = {}

        def submitted(session: Session) -> Submitted:
            follower = session.follower
            position = follower.replica.transactions_position
            return Submitted(self._partition, position, follower.machine.time_ms, record)

        def decide(session: Session) -> Decision | Need:
            machine = session.follower.machine
            while isinstance(step := next_step(machine, submitted(session), observed), Need):
                builds = [one for one in step.wanted if isinstance(one, BuildWanted)]
                if len(builds) < len(step.wanted):
                    break
                observed.update({one: unbuilt(machine, one) for one in builds})
            return step

        while isinstance(step := await self._ask(decide), Need):
            looks = [one for one in step.wanted if not isinstance(one, BuildWanted)]
            found = await _worker(partial(_look, observer, looks))
            observed.update(zip(looks, found, strict=True))
        return step.outcome


def _unwritten(head: Head, params: Params) -> Unavailable:
    """Return what is answered to who has waited for a version's file."""
    return Unavailable(
        f"version {params.get('version') or head.version} of {format_table_id(head.table)} has no"
        f" manifest after {FILES_SECONDS:g} s; see the committer's log for what its store says"
    )


def _look(observer: StoreObserver, wanted: Sequence[Wanted]) -> list[Found]:
    try:
        return [observer.observe(one) for one in wanted]
    except OSError as error:
        raise Unavailable(f"the tables can't be looked at: {with_advice(error)}") from error


async def _worker(work: Callable[[], T]) -> T:
    """Run slow work on a worker's thread."""
    return await asyncio.wait_for(
        asyncio.get_running_loop().run_in_executor(None, work), WORKER_SECONDS
    )
