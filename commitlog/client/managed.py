"""What `CommitLog.open` returns: Lance's own dataset, whose upkeep goes through the log too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import lance
from lance.dataset import DatasetOptimizer, MergeInsertBuilder

from commitlog.adapters.lance_namespace import COMMIT_UNKNOWN, refusal_of
from commitlog.client.full_storage import naming_full_storage
from commitlog.client.upkeep import KeepsTables
from commitlog.errors import InvalidTransaction
from commitlog.model.table import TableId, format_table_id

_REMOVED = (
    *("bytes_removed", "data_files_removed", "deletion_files_removed", "failed_deletes"),
    *("index_files_removed", "transaction_files_removed"),
)
_HARMLESS = frozenset({"error_if_tagged_old_versions", "delete_rate_limit", "delete_concurrency"})
_WRITES = (
    *("add_bases", "add_columns", "alter_columns", "commit_existing_index_segments"),
    *("create_index", "create_scalar_index", "delete", "delete_config_keys", "drop_columns"),
    *("drop_index", "insert", "merge", "migrate_manifest_paths_v2", "replace_field_metadata"),
    *("replace_schema", "replace_schema_metadata", "restore", "truncate_table", "update"),
    *("update_config", "update_field_metadata", "update_metadata", "update_schema_metadata"),
)
"""Methods of Lance's dataset that commit a version."""


@contextmanager
def _saying_why(dataset: lance.LanceDataset) -> Iterator[None]:
    """Raise the log's refusal where Lance says "Commit result … is unknown", or name the disk."""
    managed = cast(ManagedDataset, dataset)
    try:
        with naming_full_storage(format_table_id(managed._table), dataset.uri):
            yield
    except OSError as error:
        refused = refusal_of(dataset)
        if refused is None or COMMIT_UNKNOWN not in str(error).lower():
            raise
        raise refused from error


def _says_why(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    def refusable(self: lance.LanceDataset, *arguments: Any, **options: Any) -> Any:
        with _saying_why(self):
            return write(self, *arguments, **options)

    return refusable


class _Merge(MergeInsertBuilder):
    dataset: lance.LanceDataset

    def execute(self, *arguments: Any, **options: Any) -> Any:
        """Carry the merge out, and say why if the log refuses it."""
        with _saying_why(self.dataset):
            return super().execute(*arguments, **options)


class ManagedDataset(lance.LanceDataset):
    """A dataset whose `optimize.compact_files` and `cleanup_old_versions` are the log's own.

    Lance itself gives a compaction up as soon as somebody deletes a row of its fragments, and
    deletes versions that the log still has. Of a write that the log refused it says that its
    result is unknown; here the write raises `CommitConflict`, which names the reason. Where it
    finds no space, it raises `StorageFull`.
    """

    _log: KeepsTables
    _table: TableId

    @classmethod
    def of(
        cls, dataset: lance.LanceDataset, log: KeepsTables, table: TableId
    ) -> lance.LanceDataset:
        """Return the same dataset, looked after through the log."""
        dataset.__class__ = cls
        managed = cast(ManagedDataset, dataset)
        managed._log, managed._table = log, table
        return dataset

    def merge_insert(self, on: Any = None) -> MergeInsertBuilder:
        """Return what merges rows, as Lance's own does."""
        merge = _Merge(self._ds, on)
        merge.dataset = self
        return merge

    def cleanup_old_versions(self, *arguments: Any, **options: Any) -> Any:
        """Delete old versions by a record, as `CommitLog.expire_versions`; data files stay."""
        given = dict(zip(("older_than", "retain_versions"), arguments, strict=False)) | options
        given = {name: value for name, value in given.items() if value not in (None, False)}
        unknown = sorted(set(given) - {"older_than", "retain_versions", *_HARMLESS})
        if unknown:
            raise InvalidTransaction(
                f"cleanup_old_versions of a table of the log doesn't take {', '.join(unknown)}",
                field=unknown[0],
                value=given[unknown[0]],
                advice="Use older_than and retain_versions: what is deleted is a record of the log",
            )
        before = self._deleted_count()
        self._log.expire_versions(
            self._table,
            older_than=given.get("older_than"),
            retain_versions=given.get("retain_versions"),
        )
        removed = dict.fromkeys(_REMOVED, 0)
        return SimpleNamespace(**removed, old_versions=self._deleted_count() - before)

    def _deleted_count(self) -> int:
        ranges = self._log.describe(self._table, fresh=True).deleted
        return sum(last - first + 1 for first, last in ranges)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as a plain dataset: another process has no connection to the log."""
        _, state = super().__reduce__()  # type: ignore[no-untyped-call]
        return lance.LanceDataset.__deserialize__, state

    @property
    def optimize(self) -> DatasetOptimizer:
        """Return what compacts and keeps indices."""
        return _Optimizer(self)


for _write in _WRITES:
    setattr(ManagedDataset, _write, _says_why(getattr(lance.LanceDataset, _write)))


class _Optimizer(DatasetOptimizer):
    def optimize_indices(self, **options: Any) -> None:
        """Add to indices the rows that came since, as Lance's own does."""
        with _saying_why(self._dataset):
            super().optimize_indices(**options)

    def compact_files(self, **options: Any) -> Any:
        """Merge small fragments and drop deleted rows; leaves the dataset at the new head."""
        if options.get("defer_index_remap"):
            # Pylance's own: what it commits is no Rewrite that the log could carry over others.
            return super().compact_files(**options)
        dataset = cast(ManagedDataset, self._dataset)
        given = {name: value for name, value in options.items() if value is not None}
        kept = dataset._log.compact(dataset._table, **given)
        dataset.checkout_latest()  # type: ignore[no-untyped-call]
        none = dict.fromkeys(
            ("fragments_removed", "fragments_added", "files_removed", "files_added"), 0
        )
        return SimpleNamespace(**(kept.metrics or none))
