"""A request for each operation that isn't plain from its fields; a test sends all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CHECKED = {"action": "set-properties", "updates": {"checked": "yes"}}
_FACTS = {"namespace": ["shop"], "name": "facts"}

LANCE: Mapping[str, Any] = {
    "CreateNamespace": {"properties": {"owner": "ann"}},
    "BatchCommitTables": {
        "operations": [
            {"declare_table": {"id": ["shop", "audit"]}},
            {"declare_table": {"id": ["shop", "stock"]}},
        ]
    },
    "DescribeTable": {"version": 1},
    "CountTableRows": {"predicate": "amount > 2"},
    "QueryTable": {
        "vector": {},
        "k": 10,
        "filter": "amount > 2",
        "columns": {"column_names": ["id", "amount"]},
    },
    "UpdateTable": {"predicate": "id = 2", "updates": [["amount", "amount * 2"]]},
    "DeleteFromTable": {"predicate": "id = 1"},
    "AlterTableAddColumns": {"new_columns": [{"name": "double", "expression": "amount * 2"}]},
    "AlterTableAlterColumns": {"alterations": [{"path": "double", "rename": "twice"}]},
    "AlterTableDropColumns": {"columns": ["twice"]},
    "UpdateFieldMetadata": {"updates": [{"path": "id", "metadata": {"source": "till"}}]},
    "UpdateTableSchemaMetadata": {"source": "tills"},
    "CreateTableScalarIndex": {"column": "id", "index_type": "BTREE"},
    "CreateTableTag": {"tag": "month-end", "version": 1},
    "UpdateTableTag": {"tag": "month-end", "version": 2},
    "GetTableTagVersion": {"tag": "month-end"},
    "DeleteTableTag": {"tag": "month-end"},
    "CreateTableBranch": {"name": "trial"},
    "DeleteTableBranch": {"name": "trial"},
    "RestoreTable": {"version": 2},
    "BatchDeleteTableVersions": {"ranges": [{"start_version": 1, "end_version": 2}]},
    "RenameTable": {"new_table_name": "sales"},
}
"""By operation, in an order in which they can be carried out; the table is `shop$orders`."""

ICEBERG: Mapping[str, Any] = {
    "create_namespace": {"namespace": ["lake"], "properties": {"owner": "ann"}},
    "update_namespace": {"removals": ["owner"], "updates": {"team": "sales"}},
    "create_table": {
        "name": "facts",
        "schema": {
            "type": "struct",
            "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
        },
        "properties": {"format-version": "2"},
    },
    "commit_table": {
        "requirements": [{"type": "assert-current-schema-id", "current-schema-id": 0}],
        "updates": [_CHECKED],
    },
    "commit_transaction": {
        "table-changes": [{"identifier": _FACTS, "requirements": [], "updates": [_CHECKED]}]
    },
    "rename_table": {"source": _FACTS, "destination": {**_FACTS, "name": "sums"}},
}
"""The same of the Iceberg catalogue; the namespace is `shop`, the table `facts`."""
