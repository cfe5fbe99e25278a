"""Questions about what maintenance has to do, and did."""

from __future__ import annotations

from consumers.views.version_index.question import Question

SMALL_ROWS, SMALL_FRAGMENTS, DELETED_SHARE = 4096, 16, 0.2
"""The defaults of a table's policy; its own is in its properties."""

HEALTH = Question(
    "health",
    "view",
    "",
    "FROM health ORDER BY deleted_share DESC",
    "Each Lance table as it stands: rows, dead rows and their share, fragments, and those with"
    f" fewer than {SMALL_ROWS:,} rows. Of a registered table, what was written since.",
    f"""
    SELECT table_name, rows, deleted_rows,
           CASE WHEN rows + deleted_rows > 0
                THEN deleted_rows / (rows + deleted_rows) ELSE 0.0 END AS deleted_share,
           fragments, small_fragments, bytes, incarnation
    FROM (SELECT incarnation, sum(physical_rows - deleted_rows)::BIGINT AS rows,
                 sum(deleted_rows)::BIGINT AS deleted_rows, count(*) AS fragments,
                 count(*) FILTER (physical_rows < {SMALL_ROWS}) AS small_fragments,
                 sum(bytes)::BIGINT AS bytes
          FROM (SELECT incarnation, fragment_id, arg_max(removed, version) AS removed,
                       arg_max(physical_rows, version) AS physical_rows,
                       coalesce(arg_max(deleted_rows, version), 0) AS deleted_rows,
                       arg_max(bytes, version) AS bytes
                FROM fragment_changes GROUP BY incarnation, fragment_id)
          WHERE NOT removed GROUP BY incarnation)
    JOIN (SELECT incarnation, table_name FROM tables WHERE ended_by IS NULL) USING (incarnation)
    """,
)

MAINTENANCE_DUE = Question(
    "maintenance_due",
    "view",
    "",
    "FROM maintenance_due",
    "The tables that maintenance would compact by the default policy, and why. `commitlog maintain"
    " --dry-run` says what is due by each table's own, indices, versions and files included.",
    f"""
    SELECT table_name, 'compact' AS act,
           CASE WHEN deleted_share > {DELETED_SHARE}
                THEN format('{{:,}} of {{:,}} rows are deleted', deleted_rows, rows + deleted_rows)
                ELSE format('{{:,}} fragments have fewer than {SMALL_ROWS:,} rows', small_fragments)
           END AS reason,
           fragments, deleted_share, bytes
    FROM health
    WHERE deleted_share > {DELETED_SHARE} OR small_fragments >= {SMALL_FRAGMENTS}
    ORDER BY table_name
    """,
)

MAINTENANCE_DONE = Question(
    "maintenance_done",
    "view",
    "",
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
)

UPKEEP_QUESTIONS = (HEALTH, MAINTENANCE_DUE, MAINTENANCE_DONE)
