"""A committer under simulation: its sessions on a disk that outlasts its processes.

What `consumers.servers.committer` does with threads and sockets is done here in steps: follow,
stand for leader when the leader is silent, lead, checkpoint, begin again when the term ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from commitlog.codecs.manifest_file import decode_manifest, manifest_name
from commitlog.core.decisions import BuildWanted, Found
from commitlog.core.manifest.manifest_state import apply_delta
from commitlog.errors import CommitLogError, Fenced, Unavailable
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.records import Observation
from consumers.partition.checkpoints.checkpoint import Checkpoints
from consumers.partition.checkpoints.prepared_checkpoint import PreparedCheckpoint
from consumers.partition.files.events import Event, Read, RecordSent
from consumers.partition.lanes import Job, Lanes
from consumers.partition.leader import RECORDS_PER_POLL, Leader
from consumers.partition.observer import StoreObserver
from consumers.partition.session import Session
from consumers.socket.answers import Answers
from consumers.socket.requests import Requests
from tests.core_world import _simple_delta
from tests.simulation.disk import MemoryFolder, SimulatedStore
from tests.simulation.log import SimulatedLog
from tests.simulation.looking_back import LookingBack, old_versions_of
from tests.simulation.network import SimulatedConnections, SimulatedEventLoop
from tests.simulation.scheduler import (
    IDLE_SECONDS,
    QUIET_SECONDS,
    Process,
    SimulatedLock,
    Task,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

CHECKPOINT_SECONDS = 1.5


class SimulatedLanes(Lanes):
    """Workers whose jobs come to an end a while later, one step each."""

    def __init__(self, node: Node, process: Process, post: Callable[[Job], None]) -> None:
        """Do the jobs of one process."""
        scheduler = node.world.scheduler
        super().__init__("workers", post, clock=scheduler.clock)
        self._scheduler, self._jobs = scheduler, list[tuple[float, Job]]()
        self._task = scheduler.add(process, "workers", self.step, QUIET_SECONDS)
        self._node = node

    def _hand_out(self, job: Job) -> None:
        most = 0.2 if isinstance(job.lane, tuple) else 0.01
        due = self._scheduler.now + self._scheduler.random.random() * most
        world = self._node.world
        if self._scheduler.chance(world.hangs):
            world.count("store hangs")
            due += self._scheduler.random.choice((1.0, 4.0, 8.0))
        self._jobs.append((due, job))
        self._task.wake(due)

    def step(self) -> bool:
        """Do a job that is due; return whether there was one."""
        due = [entry for entry in self._jobs if entry[0] <= self._scheduler.now]
        if not due:
            return False
        self._jobs.remove(due[0])
        job = due[0][1]
        if self._scheduler.chance(0.5):
            job.took_seconds = 0.0
        try:
            job.value = job.work()
        except Exception as error:
            job.error = error
        self._post(job)
        self._node.wake()
        return True


class SimulatedObserver(StoreObserver):
    """Observes as the real one does; builds as pylance would, later and sometimes not."""

    def __init__(self, node: Node, process: Process) -> None:
        """Observe for one term."""
        super().__init__(node.world.genesis.tables_root, open_store=node.opener(process))
        self._node = node
        self._open = node.opener(process)

    def build(self, wanted: BuildWanted) -> Found:
        """Build on the newest manifest, which can be read by path by now."""
        return self._make(wanted, wanted.version - 1)

    def _make(self, wanted: BuildWanted, head: int) -> Found:
        store = self._open(wanted.location)
        world = self._node.world
        if world.scheduler.chance(world.build_refusals):
            world.count("build refused")
            return Found(Observation("", -1), error="simulated: pylance refuses")
        state, _ = decode_manifest(store.read(f"_versions/{manifest_name(head)}"))
        transaction = LanceTransaction.FromString(wanted.message)
        apply_delta(state, _simple_delta(state, transaction))
        data = wanted.message + b"staged"
        path = f"_versions/{manifest_name(wanted.version)}-{world.requests.uuid()}"
        store.write(path, data)
        return Found(Observation(path, len(data), bytes(32)), data=data, state=state)


class Node:
    """A machine that runs a committer, again after each death."""

    def __init__(self, world: World, number: int) -> None:
        """Begin switched off."""
        self.world = world
        self.number = number
        self.disk: dict[str, bytes] = {}
        self.offsets: dict[str, bytes] = {}
        self.process = Process(f"n{number}", is_alive=False)
        self.session: Session | None = None
        self.leader: Leader | None = None
        self.boots = 0
        self._reads = True
        self.boot_at = 0.0
        self._task: Task | None = None
        self._answers: Answers | None = None
        self._checkpoints: Checkpoints | None = None
        """One for all sessions of a process: a former one may still write."""
        self._is_in_loop = False

    @property
    def address(self) -> str:
        """Where its socket is."""
        return f"{self.process.name}:1"

    @property
    def is_leading(self) -> bool:
        """Whether it believes to lead."""
        return self.process.is_alive and self.leader is not None

    @property
    def is_starting(self) -> bool:
        """Whether its process has recovered nothing yet."""
        return self._answers is None

    def opener(self, process: Process) -> Callable[[str], SimulatedStore]:
        """Return what opens stores for a process."""
        return lambda location: SimulatedStore(self.world.objects, process, location)

    def boot(self) -> None:
        """Start a process."""
        self.boots += 1
        self.process = Process(f"n{self.number}.{self.boots}")
        if self.world.versions is not None:
            self.world.versions.install(self)
        self.session = self.leader = self._answers = self._checkpoints = None
        self._task = self.world.scheduler.add(self.process, "main", self._main, 0.15)
        self.world.scheduler.trace("boot", self.process.name)

    def wake(self) -> None:
        """Let the loop see what was posted."""
        if self._task is not None:
            self._task.wake()

    def _main(self) -> bool:
        try:
            if self.session is None:
                self._begin()
            elif self.leader is None:
                return self._follow(self.session)
            else:
                return self._lead(self.session, self.leader)
        except Unavailable as error:
            # The committer's process ends with this; somebody starts it again.
            self.world.count(f"node ends: {type(error).__name__}")
            self.world.scheduler.kill(self.process, f"{error}")
        except CommitLogError as error:
            self.world.refused(self, error)
        return True

    def _begin(self) -> None:
        world, process = self.world, self.process
        log = world.with_archive(
            SimulatedLog(
                world.log,
                world.auditor.decoders,
                world.scheduler,
                process,
                world.writer_of(process),
            )
        )
        if self._checkpoints is None:
            self._checkpoints = Checkpoints(
                Path("checkpoints"),
                log.identity(),
                world.genesis,
                folder=MemoryFolder(world.scheduler, process, self.disk),
            )
            self._checkpoints._writing = cast(Any, SimulatedLock(world.scheduler, process))
        posts: list[Callable[[Job], None]] = []
        lanes = SimulatedLanes(self, process, lambda job: posts[0](job))
        session = Session(
            log,
            world.genesis,
            self._checkpoints,
            offset_folder=MemoryFolder(world.scheduler, process, self.offsets),
            lanes=lanes,
            open_store=self.opener(process),
            clock=world.scheduler.clock,
        )
        posts.append(session.mailbox.post)
        session.on_readable = self._readable
        session.on_committed = self._committed
        # Only the loop's own turn at the sockets runs there, as between two threads.
        session.mailbox.runs_here = lambda: self._is_in_loop  # type: ignore[method-assign]
        if world.eager_standbys:
            session.materializer.hurry()
        self.session = session
        if self._answers is None:
            self._answers = self._listen(log)
        if session.unwritten.tables():
            world.count("begun with files owed")
        self._add(process, "files", lambda: session.materializer.step(0), lambda: False, 0.2)
        session.catch_up()
        chain = session.follower.replica.chain
        world.auditor.digest(chain.sequence, session.follower.machine.digest(), process.name)
        back = LookingBack(self, process, log, session)
        look_back = partial(self._look_back, session, back)
        self._add(process, "past", look_back, lambda: False, QUIET_SECONDS)

    def _listen(self, log: SimulatedLog) -> Answers:
        """Open the process's socket."""
        world, process = self.world, self.process
        loop = SimulatedEventLoop(world.scheduler, process)
        checks: Any = SimpleNamespace(status=dict)
        old = old_versions_of(self, process, log, lambda: self.session)
        answers = Answers(
            identity={"log": log.name, "log_id": world.genesis.log_id, "partition": 0},
            handler=lambda method, params: requests.handle(method, params),
            lookup=lambda *asked: requests.lookup(*asked),
            finder=lambda chosen, through: requests.find(chosen, through),
            taker=self._take_record,
            connections=partial(SimulatedConnections, world.network, process),
            loop=cast(Any, loop),
        )
        requests = Requests(
            0,
            lambda: SimulatedObserver(self, process),
            old,
            checks,
            lambda: self.session,
            answers.found,
            answers.programs,
        )
        finding: Any = loop
        requests._workers = finding
        answers._connections.listen(process.name, 1)

        def attend() -> bool:
            answers.poll(0)
            if loop.step():
                self.wake()
                return True
            return False

        world.scheduler.add(process, "answers", attend, 0.1)
        world.scheduler.add(process, "finding", loop.work, QUIET_SECONDS)
        return answers

    def _look_back(self, session: Session, back: LookingBack) -> bool:
        if session is self.session:
            back.step()
        return session is self.session

    def _add(
        self,
        process: Process,
        name: str,
        step: Callable[[], bool],
        is_busy: Callable[[], bool] = lambda: True,
        rests_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Add a task that ends by itself."""
        scheduler = self.world.scheduler

        def run() -> bool:
            if not step():
                scheduler.tasks.remove(task)
            return is_busy()

        task = scheduler.add(process, name, run, rests_seconds)

    def _follow(self, session: Session) -> bool:
        world, scheduler = self.world, self.world.scheduler
        session.follow(0)
        chain = session.follower.replica.chain
        if session.written_sequence < chain.sequence:
            self._wake("files")
        leader = chain.leader
        is_silent = leader is None or not world.answers_at(leader.node)
        if not is_silent and not scheduler.chance(world.spurious_campaigns):
            return False
        if not is_silent:
            world.count("two leaders")
        scheduler.sleep(self.process, scheduler.random.random() * 0.3)
        session.catch_up()
        if chain.leader is not leader:
            return True
        epoch = session.campaign(self.address, int(scheduler.now * 1000))
        if not epoch:
            self._end(session)
            return True
        observer = SimulatedObserver(self, self.process)
        session.on_saved = self._saved
        leading = session.lead(epoch, self.address, observer, CHECKPOINT_SECONDS)
        self.leader, self._reads = leading, True
        assert self._answers is not None
        self._answers.begin_term(
            epoch, self.address, chain.sequence, "simulated", appends=leading.appending.is_open
        )
        world.count("terms")
        if world.versions is not None:
            world.versions.leads(self.process)
        scheduler.trace("leads", self.process.name, epoch)
        self._add(
            self.process,
            "acknowledge",
            lambda: self._acknowledge(leading),
            lambda: not leading.is_idle or leading.awaits_kafka,
        )
        return True

    def _take_record(self, sent: RecordSent) -> None:
        """Take a record from a socket."""
        session = self.session
        if session is None or session.leader is None:
            sent.refuse(Unavailable("this committer doesn't lead"), False)
        else:
            self.world.count("record sent to the leader")
            session.mailbox.post(sent)
            self.wake()

    def _saved(self, prepared: PreparedCheckpoint) -> None:
        self.world.count("checkpoints")
        head = json.loads(prepared.encoded_head({}))
        if prepared.owes:
            self.world.count("checkpoint owes files")
            if len(self.world.nodes) == 1:
                self.world.count("kill")
                self.world.scheduler.kill(self.process, "with files owed")
        sequence, digest = head["chain"]["sequence"], bytes.fromhex(head["state_digest"])
        self.world.auditor.digest(sequence, digest, self.process.name)
        if self.world.versions is not None:
            self.world.versions.saved(self, sequence)

    def _acknowledge(self, leading: Leader) -> bool:
        leading.poll()
        return leading is self.leader

    def _lead(self, session: Session, leader: Leader) -> bool:
        world = self.world
        if leader.failure is not None:
            self._end(session)
            if not isinstance(leader.failure, Fenced | Unavailable):
                raise leader.failure
            return True
        assert self._answers is not None
        self._is_in_loop = True
        try:
            self._answers.poll(0)
        finally:
            self._is_in_loop = False
        events = session.mailbox.take(0)
        wanted = leader.appending.wants_reading
        if wanted and not self._reads:
            self.world.count("reading begun again")
            session.follower.transactions.seek(session.follower.replica.transactions_position)
        self._reads = wanted
        if leader.wants_more and wanted:
            reader = session.follower.transactions
            records = reader.poll(records_max=RECORDS_PER_POLL, timeout_seconds=0)
            if records:
                events.append(Read(records))
        session.step(events)
        if world.scheduler.chance(world.pauses_asked):
            world.count("writers asked to pause")
            seconds = world.scheduler.random.choice((0.1, 0.3, 2.0))
            self._answers.pace(leader.waiting(), 0, seconds)
        return bool(events)

    def _end(self, session: Session) -> None:
        """End the term; the next step begins a new session."""
        self.world.scheduler.trace("ends", self.process.name)
        leader, self.leader, self.session = self.leader, None, None
        if self._answers is not None:
            self._answers.end_term()
        if leader is not None:
            leader.close()
        session.close()

    def _wake(self, name: str) -> None:
        self.world.scheduler.wake(self.process, name)

    def _committed(self, events: list[Event]) -> None:
        self._wake("answers")
        self._wake("files")
        if self.leader is not None:
            self.world.auditor.committed(events)
            self.world.answer(self, events)
            if self._answers is not None:
                self._answers.committed(events)

    def _readable(self, events: list[Event]) -> None:
        self.world.auditor.files_written(events)
        self._wake("answers")
        if self.leader is not None and self._answers is not None:
            self._answers.readable(events)
