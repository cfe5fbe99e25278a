"""What a JSON body may cost, known before it is parsed.

A body of 30 MB can hold ten million empty objects, which take gigabytes once they are Python's. So
its values and levels are counted in its bytes first, which takes a fraction of the parsing. What
is left out of the count are texts: each is one value, however long.
"""

from __future__ import annotations

import re
from typing import Any

from commitlog.core.iceberg.reading import has_more_values
from commitlog.model.limits import JSON_VALUES_MAX
from commitlog.model.table import LONE_SURROGATE

DEPTH_MAX = 100
_SMALL_BYTES = 16 * 1024
"""A body that can't be over either budget by much."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_SHOWN_CHARACTERS = 40


def json_problem(body: bytes) -> str:
    """Return why a body is too much to parse, empty if it isn't."""
    if len(body) > _SMALL_BYTES and has_more_values(body, JSON_VALUES_MAX):
        return f"the body has over {JSON_VALUES_MAX} values; send it in parts"
    if body.count(b"[") + body.count(b"{") > DEPTH_MAX and _depth(body) > DEPTH_MAX:
        return f"the body is nested deeper than {DEPTH_MAX} levels"
    return ""


def _depth(body: bytes) -> int:
    deepest = depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b'""', body)):
        depth += 1 if bracket[0] in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def text_problem(value: Any, where: str) -> str:
    """Return which text in a parsed body nothing can carry on, empty if all can.

    Native code ends a text at its first NUL, and a lone surrogate has no bytes at all.
    """
    left = [(where, value)]
    while left:
        name, one = left.pop()
        if isinstance(one, str):
            if "\0" in one or LONE_SURROGATE.search(one):
                what = "a NUL character" if "\0" in one else "a lone surrogate"
                return f"{name}: {ascii(one[:_SHOWN_CHARACTERS])} holds {what}; leave it out"
        elif isinstance(one, dict):
            left += [(name, key) for key in one if "\0" in key or LONE_SURROGATE.search(key)]
            left += [(f"{name}.{key}" if name else key, inner) for key, inner in one.items()]
        elif isinstance(one, list) and not _is_plain(one):
            left += [(f"{name}[{index}]", inner) for index, inner in enumerate(one)]
    return ""


def _is_plain(values: list[Any]) -> bool:
    """Return True for a list of numbers, such as a vector."""
    return all(type(one) in (int, float) for one in values)
