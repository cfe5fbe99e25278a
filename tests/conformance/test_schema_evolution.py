"""Do bytes written once stay readable, and are released schemas left alone?"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import fastavro
import pytest

from commitlog.codecs import avro
from commitlog.codecs.avro import load_schema, record_schema, schema_fingerprint, schema_root
from commitlog.errors import CorruptLog, UnsupportedFormat
from commitlog.model.operations import Operation
from commitlog.model.records import Malformed, Transaction
from tests.golden.records import (
    ENCODED,
    FOLDER,
    GENESIS,
    KEY,
    LEADER_STARTED,
    OUTCOME,
    PROTOCOL_VERSION,
    REFUSED,
    RELEASE_CHANGE,
    RETAINED,
    ROWS,
    TRANSACTION,
)

RELEASED = {
    "genesis-v1": "33f0333ba5ab0df0",
    "leader-started-v1": "559638006f545ae1",
    "outcome-v1": "555dfcdc2d21409d",
    "outcome-v2": "8b08d6bbaabf0b76",
    "protocol-version-v1": "3c593c737fe8ccec",
    "protocol-version-v2": "943936dceabf0f0a",
    "retained-v1": "a554efd8c1acf6ee",
    "transaction-v1": "829f9a0767bc85cb",
    "transaction-v2": "c5a73b22c595c3db",
}
"""Fingerprints as records carry them. A line is added with a new schema file, never changed."""


def frozen(name: str) -> bytes:
    """Return the bytes written when the schema was released."""
    return (FOLDER / f"{name}.bin").read_bytes()


@pytest.mark.parametrize(
    ("schema", "fingerprint"), [('"int"', 0x7275D51A3F395C8F), ('"null"', 0x63DD24E7CC258F8A)]
)
def test_fingerprints_are_avros(schema: str, fingerprint: int) -> None:
    # Published in Avro's own test data (schema-tests.txt).
    assert schema_fingerprint(json.loads(schema)) == fingerprint.to_bytes(8, "little")


def test_every_schema_file_is_listed_and_none_was_edited() -> None:
    found = {
        file.name.removesuffix(".avsc"): schema_fingerprint(load_schema(file.name[:-5])).hex()
        for file in schema_root().iterdir()
        if file.name.endswith(".avsc")
    }
    assert found == RELEASED, "a released schema is never edited: add a -v2 file instead"


@pytest.mark.parametrize("name", RELEASED)
def test_schemas_document_every_field(name: str) -> None:
    def check(schema: Any, path: str) -> None:
        if isinstance(schema, list):
            for branch in schema:
                check(branch, path)
        elif isinstance(schema, dict):
            if schema["type"] in {"record", "enum"}:
                assert schema.get("doc"), path
            for field in schema.get("fields", ()):
                assert field.get("doc"), f"{path}.{field['name']}"
                check(field["type"], f"{path}.{field['name']}")
            check(schema.get("items"), path)

    check(load_schema(name), name)
    assert '"map"' not in json.dumps(load_schema(name)), "the order in a map's bytes is free"


def test_schemas_have_the_fields_of_the_values() -> None:
    records = _records_by_name()
    kinds: list[type] = [
        type(each)
        for each in (
            *(PROTOCOL_VERSION, GENESIS, LEADER_STARTED, RETAINED, *RETAINED.segments),
            *TRANSACTION.expects,
        )
    ]
    kinds += [type(operation) for operation in ROWS.operations]
    assert set(Operation.__args__) <= set(kinds), "the golden transaction has each operation"
    for kind in kinds:
        names = {field.name for field in dataclasses.fields(kind)} - {"unread"}
        assert {field["name"] for field in records[kind.__name__]["fields"]} == names
    transaction = {field.name for field in dataclasses.fields(Transaction)}
    written = {
        field["name"] for name in ("Transaction", "Content") for field in records[name]["fields"]
    }
    assert written - {"content"} == transaction - {"payload_hash", "unread"}
    outcome = {field.name for field in dataclasses.fields(OUTCOME)}
    written = {
        field["name"] for name in ("Outcome", "Decision") for field in records[name]["fields"]
    }
    assert written - {"decision"} == outcome - {"message"}, "readers make it of the reason"


def _records_by_name() -> dict[str, Any]:
    found: dict[str, Any] = {}

    def visit(schema: Any) -> None:
        if isinstance(schema, list):
            for branch in schema:
                visit(branch)
        elif isinstance(schema, dict):
            if schema["type"] == "record":
                found[schema["name"]] = schema
            for field in schema.get("fields", ()):
                visit(field["type"])
            visit(schema.get("items"))

    for name in RELEASED:
        visit(load_schema(name))
    return found


@pytest.mark.parametrize("name", RELEASED)
def test_the_same_values_still_make_the_frozen_bytes(name: str) -> None:
    assert ENCODED[name] == frozen(name)


def test_frozen_bytes_are_still_read() -> None:
    transaction = avro.decode_log_record(KEY, frozen("transaction-v1"))
    assert isinstance(transaction, Transaction)
    assert dataclasses.replace(transaction, payload_hash=b"") == TRANSACTION
    assert transaction.payload_hash == avro.payload_hash(TRANSACTION)
    assert transaction.payload_hash.hex() == (
        "b9a830c1e9664c10950f5f386d4a0bdea85b772b88421690fc7ffa59b9fd534c"
    )
    rows = avro.decode_log_record(KEY, frozen("transaction-v2"))
    assert isinstance(rows, Transaction)
    assert dataclasses.replace(rows, payload_hash=b"") == ROWS
    assert rows.payload_hash == avro.payload_hash(dataclasses.replace(ROWS, payloads=()))
    assert avro.decode_log_record(KEY, frozen("protocol-version-v1")) == PROTOCOL_VERSION
    assert avro.decode_log_record(KEY, frozen("protocol-version-v2")) == RELEASE_CHANGE
    assert avro.decode_outcome_record(frozen("genesis-v1")) == GENESIS
    assert avro.decode_outcome_record(frozen("leader-started-v1")) == LEADER_STARTED
    assert avro.decode_outcome_record(frozen("outcome-v1")) == OUTCOME
    assert avro.decode_outcome_record(frozen("outcome-v2")) == REFUSED
    assert avro.decode_outcome_record(frozen("retained-v1")) == RETAINED


@pytest.mark.parametrize("name", RELEASED)
def test_other_avro_libraries_can_read_the_bytes(name: str) -> None:
    # The whole record by the published schema alone, without this program's split in two.
    value = frozen(name)
    assert value[:2] == b"\xc3\x01"
    assert value[2:10].hex() == RELEASED[name]
    source = io.BytesIO(value[10:])
    plain = fastavro.schemaless_reader(source, load_schema(name), None)
    assert source.read() == b""
    assert isinstance(plain, dict)
    assert set(plain) == {field["name"] for field in load_schema(name)["fields"]}


@pytest.mark.parametrize("name", RELEASED)
def test_what_is_hashed_is_the_end_of_a_record(name: str) -> None:
    value = frozen(name)
    _, _, hashed = record_schema(name).decode_parts(value)
    assert value.endswith(hashed)
    if name == "transaction-v1":
        # This program computes the hash that the first one did.
        assert hashlib.sha256(hashed).digest() == avro.payload_hash(TRANSACTION)


def test_bytes_of_an_unknown_schema_are_told_from_rubbish() -> None:
    unknown = b"\xc3\x01" + bytes(8) + b"body"
    record = avro.decode_log_record(KEY, unknown)
    assert isinstance(record, Malformed)
    assert "schema 0000000000000000, which this program doesn't know" in record.reason
    assert record.transaction_id == TRANSACTION.transaction_id
    assert record.payload_hash == hashlib.sha256(unknown).digest()
    with pytest.raises(UnsupportedFormat, match="0000000000000000"):
        avro.decode_outcome_record(unknown)
    with pytest.raises(CorruptLog, match="not a record of this log"):
        avro.decode_outcome_record(b"rubbish")
    for name in ("genesis-v1", "outcome-v1"):
        record = avro.decode_log_record(KEY, frozen(name))
        assert isinstance(record, Malformed), "an outcome is no transaction"
    with pytest.raises(UnsupportedFormat):
        avro.decode_outcome_record(frozen("transaction-v1"))


def test_an_outcome_with_a_code_of_a_newer_program_asks_for_an_upgrade() -> None:
    schema = record_schema("outcome-v1")
    head, decision, _ = schema.decode_parts(frozen("outcome-v1"))
    decision["code"] = "A_NEW_REASON"
    *_, tail = schema.decode_parts(schema.encode({**head, "decision": decision}))
    head["hash"] = hashlib.sha256(head["previous_hash"] + tail).digest()
    with pytest.raises(UnsupportedFormat, match="A_NEW_REASON.*Upgrade"):
        avro.decode_outcome_record(schema.encode({**head, "decision": decision}))


def test_schemas_are_found_beside_the_package_or_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "commitlog"
    monkeypatch.setattr(avro, "files", lambda _name: package)
    package.mkdir()
    assert str(schema_root()).endswith("schemas")
    assert load_schema("genesis-v1")["name"] == "Genesis"
    shipped = package / "schemas"
    shipped.mkdir()
    assert schema_root() == shipped


def test_schema_texts_have_no_line_that_git_would_change() -> None:
    for name in RELEASED:
        text = (schema_root() / f"{name}.avsc").read_text(encoding="utf-8")
        assert not re.search(r"[ \t]+$|\r|\t", text, re.MULTILINE)
        assert text.endswith("\n")
