"""The OpenAPI document of a running server, made of what it serves.

Paths come from the table of operations, bodies and answers from the models that read and check
them, so that the document cannot say something else than the server does. The Iceberg catalogue's
routes are named; its bodies are its own specification's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

import lance_namespace_urllib3_client.models as models
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from consumers.servers.iceberg.rest import ROUTES
from consumers.servers.namespace.call import ARROW_FILE, ARROW_STREAM
from consumers.servers.namespace.operations import OPERATIONS, Entry
from consumers.servers.openapi.examples import ICEBERG, LANCE
from consumers.servers.openapi.log_operations import OPERATION_OBJECTS

ICEBERG_SPECIFICATION = "https://iceberg.apache.org/rest-catalog-spec/"
_REFERENCE = "#/components/schemas/{model}"
_JSON = "application/json"
_ERRORS = {
    "400": "The request is wrong; nothing was done.",
    "401": "The request has no valid credentials.",
    "403": "The caller may not do this.",
    "404": "Something that the request names does not exist.",
    "406": "The operation, or a field of the request, is not supported.",
    "408": "The body didn't arrive in time.",
    "409": "The object already exists, or a concurrent commit won; the answer names it.",
    "413": "The body is too large.",
    "415": "The body's content type is not accepted.",
    "429": "Too many requests.",
    "431": "The headers are too large.",
    "500": (
        "It is not known whether the request was carried out; the answer says how to find out."
    ),
    "503": "Nothing was done; try again after Retry-After.",
}
_REQUESTS = {
    "ListAllTables": "ListTablesRequest",
    "CreateTableScalarIndex": "CreateTableIndexRequest",
}
_ANSWERS: dict[str, dict[str, Any] | str | None] = {
    "ListAllTables": "ListTablesResponse",
    "NamespaceExists": None,
    "TableExists": None,
    "CountTableRows": {"type": "integer", "minimum": 0},
    "ExplainTableQueryPlan": {"type": "string"},
    "AnalyzeTableQueryPlan": {"type": "string"},
    "UpdateTableSchemaMetadata": {"type": "object", "additionalProperties": {"type": "string"}},
}
"""Answers that aren't `<operation>Response`: another model's, a plain value, or an empty body."""
ICEBERG_NAMES = {(method, path): work.__name__ for method, path, work in ROUTES}
"""What serves each route of Iceberg's catalogue."""
_NOT_IN_QUERY = frozenset({"id", "identity", "context"})


def document(
    *, base_path: str = "", is_secured: bool = False, routes: Iterable[tuple[str, str]] = ()
) -> dict[str, Any]:
    """Return the document; `routes` are methods and paths of what is served beside Lance's API."""
    paths: dict[str, Any] = {}
    for entry in OPERATIONS:
        paths.setdefault(entry.path, {})[entry.method.lower()] = _operation(entry)
    paths |= _own()
    for method, path in routes:
        described = OPERATION_OBJECTS.get((method, path)) or _iceberg(method, path)
        paths.setdefault(path, {})[method.lower()] = described
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "lance-commitlog",
            "version": version("lance-commitlog"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": (
                "Lance tables and Iceberg tables whose commits are records of one log. Each answer"
                " to a commit carries its position in the log as x-commitlog-sequence."
            ),
        },
        "servers": [{"url": base_path or "/"}],
        "paths": paths,
        "components": {"schemas": _schemas()},
    }
    if is_secured:
        found["components"]["securitySchemes"] = {
            "ApiKeyAuth": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            "BearerAuth": {"type": "http", "scheme": "bearer"},
        }
        found["security"] = [{"ApiKeyAuth": []}, {"BearerAuth": []}]
    return found


def _model(name: str) -> type[BaseModel]:
    found: type[BaseModel] = getattr(models, name)
    return found


def _request_of(entry: Entry) -> type[BaseModel]:
    return _model(_REQUESTS.get(entry.name, f"{entry.name}Request"))


@cache
def _schemas() -> dict[str, Any]:
    names = {"ErrorResponse"}
    for entry in OPERATIONS:
        names.add(_request_of(entry).__name__)
        answer = _ANSWERS.get(entry.name, f"{entry.name}Response")
        if isinstance(answer, str) and hasattr(models, answer):
            names.add(answer)
    _, found = models_json_schema(
        [(_model(name), "validation") for name in sorted(names)], ref_template=_REFERENCE
    )
    schemas: dict[str, Any] = _without_nulls(found["$defs"])
    _drop_unused(schemas, names)
    schemas["ErrorResponse"]["required"] = ["error", "code", "instance"]
    return schemas


def _drop_unused(schemas: dict[str, Any], roots: set[str]) -> None:
    """Leave what can be reached from the roots."""
    reached: set[str] = set()
    waiting = sorted(roots)
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += re.findall(r"#/components/schemas/(\w+)", repr(schemas[name]))
    for name in set(schemas) - reached:
        del schemas[name]


def _without_nulls(value: Any) -> Any:
    """Say "may be absent" once: `null` is read as absent, and never sent."""
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    if not isinstance(value, dict):
        return value
    kinds = value.get("anyOf")
    if isinstance(kinds, list) and {"type": "null"} in kinds:
        left = [one for one in kinds if one != {"type": "null"}]
        rest = {k: v for k, v in value.items() if k not in ("anyOf", "default")}
        return _without_nulls(rest | (left[0] if len(left) == 1 else {"anyOf": left}))
    return {k: _without_nulls(v) for k, v in value.items()}


def _operation(entry: Entry) -> dict[str, Any]:
    request = _request_of(entry)
    in_query = entry.takes_arrow or entry.method == "GET"
    parameters = [_path_parameter(name) for name in re.findall(r"{(\w+)}", entry.path)]
    parameters.append(
        _parameter("delimiter", {"type": "string"}, "The delimiter of an id's parts: `$`.")
    )
    if in_query:
        parameters += _query_parameters(request)
    found: dict[str, Any] = {
        "operationId": entry.name,
        "tags": [_tag(entry.path)],
        "summary": _summary(entry),
        "parameters": parameters,
        "responses": _responses(entry),
    }
    if entry.takes_arrow:
        content: dict[str, Any] = {ARROW_STREAM: {"schema": {"type": "string", "format": "binary"}}}
        found["requestBody"] = {"required": True, "content": content}
    elif not in_query:
        schema = {"$ref": _REFERENCE.format(model=request.__name__)}
        is_needed = any(f.is_required() for f in request.model_fields.values())
        content = {_JSON: _with_example({"schema": schema}, LANCE.get(entry.name))}
        found["requestBody"] = {"required": is_needed, "content": content}
    return found


def _with_example(content: dict[str, Any], example: Any) -> dict[str, Any]:
    return content if example is None else {**content, "example": example}


def _tag(path: str) -> str:
    return path.split("/")[2].replace("_", " ")


def _summary(entry: Entry) -> str:
    if entry.operation is None:
        return "Not supported: answers 406."
    return (entry.operation.__doc__ or "").strip().splitlines()[0]


def _path_parameter(name: str) -> dict[str, Any]:
    text = "Parts joined by the delimiter; the delimiter alone is the root namespace."
    found = _parameter(name, {"type": "string", "minLength": 1}, text if name == "id" else "")
    return {**found, "in": "path", "required": True}


def _parameter(name: str, schema: Mapping[str, Any], text: str = "") -> dict[str, Any]:
    found = {"name": name, "in": "query", "required": False, "schema": dict(schema)}
    return {**found, "description": text} if text else found


def _query_parameters(request: type[BaseModel]) -> list[dict[str, Any]]:
    schema = _schemas()[request.__name__]
    found = []
    for name, field in schema["properties"].items():
        if name in _NOT_IN_QUERY:
            continue
        kind = {k: v for k, v in field.items() if k not in ("title", "description")}
        if kind.get("type") == "object":
            kind = {"type": "string", "contentMediaType": _JSON}
        found.append(_parameter(name, kind, field.get("description", "")))
    return found


def _responses(entry: Entry) -> dict[str, Any]:
    if entry.name == "QueryTable":
        content: dict[str, Any] = {ARROW_FILE: {"schema": {"type": "string", "format": "binary"}}}
    else:
        answer = _ANSWERS.get(entry.name, f"{entry.name}Response")
        if isinstance(answer, str):
            answer = {"$ref": _REFERENCE.format(model=answer)}
        content = {_JSON: {"schema": answer}} if answer is not None else {}
    done: dict[str, Any] = {"description": "Done."}
    if content:
        done["content"] = content
    error = {_JSON: {"schema": {"$ref": _REFERENCE.format(model="ErrorResponse")}}}
    responses: dict[str, Any] = {} if entry.operation is None else {"200": done}
    for status, text in _ERRORS.items():
        responses[status] = {"description": text, "content": error}
    return responses


def _own() -> dict[str, Any]:
    """Return what is beside the two APIs."""

    def answers(kind: str, *statuses: str) -> dict[str, Any]:
        schema = {"type": "object" if kind == _JSON else "string"}
        answer = {"description": "The answer.", "content": {kind: {"schema": schema}}}
        return dict.fromkeys(statuses, answer)

    def get(name: str, text: str, responses: dict[str, Any]) -> dict[str, Any]:
        found = {"operationId": name, "tags": ["server"], "summary": text, "responses": responses}
        return {"get": {**found, "servers": [{"url": "/"}]}}

    return {
        "/healthz": get("health", "Answer if the server is running.", answers(_JSON, "200")),
        "/readyz": get("readiness", "Return whether all parts work.", answers(_JSON, "200", "503")),
        "/metrics": get("metrics", "Return metrics for Prometheus.", answers("text/plain", "200")),
    }


def _iceberg(method: str, path: str) -> dict[str, Any]:
    parameters = [_path_parameter(name) for name in re.findall(r"{(\w+)}", path)]
    body = {"description": "As in the Iceberg REST specification."}
    words = ICEBERG_NAMES[method, path].split("_")
    found: dict[str, Any] = {
        "operationId": f"Iceberg{''.join(map(str.capitalize, words))}",
        "tags": ["iceberg"],
        "summary": f"{' '.join(words).capitalize()}, as in the Iceberg REST specification.",
        "externalDocs": {"url": ICEBERG_SPECIFICATION},
        "parameters": parameters,
        "responses": {"2XX": body, "4XX": body, "5XX": body},
    }
    if method == "POST":
        example = ICEBERG.get(ICEBERG_NAMES[method, path])
        sent = _with_example({"schema": {"type": "object"}}, example)
        found["requestBody"] = {"content": {_JSON: sent}}
    return found
