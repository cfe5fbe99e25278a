"""What decisions saw and is too large for their outcomes: objects below the tables root."""

from __future__ import annotations

from collections.abc import Callable

from commitlog.adapters.storage import ObjectStore, store_for
from commitlog.errors import CorruptLog
from commitlog.model.records import Outcome

RECORDINGS = "_commitlog/recordings"
"""Under the tables root: what a decision saw and is too large for its outcome, by sha256."""


class Recordings:
    """What outcomes recorded outside themselves, below the tables root."""

    def __init__(
        self, tables_root: str, open_store: Callable[[str], ObjectStore] = store_for
    ) -> None:
        """Read them below `tables_root`; empty if the log has none."""
        self._store = open_store(tables_root) if tables_root else None

    def of(self, outcome: Outcome) -> dict[bytes, bytes]:
        """Fetch what an outcome recorded; raise CorruptLog if it is gone."""
        outside = [r.delta for r in outcome.results if r.delta and r.delta.inline is None]
        return {recording.sha256: self._read(recording.sha256) for recording in outside}

    def _read(self, digest: bytes) -> bytes:
        path = f"{RECORDINGS}/{digest.hex()}"
        if self._store is None:
            raise CorruptLog(f"the recording {path} is needed, but the log has no tables root")
        try:
            return self._store.read(path)
        except FileNotFoundError as error:
            raise CorruptLog(
                f"the recording {path} is missing from the log's tables root; restore it"
            ) from error
