"""Do grants reach the data: keys and signatures for one table's objects, read or write, no more?

The store checks every signature and each session's policy (`tests.strict_store`). Clients are
pyiceberg, boto3 with pyiceberg's signer, and pylance as they are, with no keys of their own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.request import Request, urlopen

import lance
import lance_namespace
import pyarrow as pa
import pytest

from commitlog.adapters.storage import store_for
from commitlog.adapters.storage_options import Scoped, use_storage_options
from commitlog.errors import Unavailable
from consumers.servers.namespace.settings import Settings
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.grants import Access, Principal
from consumers.servers.security.identity import Security
from consumers.servers.security.places import TablePlaces
from consumers.servers.server import ServerSettings
from consumers.servers.vending.vendor import Subject, Vendor
from tests.installed import need
from tests.namespace_world import World, numbers
from tests.object_store import BUCKET, KEY, REGION, ROOT, SECRET, s3_server
from tests.strict_store import StrictStore

need("moto", "boto3")
catalogs = pytest.importorskip("pyiceberg.catalog")
pytestmark = pytest.mark.filterwarnings(
    "ignore:::pyiceberg.*", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)

NAMES = ("admin", "writer", "reader", "stranger")
KEYS = {name: f"{name}-0123456789abcdef" for name in NAMES}
GRANTS = (
    *(("admin", "$", "admin"), ("writer", "ice", "write"), ("writer", "lake", "write")),
    *(("reader", "ice", "read"), ("reader", "lake", "read"), ("stranger", "elsewhere", "admin")),
)
ROLE = "arn:aws:iam::123456789012:role/lake"
VENDED, SIGNED = "vended-credentials", "remote-signing"
STATIC = {"aws_access_key_id": "opens-everything"}
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


@dataclass
class Vending:
    world: World
    store: StrictStore
    endpoint: str
    security: Security

    def catalog(self, who: str, ways: str = VENDED) -> Any:
        settings = {"header.x-api-key": KEYS[who], "header.X-Iceberg-Access-Delegation": ways}
        return catalogs.load_catalog(who, **{"type": "rest", "uri": self.world.uri, **settings})

    def table(self, name: str) -> str:
        """Make a table with rows in it; return its location."""
        table = self.catalog("admin").create_table(f"ice.{name}", ROWS.schema)
        table.append(ROWS)
        return str(table.location())

    def load(self, who: str, table: str, ways: str = VENDED, start: str = "/v1") -> Any:
        headers = {"x-api-key": KEYS[who], "X-Iceberg-Access-Delegation": ways}
        path = f"{start}/namespaces/ice/tables/{table}"
        status, body = self.world.send("GET", path, b"", headers)
        return body if status == 200 else status

    def sign(
        self, who: str, table: str, method: str, uri: str, start: str = "/v1", **more: Any
    ) -> tuple[int, Any]:
        body = {"region": REGION, "method": method, "uri": uri, "headers": {}, **more}
        path = f"{start}/namespaces/ice/tables/{table}/sign"
        return self.world.post(path, body, headers={"x-api-key": KEYS[who]})

    def url(self, location: str, rest: str = "") -> str:
        return f"{self.endpoint}/{location.removeprefix('s3://')}{rest}"

    def describe(self, who: str, table: str, **body: Any) -> Any:
        path = f"/v1/table/{table}/describe"
        status, found = self.world.post(path, body, headers={"x-api-key": KEYS[who]})
        return found["storage_options"] if status == 200 else status

    def does(self, keys: tuple[str, str, str], what: str, **arguments: Any) -> bool:
        """Return True if keys that were handed out let a client do something to the bucket."""
        key, secret, token = keys
        client = pytest.importorskip("boto3").client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            aws_session_token=token,
        )
        try:
            getattr(client, what)(Bucket=BUCKET, **arguments)
        except client.exceptions.ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 403:
                raise
            return False
        return True


def of_iceberg(config: dict[str, str]) -> tuple[str, str, str]:
    key, secret, token = ("access-key-id", "secret-access-key", "session-token")
    return config[f"s3.{key}"], config[f"s3.{secret}"], config[f"s3.{token}"]


def of_lance(options: dict[str, str]) -> tuple[str, str, str]:
    key, secret, token = ("access_key_id", "secret_access_key", "session_token")
    return options[f"aws_{key}"], options[f"aws_{secret}"], options[f"aws_{token}"]


@pytest.fixture(scope="module")
def vending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vending]:
    folder, store = tmp_path_factory.mktemp("vending"), StrictStore()
    lines = ["[keys]"]
    for name, key in KEYS.items():
        lines.append(f'{name} = "sha256:{hashlib.sha256(key.encode()).hexdigest()}"')
    for to, on, can in GRANTS:
        lines.append(f'[[grants]]\nto = "{to}"\non = "{on}"\ncan = "{can}"')
    (folder / "access.toml").write_text("\n".join(lines))
    security = Security(AccessFile(folder / "access.toml"))
    with s3_server(is_in_environment=False, guarding=store.guarding) as endpoint:
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
        use_storage_options(f"s3://{BUCKET}", {**keys, "region": REGION, "endpoint": endpoint})
        world = World(
            folder,
            settings=Settings(
                vending=Scoped({"": {"role_arn": ROLE, "sign": "true"}}),
                credentials=Scoped({"": STATIC}),
            ),
            server=ServerSettings(security=security),
            tables_root=ROOT,
        )
        made = Vending(world, store, endpoint, security)
        made.catalog("admin").create_namespace("ice")
        made.table("other")
        yield made
        world.close()
        use_storage_options(f"s3://{BUCKET}", {})


def test_pyiceberg_reads_and_writes_with_keys_of_a_session(vending: Vending) -> None:
    table = vending.catalog("writer").create_table("ice.own", ROWS.schema)
    before = len(vending.store.seen)
    table.append(ROWS)
    table.delete("id = 2")
    assert vending.catalog("reader").load_table("ice.own").scan().to_arrow().num_rows == 2
    own = f"/{table.location().removeprefix('s3://')}/"
    by_sessions = [one for one in vending.store.seen[before:] if one[0] != KEY]
    assert {method for _, method, _ in by_sessions} >= {"GET", "PUT"}
    assert all(path.startswith(own) for _, _, path in by_sessions)
    with vending.catalog("writer").create_table_transaction("ice.staged", ROWS.schema) as staged:
        staged.append(ROWS)
    assert vending.catalog("reader").load_table("ice.staged").scan().to_arrow().num_rows == 3
    with pytest.raises(OSError, match="(?i)access.denied|403|forbidden"):
        vending.catalog("reader").load_table("ice.own").append(ROWS)


@pytest.mark.parametrize("who", ["writer", "reader"])
def test_keys_open_one_table_as_far_as_the_grant_goes(vending: Vending, who: str) -> None:
    location = vending.table(f"scope_{who}")
    other = vending.catalog("admin").load_table("ice.other").location().split("/", 3)[3]
    found = vending.load(who, f"scope_{who}")
    keys, folder = of_iceberg(found["config"]), location.split("/", 3)[3]
    assert [c["prefix"] for c in found["storage-credentials"]] == [location]
    writes = who == "writer"
    assert vending.does(keys, "list_objects_v2", Prefix=f"{folder}/")
    assert vending.does(keys, "put_object", Key=f"{folder}/data/x", Body=b"x") is writes
    assert vending.does(keys, "delete_object", Key=f"{folder}/data/x") is writes
    for name in (f"{other}/x", f"{folder}2/x", f"{folder}", "tables/x"):
        assert not vending.does(keys, "put_object", Key=name, Body=b"x"), name
        assert not vending.does(keys, "delete_object", Key=name), name
    (key,) = (n for n in store_for(f"s3://{BUCKET}/{other}").walk() if n.endswith(".parquet"))
    assert not vending.does(keys, "get_object", Key=f"{other}/{key}")
    for prefix in ("", "tables/", f"{other}/", folder, f"{folder}-"):
        assert not vending.does(keys, "list_objects_v2", Prefix=prefix), prefix
    assert not vending.does(keys, "list_multipart_uploads")


def test_keys_are_for_who_asks_and_are_written_nowhere(
    vending: Vending, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    location = vending.table("quiet")
    assert vending.load("reader", "quiet", ways="")["config"] == {}
    assert vending.load("stranger", "quiet") == 403
    headers = {"x-api-key": KEYS["stranger"]}
    for method, last in (("GET", "credentials"), ("POST", "sign")):
        path = f"/v1/namespaces/ice/tables/quiet/{last}"
        assert vending.world.send(method, path, b"{}", headers)[0] == 403
    found = vending.load("writer", "quiet")
    _, secret, token = of_iceberg(found["config"])
    for name in store_for(location).walk():
        data = store_for(location).read(name)
        assert not any(one.encode() in data for one in (secret, token, SECRET)), name
    assert not any(one in caplog.text for one in (secret, token, SECRET, KEYS["writer"]))
    # What changes sooner than the metadata isn't answered by the tag of the metadata.
    headers = {"x-api-key": KEYS["writer"], "X-Iceberg-Access-Delegation": VENDED}
    path = "/v1/namespaces/ice/tables/quiet"
    assert vending.world.send("GET", path, b"", {**headers, "If-None-Match": "*"})[0] == 200


def test_what_stood_is_read_alone(vending: Vending) -> None:
    location = vending.table("past")
    start = "/v1/at-" + ",".join(map(str, vending.world.log.position("now").values()))
    found = vending.load("writer", "past", start=start)
    folder = location.split("/", 3)[3]
    assert vending.does(of_iceberg(found["config"]), "list_objects_v2", Prefix=f"{folder}/")
    assert not vending.does(of_iceberg(found["config"]), "put_object", Key=f"{folder}/x", Body=b"x")
    url = vending.url(location, "/x")
    assert vending.sign("writer", "past", "HEAD", url, start)[0] == 200
    assert vending.sign("writer", "past", "PUT", url, start)[0] == 403


def test_keys_end_and_others_are_given_before(vending: Vending) -> None:
    location = vending.table("renewed")
    uuid = str(vending.catalog("admin").load_table("ice.renewed").metadata.table_uuid)
    at = [datetime.now(UTC)]
    settings = Scoped({"": {"role_arn": ROLE, "duration_seconds": "3600"}})
    vendor = Vendor(TablePlaces(vending.world.log, vending.security), settings, clock=lambda: at[0])
    subject, who = Subject(("ice", "renewed"), uuid, location), Principal("writer")

    def session(access: Access = Access.WRITE) -> Any:
        return vendor.session(who, subject, access)

    first = session()
    assert timedelta(minutes=58) < first.ends_at - at[0] <= timedelta(minutes=61)
    assert session() is first
    assert session(Access.READ) is not first
    assert vendor.session(Principal("admin"), subject, Access.WRITE) is not first
    at[0] += timedelta(minutes=31)
    later = session()
    assert later is not first
    keys = (first.keys.access_key_id, first.keys.secret_access_key, first.keys.session_token)
    prefix = location.split("/", 3)[3] + "/"
    assert vending.does(keys, "list_objects_v2", Prefix=prefix)
    vending.store.ended.add(first.keys.access_key_id)
    assert not vending.does(keys, "list_objects_v2", Prefix=prefix)
    status, body = vending.world.send(
        "GET",
        "/v1/namespaces/ice/tables/renewed/credentials",
        b"",
        {"x-api-key": KEYS["writer"]},
    )
    assert status == 200
    fresh = body["storage-credentials"][0]["config"]
    assert int(fresh["s3.session-token-expires-at-ms"]) > at[0].timestamp() * 1000
    assert vending.does(of_iceberg(fresh), "list_objects_v2", Prefix=prefix)


def test_a_token_service_that_gives_nothing_is_unavailable(vending: Vending) -> None:
    settings = Scoped({"": {"role_arn": ROLE, "sts_endpoint": "http://127.0.0.1:1"}})
    vendor = Vendor(TablePlaces(vending.world.log, vending.security), settings)
    with pytest.raises(Unavailable, match="gave no session") as caught:
        vendor.session(Principal("w"), Subject(("ice", "t"), "u", f"{ROOT}/t-u"), Access.READ)
    assert SECRET not in str(caught.value)


def test_requests_are_signed_for_pyicebergs_signer(vending: Vending) -> None:
    botocore = pytest.importorskip("botocore")
    config = pytest.importorskip("botocore.config")
    from pyiceberg.io.fsspec import S3V4RestSigner

    vending.table("signed")
    for who, writes in (("writer", True), ("reader", False)):
        table = vending.catalog(who, SIGNED).load_table("ice.signed")
        properties = dict(table.io.properties)
        assert "s3.access-key-id" not in properties
        assert type(table.io).__name__ == "FsspecFileIO"
        client = pytest.importorskip("boto3").client(
            "s3",
            endpoint_url=properties["s3.endpoint"],
            region_name=properties["s3.region"],
            config=config.Config(
                signature_version=botocore.UNSIGNED, retries={"total_max_attempts": 1}
            ),
        )
        signer = S3V4RestSigner(properties)
        client.meta.events.register_last("before-sign.s3", signer, unique_id=1925)
        folder = table.location().split("/", 3)[3]
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{folder}/data/")["Contents"]
        got = client.get_object(Bucket=BUCKET, Key=listed[0]["Key"], Range="bytes=0-3")
        assert got["Body"].read() == b"PAR1"
        given = {"Bucket": BUCKET, "Key": f"{folder}/data/a b=%2F.x"}
        if not writes:
            with pytest.raises(Exception, match="403"):
                client.put_object(**given, Body=b"x")
            continue
        client.put_object(**given, Body=b"x")
        upload = client.create_multipart_upload(**given)["UploadId"]
        part = client.upload_part(**given, UploadId=upload, PartNumber=1, Body=b"y")
        parts = {"Parts": [{"ETag": part["ETag"], "PartNumber": 1}]}
        client.complete_multipart_upload(**given, UploadId=upload, MultipartUpload=parts)
        assert client.get_object(**given)["Body"].read() == b"y"
        client.delete_object(**given)
    assert not [one for one in vending.store.refused if "signature" in one]


def test_nothing_is_signed_for_another_place(vending: Vending) -> None:
    location, other = vending.table("held"), vending.catalog("admin").load_table("ice.other")
    mine, theirs = vending.url(location), vending.url(other.location())
    name = theirs.rpartition("/")[2]
    for who in ("writer", "reader"):
        assert vending.sign(who, "held", "GET", f"{mine}/data/x")[0] == 200
        for uri in (
            *(f"{theirs}/data/x", f"{mine}/../{name}/x", f"{mine}/%2e%2e/{name}/x"),
            *(f"{mine}/%252e%252e/{name}/x", f"{mine}/..%2f{name}/x", f"{mine}2/x"),
            *(mine.replace(f"/{BUCKET}/", "/another/") + "/x", f"{vending.endpoint}/{BUCKET}"),
            f"{vending.endpoint}/{BUCKET}?list-type=2&prefix=tables%2F",
            f"{vending.endpoint}/{BUCKET}?list-type=2&prefix={name}",
            mine.replace("http://", "http://someone@") + "/x",
            mine.replace("127.0.0.1", "127.0.0.2") + "/x",
            f"{mine}/data/x?acl",
        ):
            status, body = vending.sign(who, "held", "GET", uri)
            assert status in (400, 403), (uri, body)
            assert "headers" not in body
    for method in ("PUT", "DELETE", "POST"):
        rest = "/data/x?uploads" if method == "POST" else "/data/x"
        assert vending.sign("reader", "held", method, mine + rest)[0] == 403
        assert vending.sign("writer", "held", method, mine + rest)[0] == 200
    copied = {"x-amz-copy-source": [f"{other.location().removeprefix('s3://')}/data/x"]}
    assert vending.sign("writer", "held", "PUT", f"{mine}/x", headers=copied)[0] == 403
    wrong: dict[str, Any]
    for wrong in ({"headers": []}, {"headers": {"a": "b"}}, {"body": 1}, {"provider": "gcs"}):
        assert vending.sign("writer", "held", "GET", f"{mine}/x", **wrong)[0] == 400, wrong


def test_a_table_that_is_only_staged_is_for_its_writers(vending: Vending) -> None:
    location = vending.table("renamed")
    vending.catalog("admin").rename_table("ice.renamed", "ice.secret")
    uuid = "01234567-89ab-cdef-0123-456789abcdef"
    fresh = vending.url(f"{ROOT}/ice/coming-{uuid}/data/x")
    assert vending.sign("writer", "coming", "PUT", fresh)[0] == 200
    assert vending.sign("reader", "coming", "GET", fresh)[0] == 403
    assert vending.sign("stranger", "coming", "PUT", fresh)[0] == 403
    # The name is free, the place isn't.
    assert vending.sign("writer", "renamed", "GET", vending.url(location, "/data/x"))[0] == 403
    # Who says where a table shall be gets no keys before the log has it there.
    for place in (location, f"{ROOT}/ice"):
        body = {"name": "stolen", "stage-create": True, "location": place}
        body["schema"] = {"type": "struct", "fields": []}
        headers = {"x-api-key": KEYS["writer"], "X-Iceberg-Access-Delegation": f"{VENDED},{SIGNED}"}
        status, found = vending.world.post("/v1/namespaces/ice/tables", body, headers=headers)
        assert status != 200 or found["config"] == {}, found


def test_files_of_a_dropped_table_are_removed_by_who_may_write_it(vending: Vending) -> None:
    """As Spark's DROP TABLE ... PURGE does, with a list of objects at a time."""
    location = vending.table("purged")
    store = store_for(location)
    names = list(store.walk())
    assert any(name.endswith(".parquet") for name in names)
    vending.catalog("admin").drop_table("ice.purged")
    assert vending.sign("admin", "purged", "GET", vending.url(location, f"/{names[0]}"))[0] == 200
    folder, many = location.split("/", 3)[3], f"{vending.endpoint}/{BUCKET}?delete"

    def deletion(*keys: str) -> dict[str, Any]:
        listed = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
        text = f"<Delete>{listed}</Delete>"
        digest = base64.b64encode(hashlib.md5(text.encode()).digest()).decode()
        return {"body": text, "headers": {"content-md5": [digest]}}

    keys = [f"{folder}/{name}" for name in names]
    for who, status in (("reader", 403), ("stranger", 403), ("writer", 200)):
        assert vending.sign(who, "purged", "POST", many, **deletion(*keys))[0] == status
    other = vending.catalog("admin").load_table("ice.other").location().split("/", 3)[3]
    stolen = deletion(*keys, f"{other}/x")
    assert vending.sign("writer", "purged", "POST", many, **stolen)[0] == 403
    assert vending.sign("writer", "purged", "POST", many, **deletion("x"))[0] == 404
    asked = deletion(*keys)
    signed = vending.sign("writer", "purged", "POST", many, **asked)[1]
    given = {**asked["headers"], **signed["headers"], "content-type": ["application/xml"]}
    headers = {name: value[0] for name, value in given.items()}
    sent = asked["body"].encode()
    urlopen(Request(signed["uri"], data=sent, headers=headers, method="POST"), timeout=60).close()
    assert list(store.walk()) == []


def test_a_place_that_the_log_did_not_give_takes_more(vending: Vending) -> None:
    """A name is granted, and what a table of another name left where it is put isn't."""
    table = vending.catalog("admin").create_table("ice.left", ROWS.schema)
    table.append(ROWS)
    vending.catalog("admin").drop_table("ice.left")
    for name, place in (("again", table.location()), ("beside", f"{ROOT}/somewhere")):
        vending.catalog("admin").create_table(f"ice.{name}", ROWS.schema, location=place)
        for who in ("writer", "reader"):
            found = vending.load(who, name, ways=f"{VENDED},{SIGNED}")
            assert found["config"] == {}, (who, name)
            assert vending.sign(who, name, "GET", vending.url(place, "/data/x"))[0] == 403
        assert vending.load("admin", name)["config"]["s3.access-key-id"]
    pattern = f"{ROOT}/*"
    vending.catalog("admin").create_table("ice.pattern", ROWS.schema, location=pattern)
    assert vending.load("admin", "pattern")["config"] == {}, "a policy would open everything"


def test_a_second_name_is_read_by_who_may_read_both(vending: Vending) -> None:
    first = vending.catalog("admin").create_table("ice.first", ROWS.schema)
    headers = {"x-api-key": KEYS["admin"], "x-commitlog-read-only": "true"}
    vending.catalog("admin").create_namespace("elsewhere")
    body = {"name": "second", "metadata-location": first.metadata_location}
    assert vending.world.post("/v1/namespaces/elsewhere/register", body, headers=headers)[0] == 200
    path = "/v1/namespaces/elsewhere/tables/second"
    for who, gets in (("stranger", False), ("admin", True)):
        asked = {"x-api-key": KEYS[who], "X-Iceberg-Access-Delegation": VENDED}
        status, found = vending.world.send("GET", path, b"", asked)
        assert (status, bool(found["config"])) == (200, gets)
    folder = first.location().split("/", 3)[3]
    keys = of_iceberg(found["config"])
    assert vending.does(keys, "list_objects_v2", Prefix=f"{folder}/")
    assert not vending.does(keys, "put_object", Key=f"{folder}/x", Body=b"x")


def test_pylance_reads_and_writes_with_keys_of_a_session(vending: Vending) -> None:
    names = {
        who: lance_namespace.connect(
            "rest", {"uri": vending.world.uri, "headers.x-api-key": KEYS[who]}
        )
        for who in NAMES
    }
    before = len(vending.store.seen)
    table = ["lake", "t"]
    lance.write_dataset(
        numbers(0, 3), namespace_client=names["writer"], table_id=table, mode="create"
    )
    lance.write_dataset(
        numbers(3, 5), namespace_client=names["writer"], table_id=table, mode="append"
    )
    read = lance.dataset(namespace_client=names["reader"], table_id=table)
    assert read.count_rows() == 5
    by_sessions = {path for key, _, path in vending.store.seen[before:] if key != KEY}
    assert any("/data/" in path for path in by_sessions)
    with pytest.raises(OSError, match="(?i)denied|403|forbidden"):
        lance.write_dataset(
            numbers(5, 6), namespace_client=names["reader"], table_id=table, mode="append"
        )
    for who in ("writer", "reader"):
        options = vending.describe(who, "lake$t")
        assert int(options["expires_at_millis"]) > datetime.now(UTC).timestamp() * 1000
        folder = read.uri.split("/", 3)[3]
        keys, given = of_lance(options), {"Key": f"{folder}/data/x", "Body": b"x"}
        assert vending.does(keys, "put_object", **given) is (who == "writer")
        assert not vending.does(keys, "put_object", Key="tables/x", Body=b"x")
    assert vending.describe("stranger", "lake$t") == 403
    assert "aws_session_token" not in vending.describe("writer", "lake$t", vend_credentials=False)


def test_keys_that_open_everything_are_for_who_may_write_everything(vending: Vending) -> None:
    elsewhere = {"x-api-key": KEYS["admin"]}
    body = {"location": f"{ROOT}/given", "vend_credentials": True}
    status, found = vending.world.post("/v1/table/lake$given/declare", body, headers=elsewhere)
    assert status == 200, found
    assert vending.describe("writer", "lake$given", vend_credentials=True) == {}
    settings = Settings(credentials=Scoped({"": STATIC}))
    assert json.dumps(settings.credentials.at("s3://x")).count("opens") == 1
