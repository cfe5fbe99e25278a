"""Reads parsed JSON by type; whatever is wrong is an `Invalid` that names its place.

A place is written as people would in Python: `table-changes[0].updates[2].snapshot-id`. Booleans
are not numbers and floats are not integers here, though Python's `json` and `int` are more relaxed.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from commitlog.core.iceberg.errors import Invalid
from commitlog.model.json_depth import is_too_deep
from commitlog.model.json_fields import FieldTwice, once
from commitlog.model.reasons import Aside, Phrase

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|("[\s\S]*)', re.DOTALL)
"""A text; else all that follows one that doesn't end, in which no other one would be found."""

INT32 = 2**31 - 1
INT64 = 2**63 - 1
DEPTH_MAX = 100
"""Levels of a document."""


def load_json(text: str | bytes, what: str, *, is_sent: bool = False) -> Any:
    """Parse JSON strictly: no NaN, no lone surrogates, no document deeper than `DEPTH_MAX`.

    In what was just sent no object may have a field twice; files and records hold what they hold.
    """
    try:
        text = text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError as error:
        raise Invalid("iceberg_not_json", what=what, error=Aside(error)) from None
    try:
        value = (_STRICT_DECODER if is_sent else _DECODER).decode(text)
    except FieldTwice as error:
        raise Invalid("json_field_twice", what=what, name=str(error)) from None
    except (ValueError, RecursionError) as error:
        # Some releases of Python give up before they come to what isn't JSON.
        at = getattr(error, "pos", len(text))
        if isinstance(error, RecursionError) or is_too_deep(text[:at]):
            raise Invalid("iceberg_nested_too_deep", what=what, levels=DEPTH_MAX) from None
        raise Invalid("iceberg_not_json", what=what, error=Aside(error)) from None
    _check_depth(value, what)
    return value


def load_body(body: bytes) -> Any:
    """Parse the body of a request, as `load_json` does."""
    return load_json(body, "body", is_sent=True)


def has_more_values(data: bytes, values_max: int) -> bool:
    """Return True if JSON has more values than so many, names of fields left out."""
    if _values_at_most(data) <= values_max:
        return False
    # A value has a text for its name and one for itself at most.
    if (data.count(b'"') - data.count(b'\\"')) // 2 > 2 * values_max:
        return True
    return _values_at_most(_STRING.sub(rb'""\1', data)) > values_max


def _values_at_most(data: bytes) -> int:
    return data.count(b",") + data.count(b"{") + data.count(b"[")


def dump_json(value: Any) -> str:
    """Write JSON in its one compact form; only ASCII, so that any encoder can take it.

    Numbers that were read as infinity stay so; ValueError for what is not a number.
    """
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return _SPECIAL.sub(_respelled, _ENCODER_OF_ALL.encode(value))


class Node:
    """A JSON value and its place in the document."""

    __slots__ = ("path", "value")

    def __init__(self, value: Any, path: str) -> None:
        """Take a parsed value; `path` is empty for the document itself."""
        self.value = value
        self.path = path

    def fail(self, reason: str, **arguments: Any) -> NoReturn:
        """Refuse the document because of this value."""
        raise Invalid(reason, place=self.path or "body", **arguments)

    def object(self) -> dict[str, Any]:
        """Return the object's members."""
        if not isinstance(self.value, dict):
            self.fail("iceberg_not_an_object", found=_kind(self.value))
        return self.value

    def items(self) -> list[Node]:
        """Return the array's items."""
        if not isinstance(self.value, list):
            self.fail("iceberg_not_an_array", found=_kind(self.value))
        return [Node(value, f"{self.path}[{i}]") for i, value in enumerate(self.value)]

    def optional(self, name: str) -> Node | None:
        """Return a member, or None if it is absent or null."""
        value = self.object().get(name)
        return None if value is None else Node(value, self._place(name))

    def member(self, name: str) -> Node:
        """Return a member that must be there and not null."""
        members = self.object()
        if members.get(name) is None:
            problem = "iceberg_null" if name in members else "iceberg_missing"
            Node(None, self._place(name)).fail(problem)
        return Node(members[name], self._place(name))

    def string(self) -> str:
        """Return a string."""
        if not isinstance(self.value, str):
            self.fail("iceberg_not_a_string", found=_kind(self.value))
        try:
            self.value.encode()
        except UnicodeEncodeError:
            self.fail("iceberg_not_unicode")
        return self.value

    def text(self) -> str:
        """Return a string that isn't empty."""
        if not self.string():
            self.fail("iceberg_empty")
        return str(self.value)

    def integer(self, low: int = -INT64 - 1, high: int = INT64) -> int:
        """Return an integer between two bounds."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            self.fail("iceberg_not_an_integer", found=_kind(self.value))
        if not low <= self.value <= high:
            self.fail("iceberg_out_of_range", value=self.value, low=low, high=high)
        return self.value

    def int32(self, low: int = -INT32 - 1) -> int:
        """Return a 32-bit integer."""
        return self.integer(low, INT32)

    def boolean(self) -> bool:
        """Return a boolean."""
        if not isinstance(self.value, bool):
            self.fail("iceberg_not_a_boolean", found=_kind(self.value))
        return self.value

    def strings(self) -> dict[str, str]:
        """Return an object whose members are strings."""
        members = self.object()
        for name in members:
            Node(name, self._place(name)).string()
            Node(members[name], self._place(name)).string()
        return dict(members)

    def _place(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def _kind(value: Any) -> Phrase:
    names = {dict: "an_object", list: "an_array", str: "a_string", bool: "a_boolean"}
    if value is None or type(value) in names:
        return Phrase(f"iceberg_{names.get(type(value), 'null_value')}")
    return Phrase("iceberg_a_number", {"number": f"{value!r:.40}"})


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False)
_ENCODER_OF_ALL = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True)
_SPECIAL = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|Infinity|NaN')


def _respelled(found: re.Match[str]) -> str:
    if found[0] == "NaN":
        raise ValueError("NaN is not JSON")
    return found[0] if found[0].startswith('"') else "1e999"


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_STRICT_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=once)


def _check_depth(value: Any, what: str) -> None:
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [
            item
            for container in level
            if isinstance(container, dict | list)
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise Invalid("iceberg_nested_too_deep", what=what, levels=DEPTH_MAX)
