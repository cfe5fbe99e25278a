"""Has a worker write what checkpoints prepare: a disk that is slow or hangs holds up nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from commitlog.adapters.disk import with_advice
from commitlog.core.partition.machine import Machine
from consumers.partition.checkpoints.checkpoint import Checkpoint, Checkpoints, Place
from consumers.partition.checkpoints.prepared_checkpoint import PreparedCheckpoint
from consumers.partition.files.offset_index import OffsetIndex
from consumers.partition.lanes import Lanes
from consumers.partition.mailbox import Reply

LANE = "checkpoint"

logger = logging.getLogger(__name__)


class Saving:
    """A session's checkpoints on their way to the disk."""

    def __init__(
        self, checkpoints: Checkpoints, lanes: Lanes, on_saved: Callable[[PreparedCheckpoint], None]
    ) -> None:
        """Tell `on_saved`, on the loop, of each one that was saved."""
        self._checkpoints, self._lanes, self._on_saved = checkpoints, lanes, on_saved
        self._writes: list[PreparedCheckpoint] = []
        self._begun: Place | None = None
        self._saved: Place | None = None
        """Where the last one was taken that was begun, and that was saved."""

    @property
    def is_under_way(self) -> bool:
        """Whether a checkpoint is being written."""
        return any(prepared.head for prepared in self._writes)

    def begin(self, checkpoint: Checkpoint, offsets: OffsetIndex) -> None:
        """Save the state as it is now, unless it was: a log at rest writes nothing.

        One that is still being written is the last one then. A full disk is no reason to stop: the
        next start then reads more of the log.
        """
        if self.is_under_way:
            logger.warning("the last checkpoint is still being written; this one is left out")
        elif checkpoint.place != self._saved:
            self._begun = checkpoint.place
            self._write(self._checkpoints.prepare(checkpoint), offsets.prepare())

    def go_ahead(self, machine: Machine) -> None:
        """Write a part of the next checkpoint, if one got full and nothing is being written."""
        if not self._writes and (prepared := self._checkpoints.prepare_ahead(machine)) is not None:
            self._write(prepared)

    def _write(self, prepared: PreparedCheckpoint, *before: Callable[[], None]) -> None:
        self._writes.append(prepared)

        def work() -> None:
            for other in before:
                other()
            self._checkpoints.write(prepared)

        reply: Reply[None] = Reply(lambda _, error: self._written(prepared, error))
        self._lanes.submit(LANE, work, reply, seconds=inf, what="the checkpoint")

    def _written(self, prepared: PreparedCheckpoint, error: BaseException | None) -> None:
        self._writes.remove(prepared)
        if error is None:
            self._checkpoints.written(prepared)
            if prepared.head:
                self._saved = self._begun
                self._on_saved(prepared)
        elif not isinstance(error, OSError):
            raise error
        else:
            self._checkpoints.failed(error)
            if prepared.head:
                logger.warning("no checkpoint was saved: %s", with_advice(error))
