"""The search for rows that only older versions have finds what a look at each version finds."""

import random
from typing import Any

import lance
import pyarrow as pa
import pytest

from commitlog import CommitLog
from commitlog.adapters import lance_datasets
from consumers.tools.erasure import older
from consumers.tools.erasure.older import version_with
from tests.service import Service

T = "shop$people"
SCHEMA = pa.schema([("id", pa.int64()), ("email", pa.string())])


@pytest.fixture
def client(running: Service) -> CommitLog:
    return running.client


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note which versions the search opens with Lance."""
    versions: list[int] = []
    open_version = lance_datasets.open_dataset

    def noting(location: str, version: int) -> lance.LanceDataset:
        versions.append(version)
        return open_version(location, version)

    monkeypatch.setattr(older, "open_dataset", noting)
    return versions


def people(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "email": [f"e{one}" for one in ids]}, schema=SCHEMA)


def search(client: CommitLog, where: str, table: str = T) -> int:
    info = client.table(table)
    return version_with(client, info, where, lambda done, total: None)


def each_version(client: CommitLog, where: str) -> int:
    for version in range(client.table(T).version - 1, 0, -1):
        if client.open(T, version).count_rows(where):
            return version
    return 0


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
@pytest.mark.parametrize("seed", range(2))
def test_it_finds_what_a_look_at_each_version_finds(
    client: CommitLog, seed: int, stable: bool
) -> None:
    chance = random.Random(seed)
    client.create_table(T, SCHEMA, stable_row_ids=stable)
    there: list[int] = []
    last = 0
    for _ in range(14):
        act = chance.choice(["append", "append", "delete", "delete", "update", "compact", "index"])
        if act == "append" or not there:
            new = list(range(last, last + chance.randint(1, 4)))
            last += len(new)
            client.append(T, people(*new)).raise_for_conflict()
            there += new
        elif act == "delete":
            gone = chance.sample(there, chance.randint(1, len(there)))
            client.delete(T, f"id in ({', '.join(map(str, gone))})").raise_for_conflict()
            there = [one for one in there if one not in gone]
        elif act == "update":
            client.update(T, {"email": "'changed'"}, f"id = {chance.choice(there)}")
        elif act == "compact":
            client.compact(T)
        else:
            client.create_index(T, "id", "BTREE", replace=True)
    for where in [f"id = {one}" for one in range(last + 1) if one not in there]:
        assert search(client, where) == each_version(client, where), where
    for one in there:
        where = f"id <> {one} and email = 'e{one}'"
        assert search(client, where) == each_version(client, where) == 0


def test_files_without_such_rows_are_searched_once_however_many_versions_have_them(
    client: CommitLog, opened: list[int]
) -> None:
    client.create_table(T, SCHEMA)
    for one in range(12):
        client.append(T, people(2 * one, 2 * one + 1)).raise_for_conflict()
    for one in range(12):
        client.delete(T, f"id = {2 * one}").raise_for_conflict()
    client.compact(T)
    assert search(client, "id = 777") == 0
    # Before the compaction, and whatever that left.
    assert len(opened) <= 3
    opened.clear()
    assert search(client, "id = 22") == 24
    assert len(opened) <= 3


def test_a_column_of_the_same_name_that_was_another_one_is_searched_too(client: CommitLog) -> None:
    client.create_table(T, SCHEMA)
    client.append(T, people(1)).raise_for_conflict()
    client.alter_columns(T, {"path": "email", "name": "mail"})
    client.add_columns(T, pa.field("email", pa.string()))
    client.append(T, people(2)).raise_for_conflict()
    assert search(client, "email = 'e1'") == 2


def test_versions_under_the_policy_latest_are_searched_too(client: CommitLog) -> None:
    client.create_table(T, SCHEMA, policy="latest")
    tickets: list[Any] = []
    for one in range(5):
        client.append(T, people(one)).raise_for_conflict()
        tickets.append(client.delete(T, f"id = {one}"))
    for one in range(5):
        assert search(client, f"id = {one}") == 2 * one + 2
    assert search(client, "id = 777") == 0
