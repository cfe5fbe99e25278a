"""The catalogue's answers on the wire: bodies, and each failure's status and type.

A client takes 4xx as "did not land" and deletes what it wrote; it takes 5xx as "unknown". So an
outcome that isn't known is a 500 of its own type, and 503 is said only when nothing was appended.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lance_namespace.errors import PermissionDeniedError, UnauthenticatedError
from starlette.responses import Response

from commitlog.adapters.storage import UnlistableError
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.reading import dump_json, load_json
from commitlog.errors import (
    CommitLogError,
    InvalidRequest,
    InvalidTransaction,
    LogMoved,
    NoSuchTable,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
    without_build_paths,
)
from commitlog.model.digits import whole_number
from commitlog.model.operations import LanceCommit, Operation
from commitlog.model.records import Code, FailedRequirement, Outcome, Status
from commitlog.model.table import TableId
from commitlog.newest import Newest
from commitlog.words import say
from consumers.partition.files.iceberg_files import UnusableFileError
from consumers.servers.iceberg.service import CatalogView
from consumers.servers.name_pages import names_in
from consumers.servers.security.grants import Viewer

logger = logging.getLogger(__name__)

ALL, REFS = "all", "refs"
_RETRY_AFTER_SECONDS = 1
_OF_LANCE = " (a Lance table)"
_PLACE = re.compile(r"operations\[([0-9]+)\]: ")


class Failure(Exception):
    """An answer that isn't a success."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        failed: Sequence[FailedRequirement] | None = None,
        retry_after_seconds: float = 0,
    ) -> None:
        """Say the HTTP status, the error's type, and what a person should read."""
        super().__init__(without_build_paths(message))
        self.status = status
        self.kind = kind
        self.failed = failed
        self.retry_after_seconds = retry_after_seconds

    def response(self, *, has_body: bool = True) -> Response:
        """Return the HTTP response."""
        error: dict[str, Any] = {"message": str(self), "type": self.kind, "code": self.status}
        if self.failed is not None:
            error["failed-requirements"] = [
                {
                    "identifier": identifier_json(item.table),
                    "requirement": load_json(item.requirement, "requirement"),
                    "actual": load_json(item.actual, "actual"),
                }
                for item in self.failed
            ]
        headers = {}
        if self.retry_after_seconds:
            headers["Retry-After"] = str(max(1, round(self.retry_after_seconds)))
        body = dump_json({"error": error}) if has_body else b""
        return Response(body, self.status, headers, media_type="application/json")


def no_such_table(table: TableId, *, is_lance: bool = False) -> Failure:
    """Say that a table doesn't exist, as one of Iceberg's."""
    message = f"Table does not exist: {'.'.join(table)}{_OF_LANCE if is_lance else ''}"
    return Failure(404, "NoSuchTableException", message)


def no_such_file(location: str) -> Failure:
    """Say that a metadata file is gone."""
    message = f"Failed to open input stream for file: {location}"
    return Failure(404, "NotFoundException", message)


def no_such_namespace(namespace: TableId) -> Failure:
    """Say that a namespace doesn't exist."""
    message = f"Namespace does not exist: {'.'.join(namespace)}"
    return Failure(404, "NoSuchNamespaceException", message)


def already_exists(what: str, name: TableId, *, is_lance: bool = False) -> Failure:
    """Say that a name is taken."""
    message = f"{what} already exists: {'.'.join(name)}{_OF_LANCE if is_lance else ''}"
    return Failure(409, "AlreadyExistsException", message)


def is_lance(view: CatalogView, name: TableId) -> bool:
    """Return True if a Lance table has this name."""
    return name in view.others and name not in view.views


def rename_problem(view: CatalogView, source: TableId, destination: TableId) -> Failure | None:
    """Return why a table or view can't get its new name."""
    if destination[:-1] not in view.namespaces:
        return no_such_namespace(destination[:-1])
    if destination not in view.heads and destination not in view.others:
        return None
    what = "View" if destination in view.views else "Table"
    names = f"{'.'.join(source)} to {'.'.join(destination)}"
    return Failure(409, "AlreadyExistsException", f"Cannot rename {names}. {what} already exists")


def failure_of(error: Exception) -> Failure:
    """Return what to tell a client about an error."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, Invalid | InvalidRequest):
        return Failure(400, "BadRequestException", str(error))
    if isinstance(error, UnauthenticatedError):
        return Failure(401, "NotAuthorizedException", str(error))
    if isinstance(error, PermissionDeniedError):
        return Failure(403, "ForbiddenException", str(error))
    if isinstance(error, NoSuchTable):
        return Failure(404, "NoSuchTableException", str(error))
    if isinstance(error, OutcomeUnknown):
        return Failure(
            500,
            "CommitStateUnknownException",
            f"{error}. It may be committed: transaction {error.transaction_id}. Repeat the request "
            f"with the header Idempotency-Key: {error.transaction_id} to learn it; it isn't "
            "committed twice",
        )
    if isinstance(error, LogMoved):
        if error.transaction_id:
            return Failure(500, "CommitStateUnknownException", str(error))
        return Failure(503, "LogMovedException", f"nothing was committed: {error}")
    if isinstance(error, Unavailable):
        after = error.retry_after_seconds if isinstance(error, Overloaded) else 0
        return Failure(
            503,
            "ServiceUnavailableException",
            f"nothing was committed, try again: {error}",
            retry_after_seconds=after or _RETRY_AFTER_SECONDS,
        )
    if not isinstance(error, CommitLogError):
        logger.error("a request of the Iceberg catalogue failed", exc_info=error)
    return Failure(500, "ServerError", f"{type(error).__name__}: {error}")


@contextmanager
def landed(transaction_id: str) -> Iterator[None]:
    """Say of whatever fails in here that it is committed; by a 4xx a client would take it back."""
    try:
        yield
    except Exception as error:
        message = (
            f"transaction {transaction_id} is committed, but its result cannot be shown now: "
            f"{error}; load it again"
        )
        raise Failure(500, "CommitStateUnknownException", message) from error


@contextmanager
def reading(location: str) -> Iterator[None]:
    """Say of a metadata file that can't be read whether the request or the store is to blame."""
    try:
        yield
    except (FileNotFoundError, UnlistableError, UnusableFileError) as error:
        raise InvalidTransaction(
            f"the metadata file {location} cannot be read: {error}",
            field="metadata-location",
            value=location,
        ) from error
    except OSError as error:
        raise Unavailable(f"the metadata file {location} cannot be read now: {error}") from error


def failure_of_refusal(refused: Outcome) -> Failure:
    """Return what to tell a client about a definite refusal of a commit."""
    if refused.code is Code.NO_SUCH_TABLE:
        return Failure(404, "NoSuchTableException", refused.message)
    if refused.code is Code.NO_SUCH_NAMESPACE:
        return Failure(404, "NoSuchNamespaceException", refused.message)
    if refused.code is Code.TABLE_EXISTS:
        return Failure(409, "AlreadyExistsException", refused.message)
    if refused.code is Code.ID_REUSED:
        # Not 409: a client would read again, and repeat it under this key.
        message = f"the Idempotency-Key was used for another request: {refused.message}"
        return Failure(400, "BadRequestException", message)
    if refused.status is Status.REJECTED:
        return Failure(400, "BadRequestException", refused.message)
    return Failure(
        409, "CommitFailedException", refused.message, failed=refused.failed_requirements
    )


def failure_of_transaction_refusal(
    refused: Outcome, operations: Sequence[Operation], changes: int
) -> Failure:
    """Return the same for a commit to many tables, of whose operations so many are its changes.

    Its message names a Lance operation by its place in the request.
    """
    failure = failure_of_refusal(refused)
    # The document knows one 404.
    kind = "NoSuchTableException" if failure.status == 404 else failure.kind
    said, found = str(failure), _PLACE.match(str(failure))
    if found is not None:
        # All changes are decided at the first one, and refusals name their tables.
        said, at = said[found.end() :], int(found[1])
        if at >= changes:
            # What makes room for a deletion isn't in the request.
            asked = [o for o in operations[changes:at] if not isinstance(o, LanceCommit)]
            said = f"lance-operations[{len(asked)}]: {said}"
    if failure.failed:
        # Clients show their users the message alone.
        others = len(failure.failed) - 1
        rest = f", and {others} more" if others else ""
        said = f"{said}: {_requirement_problem(failure.failed[0])}{rest}"
    return Failure(failure.status, kind, said, failed=failure.failed)


def failure_of_table_refusal(refused: Outcome) -> Failure:
    """Return the same for a commit to one table, in the words that Iceberg's clients know."""
    failure = failure_of_refusal(refused)
    if not refused.failed_requirements:
        return failure
    problem = _requirement_problem(refused.failed_requirements[0])
    said = f"Requirement failed: {problem}"
    if refused.reason is not None and refused.reason.name == "iceberg_not_rebased":
        said += f"; it could not be rebased: {say(refused.reason.argument('problem'))}"
    return Failure(failure.status, failure.kind, said, failed=refused.failed_requirements)


_CHANGED = {
    "assert-last-assigned-field-id": "last assigned field id",
    "assert-current-schema-id": "current schema",
    "assert-last-assigned-partition-id": "last assigned partition id",
    "assert-default-spec-id": "default partition spec",
    "assert-default-sort-order-id": "default sort order",
}


def _requirement_problem(failed: FailedRequirement) -> str:
    sent = load_json(failed.requirement, "requirement")
    (actual,) = load_json(failed.actual, "actual").values()
    kind = str(sent["type"]).lower()
    if kind == "assert-create":
        problem = "table already exists"
    elif kind == "assert-table-uuid":
        problem = f"UUID does not match: expected {actual} != {sent['uuid']}"
    elif kind in _CHANGED:
        wanted = sent[kind.removeprefix("assert-")]
        problem = f"{_CHANGED[kind]} changed: expected id {wanted} != {actual}"
    elif sent.get("snapshot-id") is None:
        problem = f"branch or tag {sent['ref']} was created concurrently"
    elif actual is None:
        problem = f"branch or tag {sent['ref']} is missing, expected {sent['snapshot-id']}"
    else:
        wanted = sent["snapshot-id"]
        problem = f"branch or tag {sent['ref']} has changed: expected id {wanted} != {actual}"
    return problem


def json_reply(value: Mapping[str, Any]) -> Response:
    """Return a JSON answer."""
    return Response(dump_json(value), media_type="application/json")


def table_reply(
    metadata: bytes,
    metadata_location: str | None,
    shown: str = ALL,
    access: Mapping[str, Any] | None = None,
) -> Response:
    """Return a table; its metadata is JSON text already.

    `shown` says which of its snapshots, `access` how its files are reached.
    """
    headers, place = {}, ""
    if access:
        headers["Cache-Control"] = "no-store"  # keys end, whatever the metadata does
    elif metadata_location:
        headers["ETag"] = entity_tag(metadata_location, shown)
    if metadata_location:
        place = f'"metadata-location":{dump_json(metadata_location)},'
    rest = dump_json({"config": {}, **(access or {})}).removeprefix("{")
    body = b"".join((b"{", place.encode(), b'"metadata":', metadata, b",", rest.encode()))
    return Response(body, headers=headers, media_type="application/json")


def entity_tag(metadata_location: str, shown: str) -> str:
    """Return the tag of a table's representation: a metadata file never changes."""
    digest = hashlib.sha256(f"{shown}\n{metadata_location}".encode()).hexdigest()
    return f'"{digest[:32]}"'


def unsupported(what: str) -> Failure:
    """Say that the catalogue doesn't offer something of the specification."""
    message = f"{what} is not supported; /v1/config lists what is"
    return Failure(406, "UnsupportedOperationException", message)


def paginate(
    query: Mapping[str, str],
    within: TableId,
    viewer: Viewer,
    ask: Callable[..., Iterable[TableId]],
) -> tuple[Sequence[str], str | None]:
    """Return one page of the names in a namespace that may be seen, and the token of the next one.

    All names, if the request has no token, not even an empty one: its client may not know of pages.
    """
    size = query.get("pageSize")
    limit = None if size is None else whole_number(size)
    if size is not None and (limit is None or not 0 < limit < 2**31):
        raise Failure(
            400, "BadRequestException", f"pageSize is {size!r:.40}, not a positive number"
        )
    limit = limit if "pageToken" in query else None
    after = query.get("pageToken", "")
    names = names_in(within, after, limit, ask, lambda name, _: viewer.sees(name))
    if limit is None or len(names) <= limit:
        return names, None
    return names[:limit], names[limit - 1]


def identifier_json(table: TableId) -> dict[str, Any]:
    """Return a table's identifier."""
    return {"namespace": list(table[:-1]), "name": table[-1]}


# What clients are shown of a metadata file: all of it, or no snapshots but those that refs name. To
# check each snapshot takes four times as long as to find that the file is JSON.

_WHOLE_MAX = 1_000
_REFS_MAX = 16
"""Their answers can have megabytes: a table's log of snapshots stays in them."""


class ShownFiles:
    """Remembers files, which are looked through once. Thread-safe."""

    def __init__(self) -> None:
        self._whole: dict[tuple[str, int], tuple[str, str]] = {}
        """Files that were found to be JSON: the uuids and locations of their tables."""
        self._refs: Newest[tuple[str, int], bytes] = Newest(_REFS_MAX)

    def show(self, location: str, data: bytes, snapshots: str) -> tuple[bytes, str, str]:
        """Return what is shown, and the table's uuid and location.

        Raises ValueError, LookupError or TypeError for what isn't usual metadata.
        """
        file = location, zlib.crc32(data)
        shown = data if snapshots == ALL else self._refs.get(file)
        if shown is None or file not in self._whole:
            told = json.loads(data.decode())
            if len(self._whole) >= _WHOLE_MAX:
                self._whole.clear()
            uuid, home = str(told["table-uuid"]), str(told["location"])
            self._whole[file] = uuid.lower(), home.rstrip("/")
        if shown is None:
            named = {ref["snapshot-id"] for ref in told["refs"].values()}
            told["snapshots"] = [s for s in told["snapshots"] if s["snapshot-id"] in named]
            shown = self._refs[file] = dump_json(told).encode()
        return shown, *self._whole[file]
