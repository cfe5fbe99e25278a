"""Finds a request's route among hundreds: only those whose paths begin and end as its own.

If a path has none but for its last slash, the answer leads there by a relative address: a proxy in
front may serve all of this below a path of its own, under another name and scheme.

A slash within a name of Lance's, which comes as `%2F`, separates no parts of a path: clients choose
what joins the parts of a name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, unquote

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

_PARTS = 2
"""So many parts of a path are its beginning: `/v1/table`."""
_ANY = "{"
_NAMED = ("/v1/namespace/", "/v1/table/")
_SLASH = "\0"
"""Stands for a slash within a name while a route is looked for. No path that is served has one."""
_FOUND = "commitlog.route"


class RouteTable(BaseRoute):
    """Stands for routes, which are tried in their order as ever."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        """Take routes; those whose paths have no plain words there are tried for each path."""
        self._routes = [(*_ends(one), one) for one in routes]
        self._starts = {start for start, _, _ in self._routes}
        self._lasts = {last for _, last, _ in self._routes}
        self._by_ends: dict[tuple[str, str], list[BaseRoute]] = {}

    def _tried_for(self, path: str) -> list[BaseRoute]:
        start, last = _start(path), _last(path)
        # Words that no route has are all alike, so what is remembered has its bounds.
        start = start if start in self._starts else _ANY
        last = last if last in self._lasts else _ANY
        if (found := self._by_ends.get((start, last))) is None:
            found = self._by_ends[start, last] = [
                route
                for begins, ends, route in self._routes
                if begins in (_ANY, start) and ends in (_ANY, last)
            ]
        return found

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return what the first route says that serves path and method, or else the path."""
        if b"%2f" in (scope.get("raw_path") or b"").lower():
            return _with_slashes(*self._matches(_without_slashes(scope)))
        return self._matches(scope)

    def _matches(self, scope: Scope) -> tuple[Match, Scope]:
        path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
        partial: tuple[Match, Scope] = Match.NONE, {}
        for route in self._tried_for(path):
            match, found = route.matches(scope)
            if match is Match.FULL:
                return match, {**found, _FOUND: route}
            if match is Match.PARTIAL and partial[0] is Match.NONE:
                partial = match, {**found, _FOUND: route}
        return partial

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the route that was found answer."""
        await scope[_FOUND].handle(scope, receive, send)


def _without_slashes(scope: Scope) -> Scope:
    path = unquote(re.sub("(?i)%2f", _SLASH, _raw(scope)))
    is_named = path.removeprefix(scope.get("root_path", "")).startswith(_NAMED)
    return {**scope, "path": path} if is_named else scope


def _with_slashes(match: Match, found: Scope) -> tuple[Match, Scope]:
    names = {
        key: value.replace(_SLASH, "/") if isinstance(value, str) else value
        for key, value in found.get("path_params", {}).items()
    }
    return match, {**found, "path_params": names}


def _start(path: str) -> str:
    return "/".join(path.split("/", _PARTS + 1)[: _PARTS + 1])


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _ends(route: BaseRoute) -> tuple[str, str]:
    """Return how a route's paths begin and end; `_ANY` where no plain words say it."""
    if not isinstance(route, Route):
        return _ANY, _ANY
    start, last = _start(route.path), _last(route.path)
    return _ANY if "{" in start else start, _ANY if "{" in last else last


def nowhere(routes: Sequence[BaseRoute]) -> ASGIApp:
    """Return what answers where none of these routes matches: 404, or where its last slash leads.

    Raises:
        HTTPException: 404.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        to = _without_slash(scope) or _with_slash(scope)
        if to is None or all(one.matches(to[0])[0] is Match.NONE for one in routes):
            raise HTTPException(404)
        query = scope.get("query_string", b"").decode("latin-1")
        location = f"{to[1]}?{query}" if query else to[1]
        await Response(status_code=307, headers={"Location": location})(scope, receive, send)

    return answer


def _without_slash(scope: Scope) -> tuple[Scope, str] | None:
    path, raw = scope["path"].rstrip("/"), _raw(scope)
    slashes = len(raw) - len(raw.rstrip("/"))
    if not path or not slashes or len(scope["path"]) - len(path) != slashes:
        return None
    return {**scope, "path": path}, "../" * slashes + raw.rstrip("/").rpartition("/")[2]


def _with_slash(scope: Scope) -> tuple[Scope, str] | None:
    path, raw = scope["path"], _raw(scope)
    if path.endswith("/"):
        return None
    return {**scope, "path": f"{path}/"}, f"./{raw.rpartition('/')[2]}/"


def _raw(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    return raw.decode("latin-1")
