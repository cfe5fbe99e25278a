"""A table's disk takes no files: a small one of the test's own, where it may mount one."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from commitlog import CommitLog, StorageFull, StorageUnwritable
from commitlog.client.rows.full_storage import naming_full_disk, naming_full_storage
from commitlog.errors import InvalidTransaction
from tests.child import ended
from tests.disks import small_disk
from tests.service import service

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("data", pa.binary())])
LANCE = "LanceError(IO): No space left on device (os error 28), /x/lance/src/writer.rs:190:9"


def rows(count: int) -> pa.Table:
    data = [random.randbytes(1_000) for _ in range(count)]  # nothing makes it smaller
    return pa.table({"id": list(range(count)), "data": data}, schema=SCHEMA)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk of 8 MiB."""
    with small_disk(tmp_path_factory.mktemp("disk"), "8m") as folder:
        yield folder


@pytest.fixture(scope="module")
def log(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommitLog]:
    with service(tmp_path_factory.mktemp("full")) as running:
        running.client.create_table("t", SCHEMA, primary_key="id", location=str(disk / "t"))
        running.client.append("t", rows(1_000))
        yield running.client


def transact(log: CommitLog) -> None:
    with log.transact() as both:
        both.append("t", rows(20_000))


def upsert(log: CommitLog) -> None:
    merge = log.open("t").merge_insert("id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute(rows(20_000))


BIG = {
    "append": lambda log: log.append("t", rows(20_000)),
    "merge": lambda log: log.merge_insert("t", rows(20_000), "id"),
    "rows": lambda log: log.write_rows("t", rows(20_000)),
    "transact": transact,
    "native": lambda log: log.open("t").insert(rows(20_000)),
    "native-merge": upsert,
    "native-write": lambda log: lance.write_dataset(rows(20_000), log.open("t"), mode="append"),
}
SMALL = {
    "update": lambda log: log.update("t", {"id": "id + 5000"}, "id % 2 = 1"),
    "delete": lambda log: log.delete("t", "id = 3"),
    "delete-scan": lambda log: log.delete("t", "id % 7 = 3"),
    "columns": lambda log: log.add_columns("t", {"b": "id + 1"}),
    "index": lambda log: log.create_index("t", "id", "BTREE"),
    "tag": lambda log: log.open("t").tags.create("x", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("write", BIG.values(), ids=BIG)
def test_a_full_disk_is_named_and_nothing_is_committed(
    log: CommitLog, disk: Path, write: Callable[[CommitLog], object]
) -> None:
    before = log.open("t").version
    with pytest.raises(StorageFull, match=f"mounted at {disk}") as caught:
        write(log)
    assert "Nothing was committed" in str(caught.value)
    assert log.open("t").version == before


@pytest.fixture
def read_only(disk: Path) -> Iterator[None]:
    """Have the disk take no files for a while."""
    remount = ["mount", str(disk), "-o"]
    assert not ended([*remount, "remount,ro"]).returncode
    yield
    assert not ended([*remount, "remount,rw"]).returncode


@pytest.mark.slow
@pytest.mark.usefixtures("read_only")
@pytest.mark.parametrize("write", (BIG | SMALL).values(), ids=BIG | SMALL)
def test_a_read_only_disk_is_named_with_what_to_do(
    log: CommitLog, disk: Path, write: Callable[[CommitLog], object]
) -> None:
    before = log.open("t").version
    with pytest.raises(StorageUnwritable, match="Read-only .*mount it for writing") as caught:
        write(log)
    assert f"files of t could not be written at {disk / 't'} " in str(caught.value)
    assert not isinstance(caught.value, StorageFull)
    assert log.open("t").version == before


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
@pytest.mark.parametrize("said", ["LanceError(IO): x (os error {0})", "[Errno {0}] {1}: 'x'"])
def test_a_place_that_takes_no_files_is_named(number: int, said: str) -> None:
    told = pytest.raises(StorageUnwritable, match="files of t could.* at /x ")
    with told, naming_full_storage("t", "/x"):
        raise OSError(said.format(number, os.strerror(number)))


def test_a_value_in_a_predicate_is_no_word_of_the_system() -> None:
    with pytest.raises(OSError, match="No field"), naming_full_storage("t", "/x"):
        raise OSError("LanceError(Schema): No field named x in x = 'Permission denied'")


@pytest.mark.slow
def test_what_a_callers_own_stream_could_not_read_is_not_the_tables(
    log: CommitLog,
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        raise PermissionError(errno.EACCES, "Permission denied", "/theirs")
        yield

    stream = pa.RecordBatchReader.from_batches(SCHEMA, batches())
    with pytest.raises(PermissionError, match="/theirs"):
        log.append("t", stream)


def test_a_small_file_that_lance_lost_to_a_full_disk_is_no_fault_of_its_writer(
    log: CommitLog, disk: Path
) -> None:
    """Lance writes all bytes of a small file as it closes it, and ignores that error."""
    log.create_table("small", pa.schema([("id", pa.int64())]), location=str(disk / "small"))
    filling = disk / "filling"
    with filling.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 20)):
            pass
    with pytest.raises(StorageFull, match=f"mounted at {disk}"):
        log.append("small", {"id": [1]})
    filling.unlink()
    assert log.append("small", {"id": [1]}).version == 2


def test_what_is_full_is_seen_in_what_others_made_of_it(tmp_path: Path) -> None:
    wrapped = InvalidTransaction("the merge cannot be executed")
    wrapped.__cause__ = OSError(LANCE)
    for error in (wrapped, OSError(28, "No space left on device")):
        full = pytest.raises(StorageFull, match="is full. Free space, then run this again")
        with full as raised, naming_full_disk(str(tmp_path)):
            raise error
        assert raised.value.__cause__ is error
    for other in (
        InvalidTransaction("the predicate 'No space left on device' is no SQL"),
        OSError("LanceError(IO): Permission denied (os error 13)"),
    ):
        with pytest.raises(type(other)) as same, naming_full_disk(str(tmp_path)):
            raise other
        assert same.value is other


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("ExpiredToken", "give this process keys that are valid"),
        ("AccessDenied", "give this process keys that are valid"),
        ("RequestTimeTooSkewed", "set this machine's clock right"),
    ],
)
def test_a_store_that_refuses_keys_is_named(code: str, advice: str) -> None:
    said = f"LanceError(IO): PUT x - 400 Bad Request: <Error><Code>{code}</Code></Error>, /x.rs:1"
    with pytest.raises(StorageUnwritable) as caught, naming_full_storage("t", "s3://lake/t"):
        raise OSError(said)
    assert str(caught.value) == (
        f"the store of s3://lake/t refused files of t ({code}). Nothing was committed by this call:"
        f" {advice}, then make the same call again"
    )
    with pytest.raises(OSError, match="SlowDown"), naming_full_storage("t", "s3://lake/t"):
        raise OSError(said.replace(code, "SlowDown"))
