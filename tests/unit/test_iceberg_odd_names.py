"""Names that no table's file can have, and those that clients write in other ways."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog.codecs.avro_manifests import data_paths, manifest_paths
from consumers.partition.files import iceberg_files
from consumers.tools.iceberg.reached import as_hashed, hashes
from tests.iceberg_files_world import FilesWorld, below, made

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")

Naming = Callable[[str], str]


def test_a_name_that_no_file_of_a_table_has_holds_up_no_other(
    alone: tuple[Any, FilesWorld], caplog: pytest.LogCaptureFixture
) -> None:
    catalog, world = alone
    table = made(catalog, world)
    data = Path(table.location()) / "data"
    odd, *strays = (data / name for name in ("a\\b", "a\nb", os.fsdecode(b"\xff"), "50%", "c"))
    for path in (odd, *strays):
        path.write_bytes(b"stray")
    world.remove_after_weeks()
    assert odd.exists()
    assert not any(path.exists() for path in strays)
    [told] = {one for one in caplog.messages if "names that no table's file can have" in one}
    assert told.startswith("1 files")
    assert repr(str(odd)) in told


@pytest.mark.slow
@pytest.mark.parametrize(
    "named",
    [
        "relative/path.parquet",
        "hdfs:/old/path.parquet",
        "C:\\data\\path.parquet",
        "s3://bucket/a/../b.parquet",
        "\0",
        "file://[half-a-host",
        "/" + "long" * 2000,
        "",
    ],
)
def test_whatever_a_manifest_names_holds_up_no_other(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    catalog, world = alone
    table, purged = made(catalog, world), made(catalog, world)
    stray = Path(table.location()) / "data" / "stray"
    stray.write_bytes(b"stray")
    catalog.purge_table(purged.name())
    for name, read in (("data_paths", data_paths), ("manifest_paths", manifest_paths)):
        for module in (
            "consumers.partition.files.iceberg_files",
            "consumers.tools.iceberg.reached",
        ):
            monkeypatch.setattr(f"{module}.{name}", lambda data, read=read: [*read(data), named])
    world.remove_after_weeks()
    if named:
        world.maintain()
    world.remove_after_weeks()
    # What can't be read may be a manifest of the table, so only its own files are judged then.
    assert stray.exists()
    monkeypatch.undo()
    world.remove_after_weeks()
    assert not stray.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "written",
    [
        lambda place: f"file:{place}",
        lambda place: f"file://{place}",
        lambda place: place.replace("/data/", "//data/./"),
        lambda place: place.replace("/data/", "/data/x/../"),
        lambda place: f"s3a://bucket{place}",
    ],
)
def test_a_data_file_is_needed_however_its_place_is_written(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch, written: Naming
) -> None:
    catalog, world = alone
    table = made(catalog, world)
    data = below(f"{table.location()}/data")
    named = "consumers.tools.iceberg.reached.data_paths"
    monkeypatch.setattr(named, lambda read: [written(place) for place in data_paths(read)])
    world.remove_after_weeks()
    assert below(f"{table.location()}/data") == data


def test_the_same_path_in_stores_that_clients_call_differently() -> None:
    spellings = ["s3://b/a/c", "s3a://b/a/c", "s3n://b/a//c", "abfss://b@account.host/a/c"]
    assert len({as_hashed(one) for one in spellings}) == 1
    assert as_hashed("/a/c") == as_hashed("file:/a/c") == as_hashed("file:///a/./c")
    assert as_hashed("/a/d") != as_hashed("/a/c")
    both = hashes(["file:/a/x%20y"])
    assert both == array("q", [as_hashed("/a/x%20y"), as_hashed("/a/x y")])


def test_a_manifest_that_is_listed_and_not_found_leads_to_any_file(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, world = alone
    table = made(catalog, world)
    before = below(table.location())
    read = iceberg_files.IcebergFiles.read
    exists = iceberg_files.IcebergFiles.exists

    def is_manifest(place: str) -> bool:
        return place.endswith(".avro")

    def not_found(files: iceberg_files.IcebergFiles, place: str) -> bytes:
        if is_manifest(place):
            raise FileNotFoundError(place)
        return read(files, place)

    monkeypatch.setattr(iceberg_files.IcebergFiles, "read", not_found)
    monkeypatch.setattr(
        iceberg_files.IcebergFiles,
        "exists",
        lambda files, place: not is_manifest(place) and exists(files, place),
    )
    world.remove_after_weeks()
    assert below(table.location()) == before
