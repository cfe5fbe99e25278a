"""All that a server offers for reading history: the page, the feed, and SQL if it is wanted."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from starlette.routing import BaseRoute

from commitlog import CommitLog
from consumers.servers.feed import feed_routes
from consumers.servers.page.routes import page_routes
from consumers.servers.page.sql import SqlService


@dataclass(frozen=True, slots=True)
class Reading:
    """Routes, and how to end what answers them."""

    routes: list[BaseRoute]
    close: Callable[[], None]


def reading_services(
    log: CommitLog, root: str | os.PathLike[str], *, with_sql: bool = False
) -> Reading:
    """Return what reads this log, and the index that is published under `root`."""
    sql = SqlService(root)  # starts nothing before it is asked
    asked = sql.routes() if with_sql else []
    return Reading([*feed_routes(log), *page_routes(root), *asked], sql.close)
