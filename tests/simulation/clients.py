"""Clients under simulation: the product's own runtime, tickets, connection and fallback, in steps.

What a client starts threads for is a task here. Each answer that a ticket gets is held against the
log at once, and all of them once more at the end.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from commitlog.adapters.memory import MemoryTransactionsWriter
from commitlog.client.leader.fallback import Fallback
from commitlog.client.leader.leader_socket import LeaderSocket
from commitlog.client.leader.runtime import Runtime, RuntimeSettings
from commitlog.client.leader.sending import Sending
from commitlog.client.leader.tickets import Ticket
from commitlog.client.rows.opening import is_readable
from commitlog.errors import CommitLogError, OutcomeUnknown, Overloaded, Unavailable
from commitlog.model.records import Answered, Outcome, ProtocolVersion, Transaction
from commitlog.ports import OnDelivery
from tests.simulation.log import SimulatedLog
from tests.simulation.scheduler import Process
from tests.simulation.writers import Pending, Writer

if TYPE_CHECKING:
    from tests.simulation.world import World

FALLBACK_SECONDS = 0.6
REQUEST_SECONDS = 2.0
AGAIN_SECONDS = 0.2


class ClientsLog(SimulatedLog):
    """The log as a client uses it, over one broker connection that may fail for good."""

    def __init__(self, world: World, process: Process) -> None:
        """Let a process use the log."""
        super().__init__(world.log, world.auditor.decoders, world.scheduler, process)
        self.world, self.process = world, process

    def transactions_writer(self) -> ClientsWriter:
        """Return a writer."""
        return ClientsWriter(self)

    def last_outcome_records(self, partition: int, count: int = 1) -> list[Answered]:
        """Return the newest records, oldest first."""
        self._scheduler.point(self._process, "end outcomes")
        if self._process.is_cut_off:
            raise Unavailable("simulated: no answer")
        return self._log.last_outcome_records(partition, count)


class ClientsWriter:
    """Appends transactions; a producer that fails for good is replaced, as Kafka's writer does."""

    def __init__(self, log: ClientsLog) -> None:
        """Open the first producer."""
        self._world, self._process = log.world, log.process
        self._writer = self._open()
        self._failed: list[MemoryTransactionsWriter] = []

    def _open(self) -> MemoryTransactionsWriter:
        writer = self._world.log.transactions_writer()
        self._world.writer_processes[writer._number] = self._process
        return writer

    def append(
        self,
        transaction: Transaction | ProtocolVersion,
        *,
        partition: int,
        on_delivery: OnDelivery | None = None,
        session: str = "",
    ) -> None:
        """Send a transaction on its way."""
        world = self._world
        world.scheduler.point(self._process, "append transaction")
        if world.scheduler.chance(world.fatal_producers):
            world.count("producer failed for good")
            self._writer.purge()
            self._failed.append(self._writer)
            self._writer = self._open()
        self._writer.append(
            transaction, partition=partition, on_delivery=on_delivery, session=session
        )

    def poll(self, timeout_seconds: float) -> int:
        """Run callbacks."""
        failed, self._failed = self._failed, []
        return sum(writer.poll(0) for writer in (*failed, self._writer))

    def flush(self, timeout_seconds: float) -> int:
        """Run callbacks."""
        return self.poll(0)

    def close(self) -> None:
        """Give up what is on its way."""
        self._writer.close()


class SimulatedLeaderSocket(LeaderSocket):
    """Connects and reads in steps."""

    def __init__(self, log: ClientsLog, *given: Any) -> None:
        """Connect nothing yet."""
        super().__init__(log, *given)
        self._world, self._process = log.world, log.process
        self._again_at = 0.0
        self.was_tried.open()

    def _begin(self) -> threading.Thread:
        self._world.scheduler.add(self._process, "socket", self._step, 0.15)
        return threading.current_thread()

    def _connect(self, address: tuple[str, int]) -> Any:
        return self._world.network.connect(self._process, address)

    def _is_readable(self, opened: Any, timeout_seconds: float) -> bool:
        return bool(opened.is_readable())

    def read_until(self, is_known: Any, deadline: float) -> bool:
        """Let others run until something is known."""
        scheduler = self._world.scheduler
        while not is_known():
            if scheduler.now >= deadline:
                return False
            scheduler.sleep(self._process, 0.02)
        return True

    def _step(self) -> bool:
        scheduler, opened = self._world.scheduler, cast(Any, self.opened)
        if self._closed or (opened is None and scheduler.now < self._again_at):
            return False
        if opened is None and not self._listener.is_wanted():
            return False
        if opened is not None and not opened.is_readable():
            with self._heeding_errors():
                self._note_silence()
                return False
        is_well = False
        with self._heeding_errors():
            if opened is None:
                self._open()
                self._world.count("client connected")
            elif opened is self.opened:
                self._receive(cast(Any, opened), 0.0)
            is_well = True
        if not is_well:
            self._shut()
            self._again_at = scheduler.now + scheduler.random.random() * AGAIN_SECONDS
        return is_well


class SimulatedFallback(Fallback):
    """Reads the topic in steps."""

    def _begin(self) -> None:
        log = cast(ClientsLog, self._log)
        self._world, self._due = log.world, 0.0
        self._world.scheduler.add(log.process, "fallback", self.step, 0.2)

    def step(self) -> bool:
        """Read on, if that is due."""
        if self._world.scheduler.now < self._due:
            return False
        was_active = self._following is not None
        pause = self._step()
        if self._following is not None and not was_active:
            self._world.count("client fell back to the log")
        self._due = self._world.scheduler.now + pause
        return False


class _Event:
    """What a client waits for that isn't closed: others run meanwhile."""

    def __init__(self, world: World, process: Process) -> None:
        self._scheduler, self._process = world.scheduler, process

    def is_set(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        self._scheduler.sleep(self._process, seconds)
        return False


class SimulatedSending(Sending):
    """Sends again in steps."""

    def simulate(self, world: World, process: Process) -> None:
        """Take whose steps they are."""
        self._world, self._process = world, process

    def _begin_pump(self) -> threading.Thread:
        def step() -> bool:
            self._deliver()
            return False

        self._world.scheduler.add(self._process, "deliveries", step, 0.2)
        return threading.current_thread()


class SimulatedRuntime(Runtime):
    """A client's runtime whose threads are tasks."""

    def __init__(self, world: World, process: Process) -> None:
        """Connect to nothing yet."""
        settings = RuntimeSettings(
            fallback_after_seconds=FALLBACK_SECONDS, request_timeout_seconds=REQUEST_SECONDS
        )
        log = world.with_archive(ClientsLog(world, process))
        super().__init__(cast(Any, log), settings, lambda outcome: _is_readable(world, outcome))
        self._closed: Any = _Event(world, process)
        self._sending = SimulatedSending(
            cast(Any, log),
            lambda transaction: self.connection(self.partition_of(transaction)),
            forget=self.forget,
        )
        self._sending.simulate(world, process)


def _is_readable(world: World, outcome: Outcome) -> bool:
    """Look where the manifests lie, as `CommitLog` does."""
    for result in outcome.results:
        table = world.auditor.tables.get(result.incarnation)
        if table is None:
            return False
        info: Any = SimpleNamespace(location=table.location, policy=table.policy)
        if result.version and not is_readable(info, result.version):
            return False
    return True


class JudgedTicket(Ticket):
    """Has each answer judged as it comes."""

    world: World

    def deliver(self, outcome: Outcome, readable: bool) -> None:
        """Take an answer."""
        asked = self.transaction
        self.world.auditor.told_a_client(
            outcome, (asked.transaction_id, asked.attempt, self.payload_hash), readable=readable
        )
        super().deliver(outcome, readable)


@dataclass
class Held:
    """A ticket that a client waits for."""

    ticket: Ticket
    transaction: Transaction
    is_only: bool
    """Whether nothing else was sent under its id and attempt."""


class Client(Writer):
    """A writer that uses the product's client."""

    def __init__(self, world: World, number: int) -> None:
        """Begin with nothing submitted."""
        self._held: list[Held] = []
        self._sent: set[tuple[str, int]] = set()
        self._boots = 0
        super().__init__(world, number)

    def boot(self) -> None:
        """Start a process; it knows what it had sent from a journal, or knows nothing."""
        world = self.world
        self._boots += 1
        self._held.clear()
        if self._boots > 1 and world.scheduler.random.random() < 0.5:
            self.pending.clear()
        self.process = Process(f"c{self._number}.{self._boots}")
        self.runtime = SimulatedRuntime(world, self.process)
        world.scheduler.add(self.process, "client", self.step)

    def die(self) -> None:
        """End the process."""
        self.world.count("writer killed")
        self.world.scheduler.kill(self.process, "by hand")

    def step(self) -> bool:
        """Take what tickets say, then go on as all writers do."""
        for held in list(self._held):
            if held.ticket.done() and held in self._held:
                self._held.remove(held)
                self._take(held)
        return super().step()

    def _take(self, held: Held) -> None:
        try:
            self.inbox.append(held.ticket.result(0, "committed"))
        except Unavailable:
            self.world.count("answer: not appended")
            transaction_id = held.transaction.transaction_id
            if held.is_only and transaction_id not in self.also_raw:
                self.world.auditor.surely_not.add((transaction_id, held.transaction.attempt))
            pending = self.pending.get(transaction_id)
            if pending is not None and pending.transaction == held.transaction:
                del self.pending[transaction_id]

    def _append(self, transaction: Transaction) -> None:
        self._note(transaction)
        chosen = (transaction.transaction_id, transaction.attempt)
        is_first = chosen not in self._sent
        self._sent.add(chosen)
        is_new = is_first and transaction.attempt == 0
        if not is_first:
            for held in self._held:
                if (held.transaction.transaction_id, held.transaction.attempt) == chosen:
                    held.is_only = False
        try:
            ticket = self.runtime.submit(transaction, id_is_new=is_new, is_first=is_first)
        except Overloaded:
            self.world.count("client told to wait")
            return
        except Unavailable:
            return
        self._held.append(Held(ticket, transaction, is_first))

    def _ask_again(self, pending: Pending) -> None:
        """The answer didn't come in time: ask, send again, give up waiting, or wait on."""
        world, transaction = self.world, pending.transaction
        chance = world.scheduler.random
        pending.asked_at = world.scheduler.now
        mine = [h for h in self._held if h.transaction.transaction_id == transaction.transaction_id]
        choice = chance.choice(("ask", "send", "send", "leave", "wait", "result"))
        if world.faults.is_over or not mine:
            choice = "send"
        if choice == "ask":
            self._watch(transaction)
        elif choice == "send":
            world.count("asked again")
            self._append(transaction)
        elif choice == "leave":
            world.count("request cancelled")
            for held in mine:
                self.runtime.forget(held.ticket)
                self._held.remove(held)
        elif choice == "result":
            self._wait(mine[-1].ticket)

    def _wait(self, ticket: Ticket) -> None:
        chance = self.world.scheduler.random
        wait = "readable" if chance.random() < 0.5 else "committed"
        try:
            ticket.result(chance.choice((0.0, 0.05, 0.3)), cast(Any, wait))
        except OutcomeUnknown as error:
            self.world.count("request timed out")
            self.world.auditor.expect(
                error.transaction_id == ticket.transaction_id, "I17 another id is unknown"
            )
        except CommitLogError:
            pass

    def _watch(self, transaction: Transaction) -> None:
        ticket = self.runtime.watch(transaction.transaction_id)
        ticket._ask_for("readable" if self.world.scheduler.random.random() < 0.5 else "committed")
        self._held.append(Held(ticket, transaction, False))
