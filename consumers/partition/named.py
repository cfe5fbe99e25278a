"""What the log names beyond what a process has applied, asked of the log itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from commitlog.errors import Unavailable
from commitlog.model.records import Outcome
from commitlog.ports import Log
from consumers.partition.events import versions_of

SILENCE_SECONDS = 10.0


def newest_named(
    log: Log,
    partition: int,
    incarnation: str,
    offset: int,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Return the newest version that outcomes from an offset on give a table, 0 if none does.

    Whether they are valid isn't looked at: a version that a deposed leader named is no one's, and
    to wait for what follows it costs little.
    """
    reader = log.read_outcomes(partition, offset)
    newest = 0
    try:
        end, heard_at = reader.end_offset(), clock()
        while reader.position() < end:
            records = reader.poll(timeout_seconds=0.1)
            for answered in records:
                if isinstance(answered.record, Outcome):
                    for named, version in versions_of(answered.record):
                        newest = max(newest, version if named == incarnation else 0)
            if records:
                heard_at = clock()
            elif clock() - heard_at > SILENCE_SECONDS:
                raise Unavailable(f"the outcomes topic was silent for {SILENCE_SECONDS:.0f} s")
    finally:
        reader.close()
    return newest
