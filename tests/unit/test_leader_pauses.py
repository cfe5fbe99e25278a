"""A leader that waits for files before it saves a checkpoint waits without turning in circles."""

from __future__ import annotations

from pathlib import Path

from commitlog.adapters.memory import MemoryLog
from consumers.partition.checkpoint import Checkpoints
from consumers.partition.leader import PAUSE_SECONDS_MAX
from consumers.partition.observer import StoreObserver
from consumers.partition.session import Session

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
