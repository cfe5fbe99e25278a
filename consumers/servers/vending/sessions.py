"""Keys of sessions: AWS's security token service, or a store's own, asked over HTTP."""

from __future__ import annotations

import hashlib
import http.client
import logging
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode
from xml.etree import ElementTree

from commitlog.adapters.s3_requests import S3Address, S3Keys, signature_headers
from commitlog.errors import Unavailable

TIMEOUT_SECONDS = 10.0
_ANSWER_BYTES_MAX = 64 * 1024
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_=,.@-]")
_FORM = "application/x-www-form-urlencoded; charset=utf-8"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AssumedRole:
    """Whose rights a session's policy narrows."""

    arn: str
    endpoint: str
    seconds: int
    external_id: str = ""


@dataclass(frozen=True, slots=True)
class GrantSession:
    """Keys that end by themselves."""

    keys: S3Keys
    ends_at: datetime


def assume(
    role: AssumedRole, policy: str, who: str, address: S3Address, now: datetime
) -> GrantSession:
    """Return keys with a role's rights as far as a policy lets them; Unavailable."""
    assert address.keys is not None
    fields = {
        "Action": "AssumeRole",
        "Version": "2011-06-15",
        "RoleArn": role.arn,
        "RoleSessionName": _session_name(who),
        "DurationSeconds": str(role.seconds),
        "Policy": policy,
    }
    if role.external_id:
        fields["ExternalId"] = role.external_id
    body = urlencode(fields).encode()
    headers = {"content-type": _FORM}
    url = f"{role.endpoint}/"
    headers |= signature_headers(
        "POST",
        url,
        headers,
        keys=address.keys,
        region=address.region,
        now=now,
        service="sts",
        content_hash=hashlib.sha256(body).hexdigest(),
    )
    return _read(_ask(urllib.request.Request(url, body, headers, method="POST"), role.endpoint))


def session_options(
    session: GrantSession, address: S3Address, known: Mapping[str, str]
) -> dict[str, str]:
    """Return a session's keys as pylance takes them, and where they open something if not known."""
    keys = session.keys
    found = {
        "aws_access_key_id": keys.access_key_id,
        "aws_secret_access_key": keys.secret_access_key,
        "aws_session_token": keys.session_token,
        # From when on pylance asks for others.
        "expires_at_millis": str(int(session.ends_at.timestamp() * 1000)),
    }
    if not any(name.endswith("region") for name in known):
        found["aws_region"] = address.region
    if address.endpoint and not any(name.endswith("endpoint") for name in known):
        found["aws_endpoint"] = address.endpoint
        if address.endpoint.startswith("http://"):
            found["allow_http"] = "true"
    return {**known, **found}


def _ask(request: urllib.request.Request, endpoint: str) -> bytes:
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            return bytes(response.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        # What it says may repeat the request; the log gets its code alone.
        with error:
            said = _code(error.read(_ANSWER_BYTES_MAX))
        logger.error("%s refused a session (%s, %s)", endpoint, error.code, said)
        raise Unavailable(f"{endpoint} refused a session: {said or error.code}") from None
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"{endpoint} gave no session ({type(error).__name__}); try again"
        ) from error


def _read(answer: bytes) -> GrantSession:
    try:
        tags = ElementTree.fromstring(answer).iter()
        found = {one.tag.rpartition("}")[2]: one.text or "" for one in tags}
        keys = S3Keys(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
        ends_at = datetime.fromisoformat(found["Expiration"].replace("Z", "+00:00"))
    except (ElementTree.ParseError, KeyError, ValueError) as error:
        raise Unavailable("the answer of the token service holds no session") from error
    return GrantSession(keys, ends_at if ends_at.tzinfo else ends_at.replace(tzinfo=UTC))


def _code(answer: bytes) -> str:
    try:
        tags = ElementTree.fromstring(answer).iter()
    except ElementTree.ParseError:
        return ""
    return next((one.text or "" for one in tags if one.tag.rpartition("}")[2] == "Code"), "")


def _session_name(who: str) -> str:
    """Return what the store's own audit shows: it has fewer characters than a principal may."""
    return _NOT_IN_A_NAME.sub("-", f"commitlog-{who}".rstrip("-"))[:64]
