"""The rules that a log decides by: what they are, and how others come into force.

Rules are records of the log (`ProtocolVersion`), so whoever replays it decides each transaction by
those that held then. A protocol that a program doesn't know stops it there: upgrade all programs
that follow a log before its protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from commitlog.adapters.log_start import append_rules, protocol_version
from commitlog.client.log import CommitLog
from commitlog.model.limits import Rules

RECORD_SECONDS = 30.0


def in_force(log: CommitLog) -> list[Rules]:
    """Return what each partition's leader decides by, once it decided what is in the log now."""
    runtime = log.runtime()
    return [
        Rules(**runtime.request(partition, "status", newest_rules=True)["rules"])
        for partition in range(runtime.partitions)
    ]


def put_in_force(log: CommitLog, change: Callable[[Rules], Rules]) -> list[Rules]:
    """Change each partition's rules; return those in force then.

    Raises:
        TransactionRejected: a leader refuses them, as it does limits that aren't positive.
        OutcomeUnknown: no answer in time; asking what is in force tells.
    """
    runtime = log.runtime()
    writer = runtime.log.transactions_writer()
    try:
        for partition, rules in enumerate(in_force(log)):
            changed = change(rules)
            if changed == rules:
                continue
            record = protocol_version(str(uuid4()), changed)
            append_rules(writer, record, partition, RECORD_SECONDS)
            log.outcome(record.transaction_id, RECORD_SECONDS).raise_for_conflict()
    finally:
        writer.close()
    return in_force(log)
