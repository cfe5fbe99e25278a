"""On whose behalf a process acts at the moment: a server acts for many.

What is set here is on every transaction that is made meanwhile, whoever in between makes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what they said about it."""

    principal: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    transaction_id: str = ""
    """What the first native write is called, in place of the id that Lance gives it."""


_NOBODY = Caller()
_CALLER: ContextVar[Caller] = ContextVar("caller", default=_NOBODY)


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
