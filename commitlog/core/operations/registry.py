"""Lance's operations by field and by name, and what generic parts ask of any of them."""

from __future__ import annotations

from typing import Any

from commitlog.core.conflicts.candidate import Candidate
from commitlog.core.conflicts.history import WriteSet
from commitlog.core.conflicts.write_sets import (
    UNKNOWN,
    Keys,
    explicit_keys,
)
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.operations.append import AppendOperation
from commitlog.core.operations.clone import CloneOperation
from commitlog.core.operations.create_index import CreateIndexOperation
from commitlog.core.operations.data_overlay import DataOverlayOperation
from commitlog.core.operations.data_replacement import DataReplacementOperation
from commitlog.core.operations.delete import DeleteOperation
from commitlog.core.operations.merge import MergeOperation
from commitlog.core.operations.operation import LanceOperation
from commitlog.core.operations.overwrite import OverwriteOperation
from commitlog.core.operations.project import ProjectOperation
from commitlog.core.operations.reserve_fragments import ReserveFragmentsOperation
from commitlog.core.operations.restore import RestoreOperation
from commitlog.core.operations.rewrite import RewriteOperation
from commitlog.core.operations.update import UpdateOperation
from commitlog.core.operations.update_bases import UpdateBasesOperation
from commitlog.core.operations.update_config import UpdateConfigOperation
from commitlog.core.operations.update_mem_wal_state import UpdateMemWalStateOperation
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import KeyHashes

OPERATIONS: tuple[LanceOperation[Any], ...] = (
    AppendOperation(),
    DeleteOperation(),
    OverwriteOperation(),
    CreateIndexOperation(),
    RewriteOperation(),
    MergeOperation(),
    ProjectOperation(),
    RestoreOperation(),
    ReserveFragmentsOperation(),
    CloneOperation(),
    UpdateOperation(),
    UpdateConfigOperation(),
    DataReplacementOperation(),
    DataOverlayOperation(),
    UpdateMemWalStateOperation(),
    UpdateBasesOperation(),
)
"""Lance 14.0.2's."""
OPERATION_NAMED = {operation.name: operation for operation in OPERATIONS}
_OF_FIELD: dict[str | None, LanceOperation[Any] | None] = {None: None}
_OF_FIELD |= {operation.field: operation for operation in OPERATIONS}


def operation_of(transaction: Transaction) -> LanceOperation[Any] | None:
    """Return a transaction's operation, None if it is one that 14.0.2 doesn't know."""
    return _OF_FIELD[transaction.WhichOneof("operation")]


def keys_of(transaction: Transaction, explicit: KeyHashes | None) -> Keys | None:
    """Return the keys of the rows that a transaction adds, None if it adds none."""
    operation = operation_of(transaction)
    if operation is None:
        return explicit_keys(explicit) if explicit is not None else None
    return operation.keys(operation.body(transaction), explicit)


def write_set_of(
    transaction: Transaction, explicit: KeyHashes | None, before: ManifestState
) -> WriteSet:
    """Return what a transaction touches that is committed on top of `before`."""
    operation = operation_of(transaction)
    if operation is None:
        return WriteSet(UNKNOWN)
    return operation.write_set(operation.body(transaction), explicit, before, has_keys=False)


def candidate_of(transaction: Transaction, **known: Any) -> Candidate:
    """Return a transaction as the conflict rules see it, whatever its operation."""
    operation = operation_of(transaction)
    if operation is None:
        return Candidate(UNKNOWN, transaction, **known)
    return operation.candidate(transaction, **known)
