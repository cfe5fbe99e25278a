"""What the Iceberg catalogue tells a client about reaching a table's files, and what it signs.

The client says in `X-Iceberg-Access-Delegation` what it understands; the storage file says what
there is for the table's place.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any
from urllib.parse import quote, unquote
from xml.sax.saxutils import unescape

from starlette.responses import Response

from commitlog.adapters.places import bound
from commitlog.core.iceberg.reading import Node, load_body
from commitlog.model.table import TableId
from consumers.servers.iceberg.replies import Failure, json_reply, no_such_table
from consumers.servers.security.budgets import ICEBERG_SEPARATOR
from consumers.servers.security.grants import Access, Principal
from consumers.servers.security.places import UUID, folder_name
from consumers.servers.vending.signing import NotSigned, ToSign, judge, sign
from consumers.servers.vending.vendor import Subject, Vendor

HEADER = "X-Iceberg-Access-Delegation"
VENDED, SIGNED = "vended-credentials", "remote-signing"


class TableAccess:
    """Access to tables' files, for one way to the catalogue: the present, or a position."""

    def __init__(self, vendor: Vendor, *, start: str = "v1", is_past: bool = False) -> None:
        """Hand out by a vendor; `start` is how the addresses of this catalogue begin."""
        self._vendor = vendor
        self._start = start
        self._most = Access.READ if is_past else Access.WRITE

    def told(
        self, principal: Principal, subject: Subject, understood: Collection[str]
    ) -> dict[str, Any]:
        """Return what a loaded table's answer says of it, by the members' names."""
        access = self._access(principal, subject)
        if access is None:
            return {}
        if VENDED in understood:
            vended = self._vended(principal, subject, access)
            if vended:
                prefix = bound(subject.location)
                credentials = [{"prefix": prefix, "config": vended}]
                return {"config": vended, "storage-credentials": credentials}
        if SIGNED in understood and self._vendor.signs(subject):
            return {"config": {**self._place(subject), **self._signer(subject.table)}}
        return {}

    def credentials(self, principal: Principal, subject: Subject) -> Response:
        """Return fresh keys for a table's objects; none if there are none for its place."""
        found = self.told(principal, subject, (VENDED,))
        return _not_kept(json_reply({"storage-credentials": found.get("storage-credentials", [])}))

    def sign(
        self, principal: Principal, subject: Subject, body: bytes, *, is_staged: bool = False
    ) -> Response:
        """Sign a request to S3 that concerns the table's own objects.

        Principals that may write a staged or dropped table reach its files as long as no other
        table has its location.
        """
        wanted = _to_sign(body)
        scope = self._vendor.scope(subject)
        if scope is None or not self._vendor.signs(subject):
            raise _forbidden(f"requests are not signed for {bound(subject.location)}")
        address = self._vendor.address(subject)
        try:
            judged = judge(wanted, scope, address)
            access = self._access(principal, subject)
            least = Access.WRITE if is_staged else judged.access
            if access is None or least > access:
                raise NotSigned(
                    f"{principal.name or 'an anonymous client'} may not "
                    f"{least.name.lower()} the files of {'.'.join(subject.table)}; ask its "
                    "administrator for a grant"
                )
            headers = sign(judged, wanted.method, address, self._vendor.now())
        except NotSigned as error:
            if error.status == 400:
                raise Failure(400, "BadRequestException", str(error)) from error
            raise _forbidden(str(error)) from error
        answer = {"uri": judged.url, "headers": {name: [value] for name, value in headers.items()}}
        return _not_kept(json_reply(answer))

    def _access(self, principal: Principal, subject: Subject) -> Access | None:
        access = self._vendor.access(principal, subject)
        return min(access, self._most) if access else None

    def _vended(self, principal: Principal, subject: Subject, access: Access) -> dict[str, str]:
        session = self._vendor.session(principal, subject, access)
        if session is None:
            return {}
        return {
            **self._place(subject),
            "s3.access-key-id": session.keys.access_key_id,
            "s3.secret-access-key": session.keys.secret_access_key,
            "s3.session-token": session.keys.session_token,
            "s3.session-token-expires-at-ms": str(int(session.ends_at.timestamp() * 1000)),
            "client.refresh-credentials-endpoint": self._path(subject.table, "credentials"),
        }

    def _place(self, subject: Subject) -> dict[str, str]:
        address = self._vendor.address(subject)
        found = {"s3.region": address.region, "client.region": address.region}
        if address.endpoint:
            found |= {"s3.endpoint": address.endpoint, "s3.path-style-access": "true"}
        return found

    def _signer(self, table: TableId) -> dict[str, str]:
        path = self._path(table, "sign")
        return {
            "s3.remote-signing-enabled": "true",
            "s3.signer": "S3V4RestSigner",
            "s3.signer.endpoint": path,
            "signer.endpoint": path,
            # What pyiceberg takes by itself doesn't ask a signer.
            "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
        }

    def _path(self, table: TableId, last: str) -> str:
        namespace = quote(ICEBERG_SEPARATOR.join(table[:-1]), safe="")
        name = quote(table[-1], safe="")
        return f"{self._start}/namespaces/{namespace}/tables/{name}/{last}"


def understood(header: str) -> frozenset[str]:
    """Return the ways of access that a client says it understands."""
    return frozenset(filter(None, (one.strip().lower() for one in header.split(","))))


def staged_uuid(table: TableId, body: bytes) -> str:
    """Return the uuid of a table that isn't there yet, or no more; 404 if the request has none.

    The request to be signed has it in its address, or in the keys of the objects that it deletes.
    """
    node = Node(load_body(body), "")
    sent = node.optional("body")
    objects = unescape(sent.string()) if sent is not None else ""
    for text in (unquote(node.member("uri").text()), objects):
        found = re.search(rf"/{re.escape(folder_name(table[-1]))}-({UUID})/", text)
        if found is not None:
            return found[1]
    raise no_such_table(table)


def _to_sign(body: bytes) -> ToSign:
    node = Node(load_body(body), "")
    provider = node.optional("provider")
    if provider is not None and provider.text().lower() != "s3":
        raise Failure(400, "BadRequestException", "provider: only requests to S3 are signed")
    node.member("region").text()
    headers: dict[str, str] = {}
    for name, value in node.member("headers").object().items():
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise Failure(400, "BadRequestException", f"headers: {name!r} is not a list of strings")
        if name.lower() in headers:
            raise Failure(400, "BadRequestException", f"headers: {name!r} is there twice")
        headers[name.lower()] = ",".join(value)
    sent = node.optional("body")
    return ToSign(
        node.member("method").text().upper(),
        node.member("uri").text(),
        headers,
        sent.string() if sent is not None else "",
    )


def _not_kept(response: Response) -> Response:
    response.headers["Cache-Control"] = "no-store"
    return response


def _forbidden(message: str) -> Failure:
    return Failure(403, "ForbiddenException", message)
