"""Which transactions were decided: an id commits at most once, whatever is sent again.

Ids are kept for the horizon of log time that the rules set; what may be older than that, by its
own account, is refused, since nobody here could tell whether it committed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from commitlog.core.log.canonical import to_json
from commitlog.model.records import Code, FailedRequirement, OperationResult, Outcome, Status

CHUNK_OUTCOMES = 4096
"""Ids whose last outcomes lie in one such range are saved together."""

_UUID_LENGTH = 36
_UUID_VERSION_AT = 14


class KnownId(NamedTuple):
    """What is remembered of an id."""

    sequence: int
    """Of its outcome, or of the one that it repeats."""
    status: Status
    attempt: int
    payload_hash: bytes
    time_ms: int
    """From which its horizon counts."""
    code: Code = Code.NONE
    results: tuple[OperationResult, ...] = ()
    noted: int = 0
    """The sequence of the outcome that was noted last for the id."""
    failed_requirements: tuple[FailedRequirement, ...] = ()


def uuid_time_ms(transaction_id: str) -> int:
    """Return the time inside a UUIDv7, 0 for every other id."""
    if len(transaction_id) != _UUID_LENGTH or transaction_id[_UUID_VERSION_AT] != "7":
        return 0
    try:
        return int(transaction_id[:8] + transaction_id[9:13], 16)
    except ValueError:
        return 0


class Deduplication:
    """The ids of the horizon, in chunks of which most don't change any more.

    There are millions of them and hardly one is ever asked for, so each is kept as the bytes that
    a snapshot has of it, which cost neither the garbage collector nor a checkpoint anything. What a
    checkpoint brings back stays sealed, a chunk at a time, until somebody asks for one of its ids.
    """

    def __init__(self) -> None:
        self._ids: dict[str, bytes | int] = {}
        """Packed ids, or the sealed chunk that has it; the one decided least recently first."""
        self._sealed: dict[int, tuple[bytes, list[int]]] = {}
        """Chunks as they were saved, with their rows' lengths."""
        self._chunks: dict[int, list[str]] = {}
        self._changed: dict[int, int] = {}
        self._oldest_ms = 0
        """A time at or before which nothing was decided that is still known; 0: look."""
        self.forgotten_ms = -1
        """No id that was made later, by its own account, has been forgotten."""
        self.clock_ms = 0
        """What ids are forgotten by, where that isn't the time of the outcomes."""

    def get(self, transaction_id: str) -> KnownId | None:
        """Return what is known of an id."""
        packed = self._packed(transaction_id)
        return None if packed is None else _unpack(packed)

    def is_known(self, transaction_id: str) -> bool:
        """Return True if an id was decided."""
        return transaction_id in self._ids

    def is_too_old(self, transaction_id: str, submitted_at_ms: int, floor_ms: int) -> bool:
        """Return True if an unknown id may have been decided and forgotten."""
        floor = max(floor_ms, self.forgotten_ms + 1)
        born = uuid_time_ms(transaction_id)
        return 0 < submitted_at_ms < floor or 0 < born < floor

    def remember(self, outcome: Outcome, kept_from_ms: int, made_ms: int) -> None:
        """Note an outcome under its id.

        The id's horizon counts from `kept_from_ms`; by its own account it was made at `made_ms`.
        """
        before = self._packed(outcome.transaction_id)
        if before is not None:
            del self._ids[outcome.transaction_id]
            self._changed[_noted(before) // CHUNK_OUTCOMES] = outcome.sequence
            self._oldest_ms = 0
        packed = _pack(outcome, kept_from_ms, made_ms)
        self._note(outcome.transaction_id, packed, outcome.sequence)

    def prune(self, floor_ms: int, sequence: int) -> None:
        """Forget ids that were decided before `floor_ms`, as of outcome `sequence`."""
        if self._oldest_ms >= floor_ms and self._oldest_ms:
            return
        ids = self._ids
        while ids:
            transaction_id = next(iter(ids))
            packed = self._packed(transaction_id)
            assert packed is not None
            noted, time_ms, made_ms = _HEAD.unpack_from(packed)
            self._oldest_ms = time_ms
            if time_ms >= floor_ms:
                return
            del ids[transaction_id]
            chunk = noted // CHUNK_OUTCOMES
            self._changed[chunk] = sequence
            self.forgotten_ms = max(self.forgotten_ms, made_ms)
            for old in [number for number in self._chunks if number < chunk]:
                del self._chunks[old], self._changed[old]
                self._sealed.pop(old, None)

    def chunks(self) -> Iterable[tuple[int, int]]:
        """Return the chunks' numbers, each with the sequence of the outcome that changed it."""
        return self._changed.items()

    def encode_chunk(self, number: int) -> bytes:
        """Return a chunk's ids as JSON, in the order in which they were decided last."""
        if number in self._sealed:
            return self._sealed[number][0]
        rows = b",".join(packed[_HEAD.size :] for packed, _ in self._in_chunk(number))
        return b'{"changed":%d,"ids":[%b]}' % (self._changed[number], rows)

    def encode_hint(self, number: int) -> bytes:
        """Return what lets `restore_chunk` take a chunk back without reading its rows."""
        if number in self._sealed:
            return to_json([self._chunks[number], self._sealed[number][1]])
        found = self._in_chunk(number)
        lengths = [len(packed) - _HEAD.size for packed, _ in found]
        return to_json([[transaction_id for _, transaction_id in found], lengths])

    def restore_chunk(self, number: int, data: bytes, hint: bytes | None = None) -> None:
        """Restore a chunk, the oldest first; a sealed one with a hint of what is in it."""
        if hint is not None:
            names, lengths = json.loads(hint)
            self._sealed[number] = (data, lengths)
            self._chunks[number] = names
            self._changed[number] = int(data[len(_BEFORE_CHANGED) : data.index(b",")])
            self._ids.update(dict.fromkeys(names, number))
            return
        chunk = json.loads(data)
        # A chunk whose ids were all decided again later is empty, and a part all the same.
        self._chunks.setdefault(number, [])
        self._changed[number] = chunk["changed"]
        for row in chunk["ids"]:
            packed = _head(row) + to_json(row)
            self._note(row[0], packed, chunk["changed"])

    def _packed(self, transaction_id: str) -> bytes | None:
        found = self._ids.get(transaction_id)
        if isinstance(found, int):
            self._open(found)
            return self._packed(transaction_id)
        return found

    def _open(self, number: int) -> None:
        data, lengths = self._sealed.pop(number)
        at = data.index(b"[") + 1
        for row, length in zip(json.loads(data)["ids"], lengths, strict=True):
            # Its place among the others stays.
            self._ids[row[0]] = _head(row) + data[at : at + length]
            at += length + 1

    def _in_chunk(self, number: int) -> list[tuple[bytes, str]]:
        found = [(self._ids.get(name), name) for name in dict.fromkeys(self._chunks[number])]
        # The head's first number is big-endian, so bytes sort as numbers do.
        return sorted(
            (packed, name)
            for packed, name in found
            if isinstance(packed, bytes) and _noted(packed) // CHUNK_OUTCOMES == number
        )

    def _note(self, transaction_id: str, packed: bytes, changed: int) -> None:
        chunk = _noted(packed) // CHUNK_OUTCOMES
        if chunk in self._sealed:
            self._open(chunk)
        self._ids[transaction_id] = packed
        self._chunks.setdefault(chunk, []).append(transaction_id)
        self._changed[chunk] = changed


_HEAD = struct.Struct(">QQQ")
"""The sequence of the outcome that was noted last, from when it is kept, and when it was made."""
_BEFORE_CHANGED = b'{"changed":'
_TIME_MS, _NOTED, _MADE_MS = 5, 8, 10
"""Where a row has these; the last only if it differs from the first."""


def _head(row: list[Any]) -> bytes:
    made_ms = row[_MADE_MS] if len(row) > _MADE_MS else row[_TIME_MS]
    return _HEAD.pack(row[_NOTED], row[_TIME_MS], made_ms)


def _noted(packed: bytes) -> int:
    return int.from_bytes(packed[:8])


def _pack(outcome: Outcome, kept_from_ms: int, made_ms: int) -> bytes:
    """Return what is remembered of an id, as a snapshot has it."""
    row = [
        outcome.transaction_id,
        outcome.sequence if outcome.answers is None else outcome.answers,
        outcome.status,
        outcome.attempt,
        outcome.payload_hash.hex(),
        kept_from_ms,
        outcome.code,
        [_result(result) for result in outcome.results],
        outcome.sequence,
        [[f.table, f.requirement, f.actual] for f in outcome.failed_requirements],
    ]
    if made_ms != kept_from_ms:
        row.append(made_ms)
    return _head(row) + to_json(row)


def _result(r: OperationResult) -> list[Any]:
    # The bytes are left out: an answer to a duplicate doesn't repeat them.
    return [
        r.table,
        r.incarnation,
        r.operation,
        r.version,
        r.read_version,
        r.first_fragment_id,
        r.first_row_id,
        r.rebased_over,
        r.rebased,
        r.location,
        r.metadata_location,
        r.snapshot_id,
    ]


def _unpack(packed: bytes) -> KnownId:
    row = json.loads(packed[_HEAD.size :])
    return KnownId(
        sequence=row[1],
        status=Status(row[2]),
        attempt=row[3],
        payload_hash=bytes.fromhex(row[4]),
        time_ms=row[_TIME_MS],
        code=Code(row[6]),
        results=tuple(_restore_result(result) for result in row[7]),
        noted=row[_NOTED],
        failed_requirements=tuple(FailedRequirement(tuple(f[0]), f[1], f[2]) for f in row[9]),
    )


def _restore_result(row: list[Any]) -> OperationResult:
    return OperationResult(
        table=tuple(row[0]),
        incarnation=row[1],
        operation=row[2],
        version=row[3],
        read_version=row[4],
        first_fragment_id=row[5],
        first_row_id=row[6],
        rebased_over=row[7],
        rebased=row[8],
        location=row[9],
        metadata_location=row[10],
        snapshot_id=row[11],
    )
