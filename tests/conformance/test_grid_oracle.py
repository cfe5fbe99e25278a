"""pylance and the grid give the same verdict on pairs of real operations.

Both sides of a pair are made from version 1 of a real dataset; the other side is committed, then
pylance is asked to commit ours as of version 1, and the grid is asked the same. Without affected
rows, as pylance's Python commit has none: what the log rebases because it has them is told apart.
Where both say compatible, the manifest that the log builds equals the one that pylance published.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.commit import CommitConflictError
from lance.file import LanceFileWriter
from lance.fragment import DataFile, FragmentMetadata, RowIdSequence, write_fragments

from commitlog.adapters.builds import Build, BuildRefused
from commitlog.adapters.lance_builder import OVERLAYS_ENABLED_BY, build
from commitlog.codecs.manifest_file import decode_manifest, manifest_name
from commitlog.core.conflicts.grid import LETTERS, first_conflict
from commitlog.core.conflicts.history import History
from commitlog.core.conflicts.write_sets import kind_of
from commitlog.core.lance.direct import direct_delta
from commitlog.core.lance.staged import check_effect
from commitlog.core.manifest.manifest_state import (
    DeltaRefused,
    ManifestState,
    NotDirect,
    apply_delta,
    diff,
)
from commitlog.core.operations.create_index import rebased_indices
from commitlog.core.operations.data_replacement import with_newer_overlays
from commitlog.core.operations.registry import (
    OPERATION_NAMED,
    candidate_of,
    keys_of,
    write_set_of,
)
from commitlog.lancepb.transaction_pb2 import Transaction
from tests.conformance.lance_history import comparable, is_direct
from tests.lance_messages import to_transaction_bytes

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.int64())])
ROWS = 10
Make = Callable[[lance.LanceDataset], LanceOperation.BaseOperation]
Commit = Callable[[lance.LanceDataset], object]


def rows(first: int, count: int = ROWS) -> pa.Table:
    """Return rows with ids from `first` on."""
    ids = list(range(first, first + count))
    return pa.table({"id": ids, "a": ids, "b": ids}, schema=SCHEMA)


def fragment(dataset: lance.LanceDataset, fragment_id: int) -> lance.LanceFragment:
    """Return a fragment that is there."""
    found = dataset.get_fragment(fragment_id)
    assert found is not None
    return found


def written(dataset: lance.LanceDataset, first: int) -> list[FragmentMetadata]:
    """Write new rows without committing them."""
    return list(write_fragments(rows(first), dataset.uri, schema=SCHEMA))


def without(dataset: lance.LanceDataset, fragment_id: int, row: int) -> FragmentMetadata:
    """Return a fragment without one of its rows."""
    found = fragment(dataset, fragment_id).delete(f"id = {fragment_id * ROWS + row}")
    assert found is not None
    metadata = getattr(found, "metadata", found)
    assert isinstance(metadata, FragmentMetadata)
    return metadata


def append(dataset: lance.LanceDataset) -> LanceOperation.BaseOperation:
    return LanceOperation.Append(written(dataset, 1000))


def delete(fragment_id: int, row: int) -> Make:
    def make(dataset: lance.LanceDataset) -> LanceOperation.BaseOperation:
        return LanceOperation.Delete([without(dataset, fragment_id, row)], [], "id = 1")

    return make


def delete_whole(fragment_id: int) -> Make:
    return lambda dataset: LanceOperation.Delete([], [fragment_id], "true")


def overwrite(dataset: lance.LanceDataset) -> LanceOperation.BaseOperation:
    return LanceOperation.Overwrite(SCHEMA, written(dataset, 2000))


def update_rows(fragment_id: int, row: int) -> Make:
    def make(dataset: lance.LanceDataset) -> LanceOperation.BaseOperation:
        return LanceOperation.Update(
            removed_fragment_ids=[],
            updated_fragments=[without(dataset, fragment_id, row)],
            new_fragments=written(dataset, 3000),
            fields_modified=[],
            fields_for_preserving_frag_bitmap=[],
            update_mode="rewrite_rows",
        )

    return make


def update_whole(fragment_id: int) -> Make:
    return lambda dataset: LanceOperation.Update(
        removed_fragment_ids=[fragment_id],
        updated_fragments=[],
        new_fragments=written(dataset, 3000),
        fields_modified=[],
        fields_for_preserving_frag_bitmap=[],
        update_mode="rewrite_rows",
    )


def update_columns(fragment_id: int) -> Make:
    def make(dataset: lance.LanceDataset) -> LanceOperation.BaseOperation:
        new = pa.table({"id": [fragment_id * ROWS], "b": [-1]}, schema=SCHEMA.remove(1))
        metadata, fields = fragment(dataset, fragment_id).update_columns(new, "id", "id")
        return LanceOperation.Update(
            removed_fragment_ids=[],
            updated_fragments=[metadata],
            new_fragments=[],
            fields_modified=list(fields),
            fields_for_preserving_frag_bitmap=[],
            update_mode="rewrite_columns",
        )

    return make


def config(**updates: str | None) -> Make:
    return lambda dataset: LanceOperation.UpdateConfig(
        config_updates=LanceOperation.UpdateMap(dict(updates))
    )


def table_metadata(key: str, *, replace: bool = False) -> Make:
    updates = LanceOperation.UpdateMap({key: "v"}, replace=replace)
    return lambda dataset: LanceOperation.UpdateConfig(table_metadata_updates=updates)


def schema_metadata(dataset: lance.LanceDataset) -> LanceOperation.BaseOperation:
    updates = LanceOperation.UpdateMap({"k": "v"})
    return LanceOperation.UpdateConfig(schema_metadata_updates=updates)


def field_metadata(field_id: int) -> Make:
    updates = {field_id: LanceOperation.UpdateMap({"k": "v"})}
    return lambda dataset: LanceOperation.UpdateConfig(field_metadata_updates=updates)


def project(preserves_nullability: bool) -> Make:
    return lambda dataset: LanceOperation.Project(
        lance.schema.LanceSchema.from_pyarrow(SCHEMA.remove(2)), preserves_nullability
    )


def rewrite(*fragment_ids: int) -> Make:
    def make(dataset: lance.LanceDataset) -> LanceOperation.BaseOperation:
        old = [fragment(dataset, i).metadata for i in fragment_ids]
        found = [fragment(dataset, i).to_table(with_row_id=True) for i in fragment_ids]
        table = pa.concat_tables(found)
        new = list(write_fragments(table.select(SCHEMA.names), dataset.uri, schema=SCHEMA))
        if old[0].row_id_meta is not None:
            ids = RowIdSequence(table["_rowid"].to_pylist())
            new[0].row_id_meta = ids.to_inline_metadata()
        return LanceOperation.Rewrite([LanceOperation.RewriteGroup(old, new)], [])

    return make


def merge(dataset: lance.LanceDataset) -> LanceOperation.BaseOperation:
    merged = [
        each.merge_columns(lambda batch: pa.record_batch({"c": batch["a"]}), ["a"])
        for each in dataset.get_fragments()
    ]
    return LanceOperation.Merge([metadata for metadata, _ in merged], merged[0][1])


def merge_keeping_nullability(dataset: lance.LanceDataset) -> LanceOperation.BaseOperation:
    operation = merge(dataset)
    assert isinstance(operation, LanceOperation.Merge)
    operation.preserves_nullability = True
    return operation


def column_file(dataset: lance.LanceDataset, values: list[int], column: int) -> DataFile:
    """Write a file of one column."""
    name = f"{uuid4()}.lance"
    schema = pa.schema([SCHEMA.field(column)])
    path = f"{dataset.uri}/data/{name}"
    with LanceFileWriter(path, schema, version="2.0") as writer:
        writer.write_batch(pa.table([values], schema=schema))
    return DataFile(name, [column], [0], 2, 0, Path(path).stat().st_size)


def replace_data(fragment_id: int, column: int = 2) -> Make:
    return lambda dataset: LanceOperation.DataReplacement(
        [LanceOperation.DataReplacementGroup(fragment_id, column_file(dataset, [7] * ROWS, column))]
    )


def overlay(fragment_id: int, row: int, column: int = 2) -> Make:
    def make(dataset: lance.LanceDataset) -> LanceOperation.BaseOperation:
        file = LanceOperation.DataOverlayFile(column_file(dataset, [8], column), [row])
        return LanceOperation.DataOverlay([LanceOperation.DataOverlayGroup(fragment_id, [file])])

    return make


def index(column: str, name: str, *fragment_ids: int) -> Make:
    def make(dataset: lance.LanceDataset) -> LanceOperation.BaseOperation:
        ids = list(fragment_ids)
        made = dataset.create_index_uncommitted(column, "BTREE", name=name, fragment_ids=ids)
        return LanceOperation.CreateIndex([made], [])

    return make


def committing(make: Make) -> Commit:
    """Commit an operation as of the version that it was made from."""
    return lambda dataset: lance.LanceDataset.commit(
        dataset.uri, make(dataset), read_version=dataset.version
    )


CURRENT: dict[str, Make] = {
    "append": append,
    "delete 0:1": delete(0, 1),
    "delete whole 1": delete_whole(1),
    "overwrite": overwrite,
    "update 0:2": update_rows(0, 2),
    "update columns of 0": update_columns(0),
    "config x": config(x="1"),
    "config x gone": config(x=None),
    "config y": config(y="1"),
    "table metadata": table_metadata("k"),
    "schema metadata": schema_metadata,
    "field metadata 1": field_metadata(1),
    "rewrite 0 and 1": rewrite(0, 1),
    "merge": merge,
    "merge, nullability kept": merge_keeping_nullability,
    "project": project(False),
    "project, nullability kept": project(True),
    "restore": lambda dataset: LanceOperation.Restore(1),
    "replace data of 0": replace_data(0),
    "overlay 0:5": overlay(0, 5),
    "index of a": index("a", "by_a", 0, 1, 2, 3),
    "index of b": index("b", "by_b", 0, 1, 2, 3),
    "index of b in 3": index("b", "by_b", 3),
}
OTHER: dict[str, Commit] = {
    **{name: committing(make) for name, make in CURRENT.items()},
    "delete 0:5": committing(delete(0, 5)),
    "delete 3:5": committing(delete(3, 5)),
    "delete whole 0": committing(delete_whole(0)),
    "update 1:5": committing(update_rows(1, 5)),
    "update whole 0": committing(update_whole(0)),
    "update columns of 2": committing(update_columns(2)),
    "config x other": committing(config(x="2")),
    "table metadata replaced": committing(table_metadata("other", replace=True)),
    "field metadata 2": committing(field_metadata(2)),
    "rewrite 2 and 3": committing(rewrite(2, 3)),
    "replace data of 3": committing(replace_data(3)),
    "replace a of 0": committing(replace_data(0, 1)),
    "overlay 3:5": committing(overlay(3, 5)),
    "overlay a of 0:2": committing(overlay(0, 2, 1)),
    "index of b by the name by_a": committing(index("b", "by_a", 0, 1)),
    "add a base": lambda dataset: dataset.add_bases([lance.DatasetBasePath("/cold", name="cold")]),
    "drop a column": lambda dataset: dataset.drop_columns(["b"]),
    "add a column": lambda dataset: dataset.add_columns({"c": "a + 1"}),
    "index a": lambda dataset: dataset.create_scalar_index("a", "BTREE"),
    "compact": lambda dataset: dataset.optimize.compact_files(target_rows_per_fragment=1000),
    "native delete": lambda dataset: dataset.delete("id = 0"),
    "native update": lambda dataset: dataset.update({"a": "0"}, "id = 0"),
    "insert": lambda dataset: dataset.insert(rows(5000)),
}


_DROPPED = "hole H2: Lance publishes an index on a field that is gone, and filters fail"
STRICTER: dict[str, dict[str, str]] = {
    "project": {"index of b": _DROPPED, "index of b in 3": _DROPPED},
    "project, nullability kept": {"index of b": _DROPPED, "index of b in 3": _DROPPED},
    "drop a column": {"index of b": _DROPPED, "index of b in 3": _DROPPED},
}
"""Where we say retryable and Lance says compatible: what was committed, what asks, and why."""


@pytest.fixture(autouse=True)
def overlays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Lance open what has overlays."""
    monkeypatch.setenv(OVERLAYS_ENABLED_BY, "1")


def copied(source: str, target: str) -> lance.LanceDataset:
    """Return a copy of a dataset that shares its files: Lance writes to none that is there."""
    shutil.copytree(source, target, copy_function=os.link)
    return lance.dataset(target)


@dataclass
class Base:
    """A dataset at version 1, to be copied, and the operations that were made of it."""

    path: Path
    made: dict[str, LanceOperation.BaseOperation] = field(init=False)

    def __post_init__(self) -> None:
        """Make them: their files are in each copy."""
        dataset = lance.dataset(str(self.path))
        self.made = {name: make(dataset) for name, make in CURRENT.items()}

    def copy(self) -> lance.LanceDataset:
        """Return a copy of its own."""
        return copied(str(self.path), str(self.path.parent / f"{uuid4()}"))


def base_in(folder: Path, *, stable_row_ids: bool) -> Base:
    """Make a dataset of four fragments of ten rows."""
    path = folder / "base"
    lance.write_dataset(
        rows(0, 4 * ROWS),
        str(path),
        max_rows_per_file=ROWS,
        data_storage_version="2.0",
        enable_stable_row_ids=stable_row_ids,
    )
    return Base(path)


@pytest.fixture(scope="module", params=[False, True], ids=["addresses", "stable_row_ids"])
def base(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Base]:
    """Make the dataset that all pairs begin with."""
    found = base_in(tmp_path_factory.mktemp("oracle"), stable_row_ids=request.param)
    yield found
    shutil.rmtree(found.path.parent)


def of_pylance(
    dataset: lance.LanceDataset, operation: LanceOperation.BaseOperation, uuid: str = ""
) -> str:
    """Return pylance's verdict on committing as of version 1."""
    try:
        lance.LanceDataset.commit(
            dataset.uri, lance.Transaction(1, operation, uuid or str(uuid4()))
        )
    except CommitConflictError as error:
        return "retryable" if error.retryable else "incompatible"
    except (OSError, ValueError) as error:
        return f"compatible, then {type(error).__name__}"
    return "compatible"


def history_of(dataset: lance.LanceDataset, head: int) -> History:
    """Return what the versions since version 1 touched."""
    history = History(1)
    state, _ = manifest(dataset, 1)
    for version in range(2, head + 1):
        after, message = manifest(dataset, version)
        assert message is not None
        transaction = Transaction.FromString(message)
        history.record(str(version), write_set_of(transaction, None, state))
        state = after
    return history


UNSEEN: Any = None
"""What is known of the table: which rows a DataOverlay takes is known without it."""


def of_grid(dataset: lance.LanceDataset, operation: LanceOperation.BaseOperation, head: int) -> str:
    """Return the grid's verdict on the same."""
    history = history_of(dataset, head)
    encoded = to_transaction_bytes(operation, read_version=1, uuid=str(uuid4()))
    transaction = Transaction.FromString(encoded.message)
    kind = OPERATION_NAMED[kind_of(transaction)]
    candidate = candidate_of(
        transaction,
        keys=keys_of(transaction, None),
        # Pylance isn't told by its Python which rows an Update or Delete takes.
        rows_known=kind.fragments_with_known_rows(kind.body(transaction), UNSEEN)
        if kind.name == "DataOverlay"
        else frozenset(),
        overlays_by_row=True,
    )
    finding = first_conflict(candidate, history, 1)
    return finding.verdict if finding else "compatible"


def built_on(
    dataset: lance.LanceDataset, operation: LanceOperation.BaseOperation, head: int, uuid: str
) -> ManifestState | None:
    """Return the manifest that the log makes of the head, None if it refuses."""
    encoded = to_transaction_bytes(operation, read_version=head, uuid=uuid)
    transaction = Transaction.FromString(encoded.message)
    state, _ = manifest(dataset, head)
    if is_direct(transaction):
        if not OPERATION_NAMED[kind_of(transaction)].read_at_head:
            transaction.read_version = 1
        try:
            delta = direct_delta(state, transaction, timestamp_ms=1, release=lance.__version__)
        except DeltaRefused:
            return None
        except NotDirect:
            pass
        else:
            apply_delta(state, delta)
            return state  # type: ignore[no-any-return]
    if isinstance(operation, LanceOperation.CreateIndex):
        history = history_of(dataset, head)
        transaction = rebased_indices(transaction, history, state.index_section, 1)
    message = transaction.SerializeToString()
    built = build(Build(dataset.uri, head, message, encoded.schema_metadata))
    if isinstance(built, BuildRefused):
        return None
    (Path(dataset.uri) / built.staged_path).unlink()
    if isinstance(operation, LanceOperation.DataReplacement):
        transaction.read_version = 1
        apply_delta(state, with_newer_overlays(diff(state, built.state), state, transaction))
    else:
        state = built.state
    if not OPERATION_NAMED[kind_of(transaction)].read_at_head:
        state.transaction_file = f"1-{uuid}.txn"
    return state  # type: ignore[no-any-return]


def manifest(dataset: lance.LanceDataset, version: int):  # type: ignore[no-untyped-def]
    """Read a version's manifest."""
    path = Path(dataset.uri) / "_versions" / manifest_name(version)
    return decode_manifest(path.read_bytes())


Verdicts = dict[str, tuple[str, str]]


class Look(NamedTuple):
    """What came of one operation behind another one's commit."""

    ours: str
    theirs: str
    manifest: str
    """Whether ours is the one that pylance published, and if not, where they differ."""
    rows: str
    """A digest of what pylance reads afterwards, if asked for."""


def looked_at(base: Base, other: str, *, reads_rows: bool = True) -> dict[str, Look]:
    """Return what came of each operation behind `other`, by its name; whatever differs is told."""
    found: dict[str, Look] = {}
    committed = base.copy()
    OTHER[other](lance.dataset(committed.uri))
    head = lance.dataset(committed.uri).version
    for current, operation in base.made.items():
        dataset = copied(committed.uri, f"{committed.uri}-{uuid4()}")
        ours = of_grid(dataset, operation, head)
        uuid = str(uuid4())
        built = built_on(dataset, operation, head, uuid) if ours == "compatible" else None
        theirs = of_pylance(dataset, operation, uuid)
        read = _rows(dataset.uri) if reads_rows else ""
        found[current] = Look(ours, theirs, _same(dataset, built, theirs, head), read)
        shutil.rmtree(dataset.uri)
    shutil.rmtree(committed.uri)
    return found


def _same(dataset: lance.LanceDataset, built: ManifestState | None, theirs: str, head: int) -> str:
    if built is None or theirs != "compatible":
        return "same" if built is None and theirs != "compatible" else "one builds it"
    left, right = comparable(built), comparable(manifest(dataset, head + 1)[0])
    return ", ".join(name for name in left if left[name] != right[name]) or "same"


def _rows(uri: str) -> str:
    try:
        rows = lance.dataset(uri).to_table().to_pylist()
    except (OSError, ValueError) as error:
        return type(error).__name__
    return hashlib.sha256("\n".join(sorted(map(repr, rows))).encode()).hexdigest()


def compared(base: Base, other: str) -> Verdicts:
    """Return our verdict and pylance's on each operation behind `other`, by its name.

    Where both say compatible, the manifests are compared as well.
    """
    found = looked_at(base, other, reads_rows=False)
    for current, look in found.items():
        assert look.ours != "compatible" or look.manifest == "same", (current, look)
    return {current: (look.ours, look.theirs) for current, look in found.items()}


def differing(verdicts: Verdicts) -> Verdicts:
    """Return what differs; what Lance found compatible and could not build then is no verdict."""
    return {
        current: pair
        for current, pair in verdicts.items()
        if pair[0] != pair[1] and not pair[1].startswith(f"{pair[0]}, then")
    }


@pytest.mark.parametrize("other", OTHER)
def test_verdicts_agree(base: Base, other: str) -> None:
    stricter = {current: ("retryable", "compatible") for current in STRICTER.get(other, {})}
    assert differing(compared(base, other)) == stricter


def test_where_the_grid_is_stricter(base: Base) -> None:
    # Replacing all config keys loses, in Lance, a key that was set meanwhile.
    dataset = base.copy()
    updates = LanceOperation.UpdateMap({"x": "1"}, replace=True)
    operation = LanceOperation.UpdateConfig(config_updates=updates)
    OTHER["config y"](dataset)
    assert of_grid(dataset, operation, 2) == "incompatible"
    assert of_pylance(dataset, operation) == "compatible"
    assert lance.dataset(dataset.uri).config() == {"x": "1"}


def test_the_pairs_cover_all_operations_that_pylance_constructs(base: Base) -> None:
    made = {type(operation).__name__ for operation in base.made.values()}
    constructible = {kind.__name__ for kind in LanceOperation.BaseOperation.__subclasses__()}
    assert constructible - made == {"Clone"}, "which is refused on a table that exists"
    assert made <= {candidate for candidate, _ in LETTERS}


@pytest.mark.parametrize("other", OTHER)
def test_what_pylance_makes_is_accepted_as_staged(base: Base, other: str) -> None:
    dataset = base.copy()
    OTHER[other](dataset)
    before, _ = manifest(dataset, 1)
    for version in range(2, lance.dataset(dataset.uri).version + 1):
        after, message = manifest(dataset, version)
        transaction = Transaction.FromString(message)
        check_effect(before, after, diff(before, after), transaction)
        before = after
    shutil.rmtree(dataset.uri)
