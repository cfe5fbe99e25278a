"""Branches: Lance's own references, kept beside the table in `_refs` and `tree/<branch>`.

The log orders a table's main line. A branch's versions are files put if absent, as Lance keeps them
without a log: of two writers who stage the same version one gets 409 and finds the other's there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard

from lance_namespace import (
    ConcurrentModificationError,
    CreateTableBranchRequest,
    DeleteTableBranchRequest,
    InvalidInputError,
    ListTableBranchesRequest,
    PermissionDeniedError,
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)

from commitlog.adapters.lance_namespace import object_path, relative_path
from commitlog.adapters.lance_refs import manifests_in
from commitlog.adapters.storage import store_for
from commitlog.client.leader.tables import TableInfo, ask_all
from commitlog.codecs.manifest_file import (
    VERSIONS_DIRECTORY,
    decode_manifest,
    manifest_name,
    parse_manifest_name,
)
from commitlog.core.manifest.data_files import data_files, leads_out
from commitlog.core.tables.branch_names import MAIN, branch_location, branch_name_problem
from commitlog.errors import CommitLogError
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.limits import LOCATION_BYTES_MAX, LOCATION_PART_BYTES_MAX
from consumers.servers.namespace.call import Call, page
from consumers.servers.namespace.service import Service
from consumers.servers.namespace.staged import check_state, staged_bytes


def is_branch(branch: str | None) -> TypeGuard[str]:
    """Say whether a request is about another line than the main one."""
    return branch is not None and branch not in ("", MAIN)


def list_branches(service: Service, call: Call) -> dict[str, Any]:
    """List a table's branches."""
    request = call.read(ListTableBranchesRequest, {"page_token", "limit"})
    branches = _branches(service, service.info(call.table))
    names, more = page(sorted(branches), request)
    return {"branches": {name: _contents(branches[name]) for name in names}, **more}


def create_branch(service: Service, call: Call) -> dict[str, Any]:
    """Begin a branch at a version of the main line or of another branch."""
    request = call.read(CreateTableBranchRequest, {"name", "from_branch", "from_version"})
    info = service.info(call.table)
    branches = _branches(service, info)
    if request.name in branches or request.name == MAIN:
        raise TableBranchAlreadyExistsError(f"{info.name} has a branch {request.name!r}")
    if is_branch(request.from_branch):
        _need(info, branches, request.from_branch)
        reference = (request.from_branch, request.from_version)
        service.open(info).create_branch(request.name, reference)
    else:
        dataset = service.open(info, request.from_version)
        dataset.create_branch(request.name, dataset.version)
    return {}


def delete_branch(service: Service, call: Call) -> dict[str, Any]:
    """Forget a branch and its versions."""
    request = call.read(DeleteTableBranchRequest, {"name"})
    info = service.info(call.table)
    _need(info, _branches(service, info), request.name)
    refuse_kept_by_log(service, info, request.name)
    service.open(info).branches.delete(request.name)
    return {}


def branch_versions(info: TableInfo, branch: str) -> dict[int, str]:
    """Return a branch's versions with their paths; TableBranchNotFoundError if it has none."""
    found = dict(manifests_in(store_for(info.location), _folder(branch)))
    if not found:
        raise _missing(info, branch)
    return found


def describe_branch_version(info: TableInfo, branch: str, version: int | None) -> dict[str, Any]:
    """Describe a version of a branch, the newest by default."""
    versions = branch_versions(info, branch)
    wanted = max(versions) if version is None else version
    if wanted not in versions:
        raise TableVersionNotFoundError(
            f"branch {branch!r} of {info.name} has no version {wanted}; its newest is"
            f" {max(versions)}"
        )
    return branch_entry(info, wanted, versions[wanted])


def branch_entry(info: TableInfo, version: int, path: str) -> dict[str, Any]:
    """Describe a version of a branch by its file."""
    data = store_for(info.location).read(path)
    state, _ = decode_manifest(data)
    return {
        "version": version,
        "manifest_path": object_path(info.location, path),
        "manifest_size": len(data),
        "timestamp_millis": state.timestamp_nanos // 1_000_000,
    }


def create_branch_version(service: Service, info: TableInfo, request: Any) -> dict[str, Any]:
    """Put a staged manifest under its version's name, if none is there."""
    refuse_kept_by_log(service, info, request.branch)
    folder, staged = _folder(request.branch), relative_path(info.location, request.manifest_path)
    name = parse_manifest_name(staged.rsplit("/", 1)[1])
    assert name is not None
    if staged.rsplit("/", 1)[0] != folder or name.version != request.version:
        raise InvalidInputError(
            f"{request.manifest_path!r} is not a staged manifest of version "
            f"{request.version} of branch {request.branch!r}; stage it below {folder}"
        )
    store = store_for(info.location)
    path = f"{folder}/{manifest_name(request.version, name.scheme)}"
    names = map(parse_manifest_name, store.names(folder))
    known = {one.version for one in names if one is not None and not one.staged_by}
    data = staged_bytes(info.location, staged, request)
    try:
        state, _ = decode_manifest(data)
    except (CommitLogError, ValueError) as error:
        raise InvalidInputError(f"{request.manifest_path!r} is no manifest: {error}") from error
    check_state(info.location, state, request)
    check_files(info, map(DataFragment.FromString, state.fragments.values()))
    follows = request.version - 1 in known or not known - {request.version}
    if not follows or (not store.create(path, data) and store.read(path) != data):
        raise ConcurrentModificationError(
            f"version {request.version} of branch {request.branch!r} of {info.name} is not "
            "the next version; describe the newest version, and stage again"
        )
    store.delete(staged)
    return {"version": branch_entry(info, request.version, path)}


def check_files(info: TableInfo, fragments: Iterable[Any]) -> None:
    """Refuse fragments, Lance's or pylance's, one of whose files is outside of its folder.

    The log checks those of the main line; manifests of branches are checked here only.
    """
    for fragment in fragments:
        files = data_files(fragment)
        if path := next((file.path for file in files if leads_out(file.path)), None):
            raise PermissionDeniedError(f"a branch of {info.name} names the data file {path!r}")


def refuse_kept_by_log(service: Service, info: TableInfo, branch: str) -> None:
    """Refuse to go around the log, if a Clone made the branch a table of it."""
    place = branch_location(info.location, branch)
    told = ask_all(service.log.runtime(), ending=branch_location("", branch))
    kept = next((table.name for table in told if table.location == place), None)
    if kept is not None:
        raise UnsupportedOperationError(
            f"branch {branch!r} of {info.name} is a table of the log, {kept}: commit to it, or drop"
            " it, under that name"
        )


def _folder(branch: str) -> str:
    problem = branch_name_problem(branch)
    if problem:
        raise InvalidInputError(f"{branch!r} is not a valid branch name: {problem}")
    longest = max(len(part.encode()) for part in branch.split("/"))
    if longest > LOCATION_PART_BYTES_MAX or len(branch.encode()) > LOCATION_BYTES_MAX:
        raise InvalidInputError(
            f"{branch[:60]!r}... is not a valid branch name: it is longer than a folder's name"
        )
    return f"{branch_location('', branch)[1:]}/{VERSIONS_DIRECTORY}"


def _branches(service: Service, info: TableInfo) -> dict[str, Any]:
    return dict(service.open(info).branches.list()) if info.version else {}


def _need(info: TableInfo, branches: dict[str, Any], branch: str) -> None:
    if branch not in branches:
        raise _missing(info, branch)


def _missing(info: TableInfo, branch: str) -> TableBranchNotFoundError:
    return TableBranchNotFoundError(f"{info.name} has no branch {branch!r}")


def _contents(branch: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "parentVersion": int(branch["parent_version"]),
        "createAt": int(branch["create_at"]),
        "manifestSize": int(branch["manifest_size"]),
    }
    if branch.get("parent_branch"):
        body["parentBranch"] = branch["parent_branch"]
    return body
