"""Reading rows by the protocol's query, as pylance reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.dataset import ColumnOrdering
from lance_namespace import (
    AnalyzeTableQueryPlanRequest,
    ExplainTableQueryPlanRequest,
    InvalidInputError,
    QueryTableRequest,
)
from starlette.responses import Response

from consumers.servers.namespace.answer_files import preview, rows_answer
from consumers.servers.namespace.branch_rows import opened_for, read_from, whole_condition
from consumers.servers.namespace.call import ARROW_FILE, Call, one_of
from consumers.servers.namespace.full_text import full_text, put_right
from consumers.servers.namespace.service import Service

LIMIT_MAX = 2**31 - 1
"""A request for more rows gets all of them."""
ARROW, PREVIEW = "arrow", "preview"
QUERY_INDEX = "query_index"
"""The column that tells which of several vectors a row was found for."""
READ_VERSION = "x-lancedb-version"
"""In an answer, the version that was read."""
_TAKES = {
    *("branch", "bypass_vector_index", "columns", "distance_type", "ef", "fast_search", "filter"),
    *("full_text_query", "k", "lower_bound", "maximum_nprobes", "minimum_nprobes", "nprobes"),
    *("offset", "prefilter", "refine_factor", "upper_bound", "vector", "vector_column", "version"),
    "with_row_id",
}


def query(service: Service, call: Call) -> Response:
    """Return the rows that a query finds: an Arrow file, or for `?as=preview` JSON to look at."""
    form = one_of("as", call.parameter("as"), ARROW, PREVIEW)
    request = call.read(QueryTableRequest, _TAKES, adapt=_as_the_model_has_it)

    def read(dataset: lance.LanceDataset) -> Response:
        rows = dataset.scanner(**_scan_options(dataset, request, call)).to_reader()
        if request.offset and _is_batch(dataset, request):
            rows = _without_first(rows, request.offset)
        if form == PREVIEW:
            return preview(rows.read_all(), dataset.version)
        found = rows_answer(rows)
        found.headers["content-type"] = ARROW_FILE
        found.headers[READ_VERSION] = str(dataset.version)
        return found

    return read_from(service, call, request.branch, request.version, read)


def explain_plan(service: Service, call: Call) -> str:
    """Say how a query would be carried out."""
    request = call.read(ExplainTableQueryPlanRequest, {"branch", "query", "verbose"}, adapt=_nested)
    call.refuse_others(request.query, _TAKES, "query.")
    asked = request.query
    dataset = opened_for(service, call, request.branch or asked.branch, asked.version)
    scanner = dataset.scanner(**_scan_options(dataset, asked, call))
    return scanner.explain_plan(bool(request.verbose))


def analyze_plan(service: Service, call: Call) -> str:
    """Carry a query out and say what that cost."""
    request = call.read(AnalyzeTableQueryPlanRequest, _TAKES, adapt=_as_the_model_has_it)
    dataset = opened_for(service, call, request.branch, request.version)
    return dataset.scanner(**_scan_options(dataset, request, call)).analyze_plan()


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
    if "full_text_query" in fields:
        fields["full_text_query"] = put_right(fields["full_text_query"])


def _scan_options(dataset: lance.LanceDataset, request: Any, call: Call) -> dict[str, Any]:
    options: dict[str, Any] = {
        "columns": _columns(request),
        "filter": whole_condition("filter", request.filter),
        "offset": request.offset,
        "prefilter": request.prefilter,
        "with_row_id": request.with_row_id,
        "fast_search": request.fast_search,
    }
    if request.full_text_query is not None:
        options["full_text_query"] = full_text(request.full_text_query, _text_columns(dataset))
    options["order_by"] = _order(call)
    vector = request.vector
    if vector.single_vector or vector.multi_vector:
        asked = vector.single_vector or vector.multi_vector
        options["nearest"] = _nearest(dataset, request, asked)
        if request.offset and _is_batch(dataset, request):
            del options["offset"]
        elif request.offset:
            options["limit"] = min(request.k, LIMIT_MAX)
    else:
        options["limit"] = request.k if request.k <= LIMIT_MAX else None
    return {name: value for name, value in options.items() if value is not None}


def _order(call: Call) -> list[ColumnOrdering] | None:
    """Return the order of the rows, a field that LanceDB's client has and the models don't."""
    asked = call.fields.get("query")
    given = (asked if isinstance(asked, dict) else call.fields).get("order_by")
    if not given:
        return None
    if not isinstance(given, list) or not all(
        isinstance(one, dict) and isinstance(one.get("column_name"), str) for one in given
    ):
        raise InvalidInputError("order_by must be a list of {column_name, ascending, nulls_first}")
    return [
        ColumnOrdering(
            one["column_name"],
            ascending=bool(one.get("ascending", True)),
            nulls_first=bool(one.get("nulls_first", False)),
        )
        for one in given
    ]


def _text_columns(dataset: lance.LanceDataset) -> list[str]:
    found = (i.field_names for i in dataset.describe_indices() if i.index_type == "Inverted")
    return sorted({str(name) for names in found for name in names})


def _columns(request: Any) -> list[str] | dict[str, str] | None:
    columns = request.columns
    if columns is None:
        return None
    if columns.column_aliases:
        if columns.column_names:
            raise InvalidInputError("columns has both names and aliases; give one of them")
        return dict(columns.column_aliases)
    return list(columns.column_names) if columns.column_names else None


def _nearest(dataset: lance.LanceDataset, request: Any, vector: list[Any]) -> dict[str, Any]:
    column = request.vector_column or _vector_column(dataset, vector)
    try:
        query = np.array(vector, dtype=np.float32)
    except ValueError as error:
        raise InvalidInputError(
            f"vector: all vectors must have the same length: {error}"
        ) from error
    bounds = (request.lower_bound, request.upper_bound)
    wanted = request.k + (request.offset or 0)
    nearest: dict[str, Any] = {
        "column": column,
        "q": query,
        "k": wanted if wanted <= LIMIT_MAX else dataset.count_rows(),
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


def _is_batch(dataset: lance.LanceDataset, request: Any) -> bool:
    """Say whether several vectors are each a search: not where a row has several vectors."""
    many = request.vector.multi_vector
    if not many:
        return False
    column: Any = dataset.lance_schema.field(request.vector_column or _vector_column(dataset, many))
    return column is None or not pa.types.is_fixed_size_list(
        getattr(column.to_arrow().type, "value_type", None) or pa.null()
    )


def _without_first(rows: pa.RecordBatchReader, offset: int) -> pa.RecordBatchReader:
    """Leave the first rows of each search out: an offset of the scan would be one for all."""
    if QUERY_INDEX not in rows.schema.names:
        return rows
    left: dict[int, int] = {}

    def kept() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            is_wanted = []
            for search in batch.column(QUERY_INDEX).to_pylist():
                left[search] = left.get(search, offset) - 1
                is_wanted.append(left[search] < 0)
            yield batch.filter(pa.array(is_wanted, pa.bool_()))

    return pa.RecordBatchReader.from_batches(rows.schema, kept())


def _vector_column(dataset: lance.LanceDataset, vector: list[Any]) -> str:
    """Return the only column with vectors, or the only one with vectors as long as this one."""
    found = dict(_vectors(dataset.schema))
    if not found:
        raise InvalidInputError("the table has no vector column")
    size = len(vector[0] if isinstance(vector[0], list) else vector)
    fitting = [name for name, length in found.items() if length == size]
    if len(found) > 1 and len(fitting) != 1:
        raise InvalidInputError(f"vector_column is missing; the table's vectors are {list(found)}")
    return next(iter(fitting or found))


def _vectors(fields: Iterable[pa.Field], above: str = "") -> Iterator[tuple[str, int]]:
    for one in fields:
        name = f"{above}`{one.name}`" if "." in one.name else above + one.name
        if pa.types.is_struct(one.type):
            yield from _vectors(one.type, f"{name}.")
        elif (length := vector_length(one.type)) is not None:
            yield name, length


def vector_length(kind: pa.DataType) -> int | None:
    """Return how long the vectors of a column are, one or several a row; None if it has none."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return int(kind.shape[0]) if len(kind.shape) == 1 else None
    if pa.types.is_list(kind):
        kind = kind.value_type
    return int(kind.list_size) if pa.types.is_fixed_size_list(kind) else None
