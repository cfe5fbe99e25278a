"""A server's certificate: whether its files can be used, and for how long.

Whoever renews certificates may have stopped, unnoticed.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from consumers.runtime.config import Config, ConfigurationError

_DAY_SECONDS = 24 * 3600.0
SOON_SECONDS, SOON_SHARE = 14 * _DAY_SECONDS, 1 / 5
"""What is left then of a certificate's life. Who renews them does so earlier: with a third left."""


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when clients accept a certificate, in seconds since 1970."""

    begins: float
    ends: float

    def is_valid(self) -> bool:
        """Return True if clients with the same clock accept it now."""
        return self.begins <= time.time() <= self.ends

    def is_renewed(self) -> bool:
        """Return True if it is valid for long enough."""
        soon = min(SOON_SECONDS, (self.ends - self.begins) * SOON_SHARE)
        return self.is_valid() and time.time() <= self.ends - soon

    def __str__(self) -> str:
        """Say until when, and how long that is."""
        now = time.time()
        if now < self.begins:
            return f"is not valid before {_shown(self.begins)}: clients refuse it until then"
        if now > self.ends:
            return f"expired on {_shown(self.ends)}: clients refuse it"
        return f"expires on {_shown(self.ends)}, in {(self.ends - now) / _DAY_SECONDS:.1f} days"


def validity_of(path: str) -> Validity:
    """Return it of the first certificate in a file, which is the server's own.

    Raises:
        ConfigurationError: It can't be read.
    """
    from cryptography import x509  # only those who serve HTTPS need it

    try:
        found = x509.load_pem_x509_certificate(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"tls_certificate {path} cannot be read: {error}. Give a certificate chain in PEM"
        ) from None
    return Validity(found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp())


@dataclass(frozen=True, slots=True)
class Tls:
    """The certificate that a server shows, and the clients that it accepts."""

    certificate: str
    key: str
    client_ca: str = ""
    """A file of authorities: clients must show a certificate that one of them signed."""

    @classmethod
    def of(cls, config: Config) -> Tls | None:
        """Return what the settings ask for; None if the server speaks plain HTTP."""
        if not config.tls_certificate:
            return None
        return cls(config.tls_certificate, config.tls_key, config.tls_client_ca)

    def context(self) -> ssl.SSLContext:
        """Load the files, for connections that begin from now on.

        Raises:
            ConfigurationError: They can't be used; it names the setting and the file.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # A key with a password would have OpenSSL ask for it on the terminal.
            context.load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"tls_certificate {self.certificate} and tls_key {self.key} cannot be used:"
                f" {error}. Give a certificate chain and its private key without a password, both"
                " in PEM"
            ) from None
        if not self.client_ca:
            return context
        context.verify_mode = ssl.CERT_REQUIRED
        # With TLS 1.3, each client then shows its certificate: it can't resume an earlier session.
        context.num_tickets = 0
        try:
            context.load_verify_locations(self.client_ca)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"tls_client_ca {self.client_ca} cannot be used: {error}. Give certificates in PEM"
            ) from None
        return context


def _shown(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
