"""Each version's transaction lies in `_transactions`, named and filled as pylance does it.

What was refused leaves no file there; a copy of the folder has what its newest manifest names.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.fragment import write_fragments

from commitlog.adapters import log_start
from commitlog.adapters.storage import LocalStore
from commitlog.codecs.manifest_file import (
    VERSIONS_DIRECTORY,
    decode_manifest,
    manifest_name,
    transaction_path,
)
from commitlog.core.lance.commits import FILE_BY_VERSION
from commitlog.errors import IncompatibleConflict, OutcomeUnknown
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import PROTOCOL_SUPPORTED, TRANSACTION_FILES_SINCE
from commitlog.model.records import Status
from consumers.tools.replay.replay import ReplayOptions, replay
from consumers.tools.rules import put_in_force
from consumers.tools.verify import VerifyOptions as VerifyOptions
from consumers.tools.verify import verify
from tests.operations_world import T, committed, manifest, opened, submit, three_fragments
from tests.service import SCHEMA, Service, ids_of, rows

READ = 4
"""The version that all operations here read, however many came since."""

Make = Callable[[lance.LanceDataset], Any]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Service]:
    """Make a table of three fragments; its head is version 4."""
    with three_fragments(tmp_path, stable_row_ids=False) as made:
        yield made


def files(folder: Path) -> dict[str, Transaction]:
    """Return the transactions that lie beside a table, by their names."""
    found = (folder / "_transactions").iterdir()
    return {path.name: Transaction.FromString(path.read_bytes()) for path in found}


def names_of(running: Service, *versions: int) -> set[str]:
    """Return the names that manifests give their transactions."""
    return {manifest(running, version)[0].transaction_file for version in versions}


def append(dataset: lance.LanceDataset) -> LanceOperation.Append:
    return LanceOperation.Append(list(write_fragments(rows(50), dataset.uri, schema=SCHEMA)))


def delete(dataset: lance.LanceDataset) -> LanceOperation.Delete:
    image = dataset.get_fragments()[1].delete("id = 5")
    assert image is not None
    return LanceOperation.Delete([image], [], "id = 5")


def config(dataset: lance.LanceDataset) -> LanceOperation.UpdateConfig:
    return LanceOperation.UpdateConfig(config_updates=LanceOperation.UpdateMap({"k": "v"}))


def index(dataset: lance.LanceDataset) -> LanceOperation.CreateIndex:
    made = dataset.create_index_uncommitted("name", "BTREE", name="by_name", fragment_ids=[0, 1, 2])
    return LanceOperation.CreateIndex([made], [])


def project(dataset: lance.LanceDataset) -> LanceOperation.Project:
    schema = lance.schema.LanceSchema.from_pyarrow(SCHEMA.remove(1))
    return LanceOperation.Project(schema, preserves_nullability=True)


def overwrite(dataset: lance.LanceDataset) -> LanceOperation.Overwrite:
    return LanceOperation.Overwrite(SCHEMA, list(write_fragments(rows(7), dataset.uri)))


def restore(dataset: lance.LanceDataset) -> LanceOperation.Restore:
    return LanceOperation.Restore(2)


@pytest.mark.parametrize("is_stale", [False, True], ids=["at_the_head", "behind_it"])
@pytest.mark.parametrize("make", [append, delete, config, index, project, overwrite, restore])
def test_the_file_is_the_one_that_pylance_writes(
    running: Service, make: Make, is_stale: bool
) -> None:
    operation = make(opened(running))
    if is_stale:
        committed(running, append(opened(running)))
    theirs, before = running.root / "theirs", set(files(running.location(T)))
    shutil.copytree(running.location(T), theirs)
    transaction = lance.Transaction(READ, operation, str(uuid.uuid4()))
    lance.LanceDataset.commit(str(theirs), transaction)
    outcome = committed(running, transaction)
    assert outcome.version is not None
    name = manifest_name(outcome.version)
    published, _ = decode_manifest((theirs / VERSIONS_DIRECTORY / name).read_bytes())
    state, inline = manifest(running, outcome.version)
    assert state.transaction_file == published.transaction_file
    ours, expected = files(running.location(T)), files(theirs)
    assert ours == expected
    assert ours.keys() - before == {state.transaction_file}
    assert ours[state.transaction_file] == inline
    named = opened(running).read_transaction(outcome.version)
    assert named is not None
    assert named.uuid == transaction.uuid


def test_what_is_refused_leaves_no_file(running: Service) -> None:
    dataset = opened(running)
    stale = [delete(dataset), project(dataset)]
    committed(running, overwrite(dataset))
    expected = names_of(running, 1, 2, 3, 4, 5)
    assert set(files(running.location(T))) == expected
    for operation in stale:
        assert submit(running, operation, READ).status is Status.INCOMPATIBLE
    # Lance builds the first operation before the second one is refused.
    other = "ns$other"
    running.client.create_table(other, SCHEMA)
    running.client.submit(other, config(dataset)).result().raise_for_conflict()
    with pytest.raises(IncompatibleConflict):
        restore_and_set(running, other, config(dataset))
    assert set(files(running.location(T))) == expected


def restore_and_set(running: Service, other: str, stale: LanceOperation.UpdateConfig) -> None:
    """Commit a Restore together with what another table's first version was read for."""
    with running.client.transact() as both:
        both.submit(T, LanceOperation.Restore(2))
        both.submit(other, stale, read_version=1)


@pytest.mark.parametrize("primitive", ["create", "write_ahead"])
def test_a_copied_folder_has_what_its_newest_manifest_names(
    running: Service, primitive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(LocalStore, primitive)
    is_down = True

    def failing(store: LocalStore, path: str, data: bytes) -> Any:
        if is_down and path.startswith(("_versions/", "_transactions/")):
            if primitive == "write_ahead":
                original(store, path, data[:5])
            raise OSError(f"{primitive} of {path} fails on purpose")
        return original(store, path, data)

    monkeypatch.setattr(LocalStore, primitive, failing)
    ticket = running.client.submit(T, append(opened(running)))
    with pytest.raises(OutcomeUnknown):
        ticket.result(timeout=1.0, wait="readable")
    copy = running.root / "copy"
    shutil.copytree(running.location(T), copy)
    assert lance.dataset(str(copy)).version == 4
    assert names_of(running, 1, 2, 3, 4) <= {
        path.name for path in (copy / "_transactions").iterdir()
    }
    is_down = False
    assert ticket.result().version == 5
    state, inline = manifest(running, 5)
    assert files(running.location(T))[state.transaction_file] == inline, "written whole by now"


def test_under_latest_a_version_has_its_file_when_it_has_its_manifest(
    running: Service, tmp_path: Path
) -> None:
    client, name = running.client, "ns$latest"
    client.create_table(name, SCHEMA, policy="latest")
    with client.transact() as group:
        for first in (0, 10, 20):
            group.append(name, rows(first))
    folder = running.location(name)
    manifests = {p.name for p in (folder / VERSIONS_DIRECTORY).glob("*.manifest")}
    assert manifests == {manifest_name(1), manifest_name(4)}
    assert len(files(folder)) == 2
    assert ids_of(client.open(name, 3)) == [0, 10]
    state, inline = decode_manifest((folder / VERSIONS_DIRECTORY / manifest_name(3)).read_bytes())
    assert inline is not None
    assert files(folder)[state.transaction_file] == Transaction.FromString(inline)


def test_a_replay_makes_the_same_files(running: Service, tmp_path: Path) -> None:
    made_index, patch = index(opened(running)), patched(running)
    committed(running, patch)
    # Carried over the patch: what the manifest says of it isn't what was submitted.
    committed(running, made_index, READ)
    running.client.open(T).delete("id = 0")
    committed(running, restore(opened(running)))
    again = tmp_path / "again"
    result = replay(running.log, 0, ReplayOptions(again))
    assert result.is_equal, result.problems
    place = again / "tables" / running.location(T).relative_to(running.root / "tables")
    for folder in ("_versions", "_transactions"):
        ours = {p.name: p.read_bytes() for p in (running.location(T) / folder).iterdir()}
        theirs = {p.name: p.read_bytes() for p in (place / folder).iterdir()}
        assert {n: d for n, d in ours.items() if not n.endswith(".json")} == theirs


def test_a_client_that_may_remove_its_file_has_another_named_from_protocol_4_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(log_start, "PROTOCOL_SUPPORTED", TRANSACTION_FILES_SINCE - 1)
        world = Service(tmp_path / "root")
    world.start().await_leading()
    client, properties, uuids = world.client, dict([FILE_BY_VERSION]), []
    try:
        client.create_table(T, SCHEMA)
        for _ in range(2):
            for _ in range(2):
                made = lance.Transaction(1, append(opened(world)), str(uuid.uuid4()))
                uuids.append(made.uuid)
                client.submit(T, made, properties=properties).result().raise_for_conflict()
            put_in_force(client, lambda now: replace(now, protocol=PROTOCOL_SUPPORTED))
        named = [manifest(world, version)[0].transaction_file for version in (2, 3, 4, 5)]
        read = (1, 1, 4, 5)
        expected = [f"{n}-{one}.txn" for n, one in zip(read, uuids, strict=True)]
        assert named == expected
        assert verify(world.log, 0, VerifyOptions(world.root)).problems == []
        result = replay(world.log, 0, ReplayOptions(tmp_path / "again"))
        assert result.is_equal, result.problems
        whole = _contents(world.location(T))
        for version in (2, 3, 4, 5):
            state, _ = manifest(world, version)
            (world.location(T) / VERSIONS_DIRECTORY / manifest_name(version)).unlink()
            (world.location(T) / transaction_path(state)).unlink()
            client.open(T, version)
        assert _contents(world.location(T)) == whole
    finally:
        world.close()


def _contents(location: Path) -> dict[str, bytes]:
    folders = (location / "_versions", location / "_transactions")
    return {p.name: p.read_bytes() for f in folders for p in f.iterdir() if p.suffix != ".json"}


def patched(running: Service) -> LanceOperation.Update:
    """Return an Update that rewrites the column `name` of fragment 1 in place."""
    fragment = opened(running).get_fragments()[1]
    data = pa.table({"id": [4], "name": ["new"]})
    image, fields = fragment.update_columns(data, "id", "id")
    return LanceOperation.Update(
        updated_fragments=[image], fields_modified=fields, update_mode="rewrite_columns"
    )
