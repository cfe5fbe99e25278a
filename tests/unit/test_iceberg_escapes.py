"""Can an Iceberg table name a place that its writer may not read? On local files and in S3.

`bob` administers the namespace `bobs`; `hr` isn't his, and what dropped tables left isn't either.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest

from commitlog.adapters.storage import store_for
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.identity import Security
from consumers.servers.server import ServerSettings
from tests.namespace_world import World, numbers
from tests.object_store import BUCKET, ROOT, s3_server
from tests.unit.test_namespace_reach import ACCESS, ADMIN, BOB

SCHEMA = {"type": "struct", "fields": []}
SNAPSHOT = {"snapshot-id": 1, "timestamp-ms": 1, "summary": {"operation": "append"}}
STATISTICS = {"snapshot-id": 1, "file-size-in-bytes": 1}


@dataclass
class Places:
    world: World
    root: str
    mine: str
    """Where bob's table is."""
    secret: str
    """Where a table is that he may not read, and its metadata file."""
    secret_file: str
    left: str
    """Where a table was, and its metadata file."""
    left_file: str

    def post(self, path: str, body: Any, who: Any = BOB) -> tuple[int, Any]:
        return self.world.post(f"/v1/{path}", body, headers=who)

    def foreign(self) -> list[str]:
        return [self.secret, f"{self.secret}/data/x", self.left, f"{self.root}/hr", self.root]

    def disguised(self) -> list[str]:
        """Return other spellings of a place of others, and places that nobody serves."""
        tail, is_local = self.secret.removeprefix(f"{self.root}/"), self.root.startswith("/")
        both = [
            *(f"{self.root}/x/../{tail}", f"{self.root}//{tail}", f"{self.root}/./{tail}"),
            *(f"{self.mine}/../../{tail}", self.secret.replace("salaries", "%73alaries")),
            *(f"{self.secret}?versionId=1", f"{self.secret}#x", f"{self.root}/x/%2e%2e/{tail}"),
            *("/etc", "file:///etc", "s3://other/t", "s3://me:secret@other/t", "http://x/t", "x/t"),
            *("memory:///t", f"gs://{BUCKET}/t", "hdfs://name/t", f"{self.root}-beside/t"),
        ]
        if is_local:
            spelled = ("file://", "file:", "FILE://", "file://localhost", "/proc/self/root")
            return [*both, *(f"{how}{self.secret}" for how in spelled)]
        hosts = (BUCKET, f"me:secret@{BUCKET}", f"{BUCKET}:443", f"{BUCKET}.s3.amazonaws.com")
        return [
            *both,
            *(f"{scheme}://{BUCKET}/tables/{tail}" for scheme in ("s3a", "s3n", "S3", "gs")),
            *(f"s3://{host}/tables/{tail}" for host in hosts[1:]),
            *(f"https://s3.amazonaws.com/{BUCKET}/tables/{tail}", f"s3://{BUCKET}/else"),
        ]


@pytest.fixture(scope="module", params=["local", "s3"])
def places(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Places]:
    folder = tmp_path_factory.mktemp("escapes")
    hashes = {
        name: hashlib.sha256(key["x-api-key"].encode()).hexdigest()
        for name, key in (("admin", ADMIN), ("bob", BOB))
    }
    (folder / "access.toml").write_text(ACCESS.format(**hashes))
    security = Security(AccessFile(folder / "access.toml"))
    with ExitStack() as stack:
        root = ""
        if request.param == "s3":
            pytest.importorskip("moto")
            stack.enter_context(s3_server())
            root = ROOT
        world = World(folder, server=ServerSettings(security=security), tables_root=root)
        stack.callback(world.close)
        found = {}
        for space, name, who in (("bobs", "t", BOB), ("hr", "salaries", ADMIN), ("hr", "x", ADMIN)):
            world.post("/v1/namespaces", {"namespace": [space]}, headers=ADMIN)
            body = {"name": name, "schema": SCHEMA}
            status, made = world.post(f"/v1/namespaces/{space}/tables", body, headers=who)
            assert status == 200, made
            found[name] = made["metadata"]["location"], made["metadata-location"]
        assert world.send("DELETE", "/v1/namespaces/hr/tables/x", b"", ADMIN)[0] == 204
        (mine, _), (secret, file), (left, left_file) = (
            found[name] for name in ("t", "salaries", "x")
        )
        yield Places(world, root or str(world.tables_root), mine, secret, file, left, left_file)


def naming(place: str) -> list[dict[str, Any]]:
    """Return all updates that name a place."""
    lists = {**SNAPSHOT, "manifest-list": f"{place}/metadata/snap-1.avro", "sequence-number": 1}
    old = {**SNAPSHOT, "manifests": [f"{place}/m.avro"]}
    statistics = {
        **STATISTICS,
        "statistics-path": f"{place}/s",
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    properties = ("data", "metadata", "object-storage", "folder-storage")
    return [
        {"action": "set-location", "location": place},
        {"action": "add-snapshot", "snapshot": lists},
        {"action": "add-snapshot", "snapshot": old},
        {"action": "set-statistics", "snapshot-id": 1, "statistics": statistics},
        {
            "action": "set-partition-statistics",
            "partition-statistics": {**STATISTICS, "statistics-path": f"{place}/p"},
        },
        *(
            {"action": "set-properties", "updates": {f"write.{name}.path": place}}
            for name in properties
        ),
    ]


@pytest.mark.slow
def test_no_update_names_a_place_of_others(places: Places) -> None:
    identifier = {"namespace": ["bobs"], "name": "t"}
    for place in (*places.foreign(), *places.disguised()):
        for update in naming(place):
            change = {"requirements": [], "updates": [update]}
            both = {"table-changes": [{"identifier": identifier, **change}]}
            ours = {"operations": [{"iceberg_change": {"table": "bobs$t", **change}}]}
            for path, body in (
                ("namespaces/bobs/tables/t", change),
                ("transactions/commit", both),
                ("log/transactions", ours),
            ):
                status, answer = places.post(path, body)
                assert status == 403, (path, place, update, answer)


@pytest.mark.slow
def test_a_table_s_own_place_is_named_freely(places: Places) -> None:
    update = {"action": "set-properties", "updates": {"write.data.path": f"{places.mine}/other"}}
    change = {"requirements": [], "updates": [update]}
    assert places.post("namespaces/bobs/tables/t", change)[0] == 200
    listed = naming(places.mine)[1]
    assert places.post("namespaces/bobs/tables/t", {**change, "updates": [listed]})[0] == 200
    status, answer = places.post(
        "namespaces/bobs/tables/t",
        {"requirements": [], "updates": naming(f"{places.root}/new")[:1]},
        ADMIN,
    )
    assert status == 200, answer
    beside = {f"write.{name}.path": f"{places.root}/beside" for name in ("data", "metadata")}
    given = {**change, "updates": [{"action": "set-properties", "updates": beside}]}
    assert places.post("namespaces/bobs/tables/t", given, ADMIN)[0] == 200
    listed = naming(f"{places.root}/beside")[3]
    status, answer = places.post("namespaces/bobs/tables/t", {**change, "updates": [listed]})
    assert status == 200, "the administrator allowed it"
    back = {"action": "set-location", "location": places.mine}
    assert places.post("namespaces/bobs/tables/t", {**change, "updates": [back]}, ADMIN)[0] == 200


@pytest.mark.slow
def test_no_table_is_made_at_a_place_of_others(places: Places) -> None:
    listed = [*places.foreign(), f"{places.left}/deeper", *places.disguised()]
    for number, place in enumerate(listed):
        body = {"name": f"c{number}", "schema": SCHEMA, "location": place}
        for more in ({}, {"stage-create": True}):
            status, answer = places.post("namespaces/bobs/tables", {**body, **more})
            assert status == 403, (place, more, answer)
        beside = {"name": f"d{number}", "schema": SCHEMA, "properties": {"write.data.path": place}}
        assert places.post("namespaces/bobs/tables", beside)[0] == 403, place
        spaces = {"namespace": ["bobs", f"n{number}"], "properties": {"location": place}}
        assert places.post("namespaces", spaces)[0] == 403, place
        moved = {"updates": {"location": place}, "removals": []}
        assert places.post("namespaces/bobs/properties", moved)[0] == 403, place
        created = [
            {"action": "assign-uuid", "uuid": str(uuid.uuid4())},
            {"action": "upgrade-format-version", "format-version": 2},
            {"action": "set-location", "location": place},
        ]
        change = {"requirements": [{"type": "assert-create"}], "updates": created}
        status, answer = places.post(f"namespaces/bobs/tables/e{number}", change)
        assert status == 403, (place, answer)


@pytest.mark.slow
def test_what_was_staged_is_made_where_the_log_wanted_it(places: Places) -> None:
    body = {"name": "staged", "schema": SCHEMA, "stage-create": True}
    status, staged = places.post("namespaces/bobs/tables", body)
    assert status == 200, staged
    metadata = staged["metadata"]
    created = [
        {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": metadata["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": metadata["location"]},
    ]
    change = {"requirements": [{"type": "assert-create"}], "updates": created}
    status, answer = places.post("namespaces/bobs/tables/staged", change)
    assert status == 200, answer


@pytest.mark.slow
def test_no_metadata_file_of_others_is_registered(places: Places) -> None:
    tail = places.secret_file.removeprefix(f"{places.root}/")
    for number, file in enumerate(
        [
            *(places.secret_file, places.left_file, f"{places.root}/x/../{tail}"),
            *(f"{places.root}//{tail}", f"{places.root}/./{tail}", "/etc/passwd"),
            *(f"s3a://{BUCKET}/tables/{tail}", f"s3://me@{BUCKET}/tables/{tail}"),
            *(places.secret_file.replace("salaries", "%73alaries"), f"{places.secret_file}?x=1"),
            *("s3://other/t/metadata/1.metadata.json", "http://127.0.0.1:1/1.metadata.json"),
        ]
    ):
        body = {"name": f"r{number}", "metadata-location": file}
        for headers in (BOB, {**BOB, "x-commitlog-read-only": "true"}):
            status, answer = places.post("namespaces/bobs/register", body, headers)
            assert status in (400, 403, 404), (file, answer)
            assert "metadata" not in answer, file
        status, answer = places.post("namespaces/bobs/register-view", body)
        assert status in (400, 403, 404), (file, answer)
    assert places.world.send("GET", "/v1/namespaces/hr/tables/salaries", b"", BOB)[0] == 403


@pytest.mark.slow
def test_a_forged_metadata_file_names_no_place_of_others(places: Places) -> None:
    """Who may write the files of his table can write metadata as he likes, and register it."""
    store, source = store_for(places.mine), store_for(places.secret)
    name = places.secret_file.removeprefix(f"{places.secret}/")
    file = "metadata/forged-{}.metadata.json"
    for number, place in enumerate((places.secret, places.left)):
        data = source.read(name).decode().replace(places.secret, place)
        store.write(file.format(number), data.encode())
        body = {
            "name": f"f{number}",
            "metadata-location": f"{places.mine}/{file.format(number)}",
        }
        status, answer = places.post("namespaces/bobs/register", body)
        assert status == 403, (place, answer)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["again", "again & #1"])
def test_a_table_is_registered_again_under_its_name(places: Places, name: str) -> None:
    status, made = places.post("namespaces/bobs/tables", {"name": name, "schema": SCHEMA})
    assert status == 200, made
    path = f"/v1/namespaces/bobs/tables/{quote(name)}"
    assert places.world.send("DELETE", path, b"", BOB)[0] == 204
    body = {"name": name, "metadata-location": made["metadata-location"]}
    folder = made["metadata"]["location"].rpartition("/")[2]
    for other in ("other", name.replace("#", "?"), folder[:-37].replace("~", "_")):
        if other != name:
            status, answer = places.post("namespaces/bobs/register", {**body, "name": other})
            assert status == 403, answer
    status, answer = places.post("namespaces/bobs/register", body)
    assert status == 200, answer


@pytest.mark.slow
def test_no_view_names_a_place_of_others(places: Places) -> None:
    version = {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": 1,
        "summary": {},
        "default-namespace": ["bobs"],
        "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}],
    }
    body = {"name": "v", "schema": SCHEMA, "view-version": version, "properties": {}}
    for place in (*places.foreign(), *places.disguised()):
        assert places.post("namespaces/bobs/views", {**body, "location": place})[0] == 403, place
    status, answer = places.post("namespaces/bobs/views", body)
    assert status == 200, answer
    for place in (*places.foreign(), *places.disguised()):
        change = {"requirements": [], "updates": naming(place)[:1]}
        assert places.post("namespaces/bobs/views/v", change)[0] == 403, place


@pytest.mark.slow
def test_lance_tables_take_no_place_that_others_left(places: Places) -> None:
    world, name = places.world, "hr$gone"
    status, made = world.rows(f"/v1/table/{name}/create", numbers(0, 2), headers=ADMIN)
    assert status == 200, made
    assert places.post(f"table/{name}/deregister", {}, ADMIN)[0] == 200
    for number, place in enumerate((made["location"], places.left, places.secret)):
        for what in ("register", "declare"):
            status, answer = places.post(f"table/bobs$l{number}{what}/{what}", {"location": place})
            assert status in (400, 403), (what, place, answer)
    assert places.post(f"table/{name}/register", {"location": made["location"]}, ADMIN)[0] == 200
    own = "bobs$own"
    status, made = world.rows(f"/v1/table/{own}/create", numbers(0, 2), headers=BOB)
    assert status == 200, made
    assert places.post(f"table/{own}/deregister", {})[0] == 200
    status, answer = places.post(f"table/{own}/register", {"location": made["location"]})
    assert status == 200, answer


@pytest.mark.slow
def test_a_message_of_lance_names_no_place_of_others(places: Places) -> None:

    world, name = places.world, f"bobs${places.world.fresh_name()}"
    assert world.rows(f"/v1/table/{name}/create", numbers(0, 2), headers=BOB)[0] == 200
    status, secret = world.rows("/v1/table/hr$rows/create", numbers(0, 2), headers=ADMIN)
    where = secret["location"] if status == 200 else world.log.table("hr$rows").location
    for place in (where, places.left, "s3://other/t", "/etc"):
        based = LanceTransaction(read_version=1, uuid=str(uuid.uuid4()))
        based.update_bases.new_bases.add(name="base", path=place, is_dataset_root=True)
        written = LanceTransaction(read_version=1, uuid=str(uuid.uuid4()))
        written.overwrite.initial_bases.add(name="base", path=place, is_dataset_root=True)
        cloned = LanceTransaction(read_version=1, uuid=str(uuid.uuid4()))
        cloned.clone.ref_path = place
        for message in (based, written, cloned):
            sent = base64.b64encode(message.SerializeToString()).decode()
            body = {"operations": [{"lance_commit": {"table": name, "message": sent}}]}
            status, answer = places.post("log/transactions", body)
            assert status == 403, (place, answer)
