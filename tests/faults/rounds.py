"""What a round breaks, and how it is mended.

A fault is a function of the campaign. When it returns, everything runs again, though maybe not yet
well; then every writer has to commit something that it asked for afterwards.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from consumers.partition.checkpoints.checkpoint_heads import HEAD, files_of
from infra.iceberg_clients import find_go
from tests.faults.audit import Audit
from tests.faults.processes import (
    STOP_CODE,
    Child,
    Cluster,
    Committer,
    Violated,
    Writer,
    wait_for,
)
from tests.faults.proxy import FAIR, Weather
from tests.simulation import porcupine

PROGRESS_SECONDS = 300.0
STOP_SECONDS = 120.0
STOPS_MAX = 5
FROM_NOTHING_EVERY = 20


class Campaign:
    """A cluster under load, and what was done to it."""

    def __init__(self, folder: Path, seed: int, *, committers: int = 2, writers: int = 2) -> None:
        """Start everything and wait until writers commit."""
        self.random = random.Random(seed)
        self.cluster = Cluster(folder, committers=committers, writers=writers)
        self.rounds: Counter[str] = Counter()
        self.takeovers: list[float] = []
        try:
            self.audit = Audit(self.cluster.log, self.cluster.genesis)
            self.await_progress()
        except BaseException:
            self.cluster.close()
            raise

    def run(self, name: str) -> str:
        """Play one round; return what it came to, in a line."""
        time.sleep(self.random.uniform(0.0, 0.5))
        began = time.monotonic()
        what = FAULTS[name](self)
        mended = time.monotonic()
        self.await_progress()
        seconds = time.monotonic() - mended
        self.audit.check(self.cluster.writers)
        self.rounds[name] += 1
        if self.rounds.total() % FROM_NOTHING_EVERY == 0:
            self.audit.check_from_nothing()
        self._check_ends()
        return (
            f"{name}{what and ' ' + what}: {mended - began:.1f} s, all writers commit again after "
            f"{seconds:.1f} s; epoch {self.audit.epoch}, {self.audit.machine.sequence} outcomes"
        )

    def close(self) -> None:
        """End everything."""
        self.audit.close()
        self.cluster.close()

    def await_progress(self) -> None:
        """Wait until every writer has an answer to what it asked from now on."""
        now = time.monotonic()
        for writer in self.cluster.writers:
            try:
                wait_for(
                    partial(_answered, writer, now), PROGRESS_SECONDS, f"{writer.name} commits"
                )
            except Violated as violation:
                raise Violated(f"{violation}; {self._state()}") from violation

    def pause(self, low: float, high: float) -> None:
        """Let some time pass while something is broken."""
        time.sleep(self.random.uniform(low, high))

    def _check_ends(self) -> None:
        for child in self.cluster.children:
            if STOP_CODE in child.codes:
                raise Violated(f"{child.name} refused the log; see {child.name}.log")

    def _state(self) -> str:
        ends = {c.name: c.codes for c in self.cluster.children if c.codes}
        return f"epoch {self.audit.epoch}, processes ended by themselves: {ends}"


def _answered(writer: Writer, since: float) -> bool:
    entries = writer.entries()
    asked = {entry["asked"] for entry in entries if "asked" in entry and entry["at"] > since}
    return any(entry.get("told") in asked for entry in entries)


def _kill_leader(campaign: Campaign) -> str:
    """Kill -9; the standby takes over, and the dead one comes back as a standby."""
    campaign.cluster.await_standby()
    leader = campaign.cluster.await_leader()
    leader.is_wanted = False
    began = time.monotonic()
    leader.kill()
    campaign.cluster.await_leader(other_than=leader, has_decided=True)
    seconds = time.monotonic() - began
    campaign.takeovers.append(seconds)
    leader.is_wanted = True
    return f"{leader.name} (the next commit after {seconds:.2f} s)"


def _kill_leader_and_standby(campaign: Campaign) -> str:
    for committer in campaign.cluster.committers:
        committer.kill()
    return ""


def _kill_standby(campaign: Campaign) -> str:
    standby = campaign.random.choice(campaign.cluster.standbys())
    standby.kill()
    return standby.name


def _freeze(campaign: Campaign, child: Child, low: float, high: float) -> None:
    child.send(signal.SIGSTOP)
    campaign.pause(low, high)
    child.send(signal.SIGCONT)


def _freeze_leader(campaign: Campaign) -> str:
    """SIGSTOP until another one leads; awake again, it is a zombie."""
    leader = campaign.cluster.await_leader()
    leader.send(signal.SIGSTOP)
    campaign.cluster.await_leader(other_than=leader)
    campaign.pause(0.0, 1.0)
    leader.send(signal.SIGCONT)
    return leader.name


def _freeze_leader_shortly(campaign: Campaign) -> str:
    """About as long as a standby waits: who leads then is open."""
    leader = campaign.cluster.await_leader()
    _freeze(campaign, leader, 0.5, 2.0)
    return leader.name


def _freeze_standby(campaign: Campaign) -> str:
    standby = campaign.random.choice(campaign.cluster.standbys())
    _freeze(campaign, standby, 1.0, 3.0)
    return standby.name


def _kill_writer(campaign: Campaign) -> str:
    writer = campaign.random.choice(campaign.cluster.writers)
    writer.kill()
    return writer.name


def _freeze_writer(campaign: Campaign) -> str:
    writer = campaign.random.choice(campaign.cluster.writers)
    _freeze(campaign, writer, 0.5, 3.0)
    return writer.name


def _kill_broker(campaign: Campaign) -> str:
    campaign.cluster.broker.kill()
    campaign.cluster.restart_broker()
    return ""


def _restart_broker(campaign: Campaign) -> str:
    campaign.cluster.broker.stop(30)
    campaign.pause(0.0, 1.0)
    campaign.cluster.restart_broker()
    return ""


def _freeze_broker(campaign: Campaign) -> str:
    broker = campaign.cluster.broker.pid
    os.kill(broker, signal.SIGSTOP)
    campaign.pause(0.5, 6.0)
    os.kill(broker, signal.SIGCONT)
    return ""


def _weather(campaign: Campaign, child: Child, weather: Weather, low: float, high: float) -> str:
    campaign.cluster.proxy.set(child.name, weather)
    campaign.pause(low, high)
    campaign.cluster.proxy.set(child.name, FAIR)
    return child.name


def _leader_of(campaign: Campaign) -> Committer:
    return campaign.cluster.await_leader()


def _cut_leader(campaign: Campaign) -> str:
    return _weather(campaign, _leader_of(campaign), Weather(is_cut=True), 1.0, 4.0)


def _hold_acknowledgements(campaign: Campaign) -> str:
    """What the leader sends arrives; what Kafka answers doesn't."""
    weather = Weather(holds=frozenset({"from"}))
    return _weather(campaign, _leader_of(campaign), weather, 1.0, 4.0)


def _hold_appends(campaign: Campaign) -> str:
    """What the leader sends arrives late, all at once."""
    weather = Weather(holds=frozenset({"to"}))
    return _weather(campaign, _leader_of(campaign), weather, 1.0, 4.0)


def _slow_network(campaign: Campaign) -> str:
    child = campaign.random.choice(campaign.cluster.children)
    return _weather(campaign, child, Weather(delay_seconds=0.3), 2.0, 4.0)


def _cut_writer(campaign: Campaign) -> str:
    writer = campaign.random.choice(campaign.cluster.writers)
    return _weather(campaign, writer, Weather(is_cut=True), 1.0, 4.0)


def _limit(pid: int, limit: int, most: int, seconds: float) -> None:
    """Let a process have at most so much of something for a while."""
    import resource

    before, hard = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (most, hard))
    time.sleep(seconds)
    with contextlib.suppress(ProcessLookupError):  # to end is one way to bear it
        resource.prlimit(pid, limit, (before, hard))


def _no_room(pid: int, seconds: float) -> None:
    """Let a process write no byte into any file, as on a full disk."""
    import resource

    _limit(pid, resource.RLIMIT_FSIZE, 0, seconds)


def _fill_leaders_disk(campaign: Campaign) -> str:
    leader = campaign.cluster.await_leader()
    _no_room(leader.process.pid, campaign.random.uniform(1.0, 3.0))
    return leader.name


def _take_leaders_descriptors(campaign: Campaign) -> str:
    """It keeps the files and sockets that it has, and opens no other."""
    import resource

    leader = campaign.cluster.await_leader()
    _limit(leader.process.pid, resource.RLIMIT_NOFILE, 0, campaign.random.uniform(1.0, 3.0))
    return leader.name


def _fill_brokers_disk(campaign: Campaign) -> str:
    """Kafka gives up a folder that it cannot write to: it ends, and is started again."""
    broker = campaign.cluster.broker
    _no_room(broker.pid, campaign.random.uniform(1.0, 3.0))
    broker.kill()
    campaign.cluster.restart_broker()
    return ""


def _stop_with_checkpoint(campaign: Campaign) -> tuple[Committer, Path]:
    """Stop a leader, which saves its state as it ends; return it and what it saved."""
    for _ in range(STOPS_MAX):
        campaign.cluster.await_standby()
        leader = campaign.cluster.await_leader()
        leader.is_wanted = False
        leader.send(signal.SIGTERM)
        leader.process.wait(STOP_SECONDS)
        if heads := list((leader.root / "checkpoints").rglob(HEAD)):
            return leader, heads[0]
        # Another one took over just then, or files were not written in time.
        leader.is_wanted = True
    raise Violated(f"no leader saved a checkpoint, stopped {STOPS_MAX} times")


def _delete_checkpoint(campaign: Campaign) -> str:
    """A committer that is down loses its checkpoints."""
    committer, head = _stop_with_checkpoint(campaign)
    _delete_files(head.parent)
    committer.is_wanted = True
    return committer.name


def _damage_checkpoint(campaign: Campaign) -> str:
    """A damaged checkpoint is refused, and deleting it is what the message advises."""
    committer, head = _stop_with_checkpoint(campaign)
    files = sorted(files_of(head.read_bytes()))
    path = head.with_name(campaign.random.choice([HEAD, *files]))
    data = bytearray(path.read_bytes())
    data[campaign.random.randrange(len(data))] ^= 1 << campaign.random.randrange(8)
    path.write_bytes(data)
    committer.start()
    code = committer.process.wait(STOP_SECONDS)
    if code != STOP_CODE:
        raise Violated(f"{committer.name} took a damaged checkpoint: it ended with {code}")
    said = Path(f"{campaign.cluster.folder}/{committer.name}.log").read_text(errors="replace")
    if "Delete this folder" not in said:
        raise Violated(f"{committer.name} doesn't say what to do about its checkpoint")
    _delete_files(head.parent)
    committer.start()  # the supervisor leaves who refuses the log alone
    committer.is_wanted = True
    return f"{committer.name} {path.name}"


def _delete_files(folder: Path) -> None:
    for path in folder.rglob("*.*"):
        path.unlink()


def _delete_manifests(campaign: Campaign) -> str:
    """Old manifests vanish: a committer that starts from nothing writes them again."""
    cluster = campaign.cluster
    campaign.audit.read()
    folders = [Path(t.location, "_versions") for t in campaign.audit.machine.tables.values()]

    def manifests(folder: Path) -> list[Path]:
        return sorted(folder.glob("*.manifest"))

    wait_for(
        lambda: all(len(manifests(folder)) > 1 for folder in folders),
        PROGRESS_SECONDS,
        "two versions of each table",
    )
    for committer in cluster.committers:
        committer.is_wanted = False
        committer.kill()
    gone: dict[Path, bytes] = {}
    for folder in folders:
        there = manifests(folder)
        for path in campaign.random.sample(there, len(there) // 2):
            gone[path] = path.read_bytes()
            path.unlink()
    for committer in cluster.committers:
        _delete_files(committer.root / "checkpoints")
        committer.is_wanted = True
    wait_for(lambda: all(path.exists() for path in gone), PROGRESS_SECONDS, "manifests again")
    differing = [path.name for path, data in gone.items() if path.read_bytes() != data]
    if differing:
        raise Violated(f"manifests were written again with other bytes: {differing[:3]}")
    return f"{len(gone)}"


FAULTS: dict[str, Callable[[Campaign], str]] = {
    "kill the leader": _kill_leader,
    "freeze the leader": _freeze_leader,
    "kill the broker": _kill_broker,
    "cut the leader off": _cut_leader,
    "kill leader and standby": _kill_leader_and_standby,
    "kill the standby": _kill_standby,
    "freeze the leader shortly": _freeze_leader_shortly,
    "freeze the standby": _freeze_standby,
    "kill a writer": _kill_writer,
    "freeze a writer": _freeze_writer,
    "restart the broker": _restart_broker,
    "freeze the broker": _freeze_broker,
    "hold acknowledgements": _hold_acknowledgements,
    "hold appends": _hold_appends,
    "slow network": _slow_network,
    "cut a writer off": _cut_writer,
    "fill the leader's disk": _fill_leaders_disk,
    "fill the broker's disk": _fill_brokers_disk,
    "take the leader's descriptors": _take_leaders_descriptors,
    "delete a checkpoint": _delete_checkpoint,
    "damage a checkpoint": _damage_checkpoint,
    "delete manifests": _delete_manifests,
}


def run_campaign(folder: Path, kinds: Sequence[str], *, rounds: int, seed: int) -> int:
    """Play so many rounds, each kind in turn, in an order that the seed gives."""
    campaign = Campaign(folder, seed)
    try:
        names: list[str] = []
        for number in range(1, rounds + 1):
            if not names:
                names = list(kinds)
                campaign.random.shuffle(names)
            print(f"round {number}: {campaign.run(names.pop())}", flush=True)
        campaign.audit.check_from_nothing()
        print(_porcupine(campaign))
        _summarize(campaign)
    except Violated as violation:
        print(f"seed {seed}: {violation}\nsee the logs in {folder}", file=sys.stderr)
        return 1
    finally:
        campaign.close()
    return 0


def _porcupine(campaign: Campaign) -> str:
    """Have Porcupine look for an order that explains what all writers saw."""
    go = find_go()
    if go is None:
        return "porcupine: there is no Go on this machine"
    campaign.audit.read()
    operations = campaign.audit.operations(campaign.cluster.writers)
    program = porcupine.build(go, campaign.cluster.folder)
    [verdict] = porcupine.verdicts(program, [operations])
    if verdict == "illegal":
        raise Violated("Porcupine finds no order of the commits that explains what writers saw")
    return f"porcupine: {len(operations):,} operations, {verdict}"


def _summarize(campaign: Campaign) -> None:
    audit = campaign.audit
    print(f"{campaign.rounds.total()} rounds held: {dict(sorted(campaign.rounds.items()))}")
    print(f"checked: {dict(sorted(audit.checked.items()))}, {audit.machine.sequence} outcomes")
    if campaign.takeovers:
        times = sorted(campaign.takeovers)
        print(
            f"kill -9 of the leader to the next commit, {len(times)} times: shortest "
            f"{times[0]:.2f} s, median {statistics.median(times):.2f} s, longest {times[-1]:.2f} s"
        )
