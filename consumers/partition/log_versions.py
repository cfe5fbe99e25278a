"""The newest version of a table in outcomes that this process hasn't applied yet."""

from __future__ import annotations

import time
from collections.abc import Callable

from commitlog.errors import Unavailable
from commitlog.model.records import Outcome
from commitlog.ports import Log
from consumers.partition.events import versions_of

SILENCE_SECONDS = 10.0


def newest_in_log(
    log: Log,
    partition: int,
    incarnation: str,
    offset: int,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Return a table's newest version in the outcomes from `offset` to the end, 0 if there is none.

    Outcomes of deposed leaders count too: waiting for a version that they named costs little.
    Raise Unavailable if the topic stays silent for SILENCE_SECONDS before its end is read.
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
