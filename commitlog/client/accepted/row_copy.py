"""A plain Lance table, made of writes of rows as row writers make versions of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import lance

from commitlog.client.accepted.row_application import prepare_group
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.row_groups import Write, base_scan

COMMITS_PER_COMPACTION = 32


class RowCopy:
    """A private copy of a table, in a folder that no other writer uses."""

    def __init__(self, info: TableInfo, data_storage_version: Any) -> None:
        """Make it without rows at `info.location`, where nothing is."""
        self._info = info
        self._commits = 0
        self._dataset = lance.write_dataset(
            info.schema.empty_table(), info.location, data_storage_version=data_storage_version
        )

    def apply(self, writes: Sequence[Write]) -> None:
        """Apply writes with one key, in order."""
        info = self._info
        prepared = prepare_group(info, self._dataset, writes, base_scan(info, writes))
        if prepared is None:
            return
        version = self._dataset.version
        self._dataset = lance.LanceDataset.commit(
            self._dataset, prepared.operation, read_version=version
        )
        self._commits += 1
        if self._commits % COMMITS_PER_COMPACTION == 0:
            self.tidy()

    def tidy(self) -> int:
        """Leave one version of few files; return how many rows it has."""
        self._dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
        self._dataset.cleanup_old_versions(timedelta(0), delete_unverified=True)
        return int(self._dataset.count_rows())
