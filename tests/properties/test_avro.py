"""Does every value survive the way through bytes, and no bytes break the decoder?"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import types
import typing
from functools import cache
from typing import Any
from unittest.mock import patch

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitlog.codecs import avro
from commitlog.codecs.avro import load_schema, schema_fingerprint
from commitlog.codecs.avro_compiled import read_long
from commitlog.codecs.avro_lanes import CompiledSchema
from commitlog.core.log.outcomes import _at_most, decision_bytes
from commitlog.errors import CorruptLog, InvalidTransaction, UnsupportedFormat
from commitlog.model.operations import ROW_OPERATIONS, LanceCommit
from commitlog.model.records import (
    Genesis,
    LeaderStarted,
    Malformed,
    Outcome,
    ProtocolVersion,
    Transaction,
)
from commitlog.words import worded
from tests.golden.records import ENCODED, FOLDER, KEY, OUTCOME, REFUSED

LONGS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
IDS = st.uuids().map(str)
MAPS = {"properties", "schema_metadata", "metadata", "upserts", "domains"}
OUTSIDE_THE_DECISION = {"epoch", "node", "previous_hash", "hash"}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a type of the model."""
    simple = {int: LONGS, str: TEXTS, bytes: st.binary(max_size=8), bool: st.booleans()}
    if hint in simple:
        return simple[hint]
    if hint is type(None):
        return st.none()
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return dataclass_of(hint)
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return st.one_of([values_of(each) for each in arguments])
    if arguments[1:] == (...,):
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    return st.tuples(*[values_of(each) for each in arguments])


def dataclass_of(kind: type, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for a dataclass of the model."""
    strategies = {}
    for name, hint in typing.get_type_hints(kind).items():
        strategy = given[name] if name in given else values_of(hint)
        if name in MAPS:
            strategy = strategy.map(lambda pairs: pairs and tuple(sorted(dict(pairs).items())))
        strategies[name] = strategy
    return st.builds(kind, **strategies)


TRANSACTIONS = dataclass_of(
    Transaction, transaction_id=IDS, payload_hash=st.just(b""), unread=st.none()
)


@pytest.mark.slow
@given(TRANSACTIONS, st.text("0123456789abcdef", max_size=16))
def test_transactions_survive(transaction: Transaction, nonce: str) -> None:
    value = avro.encode_transaction(transaction)
    key = f"{transaction.transaction_id}/{nonce}".encode()
    decoded = avro.decode_log_record(key, value)
    assert isinstance(decoded, Transaction)
    assert dataclasses.replace(decoded, payload_hash=b"") == transaction
    assert decoded.payload_hash == avro.payload_hash(transaction)
    assert avro.encode_transaction(decoded) == value


WITH_PARTS = ("transaction-v1", "transaction-v2", "outcome-v1", "outcome-v2")
SCHEMAS = {name: load_schema(name) for name in WITH_PARTS}


def records_in(schema: Any) -> dict[str, Any]:
    """Return the records that a schema defines, by name."""
    found: dict[str, Any] = {}
    if isinstance(schema, list):
        for each in schema:
            found |= records_in(each)
    elif isinstance(schema, dict):
        if schema["type"] == "record":
            found[schema["name"]] = schema
            for field in schema["fields"]:
                found |= records_in(field["type"])
        elif schema["type"] == "array":
            found |= records_in(schema["items"])
    return found


@cache
def parsed_by_fastavro(name: str) -> tuple[Any, bytes]:
    """Return a schema as fastavro wants it, and its fingerprint."""
    parsed = fastavro.parse_schema(SCHEMAS[name])
    return parsed, schema_fingerprint(parsed)


def by_fastavro(name: str, value: Any) -> bytes:
    """Return a value's record as fastavro writes it."""
    parsed, fingerprint = parsed_by_fastavro(name)
    out = io.BytesIO()
    out.write(avro.MARKER + fingerprint)
    plain_value = plain(SCHEMAS[name], value, records_in(SCHEMAS[name]))
    fastavro.schemaless_writer(out, parsed, plain_value)
    return out.getvalue()


def plain(schema: Any, value: Any, records: dict[str, Any]) -> Any:
    """Return a value as fastavro wants it."""
    if isinstance(schema, list):
        if schema[0] == "null":
            return None if value is None else plain(schema[1], value, records)
        branch = records[type(value).__name__]
        return f"commitlog.{branch['name']}", plain(branch, value, records)
    schema = records.get(schema, schema) if isinstance(schema, str) else schema
    if not isinstance(schema, dict):
        return value
    if schema["type"] == "array":
        items = schema["items"]
        name = items if isinstance(items, str) else isinstance(items, dict) and items.get("name")
        is_map = name in ("Property", "Metadata")
        return [plain(items, each, records) for each in (sorted(value) if is_map else value)]
    if schema["type"] != "record":
        return str(value)
    names = [field["name"] for field in schema["fields"]]
    if isinstance(value, tuple):
        return dict(zip(names, value, strict=True))
    # `content` and `decision` have their fields in the value itself.
    return {
        field["name"]: plain(field["type"], getattr(value, field["name"], value), records)
        for field in schema["fields"]
    }


@pytest.mark.slow
@given(TRANSACTIONS)
def test_a_transaction_has_the_bytes_that_fastavro_gives_it(transaction: Transaction) -> None:
    has_rows = not ROW_OPERATIONS.isdisjoint(map(type, transaction.operations))
    schema = "transaction-v2" if has_rows or transaction.payloads else "transaction-v1"
    expected = by_fastavro(schema, transaction)
    assert avro.encode_transaction(transaction) == expected


def schema_of(outcome: Outcome) -> str:
    return "outcome-v1" if outcome.reason is None else "outcome-v2"


@pytest.mark.slow
@given(dataclass_of(Outcome), st.binary(max_size=32), LONGS, TEXTS)
def test_an_outcome_has_the_bytes_that_fastavro_gives_it(
    outcome: Outcome, previous_hash: bytes, epoch: int, node: str
) -> None:
    sealed, value = avro.seal_outcome(outcome, previous_hash=previous_hash, epoch=epoch, node=node)
    assert value == by_fastavro(schema_of(sealed), sealed)


@pytest.mark.slow
@given(dataclass_of(Outcome))
def test_the_core_knows_the_size_of_an_outcome(outcome: Outcome) -> None:
    _, value = avro.seal_outcome(outcome, previous_hash=b"", epoch=0, node="")
    head = len(avro.MARKER) + 8 + 1 + 1 + 1 + 33
    assert decision_bytes(outcome) == len(value) - head
    assert _at_most(outcome) >= decision_bytes(outcome)


@pytest.mark.slow
@given(TRANSACTIONS, dataclass_of(Outcome))
def test_what_is_read_quickly_is_what_fastavro_reads(
    transaction: Transaction, outcome: Outcome
) -> None:
    sealed, _ = avro.seal_outcome(outcome, previous_hash=b"", epoch=1, node="n")
    key = f"{transaction.transaction_id}/0".encode()
    quick = [
        avro.decode_log_record(key, avro.encode_transaction(transaction)),
        avro.decode_outcome_record(by_fastavro(schema_of(sealed), sealed)),
    ]
    with patch.object(CompiledSchema, "read", return_value=None):
        slow = [
            avro.decode_log_record(key, avro.encode_transaction(transaction)),
            avro.decode_outcome_record(by_fastavro(schema_of(sealed), sealed)),
        ]
    assert quick == slow


@given(st.binary(max_size=12), st.integers(0, 400))
def test_numbers_have_one_reading(data: bytes, at: int) -> None:
    with contextlib.suppress(ValueError, IndexError):
        number, end = read_long(data, at)
        assert -(2**63) <= number < 2**63
        assert end <= len(data)
        assert fastavro.schemaless_reader(io.BytesIO(data[at:]), "long", None) == number


@pytest.mark.slow
@given(TRANSACTIONS, IDS, LONGS, TEXTS)
def test_the_payload_hash_covers_the_content_alone(
    transaction: Transaction, transaction_id: str, number: int, principal: str
) -> None:
    again = dataclasses.replace(
        transaction,
        transaction_id=transaction_id,
        attempt=number,
        submitted_at_ms=number,
        principal=principal,
        properties=tuple(reversed(transaction.properties)),
    )
    assert avro.payload_hash(again) == avro.payload_hash(transaction)
    other = dataclasses.replace(transaction, properties=(*transaction.properties, ("\0new", "")))
    assert avro.payload_hash(other) != avro.payload_hash(transaction)


@given(dataclass_of(ProtocolVersion, transaction_id=IDS))
def test_protocol_versions_survive(version: ProtocolVersion) -> None:
    key = f"{version.transaction_id}/0".encode()
    assert avro.decode_log_record(key, avro.encode_protocol_version(version)) == version


@given(dataclass_of(Genesis))
def test_geneses_survive(genesis: Genesis) -> None:
    assert avro.decode_outcome_record(avro.encode_genesis(genesis)) == genesis


@given(dataclass_of(LeaderStarted))
def test_leaders_starts_survive(started: LeaderStarted) -> None:
    assert avro.decode_outcome_record(avro.encode_leader_started(started)) == started


def _silent(outcome: Outcome) -> Outcome:
    if outcome.reason is None:
        return outcome
    conflict = outcome.conflict and dataclasses.replace(outcome.conflict, advice="")
    return dataclasses.replace(outcome, message="", conflict=conflict)


@pytest.mark.slow
@given(dataclass_of(Outcome), st.binary(max_size=32), LONGS, TEXTS)
def test_outcomes_survive_and_their_hash_is_the_decisions(
    outcome: Outcome, previous_hash: bytes, epoch: int, node: str
) -> None:
    sealed, value = avro.seal_outcome(outcome, previous_hash=previous_hash, epoch=epoch, node=node)
    # Words are said of the reason, if there is one: those that it came with are in no record.
    assert avro.decode_outcome_record(value) == worded(_silent(sealed))
    assert (sealed.epoch, sealed.node, sealed.previous_hash) == (epoch, node, previous_hash)
    # Another leader that decides the same, from whatever it holds, makes the same hash.
    again, _ = avro.seal_outcome(sealed, previous_hash=previous_hash, epoch=0, node="other")
    assert again.hash == sealed.hash
    longer, _ = avro.seal_outcome(sealed, previous_hash=previous_hash + b"x", epoch=0, node="")
    assert longer.hash != sealed.hash


@given(st.none() | st.binary(max_size=200), st.binary(max_size=300))
def test_no_bytes_break_the_decoder_of_the_log(key: bytes | None, value: bytes) -> None:
    record = avro.decode_log_record(key, value)
    assert isinstance(record, Malformed)
    assert record.reason


@pytest.mark.slow
@settings(max_examples=300)
@given(st.sampled_from(sorted(ENCODED)), st.integers(0, 2000), st.binary(max_size=4), st.booleans())
def test_damaged_records_break_no_decoder(
    name: str, position: int, damage: bytes, is_cut: bool
) -> None:
    value = (FOLDER / f"{name}.bin").read_bytes()
    position %= len(value)
    rest = b"" if is_cut else value[position + len(damage) :]
    damaged = value[:position] + damage + rest
    avro.decode_log_record(KEY, damaged)
    try:
        record = avro.decode_outcome_record(damaged)
    except (CorruptLog, UnsupportedFormat):
        return
    if isinstance(record, Outcome):
        # Only what the chain doesn't cover may be read differently; it doesn't decide anything.
        known = OUTCOME if record.reason is None else REFUSED
        without = {name: getattr(known, name) for name in OUTSIDE_THE_DECISION}
        assert dataclasses.replace(record, **without) == known


@given(st.binary(max_size=40))
def test_bodies_of_nothing_but_noise_are_malformed_or_whole(body: bytes) -> None:
    for name in ("transaction-v1", "protocol-version-v1"):
        prefix = (FOLDER / f"{name}.bin").read_bytes()[: avro.PREFIX_BYTES]
        record = avro.decode_log_record(KEY, prefix + body)
        assert isinstance(record, Malformed)


def test_counts_that_promise_more_than_there_is_take_no_memory() -> None:
    # An array's count is read before its items: 2**60 of them are promised here.
    prefix = (FOLDER / "transaction-v1.bin").read_bytes()[: avro.PREFIX_BYTES]
    count = b"\x80\x80\x80\x80\x80\x80\x80\x80\x20"
    for body in (b"\0\0\0\0\0" + count, b"\0\0\0\0\0\0\0" + count, count, b"\0\0" + count):
        assert isinstance(avro.decode_log_record(KEY, prefix + body), Malformed)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"transaction_id": ""}, "transaction id is empty"),
        ({"transaction_id": "a/b"}, "printable ASCII"),
        ({"transaction_id": "ü"}, "printable ASCII"),
        ({"transaction_id": "x" * 129}, "longer than 128"),
        ({"attempt": 2**63}, "cannot be encoded"),
        ({"principal": "\ud800"}, "cannot be encoded"),
        ({"principal": None}, "cannot be encoded"),
        ({"operations": ("x",)}, "cannot be encoded"),
        ({"operations": (LanceCommit(("t",), "Append", -(2**63) - 1, b""),)}, "cannot be encoded"),
        ({"operations": (LanceCommit(("t",), "Append", 0, "text"),)}, "cannot be encoded"),  # type: ignore[arg-type]
    ],
)
def test_values_that_have_no_bytes_are_refused(change: dict[str, Any], said: str) -> None:
    transaction = Transaction("0199a000-0000-7000-8000-000000000001", ())
    with pytest.raises(InvalidTransaction, match=said):
        avro.encode_transaction(dataclasses.replace(transaction, **change))


def test_a_key_that_names_another_transaction_makes_a_record_malformed() -> None:
    value = (FOLDER / "transaction-v1.bin").read_bytes()
    other = avro.decode_log_record(b"other/1", value)
    assert isinstance(other, Malformed)
    assert other.transaction_id == "other"
    assert isinstance(avro.decode_log_record(None, value), Malformed)


def test_bytes_after_a_record_make_it_malformed() -> None:
    value = (FOLDER / "transaction-v1.bin").read_bytes()
    record = avro.decode_log_record(KEY, value + b"\0")
    assert isinstance(record, Malformed)
    assert "1 bytes follow the record" in record.reason
