"""The rules that a log decides by: what they are, and how others come into force.

Rules are records of the log (`ProtocolVersion`), so a replay decides each transaction by
those that held then. A protocol that a program doesn't know stops it there: upgrade all programs
that follow a log before its protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any
from uuid import uuid4

from commitlog.adapters.log_start import append_rules, protocol_version
from commitlog.client.log import CommitLog
from commitlog.errors import CommitLogError, UnsupportedFormat
from commitlog.model.limits import Rules

RECORD_SECONDS = 30.0


def in_force(log: CommitLog) -> list[Rules]:
    """Return what each partition's leader decides by, once it decided what is in the log now."""
    return [rules_in(status) for status in _statuses(log)]


def _statuses(log: CommitLog) -> list[Mapping[str, Any]]:
    runtime = log.runtime()
    return [
        runtime.request(partition, "status", newest_rules=True)
        for partition in range(runtime.partitions)
    ]


def rules_in(status: Mapping[str, Any]) -> Rules:
    """Return the rules that a leader's status has.

    Raises:
        UnsupportedFormat: the leader is so old that it doesn't say them.
    """
    said = status.get("rules")
    if said is None:
        raise UnsupportedFormat(
            "the leader's program is too old to say by which rules it decides: upgrade committers"
            " first"
        )
    releases = tuple((since, release) for since, release in said.get("lance_releases", ()))
    known = {name: said[name] for name in Rules.__dataclass_fields__ if name in said}
    return Rules(**{**known, "lance_releases": releases})


def put_in_force(
    log: CommitLog, change: Callable[[Rules], Rules], lance_release: str = ""
) -> list[Rules]:
    """Change each partition's rules, and what release of Lance manifests name; return the rules.

    Raises:
        UnsupportedFormat: a leader doesn't know that protocol, and would stop; nothing is changed.
        TransactionRejected: a leader refuses them, as it does limits that aren't positive.
        OutcomeUnknown: no answer in time; asking what is in force tells.
    """
    runtime, done = log.runtime(), []
    statuses = _statuses(log)
    before = [rules_in(status) for status in statuses]
    for status, rules in zip(statuses, before, strict=True):
        _check_known(status, rules.protocol, change(rules).protocol)
    try:
        with closing(runtime.log.transactions_writer()) as writer:
            for partition, rules in enumerate(before):
                changed = change(rules)
                records = [protocol_version(str(uuid4()), changed)] if changed != rules else []
                if lance_release not in ("", rules.lance_release):
                    # Apart, behind a protocol under which every program can read it.
                    records.append(protocol_version(str(uuid4()), changed, lance_release))
                for record in records:
                    append_rules(writer, record, partition, RECORD_SECONDS)
                    log.outcome(record.transaction_id, RECORD_SECONDS).raise_for_conflict()
                done.append(str(partition))
        return in_force(log)
    except CommitLogError as error:
        if done:
            error.args = (
                f"{error}. Before, the new rules came into force in partition {', '.join(done)} of"
                f" {len(before)}: `commitlog rules` shows what each has, and the same again changes"
                " the others",
            )
        raise


def _check_known(leader: Mapping[str, Any], has: int, wanted: int) -> None:
    """Refuse a protocol that would stop the leader: its writers would wait for another one."""
    knows = int(leader.get("knows", 0))
    if has < wanted and knows < wanted:
        known = f"protocol {knows}" if knows else "an older protocol"
        raise UnsupportedFormat(
            f"the leader's program knows {known}, and would stop at protocol {wanted}: install this"
            " program where committers run, standbys first, and start them again. `commitlog"
            " upgrade --check` shows what else is old"
        )
