"""`commitlog bench report --readme`: the README's table, made of what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commitlog.errors import InvalidRequest
from consumers.tools.bench.aims import LATEST, rows_of
from consumers.tools.bench.report import table
from consumers.tools.bench.tables import Columns, Figure, Row


def _writers(row: Row) -> str:
    return f"{row['writers']} writer{'s' if row['writers'] > 1 else ''}"


def _fairness(row: Row) -> str:
    found = row["fairness"]
    return "" if row["writers"] == 1 else f"{found:,.{1 if found < 10 else 0}f}"


_COLUMNS: Columns = {
    "two cores for everything": _writers,
    "system": lambda row: "pylance's own commit" if row["is_peer"] else "commitlog, `latest`",
    "commits/s": Figure("commits_per_second", 0),
    "p50 ms": Figure("p50_ms"),
    "p99 ms": Figure("p99_ms", 0),
    "gave up": Figure("failures", 0),
    "fastest : slowest writer": _fairness,
}


def with_table(text: str, found: Mapping[str, Any]) -> str:
    """Return a page whose table of commits beside pylance, the README's, shows this report.

    Raises InvalidRequest if there is no such table, or not what it shows.
    """
    suites = found.get("suites", {})
    rows = [
        row
        for writers in (32, 1)
        for system in ("pylance", LATEST)
        for row in rows_of(suites, "commit", "summary", system=system, writers=writers)
    ]
    head, rule, *body = table(_COLUMNS, rows)[:-1] if rows else ("", "")
    lines = text.splitlines()
    if len(rows) != 4 or lines.count(head) != 1:
        raise InvalidRequest(
            "the page has no table of commits beside pylance, or the report no rows for it",
            field="readme",
            advice="Name the README, and a report with the suite `commit` at 32 writers and 1",
        )
    start = end = lines.index(head)
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    return "\n".join([*lines[:start], head, rule, *body, *lines[end:]]) + "\n"
