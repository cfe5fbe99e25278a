"""The values of the log made of the plain dicts that fastavro reads, and framing records as such.

Transactions and outcomes are written by `avro_lanes`, which reads them as well. What it leaves is
read here: broken records, for the reason, and those that other programs encode in another way.

A table says for each class which field needs a conversion; every other field is the same on both
sides. Field names are those of the schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
Conversions = Mapping[str, Convert]

_NAMESPACE = "commitlog."


def _fields(kind: type) -> tuple[str, ...]:
    return tuple(kind.__dataclass_fields__)  # type: ignore[attr-defined]


def _converter(kind: type[Any], conversions: Conversions) -> Convert:
    """Return what makes a value of one class."""
    names = _fields(kind)

    def to_value(plain: Plain) -> Any:
        for name, convert in conversions.items():
            plain[name] = convert(plain[name])
        return kind(*[plain[name] for name in names])

    return to_value


def _pairs(first: str, second: str) -> Convert:
    """Return what makes a tuple of pairs of an array of records with two fields."""
    both = itemgetter(first, second)
    return lambda plain: tuple([both(entry) for entry in plain])


def _optional(to_value: Convert) -> Convert:
    return lambda plain: None if plain is None else to_value(plain)


def _many(to_value: Convert) -> Convert:
    return lambda plains: tuple([to_value(plain) for plain in plains])


def _union(kinds: Mapping[type[Any], Conversions]) -> Convert:
    """Return what makes the members of a union of records, which Avro names by their schema."""
    converters = {_NAMESPACE + kind.__name__: _converter(kind, c) for kind, c in kinds.items()}
    return lambda plain: converters[plain[0]](plain[1])


_MAP = _pairs("key", "value")
_COLUMNS = _many(_converter(RowsColumn, {}))
_APPLIED = _many(_converter(AppliedWrite, {}))
_SUMMARY = _converter(Summary, {"data_files": tuple})
_AFFECTED = _many(_converter(AffectedRows, {}))
_KEYS = _optional(_converter(KeyHashes, {"field_ids": tuple}))
_TABLE: Conversions = {"table": tuple}

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
                "fields": tuple,
                "schema_metadata": _MAP,
                "primary_key": tuple,
                "policy": Policy,
                "properties": _MAP,
            },
            DeclareTable: {**_TABLE, "policy": Policy, "properties": _MAP},
            RegisterTable: {**_TABLE, "policy": Policy, "primary_key": tuple, "properties": _MAP},
            DeregisterTable: _TABLE,
            DropTable: _TABLE,
            RenameTable: {**_TABLE, "new_table": tuple},
            DeleteTableVersions: {**_TABLE, "ranges": _pairs("first", "last")},
            CreateNamespace: {"namespace": tuple, "properties": _MAP},
            DropNamespace: {"namespace": tuple},
            AlterProperties: {"target": tuple, "upserts": _MAP, "removals": tuple},
            IcebergChange: _TABLE,
            WriteRows: {**_TABLE, "mode": RowsMode, "columns": _COLUMNS, "on": tuple},
            ApplyRows: {**_TABLE, "writes": _APPLIED},
        }
    )
)
_EXPECTS = _many(
    _union(
        {TableVersionIs: _TABLE, TableAbsent: _TABLE, KeyAbsent: _TABLE, PredicateUnchanged: _TABLE}
    )
)
_APPLICATION = _optional(_converter(Application, {}))


def transaction_to_value(header: Plain, content: Plain, payload_hash: bytes) -> Transaction:
    """Put a transaction together from its two parts."""
    return Transaction(
        transaction_id=header["transaction_id"],
        operations=_OPERATIONS(content["operations"]),
        attempt=header["attempt"],
        principal=header["principal"],
        submitted_at_ms=header["submitted_at_ms"],
        application=_APPLICATION(content["application"]),
        properties=_MAP(content["properties"]),
        expects=_EXPECTS(content["expects"]),
        payload_hash=payload_hash,
        payloads=tuple(header.get("payloads", ())),
    )


_FILES = _many(_converter(FileWritten, {}))
_IMAGES = _many(_converter(FragmentImage, {}))
_RECORDING = _optional(_converter(Recording, {}))
_RESULTS = _many(
    _converter(OperationResult, {**_TABLE, "files": _FILES, "images": _IMAGES, "delta": _RECORDING})
)
_CONFLICT = _optional(_converter(Conflict, {**_TABLE, "fragments": tuple, "keys": tuple}))
_OBSERVED = _many(_converter(Observation, {}))
_FAILED = _many(_converter(FailedRequirement, _TABLE))
_ARGUMENTS = _many(
    _union({Number: {}, Text: {}, Numbers: {"values": tuple}, Texts: {"values": tuple}, Words: {}})
)
_REASON = _optional(_converter(Reason, {"arguments": _ARGUMENTS}))
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
        results=_RESULTS(decision["results"]),
        conflict=_CONFLICT(decision["conflict"] and {"advice": "", **decision["conflict"]}),
        observed=_OBSERVED(decision["observed"]),
        failed_requirements=_FAILED(decision["failed_requirements"]),
        message=decision.get("message", ""),
        reason=_REASON(decision.get("reason")),
        **header,
    )


def protocol_version_to_value(plain: Plain) -> ProtocolVersion:
    """Return a ProtocolVersion, of either schema."""
    return ProtocolVersion(**plain)


def protocol_version_to_plain(version: ProtocolVersion) -> Plain:
    """Return a ProtocolVersion's fields, of either schema."""
    plain = to_plain(version)
    del plain["unread"]
    return plain


def genesis_to_plain(genesis: Genesis) -> Plain:
    """Return the fields of a Genesis, its domains by name."""
    domains = [{"name": name, "partition": number} for name, number in sorted(genesis.domains)]
    return {**to_plain(genesis), "domains": domains}


def retained_to_plain(retained: Retained) -> Plain:
    """Return the fields of a Retained, and of its segments."""
    return {**to_plain(retained), "segments": list(map(to_plain, retained.segments))}


def to_plain(value: Any) -> Plain:
    """Return the fields of a record in which no other is."""
    return {name: getattr(value, name) for name in _fields(type(value))}


FRAMING = {
    "Genesis": _converter(Genesis, {"domains": _pairs("name", "partition")}),
    "LeaderStarted": _converter(LeaderStarted, {}),
    "Retained": _converter(Retained, {"segments": _many(_converter(RetainedSegment, {}))}),
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
