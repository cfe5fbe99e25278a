"""Lists of names in pages: a page costs the leader what is on it, however many names there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from commitlog.model.table import TableId

ASKED_LEAST = 100
"""A leader is asked for so many names at least, since a reader may not see all of them."""

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
    asked = None if limit is None else max(limit + 1, ASKED_LEAST)
    names: list[str] = []
    while True:
        found = ask() if asked is None else ask(after=after, limit=asked)
        # Each partition names so many, and a leader of an earlier release all.
        told = sorted(n for n in found if n and n[:-1] == parent and n[-1] > after)[:asked]
        names += [name[-1] for name in told if is_shown(name, found)]
        if limit is None or asked is None or len(told) < asked or len(names) > limit:
            return names
        # A leader looks through all of its names each time.
        after, asked = told[-1][-1], 2 * asked
