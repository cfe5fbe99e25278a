"""Questions about what is in tables: fragments, files, schemas, indices, Iceberg's references.

`fragment_changes` says what each version made of each fragment; what existed at a version is the
last row of each fragment up to it. A value that a row leaves NULL is the one before it.
"""

from __future__ import annotations

from consumers.views.version_index.question import BY_MOMENT, OF_LIFE, macro, view

_EMPTIED = "removed OR (deleted_rows > 0 AND deleted_rows = physical_rows)"


def _standing(where: str) -> str:
    return f"""
    SELECT * EXCLUDE (removed) FROM (
        SELECT fragment_id,
               arg_max(removed, version) AS removed,
               max(version) AS changed_in,
               arg_max(physical_rows, version) AS physical_rows,
               arg_max(deleted_rows, version) AS deleted_rows,
               arg_max(bytes, version) AS bytes,
               arg_max(files, version) AS files,
               CASE WHEN arg_max(deleted_rows, version) > 0
                    THEN arg_max(deletion_file, version) END AS deletion_file
        FROM fragment_changes WHERE {OF_LIFE} AND {where}
        GROUP BY fragment_id)
    WHERE NOT ({_EMPTIED})
    """


def _images(where: str) -> str:
    """Return the images of fragments: each row of `fragment_changes` with nothing left out."""
    return f"""
    SELECT * EXCLUDE (removed), {_EMPTIED} AS is_gone,
           coalesce(lag({_EMPTIED}) OVER life, true) AS is_new,
           lead(version) OVER life - 1 AS last_version
    FROM (SELECT partition, sequence, time, ordinal, table_name, incarnation, version,
                 fragment_id, removed, deleted_rows, deletion_file, made_from,
                 last_value(physical_rows IGNORE NULLS) OVER before AS physical_rows,
                 last_value(bytes IGNORE NULLS) OVER before AS bytes,
                 last_value(files IGNORE NULLS) OVER before AS files
          FROM fragment_changes WHERE {where}
          WINDOW before AS (PARTITION BY incarnation, fragment_id ORDER BY version))
    WINDOW life AS (PARTITION BY incarnation, fragment_id ORDER BY version)
    """


_WHO = "partition, sequence, ordinal, operation, principal, transaction_id"
_BY = f"LEFT JOIN (SELECT {_WHO} FROM operations WHERE version IS NOT NULL) o"
_ON = "USING (partition, sequence, ordinal)"
_CHANGE = "CASE WHEN is_gone THEN 'removed' WHEN is_new THEN 'added' ELSE 'changed' END AS change"


_TOUCHED = f"""
SELECT DISTINCT fragment_id FROM fragment_changes
WHERE {OF_LIFE} AND version > least(v1, v2) AND version <= greatest(v1, v2)
"""

CONTENTS_QUESTIONS = (
    view(
        "fragments",
        "FROM fragments WHERE table_name = 'ns$table' AND last_version IS NULL",
        "Every state of every fragment, with the versions that have it; last_version is NULL for"
        " current ones.",
        f"""
        SELECT table_name, fragment_id, version AS first_version, last_version,
               physical_rows - deleted_rows AS rows, physical_rows, deleted_rows, bytes, files,
               deletion_file, made_from, time, partition, sequence, ordinal, incarnation
        FROM ({_images("true")}) WHERE NOT is_gone
        """,
    ),
    macro(
        "fragments_at",
        "t, at_version",
        "FROM fragments_at('ns$table', 7)",
        "The fragments of table t at a version, with their rows and files.",
        f"""
        SELECT fragment_id, physical_rows - deleted_rows AS rows, physical_rows, deleted_rows,
               bytes, files, deletion_file, changed_in
        FROM ({_standing("version <= at_version")}) ORDER BY fragment_id
        """,
    ),
    macro(
        "files_at",
        "t, at_version",
        "FROM files_at('ns$table', 7)",
        "The files that a reader of table t needs at a version, relative to the table.",
        f"""
        WITH standing AS ({_standing("version <= at_version")})
        SELECT fragment_id, 'data' AS kind, 'data/' || unnest(files) AS path FROM standing
        UNION ALL
        SELECT fragment_id, 'deletion', deletion_file FROM standing WHERE deletion_file IS NOT NULL
        ORDER BY fragment_id, kind, path
        """,
    ),
    view(
        "data_files",
        "FROM data_files WHERE table_name = 'ns$table'",
        "Every data file of every state of a fragment, with the versions that have it so.",
        """
        SELECT table_name, fragment_id, first_version, last_version, unnest(files) AS path, time,
               partition, sequence, incarnation
        FROM fragments
        """,
    ),
    view(
        "deletion_files",
        "FROM deletion_files WHERE last_version IS NULL",
        "Every deletion file, with the versions that have it.",
        """
        SELECT table_name, fragment_id, first_version, last_version, deletion_file AS path,
               deleted_rows, time, partition, sequence, incarnation
        FROM fragments WHERE deleted_rows > 0 AND deletion_file IS NOT NULL
        """,
    ),
    macro(
        "diff",
        "t, v1, v2",
        "FROM diff('ns$table', 3, 7)",
        "How table t at version v2 differs from v1, fragment by fragment, and who did it last.",
        f"""
        WITH touched AS ({_TOUCHED}),
        before AS ({_standing("version <= v1 AND fragment_id IN (FROM touched)")}),
        after AS ({_standing("version <= v2 AND fragment_id IN (FROM touched)")}),
        last AS (
            SELECT fragment_id, arg_max((partition, sequence, ordinal), version) AS place,
                   max(version) AS changed_in
            FROM fragment_changes
            WHERE {OF_LIFE} AND version > least(v1, v2) AND version <= greatest(v1, v2)
            GROUP BY fragment_id)
        SELECT fragment_id,
               CASE WHEN before.changed_in IS NULL THEN 'added'
                    WHEN after.changed_in IS NULL THEN 'removed' ELSE 'changed' END AS change,
               before.physical_rows - before.deleted_rows AS rows_before,
               after.physical_rows - after.deleted_rows AS rows_after,
               before.bytes AS bytes_before, after.bytes AS bytes_after,
               (SELECT list(f) FROM (SELECT unnest(after.files) AS f)
                WHERE NOT list_contains(coalesce(before.files, []), f)) AS files_added,
               (SELECT list(f) FROM (SELECT unnest(before.files) AS f)
                WHERE NOT list_contains(coalesce(after.files, []), f)) AS files_removed,
               last.changed_in AS version, operation, principal, transaction_id
        FROM before FULL JOIN after USING (fragment_id) JOIN last USING (fragment_id)
        {_BY} ON o.partition = place[1] AND o.sequence = place[2] AND o.ordinal = place[3]
        WHERE (before.physical_rows, before.deleted_rows, before.files, before.deletion_file)
              IS DISTINCT FROM
              (after.physical_rows, after.deleted_rows, after.files, after.deletion_file)
        ORDER BY fragment_id
        """,
    ),
    macro(
        "changes",
        "t, v1, v2",
        "FROM changes('ns$table', 3, 7)",
        "What each version after v1, up to v2, made of which fragments of table t, and who did it.",
        f"""
        SELECT version, time, operation, principal, fragment_id, {_CHANGE},
               CASE WHEN NOT is_gone THEN physical_rows - deleted_rows END AS rows,
               CASE WHEN NOT is_gone THEN bytes END AS bytes, made_from, transaction_id,
               partition, sequence, ordinal
        FROM ({_images(f"{OF_LIFE} AND version <= v2 AND fragment_id IN ({_TOUCHED})")})
        {_BY} {_ON}
        WHERE version > v1 ORDER BY version, fragment_id
        """,
    ),
    macro(
        "blame",
        "t",
        "FROM blame('ns$table')",
        "Who made each current fragment of table t, and who changed it last.",
        f"""
        WITH standing AS ({_standing("true")}),
        images AS ({_images(f"{OF_LIFE} AND fragment_id IN (SELECT fragment_id FROM standing)")}),
        events AS (
            SELECT fragment_id,
                   arg_max((partition, sequence, ordinal), version) FILTER (is_new) AS made,
                   arg_max((partition, sequence, ordinal), version) AS changed,
                   max(version) FILTER (is_new) AS made_in
            FROM images WHERE NOT is_gone GROUP BY fragment_id),
        who AS (SELECT (partition, sequence, ordinal) AS place, * FROM operations
                WHERE version IS NOT NULL)
        SELECT fragment_id, physical_rows - deleted_rows AS rows, deleted_rows,
               made_in, m.operation AS made_as, m.principal AS made_by, m.time AS made_at,
               changed_in, c.operation AS changed_as, c.principal AS changed_by,
               c.time AS changed_at,
               m.transaction_id AS made_with, c.transaction_id AS changed_with, bytes, files
        FROM standing JOIN events USING (fragment_id)
        LEFT JOIN who m ON m.place = made LEFT JOIN who c ON c.place = changed
        ORDER BY fragment_id
        """,
    ),
    macro(
        "blame_of",
        "t, what",
        "FROM blame_of('ns$table', 3)",
        "All that was done to a fragment of table t, or to those that had a data file, oldest"
        " first.",
        f"""
        SELECT fragment_id, version, time, {_CHANGE}, operation, principal,
               CASE WHEN NOT is_gone THEN physical_rows - deleted_rows END AS rows,
               CASE WHEN NOT is_gone THEN deleted_rows END AS deleted_rows, made_from, files,
               deletion_file, transaction_id, partition, sequence, ordinal
        FROM ({
            _images(
                f'''{OF_LIFE} AND fragment_id IN (
                SELECT fragment_id FROM fragment_changes WHERE {OF_LIFE}
                AND (fragment_id = try_cast(what AS BIGINT)
                     OR list_contains(files, what::VARCHAR)))'''
            )
        })
        {_BY} {_ON} ORDER BY fragment_id, version
        """,
    ),
    macro(
        "lineage",
        "t, fragment, steps := 5",
        "FROM lineage('ns$table', 12, steps := 100)",
        "Where the rows of a fragment of table t came from: itself, the fragments that were"
        " rewritten into it, and so on for so many steps. Step 0 is the fragment itself.",
        f"""
        WITH RECURSIVE whole AS MATERIALIZED (
            SELECT * FROM fragment_changes WHERE {OF_LIFE} AND files IS NOT NULL),
        found AS (
            SELECT 0 AS step, fragment_id, version, made_from
            FROM whole WHERE fragment_id = fragment
            UNION
            SELECT step + 1, w.fragment_id, w.version, w.made_from
            FROM (SELECT step, version AS before, unnest(made_from) AS origin FROM found
                  WHERE step < steps)
            JOIN whole w ON w.fragment_id = origin AND w.version < before)
        SELECT step, fragment_id, version, time, operation, principal, physical_rows, s.made_from,
               files, transaction_id, partition, sequence, ordinal
        FROM (SELECT min(step) AS step, fragment_id, version, any_value(made_from) AS made_from
              FROM found GROUP BY fragment_id, version) s
        JOIN whole USING (fragment_id, version)
        {_BY} {_ON} ORDER BY step, fragment_id, version
        """,
    ),
    macro(
        "growth",
        "t, points := 100",
        "FROM growth('ns$table', points := 20)",
        "How table t grew: rows, fragments, files and bytes at up to so many of its versions,"
        " evenly chosen; the last one is always there. For Iceberg, by snapshot, from the"
        " snapshots' totals.",
        f"""
        WITH images AS ({_images(OF_LIFE)}),
        sizes AS (
            SELECT version, time, fragment_id,
                   CASE WHEN is_gone THEN 0 ELSE physical_rows - deleted_rows END AS rows,
                   CASE WHEN is_gone THEN 0 ELSE 1 END AS fragments,
                   CASE WHEN is_gone THEN 0 ELSE len(files) END AS files,
                   CASE WHEN is_gone THEN 0 ELSE bytes END AS bytes
            FROM images),
        changed AS (
            SELECT version, time,
                   rows - coalesce(lag(rows) OVER w, 0) AS rows,
                   fragments - coalesce(lag(fragments) OVER w, 0) AS fragments,
                   files - coalesce(lag(files) OVER w, 0) AS files,
                   bytes - coalesce(lag(bytes) OVER w, 0) AS bytes
            FROM sizes WINDOW w AS (PARTITION BY fragment_id ORDER BY version)),
        added AS (
            SELECT version, max(time) AS time, sum(rows) AS rows, sum(fragments) AS fragments,
                   sum(files) AS files, sum(bytes) AS bytes
            FROM changed GROUP BY version),
        grown AS (
            SELECT version, NULL::BIGINT AS snapshot_id, time,
                   (sum(rows) OVER w)::BIGINT AS rows, (sum(fragments) OVER w)::BIGINT AS fragments,
                   (sum(files) OVER w)::BIGINT AS files, (sum(bytes) OVER w)::BIGINT AS bytes
            FROM added WINDOW w AS (ORDER BY version)
            UNION ALL
            SELECT NULL, snapshot_id, time, try_cast(summary->>'total-records' AS BIGINT), NULL,
                   try_cast(summary->>'total-data-files' AS BIGINT),
                   try_cast(summary->>'total-files-size' AS BIGINT)
            FROM snapshots WHERE {OF_LIFE} AND status = 'committed')
        SELECT * EXCLUDE (place) FROM (
            SELECT *, ntile(points) OVER (ORDER BY time, version) AS place FROM grown)
        QUALIFY row_number() OVER (PARTITION BY place ORDER BY time DESC, version DESC) = 1
        ORDER BY time, version
        """,
    ),
    macro(
        "small_files",
        "t, rows_max := 10000",
        "FROM small_files('ns$table', rows_max := 1000)",
        "The current fragments of table t with fewer rows than rows_max: what a compaction would"
        " put together.",
        f"""
        SELECT fragment_id, physical_rows - deleted_rows AS rows, deleted_rows, bytes, files,
               changed_in
        FROM ({_standing("true")}) WHERE physical_rows - deleted_rows < rows_max
        ORDER BY rows, fragment_id
        """,
    ),
    view(
        "orphans",
        "FROM orphans WHERE table_name = 'ns$table'",
        "Data files that refused attempts wrote and no version has: they may be removed once the"
        " same attempt will not be tried again.",
        """
        SELECT r.table_name, r.path, r.status, r.time, r.transaction_id, principal, r.partition,
               r.sequence
        FROM refused_files r
        JOIN (SELECT partition, sequence, principal FROM transactions) USING (partition, sequence)
        WHERE r.path NOT IN (SELECT unnest(files) FROM fragment_changes WHERE files IS NOT NULL)
        ORDER BY r.time DESC, r.path
        """,
    ),
    macro(
        "removable_before",
        "t, moment",
        "FROM removable_before('ns$table', (now() AT TIME ZONE 'UTC') - INTERVAL 7 DAYS)",
        "Files of table t that no version since a moment of log time (UTC) has: they go when older"
        " versions may go. Relative to the table.",
        f"""
        WITH images AS ({_images(OF_LIFE)}),
        needed AS (
            SELECT 'data/' || unnest(files) AS path, last_version FROM images WHERE NOT is_gone
            UNION ALL
            SELECT deletion_file, last_version FROM images
            WHERE NOT is_gone AND deletion_file IS NOT NULL),
        head AS (
            SELECT coalesce(max(version), 0) AS version FROM operations
            WHERE {OF_LIFE} AND version IS NOT NULL AND {BY_MOMENT})
        SELECT path, max(last_version) AS last_version FROM needed
        GROUP BY path
        HAVING count(*) = count(last_version) AND max(last_version) < (SELECT version FROM head)
        ORDER BY last_version, path
        """,
    ),
)
