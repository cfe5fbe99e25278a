"""A leader that waits for files before it saves a checkpoint waits without turning in circles.

One of a log at rest saves what it has once.
"""

from __future__ import annotations

from pathlib import Path

from commitlog.adapters.memory import MemoryLog
from consumers.partition.checkpoints.checkpoint import Checkpoints
from consumers.partition.files.events import Read
from consumers.partition.leader import PAUSE_SECONDS_MAX
from consumers.partition.observer import StoreObserver
from consumers.partition.session import Session
from tests.contract.worlds import append_all, transaction, transactions_of
from tests.waiting import wait_until

EVERY_SECONDS = 5.0


def test_while_a_pause_waits_for_files_nothing_is_due(tmp_path: Path) -> None:
    log = MemoryLog()
    genesis = log.create(tables_root=str(tmp_path / "tables"))
    now = [100.0]
    checkpoints = Checkpoints(tmp_path, log.identity(), genesis)
    session = Session(log, genesis, checkpoints, clock=lambda: now[0])
    session.catch_up()
    epoch = session.campaign("here:1", 0)
    leader = session.lead(epoch, "here:1", StoreObserver(genesis.tables_root), EVERY_SECONDS)
    now[0] += EVERY_SECONDS
    session.written_sequence, session._followed_at = -1, now[0]  # it was written until now
    session.step([])
    assert leader.due_at == now[0] + PAUSE_SECONDS_MAX, "it waits for the materializer's word"
    now[0] += PAUSE_SECONDS_MAX * 1.5
    session.step([])
    assert leader.due_at == now[0] + EVERY_SECONDS, "the next one may find more luck"
    leader.close()
    session.close()


def test_a_log_at_rest_is_saved_once(tmp_path: Path) -> None:
    log, now = MemoryLog(), [100.0]
    genesis = log.create(tables_root=str(tmp_path / "tables"))
    checkpoints = Checkpoints(tmp_path, log.identity(), genesis)
    session = Session(log, genesis, checkpoints, clock=lambda: now[0])
    session.catch_up()
    epoch = session.campaign("here:1", 0)
    leader = session.lead(epoch, "here:1", StoreObserver(genesis.tables_root), EVERY_SECONDS)
    saved: list[int] = []
    session.on_saved = lambda prepared: saved.append(session.follower.replica.chain.sequence)

    def is_at_rest() -> bool:
        leader.poll()
        session.materializer.step(0)
        session.step(session.mailbox.take(0))
        return leader.is_idle and leader._paused_since is None and not session.saving.is_under_way

    def pause_thrice() -> None:
        for _ in range(3):
            now[0] += EVERY_SECONDS
            wait_until(is_at_rest, "the end of a pause")

    pause_thrice()
    assert saved == [1], "only the first one had something new: the log's rules"
    append_all(log, [transaction(b"a")])
    leader.hear(Read(transactions_of(log)))
    pause_thrice()
    assert saved == [1, 2]
    leader.close()
    session.close()
