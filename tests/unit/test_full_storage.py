"""A table's disk has no space left: a small one of the test's own, where it may mount one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from commitlog import CommitLog, StorageFull
from commitlog.client.full_storage import is_full
from commitlog.errors import InvalidTransaction
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "write",
    [
        lambda log: log.append("t", rows(20_000)),
        lambda log: log.merge_insert("t", rows(20_000), "id"),
        lambda log: log.write_rows("t", rows(20_000)),
        transact,
        lambda log: log.open("t").insert(rows(20_000)),
        upsert,
    ],
    ids=["append", "merge", "rows", "transact", "native", "native-merge"],
)
def test_a_full_disk_is_named_and_nothing_is_committed(
    log: CommitLog, disk: Path, write: Callable[[CommitLog], object]
) -> None:
    before = log.open("t").version
    with pytest.raises(StorageFull, match=f"mounted at {disk}") as caught:
        write(log)
    assert "Nothing was committed" in str(caught.value)
    assert log.open("t").version == before


def test_what_is_full_is_seen_in_what_others_made_of_it() -> None:
    wrapped = InvalidTransaction("the merge cannot be executed")
    wrapped.__cause__ = OSError(LANCE)
    assert is_full(wrapped)
    assert is_full(OSError(28, "No space left on device"))
    assert not is_full(InvalidTransaction("the predicate 'No space left on device' is no SQL"))
    assert not is_full(OSError("LanceError(IO): Permission denied (os error 13)"))
