"""Reading rows by the protocol's query, as pylance reads them."""

from __future__ import annotations

import io
from typing import Any

import lance
import pyarrow as pa
from lance_namespace import (
    AnalyzeTableQueryPlanRequest,
    ExplainTableQueryPlanRequest,
    InvalidInputError,
    QueryTableRequest,
    UnsupportedOperationError,
)
from starlette.responses import Response

from consumers.namespace.call import ARROW_FILE, Call
from consumers.namespace.native import refuse_branch
from consumers.namespace.service import Service

_TAKES = {
    *("branch", "bypass_vector_index", "columns", "distance_type", "ef", "fast_search", "filter"),
    *("full_text_query", "k", "lower_bound", "maximum_nprobes", "minimum_nprobes", "nprobes"),
    *("offset", "prefilter", "refine_factor", "upper_bound", "vector", "vector_column", "version"),
    "with_row_id",
}


def query(service: Service, call: Call) -> Response:
    """Return the rows that a query finds, as an Arrow file."""
    request = call.read(QueryTableRequest, _TAKES, adapt=_as_the_model_has_it)
    info = service.at(call, call.table)
    refuse_branch(call, info, request.branch)
    dataset = service.open(info, request.version)
    found = dataset.scanner(**_scan_options(dataset, request)).to_table()
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, found.schema) as writer:
        writer.write_table(found)
    return Response(sink.getvalue(), media_type=ARROW_FILE)


def explain_plan(service: Service, call: Call) -> str:
    """Say how a query would be carried out."""
    request = call.read(ExplainTableQueryPlanRequest, {"branch", "query", "verbose"}, adapt=_nested)
    call.refuse_others(request.query, _TAKES, "query.")
    info = service.at(call, call.table)
    refuse_branch(call, info, request.branch or request.query.branch)
    dataset = service.open(info, request.query.version)
    scanner = dataset.scanner(**_scan_options(dataset, request.query))
    return scanner.explain_plan(bool(request.verbose))


def analyze_plan(service: Service, call: Call) -> str:
    """Carry a query out and say what that cost."""
    request = call.read(AnalyzeTableQueryPlanRequest, _TAKES, adapt=_as_the_model_has_it)
    info = service.at(call, call.table)
    refuse_branch(call, info, request.branch)
    dataset = service.open(info, request.version)
    return dataset.scanner(**_scan_options(dataset, request)).analyze_plan()


def _nested(fields: dict[str, Any]) -> None:
    if isinstance(fields.get("query"), dict):
        _as_the_model_has_it(fields["query"])


def _as_the_model_has_it(fields: dict[str, Any]) -> None:
    vector = fields.get("vector")
    if not vector:
        fields["vector"] = {}
    elif isinstance(vector, list):
        is_many = isinstance(vector[0], list)
        fields["vector"] = {"multi_vector" if is_many else "single_vector": vector}
    columns = fields.get("columns")
    if isinstance(columns, list):
        fields["columns"] = {"column_names": columns}
    text = fields.get("full_text_query")
    if isinstance(text, dict) and "query" in text:
        fields["full_text_query"] = {"string_query": text}


def _scan_options(dataset: lance.LanceDataset, request: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "columns": _columns(request),
        "filter": request.filter or None,
        "offset": request.offset,
        "prefilter": request.prefilter,
        "with_row_id": request.with_row_id,
        "fast_search": request.fast_search,
    }
    text = request.full_text_query
    if text is not None:
        if text.structured_query is not None or text.string_query is None:
            raise UnsupportedOperationError(
                "QueryTable: full_text_query.structured_query is not supported yet"
            )
        options["full_text_query"] = {"query": text.string_query.query}
        if text.string_query.columns:
            options["full_text_query"]["columns"] = text.string_query.columns
    vector = request.vector
    if vector.multi_vector:
        raise UnsupportedOperationError("QueryTable: vector.multi_vector is not supported yet")
    if vector.single_vector:
        options["nearest"] = _nearest(dataset, request, vector.single_vector)
    else:
        options["limit"] = request.k or None
    return {name: value for name, value in options.items() if value is not None}


def _columns(request: Any) -> list[str] | dict[str, str] | None:
    columns = request.columns
    if columns is None:
        return None
    if columns.column_aliases:
        if columns.column_names:
            raise InvalidInputError("columns has names and aliases; give one of them")
        return dict(columns.column_aliases)
    return list(columns.column_names) if columns.column_names else None


def _nearest(dataset: lance.LanceDataset, request: Any, vector: list[float]) -> dict[str, Any]:
    column = request.vector_column or _only_vector_column(dataset)
    bounds = (request.lower_bound, request.upper_bound)
    nearest: dict[str, Any] = {
        "column": column,
        "q": pa.array([float(value) for value in vector], pa.float32()),
        "k": request.k,
        "metric": request.distance_type,
        "refine_factor": request.refine_factor,
        "ef": request.ef,
        "use_index": not request.bypass_vector_index,
        "minimum_nprobes": request.minimum_nprobes,
        "maximum_nprobes": request.maximum_nprobes,
        "distance_range": bounds if any(b is not None for b in bounds) else None,
    }
    if request.minimum_nprobes is None and request.maximum_nprobes is None:
        nearest["nprobes"] = request.nprobes
    return {name: value for name, value in nearest.items() if value is not None}


def _only_vector_column(dataset: lance.LanceDataset) -> str:
    found = [f.name for f in dataset.schema if pa.types.is_fixed_size_list(f.type)]
    if len(found) != 1:
        raise InvalidInputError(f"vector_column is missing; the table's vectors are {found}")
    return str(found[0])
