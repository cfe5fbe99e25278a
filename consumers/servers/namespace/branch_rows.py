"""Rows of branches: read and changed by pylance itself, as Lance keeps branches without a log.

A branch that a Clone made a table of the log is changed under that table's name only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import lance
import pyarrow as pa
from lance_namespace import TableBranchNotFoundError, TableVersionNotFoundError

from commitlog.adapters.lance_datasets import let_through
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.merging import MergeOptions, as_told, may_use_index
from commitlog.client.rows.rows import whole
from consumers.servers.namespace.branches import check_files, is_branch, refuse_kept_by_log
from consumers.servers.namespace.call import Call, condition
from consumers.servers.namespace.service import Service

Found = TypeVar("Found")


def opened_for(
    service: Service, call: Call, branch: str | None, version: int | None
) -> lance.LanceDataset:
    """Open what a question is about: a version of the main line, or of a branch."""
    info = service.info(call.table)
    if not is_branch(branch):
        return service.open(info, version)
    return open_branch(service, info, branch, version)


def read_from(
    service: Service,
    call: Call,
    branch: str | None,
    version: int | None,
    read: Callable[[lance.LanceDataset], Found],
) -> Found:
    """Return what is read from what a question is about.

    While the leader says what the table is now, its likely version is read already. What was read
    counts if the leader's answer is that version.
    """
    if service.is_past or is_branch(branch):
        return read(opened_for(service, call, branch, version))
    likely, answer = service.log.ask_table(call.table)
    found: Found | Exception | None = None
    if likely is not None:
        try:
            found = read(service.open(likely, version))
        except Exception as error:
            found = error
    info = answer()
    if likely is None or _files_of(likely) != _files_of(info):
        return read(service.open(info, version))
    if isinstance(found, Exception):
        raise found
    return cast(Found, found)


def _files_of(info: TableInfo) -> tuple[object, ...]:
    """Return what says which files are read."""
    return info.incarnation, info.location, info.version, info.deleted


def open_branch(
    service: Service, info: TableInfo, branch: str, version: int | None = None
) -> lance.LanceDataset:
    """Open a version of a branch, the newest by default."""
    base = service.open(info)
    if branch not in base.branches.list():
        raise TableBranchNotFoundError(f"{info.name} has no branch {branch!r}")
    try:
        dataset = base.checkout_version((branch, version))
    except (ValueError, OSError) as error:
        raise TableVersionNotFoundError(
            f"branch {branch!r} of {info.name} has no version {version}: {error}"
        ) from error
    check_files(info, (fragment.metadata for fragment in dataset.get_fragments()))
    return let_through(dataset, info.location)


def change_branch(
    service: Service,
    call: Call,
    branch: str,
    work: Callable[[lance.LanceDataset], Any],
) -> tuple[lance.LanceDataset, Any]:
    """Let pylance change a branch; return it as it is then, and what `work` returned."""
    info = service.info(call.table)
    refuse_kept_by_log(service, info, branch)
    dataset = open_branch(service, info, branch)
    result = work(dataset)
    return (result if isinstance(result, lance.LanceDataset) else dataset), result


def whole_condition(name: str, sql: str | None) -> str | None:
    """Return which rows are meant, so that Lance reads all of it; None means all rows."""
    asked = condition(name, sql)
    return None if asked is None else whole(asked, name)


def answered(dataset: lance.LanceDataset) -> dict[str, Any]:
    """Return what an answer says of a branch that was changed: its version and who made that."""
    made = dataset.read_transaction(dataset.version)
    body: dict[str, Any] = {"version": dataset.version}
    return body if made is None else {**body, "transaction_id": made.uuid}


def merged(
    dataset: lance.LanceDataset, rows: pa.Table, on: Sequence[str], options: MergeOptions
) -> dict[str, int]:
    """Merge rows into a dataset of a branch; return how many were inserted, updated, deleted."""
    builder = dataset.merge_insert(list(on)).use_index(may_use_index(rows, on, options))
    counts = as_told(builder, options).execute(rows)
    return {name: int(count) for name, count in counts.items()}
