"""The log's records as bytes: Avro's single-object encoding of the schemas in `schemas/`.

A record is `C3 01`, the CRC-64-AVRO fingerprint of its schema (8 bytes, little endian), and the
body. The fingerprint alone says what the body is, so no registry is needed, and a reader knows
whether it can read a record before it tries. A transaction keeps its content, and an outcome its
decision, as the last field: what is hashed is the record's tail, byte for byte as it was written,
whatever a later version of the schema would make of it.

A released schema is never edited; a newer one is a new file, and the bytes of every released one
stay readable (`tests/golden`).
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import fastavro
from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from commitlog.codecs import avro_values as values
from commitlog.codecs.avro_compiled import write_bytes, write_long, write_text
from commitlog.codecs.avro_lanes import CompiledSchema, sha256
from commitlog.codecs.record_ids import id_in_key, id_problem, is_keyed_by
from commitlog.errors import CorruptLog, InvalidTransaction, UnsupportedFormat
from commitlog.model.operations import ROW_OPERATIONS
from commitlog.model.records import (
    Genesis,
    LeaderStarted,
    LogRecord,
    Malformed,
    Outcome,
    OutcomeRecord,
    ProtocolVersion,
    Retained,
    Transaction,
)
from commitlog.words import worded

MARKER = b"\xc3\x01"
PREFIX_BYTES = 10
"""The marker and the fingerprint."""

TRANSACTION_SCHEMAS = ("transaction-v1", "transaction-v2")
FIRST_LOG_SCHEMAS = ("transaction-v1", "protocol-version-v1")
LOG_SCHEMAS = (*FIRST_LOG_SCHEMAS, "transaction-v2", "protocol-version-v2")
OUTCOME_SCHEMAS = ("genesis-v1", "leader-started-v1", "outcome-v1", "outcome-v2", "retained-v1")


def schema_root() -> Traversable:
    """The wheel carries the schemas inside the package; a checkout keeps them beside it."""
    shipped = files("commitlog") / "schemas"
    return shipped if shipped.is_dir() else Path(__file__).resolve().parents[2] / "schemas"


def load_schema(name: str) -> dict[str, Any]:
    """Return the JSON of `schemas/<name>.avsc`."""
    text = (schema_root() / f"{name}.avsc").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def schema_fingerprint(schema: Any) -> bytes:
    """Return the CRC-64-AVRO fingerprint of a schema, in the order in which records carry it."""
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


class RecordSchema:
    """A schema of records, whose last field can be read apart from the ones before it."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.name: str = schema["name"]
        self.prefix = MARKER + schema_fingerprint(schema)
        self._whole = _parsed(schema)
        self._head, self._tail = _without_last(schema), _last(schema)

    def encode(self, plain: values.Plain) -> bytes:
        """Return the record's bytes."""
        out = io.BytesIO()
        out.write(self.prefix)
        fastavro.schemaless_writer(out, self._whole, plain)
        return out.getvalue()

    def decode(self, data: bytes) -> values.Plain:
        """Return the whole record; ValueError, EOFError and others if it is broken."""
        source = io.BytesIO(data)
        source.seek(PREFIX_BYTES)
        plain: values.Plain = _read(source, self._whole)
        _expect_end(source, data)
        return plain

    def decode_parts(self, data: bytes) -> tuple[values.Plain, values.Plain, bytes]:
        """Return the fields before the last one, the last one, and the last one's bytes."""
        source = io.BytesIO(data)
        source.seek(PREFIX_BYTES)
        head = _read(source, self._head)
        start = source.tell()
        tail = _read(source, self._tail)
        _expect_end(source, data)
        return head, tail, data[start:]

    def encode_parts(self, head: values.Plain, tail: bytes) -> bytes:
        """Return a record of other fields before the last one, and of that one's bytes."""
        out = io.BytesIO()
        out.write(self.prefix)
        fastavro.schemaless_writer(out, self._head, head)
        return out.getvalue() + tail


def _parsed(schema: Any) -> Any:
    return parse_schema(schema, _force=True)


def _without_last(schema: dict[str, Any]) -> Any:
    # The namespace stays: names inside are relative to it.
    return _parsed({**schema, "fields": schema["fields"][:-1]})


def _last(schema: dict[str, Any]) -> Any:
    tail = schema["fields"][-1]["type"]
    if isinstance(tail, dict) and tail.get("type") == "record":
        return _parsed({"namespace": schema.get("namespace", ""), **tail})
    return _parsed(tail)


def _read(source: io.BytesIO, schema: Any) -> Any:
    return fastavro.schemaless_reader(
        source, schema, None, return_record_name=True, return_record_name_override=True
    )


def _expect_end(source: io.BytesIO, data: bytes) -> None:
    if rest := len(data) - source.tell():
        raise ValueError(f"{rest} bytes follow the record")


@cache
def record_schema(name: str) -> RecordSchema:
    """Return a released schema by its name."""
    return RecordSchema(load_schema(name))


@cache
def _known(names: tuple[str, ...]) -> dict[bytes, RecordSchema]:
    return {schema.prefix: schema for schema in map(record_schema, names)}


@cache
def compiled(name: str) -> CompiledSchema:
    """Return a schema of records that each commit writes and reads."""
    schema = load_schema(name)
    return CompiledSchema(schema, MARKER + schema_fingerprint(_parsed(schema)))


@cache
def _compiled_transactions() -> dict[bytes, CompiledSchema]:
    return {one.prefix: one for one in map(compiled, TRANSACTION_SCHEMAS)}


_NOT_ENCODED = (ValueError, TypeError, AttributeError, LookupError, OverflowError)
"""What the writing of a value that the schema doesn't take may raise."""


def _not_encoded(what: str, error: Exception) -> InvalidTransaction:
    """Say of a value that the schema doesn't take which record it was in."""
    return InvalidTransaction(
        f"{what} cannot be encoded: {type(error).__name__}: {error}",
        field=what,
        advice="Correct the value; integers have 64 bits and text is valid Unicode",
    )


def _schema_of(transaction: Transaction) -> CompiledSchema:
    # Programs that know no rows in a record read the first one.
    has_rows = not ROW_OPERATIONS.isdisjoint(map(type, transaction.operations))
    return compiled(TRANSACTION_SCHEMAS[has_rows or bool(transaction.payloads)])


def payload_hash(transaction: Transaction) -> bytes:
    """Return the sha256 of the encoded content: all but id, attempt, principal and time."""
    try:
        content = _schema_of(transaction).encode_tail(transaction)
    except _NOT_ENCODED as error:
        raise _not_encoded(f"transaction {transaction.transaction_id}", error) from error
    return sha256(content)


def encode_transaction(transaction: Transaction) -> bytes:
    """Return a transaction's record; raises InvalidTransaction for a value Avro doesn't take."""
    if problem := id_problem(transaction.transaction_id):
        raise InvalidTransaction(
            problem, field="transaction_id", value=transaction.transaction_id, advice="Use a UUID"
        )
    schema = _schema_of(transaction)
    try:
        return schema.encode(transaction)
    except _NOT_ENCODED as error:
        raise _not_encoded(f"transaction {transaction.transaction_id}", error) from error


def encode_protocol_version(version: ProtocolVersion) -> bytes:
    """Return a ProtocolVersion's record."""
    # Programs that know no release read the first schema, and continue by what it says.
    name = "protocol-version-v2" if version.lance_release else "protocol-version-v1"
    what = f"protocol version {version.transaction_id}"
    return _encoded(name, what, values.protocol_version_to_plain, version)


def encode_genesis(genesis: Genesis) -> bytes:
    """Return a Genesis record."""
    return _encoded("genesis-v1", f"the genesis of {genesis.log}", values.genesis_to_plain, genesis)


def encode_leader_started(started: LeaderStarted) -> bytes:
    """Return a LeaderStarted record."""
    what = f"the start of leader {started.leader_id}"
    return _encoded("leader-started-v1", what, values.to_plain, started)


def encode_retained(retained: Retained) -> bytes:
    """Return a Retained record."""
    what = f"the giving up of what is archived through {retained.sequence}"
    return _encoded("retained-v1", what, values.retained_to_plain, retained)


def _encoded(name: str, what: str, to_plain: Callable[[Any], values.Plain], value: Any) -> bytes:
    try:
        return record_schema(name).encode(to_plain(value))
    except _NOT_ENCODED as error:
        raise _not_encoded(what, error) from error


def seal_outcome(
    outcome: Outcome, *, previous_hash: bytes, epoch: int, node: str
) -> tuple[Outcome, bytes]:
    """Link a decision into the chain under a leader; return the whole value and its record.

    The hash covers the decision and the hash before it, not the leader: deciding the same log
    again gives the same chain.
    """
    schema = compiled("outcome-v1" if outcome.reason is None else "outcome-v2")
    try:
        decision = schema.encode_tail(outcome)
        digest = sha256(previous_hash + decision)
        head = {"epoch": epoch, "node": node, "previous_hash": previous_hash, "hash": digest}
        start = schema.prefix + write_long(epoch) + write_text(node)
        record = start + write_bytes(previous_hash) + write_bytes(digest) + decision
        return values.with_head(outcome, head), record
    except _NOT_ENCODED as error:
        raise _not_encoded(f"the outcome of sequence {outcome.sequence}", error) from error


def decode_log_record(key: bytes | None, value: bytes) -> LogRecord:
    """Decode a record of the transactions topic; what cannot be decoded is `Malformed`.

    Never raises: anybody may append anything, and a record that stopped every leader would stop
    the log. The id in the key must be the record's own, since retention names records by key.
    """
    schema = _known(LOG_SCHEMAS).get(value[:PREFIX_BYTES])
    if schema is None:
        return _of_unknown_schema(id_in_key(key), value)
    try:
        quick = _compiled_transactions().get(schema.prefix)
        if quick is not None and (known := quick.read(value)) is not None:
            record: Transaction | ProtocolVersion = known[0]
        elif schema.name == "Transaction":
            head, content, tail = schema.decode_parts(value)
            record = values.transaction_to_value(head, content, sha256(tail))
        else:
            record = values.protocol_version_to_value(schema.decode(value))
        if schema.prefix not in _known(FIRST_LOG_SCHEMAS):
            record = replace(record, unread=_of_unknown_schema(id_in_key(key), value))
    except Exception as error:  # fastavro raises nearly every kind on broken bytes
        why = f"broken {schema.name} record: {_brief(error)}"
        return _malformed(id_in_key(key), why, value, "record_broken")
    if why := id_problem(record.transaction_id):
        return _malformed(id_in_key(key), why, value, "record_id_invalid")
    if not is_keyed_by(key, record.transaction_id):
        why = f"the key names transaction {id_in_key(key)!r}, the record {record.transaction_id!r}"
        return _malformed(id_in_key(key), why, value, "record_key_differs")
    return record


def decode_outcome_record(value: bytes | None) -> OutcomeRecord:
    """Decode a record of the outcomes topic.

    Raises:
        UnsupportedFormat: a newer program wrote it; upgrade this one.
        CorruptLog: its bytes are broken, or its hash is not that of its content.
    """
    if value is None:
        raise CorruptLog("an outcome record's value is null")
    for name in ("outcome-v1", "outcome-v2"):
        if (found := compiled(name).read(value)) is not None:
            outcome: Outcome = found[0]
            tail = outcome.previous_hash + value[found[1] :]
            if hashlib.sha256(tail).digest() != outcome.hash:
                raise _changed(outcome.sequence)
            return outcome if outcome.reason is None else worded(outcome)
    schema = _known(OUTCOME_SCHEMAS).get(value[:PREFIX_BYTES])
    if schema is None:
        kind = UnsupportedFormat if value[:2] == MARKER else CorruptLog
        raise kind(_unknown_prefix(value))
    try:
        if (to_value := values.FRAMING.get(schema.name)) is not None:
            framing: OutcomeRecord = to_value(schema.decode(value))
            return framing
        head, decision, tail = schema.decode_parts(value)
    except Exception as error:  # fastavro raises nearly every kind on broken bytes
        raise CorruptLog(f"broken {schema.name} record: {_brief(error)}") from error
    if hashlib.sha256(head["previous_hash"] + tail).digest() != head["hash"]:
        raise _changed(decision["sequence"])
    try:
        return worded(values.outcome_to_value(head, decision))
    except ValueError as error:
        raise UnsupportedFormat(
            f"the outcome of sequence {decision['sequence']}: {error}. Upgrade this program"
        ) from error


def _changed(sequence: int) -> CorruptLog:
    return CorruptLog(f"the outcome of sequence {sequence} doesn't have the hash it carries")


def _malformed(transaction_id: str, reason: str, value: bytes, problem: str) -> Malformed:
    return Malformed(transaction_id, reason, hashlib.sha256(value).digest(), problem)


def _of_unknown_schema(transaction_id: str, value: bytes) -> Malformed:
    problem = "record_of_unknown_schema" if value[:2] == MARKER else "record_not_avro"
    return _malformed(transaction_id, _unknown_prefix(value), value, problem)


def _unknown_prefix(value: bytes) -> str:
    if value[:2] != MARKER:
        return "not a record of this log: it doesn't begin with Avro's single-object marker"
    return f"a record of schema {value[2:PREFIX_BYTES].hex()}, which this program doesn't know"


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
