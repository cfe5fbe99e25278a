"""Manifests that pylance builds for us."""

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import FragmentMetadata, write_fragments
from lance.optimize import Compaction
from lance.schema import LanceSchema
from pyroaring import BitMap

from commitlog.adapters import lance_builder
from commitlog.adapters.builds import Build, BuildRefused, Built
from commitlog.adapters.lance_builder import build, differences, start_build
from commitlog.core.manifest.indices import covered_fragments
from commitlog.core.manifest.roaring import portable
from commitlog.lancepb.table_pb2 import IndexSection
from commitlog.lancepb.transaction_pb2 import Transaction
from tests.lance_messages import to_transaction_bytes
from tests.waiting import WAIT_SECONDS

L = lance.LanceOperation
ROWS = pa.table({"id": list(range(10)), "v": ["x"] * 10})


@pytest.fixture(params=[False, True], ids=["plain", "stable"])
def dataset(tmp_path: Path, request: pytest.FixtureRequest) -> lance.LanceDataset:
    return lance.write_dataset(
        ROWS, str(tmp_path / "t"), max_rows_per_file=5, enable_stable_row_ids=request.param
    )


def _new(dataset: lance.LanceDataset) -> list[FragmentMetadata]:
    return write_fragments(pa.table({"id": [100], "v": ["n"]}), dataset)


def _image(dataset: lance.LanceDataset) -> Any:
    fragment = dataset.get_fragment(0)
    assert fragment is not None
    return fragment.delete_rows([1])


def _merge(dataset: lance.LanceDataset) -> Any:
    pairs = [
        fragment.merge_columns(
            lambda batch: pa.record_batch([pa.array([1] * batch.num_rows)], ["n"])
        )
        for fragment in dataset.get_fragments()
    ]
    return L.Merge([metadata for metadata, _ in pairs], pairs[0][1])


def _rewrite(dataset: lance.LanceDataset) -> Any:
    task = Compaction.plan(dataset, {}).tasks[0]
    result = json.loads(task.execute(dataset).json())  # type: ignore[attr-defined]
    new = [FragmentMetadata.from_json(json.dumps(found)) for found in result["new_fragments"]]
    old = [fragment.metadata for fragment in dataset.get_fragments()]
    return L.Rewrite([L.RewriteGroup(old, new)], [])


MAKERS: dict[str, Callable[[lance.LanceDataset], Any]] = {
    "Append": lambda d: L.Append(_new(d)),
    "Delete": lambda d: L.Delete([_image(d)], [1], "x"),
    "Overwrite": lambda d: L.Overwrite(ROWS.schema.with_metadata({"k": "v"}), _new(d)),
    "Update": lambda d: L.Update([], [_image(d)], _new(d), [], [1], "rewrite_rows", None),
    "UpdateConfig": lambda d: L.UpdateConfig(
        config_updates=L.UpdateMap({"a": "b"}), field_metadata_updates={0: L.UpdateMap({"x": "y"})}
    ),
    "Project": lambda d: L.Project(
        LanceSchema.from_pyarrow(pa.schema([("id", pa.int64())])), preserves_nullability=True
    ),
    "Restore": lambda d: L.Restore(1),
    "Merge": _merge,
    "CreateIndex": lambda d: L.CreateIndex(
        [d.create_index_uncommitted("id", "BTREE", fragment_ids=[0, 1])], []
    ),
    "Rewrite": _rewrite,
}


def _task(dataset: lance.LanceDataset, operation: Any) -> Build:
    encoded = to_transaction_bytes(
        operation, read_version=dataset.version, uuid=str(uuid.uuid4()), properties={"a": "b"}
    )
    return Build(dataset.uri, dataset.version, encoded.message, encoded.schema_metadata)


def _names(dataset: lance.LanceDataset, folder: str) -> set[str]:
    return {path.name for path in (Path(dataset.uri) / folder).iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_pylance_builds_what_nobody_else_sees(dataset: lance.LanceDataset, name: str) -> None:
    task = _task(dataset, MAKERS[name](dataset))
    before = _names(dataset, "_versions")
    built = build(task)
    assert isinstance(built, Built), built
    assert built.state.version == 2
    staged = Path(dataset.uri) / built.staged_path
    assert staged.read_bytes() == built.data
    assert _names(dataset, "_versions") - before == {staged.name}
    assert lance.dataset(dataset.uri).version == 1, "the hint runs ahead and harms nobody"

    staged.rename(str(staged).split(".manifest")[0] + ".manifest")
    opened = lance.dataset(dataset.uri)
    assert opened.version == 2
    opened.to_table()


@pytest.mark.parametrize("name", ["Merge", "Project"])
def test_a_change_of_columns_keeps_schema_metadata_that_it_does_not_mention(
    dataset: lance.LanceDataset, name: str
) -> None:
    dataset.update_schema_metadata({"owner": "ann"})
    task = _task(dataset, MAKERS[name](dataset))
    for said, kept in ((None, {"owner": b"ann"}), ((), {}), ((("k", b"v"),), {"k": b"v"})):
        built = build(replace(task, schema_metadata=said))
        assert isinstance(built, Built), built
        assert dict(built.state.header.message.schema_metadata) == kept
        (Path(dataset.uri) / built.staged_path).unlink()


def test_a_refusal_leaves_nothing(dataset: lance.LanceDataset) -> None:
    before = [_names(dataset, folder) for folder in ("_versions", "_transactions")]
    lacking = L.DataReplacement([L.DataReplacementGroup(77, _new(dataset)[0].files[0])])
    refused = build(_task(dataset, lacking))
    assert isinstance(refused, BuildRefused)
    assert refused.reason.startswith("pylance: ")
    assert not refused.is_temporary
    assert [_names(dataset, folder) for folder in ("_versions", "_transactions")] == before


def test_what_pylance_cannot_say_is_refused(dataset: lance.LanceDataset) -> None:
    message = Transaction(read_version=1, uuid="u")
    refused = build(Build(dataset.uri, 1, message.SerializeToString()))
    assert refused == BuildRefused("pylance cannot construct an unknown operation")
    assert isinstance(build(Build(dataset.uri, 1, b"\xff")), BuildRefused)


def test_a_field_that_pylance_changes_is_named(
    dataset: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = _task(dataset, L.Delete([_image(dataset)], [], "id = 1"))
    before = [_names(dataset, folder) for folder in ("_versions", "_transactions")]

    def forgetful(message: Transaction, metadata: Any) -> Any:
        return L.Delete([_image(dataset)], [], "id = 2")

    monkeypatch.setattr(lance_builder, "to_lance_operation", forgetful)
    refused = build(task)
    assert isinstance(refused, BuildRefused)
    assert "delete.updated_fragments[0].deletion_file.id" in refused.reason
    assert [_names(dataset, folder) for folder in ("_versions", "_transactions")] == before


def test_an_index_may_say_what_it_covers_in_other_bytes(dataset: lance.LanceDataset) -> None:
    new = dataset.create_index_uncommitted("id", "BTREE", fragment_ids=[0, 1])
    task = _task(dataset, L.CreateIndex([new], [replace(new, uuid=str(uuid.uuid4()))]))
    message = Transaction.FromString(task.message)
    # As Lance writes what deletions and a compaction left of a longer run.
    runs = bytes.fromhex("3b30000001000004000200730000008d000300")
    left = BitMap([115, 141, 142, 143, 144])
    assert portable(left) != runs
    for index in (*message.create_index.new_indices, *message.create_index.removed_indices):
        index.fragment_bitmap = runs
    built = build(replace(task, message=message.SerializeToString()))
    assert isinstance(built, Built), built
    [index] = IndexSection.FromString(built.state.index_section or b"").indices
    assert covered_fragments(index) == left


def test_a_foreign_version_is_noticed_and_not_touched(dataset: lance.LanceDataset) -> None:
    task = _task(dataset, L.UpdateConfig(config_updates=L.UpdateMap({"a": "b"})))
    lance.write_dataset(ROWS, dataset.uri, mode="append")
    before = _names(dataset, "_versions")
    refused = build(task)
    assert isinstance(refused, BuildRefused)
    assert "doesn't know" in refused.reason
    assert refused.is_temporary
    assert _names(dataset, "_versions") == before


@pytest.mark.slow
def test_a_build_has_a_deadline_and_cleans_up_behind_it(
    dataset: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = _task(dataset, L.Append(_new(dataset)))
    before = _names(dataset, "_versions")
    whole = lance_builder._build

    def slow(task: Build) -> Built | BuildRefused:
        time.sleep(0.3)
        return whole(task)

    monkeypatch.setattr(lance_builder, "_build", slow)
    refused = build(task, timeout_seconds=0.1)
    assert isinstance(refused, BuildRefused)
    assert refused.is_temporary
    late = start_build(task, timeout_seconds=0.1).result(120)
    assert isinstance(late, BuildRefused)
    for thread in threading.enumerate():
        if thread.name == "commitlog-build":  # the first one goes on, too
            thread.join(WAIT_SECONDS)
    assert _names(dataset, "_versions") == before


def test_differences_are_named() -> None:
    one, other = Transaction(read_version=1, uuid="a"), Transaction(read_version=2, uuid="a")
    assert list(differences(one, one)) == []
    assert list(differences(one, other)) == ["read_version", "of a newer Lance"]
    one.transaction_properties["k"] = "v"
    assert "transaction_properties" in list(differences(one, other))
