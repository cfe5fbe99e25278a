"""A table that CreateTable makes is the empty table that pylance writes."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from commitlog.codecs.lance_schema import schema_fields
from commitlog.codecs.manifest_file import decode_manifest, encode_manifest, manifest_name
from commitlog.core.tables.creation import STORAGE_VERSIONS, first_version
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import CreateTable

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), metadata={"k": "v"}),
        pa.field("nested", pa.struct([("x", pa.list_(pa.float32(), 4)), ("y", pa.date32())])),
    ],
    metadata={"owner": "me"},
)


@pytest.mark.parametrize("stable_row_ids", [False, True])
@pytest.mark.parametrize("storage_version", STORAGE_VERSIONS[:3])
def test_the_first_manifest_equals_pylances(
    tmp_path: Path, storage_version: str, stable_row_ids: bool
) -> None:
    lance.write_dataset(
        SCHEMA.empty_table(),
        str(tmp_path / "theirs"),
        data_storage_version=storage_version,  # type: ignore[arg-type]
        enable_stable_row_ids=stable_row_ids,
    )
    path = tmp_path / "theirs" / "_versions" / manifest_name(1)
    theirs, message = decode_manifest(path.read_bytes())
    assert message is not None
    transaction = Transaction.FromString(message)
    fields, metadata = schema_fields(SCHEMA)
    operation = CreateTable(
        ("t",),
        "i",
        str(tmp_path / "ours"),
        tuple(field.SerializeToString(deterministic=True) for field in fields),
        schema_metadata=metadata,
        stable_row_ids=stable_row_ids,
        data_storage_version=storage_version,
    )
    state, ours = first_version(
        operation, transaction.uuid, theirs.timestamp_nanos // 1_000_000, lance.__version__
    )
    theirs.timestamp_nanos = state.timestamp_nanos
    assert state == theirs
    assert Transaction.FromString(ours) == transaction
    target = tmp_path / "ours" / "_versions"
    target.mkdir(parents=True)
    (target / manifest_name(1)).write_bytes(encode_manifest(state, ours))
    dataset = lance.dataset(str(tmp_path / "ours"))
    assert dataset.schema == SCHEMA
    assert dataset.count_rows() == 0
