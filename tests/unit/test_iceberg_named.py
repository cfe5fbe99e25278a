"""What maintenance remembers of metadata files that a log named, and what if they come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.places import meet
from consumers.tools.iceberg import named as iceberg_named
from consumers.tools.iceberg.orphans import IcebergOrphans
from consumers.tools.orphans.nested_places import apart, below, nested_in
from tests.iceberg_files_world import ROWS, FilesWorld

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FilesWorld]:
    """No name is young in its log."""
    monkeypatch.setattr(iceberg_named, "LATELY_MS", -1)
    running = FilesWorld(tmp_path)
    yield running
    running.close()


@pytest.fixture
def table(world: FilesWorld) -> Any:
    """A table of eight metadata files."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("named", type="rest", uri=world.uri)
    catalog.create_namespace("files")
    made = catalog.create_table("files.t", ROWS.schema)
    for number in range(6):
        with made.transaction() as transaction:
            transaction.set_properties({"number": str(number)})
    made.append(ROWS)
    return made


@pytest.fixture
def orphans(world: FilesWorld) -> Iterator[IcebergOrphans]:
    with closing(IcebergOrphans(MemoryLog(world.cluster), str(world.tables_root))) as found:
        yield found


def _metadata(table: Any) -> list[Path]:
    return sorted((Path(table.location()) / "metadata").glob("*.metadata.json"))


def _found(orphans: IcebergOrphans) -> list[str]:
    return [one.location for one in orphans.find()]


def _reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note each reading of a log from its start."""
    reads: list[int] = []
    read = MemoryLog.read_outcomes

    def noting(log: MemoryLog, partition: int, offset: int, **options: Any) -> Any:
        if not offset:
            reads.append(partition)
        return read(log, partition, offset, **options)

    monkeypatch.setattr(MemoryLog, "read_outcomes", noting)
    return reads


def test_names_of_files_that_are_gone_are_forgotten(table: Any, world: FilesWorld) -> None:
    places = _metadata(table)
    for gone in places[:3]:
        gone.unlink()
    with closing(IcebergOrphans(MemoryLog(world.cluster), str(world.tables_root))) as orphans:
        assert not orphans.find()
        kept = orphans._named.homes_of
        assert sorted(kept) == sorted(map(str, places[3:]))
        for gone in places[3:5]:
            gone.unlink()
        assert not orphans.find()
        assert sorted(kept) == sorted(map(str, places[5:]))
        places[-1].unlink()
        assert not orphans.find()
        assert str(places[-1]) in kept, "the last one of a table is looked for"
        assert sorted(orphans._named.missing) == [str(places[-1])]


def test_a_file_that_came_back_is_needed_and_its_name_is_found_again(
    table: Any, orphans: IcebergOrphans, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The snapshot is in the last metadata file, and the table goes on from one before it.
    with table.transaction() as transaction:
        transaction.set_properties({"number": "7"})
    before, last = _metadata(table)[-2:]
    content = before.read_bytes()
    lists = [one.manifest_list for one in table.refresh().snapshots()]
    last.write_bytes(_metadata(table)[0].read_bytes())
    before.unlink()
    assert lists[0] in _found(orphans)
    reads = _reads(monkeypatch)
    before.write_bytes(content)
    assert not _found(orphans), "it may be one whose name was forgotten"
    assert not reads
    assert not _found(orphans)
    assert reads == [0]
    assert not _found(orphans)
    assert str(before) in orphans._named.homes_of
    assert reads == [0]


def test_a_file_without_a_name_is_listed_once_that_is_sure(
    table: Any, orphans: IcebergOrphans, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = _metadata(table)[0]
    older, newer = (stray.with_name(stray.name.replace("00000", f"0000{n}")) for n in (8, 9))
    older.write_bytes(stray.read_bytes())
    assert _found(orphans) == [str(older)], "the log was read against what was there"
    reads = _reads(monkeypatch)
    newer.write_bytes(stray.read_bytes())
    assert _found(orphans) == [str(older)]
    assert not reads
    for _ in range(3):
        assert _found(orphans) == [str(older), str(newer)]
        assert reads == [0]


def test_a_file_that_gets_its_name_later_has_no_log_read_again(
    table: Any, orphans: IcebergOrphans, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not _found(orphans)
    reads = _reads(monkeypatch)
    with monkeypatch.context() as patched:
        # As if it was listed before its commit was read.
        patched.setattr(iceberg_named, "read_on", lambda reader: iter(()))
        with table.transaction() as transaction:
            transaction.set_properties({"number": "late"})
        assert not _found(orphans)
    assert len(orphans._named.unclear) == 1
    assert not _found(orphans)
    assert not orphans._named.unclear
    assert not reads


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_places_apart_are_those_that_meet_no_other(count: int) -> None:
    roots = ("s3://lake/tables", "/r/tables", "/r")
    others = [f"{roots[n % 3]}/{'x/' * (n % 2)}t{n}" for n in range(count)]
    places = [f"{roots[n % 3]}{end}" for n in range(0, 400, 7)
              for end in ("", f"/t{n}", f"/x/t{n}", "/x", f"/t{n}/in/it", f"/t{n}0")]  # fmt: skip
    assert apart(places, others) == {
        one for one in places if not any(meet(one, other) for other in others)
    }


@pytest.mark.parametrize("count", [1, 2, 300])
def test_what_is_below_many_places_is_what_begins_with_one(count: int) -> None:
    roots = ("s3://lake/tables", "/r/tables", "/r")
    places = [f"{roots[n % 3]}/{'x/' * (n % 2)}t{n}" for n in range(count)]
    paths = [f"{roots[n % 3]}/{'x/' * (n % 2)}t{n}{end}" for n in range(0, 400, 7)
             for end in ("", "/data/a.lance", "/_indices/i", "0/b")]  # fmt: skip
    is_below = below(places)
    prefixes = tuple(f"{place}/" for place in places)
    assert [is_below(one) for one in paths] == [one.startswith(prefixes) for one in paths]
    nested = sorted([*places, *(f"{place}/in/{n}" for n, place in enumerate(places))])
    for n, place in enumerate(places):
        assert nested_in(place, nested) == [f"in/{n}"]
