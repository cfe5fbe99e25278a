"""Iceberg tables in an object store: an S3 server in this process, pyiceberg as it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog.adapters.storage import sha256_of, store_for
from commitlog.errors import InvalidTransaction
from consumers.tools.maintenance.cleaning import clean
from tests.iceberg_files_world import FilesWorld
from tests.installed import need
from tests.object_store import BUCKET, KEY, REGION, ROOT, SECRET, s3_server

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
need("moto", "obstore")
pytestmark = pytest.mark.filterwarnings(
    "ignore:::pyiceberg.*", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)

_ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


class Objects(FilesWorld):
    """A log whose tables lie on an S3 server, and its catalogue."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        from pyiceberg.catalog import load_catalog

        super().__init__(folder, ROOT)
        self.catalog: Any = load_catalog(
            "objects",
            **{
                "type": "rest",
                "uri": self.uri,
                "s3.endpoint": endpoint,
                "s3.access-key-id": KEY,
                "s3.secret-access-key": SECRET,
                "s3.region": REGION,
            },
        )
        self.catalog.create_namespace("far")

    def names(self) -> list[str]:
        """The log's own files aside."""
        return sorted(one for one in store_for(ROOT).walk() if not one.startswith("_commitlog/"))


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    with s3_server() as endpoint:
        running = Objects(tmp_path_factory.mktemp("objects"), endpoint)
        yield running
        running.close()


def test_a_table_lives_and_is_purged_in_an_object_store(objects: Objects) -> None:
    # It lists one of the metadata files before its last one, and keeps them all.
    properties = {"write.metadata.previous-versions-max": "1"}
    table = objects.catalog.create_table("far.t", _ROWS.schema, properties=properties)
    assert table.metadata_location.startswith(f"{ROOT}/far/t-")
    table.append(_ROWS)
    table.delete("id = 2")
    assert objects.catalog.load_table("far.t").scan().to_arrow().num_rows == 2
    assert objects.names()
    assert not objects.orphans()
    objects.catalog.purge_table("far.t")
    assert objects.maintain() == ["purge: all its files are removed"]
    assert not objects.names()


def test_metadata_that_goes_by_property_goes_there_too(objects: Objects) -> None:
    properties = {
        "write.metadata.previous-versions-max": "1",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.compression-codec": "gzip",
        "commitlog.maintain.remove-expired-after-hours": "0",
    }
    table = objects.catalog.create_table("far.pruned", _ROWS.schema, properties=properties)
    for number in range(3):
        with table.transaction() as transaction:
            transaction.set_properties(number=str(number))
    assert table.metadata_location.endswith(".gz.metadata.json")
    # pyiceberg removes what it knows of by itself.
    objects.maintain()
    assert len([name for name in objects.names() if name.endswith(".json")]) == 2
    objects.catalog.drop_table("far.pruned")
    again = objects.catalog.register_table("far.back", table.metadata_location)
    assert again.properties["number"] == "2"


def test_a_place_outside_the_root_is_refused(objects: Objects) -> None:
    body = {
        "name": "x",
        "location": "s3://other/place",
        "schema": {"type": "struct", "fields": []},
    }
    reply = objects.iceberg.ask("POST", "/v1/namespaces/far/tables", body)
    assert (reply.status, "tables root" in reply.error["message"]) == (400, True)
    outside = {"name": "x", "metadata-location": "s3://bucket/tables/../x.metadata.json"}
    assert objects.iceberg.ask("POST", "/v1/namespaces/far/register", outside).status == 400


def test_names_that_the_stores_client_takes_not_hold_up_no_other_folder(
    objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    table, other = (
        objects.catalog.create_table(("far", name), _ROWS.schema) for name in ("odd", "even")
    )
    for one in (table, other):
        one.append(_ROWS)
        store_for(one.location()).write("data/stray", b"stray")
    import botocore.session  # our own client takes no such names

    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=os.environ["AWS_ENDPOINT"],
        region_name=REGION,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )
    home = table.location().removeprefix("s3://bucket/")
    keys = [f"{home}/metadata//empty", f"{home}/data/../up", "tables/a\\b"]
    for key in keys:
        client.put_object(Bucket=BUCKET, Key=key, Body=b"odd")
    log = objects.other
    try:
        found = [one["location"] for one in clean(log, None, 0, objects.log)]
        assert found == [f"{other.location()}/data/stray"]
        assert store_for(other.location()).size("data/stray") < 0
        [told] = {one for one in caplog.messages if "are left alone" in one}
        assert told.startswith("3 files or folders")
    finally:
        for key in keys:
            client.delete_object(Bucket=BUCKET, Key=key)
    found = [one["location"] for one in clean(log, None, 0, objects.log)]
    assert found == [f"{table.location()}/data/stray"]
    assert not clean(log, None, 0, objects.log)
    assert [one.scan().to_arrow().num_rows for one in (table, other)] == [3, 3]


def test_the_store_keeps_what_the_log_rests_on(objects: Objects, tmp_path: Path) -> None:
    store = store_for("s3://bucket/contract")
    assert store.create("a/b", b"1")
    assert not store.create("a/b", b"2")
    assert (store.read("a/b"), store.size("a/b"), list(store.names("a"))) == (b"1", 1, ["b"])
    store.write("a/b", b"33")
    store.move("a/b", "c")
    assert (store.size("a/b"), store.read("c"), list(store.walk())) == (-1, b"33", ["c"])
    for given, wanted in ((b"else", False), (b"33", True)):
        assert store.replace("c", b"4", sha256_of(given)) is wanted
    assert not store.replace("nowhere", b"4", sha256_of(b""))
    assert not store.set_aside("c", "d", sha256_of(b"33"))
    assert store.set_aside("c", "d", sha256_of(b"4"))
    assert (store.read("d"), store.size("c")) == (b"4", -1)
    store.delete("d")
    store.delete("d")
    with pytest.raises(FileNotFoundError):
        store.read("d")
    for path in ("", "../x", "a/../../x", "/etc", "a//b"):
        with pytest.raises(InvalidTransaction):
            store.read(path)


def test_a_store_that_does_not_answer_is_an_error_of_the_file_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    with pytest.raises(OSError, match="S3"):
        store_for("s3://bucket/gone").read("x")
