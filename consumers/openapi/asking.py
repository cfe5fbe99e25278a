"""What is asked of the log and its index beside the two APIs, as OpenAPI has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_JSON = "application/json"
_TEXTS = {"type": "array", "items": {"type": "string"}}
_ERROR = {
    "type": "object",
    "required": ["error", "code"],
    "properties": {"error": {"type": "string"}, "code": {"type": "integer"}},
}
_WRONG = {
    "400": "What is asked is wrong; the answer says how.",
    "401": "The request doesn't show who asks.",
    "403": "Who asks may not read everything.",
    "408": "The body didn't arrive in time.",
    "413": "The question is too long.",
    "431": "The headers are too large.",
    "503": "Too much is asked at once; try again after Retry-After.",
}


def _operation(
    name: str, summary: str, done: Mapping[str, Any], **more: Any
) -> dict[str, dict[str, Any]]:
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": dict(done)}}
    for status, text in _WRONG.items():
        responses[status] = {"description": text, "content": {_JSON: {"schema": _ERROR}}}
    found = {"operationId": name, "tags": ["server"], "summary": summary, "responses": responses}
    return {**found, **more}


def _query(name: str, text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": dict(schema)}


_FEED = _operation(
    "Feed",
    "Follow what is decided: server-sent events, each a CloudEvent with its position.",
    {"text/event-stream": {"schema": {"type": "string"}}},
    parameters=[
        _query("table", "Tables, and namespaces as `ns$*`; all by default.", _TEXTS),
        _query("refused", "Refused transactions too.", {"type": "string", "enum": ["0", "1"]}),
        _query(
            "from",
            "A position, the token of an event, `beginning`, or `now`, the default.",
            {"type": "string"},
        ),
        _query("seconds", "End after so long.", {"type": "number", "exclusiveMinimum": 0}),
        {
            "name": "Last-Event-ID",
            "in": "header",
            "description": "The last event that came: go on behind it.",
            "schema": {"type": "string"},
        },
    ],
)
_SQL = _operation(
    "Sql",
    "Ask the index one SELECT.",
    {
        _JSON: {
            "schema": {
                "type": "object",
                "required": ["columns", "types", "rows", "is_cut"],
                "properties": {
                    "columns": _TEXTS,
                    "types": _TEXTS,
                    "rows": {"type": "array", "items": {"type": "array"}},
                    "is_cut": {"type": "boolean", "description": "There were more rows."},
                },
            }
        }
    },
    requestBody={
        "required": True,
        "content": {
            _JSON: {
                "schema": {
                    "type": "object",
                    "required": ["sql"],
                    "properties": {
                        "sql": {"type": "string", "examples": ["FROM help"]},
                        "parameters": {
                            "type": "array",
                            "items": {"type": ["string", "number", "boolean", "null"]},
                        },
                    },
                }
            }
        },
    },
)

ASKING: Mapping[tuple[str, str], dict[str, Any]] = {
    ("GET", "/v1/feed"): _FEED,
    ("POST", "/v1/sql"): _SQL,
}
"""Operations by method and path."""
