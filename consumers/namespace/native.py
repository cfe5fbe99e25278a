"""Operations that pylance carries out by itself, on a dataset whose commits go through the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import lance
from lance_namespace import InvalidInputError, UnsupportedOperationError

from commitlog.adapters.lance_namespace import LogNamespace
from commitlog.client.tables import TableInfo
from commitlog.errors import OutcomeUnknown
from consumers.namespace.call import Call
from consumers.namespace.service import Service

UNKNOWN = "commit result"
"""In what pylance says when it could not find out whether it committed."""


def commit_natively(
    service: Service, call: Call, work: Callable[[lance.LanceDataset], Any]
) -> dict[str, Any]:
    """Let pylance change a table; return the transaction and version it committed."""
    if call.key is not None:
        raise UnsupportedOperationError(
            f"{call.operation}: an Idempotency-Key is not supported here yet; leave it out"
        )
    info = service.info(call.table)
    dataset = service.open_managed(info)
    before = dataset.version
    try:
        result = work(dataset)
    except Exception as error:
        raise translated(dataset, error) from error
    changed = result if isinstance(result, lance.LanceDataset) else dataset
    body: dict[str, Any] = {"version": changed.version}
    if changed.version != before:
        body["transaction_id"] = service.transaction_id_of(
            replace(info, version=changed.version), changed.version
        )
    return body


def translated(dataset: lance.LanceDataset, error: Exception) -> Exception:
    """Return what a failure of pylance means for who asked."""
    namespace = getattr(dataset, "_namespace_client", None)
    if isinstance(namespace, LogNamespace) and namespace.refused is not None:
        return namespace.refused
    text = str(error)
    if UNKNOWN in text.lower():
        return OutcomeUnknown(text, "")
    if "CommitConflict" in text or "conflict" in text.lower():
        from lance_namespace import ConcurrentModificationError

        return ConcurrentModificationError(text)
    if isinstance(error, NotImplementedError) or "not supported" in text.lower():
        return UnsupportedOperationError(text)
    if isinstance(error, ValueError | KeyError | TypeError | OSError | RuntimeError):
        return InvalidInputError(text)
    return error


def refuse_branch(call: Call, info: TableInfo, branch: str | None) -> None:
    """Refuse a branch: the log keeps the main one."""
    if branch and branch != "main":
        raise UnsupportedOperationError(
            f"{call.operation}: branch {branch!r} of {info.name}: branches are not supported yet"
        )
