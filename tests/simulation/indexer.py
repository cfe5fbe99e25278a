"""The version index under simulation: the real one, on a real folder, killed between its steps.

What it committed to DuckDB outlives a kill; what it only gathered doesn't. In the end it holds the
same rows as an index that is built of the whole log at once.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.views.version_index import VersionIndex
from consumers.views.version_index.process import IndexedPartition
from tests.simulation.log import SimulatedLog
from tests.simulation.scheduler import Process
from tests.unit.test_version_index_store import contents

if TYPE_CHECKING:
    from tests.simulation.world import World

FLUSHES, PUBLICATIONS = 0.04, 0.004
"""How often, per step."""


class Indexer:
    """Keeps an index under a folder."""

    def __init__(self, world: World, folder: Path) -> None:
        """Begin with nothing."""
        self._world, self._folder = world, folder
        # Spared: it looks at the real clock, and must not draw chance for the points it passes.
        self.process = Process("index", is_spared=True)
        log = SimulatedLog(world.log, world.auditor.decoders, world.scheduler, self.process)
        self._log, self._stop = world.with_archive(log), threading.Event()
        self._index: VersionIndex | None = None
        self._follower: IndexedPartition | None = None

    def step(self) -> bool:
        """Read a little; sometimes commit it, sometimes publish."""
        if self._index is None or self._follower is None:
            self._open()
            return True
        chance = self._world.scheduler.random
        has_more = self._follower.gather(0.0, self._stop)
        if chance.random() < FLUSHES:
            self._follower.flush(self._index)
        if chance.random() < PUBLICATIONS:
            self._index.publish()
        return bool(has_more)

    def kill(self) -> None:
        """End the process; it starts again at its next step."""
        follower, index, self._follower, self._index = self._follower, self._index, None, None
        if follower is not None:
            follower.close()
        if index is not None:
            self._world.count("index killed")
            self._world.scheduler.trace("kill index")
            index.close()

    def check(self) -> None:
        """Compare it with an index that is built at once."""
        expect = self._world.auditor.expect
        self.kill()
        self._finish()
        with tempfile.TemporaryDirectory() as folder:
            again = Indexer(self._world, Path(folder))
            again._finish()
            rows, expected = contents(self._folder), contents(Path(folder))
        differing = [name for name, found in rows.items() if found != expected[name]]
        expect(not differing, f"I11 the version index differs in {differing}")
        count = len(self._world.auditor.entries)
        expect(len(rows["transactions"]) == count, "I11 the version index misses transactions")
        self._world.count("indices compared")

    def _open(self) -> None:
        index = VersionIndex(self._folder)
        with contextlib.ExitStack() as undo:
            undo.callback(index.close)
            index.bind(asdict(self._log.identity()) | {"log_id": self._log.genesis().log_id})
            position, term = index.position(0), index.last_term(0)
            self._follower = IndexedPartition(self._log, 0, position, term)
            undo.pop_all()
        self._index = index

    def _finish(self) -> None:
        """Read to the end, commit, publish, and end."""
        if self._index is None:
            self._open()
        index, follower = self._index, self._follower
        assert index is not None
        assert follower is not None
        while follower.done < follower.total:
            follower.gather(0.0, self._stop)
        follower.flush(index)
        index.settle()
        index.publish()
        self.kill()
