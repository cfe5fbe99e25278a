"""Requests to S3 as AWS's signature version 4 signs them, and with which keys this process does.

Addresses and keys of a place are its storage options, by pylance's names; what they leave open
comes from the environment, as for everything else that reads there (`storage_remote`).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote, unquote, urlsplit

from commitlog.adapters.storage_options import storage_options

UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
CONTENT_HASH = "x-amz-content-sha256"
DATE = "x-amz-date"
TOKEN = "x-amz-security-token"
_ALGORITHM = "AWS4-HMAC-SHA256"
_DEFAULT_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class S3Keys:
    """What proves who asks; never printed."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class S3Address:
    """Where a place's store is, and this process's keys for it."""

    endpoint: str
    """A URL; empty for AWS itself."""
    region: str
    keys: S3Keys | None
    """None if neither options nor environment name any: then nothing can be signed."""


def s3_address(location: str) -> S3Address:
    """Return how this process reaches a location in S3; InvalidSettings."""
    options = {name.lower(): value for name, value in storage_options(location).items()}

    def named(*names: str) -> str:
        keys = [key for name in names for key in (f"aws_{name}", name)]
        given = next((options[key] for key in keys if options.get(key)), "")
        surrounding = (os.environ.get(f"AWS_{name.upper()}", "") for name in names)
        return given or next(filter(None, surrounding), "")

    key_id, secret = named("access_key_id"), named("secret_access_key")
    # Keys go together: a token of the environment belongs to other keys than the options'.
    is_given = any(options.get(f"{start}access_key_id") for start in ("aws_", ""))
    token = named("session_token", "token")
    if is_given and token in (os.environ.get(f"AWS_{n}") for n in ("SESSION_TOKEN", "TOKEN")):
        token = next((options[k] for k in options if k.endswith("token")), "")
    return S3Address(
        named("endpoint", "endpoint_url").rstrip("/"),
        named("region", "default_region") or _DEFAULT_REGION,
        S3Keys(key_id, secret, token) if key_id and secret else None,
    )


def signature_headers(
    method: str,
    url: str,
    headers: Mapping[str, str],
    *,
    keys: S3Keys,
    region: str,
    now: datetime,
    service: str = "s3",
    content_hash: str = UNSIGNED_PAYLOAD,
) -> dict[str, str]:
    """Return the headers that sign a request with all of its `headers`, whose names are lower case.

    The URL is canonical already: each part percent-encoded once. `now` is a time in UTC.
    """
    parts = urlsplit(url)
    moment = now.strftime("%Y%m%dT%H%M%SZ")
    added = {DATE: moment}
    if service == "s3":
        added[CONTENT_HASH] = content_hash
    if keys.session_token:
        added[TOKEN] = keys.session_token
    signed = {**headers, **added, "host": parts.netloc}
    names = ";".join(sorted(signed))
    canonical = "\n".join(
        [
            method,
            parts.path or "/",
            _canonical_query(parts.query),
            *(f"{name}:{' '.join(signed[name].split())}" for name in sorted(signed)),
            "",
            names,
            content_hash,
        ]
    )
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in scope.split("/"):
        key = _mac(key, part)
    signature = _mac(key, "\n".join([_ALGORITHM, moment, scope, digest])).hex()
    authorization = (
        f"{_ALGORITHM} Credential={keys.access_key_id}/{scope}, SignedHeaders={names},"
        f" Signature={signature}"
    )
    return {**added, "authorization": authorization}


def encoded(text: str, safe: str = "") -> str:
    """Percent-encode a part of a URL as signatures have it."""
    return quote(text, safe=f"{safe}-_.~")


def _canonical_query(query: str) -> str:
    pairs = (one.partition("=")[::2] for one in query.split("&") if one)
    return "&".join(
        f"{name}={value}"
        for name, value in sorted((encoded(unquote(n)), encoded(unquote(v))) for n, v in pairs)
    )


def _mac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
