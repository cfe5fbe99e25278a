"""The OpenAPI operations of the log and its index, which neither of the two APIs has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from consumers.servers.namespace.log_transactions import LogTransactionRequest
from consumers.servers.namespace.one_record import PropertiesRequest, RestoreRequest, UndropRequest

_JSON = "application/json"
_TEXTS = {"type": "array", "items": {"type": "string"}}
_ERROR = {
    "type": "object",
    "required": ["error", "code"],
    "properties": {"error": {"type": "string"}, "code": {"type": "integer"}},
}
_WRONG = {
    "400": "The request is wrong; the answer says what is wrong.",
    "401": "The request has no valid credentials.",
    "403": "The caller may not read everything.",
    "408": "The body didn't arrive in time.",
    "413": "The query is too long.",
    "429": "Too many requests of this client are running.",
    "431": "The headers are too large.",
    "503": "Too many requests at once; try again after Retry-After.",
}


def _operation(
    name: str,
    summary: str,
    done: Mapping[str, Any],
    also: Mapping[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Describe an operation; `also` are statuses beside those that each operation has."""
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": dict(done)}}
    for status, text in {**_WRONG, **(also or {})}.items():
        responses[status] = {"description": text, "content": {_JSON: {"schema": _ERROR}}}
    found = {"operationId": name, "tags": ["server"], "summary": summary, "responses": responses}
    return {**found, **more}


def _query(name: str, text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": dict(schema)}


_FEED = _operation(
    "Feed",
    "Follow all decisions as server-sent events, each a CloudEvent with its position.",
    {"text/event-stream": {"schema": {"type": ["string", "object"]}}},
    {"404": "The table does not exist; the answer lists similar names."},
    parameters=[
        _query("table", "Tables, and namespaces as `ns$*`; all by default.", _TEXTS),
        _query("refused", "Refused transactions too.", {"type": "string", "enum": ["0", "1"]}),
        _query(
            "from",
            "A position, the token of an event, `beginning`, or `now`, the default.",
            {"type": "string"},
        ),
        _query(
            "seconds", "End after this many seconds.", {"type": "number", "exclusiveMinimum": 0}
        ),
        {
            "name": "Last-Event-ID",
            "in": "header",
            "description": "The last event received: continue after it.",
            "schema": {"type": "string"},
        },
    ],
)
_SQL = _operation(
    "Sql",
    "Run one SELECT over the index.",
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

_OUTCOME = {
    "type": "object",
    "required": ["transaction_id", "status", "sequence", "results"],
    "properties": {
        "transaction_id": {"type": "string"},
        "status": {
            "type": "string",
            "enum": ["committed", "retryable", "incompatible", "rejected", "superseded"],
        },
        "sequence": {"type": "integer", "description": "Its position in the log."},
        "attempt": {"type": "integer"},
        "time_ms": {"type": "integer"},
        "results": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "table": _TEXTS,
                    "operation": {"type": "string"},
                    "version": {"type": "integer"},
                    "rebased_over": {"type": "integer"},
                },
            },
        },
        "code": {"type": "string", "description": "Why it was refused."},
        "message": {"type": "string"},
        "conflict": {"type": "object", "description": "The transaction that it lost to."},
    },
}
_MORE = {
    "404": "The table does not exist, or the transaction has no outcome yet.",
    "406": "The operation isn't served.",
    "409": "Refused: a concurrent commit won.",
    "415": "The body's content encoding is unknown.",
    "500": "It is not known whether the transaction committed: ask for it by its id.",
}


def _path(name: str, **more: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, **more, "schema": schema}


def _submitted(name: str, summary: str, request: type[BaseModel]) -> dict[str, Any]:
    schema = request.model_json_schema(ref_template="#/components/schemas/{model}")
    return _operation(
        name,
        summary,
        {_JSON: {"schema": _OUTCOME}},
        _MORE,
        parameters=[
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "One key is one transaction, however often it is sent.",
                "schema": {"type": "string", "minLength": 1},
            }
        ],
        requestBody={"required": True, "content": {_JSON: {"schema": _inlined(schema)}}},
    )


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with its definitions in the places where they are named."""
    definitions = schema.pop("$defs", {})

    def put(value: Any) -> Any:
        if isinstance(value, list):
            return [put(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return put(definitions[value["$ref"].rsplit("/", 1)[-1]])
        return {name: put(one) for name, one in value.items()}

    found: dict[str, Any] = put(schema)
    return found


_DESCRIBE = _operation(
    "DescribeLogTransaction",
    "Return the outcome of a transaction.",
    {_JSON: {"schema": _OUTCOME}},
    _MORE,
    parameters=[_path("id", description="Its id, or the Idempotency-Key that it was sent under.")],
)

_PREWARM = _operation(
    "PrewarmTableIndex",
    "Load an index into memory before it is queried, as LanceDB's client does.",
    {_JSON: {"schema": {"type": "object"}}},
    _MORE,
    parameters=[_path("id"), _path("index_name")],
)

OPERATION_OBJECTS: Mapping[tuple[str, str], dict[str, Any]] = {
    ("GET", "/v1/log/feed"): _FEED,
    ("GET", "/v1/feed"): {**_FEED, "operationId": "FeedByItsOldPath"},
    ("POST", "/v1/log/properties"): _submitted(
        "SetProperties",
        "Set properties of a Lance table or a namespace, such as maintenance policies.",
        PropertiesRequest,
    ),
    ("POST", "/v1/log/restore"): _submitted(
        "RestoreTables",
        "Roll tables of either format back to a position, in one record.",
        RestoreRequest,
    ),
    ("POST", "/v1/log/transactions"): _submitted(
        "SubmitLogTransaction",
        "Commit operations on any number of tables as one record: all of them, or none.",
        LogTransactionRequest,
    ),
    ("POST", "/v1/log/undrop"): _submitted(
        "UndropTable", "Restore a dropped table of either format.", UndropRequest
    ),
    ("GET", "/v1/log/transactions/{id}"): _DESCRIBE,
    ("POST", "/v1/sql"): _SQL,
    ("POST", "/v1/table/{id}/index/{index_name}/prewarm"): _PREWARM,
}
"""Operations by method and path."""
