"""Can an object of Lance in S3 name a place that its writer may not read, or nobody serves?"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation, blob_array, blob_field

from commitlog.adapters.storage import store_for
from commitlog.codecs.manifest_file import decode_manifest, encode_manifest
from commitlog.core.manifest.header import ManifestHeader
from commitlog.errors import CommitLogError
from commitlog.lancepb.table_pb2 import (
    DataFragment,
    FragmentReuseIndexDetails,
    IndexMetadata,
    Manifest,
)
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from consumers.servers.namespace.settings import Settings
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.identity import Security
from consumers.servers.server import ServerSettings
from tests.installed import need
from tests.namespace_world import Capture, World, numbers
from tests.object_store import BUCKET, KEY, ROOT, SECRET, s3_server
from tests.unit.test_namespace_reach import ADMIN, BOB, access_file
from tests.unit.test_registered_escapes import check_nothing_leads_there

need("moto")
UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
ALLOWED = f"s3://{BUCKET}/allowed"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("escapes")
    security = Security(AccessFile(access_file(folder)))
    with s3_server():
        made = World(
            folder,
            settings=Settings(locations=(ALLOWED,)),
            server=ServerSettings(security=security),
            tables_root=ROOT,
        )
        yield made
        made.close()


@pytest.fixture(scope="module")
def secret(world: World) -> str:
    """Return where a table lies that bob may not read."""
    return create(world, "hr$salaries", 100, ADMIN)


@pytest.fixture
def table(world: World) -> str:
    """Return a table of bob's."""
    name = f"bobs${world.fresh_name()}"
    create(world, name, 0, BOB)
    return name


def create(world: World, table: str, first: int, who: dict[str, str]) -> str:
    status, body = world.rows(f"/v1/table/{table}/create", numbers(first, first + 2), headers=who)
    assert status == 200, body
    assert str(body["location"]).startswith(f"{ROOT}/")
    return str(body["location"])


def ids(world: World, table: str, who: dict[str, str]) -> Any:
    body = {"vector": {}, "k": 10}
    status, found = world.post(f"/v1/table/{table}/query", body, headers=who)
    return sorted(pa.ipc.open_file(found).read_all()["id"].to_pylist()) if status == 200 else status


def stage(world: World, table: str, work: Any) -> dict[str, Any]:
    status, described = world.post(f"/v1/table/{table}/describe", headers=ADMIN)
    assert status == 200, described
    capture = Capture(described["location"], lance.dataset(described["location"]).version)
    work(lance.dataset(namespace_client=capture, table_id=table.split("$")))
    (request,) = capture.requests
    return request


def submit(world: World, table: str, request: dict[str, Any], way: str, who: Any) -> Any:
    if way == "version/create":
        return world.post(f"/v1/table/{table}/version/create", request, headers=who)
    body = {"operations": [{"create_table_version": request}]}
    return world.post("/v1/table/batch-commit", body, headers=who)


def places(secret: str) -> list[str]:
    """Return names of a table that isn't bob's, of what contains it, and of what nobody serves."""
    tail = secret.removeprefix(f"{ROOT}/")
    return [
        *(secret, f"{secret}/", f"{secret}/data", ROOT, f"s3://{BUCKET}", f"s3://{BUCKET}/"),
        *(f"s3a://{BUCKET}/tables/{tail}", f"{ROOT}/x/../{tail}", f"{ROOT}//{tail}"),
        *(f"{ROOT}/./{tail}", secret.replace("salaries", "%73alaries"), f"{secret}?versionId=1"),
        *(f"S3://{BUCKET}/tables/{tail}", f"{ALLOWED}/../tables/{tail}", f"{ALLOWED}2/t"),
        *("s3://other/t", f"s3://{BUCKET}.evil/tables/t", f"gs://{BUCKET}/tables/t", "/etc"),
        *("file:///etc", "memory:///t", f"s3://someone@{BUCKET}/tables/{tail}", "http://x/t"),
    ]


@pytest.mark.parametrize("way", ["version/create", "batch-commit"])
def test_a_base_path_leads_nowhere_else(world: World, secret: str, table: str, way: str) -> None:
    base = lance.DatasetBasePath(f"{ALLOWED}/t", name="base", is_dataset_root=True)
    for place in places(secret):
        request = stage(world, table, lambda dataset: dataset.add_bases([base]))
        _put_place(request, f"{ALLOWED}/t", place)
        status, body = submit(world, table, request, way, BOB)
        assert status in (400, 403), (place, body)
    assert ids(world, table, BOB) == [0, 1]


def test_an_allowed_prefix_may_be_a_base_path(world: World, table: str) -> None:
    base = lance.DatasetBasePath(f"{ALLOWED}/t", name="base", is_dataset_root=True)
    request = stage(world, table, lambda dataset: dataset.add_bases([base]))
    assert submit(world, table, request, "version/create", BOB)[0] == 200


def test_a_branch_leads_nowhere_else(world: World, secret: str, table: str) -> None:
    status, made = world.post(f"/v1/table/{table}/branches/create", {"name": "b"}, headers=BOB)
    assert status == 200, made
    base = lance.DatasetBasePath(f"{ALLOWED}/t", name="base", is_dataset_root=True)
    for place in places(secret):
        request = stage(world, table, lambda dataset: dataset.add_bases([base]))
        _put_place(request, f"{ALLOWED}/t", place)
        status, body = submit(world, table, _of_branch(request), "version/create", BOB)
        assert status in (400, 403), (place, body)
    (fragment,) = lance.dataset(secret).get_fragments()
    (theirs,) = fragment.metadata.files
    folder = secret.rsplit("/", 1)[1]
    for path in (f"../../{folder}/data/{theirs.path}", f"{secret}/data/{theirs.path}"):
        request = stage(world, table, lambda dataset: dataset.delete("id = 0"))
        _put_file(request, path)
        status, body = submit(world, table, _of_branch(request), "version/create", BOB)
        assert status in (400, 403), (path, body)
    # Who writes to the bucket goes round the server, and reads nothing through it.
    store = store_for(f"s3://{BUCKET}")
    asked = {"vector": {}, "k": 10, "branch": "b"}
    for puts_place in (True, False):
        request = stage(world, table, lambda dataset: dataset.add_bases([base]))
        if puts_place:
            _put_place(request, f"{ALLOWED}/t", secret)
        else:
            _put_file(request, f"../../{folder}/data/{theirs.path}")
        staged = _of_branch(request)["manifest_path"]
        store.write(staged.rsplit("-", 5)[0], store.read(staged))
        for version in (None, 2):
            found = world.post(
                f"/v1/table/{table}/query", {**asked, "version": version}, headers=BOB
            )
            assert (found[0], found[1]["code"]) == (403, 15), found
    assert ids(world, table, BOB) == [0, 1]


def test_a_data_file_leads_nowhere_else(world: World, secret: str, table: str) -> None:
    (fragment,) = lance.dataset(secret).get_fragments()
    found = fragment.metadata.to_json()
    name, folder = found["files"][0]["path"], secret.rsplit("/", 1)[1]
    for path in (
        *(f"../../{folder}/data/{name}", f"../{folder}/data/{name}", f"{secret}/data/{name}"),
        *(f"/{BUCKET}/tables/{folder}/data/{name}", f"x/../../../{folder}/data/{name}"),
        *(f"%2e%2e/%2e%2e/{folder}/data/{name}", f"..\\..\\{folder}\\data\\{name}"),
    ):
        found["files"][0]["path"] = path
        brought = lance.FragmentMetadata.from_json(json.dumps(found))
        operation = LanceOperation.Append([brought])

        def append(dataset: lance.LanceDataset, operation: Any = operation) -> None:
            lance.LanceDataset.commit(
                dataset,
                operation,
                read_version=dataset.version,
                namespace_client=dataset._namespace_client,
                table_id=table.split("$"),
            )

        try:
            request = stage(world, table, append)
        except (OSError, ValueError):
            pass  # Lance itself stages nothing of the kind
        else:
            status, body = submit(world, table, request, "version/create", BOB)
            assert status in (400, 403, 409), (path, body)
        outcome = world.log.submit(table, operation).result(120)
        assert outcome.status != "committed", path
    assert ids(world, table, BOB) == [0, 1]


def test_a_staged_manifest_is_the_table_s_own(world: World, secret: str, table: str) -> None:
    request = stage(world, table, lambda dataset: dataset.delete("id = 0"))
    theirs = stage(world, "hr$salaries", lambda dataset: dataset.delete("id = 100"))
    own, name = request["manifest_path"].rsplit("/", 1)
    for path in (
        theirs["manifest_path"],
        f"{own}/../../{theirs['manifest_path']}",
        f"{own}/../{secret.rsplit('/', 1)[1]}/_versions/{name}",
        f"s3://{BUCKET}/{request['manifest_path']}x/../{name}",
        f"{own}/%2e%2e/_versions/{name}",
    ):
        status, body = submit(
            world, table, {**request, "manifest_path": path}, "version/create", BOB
        )
        assert status == 400, (path, body)
    assert ids(world, table, BOB) == [0, 1]


def test_a_record_through_kafka_is_held_to_the_leaders_policy(
    world: World, secret: str, table: str
) -> None:
    for place in places(secret):
        transaction = LanceTransaction(read_version=1, uuid=str(uuid.uuid4()))
        transaction.update_bases.new_bases.add(name="base", path=place, is_dataset_root=True)
        outcome = world.log.submit(table, transaction.SerializeToString()).result(120)
        if outcome.status == "committed":
            # The leader lets tables refer to each other; who may read both is asked when it's read.
            assert ids(world, table, BOB) == 403, place
            return
        assert outcome.code in ("LOCATION_NOT_ALLOWED", "INVALID_OPERATION"), (place, outcome)


@pytest.mark.parametrize("kind", ["update_bases", "overwrite", "clone"])
def test_no_transaction_of_lance_names_another_place(
    world: World, secret: str, table: str, kind: str
) -> None:
    key = f"s3://{KEY}:{SECRET}@{BUCKET}/{secret.split('/', 3)[3]}"
    for place in (*places(secret), key):
        message = naming(kind, place)
        sent = base64.b64encode(message).decode()
        body = {"operations": [{"lance_commit": {"table": table, "message": sent}}]}
        status, answer = world.post("/v1/log/transactions", body, headers=BOB)
        assert status in (400, 403, 409), (place, answer)
        assert SECRET not in str(answer) or place is key
        try:
            outcome = world.log.submit(table, message).result(120)
        except CommitLogError:
            continue  # it isn't even sent
        if outcome.status == "committed":
            assert ids(world, table, BOB) == 403, place
            return
    assert ids(world, table, BOB) == [0, 1]


def test_no_index_reads_a_file_of_others(world: World, secret: str, table: str) -> None:
    """What is refused says nothing of whether the file is there, or how large it is."""
    folder = secret.rsplit("/", 1)[1]
    (there,) = store_for(secret).names("data")
    said: dict[str, list[str]] = {there: [], "absent.lance": []}
    for name in said:
        for path in (f"../../../{folder}/data/{name}", f"{secret}/data/{name}"):
            for index in indices(path):
                message = LanceTransaction(read_version=1, uuid=str(uuid.uuid4()))
                message.create_index.new_indices.append(index)
                sent = base64.b64encode(message.SerializeToString()).decode()
                body = {"operations": [{"lance_commit": {"table": table, "message": sent}}]}
                status, answer = world.post("/v1/log/transactions", body, headers=BOB)
                assert status in (400, 403, 409), (path, answer)
                told = str(answer["error"]).replace(name, "")
                said[name].append(re.sub(f"{UUID}|[0-9]+", "", told))
    assert said[there] == said["absent.lance"]
    assert ids(world, table, BOB) == [0, 1]


def test_a_staged_transaction_is_the_table_s_own(world: World, secret: str, table: str) -> None:
    folder = secret.rsplit("/", 1)[1]
    there = next(n for n in store_for(secret).names("_transactions") if n.endswith(".txn"))
    for name in (f"../../{folder}/_transactions/{there}", f"{secret}/_transactions/{there}"):
        request = stage(world, table, lambda dataset: dataset.delete("id = 0"))
        store = store_for(f"s3://{BUCKET}")
        state, _ = decode_manifest(store.read(request["manifest_path"]))
        state.transaction_file = name
        data = encode_manifest(state, None)
        store.write(request["manifest_path"], data)
        status, answer = submit(
            world, table, {**request, "manifest_size": len(data)}, "version/create", BOB
        )
        assert status == 400, (name, answer)
    assert ids(world, table, BOB) == [0, 1]


def test_rows_name_no_object_of_others(world: World, secret: str) -> None:
    (there,) = store_for(secret).names("data")
    schema = pa.schema([pa.field("id", pa.int64()), blob_field("file")])

    def rows(named: Any) -> pa.Table:
        return pa.table([pa.array([1]), blob_array([named])], schema=schema)

    table = f"bobs${world.fresh_name()}"
    assert world.rows(f"/v1/table/{table}/create", rows(b"own"), headers=BOB)[0] == 200
    for uri in (
        *(f"{secret}/data/{there}", "s3://other/x", f"s3://{KEY}:{SECRET}@{BUCKET}/x"),
        *(f"s3a://{BUCKET}/x", "file:///etc/passwd", "http://169.254.169.254/latest/meta-data"),
    ):
        merge = "merge_insert?on=id&when_matched_update_all=true"
        for path in (f"{table}2/create", f"{table}/insert", f"{table}/{merge}"):
            status, body = world.rows(f"/v1/table/{path}", rows(uri), headers=BOB)
            assert status in (400, 403), (uri, path, body)
    assert world.post(f"/v1/table/{table}/count_rows", {}, headers=BOB) == (200, 1)


@pytest.mark.parametrize(
    "location",
    [
        "s3://other/t",
        f"{ROOT}/../x",
        f"s3://{BUCKET}/x",
        "/etc/t",
        "file:///etc/t",
        f"{ALLOWED}2/t",
    ],
)
def test_no_table_is_declared_or_registered_elsewhere(world: World, location: str) -> None:
    for what in ("declare", "register"):
        path = f"/v1/table/bobs${world.fresh_name()}/{what}"
        assert world.post(path, {"location": location}, headers=BOB)[0] in (400, 403), what


def test_a_dataset_that_is_registered_names_no_file_of_others(world: World, secret: str) -> None:
    check_nothing_leads_there(world, secret, ALLOWED, [100, 101])


def naming(kind: str, place: str) -> bytes:
    """Return Lance's transaction that names a place."""
    message = LanceTransaction(read_version=1, uuid=str(uuid.uuid4()))
    if kind == "clone":
        message.clone.is_shallow, message.clone.ref_path, message.clone.ref_version = True, place, 1
    elif kind == "overwrite":
        message.overwrite.initial_bases.add(name="base", path=place, is_dataset_root=True)
    else:
        message.update_bases.new_bases.add(name="base", path=place, is_dataset_root=True)
    return message.SerializeToString()


def indices(path: str) -> list[IndexMetadata]:
    """Return entries of indices that name a file: of their own, or with their details."""
    own, details = (
        IndexMetadata(
            uuid={"uuid": uuid.uuid4().bytes}, name=name, dataset_version=1, index_version=0
        )
        for name in ("i", "__lance_frag_reuse")
    )
    own.fields.append(0)
    own.files.add(path=path, size_bytes=1)
    named = FragmentReuseIndexDetails()
    named.external.path, named.external.size = path, 1
    details.index_details.Pack(named)
    return [own, details]


def _of_branch(request: dict[str, Any]) -> dict[str, Any]:
    """Have a request be for the branch "b", with its staged manifest where those of "b" are."""
    store = store_for(f"s3://{BUCKET}")
    path = request["manifest_path"].replace("/_versions/", "/tree/b/_versions/")
    state, transaction = decode_manifest(store.read(request["manifest_path"]))
    header = Manifest()
    header.CopyFrom(state.header.message)
    header.branch = "b"
    state.header = ManifestHeader.of(header)
    data = encode_manifest(state, transaction)
    store.write(path, data)
    return {**request, "branch": "b", "manifest_path": path, "manifest_size": len(data)}


def _put_file(request: dict[str, Any], path: str) -> None:
    """Have the data files of a staged manifest be another one."""
    store = store_for(f"s3://{BUCKET}")
    state, transaction = decode_manifest(store.read(request["manifest_path"]))
    for number, encoded in list(state.fragments.items()):
        fragment = DataFragment.FromString(encoded)
        for file in fragment.files:
            file.path = path
        state.fragments.put([(number, fragment.SerializeToString())])
    data = encode_manifest(state, transaction or b"")
    store.write(request["manifest_path"], data)
    request["manifest_size"] = len(data)


def _put_place(request: dict[str, Any], old: str, new: str) -> None:
    """Have a staged manifest, and the transaction in it, name another place."""
    store = store_for(f"s3://{BUCKET}")
    state, transaction = decode_manifest(store.read(request["manifest_path"]))
    assert transaction is not None
    message = LanceTransaction.FromString(transaction)
    header = Manifest()
    header.CopyFrom(state.header.message)
    for base in (*header.base_paths, *message.update_bases.new_bases):
        base.path = base.path.replace(old, new)
    state.header = ManifestHeader.of(header)
    data = encode_manifest(state, message.SerializeToString())
    store.write(request["manifest_path"], data)
    request["manifest_size"] = len(data)
