"""The newest version of a table in outcomes that this process hasn't applied yet."""

from __future__ import annotations

from commitlog.adapters.reading import read_to
from commitlog.model.records import Outcome
from commitlog.ports import Log
from consumers.partition.files.events import versions_of

SILENCE_SECONDS = 10.0


def newest_in_log(
    log: Log,
    partition: int,
    incarnation: str,
    offset: int,
) -> int:
    """Return a table's newest version in the outcomes from `offset` to the end, 0 if there is none.

    Outcomes of deposed leaders count too: waiting for a version that they named costs little.
    Raise Unavailable if the topic stays silent for SILENCE_SECONDS before its end is read.
    """
    reader = log.read_outcomes(partition, offset)
    return max(
        (
            version
            for answered in read_to(reader, silence_seconds=SILENCE_SECONDS)
            if isinstance(answered.record, Outcome)
            for named, version in versions_of(answered.record)
            if named == incarnation
        ),
        default=0,
    )
