"""Nodes of two versions at one log: they lead in turn, until a record ends the older one's.

An older program is this one, told to know an older protocol. Each start of a node runs the one or
the other, on the same disk. In the middle of the run the log's protocol is upgraded; from there on
the older program has to stop, visibly and before it misreads anything, however often it is started
again, on whichever checkpoint.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from commitlog.codecs.avro import encode_protocol_version
from commitlog.core.partition import effects
from commitlog.core.partition.machine import Machine
from commitlog.errors import CommitLogError, UnsupportedFormat
from commitlog.model.limits import PROTOCOL_SUPPORTED, Rules
from commitlog.model.records import ProtocolVersion
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

EVERY, FIRST = 17, 6
"""One seed in so many has two versions, from this one on; none that is kept for what it found."""
OLDER = (PROTOCOL_SUPPORTED - 1, PROTOCOL_SUPPORTED - 1, 1)
OLDER_STARTED, OLDER_STARTED_AFTER = 0.5, 0.4
"""How often a start runs the older program, and how often once the protocol is upgraded."""
INSTALLED_PER_SECOND = 0.7
"""How often a node is ended, to start another program."""
ASKED_AGAIN_SECONDS = 1.0


def has_two_versions(seed: int) -> bool:
    """Say whether a seed's nodes run two versions."""
    return seed % EVERY == FIRST


def older_protocol(seed: int) -> int:
    """Return what the older program of a seed knows, which is what its log begins with."""
    return OLDER[seed // EVERY % len(OLDER)]


class Versions:
    """Which node runs which program, and who upgrades the log."""

    def __init__(self, world: World) -> None:
        """Begin with both programs installed."""
        self._world = world
        # Its own chance: what it does must not say what all others do.
        self._random = random.Random(f"versions {world.seed}")
        self._older = world.protocol
        self._knows: dict[str, int] = {}
        """What each process's program knows, by the process's name."""
        self._upgrade_after = self._random.randrange(3, max(4, world.transactions_wanted * 3 // 4))
        self._asked: list[str] = []
        """Ids of the records that upgrade the log's protocol."""
        self._asked_at = 0.0
        self._upgraded_at = 0
        """The sequence by which it was upgraded."""
        self._newer: set[int] = set()
        """Nodes that have a checkpoint of after the upgrade."""
        self._taken_back = -1
        """The node that gets the older program back, though it has such a checkpoint."""
        self._is_taken_back = False
        self._leader = 0
        """What the last leader's program knew."""
        self._next_at = self._random.expovariate(INSTALLED_PER_SECOND)
        self._follow, world.scheduler.after_step = world.scheduler.after_step, self._after_step
        self._process = Process("operator", is_spared=True)
        world.scheduler.add(self._process, "operator", self._step)

    def install(self, node: Node) -> None:
        """Choose the program that a node starts; both versions are there at first."""
        process, rate = node.process, OLDER_STARTED_AFTER if self._asked else OLDER_STARTED
        rate = node.number % 2 if node.boots == 1 else rate
        is_older = self._random.random() < rate and not self._is_over
        if node.number == self._taken_back:
            is_older, self._taken_back = True, -1
        self._knows[process.name] = self._older if is_older else PROTOCOL_SUPPORTED
        self._world.scheduler.trace("runs", process.name, self._knows[process.name])

    def knows(self, process: Process | None) -> int:
        """Return the newest protocol that a process knows."""
        return self._knows.get(process.name if process else "", PROTOCOL_SUPPORTED)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Let each machine be one of the program of the process that makes it."""
        scheduler = self._world.scheduler
        made, restored = Machine.__init__, Machine.from_parts.__func__  # type: ignore[attr-defined]

        def begin(machine: Machine, *given: Any, **named: Any) -> None:
            made(machine, *given, **named)
            knows = self.knows(scheduler.running)
            if knows < PROTOCOL_SUPPORTED:
                decide, apply = machine.decide, machine.apply
                machine.decide = _known_to(knows, decide)  # type: ignore[method-assign]
                machine.apply = _known_to(knows, apply)  # type: ignore[method-assign]

        def from_parts(cls: type[Machine], *given: Any) -> Any:
            return _known_to(self.knows(scheduler.running), restored)(cls, *given)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(Machine, "__init__", begin))
            stack.enter_context(mock.patch.object(Machine, "from_parts", classmethod(from_parts)))
            yield

    def leads(self, process: Process) -> None:
        """Note who leads."""
        known, self._leader = self._leader, self.knows(process)
        if known not in {0, self._leader}:
            self._world.count("leader of another version")

    def is_right(self, node: Node, error: CommitLogError) -> bool:
        """Say whether a node refuses to go on because its program is too old for the log."""
        is_older = self.knows(node.process) < PROTOCOL_SUPPORTED
        is_so = is_older and isinstance(error, UnsupportedFormat) and bool(self._asked)
        if is_so:
            self._is_taken_back |= node.is_starting
            started = "on a newer checkpoint" if node.is_starting else "at the record"
            self._world.count(f"older program stops {started}")
        return is_so

    def saved(self, node: Node, sequence: int) -> None:
        """Note a node's checkpoint."""
        if sequence >= self._upgraded_at > 0:
            self._newer.add(node.number)

    def unsettled(self) -> str:
        """Name what isn't played yet; "" if everything is."""
        if not self._upgraded_at:
            return "the log's protocol isn't upgraded"
        return "" if self._is_taken_back else "no older program was started on a newer checkpoint"

    def check(self) -> None:
        """I19: what upgrades the log is committed, by every leader that decides it."""
        entries = [e for e in self._world.auditor.entries if e.transaction_id in self._asked]
        for entry in entries:
            what = f"I19 the record that upgrades the log is {entry.status} ({entry.code})"
            self._world.auditor.expect(entry.status == "committed", what)

    @property
    def _is_over(self) -> bool:
        return self._world.faults.is_over

    def _step(self) -> bool:
        """Upgrade the log when its time has come; install programs now and then."""
        world, now = self._world, self._world.scheduler.now
        is_time = world.submitted >= self._upgrade_after or self._is_over
        if is_time and not self._upgraded_at and now >= self._asked_at:
            self._asked_at = now + ASKED_AGAIN_SECONDS
            self._upgrade()
        if now < self._next_at:
            return False
        self._next_at = now + self._random.expovariate(INSTALLED_PER_SECOND)
        node = self._random.choice(world.nodes)
        is_newer = node.number in self._newer and bool(node.disk) and not self._is_taken_back
        if node.process.is_alive and (is_newer or not self._is_over):
            self._taken_back = node.number if is_newer else -1
            world.count("program installed")
            world.scheduler.kill(node.process, "to install a program")
        return True

    def _upgrade(self) -> None:
        world, rules = self._world, Rules()
        uuid = world.requests.uuid()
        self._asked.append(uuid)
        numbers = (rules.id_horizon_ms, rules.history_versions, rules.operations_max)
        record = encode_protocol_version(ProtocolVersion(uuid, PROTOCOL_SUPPORTED, *numbers))
        world.cluster.append(world.topics[0], 0, f"{uuid}/x".encode(), record)

    def _after_step(self) -> None:
        """I19: no older program gets to the upgrade, or begins behind it."""
        self._follow()
        world, machine = self._world, self._world.auditor.machine
        if not self._upgraded_at:
            if machine.rules.protocol < PROTOCOL_SUPPORTED:
                return
            world.protocol = PROTOCOL_SUPPORTED
            world.count("protocol upgraded")
            done = (e for e in world.auditor.entries if e.transaction_id in self._asked)
            self._upgraded_at = min(e.sequence for e in done if e.status == "committed")
        for node in world.nodes:
            is_older = self.knows(node.process) < PROTOCOL_SUPPORTED
            if is_older and node.process.is_alive and node.session is not None:
                reached = node.session.follower.machine.sequence
                what = f"I19 {node.process.name} of protocol {self._older} has {reached}"
                what += f", behind the upgrade by {self._upgraded_at}"
                leader = world.auditor.follower.replica.chain.leader
                # One that was deposed and doesn't know it yet goes on for itself.
                is_deposed = node.is_leading and leader is not None and leader.node != node.address
                is_behind = reached >= self._upgraded_at and not is_deposed
                world.auditor.expect(not is_behind, what)


def _known_to(knows: int, call: Callable[..., Any]) -> Callable[..., Any]:
    """Let a program that knows this much make a call; the core waits for nothing."""

    def called(*given: Any, **named: Any) -> Any:
        with mock.patch.object(effects, "PROTOCOL_SUPPORTED", knows):
            return call(*given, **named)

    return called
