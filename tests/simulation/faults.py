"""What goes wrong, when: each seed has some kinds of faults, at random moments.

Kills, pauses and preemptions happen at the scheduler's points and a store's errors at its calls;
the rest happens here, as steps of a task of its own. Which kinds a seed has is left to chance, but
for one of each sort, which follows from its number: a row of seeds has them all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from commitlog.adapters.memory_cluster import AppendCall, Fate
from commitlog.codecs.avro import (
    encode_leader_started,
    encode_protocol_version,
    encode_transaction,
    seal_outcome,
)
from commitlog.model.limits import BOUNDED_CLOCK_SINCE, PROTOCOL_SUPPORTED, Rules
from commitlog.model.records import LeaderStarted, Outcome, ProtocolVersion, Status, Transaction
from tests.simulation.archivist import has_archive
from tests.simulation.auditor import manifest_path
from tests.simulation.maintainer import is_maintained
from tests.simulation.scheduler import Process, Rates
from tests.simulation.versions import has_two_versions

if TYPE_CHECKING:
    from tests.simulation.world import World

HOUR = 3600.0
DAY = 24 * HOUR
YEAR = 365 * DAY
DAY_MS = 24 * 3600 * 1000

RATES: dict[str, tuple[float, ...]] = {
    "kill": (0.0003, 0.001),
    "pause": (0.0005, 0.002),
    "preempt": (0.01, 0.05),
    "append refused": (0.002, 0.01),
    "append lost": (0.002, 0.01),
    "append untold": (0.002, 0.01),
    "append held back": (0.002, 0.01),
    "hole": (0.01,),
    "store error": (0.005, 0.05),
    "stale list": (0.5,),
    "late file": (0.02,),
    "build refused": (0.05,),
    "answer lost": (0.05, 0.3),
    "answer twice": (0.1,),
    "acknowledged twice": (0.004,),
    "two leaders": (0.002, 0.01),
    "overtaken": (0.5, 1.0),
    "hang": (0.01, 0.05),
    "connection cut": (0.005, 0.05),
    "fatal producer": (0.01,),
    "pause asked": (0.002, 0.01),
}
"""How often something goes wrong when it may; one of these, or never."""
TROUBLE_STEPS_MAX = 30_000
"""Some seeds have so many faults that hardly anything commits; they end here."""
COSTLY_EVERY = 100
"""One seed in so many has a record of 16 MiB, and one an id that is sent a thousand times."""

HOT = (
    *("", "", "", "", "append", "create", "disk-replace", "end", "list", "move", "poll", "put"),
    *("read", "size"),
)
"""Kinds of points (their first letters); four in fourteen seeds have none that is special."""

FATES = {
    "append refused": Fate.REFUSE,
    "append lost": Fate.LOSE,
    "append untold": Fate.APPEND_UNTOLD,
    "append held back": Fate.HOLD,
}


def is_costly(seed: int) -> bool:
    """Say whether a seed has a record of 16 MiB, or an id that is sent a thousand times."""
    return seed % COSTLY_EVERY in (1, 2)


def is_upgraded(seed: int) -> bool:
    """Say whether a seed's log, if it begins with an older protocol, may get a newer one."""
    return seed // 8 % 2 == 0 and not has_two_versions(seed)


class Faults:
    """The faults of one run."""

    def __init__(self, world: World) -> None:
        """Choose which kinds this seed has."""
        self.world = world
        self.is_over = False
        scheduler, chance = world.scheduler, world.scheduler.random
        self.process = Process("faults", is_spared=True)
        self._healing: list[tuple[float, Callable[[], None]]] = []
        self._behind: set[int] = set()
        """Writers of which an outcome is held back, and so all that follow it."""
        self._next_at = 0.3
        scheduler.rates = Rates(hot=HOT[world.seed % len(HOT)])
        self.fates = dict.fromkeys(FATES, 0.0)
        self.hole_rate = 0.0
        setters = self._rates()
        for number, (name, rates) in enumerate(RATES.items()):
            rate = chance.choice((0.0, *rates))
            setters[name](rates[-1] if number == world.seed % len(RATES) else rate)
        world.objects.has_put_if_absent = chance.random() < 0.7
        kinds: list[Callable[[], None]] = [
            self._kill_a_node,
            self._pause_a_node,
            self._cut_off,
            self._location_fails,
            self._clock_jumps,
            self._poison_transaction,
            self._poison_outcome,
            self._forge_leader,
            self._forge_outcome,
            self._repeat_an_outcome,
            self._bypass,
            self._compact,
            self._storm,
            self._reuse_id,
            self._new_rules,
            self._release,
            self._tombstone,
            self._kill_a_writer,
            self._fill_a_disk,
            self._control_marker,
            self._kill_the_index,
            self._weeks_pass,
            self._network_goes_down,
            self._cut_a_client_off,
            # Under an older protocol one such append has all later ones refused as too old.
            *([self._brokers_clock_errs] if world.protocol >= BOUNDED_CLOCK_SINCE else []),
        ]
        is_alone = len(world.nodes) == 1  # it is to die with files owed
        surely = self._location_fails if is_alone else kinds[world.seed % len(kinds)]
        self.kinds = [kind for kind in kinds if kind == surely or chance.random() < 0.5]
        if is_upgraded(world.seed) and world.protocol < PROTOCOL_SUPPORTED:
            self.kinds.append(self._upgrade)
        if is_maintained(world.seed):
            self.kinds.append(self._weeks_pass)
        if has_archive(world.seed):
            # The archive takes outcomes of this term that do not follow for tampering, and stops.
            forged = (self._forge_leader, self._forge_outcome)
            self.kinds = [kind for kind in self.kinds if kind not in forged] or kinds[:1]
        if world.seed % COSTLY_EVERY == 1:
            self._often(lambda: world.writers[0].too_large())
        if world.seed % COSTLY_EVERY == 2:
            self._often(lambda: world.writers[0].storm(1000))
        world.cluster.on_append = self.fate
        scheduler.add(self.process, "faults", self.step)

    def _rates(self) -> dict[str, Callable[[float], None]]:
        """Return what sets the rate of each name in `RATES`."""
        world, rates = self.world, self.world.scheduler.rates

        def of(owner: object, name: str) -> Callable[[float], None]:
            return lambda rate: setattr(owner, name, rate)

        return {
            "kill": of(rates, "kill"),
            "pause": of(rates, "pause"),
            "preempt": of(rates, "preempt"),
            **{name: partial(self.fates.__setitem__, name) for name in FATES},
            "hole": of(self, "hole_rate"),
            "store error": of(world.objects, "error_rate"),
            "stale list": of(world.objects, "stale_rate"),
            "late file": of(world, "late_files"),
            "build refused": of(world, "build_refusals"),
            "answer lost": of(world, "answers_lost"),
            "answer twice": of(world, "answers_twice"),
            "acknowledged twice": of(world, "told_twice"),
            "two leaders": of(world, "spurious_campaigns"),
            "overtaken": of(world, "overtaken"),
            "hang": of(world, "hangs"),
            "connection cut": of(world.network, "cuts"),
            "fatal producer": of(world, "fatal_producers"),
            "pause asked": of(world, "pauses_asked"),
        }

    def _often(self, do: Callable[[], bool]) -> None:
        """Try something again and again until it could be done."""
        if not self.is_over and not do():
            self._later(0.3, lambda: self._often(do))

    def count(self, name: str) -> None:
        """Count a fault."""
        self.world.count(name)

    def step(self) -> bool:
        """Heal what is due; sometimes do something bad."""
        scheduler = self.world.scheduler
        # Here and not between steps: a step may be held up until the faults are over.
        if scheduler.steps > TROUBLE_STEPS_MAX and not self.is_over:
            self.heal()
        for due, heal in list(self._healing):
            if due <= scheduler.now:
                self._healing.remove((due, heal))
                heal()
        if not self.is_over and scheduler.now >= self._next_at:
            self._next_at = scheduler.now + scheduler.random.expovariate(1.5)
            scheduler.random.choice(self.kinds)()
        self.world.reboot_the_dead()
        return False

    def heal(self) -> None:
        """Let nothing go wrong from now on."""
        world = self.world
        self.is_over = True
        world.scheduler.rates = Rates()
        world.objects.error_rate = world.objects.stale_rate = 0.0
        world.objects.failing.clear()
        world.objects.hidden.clear()
        world.late_files = world.build_refusals = 0.0
        world.answers_lost = world.answers_twice = world.spurious_campaigns = 0.0
        world.told_twice = world.overtaken = world.hangs = 0.0
        world.fatal_producers = world.pauses_asked = world.network.cuts = 0.0
        healing, self._healing = self._healing, []
        for _, heal in healing:
            heal()
        world.cluster.release()

    def fate(self, append: AppendCall) -> Fate:
        """Decide what becomes of an append."""
        world, scheduler = self.world, self.world.scheduler
        fate, name = Fate.DELIVER, ""
        process = world.writer_processes.get(append.writer)
        if process is not None and process.is_cut_off:
            fate, name = Fate.LOSE, "append while cut off"
        elif not self.is_over:
            drawn = scheduler.random.random()
            for name, rate in self.fates.items():
                if drawn < rate:
                    fate = FATES[name]
                    break
                drawn -= rate
            else:
                name = ""
            if not name and process is not None and drawn < self.hole_rate:
                fate, name = Fate.HOLD, "acknowledgement after a hole"
        if has_archive(world.seed) and append.topic == world.topics[1]:
            fate, name = self._in_order(append, fate, name)
        if name:
            self.count(name)
        scheduler.trace("append", append.topic, append.key.decode(), fate.value)
        for node in world.nodes:
            node.wake()
        return fate

    def _in_order(self, append: AppendCall, fate: Fate, name: str) -> tuple[Fate, str]:
        """Hold back what follows a writer's held outcome, as Kafka does for each producer.

        The archive takes an outcome that lands behind its successor, in one term, for forged.
        """
        if append.writer in self._behind:
            return Fate.HOLD, "append held back"
        if fate is Fate.HOLD:
            self._behind.add(append.writer)
            self._later(self.world.scheduler.random.random(), self._release_in_order)
        return fate, name

    def _release_in_order(self) -> None:
        self._behind.clear()
        self.world.cluster.release()

    def _later(self, seconds: float, heal: Callable[[], None]) -> None:
        self._healing.append((self.world.scheduler.now + seconds, heal))

    def _kill_a_node(self) -> None:
        alive = [n for n in self.world.nodes if n.process.is_alive]
        if alive:
            node = self.world.scheduler.random.choice(alive)
            self.count("kill")
            self.world.scheduler.kill(node.process, "by hand")

    def _pause_a_node(self) -> None:
        """The leader stops for long and wakes up as a zombie."""
        for node in self.world.nodes:
            if node.is_leading:
                self.count("zombie")
                seconds = self.world.scheduler.random.choice((0.5, 3.0))
                node.process.paused_until = self.world.scheduler.now + seconds

    def _cut_off(self) -> None:
        node = self.world.scheduler.random.choice(self.world.nodes)
        if node.process.is_alive:
            self.count("cut off from the log")
            process = node.process
            process.is_cut_off = True
            self._later(self.world.scheduler.random.random() * 3, lambda: _connect(process))

    def _network_goes_down(self) -> None:
        """Clients find no leader for a while, and read the log themselves."""
        network = self.world.network
        self.count("leader's socket is away")
        network.go_down()
        seconds = self.world.scheduler.random.choice((0.5, 4.0))
        self._later(seconds, lambda: setattr(network, "is_down", False))

    def _cut_a_client_off(self) -> None:
        """A client reaches the leader's socket, and not the log."""
        process = self.world.scheduler.random.choice(self.world.clients).process
        self.count("client cut off from the log")
        process.is_cut_off = True
        self._later(self.world.scheduler.random.random() * 3, lambda: _connect(process))

    def _location_fails(self) -> None:
        tables = list(self.world.auditor.machine.tables.values())
        if tables:
            self.count("one location fails for a while")
            location = self.world.scheduler.random.choice(tables).location
            failing = {location} if len(self.world.nodes) > 1 else {one.location for one in tables}
            self.world.objects.failing |= failing
            # For longer than a checkpoint waits for its files, too.
            seconds = 8.0 if self.world.seed % 3 == 0 else 3.0
            self._later(seconds, lambda: self.world.objects.failing.difference_update(failing))

    def _clock_jumps(self) -> None:
        self.count("clock jump")
        chance = self.world.scheduler.random
        jump = chance.choice((HOUR, -HOUR, HOUR, -HOUR, 0.02 * YEAR))
        self.world.clock_offset += jump
        self.world.scheduler.trace("clock", self.world.clock_offset)

    def _brokers_clock_errs(self) -> None:
        """The broker's clock is far off for a while; the writers' clocks are right."""
        world, chance = self.world, self.world.scheduler.random
        wrong = chance.choice((30 * DAY, -30 * DAY, YEAR))
        self.count("broker's clock errs")
        world.broker_error = wrong
        world.scheduler.trace("broker's clock", wrong)
        self._later(chance.choice((0.05, 1.0)), self._set_the_brokers_clock)

    def set_all_clocks(self) -> None:
        """Let no clock be behind the log's: until then all that is made is too old for it.

        Records that were appended while the broker's clock was wrong are decided after the healing.
        """
        world, machine = self.world, self.world.auditor.machine
        newest_ms = max(machine.time_ms, machine.deduplication.clock_ms)
        if newest_ms >= world.now_ms():
            world.clock_offset += (newest_ms - world.now_ms() + 1) / 1000
            world.scheduler.trace("clock", world.clock_offset)

    def _set_the_brokers_clock(self) -> None:
        self.world.broker_error = 0.0

    def _weeks_pass(self) -> None:
        """Log time in which every id is forgotten."""
        self.count("weeks pass")
        self.world.clock_offset += self.world.scheduler.random.choice((8, 30)) * DAY
        self.world.scheduler.trace("clock", self.world.clock_offset)

    def _append_raw(self, is_outcome: bool, key: bytes, value: bytes | None) -> None:
        topic = self.world.topics[1 if is_outcome else 0]
        self.world.cluster.append(topic, 0, key, value)

    def _poison_transaction(self) -> None:
        chance = self.world.scheduler.random
        self.count("poison transaction")
        good = encode_transaction(Transaction(self.world.requests.uuid(), ()))
        value = chance.choice(
            (b"", b"\xc3\x01", b"not a record", good[:-3], good + b"x", b"\xc3\x01" + b"?" * 30)
        )
        self._append_raw(False, f"{self.world.requests.uuid()}/x".encode(), value)

    def _tombstone(self) -> None:
        """A stray tombstone that names no record."""
        self.count("stray tombstone")
        self._append_raw(False, f"{self.world.requests.uuid()}/x".encode(), None)

    def _poison_outcome(self) -> None:
        self.count("poison outcome")
        value = self.world.scheduler.random.choice((b"", b"rubbish", b"\xc3\x01" + b"?" * 40))
        self._append_raw(True, f"poison/{self.world.requests.uuid()}".encode(), value)

    def _forge_leader(self) -> None:
        """An epoch that is equal, late, or beyond the next."""
        self.count("equal, late or far epoch")
        self.world.auditor.follow()
        chain = self.world.auditor.follower.replica.chain
        epoch = chain.epoch + self.world.scheduler.random.choice((-1, 0, 0, 2, 1000))
        uuid = self.world.requests.uuid()
        started = LeaderStarted(epoch, "nowhere:1", uuid, chain.sequence, chain.hash, bytes(32))
        self._append_raw(True, f"leader/{epoch}/{uuid}".encode(), encode_leader_started(started))

    def _forge_outcome(self) -> None:
        """An outcome of the right epoch and sequence that doesn't continue the chain."""
        self.world.auditor.follow()
        chain = self.world.auditor.follower.replica.chain
        self.count("fork of the chain")
        outcome = Outcome(chain.sequence + 1, self.world.requests.uuid(), 0, Status.COMMITTED)
        _, record = seal_outcome(
            outcome, previous_hash=bytes(32), epoch=chain.epoch, node="nowhere:1"
        )
        self._append_raw(True, f"fork/{self.world.requests.uuid()}".encode(), record)

    def _repeat_an_outcome(self) -> None:
        """A record of the topic again, as a producer without idempotence sends it."""
        records = self.world.cluster.topics[self.world.topics[1]].partitions[0].records
        # Not those of our forged leaders: a far epoch, said again later, may be the next one.
        genuine = [r for r in records[-8:] if b"nowhere:1" not in (r.value or b"")]
        if not genuine:
            return
        self.count("outcome twice in the topic")
        record = self.world.scheduler.random.choice(genuine)
        key = f"again/{self.world.requests.uuid()}".encode()
        self._append_raw(True, key, record.value)

    def _bypass(self) -> None:
        """Somebody commits by path, under the next version's name."""
        world = self.world
        tables = [t for t in world.auditor.machine.tables.values() if t.version]
        if not tables:
            return
        table = world.scheduler.random.choice(tables)
        ahead = world.scheduler.random.choice((1, 1, 2))
        path = manifest_path(table.location, table.version + ahead)
        if path in world.objects.bytes:
            return
        data = f"written around the log {world.requests.uuid()}".encode()
        world.auditor.rogue.add(hashlib.sha256(data).digest())
        self.count("manifest written around the log")
        world.rogue_paths.append((path, data))
        world.objects.put(self.process, path, data)

    def _compact(self) -> None:
        """The cleaner runs while somebody starts from nothing."""
        self.count("compaction during a bootstrap")
        self.world.cluster.compact(self.world.topics[0])
        node = self.world.scheduler.random.choice(self.world.nodes)
        if not node.is_leading:
            self.world.scheduler.kill(node.process, "to begin from nothing")
            node.disk.clear()

    def _kill_a_writer(self) -> None:
        self.world.scheduler.random.choice(self.world.writers).die()

    def _kill_the_index(self) -> None:
        if self.world.indexer is not None:
            self.world.indexer.kill()

    def _fill_a_disk(self) -> None:
        """A node can save no checkpoint for a while."""
        nodes = self.world.nodes
        leading = [node for node in nodes if node.is_leading]
        process = self.world.scheduler.random.choice(leading or nodes).process
        process.is_disk_full = True
        self._later(3.0, lambda: setattr(process, "is_disk_full", False))

    def _control_marker(self) -> None:
        """An offset that holds no record, as another program's Kafka transaction leaves it."""
        self.count("offset without a record")
        topic = self.world.scheduler.random.choice(self.world.topics)
        self.world.cluster.partition(topic, 0).end += 1

    def _storm(self) -> None:
        copies = self.world.scheduler.random.choice((5, 20))
        self.world.scheduler.random.choice(self.world.writers).storm(copies)

    def _reuse_id(self) -> None:
        self.world.scheduler.random.choice(self.world.writers).reuse_id()

    def _new_rules(self) -> None:
        """New limits come into force in the middle."""
        chance = self.world.scheduler.random
        self.count("new rules")
        rules = replace(
            Rules(),
            id_horizon_ms=chance.choice((DAY_MS, 7 * DAY_MS, 3_600_000)),
            history_versions=chance.choice((5, 100, 100_000)),
        )
        uuid = self.world.requests.uuid()
        record = ProtocolVersion(
            uuid,
            self.world.protocol,
            rules.id_horizon_ms,
            rules.history_versions,
            rules.operations_max,
        )
        self._append_raw(False, f"{uuid}/x".encode(), encode_protocol_version(record))

    def _upgrade(self) -> None:
        """The log goes on by a newer protocol, which all programs know."""
        world, rules = self.world, Rules()
        if world.protocol == PROTOCOL_SUPPORTED:
            return
        world.protocol = min(
            world.protocol + self.world.scheduler.random.choice((1, 5)), PROTOCOL_SUPPORTED
        )
        uuid = world.requests.uuid()
        numbers = (rules.id_horizon_ms, rules.history_versions, rules.operations_max)
        record = encode_protocol_version(ProtocolVersion(uuid, world.protocol, *numbers))
        self._append_raw(False, f"{uuid}/x".encode(), record)
        self.count("log upgraded")

    def _release(self) -> None:
        """What was held back lands, late."""
        if self.world.cluster.release(self.world.scheduler.random.choice((1, 3, None))):
            self.count("held back records land late")


def _connect(process: Process) -> None:
    process.is_cut_off = False
