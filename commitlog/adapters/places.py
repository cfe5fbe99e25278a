"""Where the places that a log records are now.

A log names a table's place as it was when the table was made. That name never changes: records,
states and manifests hold it. A deployment binds it to where the files are now, prefix by prefix,
as `OLD=NEW,OLD=NEW` in COMMITLOG_PLACES; or the log itself says that a prefix is relative to a root
with a name, and the deployment says where that root is, as `NAME=NEW`. A client that has no binding
of its own uses its leader's. `bound` is asked right before a file is opened or a place is shown,
and `recorded` right before a place that somebody names becomes part of a record. Nothing in between
knows of it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from commitlog.errors import InvalidSettings, InvalidTransaction

VARIABLE = "COMMITLOG_PLACES"
TABLES = "tables"
"""The root that each deployment has: its own tables root."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?!//)")


class _Known:
    """This process's bindings."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.own: dict[str, str] | None = None
        """By the environment or by `use_places`; None: not read yet."""
        self.roots: dict[str, str] = {}
        """Where named roots are, by the same."""
        self.tables = ""
        """Where the deployment's own tables root is, as long as nothing names that."""
        self.has_tables = False
        """Whether the log's tables were found there."""
        self.named: dict[str, str] = {}
        """Names of roots by the prefixes that logs bind to them."""
        self.bound: dict[str, str] = {}
        """What all of these come to."""
        self.heard: dict[str, str] = {}
        """By leaders; they count as long as there are no own ones."""
        self.reached: dict[str, str] = {}
        """Tables roots of logs that were reached, and where they are."""

    def settle(self) -> None:
        """Put together what the log says and what the deployment says, which wins."""
        roots = {**({TABLES: self.tables} if self.has_tables else {}), **self.roots}
        named = {old: roots[name] for old, name in self.named.items() if name in roots}
        self.bound = {**named, **(self.own or {})}


_known = _Known()


def use_places(text: str, tables: str = "") -> None:
    """Bind places in this process and in those that it starts; InvalidSettings.

    `tables` is where the deployment's own tables root is, if it has one. It counts once the log's
    tables were found there (`use_named`).
    """
    own, roots = _parsed(text)
    with _known.lock:
        _known.own, _known.roots = own, roots
        _known.tables, _known.has_tables = plain(tables), False
        _known.named, _known.heard, _known.reached = {}, {}, {}
        _known.settle()
        os.environ[VARIABLE] = _text(own, roots)


def use_named(named: Mapping[str, str], *, has_tables: bool | None = None) -> list[str]:
    """Bind the prefixes that a log says are relative to named roots; return what is nowhere.

    That is the prefixes whose root this process doesn't know, and which it doesn't bind itself.
    `has_tables` says whether its own tables root holds the log's; None: as was said before.
    """
    with _known.lock:
        _own()
        if has_tables is not None:
            _known.has_tables = has_tables
        _known.named = dict(named)
        _known.settle()
        return sorted(place for place in named if place not in _known.bound)


def own_tables() -> str:
    """Return where the deployment's own tables root is; empty if it isn't set."""
    return _known.roots.get(TABLES, _known.tables)


def places_setting() -> str:
    """Return this process's settings as the processes need them that are parts of it."""
    tables = own_tables()
    # A comma would end it; the parts come to the same place by their root then.
    named = {TABLES: tables} if tables and "," not in tables else {}
    return _text(_own(), {**named, **_known.roots})


def named_here() -> dict[str, str]:
    """Return names of roots by the prefixes that the log binds to them, as far as it was read."""
    return dict(_known.named)


def stays(place: str, name: str) -> bool:
    """Return True if a recorded prefix stays where it is once only a root says where that is.

    Without a name: once no root does.
    """
    with _known.lock:
        own = _own()
        now = plain(bound(place))
        if name:
            return (own_tables() if name == TABLES else _known.roots.get(name)) == now
        return plain(_rebased(place, own) or place) == now


def places_text() -> str:
    """Return this process's bindings as the setting has them."""
    return _text(bindings(), {})


def _text(own: Mapping[str, str], roots: Mapping[str, str]) -> str:
    return ",".join(f"{old}={new}" for old, new in sorted({**roots, **own}.items()))


def parse_places(text: str) -> dict[str, str]:
    """Return bindings, new places by old ones; InvalidSettings if one can't be."""
    return _parsed(text)[0]


def _parsed(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return bindings, and where named roots are."""
    found: dict[str, str] = {}
    roots: dict[str, str] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        old, _, new = pair.partition("=")
        is_root = _NAME.fullmatch(old) is not None
        if not _is_place(new) or not (is_root or _is_place(old)):
            raise InvalidSettings(
                f"places: {pair!r} is not OLD=NEW, two absolute folders or URIs, for example"
                " /old/root/tables=/new/root/tables, or NAME=NEW for a root that the log names"
            )
        (roots if is_root else found)[plain(old)] = plain(new)
    _check_apart(found, found)
    _check_apart(roots, {})
    return found, roots


def _check_apart(group: Mapping[str, str], olds: Mapping[str, str]) -> None:
    """Refuse places that could be bound twice, or give one file two names in the log."""
    for new in (new for old, new in group.items() if old != new):
        if any(meet(new, old) for old in olds) or sum(meet(new, n) for n in group.values()) > 1:
            raise InvalidSettings(
                f"places: {new!r} overlaps another bound place: name each place once"
            )


def bindings() -> Mapping[str, str]:
    """Return this process's bindings."""
    if _known.own is None:
        _own()
        _known.settle()
    return _known.bound or _known.heard


def _own() -> dict[str, str]:
    """Return what this process binds itself."""
    if _known.own is None:
        _known.own, _known.roots = _parsed(os.environ.get(VARIABLE, ""))
    return _known.own


def heed(root: str, said: Mapping[str, str], named: Mapping[str, str]) -> None:
    """Use a leader's bindings for a log's tables root, unless this process has its own.

    Where this process knows a root that the log names, it is there.

    Raises InvalidSettings if it works already with the same tables root at another place: with a
    copy of this log, or the original.
    """
    with _known.lock:
        if not root or (bindings() and not _known.heard):
            return
        here = {old: _known.roots[name] for old, name in named.items() if name in _known.roots}
        both = {**said, **here}
        there = _rebased(root, both) or plain(root)
        before = _known.reached.setdefault(plain(root), there)
        if before != there:
            raise InvalidSettings(
                f"in this process the tables root {root} is bound to {before} for one log, and "
                f"another log needs it at {there}: use a process for each"
            )
        if not both.items() <= _known.heard.items():
            merged = {**_known.heard, **both}
            _known.heard = parse_places(_text(merged, {}))


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


def moved_prefix(place: str) -> tuple[str, str]:
    """Return the prefix that binds a place that is_moved, and where that is."""
    known = bindings()
    return next((old, new) for old, new in known.items() if _rebased(place, {old: new}))


def is_bound(place: str) -> bool:
    """Return True if something binds a recorded place, even to where it was recorded."""
    return bool(_rebased(place, bindings()))


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


def is_misspelt_uri(text: str) -> bool:
    """Return True for `s3:/bucket`, which would be a folder named `s3:` in the current one."""
    return _SCHEME.match(text) is not None and not text.startswith("file:/")


def _is_place(text: str) -> bool:
    is_absolute = text.startswith("/") or ("://" in text and not text.startswith("://"))
    return is_absolute and len(plain(text)) > 1 and ".." not in text.split("/")


def meet(one: str, other: str) -> bool:
    """Return True if a place is, contains or is in another one."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def leads_outside(path: str) -> InvalidTransaction:
    """Return the refusal of a path that isn't below its location."""
    return InvalidTransaction(
        f"path {path!r} leaves the table's location",
        field="path",
        value=path,
        advice="Use a path relative to the location, without '..'",
    )
