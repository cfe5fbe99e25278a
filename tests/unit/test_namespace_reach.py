"""What a staged manifest may reach: its own place, and what its writer may read anyway."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation

from commitlog.core.manifest.indices import FRAGMENT_REUSE_INDEX
from commitlog.errors import CommitConflict
from commitlog.lancepb.table_pb2 import FragmentReuseIndexDetails, IndexMetadata
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from consumers.servers.namespace.settings import Settings
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.identity import Security
from consumers.servers.server import ServerSettings
from tests.namespace_world import Capture, World, numbers

ADMIN, BOB = ({"x-api-key": f"{name}-0123456789abcdef"} for name in ("admin", "bob"))
ACCESS = """
[keys]
admin = "sha256:{admin}"
bob = "sha256:{bob}"
[[grants]]
to = "admin"
on = "$"
can = "admin"
[[grants]]
to = "bob"
on = "bobs"
can = "admin"
"""


def access_file(folder: Path) -> Path:
    """Write who may do what; return where."""
    hashes = {
        name: hashlib.sha256(key["x-api-key"].encode()).hexdigest()
        for name, key in (("admin", ADMIN), ("bob", BOB))
    }
    written = folder / "access.toml"
    written.write_text(ACCESS.format(**hashes))
    return written


def secured_world(folder: Path) -> World:
    """Return a server where bob has the namespace `bobs`, and `allowed` is an allowed prefix."""
    security = Security(AccessFile(access_file(folder)))
    return World(
        folder,
        settings=Settings(locations=(str(folder / "allowed"),)),
        server=ServerSettings(security=security),
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = secured_world(tmp_path)
    yield made
    made.close()


def create(world: World, table: str, first: int, who: dict[str, str] = ADMIN) -> str:
    status, body = world.rows(f"/v1/table/{table}/create", numbers(first, first + 2), headers=who)
    assert status == 200, body
    return str(body["location"])


def query(world: World, table: str, who: dict[str, str]) -> tuple[int, Any]:
    body = {"vector": {}, "k": 10}
    status, found = world.post(f"/v1/table/{table}/query", body, headers=who)
    if status == 200:
        found = sorted(pa.ipc.open_file(found).read_all().column("id").to_pylist())
    return status, found


def stage(world: World, table: str, work: Any) -> dict[str, Any]:
    """Have pylance stage a version; return the request that would commit it."""
    status, described = world.post(f"/v1/table/{table}/describe", headers=ADMIN)
    assert status == 200
    location = described["location"]
    capture = Capture(location, lance.dataset(location).version)
    work(lance.dataset(namespace_client=capture, table_id=table.split("$")))
    (request,) = capture.requests
    return request


def change(who: dict[str, str]) -> dict[str, Any]:
    """Return a change of an Iceberg table, beside which a transaction has Lance's operations."""
    updates = [{"action": "set-properties", "updates": {"by": who["x-api-key"]}}]
    name = {"namespace": ["bobs"], "name": "ice"}
    return {"identifier": name, "requirements": [], "updates": updates}


def refer_to(world: World, table: str, place: str, who: dict[str, str], way: str = "") -> Any:
    """Stage a version with a base path, and commit it; return the answer."""
    base = lance.DatasetBasePath(place, name="base", is_dataset_root=True)
    request = stage(world, table, lambda dataset: dataset.add_bases([base]))
    if way == "transactions/commit":
        operation = {"create_table_version": {**request, "id": table.split("$")}}
        body: Any = {"table-changes": [change(who)], "lance-operations": [operation]}
        return world.post("/v1/transactions/commit", body, headers=who)
    if way != "batch-commit":
        return world.post(f"/v1/table/{table}/version/create", request, headers=who)
    body = {"operations": [{"create_table_version": request}]}
    return world.post("/v1/table/batch-commit", body, headers=who)


def fragment_of(source: str, base_id: int | None = 1) -> Any:
    """Return a dataset's one fragment, its file at a base path."""
    (fragment,) = lance.dataset(source).get_fragments()
    found = fragment.metadata.to_json()
    if base_id is not None:
        found["files"][0]["base_id"] = base_id
    return lance.FragmentMetadata.from_json(json.dumps(found))


def append(world: World, table: str, fragment: Any, who: dict[str, str]) -> tuple[int, Any]:
    def work(dataset: lance.LanceDataset) -> None:
        lance.LanceDataset.commit(
            dataset,
            LanceOperation.Append([fragment]),
            read_version=dataset.version,
            namespace_client=dataset._namespace_client,
            table_id=table.split("$"),
        )

    request = stage(world, table, work)
    return world.post(f"/v1/table/{table}/version/create", request, headers=who)


def with_base(place: str) -> bytes:
    """Return Lance's transaction that adds a base path."""
    transaction = LanceTransaction(read_version=1, uuid=str(uuid.uuid4()))
    transaction.update_bases.new_bases.add(name="base", path=place, is_dataset_root=True)
    return transaction.SerializeToString()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["version/create", "batch-commit"])
def test_a_base_path_in_a_table_that_one_may_not_read_is_refused(world: World, way: str) -> None:
    secret = create(world, "hr$salaries", 100)
    create(world, "bobs$t", 0, BOB)
    assert query(world, "hr$salaries", BOB)[0] == 403
    for place in (secret, f"{secret}/", f"{world.tables_root}/x/..{secret}", f"file://{secret}"):
        status, body = refer_to(world, "bobs$t", place, BOB, way)
        assert (status, body["code"]) == (403, 15), (place, body)
    for place in (f"{secret}/data", os.path.dirname(secret), str(world.tables_root)):
        status, body = refer_to(world, "bobs$t", place, BOB, way)
        assert (status, body["code"]) == (403, 15), (place, body)
    assert query(world, "bobs$t", BOB) == (200, [0, 1])


def test_operations_in_an_iceberg_transaction_reach_no_further(
    world: World, tmp_path: Path
) -> None:
    secret = create(world, "hr$salaries", 100)
    create(world, "bobs$t", 0, BOB)
    empty = {"name": "ice", "schema": {"type": "struct", "fields": []}}
    world.post("/v1/namespaces", {"namespace": ["bobs"]}, headers=ADMIN)
    assert world.post("/v1/namespaces/bobs/tables", empty, headers=BOB)[0] == 200
    elsewhere = str(tmp_path / "elsewhere" / "foreign.lance")
    for place in (secret, os.path.dirname(secret), elsewhere):
        status, body = refer_to(world, "bobs$t", place, BOB, "transactions/commit")
        assert (status, body["error"]["type"]) == (403, "ForbiddenException"), (place, body)
    status, body = refer_to(world, "bobs$t", secret, ADMIN, "transactions/commit")
    assert status == 200, body
    assert query(world, "bobs$t", BOB)[0] == 403


def test_who_may_read_both_may_refer_and_nobody_reads_more_for_it(world: World) -> None:
    secret = create(world, "hr$salaries", 100)
    create(world, "bobs$t", 0, BOB)
    status, body = refer_to(world, "bobs$t", secret, ADMIN)
    assert status == 200, body
    status, body = append(world, "bobs$t", fragment_of(secret), ADMIN)
    assert status == 200, body
    assert query(world, "bobs$t", ADMIN) == (200, [0, 1, 100, 101])
    assert query(world, "bobs$t", BOB)[0] == 403


@pytest.mark.parametrize("who", [BOB, ADMIN])
def test_a_base_path_outside_of_what_is_served_is_refused(
    world: World, tmp_path: Path, who: dict[str, str]
) -> None:
    foreign = str(tmp_path / "elsewhere" / "foreign.lance")
    lance.write_dataset(numbers(7, 9), foreign)
    create(world, "bobs$t", 0, BOB)
    for place in (foreign, "s3://bucket/foreign.lance", "/"):
        status, body = refer_to(world, "bobs$t", place, who)
        assert (status, body["code"]) == (403, 15), body
    assert query(world, "bobs$t", BOB) == (200, [0, 1])


def test_an_allowed_prefix_may_be_a_base_path(world: World, tmp_path: Path) -> None:
    allowed = str(tmp_path / "allowed" / "more.lance")
    lance.write_dataset(numbers(7, 9), allowed)
    create(world, "bobs$t", 0, BOB)
    status, body = refer_to(world, "bobs$t", allowed, BOB)
    assert status == 200, body
    status, body = append(world, "bobs$t", fragment_of(allowed), BOB)
    assert status == 200, body
    assert query(world, "bobs$t", BOB) == (200, [0, 1, 7, 8])


def test_a_record_through_kafka_is_held_to_the_leaders_policy(world: World, tmp_path: Path) -> None:
    foreign = str(tmp_path / "elsewhere" / "foreign.lance")
    lance.write_dataset(numbers(7, 9), foreign)
    create(world, "bobs$t", 0, BOB)
    outcome = world.log.submit("bobs$t", with_base(foreign)).result(120)
    assert outcome.code == "LOCATION_NOT_ALLOWED"
    with pytest.raises(CommitConflict, match="allowed_locations"):
        outcome.raise_for_conflict()
    assert query(world, "bobs$t", BOB) == (200, [0, 1])


def test_what_came_through_kafka_is_read_by_grants(world: World) -> None:
    secret = create(world, "hr$salaries", 100)
    create(world, "bobs$t", 0, BOB)
    world.log.submit("bobs$t", with_base(secret)).result(120).raise_for_conflict()
    brought = LanceOperation.Append([fragment_of(secret)])
    world.log.submit("bobs$t", brought).result(120).raise_for_conflict()
    assert query(world, "bobs$t", ADMIN) == (200, [0, 1, 100, 101])
    for path, body in (
        ("query", {"vector": {}, "k": 10}),
        ("count_rows", {}),
        ("update", {"updates": [["x", "x + 1"]]}),
        ("delete", {"predicate": "id = 100"}),
        ("add_columns", {"new_columns": [{"name": "y", "expression": "id + 1"}]}),
        ("create_index", {"column": "id", "index_type": "BTREE"}),
        ("stats", {}),
        ("explain_plan", {"query": {"vector": {}, "k": 10}}),
        ("analyze_plan", {"vector": {}, "k": 10}),
    ):
        status, found = world.post(f"/v1/table/bobs$t/{path}", body, headers=BOB)
        assert status == 403, (path, found)
    rows = numbers(100, 101)
    path = "/v1/table/bobs$t/merge_insert?on=id&when_matched_update_all=true"
    assert world.rows(path, rows, headers=BOB)[0] == 403


def test_a_symbolic_link_is_no_way_around(world: World, tmp_path: Path) -> None:
    secret, mine = create(world, "hr$salaries", 100), create(world, "bobs$t", 0, BOB)
    (data,) = os.listdir(f"{secret}/data")
    os.symlink(f"{secret}/data/{data}", f"{mine}/data/{data}")
    status, body = append(world, "bobs$t", fragment_of(secret, None), BOB)
    assert query(world, "bobs$t", BOB)[0] == 403, (status, body)
    assert world.post("/v1/table/bobs$t/count_rows", {}, headers=BOB)[0] == 403
    os.unlink(f"{mine}/data/{data}")
    foreign = str(tmp_path / "elsewhere" / "foreign.lance")
    lance.write_dataset(numbers(7, 9), foreign)
    (data,) = os.listdir(f"{foreign}/data")
    os.symlink(f"{foreign}/data/{data}", f"{mine}/data/{data}")
    assert query(world, "bobs$t", ADMIN)[0] == 403
    # A record through Kafka finds no such file.
    brought = LanceOperation.Append([fragment_of(foreign, None)])
    assert world.log.submit("bobs$t", brought).result(120).code == "MISSING_FILE"


@pytest.mark.parametrize("is_within", [False, True])
def test_a_staged_version_whose_new_rows_are_a_link_is_refused(
    world: World, is_within: bool, tmp_path: Path
) -> None:
    secret, mine = create(world, "hr$salaries", 100), create(world, "bobs$t", 0, BOB)
    before = set(os.listdir(f"{mine}/data"))
    request = stage(world, "bobs$t", lambda dataset: dataset.insert(numbers(3, 5)))
    (data,) = set(os.listdir(f"{mine}/data")) - before
    place = Path(secret, "data") if is_within else tmp_path
    os.symlink(Path(mine, "data", data).rename(place / data), f"{mine}/data/{data}")
    status, body = world.post("/v1/table/bobs$t/version/create", request, headers=BOB)
    assert status >= 400, body
    os.unlink(f"{mine}/data/{data}")
    assert query(world, "bobs$t", BOB) == (200, [0, 1])


def test_an_index_names_no_file_of_others(world: World) -> None:
    """What is refused says nothing of whether the file is there, or how large it is."""
    secret = create(world, "hr$salaries", 100)
    create(world, "bobs$t", 0, BOB)
    (there,) = os.listdir(f"{secret}/data")
    up = f"../../../../{os.path.relpath(secret, world.tables_root)}/data"
    said: dict[str, list[str]] = {there: [], "absent.lance": []}
    for name in said:
        for path in (f"{up}/{name}", f"{secret}/data/{name}"):
            for kind in ("own", "details"):
                index = IndexMetadata(uuid={"uuid": uuid.uuid4().bytes}, dataset_version=1)
                index.index_version, index.name = 0, "i" if kind == "own" else FRAGMENT_REUSE_INDEX
                if kind == "own":
                    index.fields.append(0)
                    index.files.add(path=path, size_bytes=1)
                else:
                    named = FragmentReuseIndexDetails()
                    named.external.path, named.external.size = path, 1
                    index.index_details.Pack(named)
                message = LanceTransaction(read_version=1, uuid=str(uuid.uuid4()))
                message.create_index.new_indices.append(index)
                sent = base64.b64encode(message.SerializeToString()).decode()
                body = {"operations": [{"lance_commit": {"table": "bobs$t", "message": sent}}]}
                status, answer = world.post("/v1/log/transactions", body, headers=BOB)
                assert status in (400, 403, 409), (path, answer)
                told = str(answer["error"]).replace(name, "")
                said[name].append(
                    re.sub("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]+", "", told)
                )
    assert said[there] == said["absent.lance"]
    assert query(world, "bobs$t", BOB) == (200, [0, 1])


@pytest.mark.parametrize("kind", ["symbolic link", "is no file, but a pipe"])
def test_a_staged_manifest_that_is_no_file_is_refused_and_not_waited_for(
    world: World, tmp_path: Path, kind: str
) -> None:
    create(world, "bobs$t", 5, BOB)
    request = stage(world, "bobs$t", lambda dataset: dataset.delete("id = 5"))
    path = Path("/" + request["manifest_path"])
    target = path.rename(tmp_path / "outside.manifest")
    os.mkfifo(path) if "pipe" in kind else path.symlink_to(target)
    status, body = world.post("/v1/table/bobs$t/version/create", request, headers=BOB)
    assert status == 400, body
    assert kind in body["error"]


def test_a_branch_reaches_no_further(world: World) -> None:
    secret = create(world, "hr$salaries", 100)
    mine = create(world, "bobs$t", 0, BOB)
    status, body = world.post("/v1/table/bobs$t/branches/create", {"name": "b"}, headers=BOB)
    assert status == 200, body
    base = lance.DatasetBasePath(secret, name="base", is_dataset_root=True)
    request = stage(world, "bobs$t", lambda dataset: dataset.add_bases([base]))
    name = request["manifest_path"].rsplit("/", 1)[1]
    staged = Path(mine) / "tree" / "b" / "_versions" / name
    Path("/" + request["manifest_path"]).rename(staged)
    body = {**request, "branch": "b", "manifest_path": str(staged)}
    status, found = world.post("/v1/table/bobs$t/version/create", body, headers=BOB)
    assert (status, found["code"]) == (403, 15), found


@pytest.mark.parametrize("location", ["{root}/../elsewhere/t", "/etc/t", "s3://bucket/t"])
def test_no_table_is_declared_elsewhere(world: World, location: str) -> None:
    given = {"location": location.format(root=world.tables_root)}
    for table in ("bobs$x", "hr$x"):
        assert world.post(f"/v1/table/{table}/declare", given, headers=ADMIN)[0] == 400
