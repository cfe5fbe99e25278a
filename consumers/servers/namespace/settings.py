"""How the namespace behaves, as its operator and its surroundings have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from commitlog.adapters.storage_options import Scoped


@dataclass(frozen=True, slots=True)
class Settings:
    """How the server behaves."""

    locations: tuple[str, ...] = ()
    """Prefixes besides the tables root under which tables may be."""
    storage_options: Scoped = Scoped()
    """Returned with each location."""
    credentials: Scoped = Scoped()
    """Returned too, on request."""
    vending: Scoped = Scoped()
    """How access to tables' own files is handed out."""
    index: Path | None = None
    """The version index's file, if there is one: what is told of the past is found there first."""
    operations_max: int = 1000
    json_bytes_max: int = 32 * 1024 * 1024
    arrow_bytes_max: int = 4 * 1024 * 1024 * 1024
    commit_seconds: float = 30.0
    is_alone: Callable[[], bool] = lambda: True
    """Whether no other server had the log lately: a client's next request can't come to it."""
    is_alone_now: Callable[[], bool] = lambda: True
    """Whether none has it now, for which the leaders are asked."""
    problem: Callable[[], str] = lambda: ""
    """What all requests wait for just now: which leader is silent, or that Kafka is."""
