"""A route table answers as its routes would, one after another."""

from __future__ import annotations

import asyncio

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import ASGIApp, Message, Scope

from consumers.servers.server_routes import RouteTable, nowhere


def route(path: str, method: str = "GET") -> Route:
    answer = PlainTextResponse(f"{method} {path}")
    return Route(path, lambda request: answer, methods=[method])


ROUTES: list[BaseRoute] = [
    route("/"),
    route("/v1/table"),
    route("/v1/table/{id}/insert", "POST"),
    route("/v1/at-{position}/table"),
    route("/{any}/table/insert/insert"),
    route("/v1/table/{id}/insert"),
    Mount("/page", routes=[route("/one/two/three"), route("/{rest:path}")]),
    route("/v1/{rest:path}", "DELETE"),
    route("/v1/table/{rest:path}"),
]


async def answer(app: ASGIApp, method: str, path: str) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": []}
    await app({**scope, "server": ("x", 80), "scheme": "http", "root_path": ""}, receive, send)
    return sent


@pytest.mark.slow
@pytest.mark.parametrize("base", ["", "/lance"])
@pytest.mark.parametrize(
    "path",
    [
        *("/", "/v1", "/v1/table", "/v1/table/", "/v1/table/a/insert", "/v1/at-5/table"),
        *("/x/table/insert/insert", "/v1/table/insert/insert", "/page/one/two/three", "/none"),
        *("/page/a/b/c/d", "/page", "/v1/tables", "//v1/table", "", "{", "/v1/table/{", "/{/{"),
    ],
)
def test_a_table_answers_as_its_routes_do(base: str, path: str) -> None:
    apps = [
        Starlette(routes=[Mount(base, routes=held)] if base else held)
        for held in (ROUTES, [RouteTable(ROUTES)])
    ]
    for method in ("GET", "POST", "DELETE", "HEAD"):
        expected, found = (asyncio.run(answer(app, method, base + path)) for app in apps)
        assert found == expected


def test_of_hundreds_of_routes_those_that_end_as_the_path_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes = [route(f"/v1/table/{{id}}/{number}") for number in range(300)]
    table, match = RouteTable(routes), Route.matches
    tried: list[str] = []

    def counting(self: Route, scope: Scope) -> tuple[Match, Scope]:
        tried.append(self.path)
        return match(self, scope)

    monkeypatch.setattr(Route, "matches", counting)
    for _ in range(2):
        asyncio.run(answer(Starlette(routes=[table]), "GET", "/v1/table/a/299"))
    assert tried == ["/v1/table/{id}/299"] * 2


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("/v1/table/a b/", "../a%20b"),
        ("/v1/table/a//", "../../a"),
        ("/page", "./page/"),
        ("/a:b/", None),
        ("/", None),
        ("", None),
    ],
)
def test_a_last_slash_leads_on_below_whatever_a_proxy_calls_this_server(
    path: str, to: str | None
) -> None:
    routes = [route("/v1/table/{id}"), route("/page/")]
    app = Starlette(routes=routes)
    app.router.redirect_slashes, app.router.default = False, nowhere(routes)
    start = asyncio.run(answer(app, "GET", path))[0]
    found = dict(start["headers"]).get(b"location")
    assert (start["status"], found) == (307 if to else 404, to.encode() if to else None)
