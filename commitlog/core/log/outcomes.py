"""The outcome that a decision becomes, and how many bytes its record takes.

A record that Kafka accepted must get an outcome that Kafka accepts, or no later record could be
decided. So a decision whose outcome is too large is refused instead, in few bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from commitlog.core.decisions import rejected
from commitlog.model.limits import RECORD_BYTES_MAX
from commitlog.model.reasons import Number, Numbers, Reason, Text, Texts, Words
from commitlog.model.records import (
    Code,
    Conflict,
    OperationResult,
    Outcome,
    Status,
    Submitted,
    Transaction,
)
from commitlog.words import worded

T = TypeVar("T")
FITTING_MESSAGE_BYTES = 64 * 1024
"""The outcome of an append whose message is no larger fits into its record: it has one result, and
one observation for each file, which takes at least six bytes of the message."""
_REASON_BYTES_MAX = 1024 * 1024
"""Far above what the bounds of its arguments come to."""
_ITEM_BYTES_MAX = 1024
"""Of an item without its texts: ids, numbers, hashes."""


def outcome_of(
    submitted: Submitted, sequence: int, status: Status, time_ms: int, **held: Any
) -> Outcome:
    """Return the outcome of a record, in words if it has a reason."""
    record = submitted.record
    outcome = Outcome(
        sequence=sequence,
        transaction_id=record.transaction_id,
        transaction_offset=submitted.offset,
        status=status,
        attempt=record.attempt if isinstance(record, Transaction) else 0,
        time_ms=time_ms,
        payload_hash=record.payload_hash,
        **held,
    )
    return worded(outcome)


def check_size(outcome: Outcome) -> None:
    """Refuse what no record of an outcome can hold, in any protocol: no log has such a record."""
    if _at_most(outcome) <= RECORD_BYTES_MAX:
        return
    size = decision_bytes(outcome)
    if size > RECORD_BYTES_MAX:
        limits = {"size": size, "size_max": RECORD_BYTES_MAX}
        raise rejected(Code.INVALID_OPERATION, "outcome_too_large", **limits)


def _at_most(outcome: Outcome) -> int:
    """Return an upper bound of the size, which costs less than the size itself."""
    texts, size = len(outcome.message), 0
    items = len(outcome.observed) + len(outcome.results) + len(outcome.failed_requirements) + 1
    for r in outcome.results:
        texts += len(r.location) + len(r.metadata_location) + sum(map(len, r.table))
        items += len(r.table) + len(r.files) + len(r.images)
        if r.files:
            texts += sum([len(file.path) for file in r.files])
        if r.images:
            size += sum([len(one.image) for one in r.images if one.image is not None])
        if r.delta is not None and r.delta.inline is not None:
            size += len(r.delta.inline)
    texts += sum([len(one.path) for one in outcome.observed])
    for f in outcome.failed_requirements:
        texts += len(f.requirement) + len(f.actual) + sum(map(len, f.table))
        items += len(f.table)
    if outcome.conflict is not None:
        c = outcome.conflict
        texts += len(c.advice) + sum(map(len, c.table)) + sum(map(len, c.keys))
        items += len(c.table) + len(c.keys) + len(c.fragments)
    return _REASON_BYTES_MAX + _ITEM_BYTES_MAX * items + 4 * texts + size


def decision_bytes(outcome: Outcome) -> int:
    """Return how many bytes the decision takes in the outcome's record."""
    size = sum(map(_number, (outcome.sequence, outcome.transaction_offset, outcome.attempt)))
    size += _text(outcome.transaction_id) + 1 + _text(outcome.code)
    size += 1 if outcome.answers is None else 1 + _number(outcome.answers)
    size += _number(outcome.time_ms) + _bytes(outcome.payload_hash)
    size += _array(outcome.results, _result)
    size += 1 if outcome.conflict is None else 1 + _conflict(outcome)
    size += _array(outcome.observed, lambda o: _text(o.path) + _number(o.size) + _bytes(o.sha256))
    size += _array(
        outcome.failed_requirements,
        lambda f: _array(f.table, _text) + _text(f.requirement) + _text(f.actual),
    )
    return size + (
        _text(outcome.message) if outcome.reason is None else 1 + _reason(outcome.reason)
    )


def _number(number: int) -> int:
    """Return the length of Avro's zig-zag number."""
    return ((number << 1 ^ number >> 63).bit_length() + 6) // 7 or 1


def _bytes(data: bytes) -> int:
    return _number(len(data)) + len(data)


def _text(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode())
    return _number(size) + size


def _array(items: tuple[T, ...], size_of: Callable[[T], int]) -> int:
    return _number(len(items)) + sum(map(size_of, items)) + 1 if items else 1


def _result(r: OperationResult) -> int:
    numbers = (
        *(r.version, r.read_version, r.first_fragment_id, r.first_row_id, r.rebased_over),
        r.snapshot_id,
    )
    texts = (r.incarnation, r.operation, r.location, r.metadata_location)
    size = _array(r.table, _text) + sum(map(_number, numbers)) + sum(map(_text, texts)) + 1
    size += _array(r.files, lambda f: _text(f.path) + _number(f.size) + _bytes(f.sha256))
    size += _array(
        r.images, lambda i: _number(i.fragment_id) + 1 + (0 if i.image is None else _bytes(i.image))
    )
    if r.delta is None:
        return size + 1
    inline = 0 if r.delta.inline is None else _bytes(r.delta.inline)
    return size + 1 + _bytes(r.delta.sha256) + _number(r.delta.size) + 1 + inline


def _conflict(outcome: Outcome) -> int:
    c = outcome.conflict
    assert isinstance(c, Conflict)
    size = _array(c.table, _text) + _number(c.version) + _array(c.fragments, _number)
    size += sum(map(_text, (c.transaction_id, c.operation, c.rule))) + _array(c.keys, _text)
    return size + (_text(c.advice) if outcome.reason is None else 0)


def _reason(reason: Reason) -> int:
    size = _text(reason.name) + _number(reason.operation)
    return size + _array(reason.arguments, lambda one: 1 + _text(one.name) + _argument(one))


def _argument(one: Number | Text | Numbers | Texts | Words) -> int:
    if isinstance(one, Number):
        return _number(one.value)
    if isinstance(one, Text):
        return _text(one.value) + _number(one.length) + _bytes(one.sha256)
    if isinstance(one, Numbers):
        return _array(one.values, _number) + _number(one.count)
    if isinstance(one, Texts):
        return _array(one.values, _text) + _number(one.count)
    return _text(one.reason)
