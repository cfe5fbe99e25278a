"""Where the places that a log records are now.

A log names a table's place as it was when the table was made. That name never changes: records,
states and manifests hold it. A deployment binds it to where the files are now, prefix by prefix,
as `OLD=NEW,OLD=NEW` in COMMITLOG_PLACES; a client that has no binding of its own uses its
leader's. `bound` is asked right before a file is opened or a place is shown, and `recorded` right
before a place that somebody names becomes part of a record. Nothing in between knows of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from commitlog.errors import InvalidSettings

VARIABLE = "COMMITLOG_PLACES"


class _Known:
    """This process's bindings."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.own: dict[str, str] | None = None
        """By the environment or by `use_places`; None: nobody looked yet."""
        self.heard: dict[str, str] = {}
        """By leaders; they count as long as there are no own ones."""
        self.roots: dict[str, str] = {}
        """Tables roots of logs that were reached, and where they are."""


_known = _Known()


def use_places(text: str) -> None:
    """Bind places in this process and in those that it starts; InvalidSettings."""
    with _known.lock:
        _known.own, _known.heard, _known.roots = parse_places(text), {}, {}
        os.environ[VARIABLE] = text


def places_text() -> str:
    """Return this process's bindings as the setting has them."""
    return ",".join(f"{old}={new}" for old, new in sorted(bindings().items()))


def parse_places(text: str) -> dict[str, str]:
    """Return bindings, new places by old ones; InvalidSettings if one can't be."""
    found: dict[str, str] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        old, _, new = pair.partition("=")
        if not all(_is_place(one) for one in (old, new)):
            raise InvalidSettings(
                f"places: {pair!r} is not OLD=NEW, two absolute folders or URIs, for example"
                " /old/root/tables=/new/root/tables"
            )
        found[plain(old)] = plain(new)
    olds, news = list(found), list(found.values())
    for new in news:
        # Otherwise a place could be bound twice, or one file have two names in the log.
        if any(_meet(new, old) for old in olds) or sum(_meet(new, one) for one in news) > 1:
            raise InvalidSettings(
                f"places: {new!r} is in or around another place that is bound: name each place once"
            )
    return found


def bindings() -> Mapping[str, str]:
    """Return this process's bindings."""
    if _known.own is None:
        _known.own = parse_places(os.environ.get(VARIABLE, ""))
    return _known.own or _known.heard


def heed(root: str, told: Mapping[str, str]) -> None:
    """Use a leader's bindings for a log's tables root, unless this process has its own.

    Raises InvalidSettings if it works already with the same tables root at another place: with a
    copy of this log, or the original.
    """
    with _known.lock:
        if not root or (bindings() and not _known.heard):
            return
        there = _rebased(root, told) or plain(root)
        before = _known.roots.setdefault(plain(root), there)
        if before != there:
            raise InvalidSettings(
                f"this process already works with a log whose tables root {root} is at {before},"
                f" and another log's is at {there}: use a process for each"
            )
        if not told.items() <= _known.heard.items():
            merged = {**_known.heard, **told}
            _known.heard = parse_places(",".join(f"{old}={new}" for old, new in merged.items()))


def bound(place: str) -> str:
    """Return where a recorded place is now; a place that is bound already stays as it is."""
    known = bindings()
    return (known and _rebased(place, known)) or place


def recorded(place: str) -> str:
    """Return what a log calls a place."""
    known = bindings()
    return (known and _rebased(place, {new: old for old, new in known.items()})) or place


def is_moved(place: str) -> bool:
    """Return True if files of a recorded place are elsewhere now."""
    return bound(place) != place


def _rebased(place: str, prefixes: Mapping[str, str]) -> str:
    """Return a place below another prefix, empty if it has none of these."""
    found = plain(place)
    for old in sorted(prefixes, key=len, reverse=True):
        if found == old or found.startswith(f"{old}/"):
            return prefixes[old] + found[len(old) :]
    return ""


def plain(place: str) -> str:
    """Return a place without what may be left out: a slash at its end, the scheme of a folder."""
    if place.startswith(("file:/", "file-object-store:/")):
        place = unquote(urlsplit(place).path)
    return place.rstrip("/")


def _is_place(text: str) -> bool:
    is_absolute = text.startswith("/") or ("://" in text and not text.startswith("://"))
    return is_absolute and len(plain(text)) > 1 and ".." not in text.split("/")


def _meet(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
