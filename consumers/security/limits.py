"""Limits on what a client may take: requests at a time, headers, and time to send a body.

How large a body may be is the APIs' own: it depends on what it is.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from consumers.security.answers import is_under, refusal

RETRY_AFTER_SECONDS = 1
UNLIMITED = ("/healthz", "/readyz", "/metrics")
"""What has to answer when nothing else does."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """How much a client may take."""

    requests_max: int = 256
    """Requests that are carried out at the same time; more are told to come again."""
    header_bytes_max: int = 32 * 1024
    pause_seconds_max: float = 60.0
    """How long the next piece of a body may take to arrive."""


class SlowBody(BaseException):
    """A body's next piece took too long; no API takes it for a failure of its own."""


class Limits:
    """Refuses what is over the limits."""

    def __init__(self, app: ASGIApp, settings: LimitSettings | None = None) -> None:
        """Guard an application."""
        self._app = app
        self._settings = settings or LimitSettings()
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or is_under(scope["path"], UNLIMITED):
            return await self._app(scope, receive, send)
        settings = self._settings
        if sum(len(name) + len(value) for name, value in scope["headers"]) > (
            settings.header_bytes_max
        ):
            message = f"the headers have over {settings.header_bytes_max} bytes; send fewer"
            return await self._refuse(431, message, scope, receive, send)
        if self._running >= settings.requests_max:
            message = (
                f"{settings.requests_max} requests are being carried out, nothing was done for"
                " this one; send it again in a while"
            )
            return await self._refuse(503, message, scope, receive, send)
        self._running += 1
        try:
            return await self._carry_out(scope, receive, send)
        finally:
            self._running -= 1

    async def _carry_out(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = is_read = False

        async def patiently() -> Message:
            nonlocal is_read
            if is_read:  # the client may go away, or not
                return await receive()
            try:
                async with asyncio.timeout(self._settings.pause_seconds_max):
                    message = await receive()
            except TimeoutError as error:
                raise SlowBody from error
            is_read = not message.get("more_body", False)
            return message

        async def noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, patiently, noting)
        except SlowBody:
            if has_begun:
                raise
            seconds = self._settings.pause_seconds_max
            message = f"no byte of the body came for {seconds:g} s; nothing was done, send it again"
            await self._refuse(408, message, scope, receive, send)

    @staticmethod
    async def _refuse(
        status: int, message: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        # The connection may still carry a body that nobody reads.
        headers = {"Connection": "close"}
        if status == 503:
            headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
        response = refusal(scope["path"], scope["method"], status, message, headers)
        await response(scope, receive, send)
