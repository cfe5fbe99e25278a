"""`/openapi.json`, and `/docs`: the same as a page that needs nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import BaseRoute, Route

from consumers.servers.openapi.document import ICEBERG_NAMES, document
from consumers.servers.openapi.log_operations import OPERATION_OBJECTS

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
}
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code { font: 13px ui-monospace, monospace } h2 { margin-top: 2.5rem; text-transform: capitalize }
details { border-top: 1px solid #8884; padding: .4rem 0 } summary { cursor: pointer }
.method { display: inline-block; width: 4.5rem; font-weight: 600 } .text { color: #777 }
table { border-collapse: collapse; margin: .5rem 0 1rem } td { padding: .1rem 1rem .1rem 0;
vertical-align: top } :root { color-scheme: light dark }
"""


def openapi_routes(
    served: Sequence[BaseRoute], *, base_path: str = "", is_secured: bool = False
) -> list[Route]:
    """Return the routes that describe these; what they answer is made when it is asked for."""

    @cache
    def found() -> dict[str, Any]:
        return document(base_path=base_path, is_secured=is_secured, routes=_others(served))

    @cache
    def page() -> str:
        return _page(found())

    # Not async: they run in a thread, since the first answer is work.
    def openapi(request: Request) -> JSONResponse:
        return JSONResponse(found())

    def docs(request: Request) -> HTMLResponse:
        return HTMLResponse(page(), headers=_HEADERS)

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


def _others(served: Iterable[BaseRoute]) -> Iterable[tuple[str, str]]:
    """Yield methods and paths of what isn't Lance's API and isn't the page's own."""
    described = OPERATION_OBJECTS.keys() | ICEBERG_NAMES.keys()
    for route in served:
        if isinstance(route, Route):
            for method in sorted(route.methods or ()):
                if (method, route.path) in described:
                    yield method, route.path


def _page(found: Mapping[str, Any]) -> str:
    groups: dict[str, list[str]] = {}
    for path, item in found["paths"].items():
        for method, operation in item.items():
            groups.setdefault(operation["tags"][0], []).append(_details(method, path, operation))
    parts = [f"<h2>{escape(tag)}</h2>{''.join(entries)}" for tag, entries in groups.items()]
    info = found["info"]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])}</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f"<p>{escape(info['description'])} The document: <a href=openapi.json>openapi.json</a>."
        f"{''.join(parts)}</html>"
    )


def _details(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = [
        (parameter["name"], parameter["in"], parameter.get("description", ""))
        for parameter in operation.get("parameters", ())
    ]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        rows.append(("body", kind, _name(content["schema"])))
        if "example" in content:
            rows.append(("for example", "", json.dumps(content["example"])))
    for status, response in operation["responses"].items():
        schemas = [_name(one["schema"]) for one in response.get("content", {}).values()]
        rows.append((status, " ".join(schemas), response["description"]))
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code><td>{escape(kind)}<td class=text>{escape(text)}"
        for name, kind, text in rows
    )
    return (
        f"<details><summary><span class=method>{method.upper()}</span>"
        f"<code>{escape(path)}</code> {escape(operation['summary'])}</summary>"
        f"<table>{cells}</table></details>"
    )


def _name(schema: Mapping[str, Any]) -> str:
    reference = str(schema.get("$ref", "")).rsplit("/", 1)[-1]
    return reference or str(schema.get("type", ""))
