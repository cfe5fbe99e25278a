"""Secondary indices, built by pylance and committed through the log; and what a table measures."""

from __future__ import annotations

import json
import re
from typing import Any

import lance
from lance.indices import IndexConfig
from lance_namespace import (
    CreateTableIndexRequest,
    DescribeTableIndexStatsRequest,
    DropTableIndexRequest,
    GetTableStatsRequest,
    InvalidInputError,
    ListTableIndicesRequest,
    TableColumnNotFoundError,
    TableIndexAlreadyExistsError,
    TableIndexNotFoundError,
)

from commitlog.errors import TransactionRejected
from commitlog.model.records import Code
from consumers.servers.namespace.branch_rows import opened_for
from consumers.servers.namespace.call import Call, page
from consumers.servers.namespace.native import commit_natively, of_pylance
from consumers.servers.namespace.query import vector_length
from consumers.servers.namespace.service import Service

SCALAR = {"BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "ZONEMAP", "BLOOMFILTER", "FM"}
TEXT = {"FTS", "INVERTED"}
VECTOR = {
    *("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "IVF_HNSW_SQ")
}
_VECTOR_FIELDS = {
    *("num_partitions", "num_sub_vectors", "num_bits", "sample_rate", "max_iterations"),
    *("target_partition_size", "m", "ef_construction"),
}
_TEXT_FIELDS = {
    *("with_position", "base_tokenizer", "language", "max_token_length", "lower_case", "stem"),
    *("remove_stop_words", "ascii_folding"),
}
_REMOTE_TEXT_FIELDS = {
    *("block_size", "min_ngram_length", "max_ngram_length", "prefix_only", "lance_tokenizer"),
    *("preserve_original", "split_identifiers", "split_on_numerics"),
    *("index_operators", "custom_stop_words"),
}
"""What LanceDB's client asks for besides; the protocol's model has no such fields."""
_FIELDS = re.compile(r"`([^`]*)`|([^.`]+)")
SMALL_FRAGMENT_ROWS = 1024 * 1024


def create_index(service: Service, call: Call) -> dict[str, Any]:
    """Build an index on a column."""
    request = call.read(
        CreateTableIndexRequest,
        {"branch", "column", "index_type", "name", "distance_type", *_VECTOR_FIELDS, *_TEXT_FIELDS},
    )
    column = request.column.split(".")[0].strip("`")
    kind = request.index_type.upper()
    if kind not in SCALAR | TEXT | VECTOR:
        raise InvalidInputError(
            f"index_type {request.index_type!r} is not one of "
            f"{', '.join(sorted(SCALAR | TEXT | VECTOR))}"
        )
    fields = {
        name: getattr(request, name)
        for name in (_VECTOR_FIELDS if kind in VECTOR else _TEXT_FIELDS)
        if getattr(request, name) is not None
    }
    if kind in TEXT and call.is_remote:
        fields |= {
            name: value
            for name, value in call.fields.items()
            if name in _REMOTE_TEXT_FIELDS and value is not None
        }

    # LanceDB's client means to replace unless it says otherwise; the protocol has no such field.
    replaces = call.is_remote and call.fields.get("replace") is not False

    def work(dataset: lance.LanceDataset) -> Any:
        if column not in dataset.schema.names:
            raise TableColumnNotFoundError(f"the table has no column {request.column!r}")
        name = request.name or (default_name(request.column) if call.is_remote else None)
        if not replaces and name in _names(dataset):
            raise TableIndexAlreadyExistsError(
                f"the table already has an index {name!r}; drop it first"
            )
        try:
            return build(dataset, name)
        except Exception as error:  # of several types, by the kind of index
            if "already exists" in str(error):
                raise TableIndexAlreadyExistsError(str(of_pylance(error))) from error
            raise

    def build(dataset: lance.LanceDataset, name: str | None) -> Any:
        if kind in VECTOR:
            metric = request.distance_type or "l2"
            if "PQ" in kind and "num_sub_vectors" not in fields:
                fields["num_sub_vectors"] = _sub_vectors(dataset, request.column, request.num_bits)
            return dataset.create_index(
                request.column, kind, name, metric, replace=replaces, **fields
            )
        chosen: Any = "INVERTED" if kind in TEXT else kind
        if kind == "FM":
            chosen = IndexConfig("fm", {})
        options = fields if kind in TEXT else {}
        return dataset.create_scalar_index(
            request.column, chosen, name, replace=replaces, **options
        )

    try:
        body = commit_natively(service, call, work, request.branch)
    except TransactionRejected as error:
        if error.outcome.code is not Code.MISSING_FILE or kind not in VECTOR:
            raise
        raise _untrained(service, call, kind, request) from error
    return {name: body[name] for name in ("transaction_id",) if name in body}


def default_name(column: str) -> str:
    """Return how LanceDB names an index: by its column, quoting a field that has a dot."""
    return ".".join(f"`{one}`" if "." in one else one for one in _fields(column)) + "_idx"


def _fields(column: str) -> list[str]:
    return [quoted or plain for quoted, plain in _FIELDS.findall(column)]


def _untrained(service: Service, call: Call, kind: str, request: Any) -> Exception:
    """Say why pylance wrote no file of an index: nothing to learn it from."""
    dataset = opened_for(service, call, None, None)
    column = ".".join(f"`{one}`" for one in _fields(request.column))
    rows = dataset.count_rows(f"{column} IS NOT NULL")
    needs = f"at least {2 ** (request.num_bits or 8)}" if "PQ" in kind else "some"
    return InvalidInputError(
        f"{kind} is learned from the rows, and needs {needs}: the table has {rows} rows with "
        f"vectors in {request.column!r}; add rows first"
        + (", or choose another type of index" if rows else "")
    )


def _sub_vectors(dataset: lance.LanceDataset, column: str, bits: int | None) -> int:
    """Return into how many parts a vector is quantized if its client doesn't say, as LanceDB does.

    Codes of four bits are stored in pairs.
    """
    found: Any = dataset.lance_schema.field_case_insensitive(column)
    size = (vector_length(found.to_arrow().type) if found is not None else None) or 1
    count = next((size // part for part in (16, 8) if size % part == 0), 1)
    return count + 1 if bits == 4 and count % 2 and size % (count + 1) == 0 else count


def prewarm_index(service: Service, call: Call) -> dict[str, Any]:
    """Load an index before it is asked."""
    dataset = opened_for(service, call, None, None)
    _need(dataset, call.index_name)
    dataset.prewarm_index(call.index_name)
    return {}


def list_indices(service: Service, call: Call) -> dict[str, Any]:
    """List a table's indices."""
    request = call.read(ListTableIndicesRequest, {"branch", "version", "page_token", "limit"})
    if not service.info(call.table).version:
        return {"indexes": []}
    dataset = opened_for(service, call, request.branch, request.version)
    by_name = {index.name: index for index in dataset.describe_indices()}
    names, more = page(sorted(by_name), request)
    return {"indexes": [_content(dataset, by_name[name]) for name in names], **more}


def _content(dataset: lance.LanceDataset, index: Any) -> dict[str, Any]:
    rows = dataset.count_rows()
    indexed = index.num_rows_indexed
    body = {
        "index_name": index.name,
        "index_uuid": str(index.segments[0].uuid) if index.segments else "",
        "columns": list(index.field_names),
        "status": "SUCCEEDED",
        "index_type": index.index_type,
        "type_url": index.type_url,
        "num_indexed_rows": indexed,
        "num_unindexed_rows": max(rows - indexed, 0),
        "num_segments": len(index.segments),
        "index_details": json.dumps(index.details),
    }
    if index.total_size_bytes is not None:
        body["size_bytes"] = index.total_size_bytes
    if index.segments:
        body["index_version"] = index.segments[0].index_version
        if index.segments[0].created_at is not None:
            body["created_at"] = index.segments[0].created_at.isoformat(timespec="milliseconds")
    return body


def index_stats(service: Service, call: Call) -> dict[str, Any]:
    """Say how much of a table an index covers."""
    request = call.read(DescribeTableIndexStatsRequest, {"branch", "version", "index_name"})
    dataset = opened_for(service, call, request.branch, request.version)
    index = _need(dataset, call.index_name)
    stats = dataset.stats.index_stats(call.index_name)
    # Of an index without files, as of a table without rows, Lance's statistics know neither.
    parts = stats.get("indices") or [{}]
    metric = parts[0].get("metric_type") or index.details.get("metric_type")
    body: dict[str, Any] = {
        "index_type": index.index_type if parts == [{}] else stats.get("index_type"),
        "num_indexed_rows": stats.get("num_indexed_rows"),
        "num_unindexed_rows": stats.get("num_unindexed_rows"),
        "num_indices": stats.get("num_indices"),
        "distance_type": metric and metric.lower(),
    }
    return {name: value for name, value in body.items() if value is not None}


def drop_index(service: Service, call: Call) -> dict[str, Any]:
    """Take an index away."""
    request = call.read(DropTableIndexRequest, {"branch", "index_name"})

    def drop(dataset: lance.LanceDataset) -> None:
        _need(dataset, call.index_name)
        dataset.drop_index(call.index_name)

    body = commit_natively(service, call, drop, request.branch)
    return {name: body[name] for name in ("transaction_id",) if name in body}


def _names(dataset: lance.LanceDataset) -> set[str]:
    return {index.name for index in dataset.describe_indices()}


def _need(dataset: lance.LanceDataset, name: str) -> Any:
    """Return an index by its name."""
    for index in dataset.describe_indices():
        if index.name == name:
            return index
    raise TableIndexNotFoundError(f"the table has no index {name!r}")


def table_stats(service: Service, call: Call) -> dict[str, Any]:
    """Measure a table at its head."""
    request = call.read(GetTableStatsRequest, {"branch"})
    dataset = opened_for(service, call, request.branch, None)
    fragments = dataset.get_fragments()
    lengths = sorted(fragment.count_rows() for fragment in fragments)
    statistics: Any = dataset.stats
    return {
        "total_bytes": sum(f.bytes_on_disk for f in statistics.data_stats().fields),
        "num_rows": sum(lengths),
        "num_indices": len(_names(dataset)),
        "fragment_stats": {
            "num_fragments": len(lengths),
            "num_small_fragments": sum(n < SMALL_FRAGMENT_ROWS for n in lengths),
            "lengths": _summary(lengths),
        },
    }


def _summary(lengths: list[int]) -> dict[str, int]:
    def at(part: float) -> int:
        # As pylance's own server picks them.
        return lengths[int((len(lengths) - 1) * part)] if lengths else 0

    return {
        "min": at(0),
        "max": lengths[-1] if lengths else 0,
        "mean": sum(lengths) // len(lengths) if lengths else 0,
        **{f"p{percent}": at(percent / 100) for percent in (25, 50, 75, 99)},
    }
