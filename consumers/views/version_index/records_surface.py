"""Questions about what tables say of themselves, and about how transactions came to be."""

from __future__ import annotations

from consumers.views.version_index.question import LIFE_OF_T, OF_LIFE, macro, view

RECORDS_QUESTIONS = (
    view(
        "refs",
        "FROM refs WHERE table_name = 'ns$table'",
        "The branches and tags of Iceberg tables as they stand, and who set them last.",
        """
        SELECT table_name, name, kind, snapshot_id, time, principal, transaction_id, partition,
               sequence, incarnation
        FROM ref_changes
        WHERE incarnation IN (SELECT incarnation FROM tables WHERE ended_by IS NULL)
        QUALIFY row_number() OVER (PARTITION BY incarnation, name
                                   ORDER BY sequence DESC, ordinal DESC) = 1
                AND snapshot_id IS NOT NULL
        ORDER BY table_name, name
        """,
    ),
    view(
        "tags",
        "FROM tags",
        "The tags of Iceberg tables as they stand. (Tags of Lance lie beside its tables, not in the"
        " log: `consumers.history.table_at_tag` reads them there.)",
        "SELECT * EXCLUDE (kind) FROM refs WHERE kind = 'tag'",
    ),
    macro(
        "table_at_tag",
        "t, tag",
        "FROM table_at_tag('ns$table', 'v1')",
        "The snapshot that a tag or branch of table t names, and what made it.",
        f"""
        SELECT r.name, r.kind, r.snapshot_id, s.parent_id, s.operation, s.principal, s.time,
               s.manifest_list, s.summary, s.transaction_id, s.partition, s.sequence, r.table_name
        FROM refs r
        LEFT JOIN (SELECT * FROM snapshots WHERE status = 'committed') s
        USING (incarnation, snapshot_id)
        WHERE r.incarnation = {LIFE_OF_T} AND r.name = tag
        """,
    ),
    view(
        "schemas",
        "FROM schemas WHERE table_name = 'ns$table'",
        "Every schema that a table had, with the versions that have it; last_version is NULL for"
        " the newest. (Iceberg's have no versions: look at time.)",
        """
        SELECT table_name, version AS first_version, lead(version) OVER life - 1 AS last_version,
               fields, time, partition, sequence, ordinal, incarnation
        FROM (
            SELECT * FROM (
                SELECT table_name, incarnation, version, time, partition, sequence, ordinal,
                       list(name || ' ' || type || CASE WHEN nullable THEN '' ELSE ' not null' END
                            ORDER BY position) AS fields
                FROM field_changes GROUP BY ALL)
            QUALIFY fields IS DISTINCT FROM lag(fields) OVER (PARTITION BY incarnation
                                                              ORDER BY sequence, ordinal))
        WINDOW life AS (PARTITION BY incarnation ORDER BY sequence, ordinal)
        ORDER BY table_name, sequence, ordinal
        """,
    ),
    macro(
        "schema_at",
        "t, at_version",
        "FROM schema_at('ns$table', 7)",
        "The fields of table t at a version.",
        f"""
        SELECT field_id, parent_id, name, type, nullable, version AS since_version
        FROM field_changes
        WHERE {OF_LIFE} AND (sequence, ordinal) = (
            SELECT max((sequence, ordinal)) FROM field_changes
            WHERE {OF_LIFE} AND version <= at_version)
        ORDER BY position
        """,
    ),
    view(
        "schema_changes",
        "FROM schema_changes WHERE table_name = 'ns$table'",
        "Fields added, removed, renamed or given another type, and who did it.",
        """
        WITH kept AS (
            SELECT *,
                   row_number() OVER (PARTITION BY incarnation ORDER BY sequence, ordinal) AS number
            FROM schemas),
        named AS (
            SELECT k.number, f.* FROM kept k
            JOIN field_changes f USING (incarnation, partition, sequence, ordinal)),
        pairs AS (
            SELECT k.table_name, k.first_version AS version, k.time, k.partition, k.sequence,
                   k.ordinal, k.incarnation, coalesce(new.field_id, old.field_id) AS field_id,
                   old.name AS old_name, new.name AS new_name, old.type AS old_type,
                   new.type AS new_type, old.nullable AS was_nullable, new.nullable AS is_nullable
            FROM kept k
            JOIN (SELECT DISTINCT incarnation, number, field_id FROM named
                  UNION SELECT DISTINCT incarnation, number + 1, field_id FROM named) ids
              ON ids.incarnation = k.incarnation AND ids.number = k.number
            LEFT JOIN named new ON new.incarnation = k.incarnation AND new.number = k.number
                               AND new.field_id = ids.field_id
            LEFT JOIN named old ON old.incarnation = k.incarnation AND old.number = k.number - 1
                               AND old.field_id = ids.field_id)
        SELECT table_name, version, time,
               CASE WHEN old_name IS NULL THEN 'added' WHEN new_name IS NULL THEN 'removed'
                    WHEN old_name <> new_name THEN 'renamed' ELSE 'changed' END AS change,
               field_id, old_name, new_name, old_type, new_type, was_nullable, is_nullable,
               principal, transaction_id, partition, sequence, incarnation
        FROM pairs
        LEFT JOIN (SELECT partition, sequence, principal, transaction_id FROM transactions)
        USING (partition, sequence)
        WHERE (old_name, old_type, was_nullable) IS DISTINCT FROM (new_name, new_type, is_nullable)
        ORDER BY table_name, sequence, field_id
        """,
    ),
    view(
        "indices",
        "FROM indices WHERE table_name = 'ns$table'",
        "The indices of tables as their last change left them. A delete of all rows that an index"
        " covers drops it without a row here.",
        """
        SELECT table_name, name, uuid, field_ids, built_on, fragments, bytes, version, time,
               partition, sequence, incarnation
        FROM index_changes
        WHERE incarnation IN (SELECT incarnation FROM tables WHERE ended_by IS NULL)
        QUALIFY rank() OVER (PARTITION BY incarnation ORDER BY sequence DESC, ordinal DESC) = 1
                AND name IS NOT NULL
        ORDER BY table_name, name
        """,
    ),
    view(
        "batches",
        "FROM batches WHERE application_id = 'my-query' ORDER BY application_sequence DESC",
        "Transactions that a stream numbered itself: the batches of a Spark query, repetitions"
        " too.",
        """
        SELECT application_id, application_sequence, application_run, status, answers, tables,
               versions, principal, time, transaction_id, partition, sequence
        FROM transactions WHERE application_id IS NOT NULL
        """,
    ),
    view(
        "retries",
        "FROM retries LIMIT 20",
        "Transactions that were decided more than once: attempts after a refusal, and repetitions.",
        """
        SELECT transaction_id, any_value(principal) AS principal, count(*) AS times,
               max(attempt) AS last_attempt,
               list(CASE WHEN answers IS NULL THEN status ELSE 'repeated' END ORDER BY sequence)
                   AS statuses,
               min(time) AS first_time, max(time) AS last_time, partition
        FROM transactions GROUP BY transaction_id, partition HAVING count(*) > 1
        ORDER BY last_time DESC, transaction_id
        """,
    ),
    macro(
        "conflict_chain",
        "id",
        "FROM conflict_chain('0190…')",
        "Whom a transaction lost to, whom that one had lost to before it won, and so on.",
        """
        WITH RECURSIVE chain AS (
            SELECT 1 AS step, * FROM collisions WHERE transaction_id = id
            UNION
            SELECT step + 1, c.* FROM chain
            JOIN collisions c ON c.transaction_id = chain.winner_transaction_id
                             AND c.partition = chain.partition AND c.sequence < chain.sequence)
        SELECT step, time, table_name, transaction_id, principal, operation, status, rule,
               winner_transaction_id, winner_version, winner_operation, partition, sequence
        FROM chain ORDER BY step, partition, sequence
        """,
    ),
    view(
        "lag",
        "FROM lag",
        "How many outcomes of each partition were in the log but not yet here when this snapshot"
        " was published, and how old it is now.",
        """
        SELECT partition, lag, sequence, changed_at, published_at,
               epoch(now()::TIMESTAMPTZ AT TIME ZONE 'UTC' - published_at) AS seconds_old
        FROM index_status
        """,
    ),
)
