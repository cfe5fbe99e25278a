"""Decides a partition's transactions again, and reads from stores what their leader read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from commitlog.adapters.storage import ObjectStore
from commitlog.core.decisions import Found, Wanted
from commitlog.core.log.replica import Decided
from commitlog.core.partition.machine import Machine
from commitlog.core.partition.recorded import Again, decide_again
from consumers.partition.observer import StoreObserver


class Decider:
    """Decides again, one partition's transactions in their order."""

    def __init__(self, machine: Machine, open_store: Callable[[str], ObjectStore]) -> None:
        """Decide on `machine`, which holds all outcomes before."""
        self._machine = machine
        self._observer = StoreObserver(machine.genesis.tables_root, open_store=open_store)

    def decide(self, decided: Decided, recordings: Mapping[bytes, bytes]) -> Again:
        """Decide a transaction and compare with its outcome."""
        return decide_again(self._machine, decided, recordings, self._look)

    def _look(self, wanted: Wanted) -> Found | None:
        try:
            return self._observer.observe(wanted)
        except OSError:
            return None
