"""What pylance's Python has no words for: left out of what it builds, put in afterwards.

`sayable` is the transaction that pylance is asked to build; `complete` makes of the manifest that
it built the one that the whole transaction asks for. Operations that Python cannot name at all are
carried by an empty UpdateConfig: pylance carries everything over, indices included, and their own
change follows.
"""

from __future__ import annotations

from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.operations.registry import operation_of
from commitlog.lancepb.transaction_pb2 import Transaction


def sayable(transaction: Transaction) -> Transaction:
    """Return a transaction without what pylance's Python cannot say; the same if that is all."""
    operation = operation_of(transaction)
    left = Transaction()
    left.CopyFrom(transaction)
    left.tag = ""
    is_changed = bool(transaction.tag)
    if operation is not None and operation.is_carried:
        left.update_config.config_updates.SetInParent()
        is_changed = True
    elif operation is not None:
        is_changed |= operation.leave_unsaid(operation.body(left))
    return left if is_changed else transaction


def schema_metadata(transaction: Transaction) -> tuple[tuple[str, bytes], ...]:
    """Return the schema's own metadata in a message, where Lance itself doesn't look."""
    operation = operation_of(transaction)
    if operation is None:
        return ()
    return tuple(sorted(operation.schema_metadata(operation.body(transaction)).items()))


def complete(built: ManifestState, transaction: Transaction) -> None:
    """Put into a manifest what pylance wasn't asked for; raises `DeltaRefused`."""
    built.tag = transaction.tag
    operation = operation_of(transaction)
    if operation is not None:
        operation.complete(built, transaction)
