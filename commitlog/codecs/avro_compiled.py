"""Functions made of Avro schemas, straight between our values and their bytes.

fastavro writes plain dicts, so a value is first turned into dicts and every field is looked up by
name twice. Here each record of a schema becomes a pair of functions on the model's own classes, as
`dataclasses` makes an `__init__`: generated once, with every field in place and small numbers and
short texts read and written where they stand, without a call. On the records that each commit
writes and reads this takes less than a third of the time, and it touches little memory, which is
what counts in a writer that runs for a moment fifty times a second.

`avro.py` uses fastavro wherever a schema differs from the newest one, and the tests hold both to
the same bytes. (Apache Avro 1.12 specification, "Binary encoding".)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Encode = Callable[[Any], bytes]
"""Takes a value; raises TypeError, ValueError, OverflowError and others for what doesn't fit."""
Decode = Callable[[bytes, int], tuple[Any, int, int]]
"""Takes bytes and a position; returns the value, the position after it, and where its inlined
record begins (0 without one). Raises ValueError, IndexError and others for broken bytes."""

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_VARINT_BYTES_MAX = 10


def write_large(number: int) -> bytes:
    """Return any long, byte by byte."""
    if not _LONG_MIN <= number <= _LONG_MAX:
        raise OverflowError(f"{number} has more than 64 bits")
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SMALL = tuple(write_large(number) for number in range(4096))


def write_long(number: int) -> bytes:
    """Return a long as Avro's variable-length zig-zag number."""
    return _SMALL[number] if 0 <= number < 4096 else write_large(number)


def write_text(text: str) -> bytes:
    """Return a string with its length."""
    data = text.encode()
    return write_long(len(data)) + data


def write_bytes(data: bytes) -> bytes:
    """Return bytes with their length."""
    return write_long(len(data)) + data


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return a long and the position after it."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number = shift = 0
    for position in range(at, at + _VARINT_BYTES_MAX):
        byte = data[position]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 64:
                break
            return (number >> 1) ^ -(number & 1), position + 1
        shift += 7
    raise ValueError("a number has more than 64 bits")


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes that follow their length."""
    length, at = read_long(data, at)
    end = at + length
    if length < 0 or end > len(data):
        raise ValueError(f"{length} bytes are not there")
    return data[at:end], end


def read_text(data: bytes, at: int) -> tuple[str, int]:
    """Return a string that follows its length."""
    found, at = read_bytes(data, at)
    return found.decode(), at


def read_count(data: bytes, at: int) -> tuple[int, int]:
    """Return how many items the next block of an array has."""
    count, at = read_long(data, at)
    if count < 0:
        _, at = read_long(data, at)
        count = -count
    if count > len(data):
        raise ValueError(f"{count} items are not there")
    return count, at


# What the generated functions do with a scalar: {0} is the value's expression or variable. Reading
# beyond the end is noticed at the next byte, or by the position after the last one.
_ADD_SIZE = "out += small[size] if size < 4096 else write_large(size)"
_WRITING = {
    "long": ["number = {0}", "out += small[number] if 0 <= number < 4096 else write_large(number)"],
    "string": ["found = {0}.encode()", "size = len(found)", _ADD_SIZE, "out += found"],
    "bytes": ["found = {0}", "size = len(found)", _ADD_SIZE, "out += found"],
    "boolean": ['out += b"\\1" if {0} else b"\\0"'],
}
_READ_SHORT = [
    "byte = data[at]",
    "if byte < 128 and not byte & 1:",
    " end = at + 1 + (byte >> 1)",
    " {0} = data[at + 1:end]{1}",
    " at = end",
    "else:",
    " {0}, at = {2}(data, at)",
]
_READING = {
    "long": [
        "byte = data[at]",
        "if byte < 128:",
        " {0} = (byte >> 1) ^ -(byte & 1)",
        " at += 1",
        "elif data[at + 1] < 128:",
        " byte += (data[at + 1] << 7) - 128",
        " {0} = (byte >> 1) ^ -(byte & 1)",
        " at += 2",
        "else:",
        " {0}, at = read_long(data, at)",
    ],
    "string": [line.format("{0}", ".decode()", "read_text") for line in _READ_SHORT],
    "bytes": [line.format("{0}", "", "read_bytes") for line in _READ_SHORT],
    "boolean": ["{0} = data[at] != 0", "at += 1"],
}


_READ_COUNT = [
    "count = data[at]",
    # No more items than bytes were read: so many may be there.
    "if not count & 129 and count >> 1 <= at:",
    " count >>= 1",
    " at += 1",
    "else:",
    " count, at = read_count(data, at)",
]


def _with(lines: list[str], expression: str) -> list[str]:
    return [line.format(expression) for line in lines]


_INLINED: dict[str, Any] = {}
"""Stands where an inlined record's fields begin."""


@dataclass(frozen=True, slots=True)
class SchemaNames:
    """What the names in a schema stand for."""

    classes: Mapping[str, type[Any]]
    """Of records and enums. A record without a class is a pair: its two fields."""
    inlined: frozenset[str]
    """Records whose fields belong to the object around them."""
    texts: Mapping[str, type[StrEnum]]
    """The enums of string fields, by the fields' names."""
    derived: Mapping[str, tuple[str, Callable[[bytes], Any]]]
    """A field that is made of an inlined record's bytes, by the outer record's name."""
    sorted_pairs: frozenset[str]
    """Pairs that are written in their order."""


class Compiler:
    """Makes functions of the records of one schema."""

    def __init__(self, names: SchemaNames) -> None:
        """Take what the names in it stand for."""
        self._names = names
        self._named: dict[str, Any] = {}
        self._made: set[str] = set()
        self._scope: dict[str, Any] = {
            "small": _SMALL,
            "write_large": write_large,
            "read_long": read_long,
            "read_text": read_text,
            "read_bytes": read_bytes,
            "read_count": read_count,
        }

    def compile(self, schema: Mapping[str, Any]) -> tuple[Encode, Decode]:
        """Return what writes and what reads values of a record schema."""
        name = self._record(schema)
        scope, write, read = self._scope, f"write_{name}", f"read_{name}"

        def encode(value: Any) -> bytes:
            out = bytearray()
            scope[write](value, out)
            return bytes(out)

        def decode(data: bytes, at: int) -> tuple[Any, int, int]:
            found = scope[read](data, at)
            return found if len(found) == 3 else (*found, 0)

        return encode, decode

    def _define(self, name: str, parameters: str, body: list[str]) -> None:
        """Have a function that is compiled when it is called first.

        Most programs write and read a few of the many kinds of records, and a writer's first
        commit would wait for all of them.
        """
        scope = self._scope
        source = "\n".join([f"def {name}({parameters}):", *_indented(body)])

        def compile_and_call(*arguments: Any) -> Any:
            # The generated functions find each other in this scope at each call.
            exec(source, scope)
            return scope[name](*arguments)

        scope[name] = compile_and_call

    def _record(self, schema: Mapping[str, Any]) -> str:
        """Generate a record's two functions, after those that they call."""
        name = str(schema["name"])
        self._named[name] = schema
        if name in self._made:
            return name
        self._made.add(name)
        writing: list[str] = []
        reading: list[str] = []
        returned = "at"
        fields = self._fields(schema)
        for number, field in enumerate(fields):
            if field is _INLINED:
                reading.append("inlined = at")
                returned = "at, inlined"
                continue
            is_pair = name not in self._names.classes
            source = f"value[{number}]" if is_pair else f"value.{field['name']}"
            variable = f"f_{field['name']}"
            writing += self._write(field["type"], source)
            reading += self._read(field["type"], variable)
            if field["type"] == "string" and field["name"] in self._names.texts:
                members = f"as_{field['name']}"
                self._scope[members] = {one.value: one for one in self._names.texts[field["name"]]}
                reading.append(f"{variable} = {members}[{variable}]")
        names = [field["name"] for field in fields if field is not _INLINED]
        if name in self._names.classes:
            self._scope[f"class_{name}"] = self._names.classes[name]
            given = [f"{n}=f_{n}" for n in names]
            if name in self._names.derived:
                target, self._scope[f"derive_{name}"] = self._names.derived[name]
                given.append(f"{target}=derive_{name}(data[inlined:])")
            made = f"class_{name}({', '.join(given)})"
        else:
            made = f"({', '.join(f'f_{n}' for n in names)},)"
        self._define(f"write_{name}", "value, out", writing)
        self._define(f"read_{name}", "data, at", [*reading, f"return {made}, {returned}"])
        return name

    def _fields(self, schema: Mapping[str, Any]) -> list[Any]:
        fields = []
        for field in schema["fields"]:
            kind = field["type"]
            if isinstance(kind, dict) and kind.get("name") in self._names.inlined:
                fields += [_INLINED, *self._fields(kind)]
            else:
                fields.append(field)
        return fields

    def _resolved(self, kind: Any) -> Any:
        if isinstance(kind, str) and kind not in _WRITING and kind != "null":
            return self._named[kind.rsplit(".", 1)[-1]]
        if isinstance(kind, dict) and "name" in kind:
            self._named[kind["name"]] = kind
        return kind

    def _write(self, kind: Any, source: str) -> list[str]:
        """Return the lines that write the value of an expression."""
        kind = self._resolved(kind)
        if isinstance(kind, str):
            return _with(_WRITING[kind], source)
        if isinstance(kind, list):
            return self._write_union(kind, source)
        if kind["type"] == "enum":
            table = {symbol: write_long(n) for n, symbol in enumerate(kind["symbols"])}
            self._scope[f"enum_{kind['name']}"] = table
            return [f"out += enum_{kind['name']}[{source}]"]
        if kind["type"] == "array":
            items = self._resolved(kind["items"])
            name = items.get("name", "") if isinstance(items, dict) else ""
            every = f"sorted({source})" if name in self._names.sorted_pairs else source
            return [
                f"if {source}:",
                f" size = len({source})",
                f" {_ADD_SIZE}",
                f" for item in {every}:",
                *_indented(_indented(self._write(items, "item"))),
                'out += b"\\0"',
            ]
        return [f"write_{self._record(kind)}({source}, out)"]

    def _write_union(self, kinds: list[Any], source: str) -> list[str]:
        if kinds[0] == "null":
            return [
                f"if {source} is None:",
                ' out += b"\\0"',
                "else:",
                ' out += b"\\2"',
                *_indented(self._write(kinds[1], source)),
            ]
        lines = [f"kind = type({source})"]
        for number, kind in enumerate(kinds):
            name = self._record(kind)
            lines += [
                f"{'el' if number else ''}if kind is class_{name}:",
                f" out += {write_long(number)!r}",
                f" write_{name}({source}, out)",
            ]
        return [*lines, "else:", " raise TypeError(f'{kind.__name__} is not part of this record')"]

    def _read(self, kind: Any, variable: str) -> list[str]:
        """Return the lines that read a value into a variable."""
        kind = self._resolved(kind)
        if isinstance(kind, str):
            return _with(_READING[kind], variable)
        if isinstance(kind, list):
            return self._read_union(kind, variable)
        if kind["type"] == "enum":
            members = tuple(self._names.classes[kind["name"]](symbol) for symbol in kind["symbols"])
            self._scope[f"members_{kind['name']}"] = members
            return [
                *_with(_READING["long"], "number"),
                "if number < 0: raise ValueError('an enum has a negative number')",
                f"{variable} = members_{kind['name']}[number]",
            ]
        if kind["type"] == "array":
            return [
                "if data[at]:",
                " items = []",
                *_indented(_READ_COUNT),
                " while count:",
                "  for _ in range(count):",
                *_indented(_indented(_indented(self._read(kind["items"], "item")))),
                "   items.append(item)",
                *_indented(_indented(_READ_COUNT)),
                f" {variable} = tuple(items)",
                "else:",
                f" {variable} = ()",
                " at += 1",
            ]
        return [f"{variable}, at = read_{self._record(kind)}(data, at)"]

    def _read_union(self, kinds: list[Any], variable: str) -> list[str]:
        lines = _with(_READING["long"], "number")
        for number, kind in enumerate(kinds):
            read = [f"{variable} = None"] if kind == "null" else self._read(kind, variable)
            lines += [f"{'el' if number else ''}if number == {number}:", *_indented(read)]
        return [*lines, "else:", " raise ValueError(f'a union has no branch {number}')"]


def _indented(lines: list[str]) -> list[str]:
    return [" " + line for line in lines]
