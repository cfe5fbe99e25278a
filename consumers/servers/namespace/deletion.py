"""Old versions, deleted by ranges.

Ranges of the protocol have an inclusive start and an exclusive end; -1 as end is everything from
the start up to the newest version. The log deletes only what is older than a table's newest
version, so deleting that one too makes a newer one first, in the same record: the newest version
that stays is restored, or, if none stays, all rows are deleted. Numbers are never given again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import lance
from lance_namespace import (
    BatchDeleteTableVersionsRequest,
    InvalidInputError,
    InvalidTableStateError,
)

from commitlog.adapters.lance_refs import lance_tags
from commitlog.client.commits.submission import as_operation
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.lance_request import new_transaction_id
from commitlog.core.catalogue.version_deletion import held_versions, merged, without
from commitlog.core.tables.lance_tables import VersionRanges, is_in
from commitlog.model.operations import INCARNATION, DeleteTableVersions, LanceCommit, Operation
from commitlog.model.records import Code, Outcome, Status, Transaction
from commitlog.model.table import TableId
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.native import refuse_branch
from consumers.servers.namespace.service import ATTEMPTS_MAX, Service

EVERYTHING = -1
"""As end: up to the newest version."""


def delete_versions(service: Service, call: Call) -> dict[str, Any]:
    """Delete a table's versions by ranges; versions that aren't there count for nothing."""
    request = call.read(BatchDeleteTableVersionsRequest, {"ranges", "branch"})
    refuse_branch(call, service.info(call.table).table_id, request.branch)

    first = service.first_answer(call)
    outcome, transaction = first or _delete(service, call, request.ranges)
    done = transaction.operations[-1]
    assert isinstance(done, DeleteTableVersions)
    return deleted(done, outcome.transaction_id)


def _delete(service: Service, call: Call, ranges: Iterable[Any]) -> tuple[Outcome, Transaction]:
    """Commit a deletion; again if the table has other versions by then."""
    transaction_id, life = call.key or new_transaction_id(), ""
    for attempt in range(ATTEMPTS_MAX):
        info = service.info(call.table)
        life = life or info.incarnation
        outcome, transaction = service.submit(
            call,
            deletion(service, info, wanted(ranges, info.version), info.deleted),
            transaction_id,
            is_new=call.key is None and attempt == 0,
            attempt=attempt,
            properties=naming([life]),
        )
        if outcome.status is not Status.RETRYABLE and outcome.code is not Code.EXPECTATION_FAILED:
            break
    outcome.raise_for_conflict()
    return outcome, transaction


def naming(lives: Iterable[str]) -> list[tuple[str, str]]:
    """Return what a record says of the tables whose versions it deletes, if that is one.

    Another table may have the name by the time that the log decides.
    """
    found = {*lives}
    return [(INCARNATION, life) for life in found] if len(found) == 1 else []


def deleted(done: DeleteTableVersions, transaction_id: str) -> dict[str, Any]:
    """Describe a deletion: a record names exactly the versions that were there."""
    count = sum(last - first + 1 for first, last in done.ranges)
    return {"deleted_count": count, "transaction_id": transaction_id}


def wanted(ranges: Iterable[Any], newest: int) -> VersionRanges:
    """Return the versions from 1 to the newest that a request's ranges name."""
    found: list[tuple[int, int]] = []
    for index, one in enumerate(ranges):
        start, end = one.start_version, one.end_version
        if start < 0 or (end != EVERYTHING and end < start):
            raise InvalidInputError(
                f"ranges[{index}]: start_version must be from 0 to end_version, and "
                f"end_version may be -1 for everything up to the newest; not {start} and "
                f"{end}"
            )
        first, last = max(start, 1), newest if end == EVERYTHING else min(end - 1, newest)
        if first <= last:
            found.append((first, last))
    return merged(found)


def deletion(
    service: Service,
    info: TableInfo,
    versions: VersionRanges,
    gone: VersionRanges,
    newest: int | None = None,
) -> list[Operation]:
    """Return the operations that delete versions; `gone` are deleted already.

    `newest` is the newest version that stands by then, the table's own unless it is given.
    """
    ranges = without(versions, gone)
    _check_references(service, info, ranges)
    operations: list[Operation] = []
    if info.version == (newest or info.version) and is_in(info.version, ranges):
        operations.append(_newer_version(service, info, merged(gone, ranges)))
    else:
        for _, last in ranges:
            # Where only some versions have a file, the next one must not be built on these.
            if last < info.version and not is_in(last + 1, gone):
                service.readable(info, last + 1)
    return [*operations, DeleteTableVersions(info.table_id, ranges)]


def refuse_version(table: TableId, operations: Iterable[Operation]) -> None:
    """Refuse to create a version of which an earlier deletion in the same record takes the place.

    Nobody could stage the one after it.
    """
    if any(isinstance(one, LanceCommit) and one.table == table for one in operations):
        raise InvalidInputError(
            "an earlier operation deletes the newest version, so the log makes the next one itself:"
            " end that operation's ranges before the newest, or create this one by another request"
        )


def _check_references(service: Service, info: TableInfo, ranges: VersionRanges) -> None:
    if not ranges:
        return
    now_ms = service.log.runtime().leader_time_ms(info.table_id)
    held = held_versions(info.properties.items(), info.version, now_ms)
    for first, last in held:
        if without([(first, last)], ranges) != merged([(first, last)]):
            raise InvalidTableStateError(
                f"versions {first} to {last} of {info.name} are held by its properties; release"
                " them (log.release), or leave them out"
            )
    tags = lance_tags(info.location) if info.version else {}
    for name, version in sorted(tags.items()):
        if is_in(version, ranges):
            raise InvalidTableStateError(
                f"version {version} of {info.name} has the tag {name!r}; delete the tag, or"
                " leave the version out"
            )


def _newer_version(service: Service, info: TableInfo, gone: VersionRanges) -> Operation:
    """Return what makes a version that may stay."""
    stays = next((v for v in range(info.version, 0, -1) if not is_in(v, gone)), 0)
    change: Any
    if stays:
        service.readable(info, stays)
        change = lance.LanceOperation.Restore(version=stays)
    else:
        fragments = [f.fragment_id for f in service.open(info).get_fragments()]
        change = lance.LanceOperation.Delete([], fragments, "true")
    return _commit_of(service, info.table_id, change, info.version)


def _commit_of(service: Service, table: TableId, change: Any, read_version: int) -> Operation:
    operation, _, _ = as_operation(
        service.log,
        table,
        change,
        read_version=read_version,
        transaction_id=None,
        affected_rows=None,
        inserted_keys=None,
    )
    return operation
