"""When looks for unneeded files of Iceberg tables noticed what they found, kept over processes.

Nothing on record says when the last metadata file that led to a file went: its client may have
removed it. So the first look that finds the file unneeded counts, whichever process made it. The
same holds for what can't be read. The notes are below the tables root, where each maintenance of
the log finds them. They are lost without harm: then times begin with the next look.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field

from commitlog.adapters.storage import store_for
from commitlog.errors import CommitLogError

NOTES = "_commitlog/noticed"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Noticed:
    """Files by their places, and when a look first found them so, in milliseconds."""

    strays: dict[str, int] | None = None
    """What no metadata led to; None: no look has been made."""
    unread: dict[str, int] = field(default_factory=dict)
    """What couldn't be read."""

    def stray_since(self, place: str, now_ms: int) -> int:
        """Return when a stray was noticed; 0 if that was the first look of all."""
        return 0 if self.strays is None else self.strays.get(place, now_ms)


class Notes:
    """The notes of one log, in a file."""

    def __init__(self, tables_root: str, log_id: str) -> None:
        self._store = store_for(tables_root)
        self._path = f"{NOTES}/{log_id}.json"
        self._kept = b""

    def read(self) -> Noticed:
        """Return what earlier looks noticed; what is damaged counts as noticed by the next one."""
        try:
            if self._store.size(self._path) < 0:
                return Noticed()
            self._kept = self._store.read(self._path)
            found = json.loads(self._kept)
            return Noticed(_times(found["strays"]), _times(found["unread"]))
        except (OSError, CommitLogError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("%s cannot be read, so its times begin anew: %r", self._path, error)
            return Noticed({})

    def write(self, noticed: Noticed) -> None:
        """Keep what a look noticed, if that differs from what is kept."""
        found = {"strays": noticed.strays or {}, "unread": noticed.unread}
        data = json.dumps(found, ensure_ascii=True).encode()
        if data == self._kept:
            return
        try:
            self._store.write(self._path, data)
            self._kept = data
        except (OSError, CommitLogError) as error:
            logger.warning("%s cannot be written, so its times begin anew: %s", self._path, error)


def _times(found: dict[str, int]) -> dict[str, int]:
    now_ms = time.time_ns() // 1_000_000
    return {str(place): min(int(at_ms), now_ms) for place, at_ms in found.items()}
