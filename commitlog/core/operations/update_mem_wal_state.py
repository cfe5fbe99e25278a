"""UpdateMemWalState: shards of a MemWAL have flushed tables compacted into the table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from commitlog.core.conflicts.history import Aspect
from commitlog.core.conflicts.write_sets import Writes
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.manifest.mem_wal import with_compacted
from commitlog.core.operations.operation import LanceOperation
from commitlog.core.operations.references import References
from commitlog.lancepb.table_pb2 import CompactedSsTable
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


def generations(kind: str, tables: Iterable[CompactedSsTable]) -> tuple[tuple[Aspect, Any], ...]:
    """Return the generations that MemWAL shards come to, one by one and together."""
    notes = [((f"{kind}.shard", t.shard_id.uuid), t.generation) for t in tables]
    if not notes:
        return ()
    together = Transaction.UpdateMemWalState(compacted_sstables=tables)
    encoded = together.SerializeToString(deterministic=True).hex()
    return (*notes, ((f"{kind}.compacted", ""), encoded))


def check_compacted(
    references: References, transaction: Transaction, tables: Iterable[CompactedSsTable]
) -> None:
    """Refuse generations that don't follow those of the head."""
    state = references.state
    with_compacted(
        state.index_section,
        tables,
        version=state.version + 1,
        transaction_uuid=transaction.uuid,
        created_at_ms=0,
    )


def complete_compacted(
    built: ManifestState, transaction: Transaction, tables: Iterable[CompactedSsTable]
) -> None:
    """Put generations into a manifest that was built without them."""
    built.index_section = with_compacted(
        built.index_section,
        tables,
        version=built.version,
        transaction_uuid=transaction.uuid,
        created_at_ms=built.timestamp_nanos // 1_000_000,
    )
