"""What a JSON body may cost, known before it is parsed.

A body of 30 MB can hold ten million empty objects, which take gigabytes once they are Python's. So
its values and levels are counted in its bytes first, which takes a fraction of the parsing. What
is left out of the count are texts: each is one value, however long. The count goes on in short
steps, with other threads in between, and ends at what is too much.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote_to_bytes

from commitlog.errors import InvalidRequest
from commitlog.model.json_fields import FieldTwice, once
from commitlog.model.limits import JSON_VALUES_MAX
from commitlog.model.table import LONE_SURROGATE

if TYPE_CHECKING:
    from starlette.requests import Request

DEPTH_MAX = 100
PARAMETERS_MAX = 1000
LARGE_BYTES = 1024 * 1024
"""Larger bodies are parsed one after another: many at once would keep small requests waiting."""
_SMALL_BYTES = 16 * 1024
"""A body that can't be over either budget by much."""
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNREADABLE = re.compile(r"[\x00\ud800-\udfff]")
_MAY_HOLD = re.compile(rb"\\u00[0189]|\\u007[fF]|\\u[dD]|\\[bf]|\x7f|\xc2[\x80-\x9f]")
"""How JSON may write an unprintable character; most bodies hold none."""
_ROWS = re.compile(r"(?:^|\.)rows$")
"""A field with rows, whose texts are data."""
ICEBERG_SEPARATOR = "\x1f"
_NAMESPACE = re.compile(r"(?<=/namespaces/)[^/]+")
_NAMING = ("parent", "referenced-by")
_STEP_BYTES = 64 * 1024
_UNCOUNTED = bytes(set(range(256)) - set(b'"[]{},'))
_LEVELS = [(one in b"[{") - (one in b"]}") for one in range(256)]
_SHOWN_CHARACTERS = 40


async def body_pieces(
    request: Request, bytes_max: int, refusal: Callable[[], Exception]
) -> AsyncIterator[bytes]:
    """Yield a body as it comes; raise what `refusal` makes once it is longer than it may be."""
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > bytes_max:
            raise refusal()
        yield piece


def json_problem(body: bytes) -> str:
    """Return why a body is too much to parse, empty if it isn't."""
    if b"\0" in body:  # Python parses other encodings too, whose bytes mean something else here
        return "the body isn't JSON in UTF-8: it has NUL bytes"
    if len(body) <= _SMALL_BYTES and body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return ""
    values = depth = 0
    for piece in _outside_of_texts(body):
        brackets = piece.translate(None, b",")
        levels = list(accumulate(map(_LEVELS.__getitem__, brackets), initial=depth))
        if max(levels) > DEPTH_MAX:
            return f"the body is nested deeper than {DEPTH_MAX} levels"
        depth = levels[-1]
        values += len(piece) - piece.count(b"]") - piece.count(b"}")
        if values > JSON_VALUES_MAX:
            return f"the body has more than {JSON_VALUES_MAX} values; send it in parts"
    return ""


def body_problem(body: bytes, parsed: Callable[[], Any]) -> str:
    """Return why a body is too much to parse, or which of its texts nothing can carry on."""
    problem = json_problem(body)
    return problem or (text_problem(parsed(), "") if may_be_unprintable(body) else "")


def parse_body(body: bytes) -> Any:
    """Parse a body; ValueError says what is wrong with it."""
    if problem := json_problem(body):
        raise ValueError(problem)
    try:
        found = json.loads(body, object_pairs_hook=once)
    except FieldTwice as error:
        raise ValueError(f"the body has the field {str(error)!r} twice; give it once") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is not JSON: {error}") from error
    if may_be_unprintable(body) and (problem := text_problem(found, "")):
        raise ValueError(problem)
    return found


def _outside_of_texts(body: bytes) -> Iterator[bytes]:
    """Yield the brackets and commas of JSON that are in none of its texts."""
    at, is_inside = 0, False
    while at < len(body):
        piece = body[at : at + _STEP_BYTES]
        at += len(piece)
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and at < len(body):
            piece, at = piece[:-1], at - 1  # what it escapes comes next
        plain = piece.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _UNCOUNTED)
        parts = plain.split(b'"')
        yield b"".join(parts[is_inside::2])
        is_inside ^= len(parts) % 2 == 0


def may_be_unprintable(body: bytes) -> bool:
    """Return True for JSON that may hold a text which `text_problem` refuses."""
    return _MAY_HOLD.search(body) is not None


def text_problem(value: Any, where: str) -> str:
    """Return which text in a parsed body nothing can carry on, empty if all can.

    Native code ends a text at its first NUL, a lone surrogate has no bytes at all, and a terminal
    obeys other unprintable characters. Line ends and tabs are fine, and rows hold what they hold.
    """
    left = [(where, value, _UNPRINTABLE)]
    while left:
        name, one, bad = left.pop()
        if isinstance(one, str):
            if found := bad.search(one):
                return _problem(name, one, found[0])
        elif isinstance(one, dict):
            left += [(name, key, bad) for key in one if bad.search(key)]
            for key, inner in one.items():
                path = f"{name}.{key}" if name else key
                left.append((path, inner, _UNREADABLE if _ROWS.search(path) else bad))
        elif isinstance(one, list) and not _is_plain(one):
            left += [(f"{name}[{index}]", inner, bad) for index, inner in enumerate(one)]
    return ""


def once_each(query: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the parameters of a query, none of which may be there twice; InvalidRequest.

    Readers, and proxies in front of them, differ in which of two they take.
    """
    found: dict[str, str] = {}
    for name, value in query:
        if name in found:
            raise InvalidRequest(
                f"the parameter {name} is given twice",
                field=name,
                value=value,
                advice="Give it once",
            )
        found[name] = value
    return found


def target_problem(target: bytes, query: bytes) -> str:
    """Return what is wrong with a request's path or query: an unprintable character, or its size.

    Iceberg's clients join the levels of a name by one; elsewhere it is as bad as the others.
    Bytes that aren't UTF-8 are refused too: servers replace them, so that two names would be one.
    """
    if query.count(b"&") >= PARAMETERS_MAX:
        return f"the query has more than {PARAMETERS_MAX} parameters"
    path = unquote_to_bytes(target).decode(errors="surrogateescape")
    named = _NAMESPACE.sub(lambda found: found[0].replace(ICEBERG_SEPARATOR, ""), path)
    if found := _CONTROL.search(named):
        return _problem("path", path, found[0])
    text = query.decode("latin-1")
    for name, value in parse_qsl(text, keep_blank_values=True, errors="surrogateescape"):
        plain = value.replace(ICEBERG_SEPARATOR, "") if name in _NAMING else value
        for text in (name, plain):
            if found := _UNPRINTABLE.search(text):
                return _problem("query", f"{name}={value}", found[0])
    return ""


def _problem(where: str, text: str, character: str) -> str:
    shown = ascii(text[:_SHOWN_CHARACTERS])
    if character == "\0":
        what = "a NUL character"
    elif "\udc80" <= character <= "\udcff":
        what = "bytes that aren't UTF-8"
    elif LONE_SURROGATE.match(character):
        what = "a lone surrogate"
    else:
        what = f"an unprintable character, {ascii(character)}"
    return f"{where}: {shown} holds {what}; leave it out"


def _is_plain(values: list[Any]) -> bool:
    """Return True for a list of numbers, such as a vector."""
    return all(type(one) in (int, float) for one in values)
