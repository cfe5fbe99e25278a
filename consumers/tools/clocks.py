"""Are the clocks right: this machine's, the leaders', the brokers', and the log's own?

By this machine's and the leaders', versions and files are old enough to be removed. The brokers'
and the writers' make the log's time, which the log can't turn back.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from commitlog import CommitLog
from commitlog.model.limits import CLOCK_STEP_MS, CONFIRMED_CLOCK_SINCE, GRACE_DAYS
from commitlog.model.records import Outcome
from commitlog.ports import Log
from consumers.tools.rules import rules_in
from consumers.views.health import Check, Level

CLOCK_SECONDS_MAX = 60.0
NEWEST_RECORDS = 16
"""So many are looked through for an outcome."""
_DAY_MS = 86_400_000
_BY_NTP = "set the clocks of both machines by NTP"


def leader_ahead(status: Mapping[str, Any], now_ms: int) -> float | None:
    """Return by how many seconds a leader's clock is ahead; None if it is too old to say its time.

    Its `status` was asked for at `now_ms`.
    """
    said = status.get("clock_ms")
    return None if said is None else (int(said) - now_ms) / 1000


def clock_difference(log: CommitLog) -> str:
    """Say by how much this machine's clock differs from a leader's; empty: by nothing that matters.

    A leader's that differs from the brokers' isn't right, either. Raises Unavailable if a leader
    doesn't answer.
    """
    runtime = log.runtime()
    for partition in range(runtime.partitions):
        status: Any = runtime.request(partition, "status")
        ahead = leader_ahead(status, time.time_ns() // 1_000_000)
        if ahead is not None and abs(ahead) > CLOCK_SECONDS_MAX:
            side = "behind" if ahead > 0 else "ahead of"
            return (
                f"this machine's clock is {abs(ahead):,.0f} s {side} that of the leader"
                f" (partition {partition}); {_BY_NTP}"
            )
        found = brokers_clock(status)
        if found.level is not Level.OK:
            return f"{found.message} (partition {partition}); {found.advice}"
    return ""


def leader_clock(status: Mapping[str, Any], now_ms: int) -> Check:
    """Compare this machine's clock with the one of the leader's machine, asked just now."""
    ahead = leader_ahead(status, now_ms)
    if ahead is None:
        return Check("leader's clock", Level.OK, "the leader is too old to say its time")
    return _compared("leader's clock", "leader's", "this machine's", ahead)


def brokers_clock(status: Mapping[str, Any]) -> Check:
    """Compare the leader's clock with the brokers', by what they acknowledged last.

    A part's machine may have the wrong clock of the leader's: then only the brokers tell.
    """
    ahead_ms = status.get("brokers_ahead_ms")
    if ahead_ms is None:
        return Check("brokers' clock", Level.OK, "the leader is too old to say it")
    ahead = int(ahead_ms) / 1000
    return _compared("brokers' clock", "Kafka brokers'", "the leader's", ahead)


def ids(status: Mapping[str, Any]) -> Check:
    """See that ids of transactions are remembered for as long as the rules say."""
    clock_ms, now_ms = status.get("ids_clock_ms"), status.get("clock_ms")
    if clock_ms is None or now_ms is None:
        return Check("ids", Level.OK, "the leader is too old to say how long it remembers ids")
    refused_for = (int(status["ids_forgotten_ms"]) - int(now_ms)) / 1000
    if refused_for > CLOCK_SECONDS_MAX:
        return Check(
            "ids",
            Level.FAIL,
            "the clocks of a writer and of a broker were ahead, so transactions of writers whose"
            f" clocks are right are refused (TOO_OLD) for {refused_for:,.0f} s more",
            "see that all clocks are right, and wait",
        )
    rules = rules_in(status)
    horizon = rules.id_horizon_ms
    ahead = max(0, int(clock_ms) - int(now_ms))
    kept = horizon - ahead if ahead > CLOCK_STEP_MS else horizon
    if kept >= min(horizon, GRACE_DAYS * _DAY_MS):
        said = f"transaction ids are remembered for {kept / 1000:,.0f} s"
        return Check("ids", Level.OK, said)
    wanted = (GRACE_DAYS * _DAY_MS + ahead) / 1000
    heals = "`commitlog rules --upgrade`, once all programs are new, or "
    return Check(
        "ids",
        Level.WARN if kept > 0 else Level.FAIL,
        "a broker's clock was ahead, so transaction ids are only remembered for"
        f" {max(0, kept) / 1000:,.0f} s: a transaction that comes later than one with a younger id"
        " is refused (TOO_OLD)",
        "see that the brokers' clocks are right, then run "
        f"{heals if rules.protocol < CONFIRMED_CLOCK_SINCE else ''}"
        f"`commitlog rules --id-horizon {wanted + CLOCK_STEP_MS / 1000:.0f}`",
    )


def log_clock(log: Log, now_ms: int) -> Check:
    """Compare the log's time with the brokers' at the newest outcomes, and these with ours."""
    for partition in range(log.partitions()):
        newest = log.last_outcome_records(partition, NEWEST_RECORDS)
        seen = [(one.append_time_ms, one.append_time_ms) for one in newest[-1:]]
        # A term begins with a record that has no time of the log's.
        for one in newest:
            if isinstance(one.record, Outcome):
                seen[1:] = [(one.append_time_ms, one.record.time_ms)]
        for appended_ms, told_ms in seen:
            if appended_ms > now_ms + CLOCK_SECONDS_MAX * 1000:
                ahead = (appended_ms - now_ms) / 1000
                return _compared("clock", "Kafka brokers'", "this machine's", ahead)
            if told_ms > appended_ms + CLOCK_SECONDS_MAX * 1000:
                return Check(
                    "clock",
                    Level.WARN,
                    f"the log's time is {(told_ms - appended_ms) / 1000:,.0f} s ahead of the"
                    " brokers' clock: clocks were ahead once, and the log's never goes back",
                    "set the clocks of brokers and writers by NTP; until that time has come, all"
                    " commits get the same one: read as of versions or positions",
                )
            if appended_ms - told_ms > CLOCK_STEP_MS:
                return Check(
                    "clock",
                    Level.WARN,
                    f"the log's time is {(appended_ms - told_ms) / 1000:,.0f} s behind the"
                    " brokers' clock: who wrote last has a clock that is behind, or waited for a"
                    " leader for so long",
                    "set the clocks of all writers by NTP: new versions seem older than they are",
                )
    return Check("clock", Level.OK, "the log's time is that of the brokers")


def _compared(name: str, whose: str, other: str, ahead: float) -> Check:
    if abs(ahead) <= CLOCK_SECONDS_MAX:
        return Check(name, Level.OK, f"the {whose} clock and {other} agree")
    side = "ahead of" if ahead > 0 else "behind"
    message = f"the {whose} clock is {abs(ahead):,.0f} s {side} {other}"
    return Check(name, Level.WARN, message, _BY_NTP)
