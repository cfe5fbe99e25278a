"""How many things a program keeps: the lengths of all collections that an object leads to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

PACKAGES = ("commitlog.", "consumers.")
COLLECTIONS = (dict, list, set, frozenset, deque, tuple)


def kept(root: object, *, without: Iterable[type] = ()) -> Counter[str]:
    """Return the lengths of the collections that an object leads to, summed by their attribute.

    It follows the attributes of our own classes, what collections hold, and what functions close
    over. Attributes are named by their class; objects of the classes `without` aren't followed.
    """
    found: Counter[str] = Counter()
    seen: dict[int, object] = {}
    left: deque[tuple[str, object]] = deque([("", root)])
    while left:
        name, value = left.pop()
        if id(value) in seen or isinstance(value, (type, *without)):
            continue
        seen[id(value)] = value
        if isinstance(value, COLLECTIONS):
            if not isinstance(value, tuple):
                found[name] += len(value)
            left.extend((name, one) for one in _items(value))
        else:
            left.extend(_attributes(value))
    return found


def _items(value: Any) -> Iterable[object]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    return list(value)


def _attributes(value: Any) -> Iterable[tuple[str, object]]:
    """Return what an object of ours, or a function, holds, each with a name."""
    made_by = type(value)
    if hasattr(value, "__closure__") or hasattr(value, "__func__") or hasattr(value, "keywords"):
        cells = getattr(value, "__closure__", None) or ()
        held = [cell.cell_contents for cell in cells if _is_full(cell)]
        held += [getattr(value, "__self__", None), getattr(value, "func", None)]
        held += [getattr(value, "args", None), getattr(value, "keywords", None)]
        return [(f"in a call of {getattr(value, '__qualname__', made_by.__name__)}", held)]
    if not made_by.__module__.startswith(PACKAGES):
        return []
    slots = [slot for base in made_by.__mro__ for slot in getattr(base, "__slots__", ())]
    names = dict.fromkeys([*getattr(value, "__dict__", ()), *slots])
    return [
        (f"{made_by.__name__}.{name}", getattr(value, name))
        for name in names
        if name != "__weakref__" and hasattr(value, name)
    ]


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
