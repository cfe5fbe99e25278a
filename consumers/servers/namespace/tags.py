"""Tags: names of versions, which Lance keeps beside the table in `_refs`."""

from __future__ import annotations

from typing import Any

import lance
from lance_namespace import (
    CreateTableTagRequest,
    DeleteTableTagRequest,
    GetTableTagVersionRequest,
    InvalidInputError,
    ListTableTagsRequest,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    UpdateTableTagRequest,
)

from commitlog.adapters.lance_refs import GUARD_TAG
from commitlog.client.leader.tables import TableInfo
from commitlog.core.tables.branch_names import TAG_NAMES, is_tag_name
from consumers.servers.namespace.branch_rows import open_branch
from consumers.servers.namespace.branches import is_branch
from consumers.servers.namespace.call import Call, page
from consumers.servers.namespace.service import Service


def list_tags(service: Service, call: Call) -> dict[str, Any]:
    """List a table's tags."""
    request = call.read(ListTableTagsRequest, {"page_token", "limit"})
    tags = _tags(service, service.info(call.table))
    names, more = page(sorted(tags), request)
    return {"tags": {name: _contents(tags[name]) for name in names}, **more}


def tag_version(service: Service, call: Call) -> dict[str, Any]:
    """Return the version that a tag names."""
    request = call.read(GetTableTagVersionRequest, {"tag"})
    info = service.info(call.table)
    tags = _tags(service, info)
    _need(info, tags, request.tag)
    found = _contents(tags[request.tag])
    return {name: found[name] for name in ("version", "branch") if name in found}


def create_tag(service: Service, call: Call) -> dict[str, Any]:
    """Name a version."""
    request = call.read(CreateTableTagRequest, {"tag", "version", "branch"})
    if not is_tag_name(request.tag):
        raise InvalidInputError(f"{request.tag!r} is not a valid tag name. {TAG_NAMES}")
    info = service.info(call.table)
    dataset, reference = _tagged(service, info, request)
    if request.tag in dataset.tags.list():
        raise TableTagAlreadyExistsError(f"{info.name} has a tag {request.tag!r}")
    try:
        dataset.tags.create(request.tag, reference)
    except (ValueError, OSError) as error:
        if "already exists" in str(error):
            raise TableTagAlreadyExistsError(str(error)) from error
        raise InvalidInputError(f"tag {request.tag!r}: {error}") from error
    return {}


def update_tag(service: Service, call: Call) -> dict[str, Any]:
    """Have a tag name another version."""
    request = call.read(UpdateTableTagRequest, {"tag", "version", "branch"})
    info = service.info(call.table)
    dataset, reference = _tagged(service, info, request)
    _need(info, dataset.tags.list(), request.tag)
    try:
        dataset.tags.update(request.tag, reference)
    except (ValueError, OSError) as error:
        raise InvalidInputError(f"tag {request.tag!r}: {error}") from error
    return {}


def delete_tag(service: Service, call: Call) -> dict[str, Any]:
    """Forget a tag."""
    request = call.read(DeleteTableTagRequest, {"tag"})
    info = service.info(call.table)
    dataset = _alone(service, info)
    _need(info, dataset.tags.list(), request.tag)
    try:
        dataset.tags.delete(request.tag)
    except (ValueError, OSError) as error:
        raise TableTagNotFoundError(f"tag {request.tag!r}: {error}") from error
    return {}


def _tagged(service: Service, info: TableInfo, request: Any) -> tuple[lance.LanceDataset, Any]:
    """Return the table, and what Lance calls the version that a tag is for."""
    if not is_branch(request.branch):
        return _alone(service, info, request.version), request.version
    open_branch(service, info, request.branch, request.version)
    return _alone(service, info), (request.branch, request.version)


def _alone(service: Service, info: TableInfo, version: int | None = None) -> lance.LanceDataset:
    """Open a version that no other request uses: pylance can't read one while its tags change."""
    return service.log.opened.alone(info, service.open(info, version).version)


def _tags(service: Service, info: TableInfo) -> dict[str, Any]:
    tags = dict(service.open(info).tags.list()) if info.version else {}
    tags.pop(GUARD_TAG, None)
    return tags


def _need(info: TableInfo, tags: Any, tag: str) -> None:
    if tag not in tags:
        raise TableTagNotFoundError(f"{info.name} has no tag {tag!r}")


def _contents(tag: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "version": int(tag["version"]),
        "manifestSize": int(tag["manifest_size"]),
    }
    if tag.get("branch"):
        body["branch"] = tag["branch"]
    return body
