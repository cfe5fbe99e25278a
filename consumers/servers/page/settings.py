"""What a table and its namespaces say of themselves, as the page shows it."""

from __future__ import annotations

from consumers.history import Ask, Row

SETTINGS_MAX = 500
UPKEEP_PREFIX = "commitlog.maintain."
_LAST_SET = "arg_max(value, sequence * 1048576 + ordinal) AS value"


def own(ask: Ask, life: Row) -> list[Row]:
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
        [*names, life["incarnation"], *names, SETTINGS_MAX],
    )


def inherited(ask: Ask, name: str) -> list[Row]:
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
        [*names, UPKEEP_PREFIX, SETTINGS_MAX],
    )
