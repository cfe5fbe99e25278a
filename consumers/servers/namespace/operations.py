"""The operations of the protocol: name, method, path, what they need, and what answers them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from consumers.servers.namespace import (
    batch,
    branches,
    deletion,
    indices,
    log_transactions,
    namespaces,
    one_record,
    query,
    rows,
    schema,
    tables,
    tags,
    transactions,
    version_list,
    versions,
)
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.service import Service
from consumers.servers.security.grants import Access

Operation = Callable[[Service, Call], Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation of the protocol."""

    name: str
    path: str
    operation: Operation | None = None
    """None: it answers 406."""
    is_heavy: bool = False
    """It reads or writes rows, or has pylance open a table for another reason."""
    takes_arrow: bool = False
    access: Access | None = Access.READ
    """What it takes on the object that the path names; None: the operation itself checks."""
    lightly: Operation | None = None
    """Answers most requests of a heavy operation without rows; raises NeedsRows for the others."""
    heavy_word: bytes = b""
    """It isn't tried on bodies that have this word in them."""
    method: str = "POST"
    also_by_get: bool = False
    """Lance's client in Rust, and the one in Java over it, asked so at least until 7.0.0."""

    @property
    def only_reads(self) -> bool:
        """Whether it changes nothing, so that it can be asked of the past."""
        return self.access is Access.READ or self.name.startswith(("Describe", "List"))


# By what it takes on the object that its path names; a plain Entry reads.
_writes = partial(Entry, access=Access.WRITE)
_administers = partial(Entry, access=Access.ADMIN)
_checks = partial(Entry, access=None)
_NAMESPACE, _TABLE, _TRANSACTION = "/v1/namespace/{id}", "/v1/table/{id}", "/v1/transaction/{id}"

OPERATIONS: tuple[Entry, ...] = (
    _administers("CreateNamespace", f"{_NAMESPACE}/create", namespaces.create_namespace),
    Entry("DescribeNamespace", f"{_NAMESPACE}/describe", namespaces.describe_namespace),
    _administers("DropNamespace", f"{_NAMESPACE}/drop", namespaces.drop_namespace),
    Entry("NamespaceExists", f"{_NAMESPACE}/exists", namespaces.namespace_exists),
    _checks("ListNamespaces", f"{_NAMESPACE}/list", namespaces.list_namespaces, method="GET"),
    _checks("ListTables", f"{_NAMESPACE}/table/list", namespaces.list_tables, method="GET"),
    _checks("ListAllTables", "/v1/table", namespaces.list_all_tables, method="GET"),
    _checks("BatchCommitTables", "/v1/table/batch-commit", batch.batch_commit),
    _checks(
        "BatchCreateTableVersions", "/v1/table/version/batch-create", batch.batch_create_versions
    ),
    _writes("DeclareTable", f"{_TABLE}/declare", tables.declare_table),
    Entry("DescribeTable", f"{_TABLE}/describe", tables.describe_table),
    Entry("TableExists", f"{_TABLE}/exists", tables.table_exists),
    _administers("DropTable", f"{_TABLE}/drop", tables.drop_table),
    _administers("DeregisterTable", f"{_TABLE}/deregister", tables.deregister_table),
    _administers("RegisterTable", f"{_TABLE}/register", tables.register_table, True),
    _administers("RenameTable", f"{_TABLE}/rename", tables.rename_table),
    _writes("CreateTableVersion", f"{_TABLE}/version/create", versions.create_version),
    Entry("DescribeTableVersion", f"{_TABLE}/version/describe", versions.describe_version),
    Entry("ListTableVersions", f"{_TABLE}/version/list", version_list.list_versions),
    _administers("BatchDeleteTableVersions", f"{_TABLE}/version/delete", deletion.delete_versions),
    _writes("CreateTable", f"{_TABLE}/create", rows.create_table, True, takes_arrow=True),
    _writes("InsertIntoTable", f"{_TABLE}/insert", rows.insert, True, takes_arrow=True),
    _writes(
        "MergeInsertIntoTable", f"{_TABLE}/merge_insert", rows.merge_insert, True, takes_arrow=True
    ),
    _writes("UpdateTable", f"{_TABLE}/update", rows.update, True),
    _writes("DeleteFromTable", f"{_TABLE}/delete", rows.delete, True),
    Entry(
        "CountTableRows",
        f"{_TABLE}/count_rows",
        rows.count_rows,
        is_heavy=True,
        lightly=rows.count_by_manifest,
        heavy_word=b"predicate",
        also_by_get=True,
    ),
    Entry("QueryTable", f"{_TABLE}/query", query.query, True),
    Entry("ExplainTableQueryPlan", f"{_TABLE}/explain_plan", query.explain_plan, True),
    Entry("AnalyzeTableQueryPlan", f"{_TABLE}/analyze_plan", query.analyze_plan, True),
    Entry("GetTableStats", f"{_TABLE}/stats", indices.table_stats, True),
    _writes("RestoreTable", f"{_TABLE}/restore", schema.restore, True),
    _writes("AlterTableAddColumns", f"{_TABLE}/add_columns", schema.add_columns, True),
    _writes("AlterTableAlterColumns", f"{_TABLE}/alter_columns", schema.alter_columns, True),
    _writes("AlterTableDropColumns", f"{_TABLE}/drop_columns", schema.drop_columns, True),
    _writes("AlterTableBackfillColumns", f"{_TABLE}/backfill_column"),
    _writes(
        "UpdateFieldMetadata", f"{_TABLE}/update_field_metadata", schema.update_field_metadata, True
    ),
    _writes(
        "UpdateTableSchemaMetadata",
        f"{_TABLE}/schema_metadata/update",
        schema.update_schema_metadata,
        True,
    ),
    _writes("CreateTableIndex", f"{_TABLE}/create_index", indices.create_index, True),
    _writes("CreateTableScalarIndex", f"{_TABLE}/create_scalar_index", indices.create_index, True),
    Entry("ListTableIndices", f"{_TABLE}/index/list", indices.list_indices, True),
    Entry(
        "DescribeTableIndexStats", f"{_TABLE}/index/{{index_name}}/stats", indices.index_stats, True
    ),
    _writes("DropTableIndex", f"{_TABLE}/index/{{index_name}}/drop", indices.drop_index, True),
    Entry("ListTableTags", f"{_TABLE}/tags/list", tags.list_tags, True, also_by_get=True),
    Entry("GetTableTagVersion", f"{_TABLE}/tags/version", tags.tag_version, True),
    _writes("CreateTableTag", f"{_TABLE}/tags/create", tags.create_tag, True),
    _writes("UpdateTableTag", f"{_TABLE}/tags/update", tags.update_tag, True),
    _writes("DeleteTableTag", f"{_TABLE}/tags/delete", tags.delete_tag, True),
    _writes("CreateTableBranch", f"{_TABLE}/branches/create", branches.create_branch, True),
    Entry("ListTableBranches", f"{_TABLE}/branches/list", branches.list_branches, True),
    _writes("DeleteTableBranch", f"{_TABLE}/branches/delete", branches.delete_branch, True),
    _checks("DescribeTransaction", f"{_TRANSACTION}/describe", transactions.describe_transaction),
    _checks("AlterTransaction", f"{_TRANSACTION}/alter", transactions.alter_transaction),
    _writes("CreateMaterializedView", "/v1/materialized_view/{id}/create"),
    _writes("RefreshMaterializedView", "/v1/materialized_view/{id}/refresh"),
)


LOG_OPERATIONS: tuple[Entry, ...] = (
    _checks(
        "SubmitLogTransaction", "/v1/log/transactions", log_transactions.submit_transaction, True
    ),
    Entry(
        "PrewarmTableIndex", f"{_TABLE}/index/{{index_name}}/prewarm", indices.prewarm_index, True
    ),
    _writes("ShowConnection", f"{_TABLE}/version/landed", versions.show_connection, method="GET"),
    _writes("CloneTable", f"{_TABLE}/clone"),
    Entry("PrewarmTableData", f"{_TABLE}/page_cache/prewarm"),
    _checks("SetProperties", "/v1/log/properties", one_record.set_properties, True),
    _checks("UndropTable", "/v1/log/undrop", one_record.undrop, True),
    _checks("RestoreTables", "/v1/log/restore", one_record.restore, True),
    _checks(
        "DescribeLogTransaction",
        "/v1/log/transactions/{id}",
        log_transactions.describe_log_transaction,
        method="GET",
    ),
)
"""The log's own and LanceDB's, in the protocol's manner: it has no models for them."""


def unsupported() -> Iterator[str]:
    """Yield the operations that answer 406."""
    return (entry.name for entry in OPERATIONS if entry.operation is None)
