"""Writers: they submit, wait for answers that may not come, ask again, and redo what lost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commitlog.codecs.avro import payload_hash
from commitlog.errors import RecordTooLarge
from commitlog.model.records import (
    Application,
    Outcome,
    Status,
    TableAbsent,
    TableVersionIs,
    Transaction,
)
from tests.simulation.auditor import Told
from tests.simulation.requests import ROOT, Request, View
from tests.simulation.rows import Asked
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

NAMES = ("t0", "t1", "t2", "t3")
PENDING_MAX = 3
PATIENCE_SECONDS = 1.0
ATTEMPTS_MAX = 4


@dataclass
class Pending:
    """A transaction without an answer."""

    transaction: Transaction
    asked_at: float
    kind: str


class Writer:
    """One writer process."""

    def __init__(self, world: World, number: int) -> None:
        """Begin with nothing submitted."""
        self.world = world
        self._number = number
        self.pending: dict[str, Pending] = {}
        self.inbox: list[Outcome] = []
        self._writer = world.log.transactions_writer()
        self._sequence = 0
        self._application = f"app{number}"
        self.clock_skew_ms = 0
        self.also_raw: set[str] = set()
        """Ids of which a record was appended past the client, too."""
        self.boot()

    def boot(self) -> None:
        """Start the process."""
        self.process = Process(f"w{self._number}", is_spared=True)
        self.world.scheduler.add(self.process, "writer", self.step)

    def step(self) -> bool:
        """Read answers, ask again, submit more."""
        world, scheduler = self.world, self.world.scheduler
        self._writer.poll(0)
        inbox, self.inbox = self.inbox, []
        for outcome in inbox:
            self._hear(outcome)
        for pending in list(self.pending.values()):
            if scheduler.now > pending.asked_at + PATIENCE_SECONDS:
                self._ask_again(pending)
        wants_more = len(self.pending) < PENDING_MAX and world.wants_more
        if wants_more and scheduler.chance(world.eagerness):
            self._submit_new()
            return True
        return bool(inbox)

    def _hear(self, outcome: Outcome) -> None:
        pending = self.pending.get(outcome.transaction_id)
        if pending is None or outcome.attempt < pending.transaction.attempt:
            return
        transaction = pending.transaction
        is_retryable = outcome.status is Status.RETRYABLE and pending.kind != "once"
        if is_retryable and transaction.attempt < ATTEMPTS_MAX and self.world.wants_more:
            request = self._request(pending.kind)
            if request.operations:
                self.world.count("attempts")
                self._send(
                    request,
                    pending.kind,
                    transaction_id=transaction.transaction_id,
                    attempt=transaction.attempt + 1,
                )
                if self.world.scheduler.chance(self.world.overtaken):
                    # Resends of the older one, which were on their way for longer.
                    self.world.count("attempt overtaken by a newer one")
                    for _ in range(self.world.scheduler.random.choice((1, 2, 4))):
                        self._append_raw(transaction)
                return
        del self.pending[outcome.transaction_id]

    def _ask_again(self, pending: Pending) -> None:
        """The answer didn't come: look into the log, then send the same record again."""
        transaction = pending.transaction
        outcome = self.world.outcome(transaction.transaction_id, transaction.attempt)
        if outcome is not None:
            self._hear(outcome)
            return
        self.world.count("asked again")
        pending.asked_at = self.world.scheduler.now
        self._append(transaction)

    def _submit_new(self) -> None:
        world, chance = self.world, self.world.scheduler.random
        kinds = ("append", "append", "append", "delete", "delete", "update", "config", "both")
        kind = chance.choice(kinds)
        if not world.auditor.spec.tables or chance.random() < 0.06:
            kind = "create"
        elif chance.random() < 0.03:
            kind = chance.choice(("drop", "rename", "remake", "again"))
            world.count("table dropped, renamed or made again")
        request = self._request(kind)
        if request.operations:
            self._send(request, kind)

    def _request(self, kind: str) -> Request:
        world, request = self.world, Request()
        chance, requests = world.scheduler.random, world.requests
        if kind in {"create", "remake", "again"}:
            self._create(request, kind)
            return request
        views = self._views()
        if not views:
            return request
        for view in views[: chance.randrange(2, 4) if kind == "both" else 1]:
            one = chance.choice(("append", "delete", "config")) if kind == "both" else kind
            if one in {"delete", "update"} and not any(view.rows.values()):
                one = "append"
            if one == "update" and world.is_stable(view):
                one = "delete"
            if one == "append":
                requests.append(request, view, at_head=chance.random() < 0.1)
            elif one == "delete":
                requests.delete(request, view)
            elif one == "update":
                requests.update(request, view)
            elif one == "config":
                requests.config(request, view)
            elif one == "drop":
                requests.drop(request, view)
            else:
                requests.rename(request, view, chance.choice(NAMES))
        return request

    def _create(self, request: Request, kind: str) -> None:
        world = self.world
        chance, requests = world.scheduler.random, world.requests
        name = chance.choice(NAMES)
        incarnation = requests.uuid()
        location = f"{ROOT}/{name}-{incarnation}"
        dropped = list(world.auditor.spec.dropped.values())
        if kind == "remake" and dropped:
            # At the place of a dropped table: never again.
            location = chance.choice(dropped).location
        elif kind == "again" and dropped:
            # The record that made a dropped table, as a new transaction.
            old = chance.choice(dropped)
            incarnation, location = old.incarnation, old.location
        requests.create(request, name, incarnation=incarnation, location=location)
        if kind == "create" and chance.random() < 0.3:
            made = View(name, incarnation, location, 1, {}, {}, False, frozenset())
            requests.append(request, made, at_head=chance.random() < 0.5)

    def _views(self) -> list[View]:
        """Return tables as this writer last read them, in random order; some are old news."""
        auditor, chance = self.world.auditor, self.world.scheduler.random
        names = sorted(auditor.spec.tables)
        chance.shuffle(names)
        found = []
        for name in names:
            incarnation = auditor.spec.tables[name].incarnation
            known = [v for (i, _), v in auditor.views.items() if i == incarnation]
            if known:
                known.sort(key=lambda v: v.version)
                is_old = chance.random() < 0.3
                view = chance.choice(known) if is_old else known[-1]
                found.append(view if view.name == name else replace(view, name=name))
        return found

    def _send(
        self, request: Request, kind: str, *, transaction_id: str = "", attempt: int = 0
    ) -> None:
        world = self.world
        chance = world.scheduler.random
        application: Application | None = None
        expects: tuple[tuple[str, int], ...] = ()
        if kind in {"append", "both"} and not transaction_id and chance.random() < 0.15:
            if self._sequence and chance.random() < 0.3:
                world.count("an application's sequence again")
            else:
                self._sequence += 1
            application = Application(self._application, self._sequence)
        if chance.random() < 0.1:
            name = request.intents[0].table
            table = world.auditor.spec.tables.get(name)
            version = table.version if table is not None else -1
            expects = ((name, version),)
        transaction = Transaction(
            transaction_id or world.requests.uuid(),
            tuple(request.operations),
            attempt=attempt,
            submitted_at_ms=world.now_ms() + self.clock_skew_ms,
            application=application,
            properties=(("n", world.requests.uuid()),),
            expects=tuple(
                TableVersionIs((name,), version) if version >= 0 else TableAbsent((name,))
                for name, version in expects
            ),
        )
        asked = Asked(
            tuple(request.intents),
            expects,
            None if application is None else (application.application_id, application.sequence),
        )
        world.auditor.meant[payload_hash(transaction)] = asked
        for location, path, data in request.files:
            world.put_file(self.process, location, path, data)
        self.pending[transaction.transaction_id] = Pending(transaction, 0.0, kind)
        self._append(transaction)

    def send_as(self, transaction: Transaction, asked: Asked) -> None:
        """Send what is meant like this, once."""
        self.world.auditor.meant[payload_hash(transaction)] = asked
        self.pending[transaction.transaction_id] = Pending(transaction, 0.0, "once")
        self._append(transaction)

    def _append(self, transaction: Transaction) -> None:
        self._note(transaction)
        self._append_raw(transaction)

    def _append_raw(self, transaction: Transaction) -> None:
        self.also_raw.add(transaction.transaction_id)
        self._writer.append(transaction, partition=0)

    def _note(self, transaction: Transaction) -> None:
        world = self.world
        key = (transaction.transaction_id, transaction.attempt)
        told = world.auditor.told.setdefault(key, Told())
        if told.invoked_at < 0:
            told.invoked_at = world.scheduler.steps
            world.submitted += 1
        world.scheduler.trace("submit", self.process.name, key[0][:8], key[1])
        if transaction.transaction_id in self.pending:
            self.pending[transaction.transaction_id].asked_at = world.scheduler.now

    def die(self) -> None:
        """End the process; the next one knows what was sent from a journal, or knows nothing."""
        self.world.count("writer killed")
        self.world.scheduler.trace("kill", self.process.name)
        self._writer.close()
        self._writer = self.world.log.transactions_writer()
        self.inbox.clear()
        if self.world.scheduler.random.random() < 0.5:
            self.pending.clear()

    def storm(self, copies: int) -> bool:
        """Send one pending transaction again many times; return whether there was one."""
        for pending in list(self.pending.values())[:1]:
            self.world.count("one id many times", copies)
            if copies >= 1000:
                self.world.count("one id a thousand times")
            for _ in range(copies):
                self._note(pending.transaction)
                self._append_raw(pending.transaction)
            return True
        return False

    def reuse_id(self) -> None:
        """Send other content under an id that is in use."""
        for pending in list(self.pending.values())[:1]:
            request = self._request("append")
            if request.operations:
                self.world.count("id with other content")
                transaction = replace(
                    pending.transaction,
                    operations=tuple(request.operations),
                    expects=(),
                    application=None,
                    properties=(("n", self.world.requests.uuid()),),
                )
                asked = Asked(tuple(request.intents))
                self.world.auditor.meant[payload_hash(transaction)] = asked
                for location, path, data in request.files:
                    self.world.put_file(self.process, location, path, data)
                self._append_raw(transaction)

    def too_large(self) -> bool:
        """Try a record over the limit, which is refused before anything is sent; return whether.

        There may be no table yet.
        """
        views = self._views()
        if not views:
            return False
        request = Request()
        self.world.requests.append(request, views[0])
        huge = Transaction(
            self.world.requests.uuid(),
            tuple(request.operations),
            properties=(("huge", "x" * (16 * 1024 * 1024)),),
        )
        end = self.world.end_of_transactions()
        try:
            self._writer.append(huge, partition=0)
        except RecordTooLarge:
            self.world.count("record too large")
        self.world.auditor.expect(
            self.world.end_of_transactions() == end, "I7 a record over the limit was sent"
        )
        return True
