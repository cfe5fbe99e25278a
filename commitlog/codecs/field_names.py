"""Full names of the fields of a schema: the parents' names before the field's own."""

from __future__ import annotations

PARENTS_SHOWN_MAX = 1_000
"""A column's full name has so many characters of its parents at most: with all of them, a schema of
240 KB, a struct with a name of 100 KB and 3,000 columns in it, had 300 MB of names."""


def full_name(parent: str, name: str) -> str:
    """Return a field's full name, given its parent's; that of a column has none."""
    if not parent:
        return name
    shown = parent if len(parent) <= PARENTS_SHOWN_MAX else parent[:PARENTS_SHOWN_MAX] + "…"
    return f"{shown}.{name}"
