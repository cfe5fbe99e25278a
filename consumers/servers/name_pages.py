"""Lists of names in pages: a page costs the leader what is on it, however many names there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from commitlog.model.table import TableId

ASKED_LEAST = 100
"""A leader is asked for so many names at least, since a reader may not see all of them."""
ASKED_MOST = 2**31
"""And for so many at most: a request may give any number as its limit, also one of 80 bits."""

Names = TypeVar("Names", bound=Iterable[TableId])


def names_in(
    parent: TableId,
    after: str,
    limit: int | None,
    ask: Callable[..., Names],
    is_shown: Callable[[TableId, Names], bool],
) -> list[str]:
    """Return the names directly in a namespace, in order.

    With a `limit`, more than that come if there is another page.
    """
    asked = None if limit is None else min(max(limit + 1, ASKED_LEAST), ASKED_MOST)
    names: list[str] = []
    while True:
        found = ask() if asked is None else ask(after=after, limit=asked)
        # Each partition names so many, and a leader of an earlier release all.
        told = sorted(n for n in found if n and n[:-1] == parent and n[-1] > after)[:asked]
        names += [name[-1] for name in told if is_shown(name, found)]
        if limit is None or asked is None or len(told) < asked or len(names) > limit:
            return names
        # More each time, for a reader who sees few of them.
        after, asked = told[-1][-1], min(2 * asked, ASKED_MOST)
