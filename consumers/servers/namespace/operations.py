"""The operations of the protocol: name, method, path, what they need, and what answers them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from consumers.servers.namespace import (
    batch,
    branches,
    deletion,
    indices,
    log_transactions,
    namespaces,
    properties,
    query,
    rows,
    schema,
    tables,
    tags,
    transactions,
    undoing,
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
    method: str
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

    @property
    def only_reads(self) -> bool:
        """Whether it changes nothing, so that it can be asked of the past."""
        return self.access is Access.READ or self.name.startswith(("Describe", "List"))


_NAMESPACE, _TABLE, _TRANSACTION = "/v1/namespace/{id}", "/v1/table/{id}", "/v1/transaction/{id}"

OPERATIONS: tuple[Entry, ...] = (
    Entry(
        "CreateNamespace",
        "POST",
        f"{_NAMESPACE}/create",
        namespaces.create_namespace,
        access=Access.ADMIN,
    ),
    Entry("DescribeNamespace", "POST", f"{_NAMESPACE}/describe", namespaces.describe_namespace),
    Entry(
        "DropNamespace",
        "POST",
        f"{_NAMESPACE}/drop",
        namespaces.drop_namespace,
        access=Access.ADMIN,
    ),
    Entry("NamespaceExists", "POST", f"{_NAMESPACE}/exists", namespaces.namespace_exists),
    Entry("ListNamespaces", "GET", f"{_NAMESPACE}/list", namespaces.list_namespaces, access=None),
    Entry("ListTables", "GET", f"{_NAMESPACE}/table/list", namespaces.list_tables, access=None),
    Entry("ListAllTables", "GET", "/v1/table", namespaces.list_all_tables, access=None),
    Entry("BatchCommitTables", "POST", "/v1/table/batch-commit", batch.batch_commit, access=None),
    Entry(
        "BatchCreateTableVersions",
        "POST",
        "/v1/table/version/batch-create",
        batch.batch_create_versions,
        access=None,
    ),
    Entry("DeclareTable", "POST", f"{_TABLE}/declare", tables.declare_table, access=Access.WRITE),
    Entry("DescribeTable", "POST", f"{_TABLE}/describe", tables.describe_table),
    Entry("TableExists", "POST", f"{_TABLE}/exists", tables.table_exists),
    Entry("DropTable", "POST", f"{_TABLE}/drop", tables.drop_table, access=Access.ADMIN),
    Entry(
        "DeregisterTable",
        "POST",
        f"{_TABLE}/deregister",
        tables.deregister_table,
        access=Access.ADMIN,
    ),
    Entry(
        "RegisterTable",
        "POST",
        f"{_TABLE}/register",
        tables.register_table,
        True,
        access=Access.ADMIN,
    ),
    Entry("RenameTable", "POST", f"{_TABLE}/rename", tables.rename_table, access=Access.ADMIN),
    Entry(
        "CreateTableVersion",
        "POST",
        f"{_TABLE}/version/create",
        versions.create_version,
        access=Access.WRITE,
    ),
    Entry("DescribeTableVersion", "POST", f"{_TABLE}/version/describe", versions.describe_version),
    Entry("ListTableVersions", "POST", f"{_TABLE}/version/list", version_list.list_versions),
    Entry(
        "BatchDeleteTableVersions",
        "POST",
        f"{_TABLE}/version/delete",
        deletion.delete_versions,
        access=Access.ADMIN,
    ),
    Entry(
        "CreateTable",
        "POST",
        f"{_TABLE}/create",
        rows.create_table,
        True,
        True,
        access=Access.WRITE,
    ),
    Entry(
        "InsertIntoTable", "POST", f"{_TABLE}/insert", rows.insert, True, True, access=Access.WRITE
    ),
    Entry(
        "MergeInsertIntoTable",
        "POST",
        f"{_TABLE}/merge_insert",
        rows.merge_insert,
        True,
        True,
        access=Access.WRITE,
    ),
    Entry("UpdateTable", "POST", f"{_TABLE}/update", rows.update, True, access=Access.WRITE),
    Entry("DeleteFromTable", "POST", f"{_TABLE}/delete", rows.delete, True, access=Access.WRITE),
    Entry(
        "CountTableRows",
        "POST",
        f"{_TABLE}/count_rows",
        rows.count_rows,
        is_heavy=True,
        lightly=rows.count_by_manifest,
        heavy_word=b"predicate",
    ),
    Entry("QueryTable", "POST", f"{_TABLE}/query", query.query, True),
    Entry("ExplainTableQueryPlan", "POST", f"{_TABLE}/explain_plan", query.explain_plan, True),
    Entry("AnalyzeTableQueryPlan", "POST", f"{_TABLE}/analyze_plan", query.analyze_plan, True),
    Entry("GetTableStats", "POST", f"{_TABLE}/stats", indices.table_stats, True),
    Entry("RestoreTable", "POST", f"{_TABLE}/restore", schema.restore, True, access=Access.WRITE),
    Entry(
        "AlterTableAddColumns",
        "POST",
        f"{_TABLE}/add_columns",
        schema.add_columns,
        True,
        access=Access.WRITE,
    ),
    Entry(
        "AlterTableAlterColumns",
        "POST",
        f"{_TABLE}/alter_columns",
        schema.alter_columns,
        True,
        access=Access.WRITE,
    ),
    Entry(
        "AlterTableDropColumns",
        "POST",
        f"{_TABLE}/drop_columns",
        schema.drop_columns,
        True,
        access=Access.WRITE,
    ),
    Entry("AlterTableBackfillColumns", "POST", f"{_TABLE}/backfill_column", access=Access.WRITE),
    Entry(
        "UpdateFieldMetadata",
        "POST",
        f"{_TABLE}/update_field_metadata",
        schema.update_field_metadata,
        True,
        access=Access.WRITE,
    ),
    Entry(
        "UpdateTableSchemaMetadata",
        "POST",
        f"{_TABLE}/schema_metadata/update",
        schema.update_schema_metadata,
        True,
        access=Access.WRITE,
    ),
    Entry(
        "CreateTableIndex",
        "POST",
        f"{_TABLE}/create_index",
        indices.create_index,
        True,
        access=Access.WRITE,
    ),
    Entry(
        "CreateTableScalarIndex",
        "POST",
        f"{_TABLE}/create_scalar_index",
        indices.create_index,
        True,
        access=Access.WRITE,
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
        "DropTableIndex",
        "POST",
        f"{_TABLE}/index/{{index_name}}/drop",
        indices.drop_index,
        True,
        access=Access.WRITE,
    ),
    Entry("ListTableTags", "POST", f"{_TABLE}/tags/list", tags.list_tags, True),
    Entry("GetTableTagVersion", "POST", f"{_TABLE}/tags/version", tags.tag_version, True),
    Entry(
        "CreateTableTag",
        "POST",
        f"{_TABLE}/tags/create",
        tags.create_tag,
        True,
        access=Access.WRITE,
    ),
    Entry(
        "UpdateTableTag",
        "POST",
        f"{_TABLE}/tags/update",
        tags.update_tag,
        True,
        access=Access.WRITE,
    ),
    Entry(
        "DeleteTableTag",
        "POST",
        f"{_TABLE}/tags/delete",
        tags.delete_tag,
        True,
        access=Access.WRITE,
    ),
    Entry(
        "CreateTableBranch",
        "POST",
        f"{_TABLE}/branches/create",
        branches.create_branch,
        True,
        access=Access.WRITE,
    ),
    Entry("ListTableBranches", "POST", f"{_TABLE}/branches/list", branches.list_branches, True),
    Entry(
        "DeleteTableBranch",
        "POST",
        f"{_TABLE}/branches/delete",
        branches.delete_branch,
        True,
        access=Access.WRITE,
    ),
    Entry(
        "DescribeTransaction",
        "POST",
        f"{_TRANSACTION}/describe",
        transactions.describe_transaction,
        access=None,
    ),
    Entry(
        "AlterTransaction",
        "POST",
        f"{_TRANSACTION}/alter",
        transactions.alter_transaction,
        access=None,
    ),
    Entry(
        "CreateMaterializedView", "POST", "/v1/materialized_view/{id}/create", access=Access.WRITE
    ),
    Entry(
        "RefreshMaterializedView", "POST", "/v1/materialized_view/{id}/refresh", access=Access.WRITE
    ),
)


LOG_OPERATIONS: tuple[Entry, ...] = (
    Entry(
        "SubmitLogTransaction",
        "POST",
        "/v1/log/transactions",
        log_transactions.submit_transaction,
        True,
        access=None,
    ),
    Entry(
        "PrewarmTableIndex",
        "POST",
        f"{_TABLE}/index/{{index_name}}/prewarm",
        indices.prewarm_index,
        True,
    ),
    Entry(
        "ShowConnection",
        "GET",
        f"{_TABLE}/version/landed",
        versions.show_connection,
        access=Access.WRITE,
    ),
    Entry("CloneTable", "POST", f"{_TABLE}/clone", access=Access.WRITE),
    Entry("PrewarmTableData", "POST", f"{_TABLE}/page_cache/prewarm"),
    Entry(
        "SetProperties", "POST", "/v1/log/properties", properties.set_properties, True, access=None
    ),
    Entry("UndropTable", "POST", "/v1/log/undrop", undoing.undrop, True, access=None),
    Entry("RestoreTables", "POST", "/v1/log/restore", undoing.restore, True, access=None),
    Entry(
        "DescribeLogTransaction",
        "GET",
        "/v1/log/transactions/{id}",
        log_transactions.describe_log_transaction,
        access=None,
    ),
)
"""The log's own and LanceDB's, in the protocol's manner: it has no models for them."""


def unsupported() -> Iterator[str]:
    """Yield the operations that answer 406."""
    return (entry.name for entry in OPERATIONS if entry.operation is None)
