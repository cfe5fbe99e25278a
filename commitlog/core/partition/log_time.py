"""The log's clock, made of clocks that may be wrong: the brokers' and the writers'.

An outcome's time follows its record's append time, but never back, and forward only as far as the
writer's own clock confirms, give or take a step. So a log that was idle for a month has the right
time at once, and a broker whose clock is a month ahead moves the log's by a step.

Ids are forgotten by a second clock, which makes a step at most per record: no single record makes
the log forget what it decided. Nor does a broker whose clock is ahead: the second clock goes toward
what a record's writer confirms, or on by as much as the broker's clock did since the last record.
The latter bounds how many ids are kept, whatever the writers' clocks say.
"""

from __future__ import annotations

from commitlog.core.log.deduplication import uuid_time_ms
from commitlog.core.partition.state import PartitionState
from commitlog.model.limits import BOUNDED_CLOCK_SINCE, CLOCK_STEP_MS, CONFIRMED_CLOCK_SINCE
from commitlog.model.records import Outcome, Submitted, Transaction


def time_of(machine: PartitionState, submitted: Submitted) -> int:
    """Return the log's time at a record."""
    before = machine.time_ms
    if machine.rules.protocol < BOUNDED_CLOCK_SINCE:
        return max(before, submitted.append_time_ms)
    return max(before, _confirmed_ms(submitted, before))


def _confirmed_ms(submitted: Submitted, before_ms: int) -> int:
    """Return its append time, as far as the writer's clock or the log's time confirms it."""
    appended = submitted.append_time_ms
    return min(appended, (claimed_ms(submitted) or before_ms or appended) + CLOCK_STEP_MS)


def claimed_ms(submitted: Submitted) -> int:
    """Return when the writer's clock says that a record was made, 0 if nothing says."""
    record = submitted.record
    if not isinstance(record, Transaction):
        return 0
    return max(record.submitted_at_ms, uuid_time_ms(record.transaction_id))


def remember(machine: PartitionState, submitted: Submitted, outcome: Outcome) -> None:
    """Note an outcome under its id.

    The id is kept for a horizon after the time that its writer claims, too, so that a resend which
    claims the same never looks younger than what was forgotten. A claim beyond the horizon would
    keep it, and all ids after it, for ever: it counts as that far ahead.
    """
    kept_from_ms = made_ms = outcome.time_ms
    if machine.rules.protocol >= BOUNDED_CLOCK_SINCE:
        newest_ms = max(outcome.time_ms, submitted.append_time_ms)
        made_ms = min(claimed_ms(submitted), newest_ms + machine.rules.id_horizon_ms)
        kept_from_ms = max(outcome.time_ms, made_ms)
    machine.deduplication.remember(outcome, kept_from_ms, made_ms)


def forget(machine: PartitionState, submitted: Submitted, before_ms: int) -> None:
    """Forget the ids that are older than the horizon; `before_ms` was the time before a record."""
    once, protocol = machine.deduplication, machine.rules.protocol
    now_ms, appended = machine.time_ms, submitted.append_time_ms
    if protocol >= BOUNDED_CLOCK_SINCE:
        since, goal = once.clock_ms or before_ms or now_ms, appended
        if protocol >= CONFIRMED_CLOCK_SINCE:
            if not once.appended_ms:  # the protocol has just come into force
                since, once.appended_ms = min(since, now_ms), appended
            passed = since + appended - once.appended_ms
            goal = min(appended, max(passed, _confirmed_ms(submitted, before_ms)))
            once.appended_ms = appended
        now_ms = once.clock_ms = max(since, min(goal, since + CLOCK_STEP_MS))
    once.prune(now_ms - machine.rules.id_horizon_ms, machine.sequence)


def is_too_old(machine: PartitionState, record: Transaction, time_ms: int) -> bool:
    """Return True if an unknown id may have been decided and forgotten."""
    floor = 0
    if machine.rules.protocol < BOUNDED_CLOCK_SINCE:
        floor = time_ms - machine.rules.id_horizon_ms
    return machine.deduplication.is_too_old(record.transaction_id, record.submitted_at_ms, floor)
