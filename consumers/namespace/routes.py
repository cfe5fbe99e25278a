"""The table of routes: which operation answers which path, and the way of a request through it.

Bodies are read up to a limit before an operation starts; it then runs on a thread, since the log's
answers take their time. Operations on rows have threads of their own, so that they don't hold up
commits. Whatever happens, the answer is the protocol's JSON.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, cast

import pyarrow as pa
from lance_namespace import InvalidInputError, UnsupportedOperationError
from lance_namespace.errors import ErrorCode
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from commitlog import CommitLog
from commitlog.errors import InvalidTransaction, OutcomeUnknown
from consumers.namespace import (
    batch,
    indices,
    namespaces,
    query,
    rows,
    schema,
    tables,
    tags,
    transactions,
    versions,
)
from consumers.namespace.call import Call
from consumers.namespace.service import Service, Settings
from consumers.namespace.status import HttpError, error_response

COMMIT_THREADS = 64
ROW_THREADS = 8
POSITION = "x-commitlog-sequence"
"""A header of each answer to a commit: the position in the log from which it can be seen."""
SPOOL_BYTES = 8 * 1024 * 1024

Operation = Callable[[Service, Call], Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation of the protocol."""

    name: str
    method: str
    path: str
    operation: Operation | None = None
    """None: it answers 406."""
    is_heavy: bool = False
    """It reads or writes rows."""
    takes_arrow: bool = False


_NAMESPACE, _TABLE, _TRANSACTION = "/v1/namespace/{id}", "/v1/table/{id}", "/v1/transaction/{id}"

OPERATIONS: tuple[Entry, ...] = (
    Entry("CreateNamespace", "POST", f"{_NAMESPACE}/create", namespaces.create_namespace),
    Entry("DescribeNamespace", "POST", f"{_NAMESPACE}/describe", namespaces.describe_namespace),
    Entry("DropNamespace", "POST", f"{_NAMESPACE}/drop", namespaces.drop_namespace),
    Entry("NamespaceExists", "POST", f"{_NAMESPACE}/exists", namespaces.namespace_exists),
    Entry("ListNamespaces", "GET", f"{_NAMESPACE}/list", namespaces.list_namespaces),
    Entry("ListTables", "GET", f"{_NAMESPACE}/table/list", namespaces.list_tables),
    Entry("ListAllTables", "GET", "/v1/table", namespaces.list_all_tables),
    Entry("BatchCommitTables", "POST", "/v1/table/batch-commit", batch.batch_commit),
    Entry(
        "BatchCreateTableVersions",
        "POST",
        "/v1/table/version/batch-create",
        batch.batch_create_versions,
    ),
    Entry("DeclareTable", "POST", f"{_TABLE}/declare", tables.declare_table),
    Entry("DescribeTable", "POST", f"{_TABLE}/describe", tables.describe_table),
    Entry("TableExists", "POST", f"{_TABLE}/exists", tables.table_exists),
    Entry("DropTable", "POST", f"{_TABLE}/drop", tables.drop_table),
    Entry("DeregisterTable", "POST", f"{_TABLE}/deregister", tables.deregister_table),
    Entry("RegisterTable", "POST", f"{_TABLE}/register", tables.register_table),
    Entry("RenameTable", "POST", f"{_TABLE}/rename", tables.rename_table),
    Entry("CreateTableVersion", "POST", f"{_TABLE}/version/create", versions.create_version),
    Entry("DescribeTableVersion", "POST", f"{_TABLE}/version/describe", versions.describe_version),
    Entry("ListTableVersions", "POST", f"{_TABLE}/version/list", versions.list_versions),
    Entry("BatchDeleteTableVersions", "POST", f"{_TABLE}/version/delete"),
    Entry("CreateTable", "POST", f"{_TABLE}/create", rows.create_table, True, True),
    Entry("InsertIntoTable", "POST", f"{_TABLE}/insert", rows.insert, True, True),
    Entry("MergeInsertIntoTable", "POST", f"{_TABLE}/merge_insert", rows.merge_insert, True, True),
    Entry("UpdateTable", "POST", f"{_TABLE}/update", rows.update, True),
    Entry("DeleteFromTable", "POST", f"{_TABLE}/delete", rows.delete, True),
    Entry("CountTableRows", "POST", f"{_TABLE}/count_rows", rows.count_rows, True),
    Entry("QueryTable", "POST", f"{_TABLE}/query", query.query, True),
    Entry("ExplainTableQueryPlan", "POST", f"{_TABLE}/explain_plan", query.explain_plan, True),
    Entry("AnalyzeTableQueryPlan", "POST", f"{_TABLE}/analyze_plan", query.analyze_plan, True),
    Entry("GetTableStats", "POST", f"{_TABLE}/stats", indices.table_stats, True),
    Entry("RestoreTable", "POST", f"{_TABLE}/restore", schema.restore, True),
    Entry("AlterTableAddColumns", "POST", f"{_TABLE}/add_columns", schema.add_columns, True),
    Entry("AlterTableAlterColumns", "POST", f"{_TABLE}/alter_columns", schema.alter_columns, True),
    Entry("AlterTableDropColumns", "POST", f"{_TABLE}/drop_columns", schema.drop_columns, True),
    Entry("AlterTableBackfillColumns", "POST", f"{_TABLE}/backfill_column"),
    Entry(
        "UpdateFieldMetadata",
        "POST",
        f"{_TABLE}/update_field_metadata",
        schema.update_field_metadata,
        True,
    ),
    Entry(
        "UpdateTableSchemaMetadata",
        "POST",
        f"{_TABLE}/schema_metadata/update",
        schema.update_schema_metadata,
        True,
    ),
    Entry("CreateTableIndex", "POST", f"{_TABLE}/create_index", indices.create_index, True),
    Entry(
        "CreateTableScalarIndex",
        "POST",
        f"{_TABLE}/create_scalar_index",
        indices.create_index,
        True,
    ),
    Entry("ListTableIndices", "POST", f"{_TABLE}/index/list", indices.list_indices, True),
    Entry(
        "DescribeTableIndexStats",
        "POST",
        f"{_TABLE}/index/{{index_name}}/stats",
        indices.index_stats,
        True,
    ),
    Entry(
        "DropTableIndex", "POST", f"{_TABLE}/index/{{index_name}}/drop", indices.drop_index, True
    ),
    Entry("ListTableTags", "POST", f"{_TABLE}/tags/list", tags.list_tags),
    Entry("GetTableTagVersion", "POST", f"{_TABLE}/tags/version", tags.tag_version),
    Entry("CreateTableTag", "POST", f"{_TABLE}/tags/create", tags.create_tag),
    Entry("UpdateTableTag", "POST", f"{_TABLE}/tags/update", tags.update_tag),
    Entry("DeleteTableTag", "POST", f"{_TABLE}/tags/delete", tags.delete_tag),
    Entry("CreateTableBranch", "POST", f"{_TABLE}/branches/create"),
    Entry("ListTableBranches", "POST", f"{_TABLE}/branches/list", tags.list_branches),
    Entry("DeleteTableBranch", "POST", f"{_TABLE}/branches/delete"),
    Entry(
        "DescribeTransaction", "POST", f"{_TRANSACTION}/describe", transactions.describe_transaction
    ),
    Entry("AlterTransaction", "POST", f"{_TRANSACTION}/alter", transactions.alter_transaction),
    Entry("CreateMaterializedView", "POST", "/v1/materialized_view/{id}/create"),
    Entry("RefreshMaterializedView", "POST", "/v1/materialized_view/{id}/refresh"),
)
_OURS = ("/v1/namespace", "/v1/table", "/v1/transaction", "/v1/materialized_view")


def routes(log: CommitLog, settings: Settings | None = None) -> list[Route]:
    """Return the routes of the Lance Namespace over a log."""
    service = Service(log, settings)
    base = service.settings.base_path.rstrip("/")
    threads = ThreadPoolExecutor(COMMIT_THREADS, "namespace")
    row_threads = ThreadPoolExecutor(ROW_THREADS, "namespace-rows")
    found = []
    for entry in OPERATIONS:
        pool = row_threads if entry.is_heavy else threads
        endpoint = partial(_answer, entry, service, pool)
        found.append(Route(base + entry.path, endpoint, methods=[entry.method], name=entry.name))
    unknown = partial(_unknown, tuple(found))
    for path in _OURS:
        for rest in ("", "/{rest:path}"):
            found.append(Route(f"{base}{path}{rest}", unknown, methods=_METHODS))
    return found


_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


async def _unknown(known: tuple[Route, ...], request: Request) -> Response:
    """Answer a path or a method that no operation has."""
    allowed = sorted(
        method
        for route in known
        if route.matches(request.scope)[0] is Match.PARTIAL
        for method in route.methods or ()
    )
    where = f"{request.method} {request.url.path}"
    if allowed:
        error = HttpError(
            405,
            f"{where}: use {', '.join(allowed)}",
            ErrorCode.INVALID_INPUT,
            Allow=", ".join(allowed),
        )
    else:
        error = HttpError(404, f"{where} is no operation", ErrorCode.UNSUPPORTED)
    return error_response(error, request.url.path)


async def _answer(
    entry: Entry, service: Service, pool: ThreadPoolExecutor, request: Request
) -> Response:
    instance = request.url.path
    stream: IO[bytes] | None = None
    try:
        if entry.operation is None:
            raise UnsupportedOperationError(f"{entry.name} is not supported yet")
        call = Call(
            operation=entry.name,
            path=instance,
            object_id=request.path_params.get("id"),
            index_name=request.path_params.get("index_name", ""),
            query=tuple(request.query_params.multi_items()),
            headers={name.lower(): value for name, value in request.headers.items()},
        )
        if entry.takes_arrow:
            call.need_arrow()
            stream = call.stream = await _spooled(request, service.settings.arrow_bytes_max)
        else:
            call.body = await _whole(request, service.settings.json_bytes_max)
        loop = asyncio.get_running_loop()
        work = partial(_run, entry.operation, service, call)
        result = await loop.run_in_executor(pool, work)
    except ClientDisconnect:
        return Response(status_code=400)
    except Exception as error:
        return error_response(error, instance)
    finally:
        if stream is not None:
            stream.close()
    response = result if isinstance(result, Response) else JSONResponse(result)
    if call.position is not None:
        response.headers[POSITION] = str(call.position)
    return response


def _run(operation: Operation, service: Service, call: Call) -> Any:
    try:
        return operation(service, call)
    except Exception as error:
        if call.committed:
            # What came after the commit cannot undo it, and no answer may say that it failed.
            raise OutcomeUnknown(
                f"transaction {call.committed} is committed, and cannot be described: {error};"
                " describe it again",
                call.committed,
            ) from error
        raise _as_callers_know_it(call, error) from error


def _as_callers_know_it(call: Call, error: Exception) -> Exception:
    if isinstance(error, InvalidTransaction):
        return rows.schema_error(error) if call.stream is not None else error
    if isinstance(error, pa.ArrowException):
        return InvalidInputError(f"the rows cannot be read: {error}")
    return error


async def _pieces(request: Request, bytes_max: int) -> Any:
    size = 0
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise HttpError(413, f"the body has {declared} bytes, at most {bytes_max} are taken")
    async for piece in request.stream():
        size += len(piece)
        if size > bytes_max:
            raise HttpError(413, f"the body has over {bytes_max} bytes")
        yield piece


async def _whole(request: Request, bytes_max: int) -> bytes:
    return b"".join([piece async for piece in _pieces(request, bytes_max)])


async def _spooled(request: Request, bytes_max: int) -> IO[bytes]:
    # Who asked for it closes it: the operation reads it on another thread.
    spool = cast(IO[bytes], tempfile.SpooledTemporaryFile(SPOOL_BYTES))  # noqa: SIM115
    try:
        async for piece in _pieces(request, bytes_max):
            spool.write(piece)
        spool.seek(0)
    except BaseException:
        spool.close()
        raise
    return spool


def unsupported() -> Iterator[str]:
    """Yield the operations that answer 406."""
    return (entry.name for entry in OPERATIONS if entry.operation is None)
