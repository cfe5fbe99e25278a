"""A data file of a table that was lost: whoever reads it is told which, and what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commitlog import CommitLog, InvalidTransaction, NoSuchVersion
from commitlog.adapters.storage import local_path
from tests.steered_leader import SCHEMA, SteeredLeader

WRITES: dict[str, Callable[[CommitLog], object]] = {
    "delete": lambda log: log.delete("a$t", "v = 'b'"),
    "delete-by-key": lambda log: log.delete("a$t", "id = 2"),
    "update": lambda log: log.update("a$t", {"v": "'x'"}, "v = 'b'"),
    "update-by-key": lambda log: log.update("a$t", {"v": "'x'"}, "id = 2"),
    "merge": lambda log: log.merge_insert("a$t", {"id": [1, 2], "v": ["x", "y"]}),
    "merge-by-value": lambda log: log.merge_insert("a$t", {"id": [1], "v": ["b"]}, on="v"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_that_reads_a_lost_file_names_table_and_version(
    client: CommitLog, leader: SteeredLeader, write: Callable[[CommitLog], object]
) -> None:
    client.create_table("a$t", SCHEMA, primary_key="id")
    client.append("a$t", {"id": [1, 2, 3], "v": list("abc")})
    folder = local_path(client.table("a$t").location)
    assert folder is not None
    [file] = (folder / "data").iterdir()
    file.unlink()
    committed = len(leader.committed)
    with pytest.raises(NoSuchVersion, match=r"a file of version 2 of a\$t is gone: .*verify"):
        write(client)
    assert len(leader.committed) == committed


def test_a_predicate_that_says_not_found_is_no_lost_file(client: CommitLog) -> None:
    client.create_table("a$t", SCHEMA, primary_key="id")
    client.append("a$t", {"id": [1], "v": ["a"]})
    with pytest.raises(InvalidTransaction, match="could not convert to literal"):
        client.delete("a$t", "id = 'not found: x'")
