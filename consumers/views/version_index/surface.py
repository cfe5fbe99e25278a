"""What people ask: views and table macros, stored in the file with their documentation.

They need nothing but the file: `duckdb index.duckdb` and `FROM history('ns$table')` work from any
program. After `ATTACH 'index.duckdb' AS log`, macros need `USE log` first.
"""

from __future__ import annotations

from commitlog.model.table import DELIMITER
from consumers.views.version_index.contents_surface import CONTENTS_QUESTIONS
from consumers.views.version_index.question import BY_MOMENT, IS_T, LIFE_OF_T, macro, view
from consumers.views.version_index.records_surface import RECORDS_QUESTIONS

_SMALL_ROWS, _SMALL_FRAGMENTS, _DELETED_SHARE = 4096, 16, 0.2
"""The defaults of a table's maintenance policy; its own is in its properties."""

_ORDERING = "sequence * 1048576 + ordinal"
"""Orders operations: a transaction has at most a few thousand."""

_VERSION_COLUMNS = """
table_name, version, time, operation, principal, read_version, built_on, rebased_over, rebased,
rows_added, rows_removed, bytes_added, fragments_added, fragments_updated, fragments_removed,
transaction_id, partition, sequence, ordinal, incarnation
"""


def _heads(where: str) -> str:
    # A namespace that is dropped takes its tables with it, without a row for each of them.
    return f"""
    WITH last AS (
        SELECT partition, incarnation,
               arg_max(coalesce(name_after, table_name), {_ORDERING}) AS table_name,
               arg_max(name_after IS NULL, {_ORDERING}) AS ended,
               max(version) AS version,
               max(sequence) AS sequence,
               max(time) AS changed_at,
               max({_ORDERING}) AS place
        FROM operations
        WHERE is_table AND status = 'committed' AND incarnation IS NOT NULL AND {where}
        GROUP BY partition, incarnation),
    drops AS (
        SELECT partition, table_name || '{DELIMITER}' AS inside, {_ORDERING} AS place
        FROM operations
        WHERE operation = 'DropNamespace' AND NOT is_table AND status = 'committed' AND {where})
    SELECT table_name, version, incarnation, partition, sequence, changed_at
    FROM last
    WHERE NOT ended AND NOT EXISTS (
        FROM drops WHERE drops.partition = last.partition AND drops.place > last.place
                         AND starts_with(last.table_name, drops.inside))
    ORDER BY table_name
    """


def _conflicts(collisions: str) -> str:
    return f"""
    SELECT c.time, c.table_name, c.status, c.principal, c.operation, c.read_version,
           c.winner_version, c.winner_operation, w.principal AS winner_principal,
           c.rule, c.fragments, c.keys, c.advice, c.message, c.transaction_id,
           c.winner_transaction_id, w.sequence AS winner_sequence, w.time AS winner_time,
           c.partition, c.sequence, c.incarnation
    FROM ({collisions}) c
    LEFT JOIN (SELECT * FROM transactions WHERE status = 'committed' AND answers IS NULL) w
      ON w.transaction_id = c.winner_transaction_id AND w.partition = c.partition
    """


_NEWEST = "ORDER BY time DESC, partition, sequence DESC"


_AT = """
    SELECT {columns}, location
    FROM (SELECT {columns} FROM operations
          WHERE {is_t} AND version IS NOT NULL AND {where}
          ORDER BY incarnation = {life} DESC, sequence DESC, ordinal DESC LIMIT 1)
    LEFT JOIN (SELECT incarnation, location FROM tables) USING (incarnation)
"""


def _at(where: str) -> str:
    return _AT.format(columns=_VERSION_COLUMNS, is_t=IS_T, life=LIFE_OF_T, where=where)


QUESTIONS = (
    view(
        "versions",
        "FROM versions WHERE table_name = 'ns$table' ORDER BY version DESC LIMIT 10",
        "Every version of every table, with the operation that made it.",
        f"SELECT {_VERSION_COLUMNS} FROM operations WHERE version IS NOT NULL",
    ),
    macro(
        "history",
        "t, n := 50, refused := true",
        "FROM history('ns$table', n := 20)",
        "The last n things that happened to table t, newest first: versions and, unless refused is"
        " false, refused attempts. Follows the table through renames. Repeated requests made"
        " nothing; they stand in `transactions`.",
        f"""
        SELECT version, time, status, operation, principal, read_version, rebased_over, rebased,
               rows_added, rows_removed, bytes_added, fragments_added, fragments_updated,
               fragments_removed, transaction_id, code, message, partition, sequence, ordinal,
               table_name, incarnation, snapshot_id
        FROM operations
        WHERE {IS_T} AND (status = 'committed' OR (refused AND status <> 'repeated'))
        ORDER BY sequence DESC, ordinal DESC LIMIT n
        """,
    ),
    view(
        "timeline",
        "FROM timeline LIMIT 20",
        "What happened to all tables, newest first: one row per decided transaction.",
        """
        SELECT time, partition, sequence, status, code, principal, operations, tables, versions,
               transaction_id, attempt, answers, message
        FROM transactions ORDER BY time DESC, partition, sequence DESC
        """,
    ),
    view(
        "conflicts",
        "FROM conflicts WHERE principal = 'me'",
        "Who lost to whom, on what, and what to do next: one row per refused transaction that met a"
        " conflict, with the winner's writer and position.",
        _conflicts("FROM collisions"),
    ),
    macro(
        "conflicts_of",
        "t, n := 50",
        "FROM conflicts_of('ns$table')",
        "The last n conflicts on table t, newest first. Follows the table through renames.",
        _conflicts(f"FROM collisions WHERE {IS_T} ORDER BY sequence DESC LIMIT n")
        + "ORDER BY c.sequence DESC",
    ),
    macro(
        "latest_conflicts",
        "n := 50",
        "FROM latest_conflicts(n := 20)",
        "The last n conflicts on all tables, newest first; quicker than sorting all of conflicts.",
        _conflicts(f"FROM collisions {_NEWEST} LIMIT n")
        + "ORDER BY c.time DESC, c.partition, c.sequence DESC",
    ),
    view(
        "refusals",
        "SELECT code, count(*) FROM refusals GROUP BY ALL",
        "Every transaction that was not committed, newest first.",
        """
        SELECT time, partition, sequence, status, code, principal, operations, tables, message,
               transaction_id, attempt
        FROM transactions WHERE status <> 'committed' ORDER BY time DESC, partition, sequence DESC
        """,
    ),
    macro(
        "heads_at",
        "position, of_partition := 0",
        "FROM heads_at(1000)",
        "Every table of a partition and its version right after the outcome with this sequence: one"
        " cut over all tables.",
        _heads("partition = of_partition AND sequence <= position"),
    ),
    macro(
        "heads_at_time",
        "moment",
        "FROM heads_at_time(TIMESTAMP '2026-01-31 12:00:00')",
        "Every table and its version at a moment of log time, UTC.",
        _heads(BY_MOMENT),
    ),
    macro(
        "table_at",
        "t, at_version",
        "FROM table_at('ns$table', 7)",
        "One version of table t: what made it, who, when, from what. If life_of(t) never had it,"
        " that of the newest life which had it under this name.",
        _at("version = at_version"),
    ),
    macro(
        "table_at_time",
        "t, moment",
        "FROM table_at_time('ns$table', TIMESTAMP '2026-01-31 12:00:00')",
        "The version of table t at a moment of log time, UTC. If life_of(t) had none yet, that of"
        " the life which had the name.",
        _at(BY_MOMENT),
    ),
    macro(
        "life_of",
        "t",
        "FROM life_of('ns$table')",
        "The table that the name t means in diff, fragments_at, schema_at and the like: the one"
        " that has the name; if none has, the one that had it and changed last.",
        f"SELECT * FROM tables WHERE incarnation = {LIFE_OF_T}",
    ),
    view(
        "writers",
        "FROM writers",
        "Per writer: how much it committed, what was rebased and refused, and when it was seen.",
        """
        SELECT principal,
               count(*) AS transactions,
               count(*) FILTER (status = 'committed' AND answers IS NULL) AS committed,
               count(*) FILTER (status = 'retryable') AS retryable,
               count(*) FILTER (status = 'incompatible') AS incompatible,
               count(*) FILTER (status = 'rejected') AS rejected,
               count(*) FILTER (status = 'superseded') AS superseded,
               count(answers) AS repeated,
               coalesce(any_value(o.rebased), 0) AS rebased,
               coalesce(any_value(o.rows_added), 0) AS rows_added,
               min(time) AS first_seen,
               max(time) AS last_seen
        FROM transactions
        LEFT JOIN (SELECT principal, count(*) FILTER (rebased_over > 0)::BIGINT AS rebased,
                          sum(rows_added)::BIGINT AS rows_added
                   FROM operations WHERE status = 'committed' GROUP BY principal) o
        USING (principal)
        GROUP BY principal ORDER BY transactions DESC, principal
        """,
    ),
    view(
        "rivals",
        "FROM rivals",
        "Which writer loses to which, on which table and by which rule, and how often.",
        """
        SELECT table_name, principal, winner_principal, rule, count(*) AS conflicts,
               max(time) AS last_seen
        FROM conflicts GROUP BY ALL ORDER BY conflicts DESC, table_name, principal
        """,
    ),
    macro(
        "transaction_of",
        "id",
        "FROM transaction_of('0190…')",
        "What became of a transaction id: one row per decided attempt or repetition, in order.",
        "SELECT * FROM transactions WHERE transaction_id = id ORDER BY partition, sequence",
    ),
    macro(
        "operations_of",
        "id",
        "FROM operations_of('0190…')",
        "The operations of a transaction id, of every attempt, in order.",
        "SELECT * FROM operations WHERE transaction_id = id ORDER BY partition, sequence, ordinal",
    ),
    macro(
        "transaction_at",
        "position, of_partition := 0",
        "FROM transaction_at(1000)",
        "The transaction that has this position.",
        "SELECT * FROM transactions WHERE sequence = position AND partition = of_partition",
    ),
    view(
        "index_status",
        "FROM index_status",
        "How far the index is, and when this snapshot was published. lag counts outcomes that were"
        " in the log but not yet here.",
        """
        SELECT partition, sequence, greatest(end_offset - outcomes_offset, 0) AS lag,
               changed_at, outcomes_offset, transactions_offset, epoch,
               (SELECT nullif(value, '')::TIMESTAMP FROM meta WHERE key = 'published_at')
                   AS published_at,
               (SELECT value FROM meta WHERE key = 'log') AS log
        FROM positions ORDER BY partition
        """,
    ),
    *CONTENTS_QUESTIONS,
    view(
        "health",
        "FROM health ORDER BY deleted_share DESC",
        "Each Lance table as it stands: rows, dead rows and their share, fragments, and those with"
        f" fewer than {_SMALL_ROWS:,} rows. Of a registered table, what was written since.",
        f"""
        SELECT table_name, rows, deleted_rows,
               CASE WHEN rows + deleted_rows > 0
                    THEN deleted_rows / (rows + deleted_rows) ELSE 0.0 END AS deleted_share,
               fragments, small_fragments, bytes, incarnation
        FROM (SELECT incarnation, sum(physical_rows - deleted_rows)::BIGINT AS rows,
                     sum(deleted_rows)::BIGINT AS deleted_rows, count(*) AS fragments,
                     count(*) FILTER (physical_rows < {_SMALL_ROWS}) AS small_fragments,
                     sum(bytes)::BIGINT AS bytes
              FROM (SELECT incarnation, fragment_id, arg_max(removed, version) AS removed,
                           arg_max(physical_rows, version) AS physical_rows,
                           coalesce(arg_max(deleted_rows, version), 0) AS deleted_rows,
                           arg_max(bytes, version) AS bytes
                    FROM fragment_changes GROUP BY incarnation, fragment_id)
              WHERE NOT removed GROUP BY incarnation)
        JOIN (SELECT incarnation, table_name FROM tables WHERE ended_by IS NULL) USING (incarnation)
        """,
    ),
    view(
        "maintenance_due",
        "FROM maintenance_due",
        "The tables that maintenance would compact by the default policy, and why. `commitlog"
        " maintain --dry-run` says what is due by each table's own, indices, versions and files"
        " included.",
        f"""
        SELECT table_name, 'compact' AS act,
               CASE WHEN deleted_share > {_DELETED_SHARE}
                    THEN format('{{:,}} of {{:,}} rows are deleted',
                                deleted_rows, rows + deleted_rows)
                    ELSE format('{{:,}} fragments have fewer than {_SMALL_ROWS:,} rows',
                                small_fragments)
               END AS reason,
               fragments, deleted_share, bytes
        FROM health
        WHERE deleted_share > {_DELETED_SHARE} OR small_fragments >= {_SMALL_FRAGMENTS}
        ORDER BY table_name
        """,
    ),
    view(
        "maintenance_done",
        "FROM maintenance_done WHERE table_name = 'ns$table'",
        "What maintenance did, why, and which try it was; refused tries too.",
        """
        SELECT o.time, o.table_name, o.operation, o.status, o.version,
               t.properties->>'$."commitlog.maintenance"' AS reason,
               try_cast(t.properties->>'$."commitlog.try"' AS INTEGER) AS try,
               o.fragments_removed, o.fragments_added, o.bytes_added, o.principal, o.transaction_id,
               o.partition, o.sequence
        FROM operations o
        JOIN (SELECT partition, sequence, properties FROM transactions
              WHERE contains(properties, '"commitlog.maintenance"')) t USING (partition, sequence)
        ORDER BY o.time DESC, o.sequence DESC
        """,
    ),
    *RECORDS_QUESTIONS,
)
