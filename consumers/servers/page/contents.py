"""What is in a table at a version: the page's questions about schemas, fragments, differences."""

from __future__ import annotations

from typing import Any

from commitlog.errors import NoSuchVersion
from commitlog.model.names import REASON
from consumers.history import Ask, Row
from consumers.servers.page.questions import LIST_MAX, must_exist, near_names

GROWTH_POINTS = 80
SNAPSHOTS_MAX = 100
_FIELDS = "field_id, parent_id, name, type, nullable, version AS since_version"


def contents(ask: Ask, table: str, version: int | None = None, *, after: int = -1) -> Row:
    """Return what is in a table at a version, None: at its head.

    Its fragments come in pages, those with ids above `after`. Raises NoSuchTable or NoSuchVersion,
    naming what exists nearby.
    """
    heads = ask("SELECT incarnation, format, version FROM life_of(?)", [table])
    if not heads:
        must_exist(ask, table)
    head: Row = heads[0] if heads else {"incarnation": None, "format": None, "version": None}
    if head["format"] == "iceberg":
        return _of_iceberg(ask, head)
    at = head["version"] if version is None else version
    made = _made(ask, table, at, head["incarnation"])
    if version is not None and made is None:
        raise NoSuchVersion(f"table {table!r} has no version {version}{_span(head)}")
    totals = ask(
        "SELECT count(*) AS fragments, sum(rows)::BIGINT AS rows,"
        " sum(physical_rows)::BIGINT AS physical_rows, sum(deleted_rows)::BIGINT AS deleted_rows,"
        " sum(bytes)::BIGINT AS bytes, sum(len(files))::BIGINT AS files FROM fragments_at(?, ?)",
        [table, at],
    )[0]
    fragments = ask(
        "FROM fragments_at(?, ?) WHERE fragment_id > ? ORDER BY fragment_id LIMIT ?",
        [table, at, after, LIST_MAX],
    )
    return {
        "format": "lance",
        "head": head["version"],
        "version": at,
        "made": made,
        "fields": ask(
            "SELECT field_id, parent_id, name, type, nullable, since_version"
            " FROM schema_at(?, ?) LIMIT ?",
            [table, at, LIST_MAX],
        ),
        "totals": totals,
        "fragments": fragments,
        "after": fragments[-1]["fragment_id"] if len(fragments) == LIST_MAX else None,
    }


def _made(ask: Ask, table: str, version: Any, incarnation: Any) -> Row | None:
    if version is None:
        return None
    rows = ask(
        "SELECT epoch_ms(time) AS time, operation, principal AS writer, partition, sequence,"
        " rebased_over, rows_added, rows_removed FROM table_at(?, ?) WHERE incarnation = ?",
        [table, version, incarnation],
    )
    return rows[0] if rows else None


def _span(head: Row) -> str:
    newest = head["version"]
    return f": its newest is {newest}" if newest else ": it has no versions yet"


def _of_iceberg(ask: Ask, head: Row) -> Row:
    where, life = "incarnation = ?", [head["incarnation"]]
    fields = ask(
        f"SELECT {_FIELDS} FROM field_changes WHERE {where} AND sequence ="
        f" (SELECT max(sequence) FROM field_changes WHERE {where}) ORDER BY position LIMIT ?",
        [*life, *life, LIST_MAX],
    )
    snapshots = ask(
        "SELECT snapshot_id::VARCHAR AS snapshot_id, parent_id::VARCHAR AS parent_id, operation,"
        " epoch_ms(time) AS time, principal AS writer, partition, sequence, summary"
        f" FROM snapshots WHERE {where} AND status = 'committed' ORDER BY time DESC LIMIT ?",
        [*life, SNAPSHOTS_MAX],
    )
    refs = ask(
        "SELECT name, kind, snapshot_id::VARCHAR AS snapshot_id, epoch_ms(time) AS time"
        f" FROM refs WHERE {where} LIMIT ?",
        [*life, LIST_MAX],
    )
    return {"format": "iceberg", "fields": fields, "snapshots": snapshots, "refs": refs}


def difference(ask: Ask, table: str, before: int, after: int) -> Row:
    """Return how a table at one version differs from another: fields, fragments, and commits."""
    must_exist(ask, table)
    heads = ask("SELECT incarnation FROM life_of(?)", [table])
    incarnation = heads[0]["incarnation"] if heads else None
    for version in (before, after):
        if _made(ask, table, version, incarnation) is None:
            raise NoSuchVersion(f"table {table!r} has no version {version}")
    rows = ask(
        "SELECT fragment_id, change, rows_before, rows_after, bytes_before, bytes_after,"
        " len(files_added) AS files_added, len(files_removed) AS files_removed, version,"
        " operation, principal AS writer FROM diff(?, ?, ?)",
        [table, before, after],
    )
    sums = {
        name: sum(_whole(row[name]) for row in rows)
        for name in ("rows_before", "rows_after", "bytes_before", "bytes_after")
    }
    return {
        "before": before,
        "after": after,
        "fields": _fields_changed(ask, table, before, after),
        "fragments": rows[:LIST_MAX],
        "fragments_count": len(rows),
        "rows": sums["rows_after"] - sums["rows_before"],
        "bytes": sums["bytes_after"] - sums["bytes_before"],
    }


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _fields_changed(ask: Ask, table: str, before: int, after: int) -> list[Row]:
    old, new = (
        {row["field_id"]: row for row in ask("FROM schema_at(?, ?)", [table, version])}
        for version in (before, after)
    )
    found: list[Row] = []
    for field_id in sorted({*old, *new}, key=str):
        was, now = old.get(field_id), new.get(field_id)
        shown = [
            None if one is None else f"{one['name']} {one['type']}{_nulls(one)}"
            for one in (was, now)
        ]
        if shown[0] != shown[1]:
            change = "added" if was is None else "removed" if now is None else "changed"
            found.append({"change": change, "before": shown[0], "after": shown[1]})
    return found


def _nulls(field: Row) -> str:
    return "" if field["nullable"] else " not null"


def growth(ask: Ask, table: str) -> list[Row]:
    """Return rows, fragments and bytes of a table at some of its versions, oldest first."""
    rows = ask(
        "SELECT version, epoch_ms(time) AS time, rows, fragments, bytes"
        " FROM growth(?, points := ?)",
        [table, GROWTH_POINTS],
    )
    if not rows:
        must_exist(ask, table)
    return rows


def sizes(ask: Ask, incarnations: list[str]) -> Row:
    """Return rows and bytes of Lance tables as they stand, by incarnation: what their files hold.

    All writers count. A table is left out if the index didn't see its first files.
    """
    marks = ", ".join("?" * len(incarnations))
    rows = ask(
        "SELECT incarnation, coalesce(sum(rows - deleted) FILTER (NOT removed), 0)::BIGINT AS rows,"
        " coalesce(sum(bytes) FILTER (NOT removed), 0)::BIGINT AS bytes"
        " FROM (SELECT incarnation, fragment_id, arg_max(removed, version) AS removed,"
        " arg_max(physical_rows, version) AS rows, arg_max(deleted_rows, version) AS deleted,"
        f" arg_max(bytes, version) AS bytes FROM fragment_changes WHERE incarnation IN ({marks})"
        " GROUP BY incarnation, fragment_id) GROUP BY incarnation",
        incarnations,
    )
    found = {str(row["incarnation"]): [row["rows"], row["bytes"]] for row in rows}
    if bare := [one for one in incarnations if one not in found]:
        made_empty = ask(
            "SELECT DISTINCT incarnation FROM operations WHERE operation = 'CreateTable'"
            f" AND status = 'committed' AND incarnation IN ({', '.join('?' * len(bare))})",
            bare,
        )
        found |= {str(row["incarnation"]): [0, 0] for row in made_empty}
    return {"sizes": found}


def upkeep(ask: Ask, table: str) -> list[Row]:
    """Return what maintenance did to a table, under any of its names, newest first, and why."""
    path = f'$."{REASON}"'
    return ask(
        "WITH life AS (SELECT incarnation, list_append(former_names, table_name) AS names"
        " FROM life_of(?))"
        " SELECT epoch_ms(o.time) AS time, o.partition, o.sequence, o.operation, o.status,"
        " o.version, json_extract_string(t.properties, ?) AS reason, o.fragments_added,"
        " o.fragments_removed, o.bytes_added"
        " FROM operations o JOIN (SELECT partition, sequence, properties FROM transactions"
        "   WHERE list_has_any(tables, (SELECT names FROM life)) AND contains(properties, ?)) t"
        " USING (partition, sequence) WHERE o.incarnation = (SELECT incarnation FROM life)"
        " OR (o.incarnation IS NULL AND o.table_name = ?)"
        " ORDER BY o.time DESC, o.sequence DESC LIMIT ?",
        [table, path, REASON, table, LIST_MAX],
    )


def near(ask: Ask, name: str) -> Row:
    """Return the names of tables that are like this one."""
    return {"near": near_names(ask, name)}
