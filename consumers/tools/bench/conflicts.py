"""What a conflict check costs: by how many versions it is behind, and by how many fragments.

Histories are made in memory, checks run as the leader runs them, and CPU time is taken, which
other programs on the machine don't change. Beside it stands the number of look-ups, which is the
same on every machine. What was missed are Updates that insert keys, which touch the most; of each
further kind of operation among the missed ones a check pays the same once more.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate
from commitlog.core.conflicts.grid import first_conflict
from commitlog.core.conflicts.history import History
from commitlog.core.manifest.roaring import portable
from commitlog.core.operations.registry import candidate_of, keys_of, write_set_of
from commitlog.core.tables.creation import empty_state
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import KeyHashes

MISSED = (1, 10, 100, 1_000, 10_000)
FRAGMENTS = (1, 10, 100, 1_000, 10_000, 100_000)
BASE_MISSED, BASE_FRAGMENTS = 100, 1_000
OWN = 2**31
"""The fragments that only the candidates touch."""
_ROUNDS, _TRY_SECONDS = 10, 0.02


def run(
    missed: Sequence[int] = MISSED,
    fragments: Sequence[int] = FRAGMENTS,
    report: Callable[[str], None] = lambda line: None,
    *,
    is_timed: bool = True,
) -> dict[str, Any]:
    """Measure both curves; the ratios are the largest cost of a curve to its smallest."""
    checks: list[_Check] = []
    for count in missed:
        report(f"{count} missed versions")
        history = _missed(count, BASE_FRAGMENTS)
        checks.extend(_checks("missed versions", history, count, BASE_FRAGMENTS))
    for count in fragments:
        report(f"{count} fragments")
        history = _missed(BASE_MISSED, count)
        checks.extend(_checks("fragments", history, BASE_MISSED, count))
    if is_timed:
        _time(checks, report)
    curves: dict[str, list[dict[str, Any]]] = {}
    for check in checks:
        curves.setdefault(check.curve, []).append(check.point())
    return {
        "points": [point for points in curves.values() for point in points],
        "ratios": [
            {
                "curve": name,
                "steps": _ratio([point["steps"] for point in points]),
                "time": _ratio([point["microseconds"] for point in points]),
            }
            for name, points in curves.items()
        ],
    }


def _ratio(costs: Sequence[float]) -> float:
    return max(costs) / max(min(costs), 1e-9)


@dataclass(slots=True)
class _Check:
    """One check on one history."""

    curve: str
    candidate: Candidate
    history: History
    missed: int
    fragments: int
    steps: int
    """Look-ups in the history."""
    repeats: int = 1
    seconds: float = 0.0
    """CPU time, the best of several tries; 0 before the first."""

    def run(self) -> float:
        """Return the CPU time of one check, of as many as a try needs to last."""
        after = self.history.head - self.missed
        while True:
            started = time.process_time()
            for _ in range(self.repeats):
                first_conflict(self.candidate, self.history, after)
            spent = time.process_time() - started
            if spent >= _TRY_SECONDS:
                return spent / self.repeats
            self.repeats *= 2

    def point(self) -> dict[str, Any]:
        return {
            "operation": self.candidate.kind,
            "missed_versions": self.missed,
            "fragments": self.fragments,
            "steps": self.steps,
            "microseconds": self.seconds * 1e6,
        }


def _checks(curve: str, history: History, missed: int, fragments: int) -> Iterator[_Check]:
    for candidate in _askers():
        before = history.steps
        assert first_conflict(candidate, history, history.head - missed) is None
        steps = history.steps - before
        yield _Check(
            curve=f"{candidate.kind} by {curve}",
            candidate=candidate,
            history=history,
            missed=missed,
            fragments=fragments,
            steps=steps,
        )


def _time(checks: Sequence[_Check], report: Callable[[str], None]) -> None:
    """Take the best of several rounds, each over all points: a machine's speed changes.

    Without garbage collection, whose time is that of whatever else the process holds.
    """
    gc.collect()
    gc.disable()
    try:
        for number in range(_ROUNDS):
            report(f"round {number + 1} of {_ROUNDS}")
            for check in checks:
                spent = check.run()
                check.seconds = min(check.seconds or spent, spent)
    finally:
        gc.enable()


def _askers() -> list[Candidate]:
    """Return one operation of each kind whose check has the most to look at."""
    delete = Transaction(delete=Transaction.Delete())
    update = Transaction(update=Transaction.Update(fields_modified=[3]))
    for at in range(4):
        delete.delete.updated_fragments.add(id=OWN + at)
        update.update.updated_fragments.add(id=OWN + at)
    update.update.new_fragments.add()
    append = Transaction(append=Transaction.Append())
    append.append.fragments.add()
    rewrite = Transaction(rewrite=Transaction.Rewrite())
    rewrite.rewrite.groups.add().old_fragments.add(id=OWN)
    index = Transaction(create_index=Transaction.CreateIndex())
    index.create_index.new_indices.add(
        name="mine", fields=[9], fragment_bitmap=portable(BitMap([OWN]))
    )
    inserted = KeyHashes((0,), b"".join(number.to_bytes(16) for number in range(100)))
    return [
        candidate_of(one, keys=keys_of(one, keys), declares_key=True)
        for one, keys in (
            (append, inserted),
            (delete, None),
            (update, inserted),
            (rewrite, None),
            (index, None),
        )
    ]


def _missed(versions: int, fragments: int) -> History:
    """Return a history of so many versions, which touch so many fragments between them."""
    history, state = History(0), empty_state()
    each = max(1, -(-fragments // versions))
    for version in range(versions):
        update = Transaction(update=Transaction.Update())
        for at in range(each):
            update.update.updated_fragments.add(id=(version * each + at) % fragments)
        update.update.new_fragments.add()
        inserted = KeyHashes((0,), (2**64 + version).to_bytes(16))
        history.record(str(version), write_set_of(update, inserted, state))
    return history
