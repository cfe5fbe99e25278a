"""Can a dataset that somebody prepared, and has the log take over, name a place of others?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import blob_array, blob_field

from commitlog.adapters.storage import store_for
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY, decode_manifest, encode_manifest
from commitlog.core.manifest.header import ManifestHeader
from commitlog.errors import CommitLogError
from commitlog.lancepb.table_pb2 import DataFragment, Manifest
from consumers.servers.namespace.settings import Settings
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.identity import Security
from consumers.servers.server import ServerSettings
from tests.namespace_world import World, numbers
from tests.unit.test_namespace_reach import ADMIN, BOB, access_file, create, query


def prepare(folder: str, what: str, named: str) -> None:
    """Make a dataset whose manifest names a file, a base path or a transaction of others."""
    lance.write_dataset(numbers(0, 2), folder)
    store = store_for(folder)
    (name,) = (one for one in store.names(VERSIONS_DIRECTORY) if one.endswith(".manifest"))
    path = f"{VERSIONS_DIRECTORY}/{name}"
    state, transaction = decode_manifest(store.read(path))
    header = Manifest()
    header.CopyFrom(state.header.message)
    if what == "transaction":
        state.transaction_file, transaction = named, None
    elif what == "base":
        header.base_paths.add(id=1, name="base", path=named, is_dataset_root=True)
        state.header = ManifestHeader.of(header)
    else:
        for number, encoded in list(state.fragments.items()):
            fragment = DataFragment.FromString(encoded)
            fragment.files[0].path = named
            state.fragments.put([(number, fragment.SerializeToString())])
    store.write(path, encode_manifest(state, transaction))


def ways_to(secret: str, mine: str) -> list[tuple[str, str]]:
    """Return what a manifest at one place may name of a dataset at another one."""
    (data,) = store_for(secret).names("data")
    up = f"../../{os.path.relpath(secret, os.path.dirname(mine))}"
    return [
        *(("file", f"{up}/data/{data}"), ("file", f"{secret}/data/{data}")),
        *(("file", f"x/../{up}/data/{data}"), ("file", f"..\\{up}/data/{data}".replace("/", "\\"))),
        *(("base", secret), ("base", f"{secret}/"), ("base", up), ("base", f"{secret}/data")),
        *(("transaction", f"{up}/data/{data}"), ("transaction", f"{secret}/data/{data}")),
    ]


def check_nothing_leads_there(world: World, secret: str, folder: str, rows: list[int]) -> None:
    """Register one prepared dataset after another, over HTTP and by record; read it as bob."""
    for what, named in ways_to(secret, f"{folder}/x"):
        for way in ("http", "record"):
            name = world.fresh_name()
            place, table = f"{folder}/{name}", f"bobs${name}"
            prepare(place, what, named)
            if way == "http":
                body = {"location": place}
                status = world.post(f"/v1/table/{table}/register", body, headers=BOB)[0]
                assert status in (200, 400, 403), (what, named)
            else:
                try:
                    world.log.register_table(table, place)
                except CommitLogError:
                    continue  # the leader's policy
            status, found = query(world, table, BOB)
            if status == 200:  # what was named is of no use to Lance
                assert (what, found) == ("transaction", [0, 1]), (named, way)
            else:
                assert status in (400, 403, 404), (named, way, found)
            for asked in ("describe", "version/list", "version/describe", "count_rows", "stats"):
                status, found = world.post(f"/v1/table/{table}/{asked}", {}, headers=BOB)
                assert status < 500, (what, named, asked, found)
    assert query(world, "hr$salaries", ADMIN) == (200, rows)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a server where bob has the namespace `bobs`, and may register what is in `allowed`."""
    made = World(
        tmp_path,
        settings=Settings(locations=(str(tmp_path / "allowed"),)),
        server=ServerSettings(security=Security(AccessFile(access_file(tmp_path)))),
    )
    yield made
    made.close()


@pytest.mark.slow
def test_a_dataset_that_is_registered_names_no_file_of_others(world: World, tmp_path: Path) -> None:
    secret = create(world, "hr$salaries", 100)
    check_nothing_leads_there(world, secret, str(tmp_path / "allowed"), [100, 101])


@pytest.mark.slow
def test_a_dataset_that_is_registered_names_no_place_that_nobody_serves(
    world: World, tmp_path: Path
) -> None:
    create(world, "hr$salaries", 100)
    foreign = str(tmp_path / "elsewhere" / "foreign.lance")
    lance.write_dataset(numbers(7, 12), foreign)
    check_nothing_leads_there(world, foreign, str(tmp_path / "allowed"), [100, 101])


def test_a_folder_that_is_registered_has_no_links_to_others(world: World, tmp_path: Path) -> None:
    secret = create(world, "hr$salaries", 100)
    (tmp_path / "allowed").mkdir()
    whole, parts = tmp_path / "allowed" / "whole", tmp_path / "allowed" / "parts"
    whole.symlink_to(secret)
    shutil.copytree(secret, parts)
    shutil.rmtree(parts / "data")
    (parts / "data").symlink_to(f"{secret}/data")
    for place in (whole, parts):
        table = f"bobs${place.name}"
        world.post(f"/v1/table/{table}/register", {"location": str(place)}, headers=BOB)
        status, found = query(world, table, BOB)
        assert status in (403, 404), (place, found)


def test_rows_name_no_files_of_others(world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("whatever the server may read")
    schema = pa.schema([pa.field("id", pa.int64()), blob_field("file")])

    def rows(named: Any) -> pa.Table:
        return pa.table([pa.array([1]), blob_array([named])], schema=schema)

    assert world.rows("/v1/table/bobs$files/create", rows(b"own"), headers=BOB)[0] == 200
    for uri in (f"file://{secret}", str(secret), "s3://bucket/secret", "http://127.0.0.1/x"):
        merge = "merge_insert?on=id&when_matched_update_all=true"
        for path in ("more/create", "files/insert", f"files/{merge}"):
            status, body = world.rows(f"/v1/table/bobs${path}", rows(uri), headers=BOB)
            assert status in (400, 403), (uri, path, body)
    assert world.post("/v1/table/bobs$files/count_rows", {}, headers=BOB) == (200, 1)
