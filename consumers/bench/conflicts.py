"""What a conflict check costs: by how many versions it is behind, and by how many fragments.

Histories are made in memory, checks run as the leader runs them, and CPU time is taken, which
other programs on the machine don't change. Beside it stands the number of look-ups, which is the
same on every machine. What was missed are Updates that insert keys, which touch the most; of each
further kind of operation among the missed ones a check pays the same once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyroaring import BitMap

from commitlog.core.asking import Asking
from commitlog.core.creation import empty_state
from commitlog.core.deletion_vectors import portable
from commitlog.core.grid import first_conflict
from commitlog.core.history import History
from commitlog.core.touches import keys_of, kind_of, touched
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import KeyHashes

MISSED = (1, 10, 100, 1_000, 10_000)
FRAGMENTS = (1, 10, 100, 1_000, 10_000, 100_000)
BASE_MISSED, BASE_FRAGMENTS = 100, 1_000
OWN = 2**31
"""The fragments that the asking operations touch: nobody else touches these."""
_TRIES, _TRY_SECONDS = 5, 0.02


@dataclass(frozen=True, slots=True)
class Point:
    """One check, measured."""

    operation: str
    missed_versions: int
    fragments: int
    steps: int
    """Look-ups in the history."""
    microseconds: float
    """CPU time, the best of several tries."""


def run(
    missed: Sequence[int] = MISSED,
    fragments: Sequence[int] = FRAGMENTS,
    report: Callable[[str], None] = lambda line: None,
    *,
    is_timed: bool = True,
) -> dict[str, Any]:
    """Measure both curves; the ratios are the largest cost of a curve to its smallest."""
    curves: dict[str, list[Point]] = {}
    for count in missed:
        report(f"{count} missed versions")
        history = _missed(count, BASE_FRAGMENTS)
        at = (count, BASE_FRAGMENTS)
        _measure(curves, "missed versions", history, at, is_timed=is_timed)
    for count in fragments:
        report(f"{count} fragments")
        history = _missed(BASE_MISSED, count)
        _measure(curves, "fragments", history, (BASE_MISSED, count), is_timed=is_timed)
    return {
        "points": [asdict(point) for points in curves.values() for point in points],
        "ratios": [
            {
                "curve": name,
                "steps": _ratio([point.steps for point in points]),
                "time": _ratio([point.microseconds for point in points]),
            }
            for name, points in curves.items()
        ],
    }


def _ratio(costs: Sequence[float]) -> float:
    return max(costs) / max(min(costs), 1e-9)


def _measure(
    curves: dict[str, list[Point]],
    curve: str,
    history: History,
    at: tuple[int, int],
    *,
    is_timed: bool,
) -> None:
    missed = at[0]
    for asking in _askers():
        before = history.steps
        assert first_conflict(asking, history, history.head - missed) is None
        steps = history.steps - before
        microseconds = _time(asking, history, missed) if is_timed else 0.0
        point = Point(asking.kind, *at, steps, microseconds)
        curves.setdefault(f"{asking.kind} by {curve}", []).append(point)


def _time(asking: Asking, history: History, missed: int) -> float:
    after, best, repeats = history.head - missed, float("inf"), 1
    for _ in range(_TRIES):
        while True:
            started = time.process_time()
            for _ in range(repeats):
                first_conflict(asking, history, after)
            spent = time.process_time() - started
            if spent >= _TRY_SECONDS:
                break
            repeats *= 2
        best = min(best, spent / repeats)
    return best * 1e6


def _askers() -> list[Asking]:
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
        Asking(kind_of(one), one, keys=keys_of(one, keys), declares_key=True)
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
        history.record(str(version), touched(update, keys_of(update, inserted), state))
    return history
