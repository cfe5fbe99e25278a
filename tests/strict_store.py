"""Stands before the S3 server of the tests, and holds requests to what moto leaves open.

Each request is signed, as botocore computes it, by the server's own key or by a session's; each
`x-amz-` header is signed with it; and a session does what its policy lets it.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qs, quote

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.object_store import KEY, SECRET, SETTING_UP

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]
_SETTING_UP = f"HTTP_{SETTING_UP}".upper().replace("-", "_")
_OBJECT_ACTIONS = {
    "GET": "s3:GetObject",
    "HEAD": "s3:GetObject",
    "PUT": "s3:PutObject",
    "POST": "s3:PutObject",
    "DELETE": "s3:DeleteObject",
}


@dataclass
class StrictStore:
    """What it let through and refused."""

    seen: list[tuple[str, str, str]] = field(default_factory=list)
    """Key id, method and path with query of each request that was let through."""
    refused: list[str] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    """Key ids of sessions that the test ended."""

    def guarding(self, application: Application) -> Application:
        def guarded(request: dict[str, Any], start: Any) -> Iterable[bytes]:
            problem = "" if _SETTING_UP in request else self._problem(request)
            if not problem:
                return application(request, start)
            self.refused.append(f"{request['REQUEST_METHOD']} {request['PATH_INFO']}: {problem}")
            start("403 Forbidden", [("Content-Type", "application/xml")])
            said = f"<Error><Code>AccessDenied</Code><Message>{problem}</Message></Error>"
            return [said.encode()]

        return guarded

    def _problem(self, request: dict[str, Any]) -> str:
        method, query = request["REQUEST_METHOD"], request.get("QUERY_STRING", "")
        path = request["PATH_INFO"].encode("latin-1").decode()
        if path.startswith("/moto-api/"):
            return ""
        headers = _headers(request)
        scheme, _, rest = headers.get("authorization", "").partition(" ")
        if scheme != "AWS4-HMAC-SHA256":
            return "it is not signed"
        said = dict(part.strip().split("=", 1) for part in rest.split(","))
        key_id, day, region, service, _ = said["Credential"].split("/")
        secret, token, policy = self._key(key_id)
        if not secret:
            return f"key {key_id} is unknown or ended"
        if headers.get("x-amz-security-token", "") != token:
            return "the token is not the key's"
        names = said["SignedHeaders"].split(";")
        loose = [n for n in headers if n.startswith("x-amz-") and n not in names]
        if loose:
            return f"headers {loose} are not signed"
        url = f"http://{headers['host']}{quote(path, safe='/~-_.')}"
        asked = AWSRequest(
            method, f"{url}?{query}" if query else url, {n: headers[n] for n in names}, b""
        )
        asked.context["timestamp"] = headers["x-amz-date"]
        body = _body(request)
        if service == "sts":
            asked.data = body
        kind = S3SigV4Auth if service == "s3" else SigV4Auth
        auth = kind(Credentials(key_id, secret, token or None), service, region)
        text = auth.string_to_sign(asked, auth.canonical_request(asked))
        if auth.signature(text, asked) != said["Signature"]:
            return "the signature is another one"
        digest = headers.get("x-amz-content-sha256", "")
        if len(digest) == 64 and digest != hashlib.sha256(body).hexdigest():
            return "the body is not the one that was signed"
        if policy is not None and not _lets(policy, method, path, query):
            return f"the session's policy doesn't let it: {policy}"
        self.seen.append((key_id, method, f"{path}?{query}"))
        return ""

    def _key(self, key_id: str) -> tuple[str, str, Any]:
        from moto.sts.models import sts_backends

        if key_id == KEY:
            return SECRET, "", None
        for account in sts_backends.values():
            for backend in account.values():
                for role in backend.assumed_roles:
                    is_over = role.expiration.replace(tzinfo=UTC) < datetime.now(UTC)
                    if role.access_key_id == key_id and not is_over and key_id not in self.ended:
                        return role.secret_access_key, role.session_token, json.loads(role.policy)
        return "", "", None


def _headers(request: dict[str, Any]) -> dict[str, str]:
    found = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in request.items()
        if name.startswith("HTTP_") or name in ("CONTENT_TYPE", "CONTENT_LENGTH")
    }
    return {name: value for name, value in found.items() if value}


def _body(request: dict[str, Any]) -> bytes:
    # Chunked bodies are read by moto alone: none of these is signed.
    if not request.get("CONTENT_LENGTH"):
        return b""
    body = bytes(request["wsgi.input"].read(int(request["CONTENT_LENGTH"])))
    request["wsgi.input"] = io.BytesIO(body)
    return body


def _lets(policy: Any, method: str, path: str, query: str) -> bool:
    bucket, _, key = path.removeprefix("/").partition("/")
    fields = parse_qs(query, keep_blank_values=True)
    action = _OBJECT_ACTIONS.get(method, "")
    if "uploadId" in fields and method == "DELETE":
        action = "s3:AbortMultipartUpload"
    if not key:
        action = "s3:ListBucket" if method == "GET" else "s3:Other"
        if "delete" in fields:
            return True  # one by one below, on AWS; no test relies on it
    resource = f"arn:aws:s3:::{bucket}" + (f"/{key}" if key else "")
    prefix = fields.get("prefix", [""])[0]
    for statement in policy["Statement"]:
        wanted = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix")
        if (
            statement["Effect"] == "Allow"
            and action in statement["Action"]
            and fnmatchcase(resource, statement["Resource"])
            and (wanted is None or any(fnmatchcase(prefix, one) for one in wanted))
        ):
            return True
    return False
