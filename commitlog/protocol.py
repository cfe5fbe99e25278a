"""What a log is on Kafka: the names, settings and keys of its two topics.

Per topic there are the settings that it is created with, and the ones that are checked at every
start since records would be lost or reordered without them. No two records of a topic ever share
a key: compaction, which keeps the last record of a key, then removes what a tombstone names and
nothing else.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping

from commitlog.errors import InvalidSettings
from commitlog.model.limits import RECORD_BYTES_MAX, RECORD_OVERHEAD_BYTES

MESSAGE_BYTES_MAX = RECORD_BYTES_MAX + RECORD_OVERHEAD_BYTES
"""What topics and clients are set to: the largest record of ours, and what Kafka adds to it."""

LOG_NAME_DEFAULT = "commitlog"

_WEEK_MS = 7 * 24 * 3600 * 1000
# A topic name has at most 249 characters.
_LOG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")

_BOTH: Mapping[str, str] = {
    # Log time: what the broker says, not what a writer's clock says.
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(MESSAGE_BYTES_MAX),
    # An acknowledged record outlives the broker that acknowledged it.
    "unclean.leader.election.enable": "false",
}

TRANSACTIONS_SETTINGS: Mapping[str, str] = {
    **_BOTH,
    "cleanup.policy": "compact",
    # Time for people to see what a tombstone names before it goes, and the tombstone itself.
    "min.compaction.lag.ms": str(_WEEK_MS),
    "delete.retention.ms": str(_WEEK_MS),
}

OUTCOMES_SETTINGS: Mapping[str, str] = {
    **_BOTH,
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}

_EXACT = (
    "cleanup.policy",
    "message.timestamp.type",
    "unclean.leader.election.enable",
    "retention.ms",
    "retention.bytes",
)


def check_log_name(log: str) -> str:
    """Return a log's name if topics can be named after it."""
    if not isinstance(log, str) or _LOG_NAME.fullmatch(log) is None:
        raise InvalidSettings(
            f"{log!r} cannot name a log: topics are named after it. Use 1 to 200 letters, digits,"
            " '.', '_' and '-', beginning with a letter or digit"
        )
    return log


def transactions_topic(log: str) -> str:
    """Return the name of the topic that writers append to."""
    return f"{log}.transactions"


def outcomes_topic(log: str) -> str:
    """Return the name of the topic that leaders append to."""
    return f"{log}.outcomes"


def moved_topic(log: str) -> str:
    """Return the name of the topic that says where a log was moved to, if it was."""
    return f"{log}.moved"


def min_insync_replicas(replication_factor: int) -> int:
    """Return how many replicas must hold a record before it counts as appended."""
    return 2 if replication_factor >= 3 else 1


def settings_at_creation(base: Mapping[str, str], replication_factor: int) -> dict[str, str]:
    """Return a topic's settings for a number of replicas."""
    return {**base, "min.insync.replicas": str(min_insync_replicas(replication_factor))}


def settings_problems(
    topic: str, base: Mapping[str, str], actual: Mapping[str, str], replication_factor: int
) -> list[str]:
    """Say which of a topic's settings would lose, reorder or refuse records; empty if none."""
    problems = [
        f"{topic}: {name} is {actual.get(name, 'unset')}, expected {base[name]}"
        for name in _EXACT
        if name in base and actual.get(name) != base[name]
    ]
    at_least = {
        "max.message.bytes": MESSAGE_BYTES_MAX,
        "min.insync.replicas": min_insync_replicas(replication_factor),
    }
    for name, least in at_least.items():
        if int(actual.get(name, "0")) < least:
            problems.append(
                f"{topic}: {name} is {actual.get(name, 'unset')}, expected at least {least}"
            )
    return problems


def transaction_key(transaction_id: str, session: str = "") -> bytes:
    """Return a key for one append of a transaction; asked again, it returns another one.

    With the same key, compaction would keep the later copy of a resent record and so change the
    order of what was decided. A `session` before the random part says who waits for the outcome.
    """
    nonce = secrets.token_hex(8)
    return (
        f"{transaction_id}/{session}.{nonce}".encode()
        if session
        else f"{transaction_id}/{nonce}".encode()
    )


def session_in_key(key: bytes) -> str:
    """Return the session that a transaction's key names, empty if it names none."""
    session, dot, _ = key.partition(b"/")[2].partition(b".")
    return session.decode("ascii", "replace") if dot else ""


def outcome_key(epoch: int, sequence: int) -> str:
    """Return the key of an outcome."""
    return f"{epoch}/{sequence}"


def leader_key(epoch: int, leader_id: str) -> str:
    """Return the key of a LeaderStarted record."""
    return f"leader/{epoch}/{leader_id}"


def retained_key(sequence: int) -> str:
    """Return a key for one Retained record; asked again, it returns another one."""
    return f"retained/{sequence}/{secrets.token_hex(8)}"


def genesis_key(partition: int) -> str:
    """Return the key of a partition's Genesis record."""
    return f"genesis/{partition}"
