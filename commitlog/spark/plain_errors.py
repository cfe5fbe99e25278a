"""Errors as a user of Spark reads them, who gets Python's traceback as text, from another process.

An error that says what to do is its last line, below twenty of calls that only we can read. So it
leaves what Spark calls without them. A bug keeps its calls.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from commitlog.errors import CommitLogError

Kind = TypeVar("Kind", bound=type)


def plain_errors(kind: Kind) -> Kind:
    """Have the public methods of a class raise errors of ours without the calls below them."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, with_plain_errors(method))
    return kind


def with_plain_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises errors of ours without their calls, as its iterator does."""

    @functools.wraps(function)
    def call(*given: Any, **more: Any) -> Any:
        try:
            found = function(*given, **more)
        except CommitLogError as error:
            raise error.with_traceback(None) from None
        return _each(found) if isinstance(found, Iterator) else found

    return call


def _each(found: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from found
    except CommitLogError as error:
        raise error.with_traceback(None) from None
