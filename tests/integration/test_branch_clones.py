"""Clones that name a branch: tables of the log, which plain Lance finds by the branch's name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pytest
from lance import LanceOperation
from lance.fragment import write_fragments

from commitlog.adapters.lance_refs import lance_tags
from commitlog.client.rows.lance_request import new_transaction_id
from commitlog.errors import InvalidTransaction
from commitlog.model.operations import DeclareTable, LanceCommit
from commitlog.model.records import Code, Outcome, Status
from commitlog.model.table import parse_table_id
from consumers.tools.maintenance.maintenance import Maintenance
from tests.lance_messages import to_transaction_bytes
from tests.operations_world import T, comparable, opened, replay, six_versions
from tests.service import SCHEMA, Service, ids_of, rows
from tests.waiting import at_once

DEV = "ns$t@dev"
BOTH = pytest.mark.parametrize("policy", ["every", "latest"])


@pytest.fixture(params=[False, True], ids=["addresses", "stable_row_ids"])
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    """Make a table of three fragments with an index, and delete a row: version 6."""
    with six_versions(tmp_path, stable_row_ids=request.param) as made:
        yield made


def branch(
    running: Service, name: str, version: int, *, of: str = T, parent: str | None = None
) -> LanceOperation.Clone:
    """Return the Clone that `create_branch` of Lance would commit."""
    return LanceOperation.Clone(True, parent, version, str(running.location(of)), name)


def submit(running: Service, operation: Any, table: str = DEV) -> Outcome:
    """Submit it and wait until it can be read."""
    return running.client.submit(table, operation).result()


def made(running: Service) -> lance.LanceDataset:
    """Make branch `dev` of version 6, and return it as plain Lance has it."""
    outcome = submit(running, branch(running, "dev", 6))
    assert outcome.status is Status.COMMITTED, outcome.message
    assert outcome.versions() == {DEV: 6}
    return plain(running)


def plain(running: Service, name: str = "dev") -> lance.LanceDataset:
    """Return a branch by its name, without the log."""
    return opened(running).checkout_version((name, None))


def by_hand(running: Service, name: str) -> Outcome:
    """Submit a branch's two operations as somebody else's client would."""
    client, table = running.client, parse_table_id("ns$wrong")
    clone, incarnation = branch(running, name, 6), str(uuid4())
    made = to_transaction_bytes(clone, read_version=6, uuid=str(uuid4())).message
    place = f"{running.location(T)}/tree/{name}"
    operations = (
        DeclareTable(table, incarnation, place),
        LanceCommit(table, "Clone", 6, made, incarnation=incarnation),
    )
    transaction = client.transaction(operations, transaction_id=new_transaction_id())
    return client.runtime().submit(transaction, id_is_new=True).result()


def test_a_branch_is_what_pylance_makes(running: Service) -> None:
    home = running.location(T)
    made(running)
    opened(running).create_branch("other", 6)
    theirs = comparable(home / "tree" / "other", 6)
    theirs["header"].branch = "dev"
    assert comparable(home / "tree" / "dev", 6) == theirs
    references = [
        json.loads((home / "_refs" / "branches" / f"{name}.json").read_text())
        for name in ("dev", "other")
    ]
    for reference in references:
        # A time, and a random number.
        del reference["createAt"], reference["identifier"]["version_mapping"][0][1]
    assert references[0] == references[1]


def test_both_lines_go_their_own_way(running: Service) -> None:
    assert ids_of(made(running)) == [0, *range(2, 12)]
    client = running.client
    client.merge_insert(DEV, rows(3, 60, name="new"), "id").raise_for_conflict()
    client.append(T, rows(70))
    client.delete(DEV, "id = 0")
    client.open(DEV).insert(rows(50))
    client.open(DEV).optimize.compact_files()
    assert ids_of(plain(running)) == [*range(2, 12), 50, 60]
    assert ids_of(client.open(DEV)) == [*range(2, 12), 50, 60]
    assert ids_of(opened(running)) == [0, *range(2, 12), 70]
    assert [info.name for info in client.tables()] == [T, DEV]
    plain(running).validate()  # type: ignore[no-untyped-call]


@BOTH
def test_writers_of_a_branch_do_not_lose_rows(running: Service, policy: str) -> None:
    if policy == "latest":
        running.client.create_table("ns$l", SCHEMA, policy="latest")
        running.client.append("ns$l", rows(0))
        clone = branch(running, "dev", 2, of="ns$l")
        submit(running, clone).raise_for_conflict()
    else:
        made(running)
    before = len(ids_of(running.client.open(DEV)))

    def write(number: int) -> None:
        for position in range(5):
            running.client.append(DEV, rows(100 + 10 * number + position))

    at_once(write, range(4))
    assert running.client.open(DEV).count_rows() == before + 20


def test_a_branch_of_a_branch_and_of_an_older_version(running: Service) -> None:
    made(running)
    running.client.append(DEV, rows(50))
    fix = branch(running, "fix/one", 7, of=DEV, parent="dev")
    submit(running, fix, "ns$fix").raise_for_conflict()
    old = branch(running, "old", 3)
    submit(running, old, "ns$old").raise_for_conflict()
    running.client.append("ns$fix", rows(51))
    assert ids_of(plain(running, "fix/one")) == [0, *range(2, 12), 50, 51]
    assert ids_of(plain(running, "old")) == list(range(8))
    listed = opened(running).branches.list()
    assert {name: one["parent_branch"] for name, one in listed.items()} == {
        "dev": None,
        "fix/one": "dev",
        "old": None,
    }
    first, second = listed["fix/one"]["branch_identifier"]
    assert [first] == listed["dev"]["branch_identifier"]
    assert second[0] == 7


def test_what_is_no_branch_is_refused(running: Service) -> None:
    made(running)
    client = running.client
    again = submit(running, branch(running, "dev", 6), "ns$again")
    assert again.code is Code.LOCATION_TAKEN
    opened(running).create_branch("theirs", 6)
    outcome = submit(running, branch(running, "theirs", 6), "ns$theirs")
    assert outcome.code is Code.BUILD_REFUSED
    assert "'theirs' already" in outcome.message
    for name in ("main", "a//b", "../x", "x.lock", ""):
        with pytest.raises(InvalidTransaction, match="is not a valid branch name"):
            submit(running, branch(running, name, 6), "ns$wrong")
    assert by_hand(running, "main").code is Code.INVALID_OPERATION
    assert by_hand(running, "x/../y").code is Code.LOCATION_NOT_ALLOWED
    deep = LanceOperation.Clone(False, None, 6, str(running.location(T)), "deep")
    assert submit(running, deep, "ns$deep").code is Code.INVALID_OPERATION
    nameless = branch(running, "x", 6, of=DEV)
    assert submit(running, nameless, "ns$x").code is Code.LOCATION_TAKEN
    misnamed = branch(running, "x", 6, parent="dev")
    outcome = submit(running, misnamed, "ns$x")
    assert outcome.code is Code.INVALID_OPERATION
    assert "ref_name" in outcome.message
    inside = f"{running.location(T)}/tree/dev"
    for place in (inside, f"{inside}/deeper", f"{running.location(T)}/tree/free"):
        with pytest.raises(Exception, match="overlaps the location of table"):
            client.create_table("ns$taken", SCHEMA, location=place)
    assert [info.name for info in client.tables()] == [T, DEV]


def test_a_branch_elsewhere_than_lance_keeps_it_is_refused(running: Service) -> None:
    client = running.client
    place = str(running.root / "tables" / "elsewhere")
    declared = DeclareTable(parse_table_id(DEV), str(uuid4()), place)
    transaction = client.transaction((declared,), transaction_id=new_transaction_id())
    ticket = client.runtime().submit(transaction, id_is_new=True)
    ticket.result(wait="committed").raise_for_conflict()
    outcome = submit(running, branch(running, "dev", 6))
    assert outcome.code is Code.LOCATION_NOT_ALLOWED
    assert "in the same transaction" in outcome.message


def test_a_tag_keeps_the_version_of_the_line_that_it_names(running: Service) -> None:
    made(running)
    client, lines = running.client, {"of_main": T, "of_dev": DEV}
    for number in range(2):
        for table in lines.values():
            client.append(table, rows(20 + number))
    client.open(T).tags.create("of_main", 7)
    client.open(DEV).tags.create("of_dev", ("dev", 8))
    for number in range(2):
        client.append(DEV, rows(30 + number))
    assert lance_tags(client.table(T).location) == {"of_main": 7}
    assert lance_tags(client.table(DEV).location) == {"of_dev": 8}
    client.expire_versions(DEV, retain_versions=1)
    assert client.table(DEV).deleted == ((1, 7), (9, 9))


@pytest.mark.parametrize("first", [DEV, T])
def test_a_branch_and_its_table_are_maintained(
    running: Service, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    made(running)
    maintenance = Maintenance(running.client)
    maintenance.look_at_tables(only=(first,))
    maintenance.look()
    assert "left for later" not in caplog.text
    with pytest.raises(OSError, match="kept-by-commitlog"):
        opened(running).cleanup_old_versions(retain_versions=1)


def test_lance_s_own_cleanup_after_commits_to_a_branch_is_no_trouble(running: Service) -> None:
    made(running)
    Maintenance(running.client).look()
    running.client.open(DEV).update_config({"lance.auto_cleanup.interval": "1000"})
    running.client.open(DEV).insert(rows(50))
    assert running.client.open(DEV).count_rows() == 12


def test_a_dropped_branch_is_not_listed_any_more(running: Service) -> None:
    made(running)
    running.client.drop_table(DEV)
    assert opened(running).branches.list() == {}
    assert ids_of(opened(running)) == [0, *range(2, 12)]


def test_a_branch_is_replayed(running: Service) -> None:
    made(running)
    reference = running.location(T) / "_refs" / "branches" / "dev.json"
    [fragment] = write_fragments(rows(50), running.client.open(DEV).uri, schema=SCHEMA)
    submit(running, LanceOperation.Append([fragment])).raise_for_conflict()
    written = reference.read_bytes()
    replay(running)
    assert running.client.append(DEV, rows(51)).version == 8
    assert reference.read_bytes() == written
