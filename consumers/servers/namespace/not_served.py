"""What LanceDB's client can ask for and this server doesn't do, with what does the same.

An answer of 404 would be wrong: the client takes it for a table that isn't there.
"""

from __future__ import annotations

import re

_INSTEAD = {
    "AlterTableBackfillColumns": "add the column with its expression: add_columns computes it",
    "CloneTable": "create the table from the rows of a query",
    "CreateMaterializedView": "create a table from the rows of the query",
    "PrewarmTableData": "queries keep what they read in memory",
    "RefreshMaterializedView": "create a table from the rows of the query",
}
_JOBS = (
    "nothing runs as a job here; what was answered is done, and wait_for_index waits for an index"
)
_VIEWS = "run the query where you need its rows, or create a table from them"
_FAMILIES = (
    (
        "/v1/table/[^/]+/(flush|compact|checkpoint|get|set|unset)_lsm(_stats|_write_spec)?",
        "LSM writes",
        "add and merge_insert write to the table itself, from many writers at once",
    ),
    ("/v1/table/[^/]+/errors", "errors of functions", "compute values before you write them"),
    ("/v1/table/[^/]+/branches/diff", "comparisons of branches", "query both branches"),
    (
        "/v1/table/[^/]+/branches/cherry_pick",
        "picks from a branch",
        "read the rows from the branch and write them with add or merge_insert",
    ),
    ("/v1/(namespace/[^/]+/)?materialized_view(/.*)?", "materialized views", _VIEWS),
    ("/v1/(namespace/[^/]+/)?view(/.*)?", "views", _VIEWS),
    ("/v1/(namespace/[^/]+/)?function(/.*)?", "functions", "compute values before you write them"),
    (
        "/v1/(namespace/[^/]+/)?secret(/.*)?",
        "secrets",
        "the server reads its keys from --storage-file",
    ),
    ("/v1/(namespace/[^/]+/)?jobs?(/.*)?", "jobs", _JOBS),
)


def instead_of(operation: str) -> str:
    """Return what does the same as an operation of the protocol that isn't carried out."""
    return _INSTEAD[operation]


def is_of_job(path: str) -> bool:
    """Return whether a path asks for one job: there is none, as 404 says to the client."""
    return re.fullmatch("/v1/jobs/(cancel|describe)/?", path) is not None


def not_served(path: str) -> str:
    """Return what a path of no operation would be for, and what to do instead; "" if unknown."""
    for pattern, what, instead in _FAMILIES:
        if re.fullmatch(f"{pattern}/?", path):
            return f"{what} are not supported; {instead}"
    return ""
