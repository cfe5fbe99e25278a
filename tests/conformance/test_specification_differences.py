"""Where Lance 14.0.2 differs from its specification, we do as 14.0.2 does: one test per point.

What pylance can be asked is asked of a copy of the same table, committed by pylance alone.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pytest
from lance import LanceOperation
from lance.commit import CommitConflictError
from lance.fragment import write_fragments

from commitlog.adapters.lance_namespace import StagingNamespace
from commitlog.client.rows.rows import prepare_delete
from commitlog.model.records import Code, Outcome, Status
from tests.operations_world import (
    T,
    column_file,
    committed,
    manifest,
    message,
    opened,
    refused,
    submit,
    three_fragments,
)
from tests.service import SCHEMA, Service, ids_of, rows

HEAD = 4
"""The version that stale operations read."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Service]:
    """Make a table of three fragments."""
    with three_fragments(tmp_path, stable_row_ids=False) as made:
        yield made


def of_pylance(running: Service, operation: Any) -> str:
    """Commit an operation that read `HEAD` on a copy of the table as it is now, by pylance."""
    copy = running.root / f"copy-{uuid.uuid4()}"
    shutil.copytree(running.location(T), copy)
    try:
        lance.LanceDataset.commit(str(copy), operation, read_version=HEAD)
    except CommitConflictError as error:
        return "retryable" if error.retryable else "incompatible"
    return "committed"


def stale(running: Service, operation: Any) -> Outcome:
    """Submit an operation that read `HEAD`; pylance comes to the same."""
    theirs = of_pylance(running, operation)
    outcome = submit(running, operation, HEAD)
    assert outcome.status == theirs, outcome.message
    return outcome


def without(running: Service, *ids: int) -> LanceOperation.Delete:
    """Delete rows of the first fragment."""
    listed = ", ".join(map(str, ids))
    image = opened(running).get_fragments()[0].delete(f"id in ({listed})")
    assert image is not None
    return LanceOperation.Delete([image], [], f"id in ({listed})")


def written(running: Service, *ids: int) -> list[Any]:
    """Write rows as fragments."""
    return list(write_fragments(rows(*ids), str(running.location(T)), schema=SCHEMA))


def rewritten(running: Service) -> LanceOperation.Rewrite:
    """Rewrite the first fragment."""
    first = opened(running).get_fragments()[0]
    new = written(running, *sorted(first.to_table()["id"].to_pylist()))
    return LanceOperation.Rewrite([LanceOperation.RewriteGroup([first.metadata], new)], [])


def test_1_what_was_committed_is_checked_before_anything_is_written(running: Service) -> None:
    delete = without(running, 1)
    committed(running, rewritten(running))
    files = {path for path in running.location(T).rglob("*") if path.is_file()}
    assert stale(running, delete).status is Status.RETRYABLE, "nobody raced with it"
    assert {path for path in running.location(T).rglob("*") if path.is_file()} == files


def test_2_affected_rows_are_compared_with_the_newest_deletion_vectors(running: Service) -> None:
    info = running.client.table(T)
    deletes = [prepare_delete(info, opened(running), f"id = {i}") for i in (1, 2)]
    third = prepare_delete(info, opened(running), "id = 1 OR id = 3")
    for prepared in (*deletes, third):
        outcome = running.client.submit(
            T, prepared.operation, read_version=HEAD, affected_rows=prepared.affected
        ).result()
        is_last = prepared is third
        assert outcome.status is (Status.RETRYABLE if is_last else Status.COMMITTED)
    assert outcome.conflict is not None
    assert outcome.conflict.rule.endswith("same_rows")
    assert outcome.conflict.keys == ("0/1",), "one vector tells of both, whoever deleted what"


def test_3_the_predicate_of_a_delete_is_never_read(running: Service) -> None:
    delete = without(running, 1)
    delete.predicate = "id = 1 OR id = 100"
    committed(running, LanceOperation.Append(written(running, 100)))
    assert stale(running, delete).status is Status.COMMITTED
    assert 100 in ids_of(opened(running))


def test_4_a_delete_is_not_carried_through_a_rewrite(running: Service) -> None:
    native = running.client.open(T)
    native.create_scalar_index("id", "BTREE")
    info = running.client.table(T)
    delete = prepare_delete(info, opened(running), "id = 1")
    native.optimize.compact_files(target_rows_per_fragment=100, defer_index_remap=True)
    outcome = running.client.submit(
        T, delete.operation, read_version=delete.read_version, affected_rows=delete.affected
    ).result()
    assert outcome.status is Status.RETRYABLE, "although a fragment reuse index tells where it is"


def test_5_a_rewrite_needs_no_reserved_ids(running: Service) -> None:
    operation = rewritten(running)
    [group] = operation.groups
    assert [fragment.id for fragment in group.new_fragments] == [0]
    assert stale(running, operation).status is Status.COMMITTED
    assert [f.fragment_id for f in opened(running).get_fragments()] == [1, 2, 3]


def test_6_a_merge_lists_every_fragment_changed_or_not(running: Service) -> None:
    fragments = [fragment.metadata for fragment in opened(running).get_fragments()]
    schema = opened(running).lance_schema
    lacking = LanceOperation.Merge(fragments[:2], schema, True)
    refused(running, lacking, Code.BUILD_REFUSED, "ragment")
    more = LanceOperation.Merge([*fragments, *written(running, 100)], schema, True)
    committed(running, more)
    assert ids_of(opened(running)) == [*range(12), 100]


def test_7_field_5_of_an_update_holds_compacted_tables(running: Service) -> None:
    running.client.open(T).initialize_mem_wal()
    update = message(running)
    update.update.SetInParent()
    # A MemWAL in the older form: its id is a region's name and a generation.
    older = bytes([10, 10, 10, 6]) + b"region" + bytes([16, 3])
    encoded = update.SerializeToString()
    body = bytes([0x2A, len(older)]) + older
    assert encoded.endswith(bytes([0xE2, 6, 0]))
    asked = encoded[:-1] + bytes([len(body)]) + body
    refused(running, asked, Code.INVALID_OPERATION, "not the id of a shard")


def test_8_generations_of_a_mem_wal_shard_only_grow(running: Service) -> None:
    running.client.open(T).initialize_mem_wal()
    states = {}
    for generation in (4, 5, 6):
        state = message(running)
        table = state.update_mem_wal_state.compacted_sstables.add(generation=generation)
        table.shard_id.uuid = uuid.UUID(int=7).bytes
        states[generation] = state.SerializeToString()
    append = LanceOperation.Append(written(running, 100))
    read = running.client.table(T).version
    assert submit(running, states[5]).status is Status.COMMITTED
    assert submit(running, states[4]).status is Status.INCOMPATIBLE
    assert submit(running, states[6]).status is Status.RETRYABLE
    assert submit(running, append, read).status is Status.INCOMPATIBLE
    index = opened(running).create_index_uncommitted("id", "BTREE", name="i", fragment_ids=[0])
    create = LanceOperation.CreateIndex([index], [])
    assert submit(running, create, read).status is Status.INCOMPATIBLE
    config = LanceOperation.UpdateConfig(config_updates=LanceOperation.UpdateMap({"k": "v"}))
    assert submit(running, config, read).status is Status.COMMITTED


def test_9_a_version_stands_for_readers_once_it_has_its_own_name(running: Service) -> None:
    location = str(running.location(T))
    namespace = StagingNamespace(location, HEAD)
    lance.LanceDataset.commit(
        location,
        LanceOperation.Append(written(running, 100)),
        read_version=HEAD,
        namespace_client=namespace,
        table_id=["t"],
        namespace_client_managed_versioning=True,
    )
    [staged] = namespace.staged
    assert (running.location(T) / staged.path).exists()
    assert opened(running).version == HEAD, "what is only staged is nobody's version"
    ticket = running.client.submit(T, LanceOperation.Append(written(running, 101)))
    assert ticket.result(wait="committed").version == HEAD + 1
    assert ticket.result(wait="readable").status is Status.COMMITTED
    assert ids_of(opened(running)) == [*range(12), 101]


def test_10_a_transaction_is_found_in_its_manifest_without_its_file(running: Service) -> None:
    delete = without(running, 1)
    committed(running, rewritten(running))
    shutil.rmtree(running.location(T) / "_transactions", ignore_errors=True)
    assert manifest(running, HEAD + 1)[1].HasField("rewrite")
    assert stale(running, delete).status is Status.RETRYABLE


def test_11_an_index_and_a_replaced_column_meet_in_any_fragment(running: Service) -> None:
    dataset = opened(running)
    index = dataset.create_index_uncommitted("name", "BTREE", name="n", fragment_ids=[0])
    create = LanceOperation.CreateIndex([index], [])
    groups = [
        LanceOperation.DataReplacementGroup(at, column_file(dataset, ["r"] * 4)) for at in (1, 2)
    ]
    committed(running, LanceOperation.DataReplacement(groups[:1]))
    assert stale(running, create).status is Status.RETRYABLE, "although it covers fragment 0 alone"
    committed(running, create, running.client.table(T).version)
    outcome = stale(running, LanceOperation.DataReplacement(groups[1:]))
    assert outcome.status is Status.RETRYABLE


def test_12_a_restore_wins_over_all_but_schema_metadata(running: Service) -> None:
    committed(running, LanceOperation.Append(written(running, 100)))
    committed(running, without(running, 1))
    assert stale(running, LanceOperation.Restore(2)).status is Status.COMMITTED
    assert ids_of(opened(running)) == [0, 1, 2, 3], "what was committed meanwhile is gone"
    updates = {0: LanceOperation.UpdateMap({"unit": "m"})}
    committed(running, LanceOperation.UpdateConfig(field_metadata_updates=updates))
    assert stale(running, LanceOperation.Restore(3)).status is Status.INCOMPATIBLE
