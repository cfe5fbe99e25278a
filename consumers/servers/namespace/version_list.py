"""A table's versions, listed by pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lance_namespace import InvalidInputError, ListTableVersionsRequest

from commitlog.adapters.lance_refs import manifests_in
from commitlog.adapters.storage import store_for
from commitlog.client.leader.tables import TableInfo
from commitlog.core.tables.lance_tables import is_in
from commitlog.model.digits import whole_number
from consumers.servers.namespace.branches import branch_entry, branch_versions, is_branch
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.service import Service


def list_versions(service: Service, call: Call) -> dict[str, Any]:
    """List a table's versions that can be read."""
    request = call.read(ListTableVersionsRequest, {"branch", "page_token", "limit", "descending"})
    info = service.info(call.table)
    limit = request.limit
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit must be at least 1, not {limit}")
    if not info.version:
        return {"versions": []}
    if is_branch(request.branch):
        return _page(
            request,
            branch_versions(info, request.branch),
            lambda page: [branch_entry(info, version, path) for version, path in page.items()],
        )
    newest = service.readable(info, info.version)
    if request.descending and limit == 1 and not request.page_token:
        versions = {info.version: newest}
    else:
        versions = readable_versions(info)
    body = _page(request, versions, lambda page: service.version_entries(info, page))
    if len(versions) == 1 and info.version > 1 and limit == 1:
        body["page_token"] = str(info.version)
    return body


def _page(
    request: ListTableVersionsRequest,
    versions: Mapping[int, str],
    describe: Callable[[dict[int, str]], list[dict[str, Any]]],
) -> dict[str, Any]:
    after = _page_token(request.page_token)
    numbers = sorted(versions, reverse=bool(request.descending))
    if after is not None:
        numbers = [n for n in numbers if (n < after if request.descending else n > after)]
    page = numbers if request.limit is None else numbers[: request.limit]
    body: dict[str, Any] = {"versions": describe({number: versions[number] for number in page})}
    if page and len(page) < len(numbers):
        body["page_token"] = str(page[-1])
    return body


def readable_versions(info: TableInfo) -> dict[int, str]:
    """Return the versions that the log knows and that have a file, with their paths."""
    return {
        version: path
        for version, path in manifests_in(store_for(info.location))
        if 1 <= version <= info.version and not is_in(version, info.deleted)
    }


def _page_token(token: str | None) -> int | None:
    if not token:
        return None
    number = whole_number(token)
    if number is None or number < 0:
        raise InvalidInputError(
            f"page_token {token[:40]!r} is not one of this list: send that of its last page"
        )
    return number
