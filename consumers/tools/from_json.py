"""Dataclasses, read back from what `asdict` and JSON make of them."""

from __future__ import annotations

from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

_types = cache(get_type_hints)


def from_json(kind: type[T], data: Any) -> T:
    """Return an object of a dataclass; KeyError, TypeError or ValueError if it was none of it."""
    types = _types(cast(Any, kind))
    return kind(**{name: _value(types[name], one) for name, one in data.items()})


def _value(kind: Any, data: Any) -> Any:
    if is_dataclass(kind):
        return from_json(kind, data)  # type: ignore[arg-type]
    if (origin := get_origin(kind)) in (list, tuple):
        return origin(_value(get_args(kind)[0], one) for one in data)
    return kind(data) if isinstance(kind, type) and issubclass(kind, StrEnum) else data
