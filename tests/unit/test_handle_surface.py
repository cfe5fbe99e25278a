"""Every method of Lance's dataset is known to go through the log, to read, or to be refused.

A new release of pylance that adds one fails here until somebody has looked where it writes.
"""

import lance
import pytest
from lance.dataset import Branches, DatasetOptimizer, Tags

from commitlog.client.managed import ManagedDataset
from commitlog.client.rows.read_only import ReadOnlyDataset

LOGGED = """add_bases add_columns alter_columns cleanup_old_versions commit_existing_index_segments
    create_branch create_index create_scalar_index delete delete_config_keys drop_columns drop_index
    initialize_mem_wal insert mem_wal_writer merge merge_insert migrate_manifest_paths_v2 optimize
    replace_field_metadata replace_schema replace_schema_metadata restore truncate_table update
    update_config update_field_metadata update_metadata update_schema_metadata"""
"""They commit through the log and say why it refused, or are refused; all are on read-only ones."""
ELSEWHERE = "branches checkout_latest checkout_version deep_clone shallow_clone tags"
"""A handle has its own; they commit no version of the table."""
FILES = "create_index_uncommitted merge_existing_index_segments merge_index_metadata"
"""They write files that no version names."""
STATIC = "commit commit_batch drop from_pydantic_model"
"""They belong to no dataset; those that commit ask the one that they are given."""
READS = """all_files base_paths centroids config count_rows data_storage_version delta
    describe_indices explain_cleanup_old_versions filter fragment_ids get_fragment get_fragments
    get_ivf_model get_transactions get_version has_index has_stable_row_ids head index_statistics
    initial_storage_options io_stats_incremental io_stats_snapshot join join_asof lance_schema
    latest_storage_options latest_version list_indices max_field_id mem_wal_index_details metadata
    new_file_session partition_expression prewarm_index read_blob_ranges read_blobs read_transaction
    remap_row_addrs sample scanner schema schema_metadata session slice sort_by sql stats
    storage_options_accessor take take_blobs to_batches to_pandas to_table tracked_files uri
    validate version version_refs versions"""
PARTS: dict[type, str] = {
    Tags: "create delete get_version list list_ordered replace_metadata update",
    Branches: "delete list list_ordered replace_metadata",
    DatasetOptimizer: "compact_files disable_auto_cleanup enable_auto_cleanup optimize_indices",
}


def _public(kind: type) -> list[str]:
    return sorted(name for name in dir(kind) if not name.startswith("_"))


def test_each_method_of_a_dataset_is_known() -> None:
    known = " ".join((LOGGED, ELSEWHERE, FILES, STATIC, READS)).split()
    assert sorted(known) == _public(lance.LanceDataset)


@pytest.mark.parametrize("kind", PARTS)
def test_each_method_of_its_parts_is_known(kind: type) -> None:
    assert PARTS[kind].split() == _public(kind)


@pytest.mark.parametrize("name", f"{LOGGED} {ELSEWHERE}".split())
def test_what_commits_is_the_handle_s_own(name: str) -> None:
    inherited = getattr(lance.LanceDataset, name)
    assert getattr(ManagedDataset, name) is not inherited
    if name in LOGGED.split():
        assert getattr(ReadOnlyDataset, name) is not inherited
