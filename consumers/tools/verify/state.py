"""Where an interrupted verification or replay continues: a checkpoint of its own, and what it
found.

    STATE/<partition>/checkpoint/       the machine and the chain at a sequence
    STATE/<partition>/progress.json     what was found up to the newest such sequences

A process that is killed between the two files finds the older entry beside the older checkpoint.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from commitlog.errors import CommitLogError
from commitlog.model.records import Genesis
from commitlog.ports import Log
from consumers.partition.checkpoints.checkpoint import Checkpoint, Checkpoints
from consumers.partition.checkpoints.checkpoint_proof import check_log_holds
from consumers.partition.files.folders import DiskFolder

PROGRESS = "progress.json"
SAVE_SECONDS = 15.0
SAVE_SHARE = 10.0
"""After a save, wait at least so many times what it took."""
_KEPT = 2


class State:
    """What one partition's run has come to, in a folder."""

    def __init__(
        self,
        folder: Path,
        log: Log,
        genesis: Genesis,
        wanted: Mapping[str, Any],
        save_seconds: float,
    ) -> None:
        """Keep it below `folder`; a run that wants something else starts over."""
        self.path = folder / str(genesis.partition)
        self._folder = DiskFolder(self.path)
        self._log = log
        self._genesis = genesis
        self._wanted = dict(wanted)
        checkpoint = DiskFolder(self.path / "checkpoint")
        self._checkpoints = Checkpoints(folder, log.identity(), genesis, folder=checkpoint)
        self._entries: dict[str, Any] = {}
        self._save_seconds = save_seconds
        self._save_at = time.monotonic() + save_seconds

    @property
    def is_due(self) -> bool:
        """Whether it is time to remember how far the run came."""
        return time.monotonic() >= self._save_at

    def load(self) -> tuple[Checkpoint, dict[str, Any]] | None:
        """Return where to continue, with what was found so far; None: begin at Genesis."""
        try:
            progress = json.loads(self._folder.read(PROGRESS))
            if progress["wanted"] != self._wanted:
                return None
            checkpoint = self._checkpoints.load()
            if checkpoint is None:
                return None
            check_log_holds(self._log, self._genesis.partition, checkpoint)
            found: dict[str, Any] = progress["entries"][str(checkpoint.chain.sequence)]
        except (OSError, ValueError, KeyError, TypeError, CommitLogError):
            # Of another log, of another program, damaged: it spares time and nothing else.
            return None
        self._entries = {str(checkpoint.chain.sequence): found}
        return checkpoint, found

    def save(self, reached: Callable[[], tuple[Checkpoint, Mapping[str, Any]]]) -> None:
        """Remember a position and what was found up to it, as they are told."""
        started = time.monotonic()
        checkpoint, found = reached()
        self._entries[str(checkpoint.chain.sequence)] = dict(found)
        self._entries = dict(list(self._entries.items())[-_KEPT:])
        body = {"wanted": self._wanted, "entries": self._entries}
        self._folder.replace(PROGRESS, json.dumps(body).encode())
        self._checkpoints.save(checkpoint)
        now = time.monotonic()
        self._save_at = now + max(self._save_seconds, (now - started) * SAVE_SHARE)

    def clear(self) -> None:
        """Forget it all."""
        self._entries = {}
        shutil.rmtree(self.path, ignore_errors=True)
