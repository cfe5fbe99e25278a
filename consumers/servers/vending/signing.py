"""Judges requests to S3 that a client wants signed: only what concerns its table's own objects.

A request is taken apart, compared with what the table has, and put together again in its one
canonical form. Whatever isn't known here, a parameter, a header, an operation, is refused: a
signature opens all that the server's own keys open.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit
from xml.etree import ElementTree

from commitlog.adapters.s3_requests import (
    CONTENT_HASH,
    DATE,
    TOKEN,
    UNSIGNED_PAYLOAD,
    S3Address,
    encoded,
    signature_headers,
)
from consumers.servers.security.grants import Access
from consumers.servers.vending.scope import Scope

URL_CHARACTERS_MAX = 16 * 1024
BODY_CHARACTERS_MAX = 1024 * 1024
_ID = "x-id"
"""Names the operation, by some clients; it means nothing."""
_LISTING = frozenset(
    {
        *("list-type", "prefix", "delimiter", "max-keys", "continuation-token", "start-after"),
        *("marker", "encoding-type", "fetch-owner"),
    }
)
_PART = frozenset({"partNumber", "uploadId"})
_PARTS_LISTED = frozenset({"uploadId", "max-parts", "part-number-marker"})
_COPY = "x-amz-copy-source"
_SIGNED = frozenset({"content-md5", "content-type", "range", "if-match", "if-none-match"})
_KNOWN = re.compile(
    "x-amz-(?:checksum-[a-z0-9-]+|sdk-checksum-algorithm|server-side-encryption[a-z0-9-]*"
    "|copy-source(?:-range|-if-[a-z-]+)?|meta-[a-z0-9_.-]+|storage-class|trailer"
    "|decoded-content-length|te|expected-bucket-owner|request-payer|mp-object-size|user-agent)"
)
_IGNORED = frozenset({CONTENT_HASH, DATE})
"""Decided here, whatever the client has sent."""
_HASH = re.compile(r"[0-9a-f]{64}")
_UNSIGNED = frozenset({UNSIGNED_PAYLOAD, "STREAMING-UNSIGNED-PAYLOAD-TRAILER"})


class NotSigned(Exception):
    """A request isn't signed; the message says why."""

    def __init__(self, message: str, status: int = 403) -> None:
        """Take why, and the status: 403 is forbidden, 400 makes no sense."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ToSign:
    """A request to S3, as a client describes it."""

    method: str
    uri: str
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: str = ""


class Judged(NamedTuple):
    """What a request does, and how it is written."""

    access: Access
    url: str
    headers: dict[str, str]
    """The headers of the client's that are signed."""
    content_hash: str


class _Target(NamedTuple):
    bucket: str
    key: str
    origin: str
    path: str


def judge(wanted: ToSign, scope: Scope, address: S3Address) -> Judged:
    """Return what a request does to a table's objects; NotSigned if it does anything else."""
    if len(wanted.uri) > URL_CHARACTERS_MAX or len(wanted.body) > BODY_CHARACTERS_MAX:
        raise NotSigned("the request is too large to be signed", 400)
    try:
        parts = urlsplit(wanted.uri)
        target, query = _target(parts, address, scope), _query(parts.query)
    except ValueError as error:
        raise NotSigned(f"uri {wanted.uri!r} is not a URL of an object: {error}", 400) from error
    if parts.fragment:
        raise NotSigned("uri has a fragment", 400)
    headers = _headers(wanted.headers)
    access = _access(wanted, target, query, scope)
    if _COPY in headers:
        _check_copied(headers[_COPY], scope, access)
    text = "&".join(f"{encoded(name)}={encoded(value)}" for name, value in sorted(query.items()))
    url = f"{target.origin}{target.path}" + (f"?{text}" if text else "")
    return Judged(access, url, headers, _content_hash(wanted, query))


def sign(judged: Judged, method: str, address: S3Address, now: datetime) -> dict[str, str]:
    """Return the headers that a client adds to a request that was judged."""
    if address.keys is None:
        raise NotSigned("the server has no keys for this store; its storage file names them", 403)
    return signature_headers(
        method,
        judged.url,
        judged.headers,
        keys=address.keys,
        region=address.region,
        now=now,
        content_hash=judged.content_hash,
    )


def endpoints(address: S3Address) -> tuple[str, ...]:
    """Return the origins under which a store is reached."""
    if address.endpoint:
        return (address.endpoint,)
    return (f"https://s3.{address.region}.amazonaws.com", "https://s3.amazonaws.com")


def _target(parts: SplitResult, address: S3Address, scope: Scope) -> _Target:
    origin, path = f"{parts.scheme}://{parts.netloc}", unquote(parts.path, errors="strict")
    for endpoint in endpoints(address):
        scheme, _, host = endpoint.partition("://")
        if origin == endpoint:
            bucket, _, key = path.removeprefix("/").partition("/")
            return _Target(bucket, key, origin, encoded(path, safe="/"))
        if origin == f"{scheme}://{scope.bucket}.{host}":
            return _Target(scope.bucket, path.removeprefix("/"), origin, encoded(path, safe="/"))
    raise NotSigned(f"{origin} is not where this table's objects are: {endpoints(address)[0]}")


def _query(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in filter(None, text.split("&")):
        name, _, value = pair.partition("=")
        name, value = (unquote(one, errors="strict") for one in (name, value))
        if "+" in pair or name in found:
            raise NotSigned(f"parameter {name!r} is ambiguous", 400)
        found[name] = value
    return found


def _access(wanted: ToSign, target: _Target, query: Mapping[str, str], scope: Scope) -> Access:
    names = frozenset(query) - {_ID}
    if not target.key:
        return _access_of_bucket(wanted, target, query, scope)
    if not scope.holds(target.bucket, target.key):
        raise NotSigned(f"{target.bucket}/{target.key} is not an object of this table")
    match wanted.method:
        case "GET" | "HEAD" if names <= {"partNumber"}:
            return Access.READ
        case "GET" if "uploadId" in names and names <= _PARTS_LISTED:
            return Access.WRITE
        case "PUT" | "DELETE" if not names:
            return Access.WRITE
        case "PUT" if names == _PART:
            return Access.WRITE
        case "POST" if names in ({"uploads"}, {"uploadId"}):
            return Access.WRITE
        case "DELETE" if names == {"uploadId"}:
            return Access.WRITE
    raise NotSigned(f"{wanted.method} with {sorted(names)} is not allowed on a table's objects")


def _access_of_bucket(
    wanted: ToSign, target: _Target, query: Mapping[str, str], scope: Scope
) -> Access:
    names = frozenset(query) - {_ID}
    if target.bucket != scope.bucket:
        raise NotSigned(f"bucket {target.bucket!r} is not this table's")
    if wanted.method == "GET" and names <= _LISTING:
        prefix = query.get("prefix", "")
        if prefix != f"{scope.folder}/" and not scope.holds(target.bucket, prefix.rstrip("/")):
            raise NotSigned(f"prefix {prefix!r} is not below {scope.folder}/")
        return Access.READ
    if wanted.method == "POST" and names == {"delete"}:
        keys = _deleted(wanted.body)
        foreign = next((key for key in keys if not scope.holds(target.bucket, key)), None)
        if foreign is not None:
            raise NotSigned(f"{target.bucket}/{foreign} is not an object of this table")
        return Access.WRITE
    raise NotSigned(f"{wanted.method} with {sorted(names)} is not allowed on a table's bucket")


def _deleted(body: str) -> list[str]:
    if not body:
        raise NotSigned("a request that deletes many objects needs its body to be signed", 400)
    if "<!" in body:
        raise NotSigned("the body is not a plain list of objects", 400)
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise NotSigned(f"the body is not XML: {error}", 400) from error
    keys = []
    for one in root:
        inner = {child.tag.rpartition("}")[2]: child.text or "" for child in one}
        if one.tag.rpartition("}")[2] == "Quiet":
            continue
        if set(inner) != {"Key"} or len(one) != 1 or len(one[0]):
            raise NotSigned("the body deletes something other than objects by key")
        keys.append(inner["Key"])
    return keys


def _headers(given: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in given.items():
        if name in _IGNORED:
            continue
        if name == TOKEN or (name.startswith("x-amz-") and not _KNOWN.fullmatch(name)):
            raise NotSigned(f"header {name!r} is not signed for a table's objects")
        if not value.isprintable() or not value.isascii():
            raise NotSigned(f"header {name!r} is not plain text", 400)
        if name in _SIGNED or name.startswith("x-amz-"):
            found[name] = value
    return found


def _check_copied(source: str, scope: Scope, access: Access) -> None:
    bucket, _, key = unquote(source).removeprefix("/").partition("/")
    if access < Access.WRITE or "?" in source or not scope.holds(bucket, key):
        raise NotSigned(f"{source!r} is not an object of this table")


def _content_hash(wanted: ToSign, query: Mapping[str, str]) -> str:
    if "delete" in query:
        # What was looked at is what is sent.
        return hashlib.sha256(wanted.body.encode()).hexdigest()
    given = wanted.headers.get(CONTENT_HASH, UNSIGNED_PAYLOAD)
    if given not in _UNSIGNED and not _HASH.fullmatch(given):
        raise NotSigned(f"{CONTENT_HASH} {given!r} is not signed; send UNSIGNED-PAYLOAD", 400)
    return given
