"""What the page asks the version index, and the shape in which it gets the answer.

Long lists come in columns with the words of a column listed once: a hundred thousand rows are
parsed in small pieces without holding up a frame. Every list has a limit and says where to
continue.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from commitlog.errors import NoSuchTable
from consumers.history import Ask, Row
from consumers.views.index_rows import ByPlace

EVENTS_MAX = 8192
TABLES_MAX = 1000
LIST_MAX = 500
LINEAGE_MAX = 12
LINEAGES_MAX = 30
"""The first operations of a transaction, of which it is told what was committed meanwhile: each is
a question of its own, and a thousand took seconds."""
FRAGMENTS_MAX = 200
NEAR_NAMES_MAX = 3
RATE_SECONDS = 120
"""How much of the recent past `rates` tells of."""
RATE_BUCKET_MS = 2000

Columns = dict[str, Any]

_TABLE_COLUMNS = """
    table_name, incarnation, partition, format, location, policy, primary_key, version,
    snapshot_id, metadata_location, sequence,
    epoch_ms(changed_at) AS changed_at, changed_by, created_sequence,
    epoch_ms(created_at) AS created_at, created_by, commits, rows_added, rows_removed, bytes_added,
    former_names, ended_by, epoch_ms(ended_at) AS ended_at
"""
_TABLE_EVENTS = """
    SELECT sequence, ordinal, epoch_ms(time) AS time, status, operation, principal AS writer,
           table_name AS "table", version, read_version, rebased_over, rebased::INT AS rebased,
           rows_added, rows_removed, code
    FROM operations
"""
_LOG_EVENTS = """
    WITH page AS (
        SELECT * FROM transactions WHERE partition = $1 AND sequence BETWEEN $2 AND $3),
    sums AS (
        SELECT sequence, max(read_version) AS read_version, max(rebased_over) AS rebased_over,
               bool_or(rebased) AS rebased, sum(rows_added)::BIGINT AS rows_added,
               sum(rows_removed)::BIGINT AS rows_removed
        FROM operations
        WHERE partition = $1 AND sequence BETWEEN $2 AND $3
        GROUP BY sequence)
    SELECT sequence, 0 AS ordinal, epoch_ms(time) AS time,
           CASE WHEN answers IS NULL THEN status ELSE 'repeated' END AS status,
           CASE len(operations) WHEN 0 THEN kind WHEN 1 THEN operations[1]
                ELSE len(operations) || ' operations' END AS operation,
           principal AS writer,
           CASE len(list_distinct(tables)) WHEN 0 THEN '' WHEN 1 THEN tables[1]
                ELSE len(list_distinct(tables)) || ' tables' END AS "table",
           CASE len(versions) WHEN 1 THEN versions[1] END AS version,
           CASE len(operations) WHEN 1 THEN read_version END AS read_version, rebased_over,
           rebased::INT AS rebased, rows_added, rows_removed, code
    FROM page LEFT JOIN sums USING (sequence) ORDER BY sequence {order}
"""
_WORDS = ("status", "operation", "writer", "table", "code")


def status(ask: Ask, *, now_ms: int) -> Row:
    """Return how far the index is, who leads, and what was decided lately."""
    positions = ask(
        "SELECT partition, sequence, epoch, greatest(end_offset - outcomes_offset, 0) AS lag,"
        " epoch_ms(changed_at) AS changed_at FROM positions ORDER BY partition",
        (),
    )
    meta = {str(row["key"]): row["value"] for row in ask("FROM meta", ())}
    since = (now_ms // RATE_BUCKET_MS) * RATE_BUCKET_MS - RATE_SECONDS * 1000
    rates = ask(
        "SELECT (epoch_ms(time) // ?) * ? AS time,"
        " count(*) FILTER (status = 'committed') AS committed,"
        " count(*) FILTER (status <> 'committed') AS refused"
        " FROM transactions WHERE time >= make_timestamp_ms(?) GROUP BY 1 ORDER BY 1",
        [RATE_BUCKET_MS, RATE_BUCKET_MS, since],
    )
    return {
        "log": meta.get("log", ""),
        "now": now_ms,
        "published_at": meta.get("published_at"),
        "positions": positions,
        "rates": {"since": since, "bucket_ms": RATE_BUCKET_MS, "buckets": rates},
    }


def live(ask: Ask) -> Row:
    """Return the terms of leaders, the totals by status, and the writers."""
    leaders = ask(
        "SELECT partition, epoch, node, sequence, epoch_ms(started_at) AS started_at,"
        " program_version FROM leaders"
        " QUALIFY row_number() OVER (PARTITION BY partition ORDER BY epoch DESC) <= 5"
        " ORDER BY partition, epoch DESC",
        (),
    )
    totals = ask(
        "SELECT CASE WHEN answers IS NULL THEN status ELSE 'repeated' END AS status,"
        " count(*) AS count FROM transactions GROUP BY 1 ORDER BY 2 DESC",
        (),
    )
    return {"leaders": leaders, "totals": totals, "writers": _writers(ask)}


def _writers(ask: Ask) -> list[Row]:
    return ask(
        "SELECT principal AS writer, transactions, committed, rebased, retryable, incompatible,"
        " rejected, repeated, rows_added, epoch_ms(last_seen) AS last_seen"
        " FROM writers ORDER BY transactions DESC, principal LIMIT ?",
        [LIST_MAX],
    )


def tables(
    ask: Ask, *, after: Sequence[str] = ("", ""), ended: bool = False, limit: int = TABLES_MAX
) -> Row:
    """Return tables by name after (name, incarnation); those that have ended on demand."""
    rows = ask(
        f"SELECT {_TABLE_COLUMNS} FROM tables"
        " WHERE (ended_by IS NULL OR ?) AND (table_name, incarnation) > (?, ?)"
        " ORDER BY table_name, incarnation LIMIT ?",
        [ended, *after, limit],
    )
    more = [rows[-1]["table_name"], rows[-1]["incarnation"]] if len(rows) == limit else None
    return {"tables": rows, "after": more}


def table(ask: Ask, name: str) -> Row:
    """Return one table: its lives, and how much happened to it.

    Raises NoSuchTable, naming tables with a similar name.
    """
    lives = ask(
        f"SELECT {_TABLE_COLUMNS} FROM tables"
        " WHERE table_name = ? OR list_contains(former_names, ?)"
        " ORDER BY (table_name = ? AND ended_by IS NULL) DESC, sequence DESC LIMIT ?",
        [name, name, name, LIST_MAX],
    )
    where, parameters = named(ask, name)
    counts = ask(
        f"SELECT status, count(*) AS count FROM operations WHERE {where} GROUP BY 1", parameters
    )
    if not lives and not counts:
        raise _unknown(ask, name)
    return {
        "name": name,
        "lives": lives,
        "counts": {str(row["status"]): row["count"] for row in counts},
        "properties": _own_settings(ask, lives[0]) if lives else [],
        "inherited": _inherited_settings(ask, name),
    }


def events(
    ask: Ask,
    *,
    table: str = "",
    partition: int = 0,
    before: tuple[int, int] | None = None,
    after: tuple[int, int] | None = None,
    limit: int = EVENTS_MAX,
) -> Columns:
    """Return what happened, in columns: of a table its operations, else a partition's transactions.

    Without `after` newest first, beginning before (sequence, ordinal); with it oldest first. The
    first page says how many there are in all.
    """
    if not table:
        return _log_events(ask, partition, before, after, limit)
    order = "ASC" if after else "DESC"
    place, compare = (after, ">") if after else (before, "<")
    where = f"(sequence, ordinal) {compare} (?, ?)" if place else "true"
    of_table, parameters = named(ask, table)
    rows = ask(
        f"{_TABLE_EVENTS} WHERE {of_table} AND {where}"
        f" ORDER BY sequence {order}, ordinal {order} LIMIT ?",
        [*parameters, *(place or ()), limit],
    )
    total = None
    if not place:
        total = ask(f"SELECT count(*) AS n FROM operations WHERE {of_table}", parameters)[0]["n"]
        if not total:
            must_exist(ask, table)
    return {"total": total, "rows": len(rows), "is_last": len(rows) < limit, **_in_columns(rows)}


def _log_events(
    ask: Ask,
    partition: int,
    before: tuple[int, int] | None,
    after: tuple[int, int] | None,
    limit: int,
) -> Columns:
    # Positions are dense, so a page is a range of them: nothing is sorted to find it.
    found = ask("SELECT sequence AS n FROM positions WHERE partition = ?", [partition])
    end: Any = found[0]["n"] if found else 0
    if after:
        low, high = after[0] + 1, min(after[0] + limit, end)
    else:
        high = min(before[0] - 1, end) if before else end
        low = max(high - limit + 1, 1)
    rows = ask(_LOG_EVENTS.format(order="ASC" if after else "DESC"), [partition, low, high])
    return {
        "total": None if before or after else end,
        "rows": len(rows),
        "is_last": high >= end if after else low <= 1,
        **_in_columns(rows),
    }


def _in_columns(rows: list[Row]) -> Columns:
    names = list(rows[0]) if rows else []
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in names}
    words: dict[str, list[Any]] = {}
    for name in _WORDS:
        if name in columns:
            listed = {word: code for code, word in enumerate(dict.fromkeys(columns[name]))}
            words[name] = list(listed)
            columns[name] = [listed[word] for word in columns[name]]
    return {"columns": columns, "words": words}


def transaction(
    ask: Ask, *, transaction_id: str = "", partition: int = 0, sequence: int = 0
) -> list[Row]:
    """Return what became of a transaction: a row per attempt, the asked-for position first.

    Each row has its operations with what was committed between reading and deciding, the conflict,
    what it expected, the properties that it changed and the files that it brought. Empty if the
    index knows nothing of it.
    """
    if not transaction_id:
        found = ask(
            "SELECT transaction_id FROM transactions WHERE sequence = ? AND partition = ?",
            [sequence, partition],
        )
        if not found:
            return []
        transaction_id = str(found[0]["transaction_id"])
    rows = ask(
        "SELECT * REPLACE (epoch_ms(time) AS time, epoch_ms(submitted_at) AS submitted_at)"
        " FROM transactions WHERE transaction_id = ?"
        " ORDER BY partition = ? AND sequence = ? DESC, sequence DESC LIMIT ?",
        [transaction_id, partition, sequence, LIST_MAX],
    )
    parts = {
        name: ByPlace(
            ask(
                f"SELECT * REPLACE (epoch_ms(time) AS time) FROM {name}"
                " WHERE transaction_id = ? ORDER BY sequence, ordinal LIMIT ?",
                [transaction_id, EVENTS_MAX],
            )
        )
        for name in ("operations", "expectations", "refused_files", "properties")
    }
    conflicts = ByPlace(
        ask(
            "SELECT * REPLACE (epoch_ms(time) AS time, epoch_ms(winner_time) AS winner_time)"
            " FROM conflicts WHERE transaction_id = ? LIMIT ?",
            [transaction_id, LIST_MAX],
        )
    )
    for row in rows:
        for name, part in parts.items():
            key = {"operations": "details", "properties": "changed"}.get(name, name)
            row[key] = part.of(row)
        row["conflict"] = next(iter(conflicts.of(row)), None)
    for row in rows[:1]:
        shown: Any = row
        for number, one in enumerate(shown["details"]):
            is_asked = number < LINEAGES_MAX
            one["lineage"] = _lineage(ask, one, shown["conflict"]) if is_asked else None
        row["fragments"] = ask(
            "SELECT ordinal, fragment_id, removed, physical_rows, deleted_rows, bytes, files,"
            " deletion_file FROM fragment_changes WHERE partition = ? AND sequence = ?"
            " ORDER BY ordinal, fragment_id LIMIT ?",
            [row["partition"], row["sequence"], FRAGMENTS_MAX],
        )
    return rows


def _lineage(ask: Ask, one: Row, conflict: Row | None) -> Row | None:
    """What was committed to the table after the version read, up to this or to the winner."""
    read = one["read_version"]
    until = one["version"]
    if until is None and conflict is not None and conflict["table_name"] == one["table_name"]:
        until = conflict["winner_version"]
    if not isinstance(read, int) or not isinstance(until, int) or read <= 0:
        return None
    where, parameters = "table_name = ?", [one["table_name"]]
    if life := one["incarnation"]:  # it may have had another name by then
        names = "SELECT unnest(list_append(former_names, table_name)) FROM tables"
        where = f"table_name IN ({names} WHERE incarnation = ?) AND incarnation = ?"
        parameters = [life, life]
    rows = ask(
        "SELECT version, operation, principal AS writer, sequence, epoch_ms(time) AS time,"
        f" transaction_id FROM operations WHERE {where} AND status = 'committed'"
        " AND partition = ? AND version BETWEEN ? AND ? ORDER BY version DESC LIMIT ?",
        [*parameters, one["partition"], read, until, LINEAGE_MAX],
    )
    return {
        "read": read,
        "until": until,
        "versions": rows,
        "left_out": until - read + 1 - len(rows),
    }


def named(ask: Ask, name: str) -> tuple[str, list[object]]:
    """Return the condition for a table's rows, also those under other names that it had."""
    lives = ask(
        "SELECT incarnation, list_append(former_names, table_name) AS names FROM life_of(?)"
        " WHERE len(former_names) > 0",
        [name],
    )
    condition, parameters = "table_name = ?", list[object]([name])
    for life in lives:
        names: Any = life["names"]
        marks = ", ".join("?" * len(names))
        condition = f"({condition} OR (incarnation = ? AND table_name IN ({marks})))"
        parameters += [life["incarnation"], *names]
    return condition, parameters


def must_exist(ask: Ask, name: str) -> None:
    """Raise NoSuchTable, naming tables with a similar name, unless anything tells of a table."""
    rows = ask(
        "SELECT 1 FROM tables WHERE table_name = ? OR list_contains(former_names, ?) LIMIT 1",
        [name, name],
    )
    rows = rows or ask("SELECT 1 FROM operations WHERE table_name = ? LIMIT 1", [name])
    if not rows:
        raise _unknown(ask, name)


def near_names(ask: Ask, name: str) -> list[str]:
    """Return the names of tables that are like this one, the nearest first."""
    rows = ask(
        "SELECT DISTINCT table_name FROM tables"
        " ORDER BY jaro_winkler_similarity(table_name, ?) DESC, table_name LIMIT 100",
        [name],
    )
    names = [str(row["table_name"]) for row in rows]
    return difflib.get_close_matches(name, names, NEAR_NAMES_MAX, 0.5)


def _unknown(ask: Ask, name: str) -> NoSuchTable:
    near = near_names(ask, name)
    hint = f"Did you mean {', '.join(near)}?" if near else ""
    return NoSuchTable(f"the version index has no table {name!r}.", hint=hint)


_UPKEEP = "commitlog.maintain."
_LAST_SET = "arg_max(value, sequence * 1048576 + ordinal) AS value"


def _own_settings(ask: Ask, life: Row) -> list[Row]:
    """Return the properties of a life of a table, whatever it was called when it got them."""
    former = life["former_names"]
    names = [life["table_name"], *(former if isinstance(former, list) else ())]
    marks = ", ".join("?" * len(names))
    # Another table may have had one of the names since.
    return ask(
        f"SELECT key, {_LAST_SET} FROM properties JOIN"
        " (SELECT partition, sequence, ordinal FROM operations"
        f"  WHERE table_name IN ({marks}) AND incarnation = ?) USING (partition, sequence, ordinal)"
        f" WHERE table_name IN ({marks}) AND is_table GROUP BY key"
        " HAVING value IS NOT NULL ORDER BY key LIMIT ?",
        [*names, life["incarnation"], *names, LIST_MAX],
    )


def _inherited_settings(ask: Ask, name: str) -> list[Row]:
    """Return what a table's namespaces say of its upkeep; the innermost comes last and wins.

    The root of all namespaces has an empty name.
    """
    parts = name.split("$")
    names = ["$".join(parts[:depth]) for depth in range(len(parts))]
    marks = ", ".join("?" * len(names))
    return ask(
        f"SELECT table_name AS namespace, key, {_LAST_SET} FROM properties"
        f" WHERE table_name IN ({marks}) AND NOT is_table AND starts_with(key, ?)"
        " GROUP BY table_name, key HAVING value IS NOT NULL"
        " ORDER BY length(table_name), key LIMIT ?",
        [*names, _UPKEEP, LIST_MAX],
    )
