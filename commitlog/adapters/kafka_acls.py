"""What each role of a log may do on its Kafka cluster, and no more.

A role is a kind of process. The rights are those that its work was seen to need on a cluster that
refuses everything else. Kafka implies Describe by Read and Write, and lets a client that may write
to a topic do so idempotently. No role uses consumer groups or Kafka's transactions; the client asks
for the coordinator of the group that its settings name all the same.
"""

from __future__ import annotations

import concurrent.futures
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from commitlog.adapters.kafka_io import answer_of, meaning, new_admin
from commitlog.adapters.kafka_settings import ClientSettings, error_of
from commitlog.errors import InvalidSettings, Unavailable
from commitlog.protocol import check_log_name, moved_topic, outcomes_topic, transactions_topic

APPLY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Role:
    """What processes of one kind do, and the operations that they need on each topic."""

    work: str
    transactions: tuple[str, ...]
    outcomes: tuple[str, ...]
    moved: tuple[str, ...] = ("Read",)
    """On the topic that says where a log was moved."""


_READ = ("Read",)
_WRITE = ("Read", "Write")
_LOOK = ("Read", "DescribeConfigs")
_BOTH = ("Read", "Write", "DescribeConfigs")
_MAKE = ("Create", *_BOTH)
_MOVE = (*_MAKE, "AlterConfigs")

ROLES: Mapping[str, Role] = {
    "init": Role("commitlog init: creates the log's topics and their first records", _MAKE, _MAKE),
    "writer": Role("clients, Spark, commitlog rows: submit and read", _WRITE, _READ),
    "reader": Role("clients that only subscribe or read", _READ, _READ),
    "committer": Role(
        "commitlog committer: decides transactions; only it writes outcomes", _BOTH, _BOTH
    ),
    "server": Role(
        "commitlog server: submits for its clients, and watches the topics", _BOTH, _LOOK
    ),
    "index": Role("commitlog index: follows both topics", _READ, _READ),
    "maintenance": Role("commitlog maintain, orphans: submits and reads", _WRITE, _READ),
    "auditor": Role("commitlog verify, replay, doctor, backup: reads everything", _LOOK, _LOOK),
    "mover": Role(
        "commitlog move, restore: creates and fills a log's topics, and closes the old ones",
        _MOVE,
        _MOVE,
        ("Create", *_WRITE),
    ),
    "archive": Role(
        "commitlog archive: reads everything, and deletes archived records from Kafka",
        _WRITE,
        _WRITE,
    ),
    "eraser": Role(
        "commitlog erase: archives, submits, and starts Kafka's log cleaner",
        (*_BOTH, "AlterConfigs"),
        _WRITE,
    ),
}


@dataclass(frozen=True, slots=True)
class Right:
    """Operations on one resource."""

    kind: str
    """What it is: a topic or a group."""
    name: str
    operations: tuple[str, ...]


def rights_of(role: str, log: str, group: str = "commitlog") -> tuple[Right, ...]:
    """Return what a role needs for a log.

    Raises:
        InvalidSettings: there is no such role, or no log can have that name.
    """
    found = ROLES.get(role)
    if found is None:
        raise InvalidSettings(f"{role!r} is not a role; the roles are {', '.join(ROLES)}")
    check_log_name(log)
    return (
        Right("topic", transactions_topic(log), found.transactions),
        Right("topic", outcomes_topic(log), found.outcomes),
        Right("topic", moved_topic(log), found.moved),
        Right("group", group, ("Describe",)),
    )


def check_principal(principal: str) -> str:
    """Return a principal as Kafka writes it.

    Raises:
        InvalidSettings: it isn't of the form TYPE:NAME.
    """
    kind, colon, name = principal.partition(":")
    if not (kind and colon and name) or not principal.isprintable():
        raise InvalidSettings(
            f"{principal!r} is not a principal: write User:NAME, as the cluster's SASL or TLS"
            " settings give it"
        )
    return principal


def commands(
    rights: Sequence[Right], principals: Sequence[str], servers: str, host: str = "*"
) -> list[str]:
    """Return the `kafka-acls.sh` commands that allow principals what a role needs."""
    lines = []
    for right in rights:
        words = ["kafka-acls.sh", "--bootstrap-server", servers]
        words += ["--command-config", "admin.properties", "--add"]
        for principal in principals:
            words += ["--allow-principal", check_principal(principal)]
        if host != "*":
            words += ["--allow-host", host]
        for operation in right.operations:
            words += ["--operation", operation]
        lines.append(shlex.join([*words, f"--{right.kind}", right.name]))
    return lines


def allow(
    rights: Sequence[Right],
    principals: Sequence[str],
    servers: str,
    settings: Mapping[str, Any],
    host: str = "*",
) -> None:
    """Have the cluster allow principals what a role needs; what is allowed already stays.

    Raises:
        InvalidSettings: the cluster has no authorizer.
        Unavailable: it doesn't answer, or lets these credentials change no ACLs.
    """
    client = ClientSettings(servers, settings)
    wanted = [
        AclBinding(
            getattr(ResourceType, right.kind.upper()),
            right.name,
            ResourcePatternType.LITERAL,
            check_principal(principal),
            host,
            getattr(AclOperation, _constant(operation)),
            AclPermissionType.ALLOW,
        )
        for right in rights
        for principal in principals
        for operation in right.operations
    ]
    try:
        admin = new_admin(client)
        for future in admin.create_acls(wanted, request_timeout=APPLY_SECONDS).values():
            answer_of(future, APPLY_SECONDS + 1)
    except KafkaException as error:
        if error_of(error).code() == KafkaError.SECURITY_DISABLED:
            raise InvalidSettings(
                f"{servers} has no authorizer, so every client may do everything: set "
                "authorizer.class.name on its brokers first"
            ) from error
        raise meaning(admin, client, error, "creating the ACLs of a role") from error
    except concurrent.futures.TimeoutError as error:
        raise Unavailable(
            f"{servers} didn't answer within {APPLY_SECONDS:.0f} s. Run the command again; "
            "ACLs that exist are kept"
        ) from error


def _constant(operation: str) -> str:
    """Return the client's name of an operation: DESCRIBE_CONFIGS of DescribeConfigs."""
    return "".join(f"_{c}" if c.isupper() else c for c in operation).lstrip("_").upper()
