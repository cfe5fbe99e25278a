"""The values of the log as the plain dicts that Avro reads and writes, and back.

A table says for each class which field needs a conversion; every other field is the same on both
sides. Field names are those of the schemas. Entries of maps are sorted by key, so that equal
content has equal bytes and an equal payload hash.

Why a table and not `dataclasses.asdict`: that one copies deeply and takes ten times as long, and
unions of records need their branch named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter, itemgetter
from typing import Any

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

Plain = dict[str, Any]
"""A record as Avro sees it."""

Convert = Callable[[Any], Any]
Conversions = Mapping[str, tuple[Convert, Convert]]

_NAMESPACE = "commitlog."


def _fields(kind: type) -> tuple[str, ...]:
    return tuple(kind.__dataclass_fields__)  # type: ignore[attr-defined]


def _converter(kind: type[Any], conversions: Conversions) -> tuple[Convert, Convert]:
    """Build the two functions for one class: value to plain, plain to value."""
    names = _fields(kind)
    # Both fetch all fields in one call; of a single name they give no tuple.
    fields_of, entries_of = attrgetter(*names), itemgetter(*names)
    encoders = tuple((name, both[0]) for name, both in conversions.items())
    decoders = tuple((name, both[1]) for name, both in conversions.items())
    is_single = len(names) == 1

    def to_plain(value: Any) -> Plain:
        fields = fields_of(value)
        plain = dict(zip(names, (fields,) if is_single else fields, strict=True))
        for name, convert in encoders:
            plain[name] = convert(plain[name])
        return plain

    def to_value(plain: Plain) -> Any:
        for name, convert in decoders:
            plain[name] = convert(plain[name])
        entries = entries_of(plain)
        return kind(entries) if is_single else kind(*entries)

    return to_plain, to_value


def _pairs(first: str, second: str, *, is_sorted: bool) -> tuple[Convert, Convert]:
    """Convert between a tuple of pairs and an array of records with two fields."""
    both = itemgetter(first, second)

    def to_plain(pairs: Iterable[tuple[Any, Any]]) -> list[Plain]:
        ordered = sorted(pairs) if is_sorted else pairs
        return [{first: a, second: b} for a, b in ordered]

    def to_value(plain: list[Plain]) -> tuple[tuple[Any, Any], ...]:
        return tuple([both(entry) for entry in plain])

    return to_plain, to_value


def _optional(pair: tuple[Convert, Convert]) -> tuple[Convert, Convert]:
    to_plain, to_value = pair
    return (
        lambda value: None if value is None else to_plain(value),
        lambda plain: None if plain is None else to_value(plain),
    )


def _optional_record(kind: type[Any], conversions: Conversions) -> tuple[Convert, Convert]:
    """Convert a record or None; named, it is written without a look at the other branch."""
    to_plain, to_value = _converter(kind, conversions)
    name = _NAMESPACE + kind.__name__
    return (
        lambda value: None if value is None else (name, to_plain(value)),
        lambda plain: None if plain is None else to_value(plain),
    )


def _many(pair: tuple[Convert, Convert]) -> tuple[Convert, Convert]:
    to_plain, to_value = pair
    return (
        lambda values: [to_plain(value) for value in values],
        lambda plains: tuple([to_value(plain) for plain in plains]),
    )


_TUPLE: tuple[Convert, Convert] = (list, tuple)
_MAP = _pairs("key", "value", is_sorted=True)
_POLICY: tuple[Convert, Convert] = (str, Policy)
_ROWS_MODE: tuple[Convert, Convert] = (str, RowsMode)
_COLUMNS = _many(_converter(RowsColumn, {}))
_APPLIED = _many(_converter(AppliedWrite, {}))
_SUMMARY = _converter(Summary, {"data_files": _TUPLE})
_AFFECTED = _many(_converter(AffectedRows, {}))
_KEYS = _optional_record(KeyHashes, {"field_ids": _TUPLE})
_TABLE = {"table": _TUPLE}


def _union(kinds: Mapping[type[Any], Conversions]) -> tuple[Convert, Convert]:
    """Convert the members of a union of records, which Avro names by their schema."""
    converters = {kind: _converter(kind, conversions) for kind, conversions in kinds.items()}
    encoders = {kind: (_NAMESPACE + kind.__name__, c[0]) for kind, c in converters.items()}
    decoders = {_NAMESPACE + kind.__name__: c[1] for kind, c in converters.items()}

    def to_plain(value: Any) -> tuple[str, Plain]:
        name, convert = encoders[type(value)]
        return name, convert(value)

    def to_value(plain: tuple[str, Plain]) -> Any:
        return decoders[plain[0]](plain[1])

    return to_plain, to_value


_OPERATIONS = _many(
    _union(
        {
            LanceCommit: {
                **_TABLE,
                "schema_metadata": _optional(_MAP),
                "affected_rows": _AFFECTED,
                "inserted_keys": _KEYS,
                "summary": _SUMMARY,
            },
            CreateTableVersion: {**_TABLE, "metadata": _MAP},
            CreateTable: {
                **_TABLE,
                "fields": _TUPLE,
                "schema_metadata": _MAP,
                "primary_key": _TUPLE,
                "policy": _POLICY,
                "properties": _MAP,
            },
            DeclareTable: {**_TABLE, "policy": _POLICY, "properties": _MAP},
            RegisterTable: {**_TABLE, "policy": _POLICY, "primary_key": _TUPLE, "properties": _MAP},
            DeregisterTable: _TABLE,
            DropTable: _TABLE,
            RenameTable: {**_TABLE, "new_table": _TUPLE},
            DeleteTableVersions: {**_TABLE, "ranges": _pairs("first", "last", is_sorted=False)},
            CreateNamespace: {"namespace": _TUPLE, "properties": _MAP},
            DropNamespace: {"namespace": _TUPLE},
            AlterProperties: {"target": _TUPLE, "upserts": _MAP, "removals": _TUPLE},
            IcebergChange: _TABLE,
            WriteRows: {**_TABLE, "mode": _ROWS_MODE, "columns": _COLUMNS, "on": _TUPLE},
            ApplyRows: {**_TABLE, "writes": _APPLIED},
        }
    )
)
_EXPECTS = _many(
    _union(
        {TableVersionIs: _TABLE, TableAbsent: _TABLE, KeyAbsent: _TABLE, PredicateUnchanged: _TABLE}
    )
)
_APPLICATION = _optional_record(Application, {})


def transaction_to_value(header: Plain, content: Plain, payload_hash: bytes) -> Transaction:
    """Put a transaction together from its two parts."""
    return Transaction(
        transaction_id=header["transaction_id"],
        operations=_OPERATIONS[1](content["operations"]),
        attempt=header["attempt"],
        principal=header["principal"],
        submitted_at_ms=header["submitted_at_ms"],
        application=_APPLICATION[1](content["application"]),
        properties=_MAP[1](content["properties"]),
        expects=_EXPECTS[1](content["expects"]),
        payload_hash=payload_hash,
        payloads=tuple(header.get("payloads", ())),
    )


_FILES = _many(_converter(FileWritten, {}))
_IMAGES = _many(_converter(FragmentImage, {}))
_RECORDING = _optional_record(Recording, {})
_RESULTS = _many(
    _converter(OperationResult, {**_TABLE, "files": _FILES, "images": _IMAGES, "delta": _RECORDING})
)
_CONFLICT = _optional_record(Conflict, {**_TABLE, "fragments": _TUPLE, "keys": _TUPLE})
_OBSERVED = _many(_converter(Observation, {}))
_FAILED = _many(_converter(FailedRequirement, _TABLE))
_ARGUMENTS = _many(
    _union(
        {Number: {}, Text: {}, Numbers: {"values": _TUPLE}, Texts: {"values": _TUPLE}, Words: {}}
    )
)
_REASON = _optional_record(Reason, {"arguments": _ARGUMENTS})
_OF_DECISION = attrgetter(*_fields(Outcome)[:-4])
_SAME_IN_DECISION = (
    "sequence",
    "transaction_id",
    "transaction_offset",
    "attempt",
    "answers",
    "time_ms",
    "payload_hash",
)


def with_head(outcome: Outcome, head: Plain) -> Outcome:
    """Return a decision under a leader and in the chain."""
    return Outcome(*_OF_DECISION(outcome), **head)


def outcome_to_value(header: Plain, decision: Plain) -> Outcome:
    """Put an outcome together from its two parts; ValueError for a code of a newer program."""
    return Outcome(
        **{name: decision[name] for name in _SAME_IN_DECISION},
        status=Status(decision["status"]),
        code=Code(decision["code"]),
        results=_RESULTS[1](decision["results"]),
        conflict=_CONFLICT[1](decision["conflict"] and {"advice": "", **decision["conflict"]}),
        observed=_OBSERVED[1](decision["observed"]),
        failed_requirements=_FAILED[1](decision["failed_requirements"]),
        message=decision.get("message", ""),
        reason=_REASON[1](decision.get("reason")),
        **header,
    )


def protocol_version_to_plain(version: ProtocolVersion) -> Plain:
    """Return a ProtocolVersion's fields, of either schema."""
    names = [name for name in _fields(ProtocolVersion) if name != "unread"]
    return {name: getattr(version, name) for name in names}


def protocol_version_to_value(plain: Plain) -> ProtocolVersion:
    """Return a ProtocolVersion, of either schema."""
    return ProtocolVersion(**plain)


leader_started_to_plain, leader_started_to_value = _converter(LeaderStarted, {})
genesis_to_plain, genesis_to_value = _converter(
    Genesis, {"domains": _pairs("name", "partition", is_sorted=True)}
)

retained_to_plain, retained_to_value = _converter(
    Retained, {"segments": _many(_converter(RetainedSegment, {}))}
)

FRAMING = {
    "Genesis": genesis_to_value,
    "LeaderStarted": leader_started_to_value,
    "Retained": retained_to_value,
}
"""What reads the records of the outcomes topic that answer no transaction, by their name."""

CLASSES: Mapping[str, type] = {
    kind.__name__: kind
    for kind in (
        *(LanceCommit, CreateTableVersion, CreateTable, DeclareTable, RegisterTable),
        *(DeregisterTable, DropTable, RenameTable, DeleteTableVersions, CreateNamespace),
        *(DropNamespace, AlterProperties, IcebergChange, Summary, AffectedRows, KeyHashes),
        *(TableVersionIs, TableAbsent, KeyAbsent, PredicateUnchanged, Application, Transaction),
        *(Outcome, OperationResult, FileWritten, FragmentImage, Recording, Conflict),
        *(Observation, FailedRequirement, Status, Policy),
        *(WriteRows, RowsColumn, RowsMode, ApplyRows, AppliedWrite),
        *(Reason, Number, Text, Numbers, Texts, Words),
    )
}
"""What the records and enums of the schemas are, by name; a record that is missing is a pair."""
SORTED_PAIRS = frozenset({"Property", "Metadata"})
"""Pairs that are the entries of a map."""
