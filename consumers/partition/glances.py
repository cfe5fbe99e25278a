"""What the loop looks at by itself, for several transactions at once.

Each look gives up the interpreter's lock, for which others wait, and goes outside of the loop; so
the files of all that was read are looked at together. If that takes long, another thread is the
loop when it comes back, and workers look instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from commitlog.core.decisions import FileWanted, Found, Wanted
from commitlog.core.partition.machine import Machine
from commitlog.model.records import Submitted
from consumers.partition.lanes import Lanes
from consumers.partition.mailbox import Displaced
from consumers.partition.observer import StoreObserver

TOGETHER_MAX = 64
"""The most transactions whose files are looked at together."""

Outside = Callable[[Callable[[], Any]], Any]
"""Makes a call on the loop that may take long."""
LaneOf = Callable[[Submitted, str], Hashable]
"""Returns the lane of a record's work in a place."""


class Glances:
    """What the loop saw of files of transactions that it hasn't tried yet. Owned by the loop."""

    def __init__(
        self,
        machine: Machine,
        observer: StoreObserver,
        lanes: Lanes,
        *,
        lane_of: LaneOf,
        outside: Outside,
        clock: Callable[[], float],
    ) -> None:
        """Have seen nothing."""
        self._machine, self._observer, self._lanes = machine, observer, lanes
        self._lane_of, self._outside, self._clock = lane_of, outside, clock
        self._seen: dict[int, dict[Wanted, Found]] = {}
        self._looked_to = -1

    def take(self, offset: int) -> dict[Wanted, Found]:
        """Return what was seen of a transaction's files, once."""
        return self._seen.pop(offset, {})

    def ahead(self, backlog: deque[Submitted]) -> None:
        """Look at the files of the next transactions, unless that was done, as far as it's quick.

        Raises Displaced; then nothing was seen.
        """
        if len(backlog) < 2 or backlog[0].offset <= self._looked_to:
            return
        together = list(islice(backlog, TOGETHER_MAX))
        wanted = [
            (submitted.offset, one, lane)
            for submitted in together
            for one in self._machine.prefetch(submitted, is_next=False)
            if isinstance(one, FileWanted)
            and self._lanes.is_quick(lane := self._lane_of(submitted, one.location))
        ]
        if wanted:
            self._look(wanted)
        self._looked_to = together[-1].offset

    def _look(self, wanted: Sequence[tuple[int, Wanted, Hashable]]) -> None:
        lanes = {lane: None for _, _, lane in wanted}
        for lane in lanes:
            self._lanes.forget(lane)  # until it is known to have been quick this time
        began = self._clock()
        look = partial(self._observer.look_all, [one for _, one, _ in wanted])
        try:
            found = self._outside(look)
        except Displaced as displaced:
            displaced.value = lambda: None
            raise
        took = (self._clock() - began) / len(wanted)
        for lane in lanes:
            self._lanes.note(lane, took)
        for (offset, one, _), seen in zip(wanted, found, strict=True):
            if isinstance(seen, Found):
                self._seen.setdefault(offset, {})[one] = seen
