"""How far the flushed tables of a MemWAL's shards are compacted into a table.

The index `__lance_mem_wal` holds one generation per shard, and a generation only grows: a reader
lets go of flushed tables up to it, so a step back would show rows twice or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import NAMESPACE_OID, uuid5

from commitlog.core.manifest.indices import MEM_WAL_INDEX, UUID_BYTES
from commitlog.core.manifest.manifest_state import DeltaRefused
from commitlog.lancepb.table_pb2 import (
    CompactedSsTable,
    IndexMetadata,
    IndexSection,
    MemWalIndexDetails,
)

_TYPE_URL = "/lance.table.MemWalIndexDetails"


def with_compacted(
    index_section: bytes | None,
    tables: Iterable[CompactedSsTable],
    *,
    version: int,
    transaction_uuid: str,
    created_at_ms: int,
) -> bytes | None:
    """Return a version's index section once its MemWAL index has these generations.

    Raises DeltaRefused if there is no such index, or a generation isn't newer than what it has.
    """
    tables = list(tables)
    if not tables:
        return index_section
    section = IndexSection.FromString(index_section or b"")
    at = next((i for i, x in enumerate(section.indices) if x.name == MEM_WAL_INDEX), None)
    if at is None:
        raise DeltaRefused(
            "no_mem_wal", field="compacted_sstables", value=len(tables), index=MEM_WAL_INDEX
        )
    details = MemWalIndexDetails.FromString(section.indices[at].index_details.value)
    _check(tables, details)
    raise_generations(details, tables)
    name = uuid5(NAMESPACE_OID, f"{transaction_uuid}/{MEM_WAL_INDEX}")
    section.indices[at].CopyFrom(_entry(name.bytes, version, created_at_ms, details))
    return section.SerializeToString(deterministic=True)


def _check(tables: list[CompactedSsTable], details: MemWalIndexDetails) -> None:
    known = {t.shard_id.uuid: t.generation for t in details.compacted_sstables}
    seen: set[bytes] = set()
    for table in tables:
        shard = table.shard_id.uuid
        if len(shard) != UUID_BYTES:
            raise DeltaRefused("bad_shard", field="shard_id", value=shard.hex())
        if shard in seen:
            raise DeltaRefused("shard_twice", field="shard_id", value=shard.hex())
        seen.add(shard)
        recorded = known.get(shard)
        if recorded is not None and table.generation <= recorded:
            raise DeltaRefused(
                "stale_generation",
                field="generation",
                value=table.generation,
                shard=shard.hex(),
                recorded=recorded,
            )


def raise_generations(details: MemWalIndexDetails, tables: Iterable[CompactedSsTable]) -> None:
    """Bring each shard to the higher of two generations, its own and the given one."""
    known = {t.shard_id.uuid: t for t in details.compacted_sstables}
    for table in tables:
        recorded = known.get(table.shard_id.uuid)
        if recorded is None:
            details.compacted_sstables.append(table)
        else:
            recorded.generation = max(recorded.generation, table.generation)


def _entry(
    name: bytes, version: int, created_at_ms: int, details: MemWalIndexDetails
) -> IndexMetadata:
    entry = IndexMetadata(
        name=MEM_WAL_INDEX, dataset_version=version, index_version=0, created_at=created_at_ms
    )
    entry.uuid.uuid = name
    entry.index_details.type_url = _TYPE_URL
    entry.index_details.value = details.SerializeToString(deterministic=True)
    return entry
