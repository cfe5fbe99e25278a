"""Fields that an object of JSON has twice.

Python takes the last and others the first, so nobody can say which was meant.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

_SHOWN_CHARACTERS = 40


class FieldTwice(ValueError):
    """An object has a field twice; the text is the beginning of its name."""


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of what a parser found in it: its `object_pairs_hook`.

    Raises:
        FieldTwice: two have the same name.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise FieldTwice(twice[:_SHOWN_CHARACTERS])
    return found
