"""How a leader greets a writer, and how it says that a request failed."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from typing import Any

from commitlog import wire
from commitlog.errors import CommitLogError, InvalidRequest, Unavailable

logger = logging.getLogger(__name__)


def check_hello(
    hello: Mapping[str, Any], identity: Mapping[str, Any], token: str, *, leads: bool
) -> None:
    """Raise Unavailable if a writer means another log or this one doesn't lead, InvalidRequest if
    it may not connect.

    Whoever hears that its token is wrong knows that this one leads: a standby leaves it alone.
    """
    if hello.get("protocol") != wire.WIRE_VERSION:
        raise Unavailable(f"this leader speaks protocol {wire.WIRE_VERSION}")
    for name in ("log", "log_id", "partition", "home"):
        asked = hello.get(name)
        if asked not in ("", None) and asked != identity.get(name, asked):
            raise Unavailable(f"this is {name} {identity[name]!r}, not {asked!r}")
    if not leads:
        raise Unavailable("this committer is not the leader; read the log's last outcome again")
    given = str(hello.get("token", ""))
    taken = [token, *wire.tokens_of(token)]  # programs of before show all of it
    if token and not any(hmac.compare_digest(given.encode(), one.encode()) for one in taken):
        raise InvalidRequest(
            f"the leader requires a token, and {'another' if given else 'none'} was given",
            field="token",
            advice="Set COMMITLOG_TOKEN to the leader's, or CommitLog.connect(token=…)",
        )


def failed(error: Exception) -> dict[str, Any]:
    """Return what a request is answered that failed."""
    if not isinstance(error, CommitLogError):
        logger.error("a request failed", exc_info=error)
        error = Unavailable(f"the leader failed: {error!r}")
    return {"error": wire.error_body(error)}
