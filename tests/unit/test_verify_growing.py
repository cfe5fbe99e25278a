"""Does a walk through a log that grows meanwhile judge each record once?"""

from __future__ import annotations

from commitlog.core.log.replica import Replica
from consumers.tools.verify.walk import Walk
from tests.unit.test_verify import Hand, first


def test_what_was_read_beyond_the_end_is_judged_when_the_end_moves_on() -> None:
    hand = Hand()
    hand.lead(1)
    offset = first(hand)
    made = hand.submit(6)
    for number, transaction in enumerate(made[:2]):
        hand.decide(hand.outcome(transaction, offset + number))
    walk = Walk(hand.log, 0, Replica())
    # These are there when the walk reads, and weren't when it asked for the end.
    for number, transaction in enumerate(made[2:4], 2):
        hand.decide(hand.outcome(transaction, offset + number))
    assert sum(map(len, walk.batches())) == 2
    for number, transaction in enumerate(made[4:], 4):
        hand.decide(hand.outcome(transaction, offset + number))
    walk.extend()
    assert sum(map(len, walk.batches())) == 4
    assert walk.problem is None
    walk.close()
