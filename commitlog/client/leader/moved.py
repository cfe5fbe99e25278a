"""Asks whether nothing comes any more because the log was moved to another cluster."""

from __future__ import annotations

import time

from commitlog.errors import CommitLogError, LogMoved
from commitlog.ports import Log

SILENCE_SECONDS = 10.0
ASK_SECONDS = 3.0
"""A limit in seconds, since the caller also has to reconnect, resend or wait."""


def where_moved(log: Log) -> LogMoved | None:
    """Return the error that names where a log is, None if it is here or can't be asked now."""
    try:
        log.check_here(ASK_SECONDS)
    except LogMoved as error:
        return error
    except CommitLogError:
        pass
    return None


class Silence:
    """Asks when nothing has come for a while."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._heard = time.monotonic()

    def note(self, *, heard: bool) -> None:
        """Note whether anything came; raise LogMoved if it can't, since the log is elsewhere."""
        now = time.monotonic()
        if not heard and now - self._heard < SILENCE_SECONDS:
            return
        self._heard = now
        moved = None if heard else where_moved(self._log)
        if moved is not None:
            raise moved
