"""The principal on whose behalf this process acts at the moment: a server acts for many.

Every transaction that is made in this context carries it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal, with the properties and the id that its request gave."""

    principal: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    transaction_id: str = ""
    """What the first native write is called, in place of the id that Lance gives it."""


NOBODY = Caller()
"""The process acts for itself."""
_CALLER: ContextVar[Caller] = ContextVar("caller", default=NOBODY)


def caller() -> Caller:
    """Return on whose behalf this thread or task acts."""
    return _CALLER.get()


@contextlib.contextmanager
def acting_for(who: Caller) -> Iterator[None]:
    """Act on somebody's behalf."""
    token = _CALLER.set(who)
    try:
        yield
    finally:
        _CALLER.reset(token)
