"""Who loses to whom, and on what: the page's questions about conflicts."""

from __future__ import annotations

from consumers.history import Ask, Row
from consumers.servers.page.questions import LIST_MAX, must_exist, named


def conflicts(ask: Ask, *, table: str = "", fragments_max: int = 40) -> Row:
    """Return the conflict map: writer against writer, fragments under contention, rules."""
    where, parameters = named(ask, table) if table else ("true", [])
    ask(f"CREATE OR REPLACE TEMP TABLE met AS SELECT * FROM conflicts WHERE {where}", parameters)
    pairs = ask(
        "SELECT principal AS loser, winner_principal AS winner, count(*) AS count,"
        " epoch_ms(max(time)) AS last FROM met"
        " GROUP BY ALL ORDER BY count DESC, loser, winner LIMIT ?",
        [LIST_MAX],
    )
    fragments = ask(
        "SELECT table_name, fragment, count(*) AS count, count(DISTINCT principal) AS writers,"
        " epoch_ms(max(time)) AS last FROM (SELECT *, unnest(fragments) AS fragment FROM met)"
        " GROUP BY ALL ORDER BY count DESC, table_name, fragment LIMIT ?",
        [fragments_max],
    )
    rules = ask(
        "SELECT rule, status, count(*) AS count FROM met GROUP BY ALL ORDER BY count DESC, rule"
        " LIMIT ?",
        [LIST_MAX],
    )
    by_table = ask(
        "SELECT table_name, count(*) AS count FROM met GROUP BY ALL ORDER BY count DESC, 1 LIMIT ?",
        [LIST_MAX],
    )
    total = ask("SELECT count(*) AS n FROM met", ())[0]["n"]
    if table and not total:
        must_exist(ask, table)
    return {
        "total": total,
        "pairs": pairs,
        "fragments": fragments,
        "rules": rules,
        "tables": by_table,
    }


def collisions(
    ask: Ask,
    *,
    table: str = "",
    loser: str | None = None,
    winner: str | None = None,
    fragment: int | None = None,
    limit: int = LIST_MAX,
) -> list[Row]:
    """Return the newest conflicts, of a table, a pair of writers or a fragment."""
    of_table, about = named(ask, table) if table else ("true", [])
    wanted: list[tuple[str, object]] = []
    if loser is not None:
        wanted.append(("principal = ?", loser))
    if winner is not None:
        wanted.append(("winner_principal = ?", winner))
    if fragment is not None:
        wanted.append(("list_contains(fragments, ?)", fragment))
    where = " AND ".join([of_table, *(condition for condition, _ in wanted)])
    return ask(
        "SELECT epoch_ms(time) AS time, partition, sequence, table_name, status,"
        " principal AS loser, operation, read_version, winner_principal AS winner,"
        " winner_operation, winner_version, winner_sequence, rule,"
        " fragments[:20] AS fragments, len(fragments) AS fragments_count,"
        f" message, transaction_id FROM conflicts WHERE {where}"
        " ORDER BY time DESC, sequence DESC LIMIT ?",
        [*about, *(value for _, value in wanted), limit],
    )
