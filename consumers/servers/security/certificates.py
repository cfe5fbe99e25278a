"""The server's certificate, read again when it is renewed.

Certificates are valid for weeks, so something replaces their files while the server runs. Open
connections keep what they began with.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from pathlib import Path

from consumers.runtime.certificate import Tls, validity_of
from consumers.runtime.config import ConfigurationError

LOOK_SECONDS = 0.5
REMIND_SECONDS = 24 * 3600.0
"""How often it says that the certificate must be renewed."""

logger = logging.getLogger(__name__)


class Certificates:
    """What connections use that begin now: the files as of at most half a second ago."""

    def __init__(self, tls: Tls) -> None:
        """Read the files; OSError or ConfigurationError if they can't be used."""
        self._tls = tls
        self._seen = self._state()
        self._authorities, self._believed_since = _authorities(tls), 0.0
        self._newest = tls.context()
        self.validity = validity_of(tls.certificate)
        """Of the certificate that clients are shown now."""
        self._remind_at = 0.0
        self._remind()
        self._looked_at = time.monotonic()
        self._problem = ""
        """What the last look at the files ended with, as it was logged."""
        self.context = tls.context()
        """What the server listens with. OpenSSL asks for each connection, with or without a name,
        whether to go on with another one."""
        self.context.sni_callback = self._choose

    def _choose(
        self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext
    ) -> int | None:
        now = time.monotonic()
        if now - self._looked_at > LOOK_SECONDS:
            self._looked_at = now
            self._look()
        connection.context = self._newest
        # Who goes on with an earlier session shows no certificate again.
        earlier = connection.session if connection.session_reused else None
        if earlier is not None and earlier.time <= self._believed_since:
            return ssl.ALERT_DESCRIPTION_CERTIFICATE_UNKNOWN  # a client then begins anew
        return None

    def _remind(self) -> None:
        if self.validity.is_renewed() or time.monotonic() < self._remind_at:
            return
        self._remind_at = time.monotonic() + REMIND_SECONDS
        level = logging.WARNING if self.validity.is_valid() else logging.ERROR
        logger.log(
            level,
            "%s %s; replace the file, it is read again within a second",
            self._tls.certificate,
            self.validity,
        )

    def _look(self) -> None:
        before, self._problem = self._problem, ""
        try:
            if (seen := self._state()) != self._seen:
                authorities = _authorities(self._tls)
                newest, validity = self._tls.context(), validity_of(self._tls.certificate)
                self._newest, self.validity = newest, validity
                self._seen, self._remind_at = seen, 0.0
                if authorities != self._authorities:
                    self._authorities, self._believed_since = authorities, time.time()
                logger.info("%s was read again", self._tls.certificate)
        except (OSError, ConfigurationError) as error:  # a file may not be replaced yet
            self._problem = str(error)
            if self._problem != before:
                logger.error("the previous TLS files stay in use: %s", error)
        self._remind()

    def _state(self) -> list[tuple[int, int, int]]:
        found = [os.stat(path) for path in _paths(self._tls)]
        return [(one.st_mtime_ns, one.st_size, one.st_ino) for one in found]


def _paths(tls: Tls) -> list[str]:
    return [path for path in (tls.certificate, tls.key, tls.client_ca) if path]


def _authorities(tls: Tls) -> bytes:
    return Path(tls.client_ca).read_bytes() if tls.client_ca else b""
