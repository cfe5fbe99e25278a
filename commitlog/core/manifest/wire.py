"""The few pieces of protobuf's wire format that are cheaper by hand than through a message.

A message's bytes followed by another field's bytes are the message with that field added, so a
fragment gets its id and a manifest its fragments without being taken apart. Nothing here knows
what a field means.
"""

from __future__ import annotations

from collections.abc import Mapping

from commitlog.errors import UnsupportedFormat

Runs = Mapping[bytes, tuple[bytes, list[bytes]]]
"""Values that follow each other, as a message has them and one by one, by the first of them."""
_NO_RUNS: Runs = {}
_RUN_VALUES = 64
_ONE_BYTE_MAX = 127
_ONE_BYTE = tuple(bytes((value,)) for value in range(_ONE_BYTE_MAX + 1))
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """Encode an unsigned integer."""
    if value < 128:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value >= 128:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the integer at `position` and the position after it."""
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise UnsupportedFormat("a protobuf message ends within a number")
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7


def _end_of_value(data: bytes, position: int, wire_type: int) -> int:
    if wire_type == _VARINT:
        return read_varint(data, position)[1]
    if wire_type == _FIXED64:
        return position + 8
    if wire_type == _FIXED32:
        return position + 4
    if wire_type == _LENGTH_DELIMITED:
        length, position = read_varint(data, position)
        return position + length
    raise UnsupportedFormat(f"a protobuf message uses wire type {wire_type}")


def find(data: bytes, field_number: int) -> int:
    """Return where a message's first value of a message field begins, with its key, or the end."""
    wanted = field_number << 3 | _LENGTH_DELIMITED
    position = 0
    while position < len(data):
        start = position
        key, position = read_varint(data, position)
        if key == wanted:
            return start
        position = _end_of_value(data, position, key & 7)
    return len(data)


def field_at(data: bytes, position: int) -> bytes:
    """Return the key and the value that begin at a position; nothing at the end."""
    if position >= len(data):
        return b""
    key, value = read_varint(data, position)
    return data[position : _end_of_value(data, value, key & 7)]


def split(data: bytes, field_number: int) -> tuple[bytes, list[bytes]]:
    """Take a message's values of one repeated message field out of its bytes.

    The first result is the message without that field; unknown fields stay where they are.
    """
    return Splitter(field_number).split(data)


class Splitter:
    """Takes similar messages apart as `split` does, one after the other.

    Runs of values that an earlier message had are compared with the next one as a whole. A value
    that is another one now breaks its run: then all of the run is taken one by one.
    """

    def __init__(self, field_number: int) -> None:
        """Know no message yet."""
        self._field_number = field_number
        self._known: tuple[Runs, int] = (_NO_RUNS, 0)
        """Runs, and how many values were taken one by one since these were made."""

    def split(self, data: bytes) -> tuple[bytes, list[bytes]]:
        """Return the message without the field, and the field's values."""
        runs, spent = self._known
        wanted = self._field_number << 3 | _LENGTH_DELIMITED
        rest: list[bytes] = []
        values: list[bytes] = []
        position = rest_start = 0
        size = len(data)
        while position < size:
            start = position
            key = data[position]
            position += 1
            if key > _ONE_BYTE_MAX:
                key, position = read_varint(data, start)
            if key == wanted:
                if start > rest_start:
                    rest.append(data[rest_start:start])
                # Most values are short, and their lengths need no call.
                length = data[position] if position < size else _ONE_BYTE_MAX + 1
                if length <= _ONE_BYTE_MAX:
                    position += 1
                else:
                    length, position = read_varint(data, position)
                rest_start = position + length
                value = data[position:rest_start]
                run = runs.get(value)
                if run is not None and data.startswith(run[0], start):
                    rest_start = start + len(run[0])
                    values += run[1]
                else:
                    values.append(value)
                    spent += 1
                position = rest_start
            else:
                # A short text, say, without the two calls that it would take.
                kind, length = key & 7, data[position] if position < size else -1
                if kind == _LENGTH_DELIMITED and 0 <= length <= _ONE_BYTE_MAX:
                    position += 1 + length
                else:
                    position = _end_of_value(data, position, kind)
            if position > size:
                raise UnsupportedFormat("a protobuf message ends within a field")
        rest.append(data[rest_start:])
        if spent > len(values) + _RUN_VALUES:  # it has cost more than new runs do
            runs, spent = _runs_of(values, self._field_number), 0
        self._known = runs, spent
        return b"".join(rest), values


def _runs_of(values: list[bytes], field_number: int) -> Runs:
    key = varint(field_number << 3 | _LENGTH_DELIMITED)
    runs = {}
    for start in range(0, len(values), _RUN_VALUES):
        run = values[start : start + _RUN_VALUES]
        joined = b"".join([part for one in run for part in (key, varint(len(one)), one)])
        runs[run[0]] = joined, run
    return runs
