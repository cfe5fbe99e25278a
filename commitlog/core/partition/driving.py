"""Drives a machine through one decision: what every driver has to do.

The machine is pure: it names what it has to look at, and decides once it is told. Its driver
has these duties, in this order:

1. Ask `prefetch`, and look at all that it names. It names what is surely needed, so that one round
   of looks is enough for most records; what it leaves out comes as a `Need`.
2. Call `decide` with all that was seen so far. It changes nothing, so it may be called at any time
   and any number of times, as long as the machine hasn't applied another record in between.
   After that, start again at 1 with nothing seen, since what was seen of a head is stale.
3. On a `Need`, look at what it names and was not seen yet, and go back to 2. Each round has to show
   something new: a machine that asks for what it was shown would ask for ever.
4. Answer every want. If a file isn't there, answer with a `Found` that says so. If the store fails,
   there is no answer: leave the record undecided, and decide nothing on the tables that it locks.
5. Carry out a `Decision`: write its files and recordings, append its outcome, apply it.

There are three policies. *Live*: the leader looks at stores, and has pylance build what a
`BuildWanted` names; meanwhile it parks the record. *Dry*: as live, but builds nothing and skips
5. *Recorded*: a program that decides a log again takes what the leader saw from the outcome
(`recorded`), in the order in which the decision asks; so it looks at nothing beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from commitlog.core.decisions import Decision, Found, Need, Wanted
from commitlog.errors import CorruptLog
from commitlog.model.records import Submitted

if TYPE_CHECKING:
    from commitlog.core.partition.machine import Machine


def next_step(
    machine: Machine, submitted: Submitted, seen: Mapping[Wanted, Found]
) -> Decision | Need:
    """Return the decision, or what has not been looked at yet (duties 1 to 3).

    With nothing seen that is what `prefetch` names; a driver keeps what it saw between two calls.
    """
    if not seen:
        wanted = machine.prefetch(submitted)
        if wanted:
            return Need(wanted)
    step = machine.decide(submitted, seen)
    if isinstance(step, Decision):
        return step
    wanted = tuple(one for one in step.wanted if one not in seen)
    if not wanted:
        raise CorruptLog(
            f"transaction {submitted.record.transaction_id} cannot be decided: the machine asks "
            "for what it was shown"
        )
    return Need(wanted)


def drive(machine: Machine, submitted: Submitted, look: Callable[[Wanted], Found]) -> Decision:
    """Decide a record, looking at one thing after the other."""
    seen: dict[Wanted, Found] = {}
    while isinstance(step := next_step(machine, submitted, seen), Need):
        for wanted in step.wanted:
            seen[wanted] = look(wanted)
    return step
