"""One run: nodes, writers, faults, then healing, and the validations at the end."""

from __future__ import annotations

import gc
import random
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from commitlog.adapters import log_start
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.errors import CommitLogError
from commitlog.model.limits import PROTOCOL_SUPPORTED
from commitlog.model.records import Outcome
from commitlog.protocol import outcomes_topic, transactions_topic
from consumers.partition.files.events import Event
from consumers.tools.archive.log import ArchivedLog
from tests.lanes import check_lanes
from tests.simulation import validations
from tests.simulation.archivist import Archivist, has_archive
from tests.simulation.auditor import Auditor, Violation
from tests.simulation.clients import (
    Client,
    JudgedTicket,
    SimulatedFallback,
    SimulatedLeaderSocket,
)
from tests.simulation.disk import Objects
from tests.simulation.endings import run_ending
from tests.simulation.faults import Faults
from tests.simulation.history import FinalRows
from tests.simulation.holders import Holder
from tests.simulation.indexer import Indexer
from tests.simulation.log import AnyWriter
from tests.simulation.maintainer import Maintainer, is_maintained, policy
from tests.simulation.maintainer import in_force as maintained
from tests.simulation.network import Network
from tests.simulation.node import Node
from tests.simulation.readers import Reader
from tests.simulation.requests import ROOT, Requests
from tests.simulation.row_writers import (
    ROW_WRITERS,
    Applier,
    RowSender,
    has_row_writers,
    in_force,
)
from tests.simulation.rows import Entry
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.standing import Standing
from tests.simulation.versions import Versions, has_two_versions, older_protocol
from tests.simulation.writers import Writer

TRANSACTIONS = 200
EPOCH_MS = 1_800_000_000_000
INDEX_EVERY = 4
"""Of the long runs so many share one that keeps a version index, which costs more than the run."""
OLDER_EVERY = 4
"""Of so many logs one begins with an older protocol."""
ALONE_EVERY, ALONE_FIRST = 150, 78
"""Of so many seeds one has a single node, whose tables' stores are away for long."""
STEPS_MAX = 90_000
HEAL_SECONDS = 120.0
SETTLE_STEPS = 20

SMALL: dict[str, float] = {
    "consumers.partition.files.offset_index.EVERY": 5,
    "consumers.partition.session.EVERY": 5,
    "consumers.partition.files.past_outcomes.EVERY": 5,
    "consumers.partition.files.offset_index.PLACES_PER_FILE": 3,
    "consumers.partition.files.offset_index.PLACES_MAX": 12,
    "commitlog.core.log.deduplication.CHUNK_OUTCOMES": 16,
    "commitlog.core.log.deduplication._UNPACKED_CHUNKS": 1,
    "commitlog.core.log.deduplication._ROWS_PER_STEP": 3,
    "consumers.partition.appending.READ_ON_SECONDS": 0.05,
    "consumers.partition.appending.QUIET_SECONDS": 0.02,
    "consumers.partition.appending.UNDECIDED_MAX": 20,
    "consumers.partition.deciding.LOOK_SECONDS": 3.0,
    "consumers.partition.deciding.WRITE_SECONDS": 5.0,
    "commitlog.client.leader.fallback._POLL_SECONDS": 0.0,
    "commitlog.client.leader.runtime.OVERLOAD_PATIENCE_SECONDS": 0.2,
    "consumers.tools.archive.writer.SEGMENT_OUTCOMES": 10,
    "consumers.tools.archive.writer.APPEND_SECONDS": 0.5,
}
"""A run has a few hundred outcomes and takes seconds: so it has places in its past, files of them,
ids in many chunks, and calls that take too long."""

IN_STEPS: dict[str, object] = {
    "commitlog.client.leader.connection.LeaderSocket": SimulatedLeaderSocket,
    "commitlog.client.leader.runtime.Fallback": SimulatedFallback,
    "commitlog.client.leader.runtime.Ticket": JudgedTicket,
    "commitlog.client.leader.runtime.flush_at_exit": lambda runtime: None,
}
"""What stands in for parts of the client that have threads of their own."""


@dataclass
class Report:
    """What a run came to."""

    seed: int
    trace: str = ""
    problem: str = ""
    transactions: int = 0
    outcomes: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)
    simulated_seconds: float = 0.0
    cpu_seconds: float = 0.0
    steps: int = 0
    listing: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    told: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)
    """By id and attempt: invoked at, answered at, sequence told."""
    rows: FinalRows = field(default_factory=dict)
    """What lives in the tables at the end, by path."""


def first_protocol(seed: int) -> int:
    """Return what a seed's log begins with: most as logs are made now, a quarter as before.

    Under the first one pylance builds the Updates that move rows.
    """
    if has_two_versions(seed):
        return older_protocol(seed)
    if has_row_writers(seed) or seed % OLDER_EVERY:
        return PROTOCOL_SUPPORTED
    number = seed // OLDER_EVERY
    return 1 + (number // 2 % (PROTOCOL_SUPPORTED - 1) if number % 2 else 0)


def is_alone(seed: int) -> bool:
    """Say whether a seed has one node, which dies with files owed: none other writes them."""
    return seed % ALONE_EVERY == ALONE_FIRST and not has_two_versions(seed)


class World:
    """Everything that a seed makes."""

    def __init__(
        self, seed: int, *, transactions: int = TRANSACTIONS, archive: Path | None = None
    ) -> None:
        """Build it; nothing has run yet. With a folder for it, the log is archived."""
        self.seed = seed
        self._archive_folder = archive
        self.scheduler = Scheduler(seed)
        self.transactions_wanted = transactions
        self.submitted = 0
        self.clock_offset = self.broker_error = 0.0
        self.late_files = self.build_refusals = 0.0
        self.answers_lost = self.answers_twice = self.spurious_campaigns = 0.0
        self.told_twice = 0.0
        self.hangs = 0.0
        """How often a worker's call to a store hangs."""
        self.fatal_producers = self.pauses_asked = 0.0
        """How often a client's producer fails for good, and a leader asks writers to pause."""
        self.overtaken = 0.0
        """How often an older attempt lands after a newer one."""
        self.rogue_paths: list[tuple[str, bytes]] = []
        self.writer_processes: dict[int, Process] = {}
        self.eager_standbys = seed % 3 == 0
        """Whether standbys write files at once, side by side with the leader."""
        self.expects_refusal = False
        self.final_rows: FinalRows = {}
        self.refusals: list[CommitLogError] = []
        chance = self.scheduler.random
        self.requests = Requests(chance)
        self.cluster = MemoryCluster(now_ms=self.brokers_ms)
        self.log = MemoryLog(self.cluster)
        self.protocol = first_protocol(seed)
        self.requests.protocol = self.protocol
        with mock.patch.object(log_start, "PROTOCOL_SUPPORTED", self.protocol):
            self.genesis = self.log.create(tables_root=ROOT)
        self.topics = (transactions_topic(self.log.name), outcomes_topic(self.log.name))
        self.objects = Objects(self.scheduler)
        self.objects.now_ms = self.now_ms
        self.auditor = Auditor(self.log, self.objects)
        self.auditor.simulated_log = self.with_archive(self.auditor.simulated_log)
        self.scheduler.after_step = self.auditor.follow
        self.network = Network(self.scheduler)
        self.scheduler.on_killed = self.network.drop
        nodes = chance.choice((2, 2, 3))
        self.nodes = [Node(self, number) for number in range(1 if is_alone(seed) else nodes)]
        self.writers = [Writer(self, number) for number in range(chance.choice((1, 3)))]
        self.clients = [Client(self, number) for number in range(chance.choice((1, 2)))]
        self.writers += self.clients
        self.reader = Reader(self)
        self.faults = Faults(self)
        self.indexer: Indexer | None = None
        self.archivist = None if archive is None else Archivist(self, archive)
        self.appliers: list[Applier] = []
        if has_row_writers(seed):
            self.writers.append(RowSender(self, len(self.writers)))
            self.appliers = [Applier(self, number) for number in range(ROW_WRITERS)]
        self.maintainer: Maintainer | None = None
        if is_maintained(seed):
            self.auditor.standing = Standing(self.auditor)
            self.requests.properties = lambda: policy(chance)
            self.writers.append(Holder(self, len(self.writers)))
            self.maintainer = Maintainer(self)
        self.versions = Versions(self) if has_two_versions(seed) else None

    @property
    def eagerness(self) -> float:
        """How often a writer submits, per step: maintenance has a few turns in every run."""
        return 0.3 if self.maintainer is None else 0.06

    @property
    def wants_more(self) -> bool:
        """Whether writers shall go on."""
        return self.submitted < self.transactions_wanted

    def now_ms(self) -> int:
        """Return what right clocks say."""
        return EPOCH_MS + int((self.scheduler.now + self.clock_offset) * 1000)

    def brokers_ms(self) -> int:
        """Return what the clock of the brokers says."""
        return self.now_ms() + int(self.broker_error * 1000)

    def count(self, name: str, by: int = 1) -> None:
        """Count something that happened."""
        self.scheduler.counters[name] += by

    def writer_of(self, process: Process) -> Callable[[int, AnyWriter], None]:
        """Return what learns which process a writer's number belongs to."""

        def learn(number: int, writer: AnyWriter) -> None:
            self.writer_processes[number] = process
            writer.told_twice = lambda: self.told_twice

        return learn

    def with_archive(self, log: Any) -> Any:
        """Return a process's log as one that knows the root has it: with the archive, if any."""
        return log if self._archive_folder is None else ArchivedLog(log, self._archive_folder)

    @contextmanager
    def with_parts(self) -> Iterator[None]:
        """Let in force be what stands in for the program in the parts that this seed has."""
        with ExitStack() as stack:
            if self.appliers:
                stack.enter_context(in_force(self))
            if self.maintainer is not None:
                stack.enter_context(maintained(self, self.maintainer))
            if self.versions is not None:
                stack.enter_context(self.versions.in_force())
            yield

    def answers_at(self, address: str) -> bool:
        """Say whether a leader's socket answers."""
        for node in self.nodes:
            if node.address == address:
                is_awake = node.process.paused_until <= self.scheduler.now
                return node.is_leading and is_awake
        return False

    def is_stable(self, view: object) -> bool:
        """Say whether a view's table has stable row ids."""
        name = getattr(view, "name", "")
        table = self.auditor.machine.tables.get((name,))
        return table is None or table.stable_row_ids

    def outcome(self, transaction_id: str, attempt: int) -> Outcome | None:
        """Return an outcome as a writer finds it who reads the log himself."""
        return self.auditor.by_id.get((transaction_id, attempt))

    def end_of_transactions(self) -> int:
        """Return the end of the transactions topic."""
        return self.cluster.partition(self.topics[0], 0).end

    def put_file(self, process: Process, location: str, path: str, data: bytes) -> None:
        """Put a writer's file; it may show up late."""
        full = f"{location}/{path}"
        self.objects.keep(full, data)
        if self.scheduler.chance(self.late_files):
            self.count("file shows up late")
            self.objects.hidden[full] = self.scheduler.now + 0.3

    def answer(self, node: Node, events: list[Event]) -> None:
        """Carry answers through sockets, which may lose or repeat them."""
        for event in events:
            for writer in self.writers:
                if event.outcome.transaction_id not in writer.pending:
                    continue
                if self.scheduler.chance(self.answers_lost):
                    self.count("answer lost")
                    continue
                writer.inbox.append(event.outcome)
                if self.scheduler.chance(self.answers_twice):
                    self.count("answer twice")
                    writer.inbox.append(event.outcome)

    def refused(self, node: Node, error: CommitLogError) -> None:
        """A node refuses to go on: right only where a record was lost or forged."""
        self.scheduler.trace("refuses", node.process.name, type(error).__name__)
        self.refusals.append(error)
        self.scheduler.kill(node.process, f"refuses: {error}")
        is_too_old = self.versions is not None and self.versions.is_right(node, error)
        if not self.expects_refusal and not is_too_old:
            raise Violation(f"I15 {node.process.name} refuses a sound log: {error!r}") from error

    def reboot_the_dead(self) -> None:
        """Start nodes and clients again, a while after they died."""
        now = self.scheduler.now
        for client in self.clients:
            if not client.process.is_alive:
                client.boot()
        if not self.reader.process.is_alive:
            self.reader.boot()
        if self.archivist is not None and not self.archivist.process.is_alive:
            self.archivist.boot()
        if self.maintainer is not None and not self.maintainer.process.is_alive:
            self.maintainer.boot()
        for applier in self.appliers:
            if not applier.process.is_alive:
                self.count("row writer killed")
                applier.boot()
        for node in self.nodes:
            if node.process.is_alive:
                continue
            if node.boot_at == 0.0:
                node.boot_at = now + self.scheduler.random.random() * 0.5
            elif node.boot_at <= now:
                node.boot_at = 0.0
                node.boot()

    def keep_index(self, folder: Path) -> None:
        """Let a version index follow the log."""
        indexer = self.indexer = Indexer(self, folder)
        self.scheduler.add(indexer.process, "index", indexer.step)

    def run(self) -> None:
        """Run to the last transaction, heal, and validate."""
        scheduler = self.scheduler
        for node in self.nodes:
            node.boot()
        while self.wants_more:
            scheduler.step()
            if scheduler.steps > STEPS_MAX:
                raise Violation(f"I15 only {self.submitted} transactions in {STEPS_MAX} steps")
        self.faults.heal()
        self._settle()
        if self.maintainer is not None:
            self.maintainer.finish()
            self._settle()
        if self.archivist is not None:
            self.archivist.finish()
            self.archivist.check()
        if self.versions is not None:
            self.versions.check()
        validations.validate(self)
        if self.indexer is not None:
            self.indexer.check()
        self.final_rows = validations.rows_by_path(self.auditor)
        run_ending(self)

    def _settle(self) -> None:
        """Wait until everything has its outcome, its answer and its file."""
        scheduler = self.scheduler
        deadline = scheduler.now + HEAL_SECONDS
        while what := self.unsettled():
            self.faults.set_all_clocks()
            for _ in range(SETTLE_STEPS):
                scheduler.step()
            # What was so before these steps: one of them may have taken long.
            if scheduler.now > deadline and (what := self.unsettled()):
                raise Violation(f"I15 not settled: {what}")

    def unsettled(self) -> str:
        """Name what has no outcome, answer or file yet; "" if everything has."""
        replica = self.auditor.follower.replica
        self.auditor.follow()
        self.auditor.follower.step(0)
        position = self.auditor.follower.transactions.position()
        if replica.undecided or position < self.end_of_transactions():
            return f"{len(replica.undecided)} records have no outcome"
        if any(writer.pending for writer in self.writers):
            return "a writer waits for an answer"
        if self.reader.is_behind():
            return f"the feed has told {self.reader.told}"
        if any(table.accepted for table in self.auditor.spec.tables.values()):
            return "rows wait to be applied"
        if self.versions is not None and (what := self.versions.unsettled()):
            return what
        leaders = [node for node in self.nodes if node.is_leading]
        if not leaders:
            return "nobody leads"
        for node in self.nodes:
            if node.session is None:
                return f"{node.process.name} is starting"
            written = node.session.written_sequence
            if written < replica.chain.sequence:
                return f"{node.process.name} has written {written} of {replica.chain.sequence}"
        return ""


@contextmanager
def _clocks(world: World, here: int) -> Iterator[None]:
    """Let one thread's clocks be the world's, until the end of the block.

    A module that is first imported meanwhile may keep such a clock for good, as a default.
    """
    monotonic, now, uptime_ns = time.monotonic, time.time, time.clock_gettime_ns
    is_over = False

    def is_here() -> bool:
        return not is_over and threading.get_ident() == here

    clocks: dict[str, Callable[..., float]] = {
        "time.monotonic": lambda: world.scheduler.clock() if is_here() else monotonic(),
        "time.time": lambda: world.now_ms() / 1000 if is_here() else now(),
        "time.time_ns": lambda: world.now_ms() * 1_000_000 if is_here() else int(now() * 1e9),
        "time.clock_gettime_ns": lambda which: (
            round(world.scheduler.clock() * 1e9) if is_here() else uptime_ns(which)
        ),
    }
    with ExitStack() as stack:
        for name, clock in clocks.items():
            stack.enter_context(mock.patch(name, clock))
        try:
            yield
        finally:
            is_over = True


@contextmanager
def _without_collector() -> Iterator[None]:
    """Collect no garbage meanwhile: a world is garbage as a whole, at its end."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_without_collector()
def run_seed(seed: int, *, transactions: int = TRANSACTIONS, listing: bool = False) -> Report:
    """Run a seed from beginning to end."""
    ids, here = random.Random(f"ids {seed}"), threading.get_ident()
    # What other threads of this process draw meanwhile must not change the run.
    elsewhere = random.SystemRandom()

    def bits(count: int) -> int:
        return (ids if threading.get_ident() == here else elsewhere).getrandbits(count)

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=bits(128), version=4)

    def token_hex(count: int) -> str:
        return f"{bits(8 * count):0{2 * count}x}"

    report = Report(seed)
    with ExitStack() as stack:
        stack.enter_context(mock.patch("time.time_ns", return_value=EPOCH_MS * 1_000_000))
        stack.enter_context(mock.patch("uuid.uuid4", uuid4))
        stack.enter_context(mock.patch("secrets.token_hex", token_hex))
        for name, value in (SMALL | IN_STEPS).items():
            stack.enter_context(mock.patch(name, value))
        # Half of the clients give up before they have sent anything again.
        patience = 1.0 if seed % 2 else 0.05
        stack.enter_context(
            mock.patch("commitlog.client.leader.sending.RESEND_FOR_SECONDS", patience)
        )
        folder: Path | None = None
        if has_archive(seed):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world = World(seed, transactions=transactions, archive=folder)
        stack.callback(world.scheduler.close)
        stack.enter_context(_clocks(world, here))
        stack.enter_context(
            mock.patch("commitlog.client.rows.opening.store_for", world.auditor.open_store)
        )
        stack.enter_context(mock.patch.object(JudgedTicket, "world", world, create=True))
        decoded = world.auditor.decoders.answered
        stack.enter_context(mock.patch("commitlog.adapters.memory.to_answered", decoded))
        stack.enter_context(world.with_parts())
        if listing:
            world.scheduler.listing = report.listing
        try:
            if transactions >= TRANSACTIONS and seed % INDEX_EVERY == 0:
                world.keep_index(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            world.run()
            check_lanes(world.cluster)
            report.problem = next(iter(world.auditor.complaints), "")
            if not report.problem and world.scheduler.strangers:
                report.problem = f"another thread was here: {world.scheduler.strangers[0]}"
        except Violation as violation:
            report.problem = str(violation)
        except Exception as error:
            report.problem = f"{type(error).__name__}: {error}"
            if listing:
                import traceback

                report.listing.append(traceback.format_exc())
    scheduler = world.scheduler
    report.trace = scheduler.digest()
    report.transactions = world.submitted
    report.entries = world.auditor.entries
    report.outcomes = len(report.entries)
    report.statuses = Counter(entry.status for entry in report.entries)
    report.counters = scheduler.counters
    report.simulated_seconds = scheduler.now
    report.steps = scheduler.steps
    report.told = world.auditor.told_times()
    report.rows = world.final_rows
    return report
