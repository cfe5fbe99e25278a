"""Restore: an older version is the newest one again."""

from __future__ import annotations

from commitlog.core.decisions import rejected
from commitlog.core.operations.operation import BASES, CONFIG, FORMAT, SCHEMA, LanceOperation
from commitlog.core.operations.references import References
from commitlog.core.tables.lance_tables import is_in
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.records import Code


class RestoreOperation(LanceOperation[Transaction.Restore]):
    """Makes a version of the past the newest one."""

    field = "restore"
    returns_to_version = True
    replaces_fragments = True
    renumbers_fields = True
    header_parts = SCHEMA | CONFIG | BASES | FORMAT

    def check_references(self, references: References, transaction: Transaction) -> None:
        version, head = transaction.restore.version, references.state.version
        which = {
            "kind": references.kind,
            "table": references.table_name,
            "version": version,
        }
        if not 1 <= version <= head:
            raise rejected(Code.INVALID_OPERATION, "restore_version_unknown", **which, head=head)
        if is_in(version, references.view.deleted):
            raise rejected(Code.INVALID_OPERATION, "restore_version_deleted", **which)
