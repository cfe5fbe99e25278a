"""Checks a run's history after the fact: what was asked, decided, told, and what lives at the end.

The witness is the log's own order: replayed through the dumb twin it must make sense, nothing that
was answered before something else was asked may come after it, and the tables as they can be
opened hold the twin's rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.simulation.rows import Entry, Spec

Told = Mapping[tuple[str, int], tuple[int, int, int]]
FinalRows = dict[str, dict[int, frozenset[int]]]
"""Living offsets by table and fragment."""


def check(entries: Sequence[Entry], told: Told, rows: FinalRows | None = None) -> list[str]:
    """Return everything that is wrong with a history."""
    spec = Spec()
    for entry in entries:
        spec.judge(entry)
    problems = spec.problems + check_told(entries, told) + check_real_time(entries, told)
    return problems if rows is None else problems + check_rows(spec, rows)


def check_told(entries: Sequence[Entry], told: Told) -> list[str]:
    """I2: what writers were told is what the log says."""
    said: dict[tuple[str, int], set[int]] = {}
    for entry in entries:
        sequence = entry.sequence if entry.answers is None else entry.answers
        said.setdefault((entry.transaction_id, entry.attempt), set()).add(sequence)
    return [
        f"I2 {key[0][:8]} attempt {key[1]} was told {sequence}, which the log doesn't say of it"
        for key, (_, answered_at, sequence) in told.items()
        if answered_at >= 0 and sequence not in said.get(key, set())
    ]


def check_real_time(entries: Sequence[Entry], told: Told) -> list[str]:
    """I8: what was answered before something was asked comes before it."""
    problems = []
    latest_invoked, latest = -1, ""
    for entry in entries:
        if entry.answers is not None:
            continue
        key = (entry.transaction_id, entry.attempt)
        invoked_at, answered_at, sequence = told.get(key, (-1, -1, -1))
        if sequence == entry.sequence and 0 <= answered_at < latest_invoked:
            problems.append(
                f"I8 {entry.transaction_id[:8]} was answered before {latest} was asked, and is "
                f"decided after it (sequence {entry.sequence})"
            )
        if invoked_at > latest_invoked:
            latest_invoked, latest = invoked_at, entry.transaction_id[:8]
    return problems


def check_rows(spec: Spec, rows: FinalRows) -> list[str]:
    """I14: nothing is lost and nothing came back."""
    expected: FinalRows = {
        name: {number: frozenset(f.rows) for number, f in table.fragments.items()}
        for name, table in spec.tables.items()
    }
    return [
        f"I14 {name} holds {_differing(rows.get(name), expected.get(name))}"
        for name in sorted({*rows, *expected})
        if rows.get(name) != expected.get(name)
    ]


def _differing(
    found: Mapping[int, frozenset[int]] | None, expected: Mapping[int, frozenset[int]] | None
) -> str:
    if found is None or expected is None:
        return "a table that should not be there" if expected is None else "nothing: it is missing"
    differing = sorted(n for n in {*found, *expected} if found.get(n) != expected.get(n))
    return f"other rows in the fragments {differing[:5]} than were committed"
