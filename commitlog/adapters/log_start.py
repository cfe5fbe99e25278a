"""How a log begins: its first records, and what an existing one must agree with.

Each transactions partition begins with a ProtocolVersion, each outcomes partition with a Genesis.
Partition 0's Genesis is written after every ProtocolVersion and decides between processes that
create the log at once: the first one in the topic rules, and the other partitions repeat it. So a
reader that sees a Genesis knows that rules are in force.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from commitlog.adapters.reading import read_to
from commitlog.codecs.avro import encode_genesis
from commitlog.errors import InvalidSettings, TopicSettings, Unavailable, WrongLog
from commitlog.model.limits import PROTOCOL_SUPPORTED, Rules
from commitlog.model.records import Answered, Genesis, ProtocolVersion
from commitlog.ports import Log, OutcomesWriter, TransactionsWriter
from commitlog.protocol import genesis_key

ID_NAMESPACE = uuid.UUID("5b1c0f9e-6c5f-5d0e-9a63-3f0c3b7a1d42")
"""Names derived from a log's own ids are made in it."""

EndOf = Callable[[bool, int], int]
"""(is it the transactions topic, partition) -> end offset"""


def begin_log(
    log: Log,
    end_of: EndOf,
    partitions: int,
    domains: Mapping[str, int] | None,
    tables_root: str,
    timeout_seconds: float,
) -> None:
    """Append the first records of each partition that has none."""
    identity = log.identity()
    if all(end_of(False, partition) for partition in range(partitions)):
        return
    with closing(log.transactions_writer()) as writer:
        for partition in range(partitions):
            if end_of(True, partition) == 0:
                # The same id from every process that creates the log: an id commits once.
                name = f"{identity.transactions_topic_id}/protocol/{partition}"
                first = protocol_version(
                    str(uuid.uuid5(ID_NAMESPACE, name)), Rules(PROTOCOL_SUPPORTED)
                )
                append_rules(writer, first, partition, timeout_seconds)
            else:
                _expect_no_transaction(log, end_of, partition)
    genesis = Genesis(
        log=log.name,
        log_id=str(uuid.uuid4()),
        cluster_id=identity.cluster_id,
        partition=0,
        domains=tuple(sorted((domains or {}).items())),
        tables_root=tables_root,
        created_at_ms=time.time_ns() // 1_000_000,
    )
    for partition in range(partitions):
        if end_of(False, partition) == 0:
            repeated = dataclasses.replace(genesis, partition=partition)
            _append_genesis(log.outcomes_writer(partition), repeated, timeout_seconds)
        if partition == 0:
            genesis = log.genesis(0)


def _expect_no_transaction(log: Log, end_of: EndOf, partition: int) -> None:
    """Refuse to begin a log over transactions whose outcomes are gone: they may end otherwise."""
    for submitted in read_to(log.read_transactions(partition)):
        if isinstance(submitted.record, ProtocolVersion):
            continue
        if end_of(False, 0):
            return  # another process has begun it, and writers have come
        raise WrongLog(
            f"log {log.name!r} has transactions in partition {partition}, but no Genesis and no "
            "outcomes: their topic was deleted, or a restore or move did not finish. Run that "
            "again, or restore a backup (`commitlog restore`). For a new log, choose another name"
        )


def check_shape(partitions: int, domains: Mapping[str, int] | None) -> None:
    """Refuse a log that cannot be, before anything is made of it."""
    valid = "0" if partitions == 1 else f"0 to {partitions - 1}"
    for domain, partition in (domains or {}).items():
        if not 0 <= partition < partitions:
            raise InvalidSettings(
                f"domain {domain!r} is mapped to partition {partition}, but the log has"
                f" {_counted(partitions)}. Use {valid}"
            )


def _counted(partitions: int) -> str:
    return f"{partitions} partition{'s' if partitions > 1 else ''}"


def expect_partitions(found: int, asked: int, where: str) -> None:
    """Raise WrongLog if a log has another number of partitions than it is to be made with."""
    if found != asked:
        raise WrongLog(
            f"{where} has {_counted(found)}, not {asked}: their number is fixed when a log is"
            f" made. Use {_counted(found)} (`commitlog init --partitions {found}` also completes"
            " a start that was cut short), or another log name"
        )


def expect_begun(log: Log, partitions: int) -> None:
    """Raise WrongLog if a log of several partitions lacks the first record: it has the domains."""
    if partitions > 1 and not log.last_outcome_records(0):
        raise WrongLog(
            f"log {log.name!r} has {partitions} partitions and no first record: the `commitlog"
            " init` that began it was cut short. Run that again, with its --partitions and --domain"
        )


def protocol_version(transaction_id: str, rules: Rules, lance_release: str = "") -> ProtocolVersion:
    """Return the record that puts rules in force, with another release of Lance if one is named."""
    return ProtocolVersion(
        transaction_id=transaction_id,
        protocol=rules.protocol,
        id_horizon_ms=rules.id_horizon_ms,
        history_versions=rules.history_versions,
        operations_max=rules.operations_max,
        lance_release=lance_release,
    )


def expect_beginning(start: int, where: str) -> None:
    """Raise TopicSettings if the first outcomes of a partition are gone."""
    if start:
        raise TopicSettings(
            f"{where} begins at offset {start}: its first records were deleted, and nothing can"
            " follow the log any more. Restore its backup (`commitlog restore`)"
        )


def expect_genesis(
    first: Sequence[Answered], where: str, log: str, partition: int, cluster_id: str
) -> Genesis:
    """Return the Genesis that a partition begins with, if it is this log's on this cluster."""
    if not first:
        raise WrongLog(
            f"{where} is empty: the log {log!r} was never completed, or lost its records. Run"
            " again what was to make it, `commitlog init` with its flags or `commitlog up`; restore"
            " a lost one's backup"
        )
    genesis = first[0].record
    if not isinstance(genesis, Genesis):
        raise WrongLog(
            f"{where} doesn't begin with a Genesis record but with {type(genesis).__name__}: "
            "it was not written by this program, or its first records were removed. Correct "
            "the address or the log name"
        )
    expected = {"log": log, "partition": partition, "cluster_id": cluster_id}
    for name, value in expected.items():
        if (found := getattr(genesis, name)) != value:
            raise WrongLog(
                f"{where} was made with {name} {found!r}, but this is {value!r}: its records were "
                "copied from another log. Correct the address or the log name. To bring a log to "
                "another cluster, use `commitlog move` or `commitlog restore`"
            )
    return genesis


def expect_unchanged(known: Genesis, now: Genesis, address: str) -> None:
    """Raise WrongLog if another log has this one's name."""
    if now.log_id != known.log_id:
        raise WrongLog(
            f"the log {known.log!r} at {address} was deleted, and another one was made by its name:"
            " nothing was appended to that. Open a new client for it"
        )


def expect_same_log(genesis: Genesis, domains: Mapping[str, int] | None) -> Genesis:
    """Return an existing log's Genesis if it maps domains as asked."""
    if domains is not None and tuple(sorted(domains.items())) != genesis.domains:
        raise WrongLog(
            f"log {genesis.log!r} maps domains as {dict(genesis.domains)}, not as "
            f"{dict(domains)}: domains are fixed when a log is created. Use the former, or "
            "another log name"
        )
    return genesis


def append_rules(
    writer: TransactionsWriter, first: ProtocolVersion, partition: int, timeout_seconds: float
) -> None:
    """Append a record that puts rules in force; raise Unavailable if Kafka doesn't take it."""
    errors: list[Exception | None] = []
    writer.append(
        first, partition=partition, on_delivery=lambda _offset, error: errors.append(error)
    )
    writer.flush(timeout_seconds)
    _expect_appended(errors, f"the ProtocolVersion of partition {partition}")


def _append_genesis(writer: OutcomesWriter, genesis: Genesis, timeout_seconds: float) -> None:
    errors: list[Exception | None] = []
    with closing(writer):
        key = genesis_key(genesis.partition)
        writer.append(key, encode_genesis(genesis), lambda _offset, error: errors.append(error))
        deadline = time.monotonic() + timeout_seconds
        while not errors and time.monotonic() < deadline:
            writer.poll(0.1)
    _expect_appended(errors, f"the Genesis of partition {genesis.partition}")


def _expect_appended(errors: Sequence[Exception | None], what: str) -> None:
    if errors == [None]:
        return
    reason = errors[0] if errors else "no acknowledgement in time"
    raise Unavailable(f"{what} could not be appended: {reason}. Run this again") from (
        errors[0] if errors else None
    )
