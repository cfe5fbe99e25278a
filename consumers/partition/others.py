"""Foreign records among a leader's outcomes: only the archive may append them.

The archive notes in the outcomes topic what it gives up (`Retained`), while a leader appends there.
Such a record extends no chain, so the term continues behind it. Any other foreign record ends the
term.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from commitlog.adapters.reading import read_to
from commitlog.errors import Fenced, Unavailable
from commitlog.model.records import Outcome, Retained
from commitlog.ports import Log
from consumers.partition.files.events import versions_of
from consumers.partition.lanes import Lanes
from consumers.partition.mailbox import Reply

LOOK_SECONDS = 20.0
_LANE = "what others appended"
OnlyRetained = Callable[[int, int], bool]


class Others:
    """Looks at the records before an offset that a leader didn't append. The loop's own."""

    def __init__(
        self,
        lanes: Lanes,
        only_retained: OnlyRetained,
        *,
        go_on: Callable[[int], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Have `lanes` read; `go_on` is told behind which offset the leader may continue."""
        self._lanes, self._only_retained = lanes, only_retained
        self._go_on, self._fail = go_on, fail
        self.is_looking = False
        self.held: list[tuple[int, int, Exception | None]] = []
        """Acknowledgements that came meanwhile: sequence, offset, error."""

    def look(self, first: int, end: int) -> None:
        """Find out what stands from `first` until before `end`."""
        self.is_looking = True

        def looked(may_stay: bool | None, error: BaseException | None) -> None:
            self.is_looking = False
            if error is not None:
                self._fail(
                    Unavailable(f"what others appended to the outcomes can't be read: {error}")
                )
            elif may_stay:
                self._go_on(end)
            else:
                self._fail(
                    Fenced(
                        f"offsets {first} to {end - 1} of the outcomes topic are not this term's: "
                        "another committer leads by now, as after this one stood still; or "
                        "another process writes to the topic, or an outcome was lost"
                    )
                )

        work = partial(self._only_retained, first, end)
        self._lanes.submit(
            _LANE, work, Reply(looked), seconds=LOOK_SECONDS, what="reading the outcomes topic"
        )


def only_retained(log: Log, partition: int, first: int, end: int) -> bool:
    """Return True if all offsets from `first` until before `end` hold what archiving says there."""
    reader, expected = log.read_outcomes(partition, first), first
    for answered in read_to(reader, end, silence_seconds=LOOK_SECONDS):
        if answered.offset != expected or not isinstance(answered.record, Retained):
            return False
        expected += 1
    return expected >= end


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
