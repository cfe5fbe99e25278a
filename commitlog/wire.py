"""The leader's socket: sends writers their answers, so that they needn't read a topic.

A frame is its length as an unsigned 32-bit big-endian number, one byte for its kind, and a
body. Writers begin with HELLO. Then they WATCH transaction ids and get each outcome once, as the
bytes of the outcomes topic, and send REQUESTs (JSON) about tables. The socket answers with
outcomes, never with absence: an undecided id is answered once it is decided.

A leader whose WELCOME has `appends` takes records too. It appends the record of an APPEND to the
transactions topic for the writer, or refuses it in a reply that names the transaction. Until there
is an outcome, the writer doesn't know whether the record is in the log, and may append it itself.

A writer that waits until rows can be read says so in the APPEND. The leader then holds the outcome
back for a while, until the rows are applied, and sends their results in ROWS just before it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

from commitlog.errors import CommitLogError, CorruptLog, NoSuchTable, Overloaded
from commitlog.model.limits import PROTOCOL_SUPPORTED, RECORD_BYTES_MAX, RECORD_OVERHEAD_BYTES
from commitlog.model.values import made_fast

WIRE_VERSION = 1
FRAME_BYTES_MAX = RECORD_BYTES_MAX * 4 // 3 + RECORD_OVERHEAD_BYTES
"""A dry run carries a whole record in base64."""

_LENGTH = struct.Struct(">I")
_WATCH = struct.Struct(">BI32s")
_ANY_CONTENT = bytes(32)
_OUTCOME = struct.Struct(">BQ")
_APPEND = struct.Struct(">BH")
_APPEND_HEAD = struct.Struct(">IBBH")
_IS_TOLD, _AWAITS_ROWS = 1, 2


@cache
def program() -> Mapping[str, Any]:
    """Return this program's version, and the protocol that it knows.

    Finding them reads files, once: a status has them too, and is requested every second.
    """
    from importlib.metadata import version as package_version

    return {"version": package_version("lance-commitlog"), "knows": PROTOCOL_SUPPORTED}


def tokens_of(token: str) -> list[str]:
    """Return the tokens of a setting, which has commas between several.

    A leader takes each of them, so that one program after the other can be given another token.
    """
    return [one for one in map(str.strip, token.split(",")) if one]


def hello(token: str, **others: Any) -> dict[str, Any]:
    """Return what a program says first to a leader; it shows the first of several tokens."""
    shown = {"protocol": WIRE_VERSION, "token": next(iter(tokens_of(token)), "")}
    return {**shown, **program(), **others}


class FrameKind(IntEnum):
    """What a frame is."""

    HELLO = 1
    WELCOME = 2
    WATCH = 3
    OUTCOME = 4
    REQUEST = 5
    REPLY = 6
    APPEND = 7
    ROWS = 8
    ERROR = 9


_KINDS = {int(kind): kind for kind in FrameKind}


@made_fast
@dataclass(frozen=True, slots=True)
class Watch:
    """A writer's request for the outcome of a transaction."""

    transaction_id: str
    attempt: int
    readable: bool
    """Answer only once the versions can be opened by path."""
    payload_hash: bytes = b""
    """Answer only for a transaction with this content; empty: any decision for the id."""


@made_fast
@dataclass(frozen=True, slots=True)
class AppendFrame:
    """A writer's request to append a record to the transactions topic."""

    transaction_id: str
    is_told: bool
    """Whether the writer's session gets the outcome without a WATCH."""
    record: bytes
    awaits_rows: bool = False
    """Whether it gets the outcome, with ROWS, only once a version with its rows opens by path."""


def frame(kind: FrameKind, body: bytes) -> bytes:
    """Return a frame's bytes."""
    return _LENGTH.pack(len(body) + 1) + bytes((kind,)) + body


def json_frame(kind: FrameKind, body: Mapping[str, Any]) -> bytes:
    """Return a frame with a JSON body."""
    return frame(kind, json.dumps(body, separators=(",", ":")).encode())


def parse_json(body: bytes) -> dict[str, Any]:
    """Read a JSON body; raise CorruptLog on anything but an object."""
    try:
        value = json.loads(body)
    except ValueError as error:
        raise CorruptLog(f"a frame's body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorruptLog("a frame's JSON body is not an object")
    return value


def watch_frame(watch: Watch) -> bytes:
    """Encode a WATCH."""
    fixed = _WATCH.pack(watch.readable, watch.attempt, watch.payload_hash or _ANY_CONTENT)
    return frame(FrameKind.WATCH, fixed + watch.transaction_id.encode())


def parse_watch(body: bytes) -> Watch:
    """Decode a WATCH's body."""
    try:
        readable, attempt, content = _WATCH.unpack_from(body)
        content = b"" if content == _ANY_CONTENT else content
        return Watch(body[_WATCH.size :].decode(), attempt, bool(readable), content)
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptLog(f"a WATCH frame is broken: {error}") from error


def append_frame(append: AppendFrame) -> bytes:
    """Encode an APPEND."""
    name = append.transaction_id.encode()
    flags = append.is_told * _IS_TOLD | append.awaits_rows * _AWAITS_ROWS
    length = 1 + _APPEND.size + len(name) + len(append.record)
    head = _APPEND_HEAD.pack(length, FrameKind.APPEND, flags, len(name))  # `frame`, in one step
    return head + name + append.record


def parse_append(body: bytes) -> AppendFrame:
    """Decode an APPEND's body."""
    try:
        flags, length = _APPEND.unpack_from(body)
        end = _APPEND.size + length
        return AppendFrame(
            body[_APPEND.size : end].decode(), bool(flags), body[end:], bool(flags & _AWAITS_ROWS)
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptLog(f"an APPEND frame is broken: {error}") from error


def refused_frame(transaction_id: str, error: CommitLogError, appended: bool | None) -> bytes:
    """Return an unsolicited reply (0): a record was not appended, or may not have been."""
    told = error_body(error)
    body = {"request": 0, "transaction_id": transaction_id, "appended": appended, "error": told}
    return json_frame(FrameKind.REPLY, body)


def error_body(error: CommitLogError) -> dict[str, Any]:
    """Return an error as a frame has it."""
    told: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, Overloaded):
        told["retry_after_seconds"] = error.retry_after_seconds
        if error.table:
            told["table"] = error.table
    if isinstance(error, NoSuchTable) and error.hint:
        told["hint"] = error.hint
    return told


def outcome_frame(readable: bool, offset: int, record: bytes) -> bytes:
    """Encode an OUTCOME, the answer: a record of the outcomes topic at its offset."""
    return frame(FrameKind.OUTCOME, _OUTCOME.pack(readable, offset) + record)


def parse_outcome(body: bytes) -> tuple[bool, int, bytes]:
    """Decode an OUTCOME's body: whether it is readable, its offset, its record."""
    try:
        readable, offset = _OUTCOME.unpack_from(body)
    except struct.error as error:
        raise CorruptLog(f"an OUTCOME frame is broken: {error}") from error
    return bool(readable), offset, body[_OUTCOME.size :]


class FrameBuffer:
    """Cuts a stream of bytes into frames."""

    def __init__(self, first_bytes_max: int = FRAME_BYTES_MAX) -> None:
        """Refuse a first frame that is larger: whoever sends it isn't known yet."""
        self._buffer = bytearray()
        self._bytes_max = first_bytes_max

    def feed(self, data: bytes) -> list[tuple[FrameKind, bytes]]:
        """Add received bytes; return the frames that are complete now."""
        held, frames = self._buffer, []
        if held:
            held += data
        # Most frames come whole and alone, and are cut from what was received.
        source = held or data
        start, size = 0, len(source)
        while size - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(source, start)
            if not 1 <= length <= self._bytes_max:
                raise CorruptLog(f"a frame of {length} bytes: this is not our protocol")
            end = start + _LENGTH.size + length
            if end > size:
                break
            number = source[start + _LENGTH.size]
            kind = _KINDS.get(number)
            if kind is None:
                raise CorruptLog(f"a frame of unknown kind {number}")
            frames.append((kind, bytes(source[start + _LENGTH.size + 1 : end])))
            start, self._bytes_max = end, FRAME_BYTES_MAX
        if held:
            del held[:start]
        elif start < size:
            held += data[start:]
        return frames


def overloaded_frame(
    message: str, retry_after_seconds: float, principal: str | None = None
) -> bytes:
    """Return an unsolicited reply (0): the writer, or one principal, is to pause."""
    error = error_body(Overloaded(message, retry_after_seconds))
    if principal is not None:
        error["principal"] = principal
    return json_frame(FrameKind.REPLY, {"request": 0, "error": error})
