"""Which paths are below which places, at a cost that doesn't grow with the number of places."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice, takewhile


def below(places: Collection[str]) -> Callable[[str], bool]:
    """Return what says whether a path is below one of some places, however many they are."""
    known = frozenset(places)
    if len(known) == 1:
        prefix = f"{next(iter(known))}/"
        return lambda path: path.startswith(prefix)
    depths = {place.count("/") + 1 for place in known}

    def is_below(path: str) -> bool:
        parts = path.split("/")
        return any("/".join(parts[:depth]) in known for depth in depths if depth < len(parts))

    return is_below


def nested_in(location: str, locations: Sequence[str]) -> list[str]:
    """Return those of the sorted `locations` that are below another one, relative to that."""
    prefix = f"{location}/"
    return [one.removeprefix(prefix) for one in starting(locations, prefix)]


def starting(places: Sequence[str], start: str) -> Iterator[str]:
    """Yield those of the sorted `places` that start so."""
    from_here = islice(places, bisect_left(places, start), None)
    return takewhile(lambda one: one.startswith(start), from_here)


def apart(places: Collection[str], others: Collection[str]) -> set[str]:
    """Return those of some places that are, contain and are in none of the others."""
    above = {one[:end] for one in others for end, sign in enumerate(one) if sign == "/"}
    is_in = below(others)
    return {one for one in places if one not in above and not is_in(f"{one}/")}
