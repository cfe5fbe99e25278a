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

import contextlib
import hashlib
import io
import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import fastavro
from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

from commitlog.codecs import avro_values as values
from commitlog.errors import CorruptLog, InvalidTransaction, UnsupportedFormat
from commitlog.model.records import (
    Genesis,
    LeaderStarted,
    LogRecord,
    Malformed,
    Outcome,
    OutcomeRecord,
    ProtocolVersion,
    Transaction,
)

MARKER = b"\xc3\x01"
PREFIX_BYTES = 10
"""The marker and the fingerprint."""

TRANSACTION_ID_LENGTH_MAX = 128
"""A UUID has 36 characters; others' idempotency keys stay below this."""

LOG_SCHEMAS = ("transaction-v1", "protocol-version-v1")
OUTCOME_SCHEMAS = ("genesis-v1", "leader-started-v1", "outcome-v1")


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
    """A schema that records were written by, and what this program reads them as.

    `reader`, where it differs, is a newer schema of the same record: fields added since get their
    defaults. The last field can be read apart from the ones before it.
    """

    def __init__(self, writer: dict[str, Any], reader: dict[str, Any] | None = None) -> None:
        self.name: str = writer["name"]
        self.prefix = MARKER + schema_fingerprint(writer)
        self._whole = _parsed(writer), reader and _parsed(reader)
        self._head = _without_last(writer), reader and _without_last(reader)
        self._tail = _last(writer), reader and _last(reader)

    def encode(self, plain: values.Plain) -> bytes:
        """Return the record's bytes."""
        out = io.BytesIO()
        out.write(self.prefix)
        _write(out, self._whole[0], plain)
        return out.getvalue()

    def encode_head(self, plain: values.Plain) -> bytes:
        """Return the record's bytes up to its last field."""
        out = io.BytesIO()
        out.write(self.prefix)
        _write(out, self._head[0], plain)
        return out.getvalue()

    def encode_tail(self, plain: values.Plain) -> bytes:
        """Return the bytes of the last field."""
        out = io.BytesIO()
        _write(out, self._tail[0], plain)
        return out.getvalue()

    def decode(self, data: bytes) -> values.Plain:
        """Return the whole record; ValueError, EOFError and others if it is broken."""
        source = io.BytesIO(data)
        source.seek(PREFIX_BYTES)
        plain: values.Plain = _read(source, *self._whole)
        _expect_end(source, data)
        return plain

    def decode_parts(self, data: bytes) -> tuple[values.Plain, values.Plain, bytes]:
        """Return the fields before the last one, the last one, and the last one's bytes."""
        source = io.BytesIO(data)
        source.seek(PREFIX_BYTES)
        head = _read(source, *self._head)
        start = source.tell()
        tail = _read(source, *self._tail)
        _expect_end(source, data)
        return head, tail, data[start:]


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


def _write(out: io.BytesIO, schema: Any, plain: values.Plain) -> None:
    fastavro.schemaless_writer(out, schema, plain)


def _read(source: io.BytesIO, writer: Any, reader: Any) -> Any:
    return fastavro.schemaless_reader(
        source, writer, reader, return_record_name=True, return_record_name_override=True
    )


def _expect_end(source: io.BytesIO, data: bytes) -> None:
    if rest := len(data) - source.tell():
        raise ValueError(f"{rest} bytes follow the record")


@cache
def _schema(name: str) -> RecordSchema:
    return RecordSchema(load_schema(name))


@cache
def _known(names: tuple[str, ...]) -> dict[bytes, RecordSchema]:
    return {schema.prefix: schema for schema in map(_schema, names)}


@contextlib.contextmanager
def _encoding(what: str) -> Iterator[None]:
    """Say of a value that the schema doesn't take which record it was in."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
        raise InvalidTransaction(
            f"{what} cannot be encoded: {type(error).__name__}: {error}",
            field=what,
            advice="Correct the value; integers have 64 bits and text is valid Unicode",
        ) from error


def payload_hash(transaction: Transaction) -> bytes:
    """Return the sha256 of the encoded content: all but id, attempt, principal and time."""
    with _encoding(f"transaction {transaction.transaction_id}"):
        content = _schema("transaction-v1").encode_tail(values.content_to_plain(transaction))
    return hashlib.sha256(content).digest()


def encode_transaction(transaction: Transaction) -> bytes:
    """Return a transaction's record; raises InvalidTransaction for a value Avro doesn't take."""
    if problem := _id_problem(transaction.transaction_id):
        raise InvalidTransaction(
            problem,
            field="transaction_id",
            value=transaction.transaction_id,
            advice="Use a UUID",
        )
    with _encoding(f"transaction {transaction.transaction_id}"):
        return _schema("transaction-v1").encode(
            {
                "transaction_id": transaction.transaction_id,
                "attempt": transaction.attempt,
                "principal": transaction.principal,
                "submitted_at_ms": transaction.submitted_at_ms,
                "content": values.content_to_plain(transaction),
            }
        )


def encode_protocol_version(version: ProtocolVersion) -> bytes:
    """Return a ProtocolVersion's record."""
    with _encoding(f"protocol version {version.transaction_id}"):
        return _schema("protocol-version-v1").encode(values.protocol_version_to_plain(version))


def encode_genesis(genesis: Genesis) -> bytes:
    """Return a Genesis record."""
    with _encoding(f"the genesis of {genesis.log}"):
        return _schema("genesis-v1").encode(values.genesis_to_plain(genesis))


def encode_leader_started(started: LeaderStarted) -> bytes:
    """Return a LeaderStarted record."""
    with _encoding(f"the start of leader {started.leader_id}"):
        return _schema("leader-started-v1").encode(values.leader_started_to_plain(started))


def seal_outcome(
    outcome: Outcome, *, previous_hash: bytes, epoch: int, node: str
) -> tuple[Outcome, bytes]:
    """Link a decision into the chain under a leader; return the whole value and its record.

    The hash covers the decision and the hash before it, not the leader: whoever decides again
    from the same log gets the same chain.
    """
    schema = _schema("outcome-v1")
    with _encoding(f"the outcome of sequence {outcome.sequence}"):
        decision = schema.encode_tail(values.decision_to_plain(outcome))
        digest = hashlib.sha256(previous_hash + decision).digest()
        head = {"epoch": epoch, "node": node, "previous_hash": previous_hash, "hash": digest}
        return values.with_head(outcome, head), schema.encode_head(head) + decision


def decode_log_record(key: bytes | None, value: bytes | None) -> LogRecord:
    """Decode a record of the transactions topic; what cannot be decoded is `Malformed`.

    Never raises: anybody may append anything, and a record that stopped every leader would stop
    the log. The id in the key must be the record's own, since retention names records by key.
    """
    key_id = _id_in_key(key)
    if value is None:
        return Malformed(key_id, "the value is null: a tombstone without a record", b"")
    schema = _known(LOG_SCHEMAS).get(value[:PREFIX_BYTES])
    if schema is None:
        return _malformed(key_id, _unknown_prefix(value), value)
    record: LogRecord
    try:
        if schema.name == "Transaction":
            head, content, tail = schema.decode_parts(value)
            digest = hashlib.sha256(tail).digest()
            record = values.transaction_to_value(head, content, digest)
        else:
            record = values.protocol_version_to_value(schema.decode(value))
    except Exception as error:  # fastavro raises nearly every kind on broken bytes
        return _malformed(key_id, f"broken {schema.name} record: {_brief(error)}", value)
    if problem := _id_problem(record.transaction_id):
        return _malformed(key_id, problem, value)
    if key_id != record.transaction_id:
        problem = f"the key names transaction {key_id!r}, the record {record.transaction_id!r}"
        return _malformed(key_id, problem, value)
    return record


def decode_outcome_record(value: bytes | None) -> OutcomeRecord:
    """Decode a record of the outcomes topic.

    Raises:
        UnsupportedFormat: a newer program wrote it; upgrade this one.
        CorruptLog: its bytes are broken, or its hash is not that of its content.
    """
    if value is None:
        raise CorruptLog("an outcome record's value is null")
    schema = _known(OUTCOME_SCHEMAS).get(value[:PREFIX_BYTES])
    if schema is None:
        kind = UnsupportedFormat if value[:2] == MARKER else CorruptLog
        raise kind(_unknown_prefix(value))
    try:
        if schema.name == "Genesis":
            genesis: Genesis = values.genesis_to_value(schema.decode(value))
            return genesis
        if schema.name == "LeaderStarted":
            started: LeaderStarted = values.leader_started_to_value(schema.decode(value))
            return started
        head, decision, tail = schema.decode_parts(value)
    except Exception as error:  # fastavro raises nearly every kind on broken bytes
        raise CorruptLog(f"broken {schema.name} record: {_brief(error)}") from error
    if hashlib.sha256(head["previous_hash"] + tail).digest() != head["hash"]:
        raise CorruptLog(
            f"the outcome of sequence {decision['sequence']} doesn't have the hash it carries"
        )
    try:
        return values.outcome_to_value(head, decision)
    except ValueError as error:
        raise UnsupportedFormat(
            f"the outcome of sequence {decision['sequence']}: {error}. Upgrade this program"
        ) from error


def _malformed(transaction_id: str, reason: str, value: bytes) -> Malformed:
    return Malformed(transaction_id, reason, hashlib.sha256(value).digest())


def _unknown_prefix(value: bytes) -> str:
    if value[:2] != MARKER:
        return "not a record of this log: it doesn't begin with Avro's single-object marker"
    return f"a record of schema {value[2:PREFIX_BYTES].hex()}, which this program doesn't know"


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _id_problem(transaction_id: str) -> str:
    if not transaction_id:
        return "the transaction id is empty"
    if len(transaction_id) > TRANSACTION_ID_LENGTH_MAX:
        return f"the transaction id is longer than {TRANSACTION_ID_LENGTH_MAX} characters"
    if "/" in transaction_id or not (transaction_id.isascii() and transaction_id.isprintable()):
        return "the transaction id has characters other than printable ASCII without '/'"
    return ""


def _id_in_key(key: bytes | None) -> str:
    """Return the transaction id of `transaction_id/nonce`, empty if the key isn't of that shape."""
    found = (key or b"").partition(b"/")[0][: TRANSACTION_ID_LENGTH_MAX + 1]
    transaction_id = found.decode("ascii", "replace")
    return "" if _id_problem(transaction_id) else transaction_id
