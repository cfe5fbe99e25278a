"""Decides a partition of the log again, record by record, and compares with what was recorded.

The machine is pure, so all it needs is what the leader saw: sizes and hashes of files stand in the
outcome, what pylance or a client built is recorded there as a delta, and deletion vectors are
files that never change. An outcome decided again must seal to the recorded hash. Where a file is
gone (a vacuum may remove it once no version needs it) the outcome is taken as recorded, and
counted; the states that later leaders declared show whether it was right.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from commitlog.adapters.recordings import Recordings
from commitlog.adapters.storage import store_for
from commitlog.client.accepted.row_rebuild import RowHistories, info_of
from commitlog.client.accepted.row_tail import Tail
from commitlog.codecs.avro import seal_outcome
from commitlog.codecs.deletion_file import found_deletions
from commitlog.core.decisions import BytesWanted, Found, VectorWanted, Wanted
from commitlog.core.log.chain import BEGINNING
from commitlog.core.log.replica import Decided
from commitlog.core.partition.machine import Machine
from commitlog.core.partition.recorded import decide_again
from commitlog.model.records import LeaderStarted, Observation, Outcome
from commitlog.ports import Log
from commitlog.spark.log_positions import Stretch, decided_in

DIFFERENCES_MAX = 20
PROGRESS_SECONDS = 1.0


@dataclass(frozen=True)
class Difference:
    """An outcome that would be decided otherwise, or a state that a leader didn't have."""

    sequence: int
    transaction_id: str
    problem: str


@dataclass
class Audited:
    """What was found in one partition."""

    partition: int
    outcomes: int = 0
    recomputed: int = 0
    """Decided again, with the recorded hash as the result."""
    as_recorded: int = 0
    """Not decided again, since a file that the decision read is gone, or isn't what it was."""
    states: int = 0
    """States declared by leaders, and found equal."""
    rows: int = 0
    """Rows that were compared with what the log's writes of rows come to."""
    differences: list[Difference] = field(default_factory=list)
    head: str = ""
    """The hash of the last outcome."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"ok": self.is_whole, **asdict(self)}


OnProgress = Callable[[int, int], None]
"""Called with the outcomes done so far, and the last offset that was read."""


def audit_partition(
    log: Log,
    partition: int,
    end_offset: int,
    on_progress: OnProgress = lambda done, offset: None,
    *,
    contents: bool = False,
) -> Audited:
    """Read a partition from its beginning up to an offset of its outcomes, and decide it again.

    With `contents` tables are rebuilt from what was written by the log, and compared row by row.

    Raises CorruptLog where the chain itself is broken.
    """
    genesis = log.genesis(partition)
    machine, found = Machine(genesis), Audited(partition)
    recordings = Recordings(genesis.tables_root)
    terms: dict[int, bytes] = {}
    """The states that valid leaders declared and that are still to be compared, by sequence."""

    def declared(leader: LeaderStarted) -> None:
        terms[leader.sequence] = leader.state_digest

    whole = Stretch(partition, BEGINNING, end_offset)
    told = time.monotonic()
    histories = RowHistories()
    for decided in decided_in(log, whole, on_leader=declared):
        _check_state(machine, found, terms)
        _audit(machine, decided, found, recordings)
        histories.take(decided)
        if time.monotonic() - told > PROGRESS_SECONDS:
            on_progress(found.outcomes, decided.answered_offset)
            told = time.monotonic()
    _check_state(machine, found, terms)
    if contents:
        _compare_rows(log, machine, histories, found)
    on_progress(found.outcomes, end_offset)
    return found


def _compare_rows(log: Log, machine: Machine, histories: RowHistories, found: Audited) -> None:
    def count(rows: int) -> None:
        found.rows += rows

    with closing(Tail(log, found.partition)) as tail:
        for info in filter(None, map(info_of, machine.tables.values())):
            differing = histories.compare(info, tail, count)
            if differing is not None:
                _differs(found, differing.sequence, "", differing.text)


def _check_state(machine: Machine, found: Audited, terms: dict[int, bytes]) -> None:
    declared = terms.pop(machine.sequence, None)
    if declared is None:
        return
    if declared == machine.digest():
        found.states += 1
    else:
        _differs(found, machine.sequence, "", "a leader started from a different state")


def _audit(machine: Machine, decided: Decided, found: Audited, outside: Recordings) -> None:
    outcome = decided.outcome
    found.outcomes += 1
    found.head = outcome.hash.hex()
    recordings = outside.of(outcome)
    again = decide_again(machine, decided, recordings, _look)
    if again.decision is None:
        found.as_recorded += 1
    elif problem := again.difference or _seal_problem(again.decision.outcome, outcome):
        _differs(found, outcome.sequence, outcome.transaction_id, problem)
    else:
        found.recomputed += 1
    machine.apply(decided.submitted, outcome, recordings=recordings)


def _look(wanted: Wanted) -> Found | None:
    """Read a file again that never changes; None if it is gone, or is of another kind."""
    if not isinstance(wanted, VectorWanted | BytesWanted):
        return None
    try:
        data = store_for(wanted.location).read(wanted.path)
    except OSError:
        return None
    if isinstance(wanted, BytesWanted):
        return Found(Observation.of(wanted.path, data), data=data)
    return found_deletions(wanted.path, data)


def _seal_problem(again: Outcome, outcome: Outcome) -> str:
    """Say if an equal outcome would have another hash, empty if it has the recorded one."""
    sealed, _ = seal_outcome(
        again, previous_hash=outcome.previous_hash, epoch=outcome.epoch, node=outcome.node
    )
    return "" if sealed.hash == outcome.hash else "deciding it again gives another hash"


def _differs(found: Audited, sequence: int, transaction_id: str, problem: str) -> None:
    if len(found.differences) < DIFFERENCES_MAX:
        found.differences.append(Difference(sequence, transaction_id, problem))
