"""The next manifest, built here: ids, row lineage, flags, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from pyroaring import BitMap

from commitlog.core.lance.direct import direct_delta
from commitlog.core.manifest.feature_flags import (
    FLAG_BASE_PATHS,
    FLAG_DELETION_FILES,
    FLAG_MIXED_DATA_FILE_VERSIONS,
    FLAG_TABLE_CONFIG,
)
from commitlog.core.manifest.manifest_state import (
    DeltaRefused,
    ManifestState,
    NotDirect,
    apply_delta,
)
from commitlog.lancepb.rowids_pb2 import RowDatasetVersionSequence, RowIdSequence
from commitlog.lancepb.table_pb2 import DataFragment, DeletionFile, IndexMetadata, IndexSection
from commitlog.lancepb.transaction_pb2 import Transaction
from tests.unit.manifest_examples import UUID, append, data_file, delete, fragment, state


def build(target: ManifestState, transaction: Transaction) -> ManifestState:
    """Return the state after a transaction."""
    after = target.fork()
    apply_delta(after, direct_delta(target, transaction, timestamp_ms=1))
    return after


def refusal(target: ManifestState, transaction: Transaction) -> str:
    with pytest.raises(DeltaRefused) as refused:
        direct_delta(target, transaction, timestamp_ms=1)
    assert refused.value.field
    assert ". " in str(refused.value), "what is wrong, and what to do about it"
    return refused.value.code


def test_an_append_takes_the_next_ids_whatever_ids_it_brings() -> None:
    after = build(state(fragment(2), max_fragment_id=7), append(fragment(2), fragment(0)))
    assert list(after.fragments) == [2, 8, 9]
    assert after.max_fragment_id == 9
    assert [DataFragment.FromString(f).id for f in after.fragments.values()] == [2, 8, 9]
    assert after.transaction_file == f"5-{UUID}.txn"


def test_the_first_fragment_of_a_table_has_the_id_0() -> None:
    after = build(state(), append(fragment()))
    assert after.max_fragment_id == 0
    assert list(after.fragments) == [0]


def test_an_empty_append_is_a_version() -> None:
    after = build(state(), append())
    assert (after.version, after.max_fragment_id) == (6, None)


def test_stable_row_ids_go_on_and_name_the_version_of_each_row() -> None:
    before = state(stable_row_ids=True, next_row_id=100)
    after = build(before, append(fragment(rows=3), fragment(rows=200)))
    assert after.next_row_id == 303
    added = [DataFragment.FromString(f) for f in after.fragments.values()]
    ids = [RowIdSequence.FromString(f.inline_row_ids).segments[0].range for f in added]
    assert [(segment.start, segment.end) for segment in ids] == [(100, 103), (103, 303)]
    for made in added:
        assert made.inline_created_at_versions == made.inline_last_updated_at_versions
        (run,) = RowDatasetVersionSequence.FromString(made.inline_created_at_versions).runs
        assert (run.span.range.end, run.version) == (made.physical_rows, 6)
    assert DataFragment.FromString(added[0].SerializeToString()) == added[0]


def test_a_delete_takes_nothing_but_the_deletion_file() -> None:
    current = fragment(1)
    current.files[0].path = "replaced-meanwhile.lance"
    after = build(state(fragment(0), current), delete(fragment(1, deleted=4), removed=[0]))
    (left,) = after.fragments.values()
    made = DataFragment.FromString(left)
    assert made.files[0].path == "replaced-meanwhile.lance"
    assert made.deletion_file.num_deleted_rows == 4
    assert after.reader_feature_flags == after.writer_feature_flags == FLAG_DELETION_FILES


def test_a_deletion_file_is_replaced_not_merged() -> None:
    current = fragment(0, deleted=2)
    current.deletion_file.base_id = 3
    current.deletion_file.file_type = DeletionFile.BITMAP
    after = build(state(current), delete(fragment(0, deleted=4)))
    image = DataFragment.FromString(after.fragments[0]).deletion_file
    assert not image.HasField("base_id")
    assert image.file_type == DeletionFile.ARROW_ARRAY


def test_a_fragment_without_rows_goes_and_its_flag_with_it() -> None:
    after = build(state(fragment(0, deleted=4), fragment(1)), delete(fragment(0, deleted=10)))
    assert list(after.fragments) == [1]
    assert after.reader_feature_flags == 0


def test_files_of_another_format_are_marked() -> None:
    other = fragment()
    other.files[0].file_minor_version = 1
    after = build(state(), append(other))
    assert after.reader_feature_flags & FLAG_MIXED_DATA_FILE_VERSIONS
    assert build(after, append(fragment())).reader_feature_flags & FLAG_MIXED_DATA_FILE_VERSIONS


@pytest.mark.parametrize(("before", "after"), [(None, 3), (4, 7)])
def test_reserved_fragments_raise_the_mark(before: int | None, after: int) -> None:
    transaction = Transaction(read_version=5, uuid=UUID)
    transaction.reserve_fragments.num_fragments = 3
    assert build(state(max_fragment_id=before), transaction).max_fragment_id == after
    transaction.reserve_fragments.num_fragments = 2**32 - 1
    assert refusal(state(max_fragment_id=4), transaction) == "fragment_ids_exhausted"


def test_the_older_form_of_update_config_replaces_schema_metadata() -> None:
    before = state()
    transaction = Transaction(read_version=5, uuid=UUID)
    update = transaction.update_config
    update.upsert_values["a"] = "1"
    update.delete_keys.append("b")
    update.schema_metadata["s"] = "2"
    update.field_metadata[1].metadata["unit"] = "m"
    after = build(before, transaction)
    assert dict(after.header.message.config) == {"a": "1"}
    assert dict(after.header.message.schema_metadata) == {"s": b"2"}
    assert dict(after.header.fields[1].metadata) == {"unit": b"m"}
    assert after.writer_feature_flags == FLAG_TABLE_CONFIG
    assert after.reader_feature_flags == 0
    update.config_updates.replace = True
    assert refusal(before, transaction) == "mixed_forms"


def with_field_metadata(field_id: int, key: str, value: str) -> Transaction:
    transaction = Transaction(read_version=5, uuid=UUID)
    updates = transaction.update_config.field_metadata_updates[field_id]
    updates.update_entries.add(key=key, value=value)
    return transaction


def test_a_primary_key_is_set_once_on_a_required_column() -> None:
    key = "lance-schema:unenforced-primary-key"
    after = build(state(), with_field_metadata(0, key, "true"))
    assert after.header.fields[0].unenforced_primary_key
    assert refusal(after, with_field_metadata(0, key, "true")) == "primary_key_is_set"
    assert refusal(state(), with_field_metadata(1, key, "true")) == "primary_key_invalid"
    assert refusal(state(), with_field_metadata(0, key, "maybe")) == "primary_key_value_invalid"
    assert refusal(state(), with_field_metadata(9, "k", "v")) == "unknown_field"


def test_base_paths_get_the_lowest_free_id() -> None:
    transaction = Transaction(read_version=5, uuid=UUID)
    transaction.update_bases.new_bases.add(name="warm", path="/warm", id=2)
    transaction.update_bases.new_bases.add(name="cold", path="/cold")
    after = build(state(), transaction)
    assert [(base.id, base.name) for base in after.header.message.base_paths] == [
        (1, "cold"),
        (2, "warm"),
    ]
    assert after.reader_feature_flags == after.writer_feature_flags == FLAG_BASE_PATHS
    assert refusal(after, transaction) == "base_path_exists"
    del transaction.update_bases.new_bases[:]
    transaction.update_bases.new_bases.add(name="other", path="/other", id=2)
    assert refusal(after, transaction) == "base_id_exists"


def changed(change: Callable[[DataFragment], object]) -> Transaction:
    made = fragment()
    change(made)
    return append(made)


BAD_FRAGMENTS: dict[str, Callable[[DataFragment], object]] = {
    "physical_rows_missing": lambda f: f.ClearField("physical_rows"),
    "no_data_files": lambda f: f.ClearField("files"),
    "no_fields": lambda f: f.files[0].ClearField("fields"),
    "field_twice": lambda f: f.files.append(data_file("b.lance")),
    "unknown_field": lambda f: f.files[0].fields.append(2),
    "column_count_mismatch": lambda f: f.files[0].column_indices.append(2),
    "column_missing": lambda f: f.files[0].column_indices.__setitem__(0, -1),
    "required_field_missing": lambda f: f.files[0].CopyFrom(data_file(fields=[1])),
    "storage_format_mismatch": lambda f: f.files[0].ClearField("file_major_version"),
    "unknown_file_format": lambda f: setattr(f.files[0], "file_minor_version", 9),
    "unknown_base_path": lambda f: setattr(f.files[0], "base_id", 1),
    "deletion_file_in_append": lambda f: setattr(f.deletion_file, "id", 1),
    "unexpected_row_ids": lambda f: setattr(f, "inline_row_ids", b""),
}


@pytest.mark.parametrize("code", BAD_FRAGMENTS)
def test_a_fragment_that_does_not_fit_is_refused(code: str) -> None:
    before = state(fragment(0))
    assert refusal(before, changed(BAD_FRAGMENTS[code])) == code
    assert before == state(fragment(0))


@pytest.mark.parametrize(
    "path", ["", ".", "..", "../a", "/etc/passwd", "a/../../b", "a//b", "c:\\x", "s3://b/k", "a\0"]
)
def test_a_path_stays_in_the_table(path: str) -> None:
    assert refusal(state(), changed(lambda f: setattr(f.files[0], "path", path))) == "path_escapes"


def test_a_file_may_lie_in_a_folder_of_the_table() -> None:
    build(state(), changed(lambda f: setattr(f.files[0], "path", "part=1/a.lance")))


def test_a_field_dropped_since_it_was_written_is_ignored() -> None:
    made = fragment()
    made.files[0].fields.append(2)
    made.files[0].column_indices.append(2)
    assert list(build(state(), append(made, read_version=4)).fragments) == [0]


@pytest.mark.parametrize(
    ("transaction", "code"),
    [
        (delete(fragment(7, deleted=1)), "unknown_fragment"),
        (delete(removed=[7]), "unknown_fragment"),
        (delete(fragment(0, deleted=5), fragment(0, deleted=6)), "duplicate_fragment"),
        (delete(fragment(0, deleted=5), removed=[0]), "updated_and_deleted"),
        (delete(fragment(0)), "rows_come_back"),
        (delete(fragment(0, deleted=1)), "rows_come_back"),
        (delete(fragment(0, deleted=11)), "too_many_deleted_rows"),
        (Transaction(uuid="../x", append=Transaction.Append()), "bad_uuid"),
    ],
)
def test_a_delete_that_cannot_be_is_refused(transaction: Transaction, code: str) -> None:
    assert refusal(state(fragment(0, deleted=3), fragment(1)), transaction) == code


def update(*images: DataFragment, removed: Sequence[int] = (), new: int = 0) -> Transaction:
    made = Transaction(uuid=UUID, read_version=5)
    made.update.updated_fragments.extend(images)
    made.update.removed_fragment_ids.extend(removed)
    made.update.new_fragments.extend(fragment() for _ in range(new))
    return made


def test_an_update_replaces_a_fragment_by_its_image_and_numbers_what_it_brings() -> None:
    image = fragment(1, deleted=4)
    image.files[0].path = "rewritten.lance"
    before = state(fragment(0), fragment(1), fragment(2))
    after = build(before, update(image, removed=[0], new=2))
    assert list(after.fragments) == [1, 2, 3, 4]
    assert DataFragment.FromString(after.fragments[1]) == image
    assert after.max_fragment_id == 4
    assert after.reader_feature_flags == after.writer_feature_flags == FLAG_DELETION_FILES
    emptied = build(before, update(fragment(1, deleted=10), new=1))
    assert list(emptied.fragments) == [0, 2, 3]
    assert emptied.reader_feature_flags == 0


@pytest.mark.parametrize(
    ("transaction", "code"),
    [
        (update(fragment(0, deleted=2)), "rows_come_back"),
        (update(fragment(0, deleted=11)), "too_many_deleted_rows"),
        (update(fragment(7, deleted=1)), "unknown_fragment"),
        (update(removed=[7]), "unknown_fragment"),
        (update(fragment(1, deleted=1), removed=[1]), "updated_and_deleted"),
    ],
)
def test_an_update_that_cannot_be_is_refused(transaction: Transaction, code: str) -> None:
    assert refusal(state(fragment(0, deleted=3), fragment(1)), transaction) == code


def test_an_update_of_more_than_moved_rows_is_left_to_pylance() -> None:
    columns, modified, compacted = update(new=1), update(new=1), update(new=1)
    columns.update.update_mode = Transaction.REWRITE_COLUMNS
    modified.update.fields_modified.append(0)
    compacted.update.compacted_sstables.add()
    overlaid = fragment(0)
    overlaid.overlays.add()
    for before, transaction, reason in (
        (state(), columns, "columns"),
        (state(), modified, "columns"),
        (state(), compacted, "MemWAL"),
        (state(stable_row_ids=True), update(new=1), "ids"),
        (state(overlaid), update(fragment(0, deleted=1)), "overlays"),
    ):
        with pytest.raises(NotDirect, match=reason):
            direct_delta(before, transaction, timestamp_ms=1)


def test_what_needs_pylance_says_why() -> None:
    restore = Transaction(uuid=UUID)
    restore.restore.version = 1
    unknown = Transaction(uuid=UUID)
    without_size = changed(lambda f: f.files[0].ClearField("file_size_bytes"))
    section = IndexSection()
    section.indices.add(name="__lance_mem_wal")
    for target, transaction, reason in (
        (state(), restore, "restore"),
        (state(), unknown, "unknown operation"),
        (state(), without_size, "size of data file"),
        (state(indices=section), append(fragment()), "MemWAL"),
    ):
        with pytest.raises(NotDirect, match=reason):
            direct_delta(target, transaction, timestamp_ms=1)


def indices(*segments: tuple[str, list[int], list[int], int | None]) -> IndexSection:
    section = IndexSection()
    for number, (name, fields, fragments, created_at) in enumerate(segments):
        index = section.indices.add(
            name=name, fields=fields, created_at=created_at, dataset_version=1
        )
        index.uuid.uuid = bytes([number]) * 16
        index.fragment_bitmap = BitMap(fragments).serialize()
    return section


@pytest.mark.parametrize(
    ("segments", "left"),
    [
        ([("a", [0], [0], 1)], [0]),
        ([("a", [0], [0], 1), ("a", [0], [1], 2)], [1]),
        ([("a", [0], [0], 2), ("a", [0], [0], 1)], [1]),
        ([("a", [0], [0], None), ("a", [0], [0], 3)], [1]),
        ([("a", [9], [1], 1), ("b", [0], [1], 1)], [1]),
        ([("a", [0], [0, 1], 1), ("a", [0], [1], 2)], [0, 1]),
    ],
)
def test_a_delete_drops_indices_that_it_leaves_pointless(
    segments: list[tuple[str, list[int], list[int], int | None]], left: list[int]
) -> None:
    before = state(fragment(0), fragment(1), indices=indices(*segments))
    after = build(before, delete(removed=[0]))
    kept = IndexSection.FromString(after.index_section or b"").indices
    assert [index.uuid.uuid[0] for index in kept] == left


def test_many_deletes_read_an_index_section_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may hold thousands, and a section thousands of segments."""
    read: list[IndexMetadata] = []

    def covered_fragments(index: IndexMetadata) -> BitMap:
        read.append(index)
        return BitMap.deserialize(index.fragment_bitmap)

    monkeypatch.setattr("commitlog.core.manifest.indices.covered_fragments", covered_fragments)
    covered = list(range(20))
    section = indices(*(("many", [0], covered, number) for number in range(30)))
    left = state(*map(fragment, covered), indices=section)
    for number in (*covered[-5:], *covered[:5]):
        left = build(left, delete(removed=[number]))
    assert len(IndexSection.FromString(left.index_section or b"").indices) == 30
    assert len(read) == 30


def test_row_ids_that_are_not_stable_have_no_segments_to_write_anew() -> None:
    """Whatever else the table's flags say."""
    asked = Transaction(uuid=UUID)
    updates = asked.update_config.config_updates
    updates.update_entries.add(key="lance.row_ids.range_segments", value="true")
    for is_stable in (False, True):
        before = state(fragment(0, deleted=2), stable_row_ids=is_stable)
        before.reader_feature_flags |= FLAG_DELETION_FILES
        if is_stable:
            with pytest.raises(NotDirect, match="range_segments"):
                build(before, asked)
        else:
            assert len(build(before, asked).header.message.config) == 1


def test_an_index_that_is_remapped_twice_is_left_to_pylance() -> None:
    section = IndexSection()
    section.indices.add(name="i").uuid.uuid = b"1"
    rewrite = Transaction(uuid=UUID)
    group = rewrite.rewrite.groups.add()
    group.old_fragments.append(fragment(0))
    for new_id in (b"2", b"3"):
        remapped = rewrite.rewrite.rewritten_indices.add()
        remapped.old_id.uuid, remapped.new_id.uuid = b"1", new_id
    with pytest.raises(NotDirect, match="twice"):
        direct_delta(state(fragment(0), indices=section), rewrite, timestamp_ms=1)
