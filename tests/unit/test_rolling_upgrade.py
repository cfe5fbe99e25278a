"""Do an old and a new program take turns at one log, until a ProtocolVersion ends the old one's?

The new program here is this one, which claims to know one protocol more.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.core.partition import effects
from commitlog.errors import UnsupportedFormat
from commitlog.model.limits import PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import CreateTable
from commitlog.model.records import Outcome, ProtocolVersion, Status, Transaction
from consumers.partition.checkpoints.checkpoint import Checkpoint, Checkpoints
from consumers.partition.files.events import Read
from consumers.partition.leader import Leader
from consumers.partition.observer import StoreObserver
from consumers.partition.session import Session
from tests.core_world import FORMAT, column

OLD, NEW = PROTOCOL_SUPPORTED, PROTOCOL_SUPPORTED + 1


class Program:
    """One version of the program on one machine, driven step by step."""

    def __init__(self, cluster: MemoryCluster, root: Path, knows: int) -> None:
        """Begin as a standby."""
        self._log, self._root, self._knows = MemoryLog(cluster), root, knows
        self.leader: Leader | None = None
        with self.runs():
            genesis = self._log.genesis()
            self._observer = StoreObserver(genesis.tables_root)
            checkpoints = Checkpoints(root, self._log.identity(), genesis)
            self.session = Session(self._log, genesis, checkpoints)
            self.session.catch_up()

    @contextmanager
    def runs(self) -> Iterator[None]:
        """Let it be this version whose code runs."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(effects, "PROTOCOL_SUPPORTED", self._knows)
            yield

    def lead(self) -> None:
        """Take the lead."""
        with self.runs():
            self.session.catch_up()
            epoch = self.session.campaign("here:1", 0)
            assert epoch
            self.leader = self.session.lead(epoch, "here:1", self._observer)

    def work(self, until: Callable[[], bool] = lambda: False, steps: int = 20) -> None:
        """Go on for a few steps."""
        for _ in range(steps):
            if until():
                return
            with self.runs():
                if self.leader is None:
                    self.session.follow(0)
                else:
                    self.leader.writer.poll(0)
                    records = self.session.follower.transactions.poll(timeout_seconds=0)
                    self.session.step([*self.session.mailbox.take(0.02), Read(records)])

    @property
    def digest(self) -> bytes:
        """The digest of its state."""
        return self.session.follower.machine.digest()

    @property
    def rules(self) -> Rules:
        """The rules that it decides by."""
        return self.session.follower.machine.rules


@pytest.fixture
def cluster(tmp_path: Path) -> MemoryCluster:
    cluster = MemoryCluster()
    MemoryLog(cluster).create(tables_root=str(tmp_path / "tables"))
    return cluster


def submit(cluster: MemoryCluster, record: Transaction | ProtocolVersion) -> str:
    MemoryLog(cluster).transactions_writer().append(record, partition=0)
    return record.transaction_id


def create(cluster: MemoryCluster, name: str) -> str:
    incarnation = str(uuid.uuid4())
    location = f"{MemoryLog(cluster).genesis().tables_root}/{name}-{incarnation}"
    fields = (column("c0", 0),)
    made = CreateTable((name,), incarnation, location, fields, data_storage_version=FORMAT)
    return submit(cluster, Transaction(str(uuid.uuid4()), (made,)))


def upgrade(cluster: MemoryCluster) -> str:
    rules = Rules()
    return submit(
        cluster,
        ProtocolVersion(str(uuid.uuid4()), NEW, rules.id_horizon_ms, rules.history_versions, 7),
    )


def outcomes(cluster: MemoryCluster) -> dict[str, Status]:
    found = MemoryLog(cluster).read_outcomes(0).poll(timeout_seconds=0)
    return {
        r.record.transaction_id: r.record.status for r in found if isinstance(r.record, Outcome)
    }


@pytest.mark.slow
def test_before_the_record_both_lead_in_turn_with_one_state(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    old = Program(cluster, tmp_path / "old", OLD)
    new = Program(cluster, tmp_path / "new", NEW)
    for first, second, name in ((old, new, "a"), (new, old, "b")):
        first.leader = second.leader = None
        first.lead()
        create(cluster, name)
        first.work()
        second.work()
        assert first.digest == second.digest
    assert list(outcomes(cluster).values()) == [Status.COMMITTED] * 3


@pytest.mark.slow
def test_an_old_leader_stops_at_the_record_and_a_new_one_decides_it(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    old = Program(cluster, tmp_path / "old", OLD)
    new = Program(cluster, tmp_path / "new", NEW)
    old.lead()
    before, record = create(cluster, "before"), upgrade(cluster)
    after = create(cluster, "after")
    old.work()
    assert old.leader is not None
    assert isinstance(old.leader.failure, UnsupportedFormat)
    assert outcomes(cluster).get(before) in {Status.COMMITTED, None}
    assert not {record, after} & outcomes(cluster).keys()
    new.lead()
    new.work()
    assert [outcomes(cluster)[i] for i in (before, record, after)] == [Status.COMMITTED] * 3
    assert (new.rules.protocol, new.rules.operations_max) == (NEW, 7)


@pytest.mark.slow
def test_an_old_standby_stops_at_the_record_and_does_not_lead_after_it(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    old = Program(cluster, tmp_path / "old", OLD)
    new = Program(cluster, tmp_path / "new", NEW)
    new.lead()
    record = upgrade(cluster)
    new.work()
    assert outcomes(cluster)[record] is Status.COMMITTED
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        old.work()
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        Program(cluster, tmp_path / "old again", OLD)
    # Upgraded, it follows and leads.
    again = Program(cluster, tmp_path / "old again", NEW)
    assert again.digest == new.digest
    again.lead()
    name = create(cluster, "t")
    again.work()
    assert outcomes(cluster)[name] is Status.COMMITTED


def test_an_old_program_does_not_start_on_the_checkpoint_of_a_new_one(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    """The record that would stop it lies before the checkpoint."""
    new = Program(cluster, tmp_path, NEW)
    new.lead()
    upgrade(cluster)
    new.work()
    follower, log = new.session.follower, MemoryLog(cluster)
    assert new.rules.protocol == NEW
    checkpoints = Checkpoints(tmp_path, log.identity(), log.genesis())
    checkpoints.save(Checkpoint.of(follower.machine, follower.replica))
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        Program(cluster, tmp_path, OLD)
    assert Program(cluster, tmp_path, NEW).digest == new.digest
