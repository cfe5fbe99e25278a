"""LanceDB's own remote client, which speaks the protocol with an accent.

Its paths end in `/`; that is how it is told from others. Some of its fields have other names, and
some of its answers another shape. All of that is put right here, on the way in and on the way out:
the operations themselves know one protocol.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID, uuid5

from lance_namespace.errors import (
    ErrorCode,
    InvalidInputError,
    LanceNamespaceError,
    TableIndexAlreadyExistsError,
    TableTagAlreadyExistsError,
)

from commitlog.errors import TableAlreadyExists
from commitlog.model.digits import whole_number
from consumers.servers.namespace.status import code_of, message_of

SERVER_VERSION = {"phalanx-version": "0.3.0"}
"""What the client learns its server's abilities by: several vectors at once since 0.2, structured
full-text queries since 0.3; uploads in parts, since 0.4, aren't served."""
DATABASE = "x-lancedb-database"
"""What the client sends with each request, those of lists too, whose paths don't end in `/`."""
REQUEST_ID = "x-request-id"
TIMEOUT = "x-request-timeout-ms"
_INDEX_TYPES = {
    "BTree": "BTREE",
    "Bitmap": "BITMAP",
    "LabelList": "LABEL_LIST",
    "Inverted": "FTS",
    "FmIndex": "FM",
    "FMIndex": "FM",
    "Fm": "FM",
}
_KNOWN_INDICES = frozenset(
    {
        *("BTREE", "BITMAP", "LABEL_LIST", "FM", "FTS", "IVF_FLAT", "IVF_SQ", "IVF_PQ", "IVF_RQ"),
        *("IVF_HNSW_PQ", "IVF_HNSW_SQ", "IVF_HNSW_FLAT"),
    }
)

Fields = dict[str, Any]


class _ToldAs400(LanceNamespaceError):
    status = 400

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class ExistsAlready(_ToldAs400):
    """Something exists already: the client would send a 409 again, and looks for these words."""


class MissingInside(_ToldAs400):
    """A table lacks something: by a 404 the client would say that the table itself is missing."""


_INSIDE = frozenset({ErrorCode.TABLE_COLUMN_NOT_FOUND, ErrorCode.TABLE_TAG_NOT_FOUND})
_VERSIONS = frozenset({ErrorCode.TABLE_VERSION_NOT_FOUND, ErrorCode.TABLE_BRANCH_NOT_FOUND})
_SAID_BY_CLIENT = frozenset(
    {"DescribeTable", "RestoreTable", "CreateTableBranch", "DeleteTableBranch"}
)
"""Where the client itself says by a 404 which version or branch is missing."""
_EXISTS = frozenset(
    {
        ErrorCode.TABLE_ALREADY_EXISTS,
        ErrorCode.TABLE_INDEX_ALREADY_EXISTS,
        ErrorCode.TABLE_TAG_ALREADY_EXISTS,
    }
)


def says_that_it_exists(body: bytes | memoryview) -> bool:
    """Return True for the body of an `ExistsAlready`: no mistake, with `exist_ok` for example."""
    return bool(body) and json.loads(bytes(body)).get("code") in _EXISTS


def is_remote(path: str) -> bool:
    """Return True for a path as LanceDB's remote client writes it."""
    return path.endswith("/")


def key_of(request_id: str, digest: str) -> str | None:
    """Return the transaction id of a request that the client sends again under the same id.

    None if somebody else made the request's id: a counter starts again with each program.
    """
    try:
        return str(uuid5(UUID(request_id), digest))
    except ValueError:
        return None


def fields_in(operation: str, fields: Fields) -> None:
    """Put a request's fields as the protocol has them."""
    change = _IN.get(operation)
    if change is not None:
        change(fields)


def answer_out(operation: str, body: Any) -> Any:
    """Return an answer as the client reads it."""
    change = _OUT.get(operation)
    return change(body) if change is not None and isinstance(body, dict) else body


def error_out(operation: str, error: Exception, table: str) -> Exception:
    """Return a failure as the client knows it."""
    if operation == "CreateTable" and isinstance(error, TableAlreadyExists):
        return ExistsAlready(ErrorCode.TABLE_ALREADY_EXISTS, f"{table} already exists: {error}")
    if isinstance(error, TableIndexAlreadyExistsError | TableTagAlreadyExistsError):
        return ExistsAlready(ErrorCode(error.code), f"it already exists: {error}")
    code = code_of(error)
    if code in _INSIDE or (code in _VERSIONS and operation not in _SAID_BY_CLIENT):
        return MissingInside(code, message_of(error))
    return error


def _query_in(fields: Fields) -> None:
    if isinstance(fields.get("columns"), dict):
        fields["columns"] = {"column_aliases": fields["columns"]}
    for name in ("nprobes", "minimum_nprobes", "maximum_nprobes"):
        if not fields.get(name):
            fields.pop(name, None)


def _explained_in(fields: Fields) -> None:
    if isinstance(fields.get("query"), dict):
        _query_in(fields["query"])


def _index_in(fields: Fields) -> None:
    if "metric_type" in fields:
        fields["distance_type"] = fields.pop("metric_type")


def _rename_in(fields: Fields) -> None:
    if "new_namespace" in fields:
        fields["new_namespace_id"] = fields.pop("new_namespace")


def _merge_in(fields: Fields) -> None:
    fields.setdefault("use_index", True)


_IN: dict[str, Callable[[Fields], None]] = {
    "QueryTable": _query_in,
    "AnalyzeTableQueryPlan": _query_in,
    "ExplainTableQueryPlan": _explained_in,
    "CreateTableIndex": _index_in,
    "RenameTable": _rename_in,
    "MergeInsertIntoTable": _merge_in,
}


def _merge_out(body: Fields) -> Fields:
    written = body["num_updated_rows"] + body["num_inserted_rows"]
    return {**body, "num_attempts": 1, "num_rows": written}


def _index_type(entry: Fields) -> Fields:
    kind = _INDEX_TYPES.get(entry.get("index_type", ""), entry.get("index_type"))
    return {**entry, "index_type": kind if kind in _KNOWN_INDICES else "Unknown"}


_OUT: dict[str, Callable[[Fields], Any]] = {
    "ListTableTags": lambda body: body["tags"],
    "MergeInsertIntoTable": _merge_out,
    "UpdateTable": lambda body: {**body, "rows_updated": body["updated_rows"]},
    "ListTableIndices": lambda body: {**body, "indexes": [_index_type(i) for i in body["indexes"]]},
    "DescribeTableIndexStats": _index_type,
}


# How long a request may take, as clients say it.

TIMEOUT_SECONDS = 60.0
"""How long the log may take to answer a change of rows for which the client named no time."""
TIMEOUT_SECONDS_MAX = 3600.0
_PART = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)"
_DURATION = re.compile(rf"{_PART}(?:\s*{_PART})*")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def timeout_of(headers: Mapping[str, str], given: str | None) -> float | None:
    """Return how long a merge may take, said in a field or as LanceDB's client says it; or None."""
    header = headers.get(TIMEOUT, "")
    is_told = not given and whole_number(header) is not None
    return seconds(f"{header}ms" if is_told else given)


def seconds(text: str | None) -> float | None:
    """Return a duration such as `30s`, `5m` or `1m30s` in seconds; None for an empty one."""
    if not text:
        return None
    parts = re.findall(_PART, text) if _DURATION.fullmatch(text.strip()) else ()
    value = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 < value <= TIMEOUT_SECONDS_MAX:
        raise InvalidInputError(
            f"timeout must be a duration such as 30s or 5m, at most 1h, not {text!r}"
        )
    return value
