"""What people ask: views and table macros, stored in the file with their documentation.

They need nothing but the file: `duckdb index.duckdb` and `FROM history('ns$table')` work from any
program. After `ATTACH 'index.duckdb' AS log`, macros need `USE log` first.
"""

from __future__ import annotations

from commitlog.model.table import DELIMITER
from consumers.views.version_index.contents_surface import CONTENTS_QUESTIONS
from consumers.views.version_index.question import BY_MOMENT, IS_T, LIFE_OF_T, Question
from consumers.views.version_index.records_surface import RECORDS_QUESTIONS
from consumers.views.version_index.upkeep_surface import UPKEEP_QUESTIONS

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


VERSIONS = Question(
    "versions",
    "view",
    "",
    "FROM versions WHERE table_name = 'ns$table' ORDER BY version DESC LIMIT 10",
    "Every version of every table, with the operation that made it.",
    f"SELECT {_VERSION_COLUMNS} FROM operations WHERE version IS NOT NULL",
)

HISTORY = Question(
    "history",
    "macro",
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
)

TIMELINE = Question(
    "timeline",
    "view",
    "",
    "FROM timeline LIMIT 20",
    "What happened to all tables, newest first: one row per decided transaction.",
    """
    SELECT time, partition, sequence, status, code, principal, operations, tables, versions,
           transaction_id, attempt, answers, message
    FROM transactions ORDER BY time DESC, partition, sequence DESC
    """,
)


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

CONFLICTS = Question(
    "conflicts",
    "view",
    "",
    "FROM conflicts WHERE principal = 'me'",
    "Who lost to whom, on what, and what to do next: one row per refused transaction that met a"
    " conflict, with the winner's writer and position.",
    _conflicts("FROM collisions"),
)

CONFLICTS_OF = Question(
    "conflicts_of",
    "macro",
    "t, n := 50",
    "FROM conflicts_of('ns$table')",
    "The last n conflicts on table t, newest first. Follows the table through renames.",
    _conflicts(f"FROM collisions WHERE {IS_T} ORDER BY sequence DESC LIMIT n")
    + "ORDER BY c.sequence DESC",
)

LATEST_CONFLICTS = Question(
    "latest_conflicts",
    "macro",
    "n := 50",
    "FROM latest_conflicts(n := 20)",
    "The last n conflicts on all tables, newest first; quicker than sorting all of conflicts.",
    _conflicts(f"FROM collisions {_NEWEST} LIMIT n")
    + "ORDER BY c.time DESC, c.partition, c.sequence DESC",
)

REFUSALS = Question(
    "refusals",
    "view",
    "",
    "SELECT code, count(*) FROM refusals GROUP BY ALL",
    "Every transaction that was not committed, newest first.",
    """
    SELECT time, partition, sequence, status, code, principal, operations, tables, message,
           transaction_id, attempt
    FROM transactions WHERE status <> 'committed' ORDER BY time DESC, partition, sequence DESC
    """,
)

HEADS_AT = Question(
    "heads_at",
    "macro",
    "position, of_partition := 0",
    "FROM heads_at(1000)",
    "Every table of a partition and its version right after the outcome with this sequence: one"
    " cut over all tables.",
    _heads("partition = of_partition AND sequence <= position"),
)

HEADS_AT_TIME = Question(
    "heads_at_time",
    "macro",
    "moment",
    "FROM heads_at_time(TIMESTAMP '2026-01-31 12:00:00')",
    "Every table and its version at a moment of log time, UTC.",
    _heads(BY_MOMENT),
)

_AT = """
    SELECT {columns}, location
    FROM (SELECT {columns} FROM operations
          WHERE {is_t} AND version IS NOT NULL AND {where}
          ORDER BY incarnation = {life} DESC, sequence DESC, ordinal DESC LIMIT 1)
    LEFT JOIN (SELECT incarnation, location FROM tables) USING (incarnation)
"""


def _at(where: str) -> str:
    return _AT.format(columns=_VERSION_COLUMNS, is_t=IS_T, life=LIFE_OF_T, where=where)


TABLE_AT = Question(
    "table_at",
    "macro",
    "t, at_version",
    "FROM table_at('ns$table', 7)",
    "One version of table t: what made it, who, when, from what. If life_of(t) never had it, that"
    " of the newest life which had it under this name.",
    _at("version = at_version"),
)

TABLE_AT_TIME = Question(
    "table_at_time",
    "macro",
    "t, moment",
    "FROM table_at_time('ns$table', TIMESTAMP '2026-01-31 12:00:00')",
    "The version of table t at a moment of log time, UTC. If life_of(t) had none yet, that of the"
    " life which had the name.",
    _at(BY_MOMENT),
)

LIFE_OF = Question(
    "life_of",
    "macro",
    "t",
    "FROM life_of('ns$table')",
    "The table that the name t means in diff, fragments_at, schema_at and the like: the one that"
    " has the name; if none has, the one that had it and changed last.",
    f"SELECT * FROM tables WHERE incarnation = {LIFE_OF_T}",
)

WRITERS = Question(
    "writers",
    "view",
    "",
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
)

RIVALS = Question(
    "rivals",
    "view",
    "",
    "FROM rivals",
    "Which writer loses to which, on which table and by which rule, and how often.",
    """
    SELECT table_name, principal, winner_principal, rule, count(*) AS conflicts,
           max(time) AS last_seen
    FROM conflicts GROUP BY ALL ORDER BY conflicts DESC, table_name, principal
    """,
)

TRANSACTION_OF = Question(
    "transaction_of",
    "macro",
    "id",
    "FROM transaction_of('0190…')",
    "What became of a transaction id: one row per decided attempt or repetition, in order.",
    "SELECT * FROM transactions WHERE transaction_id = id ORDER BY partition, sequence",
)

OPERATIONS_OF = Question(
    "operations_of",
    "macro",
    "id",
    "FROM operations_of('0190…')",
    "The operations of a transaction id, of every attempt, in order.",
    "SELECT * FROM operations WHERE transaction_id = id ORDER BY partition, sequence, ordinal",
)

TRANSACTION_AT = Question(
    "transaction_at",
    "macro",
    "position, of_partition := 0",
    "FROM transaction_at(1000)",
    "The transaction that has this position.",
    "SELECT * FROM transactions WHERE sequence = position AND partition = of_partition",
)

INDEX_STATUS = Question(
    "index_status",
    "view",
    "",
    "FROM index_status",
    "How far the index is, and when this snapshot was published. lag counts outcomes that were in"
    " the log but not yet here.",
    """
    SELECT partition, sequence, greatest(end_offset - outcomes_offset, 0) AS lag,
           changed_at, outcomes_offset, transactions_offset, epoch,
           (SELECT nullif(value, '')::TIMESTAMP FROM meta WHERE key = 'published_at')
               AS published_at,
           (SELECT value FROM meta WHERE key = 'log') AS log
    FROM positions ORDER BY partition
    """,
)

QUESTIONS = (
    VERSIONS,
    HISTORY,
    TIMELINE,
    CONFLICTS,
    CONFLICTS_OF,
    LATEST_CONFLICTS,
    REFUSALS,
    HEADS_AT,
    HEADS_AT_TIME,
    TABLE_AT,
    TABLE_AT_TIME,
    LIFE_OF,
    WRITERS,
    RIVALS,
    TRANSACTION_OF,
    OPERATIONS_OF,
    TRANSACTION_AT,
    INDEX_STATUS,
    *CONTENTS_QUESTIONS,
    *UPKEEP_QUESTIONS,
    *RECORDS_QUESTIONS,
)
