"""Files of a Lance table that no committed transaction names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance
import pytest

from commitlog.errors import NoSuchTable
from commitlog.model.records import Application
from consumers.tools.orphans import find_table_orphans
from tests.service import SCHEMA, Service, rows, service

TABLE = "shop$orders"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path) as made:
        made.client.create_table(TABLE, SCHEMA)
        yield made


def found(world: Service, age_seconds: float = 0) -> dict[str, str]:
    listed = find_table_orphans(world.log, TABLE, age_seconds=age_seconds)
    return {orphan.location: orphan.reason for orphan in listed}


def written(world: Service, *ids: int) -> lance.FragmentMetadata:
    [fragment] = lance.fragment.write_fragments(rows(*ids), str(world.location(TABLE)))
    return fragment


def test_what_versions_read_is_no_orphan(world: Service) -> None:
    world.client.append(TABLE, rows(1, 2, 3))
    world.client.delete(TABLE, "id = 1")
    world.client.update(TABLE, {"name": "'z'"}, "id = 2")
    world.client.open(TABLE).optimize.compact_files()
    assert found(world) == {}


def test_files_that_nobody_names_are_listed_once_they_are_old(world: Service) -> None:
    fragment = written(world, 1)
    path = f"data/{fragment.files[0].path}"
    assert found(world) == {path: "no transaction names it"}
    assert found(world, age_seconds=3600) == {}


def test_a_replayed_batch_leaves_its_second_files(world: Service) -> None:
    for number in (1, 2):
        operation = lance.LanceOperation.Append([written(world, number)])
        application = Application("stream", 0, "run")
        ticket = world.client.submit(TABLE, operation, application=application)
        assert ticket.result().version == 2
    [reason] = found(world).values()
    assert "repeated what outcome" in reason


def test_files_of_a_refused_attempt_are_listed(world: Service) -> None:
    world.client.append(TABLE, rows(1))
    dataset = world.client.open(TABLE)
    image = dataset.get_fragments()[0].delete("id = 1 OR id = 2")
    assert image is None
    world.client.delete(TABLE, "id = 1")
    update = lance.LanceOperation.Update(
        removed_fragment_ids=[0], new_fragments=[written(world, 9)], update_mode="rewrite_rows"
    )
    outcome = world.client.submit(TABLE, update, read_version=2).result()
    assert outcome.status == "retryable"
    assert [reason.endswith("was retryable") for reason in found(world).values()] == [True]


def test_files_of_an_undecided_transaction_may_still_be_committed(world: Service) -> None:
    operation = lance.LanceOperation.Append([written(world, 1)])
    world.running[0].stop()
    ticket = world.client.submit(TABLE, operation)
    world.client.runtime().flush(120)
    assert not ticket.done()
    assert found(world) == {}


def test_a_table_that_is_not_there_is_named(world: Service) -> None:
    with pytest.raises(NoSuchTable, match=r"Did you mean shop\$orders"):
        find_table_orphans(world.log, "shop$order")
