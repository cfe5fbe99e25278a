"""Methods that users of Lance, LanceDB, Delta and Iceberg try first, and what to call here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_READ = (
    "open(table), a lance.LanceDataset with all its ways to read; scan(table, filter) reads rows"
)
_OPEN = "open(table)"
_HISTORY = "open(table).versions(), or sql(\"FROM history('ns$table', 20)\", index=…)"
_TRANSACT = "`with log.transact() as t:`, and write by t"
INSTEAD = {
    **dict.fromkeys(("add", "insert", "write", "write_dataset"), "append(table, rows)"),
    **dict.fromkeys(("upsert", "merge"), "merge_insert(table, rows, on=key)"),
    **dict.fromkeys(
        ("overwrite", "replace"), "lance.write_dataset(rows, log.open(table), mode='overwrite')"
    ),
    **dict.fromkeys(("read", "query", "search", "head", "take", "count_rows"), _READ),
    **dict.fromkeys(("to_arrow", "to_lance", "to_pandas", "to_polars", "to_table"), _READ),
    **dict.fromkeys(("dataset", "get_table", "load_table", "open_table", "read_table"), _OPEN),
    **dict.fromkeys(("list_tables", "table_names"), "tables()"),
    **dict.fromkeys(("drop", "delete_table"), "drop_table(table)"),
    **dict.fromkeys(("history", "list_versions", "versions"), _HISTORY),
    **dict.fromkeys(
        ("as_of", "checkout", "time_travel"), "open(table, version), or snapshot(when)"
    ),
    "rollback": "restore(table, position)",
    **dict.fromkeys(("changes", "feed", "watch"), "subscribe(table, from_position)"),
    **dict.fromkeys(
        ("cleanup_old_versions", "expire_snapshots", "vacuum"), "expire_versions(table)"
    ),
    "compact_files": "compact(table)",
    "list_namespaces": "namespaces()",
    "create_namespace": "create_table('ns$table', schema), which makes its namespaces",
    **dict.fromkeys(("begin", "commit", "start_transaction"), _TRANSACT),
    "execute": "sql(query)",
}
"""Methods that `CommitLog` doesn't have, and what to use instead."""


class KnowsHabits:
    """Adds to an AttributeError what to call instead."""

    if not TYPE_CHECKING:  # a checker would take any name for a method

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            instead = INSTEAD.get(name)
            if instead is None:  # Python itself suggests a name that is spelled alike
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            raise AttributeError(f"{kind} has no {name!r}: use {instead}", name=name)
