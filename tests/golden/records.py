"""The values whose frozen bytes lie beside this file, one `.bin` per released schema.

`python -m tests.golden.records` writes the bytes of a schema that has none yet, and changes none
that is there.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from commitlog.codecs import avro
from commitlog.model.operations import (
    AffectedRows,
    AlterProperties,
    AppliedWrite,
    ApplyRows,
    CreateNamespace,
    CreateTable,
    CreateTableVersion,
    DeclareTable,
    DeleteTableVersions,
    DeregisterTable,
    DropNamespace,
    DropTable,
    IcebergChange,
    KeyHashes,
    LanceCommit,
    RegisterTable,
    RenameTable,
    RowsColumn,
    RowsMode,
    Summary,
    WriteRows,
)
from commitlog.model.reasons import Number, Numbers, Reason, Text, Texts, Words
from commitlog.model.records import (
    Application,
    Code,
    Conflict,
    FailedRequirement,
    FileWritten,
    FragmentImage,
    Genesis,
    KeyAbsent,
    LeaderStarted,
    Observation,
    OperationResult,
    Outcome,
    PredicateUnchanged,
    ProtocolVersion,
    Recording,
    Retained,
    RetainedSegment,
    Status,
    TableAbsent,
    TableVersionIs,
    Transaction,
)
from commitlog.model.table import Policy
from commitlog.words import worded

FOLDER = Path(__file__).parent
TRANSACTION_ID = "0199a000-0000-7000-8000-000000000001"
OTHER_ID = "0199a000-0000-7000-8000-000000000002"
INCARNATION = "0199a000-0000-7000-8000-000000000003"
KEY = f"{TRANSACTION_ID}/0011223344556677".encode()
TABLE = ("nyc", "flights")
HASH = bytes(range(32))

TRANSACTION = Transaction(
    transaction_id=TRANSACTION_ID,
    attempt=2,
    principal="writer@example",
    submitted_at_ms=1_700_000_000_000,
    application=Application("stream", 41, "run"),
    properties=(("a", "1"), ("ü", "ß")),
    expects=(
        TableVersionIs(TABLE, 12),
        TableAbsent(("nyc", "new")),
        KeyAbsent(TABLE, HASH[:16], 11),
        PredicateUnchanged(TABLE, "day = 1", HASH, 12),
    ),
    operations=(
        LanceCommit(
            table=TABLE,
            operation="Delete",
            read_version=12,
            message=b"\x08\x0c",
            incarnation=INCARNATION,
            branch="dev",
            schema_metadata=(("k", b"\xff"),),
            affected_rows=(AffectedRows(3, b"\x3a\x30"), AffectedRows(4, b"")),
            inserted_keys=KeyHashes((0, 5), HASH),
            summary=Summary(1, 2, 3, 4, 5, 6, ("data/a.lance", "data/b.lance")),
        ),
        LanceCommit(TABLE, "Append", 0, b""),
        CreateTableVersion(
            table=TABLE,
            version=13,
            manifest_path="_versions/13.manifest-x",
            manifest_size=999,
            e_tag="tag",
            naming_scheme="V1",
            sha256=HASH,
            message=b"\x01",
            operation="Append",
            incarnation=INCARNATION,
            branch="dev",
            metadata=(("m", "n"),),
            adopt=True,
        ),
        CreateTable(
            table=("nyc", "new"),
            incarnation=INCARNATION,
            location="file:///tables/new",
            fields=(b"\x0a", b"\x0b"),
            schema_metadata=(("k", b"v"),),
            primary_key=("id",),
            policy=Policy.LATEST,
            stable_row_ids=True,
            data_storage_version="2.1",
            properties=(("p", "q"),),
            exist_ok=True,
        ),
        DeclareTable(("d",), INCARNATION, "file:///d", Policy.EVERY, (("p", "q"),)),
        RegisterTable(
            ("r",), INCARNATION, "file:///r", 7, "_versions/7.manifest", Policy.LATEST, ("id",), ()
        ),
        DeregisterTable(("r",), INCARNATION),
        DropTable(("d",)),
        RenameTable(TABLE, ("nyc", "planes")),
        DeleteTableVersions(TABLE, ((1, 3), (5, 5)), "dev"),
        CreateNamespace(("nyc",), (("p", "q"),), exist_ok=True),
        DropNamespace(("nyc",), cascade=True),
        AlterProperties(("nyc",), True, (("p", "q"),), ("gone",)),
        IcebergChange(("ice", "t"), "[]", '[{"action": "x"}]'),
    ),
)
ROWS = replace(
    TRANSACTION,
    operations=(
        *TRANSACTION.operations,
        WriteRows(
            table=TABLE,
            mode=RowsMode.UPSERT,
            rows=2,
            columns=(RowsColumn(0, "id", 0), RowsColumn(1, "amount", 1)),
            schema_digest=HASH,
            sha256=HASH[::-1],
            size=440,
            path="_rows/0199a000.arrow",
            on=("id",),
            incarnation=INCARNATION,
            update_all=True,
            update_if="source.amount > target.amount",
            insert_all=True,
        ),
        ApplyRows(
            table=TABLE,
            incarnation=INCARNATION,
            after=40,
            through=43,
            writes=(
                AppliedWrite(41, 0, inserted=1, updated=2, deleted=3),
                AppliedWrite(43, 1, refused="WRONG_SCHEMA", problem="a column is gone"),
            ),
        ),
    ),
    payloads=(b"rows", b""),
)
PROTOCOL_VERSION = ProtocolVersion(TRANSACTION_ID, 1, 604_800_000, 100_000, 1_000)
RELEASE_CHANGE = replace(PROTOCOL_VERSION, protocol=4, lance_release="15.0.0")
GENESIS = Genesis(
    log="commitlog",
    log_id=INCARNATION,
    cluster_id="qds__drsToCG9phMdx0myQ",
    partition=1,
    domains=(("ice", 1), ("nyc", 0)),
    tables_root="file:///tables",
    created_at_ms=1_700_000_000_000,
)
RETAINED = Retained(
    sequence=41,
    hash=HASH,
    transactions_offset=40,
    segments=(
        RetainedSegment(1, 20, HASH, HASH[::-1]),
        RetainedSegment(21, 41, HASH[::-1], HASH),
    ),
    version="0.1.0",
    retained_at_ms=1_700_000_000_000,
)
LEADER_STARTED = LeaderStarted(
    epoch=3,
    node="127.0.0.1:4444",
    leader_id=INCARNATION,
    sequence=41,
    previous_hash=HASH,
    state_digest=HASH[::-1],
    version="0.1.0",
    started_at_ms=1_700_000_000_000,
)
OUTCOME, OUTCOME_BYTES = avro.seal_outcome(
    Outcome(
        sequence=42,
        transaction_id=TRANSACTION_ID,
        transaction_offset=57,
        status=Status.RETRYABLE,
        attempt=2,
        code=Code.CONFLICT,
        message="fragment 3 was changed",
        answers=40,
        time_ms=1_700_000_000_001,
        payload_hash=HASH,
        results=(
            OperationResult(
                table=TABLE,
                incarnation=INCARNATION,
                operation="Delete",
                version=13,
                read_version=12,
                first_fragment_id=5,
                first_row_id=100,
                rebased_over=2,
                rebased=True,
                files=(FileWritten("_deletions/3.bin", 10, HASH),),
                images=(FragmentImage(3, b"\x08\x03"), FragmentImage(4, None)),
                delta=Recording(HASH, 4, b"abcd"),
                location="file:///tables/flights",
            ),
            OperationResult(TABLE, INCARNATION, "Append", delta=Recording(HASH, 4)),
            OperationResult(
                ("ice", "t"),
                INCARNATION,
                "IcebergChange",
                location="file:///tables/ice/t",
                metadata_location="file:///tables/ice/t/metadata/00001-x.metadata.json",
                snapshot_id=7,
            ),
        ),
        conflict=Conflict(
            table=TABLE,
            transaction_id=OTHER_ID,
            version=13,
            operation="Delete",
            rule="delete_delete_rows_overlap",
            fragments=(3, 4),
            keys=("k",),
            advice="Read version 13 and redo.",
        ),
        observed=(Observation("_deletions/3.bin", 10, HASH), Observation("data/x.lance", -1)),
        failed_requirements=(
            FailedRequirement(
                ("ice", "t"), '{"type":"assert-table-uuid","uuid":"x"}', '{"uuid":"y"}'
            ),
        ),
    ),
    previous_hash=HASH,
    epoch=3,
    node="127.0.0.1:4444",
)

REFUSED, REFUSED_BYTES = avro.seal_outcome(
    worded(
        replace(
            OUTCOME,
            message="",
            answers=None,
            results=(),
            conflict=replace(OUTCOME.conflict, advice="") if OUTCOME.conflict else None,
            reason=Reason(
                name="conflict",
                operation=2,
                arguments=(
                    Number("head", 13),
                    Numbers("fragments", (3, 4), 40),
                    Text("kind", "Delete"),
                    Text("table", "nyc$fli", 6_000_000, HASH),
                    Texts("keys", ("k",), 1),
                    Words("where", "on_fragments"),
                ),
            ),
        )
    ),
    previous_hash=HASH,
    epoch=3,
    node="127.0.0.1:4444",
)

ENCODED = {
    "transaction-v1": avro.encode_transaction(TRANSACTION),
    "transaction-v2": avro.encode_transaction(ROWS),
    "protocol-version-v1": avro.encode_protocol_version(PROTOCOL_VERSION),
    "protocol-version-v2": avro.encode_protocol_version(RELEASE_CHANGE),
    "genesis-v1": avro.encode_genesis(GENESIS),
    "leader-started-v1": avro.encode_leader_started(LEADER_STARTED),
    "outcome-v1": OUTCOME_BYTES,
    "outcome-v2": REFUSED_BYTES,
    "retained-v1": avro.encode_retained(RETAINED),
}
"""What this program makes of the values above, by schema."""

if __name__ == "__main__":
    for name, value in ENCODED.items():
        path = FOLDER / f"{name}.bin"
        if not path.exists():
            path.write_bytes(value)
