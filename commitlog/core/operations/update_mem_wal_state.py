"""UpdateMemWalState: shards of a MemWAL have flushed tables compacted into the table."""

from __future__ import annotations

from commitlog.core.conflicts.write_sets import Writes
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.operations.operation import LanceOperation
from commitlog.core.operations.references import References
from commitlog.core.operations.shards import check_compacted, complete_compacted, generations
from commitlog.lancepb.transaction_pb2 import Transaction


class UpdateMemWalStateOperation(LanceOperation[Transaction.UpdateMemWalState]):
    """Moves the generations of shards on."""

    field = "update_mem_wal_state"
    is_carried = True

    def writes(self, body: Transaction.UpdateMemWalState, before: ManifestState) -> Writes:
        notes = generations(self.name, body.compacted_sstables)
        return Writes(tuple(aspect for aspect, _ in notes), notes)

    def check_references(self, references: References, transaction: Transaction) -> None:
        tables = transaction.update_mem_wal_state.compacted_sstables
        check_compacted(references, transaction, tables)

    def complete(self, built: ManifestState, transaction: Transaction) -> None:
        tables = transaction.update_mem_wal_state.compacted_sstables
        complete_compacted(built, transaction, tables)
