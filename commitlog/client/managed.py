"""What `CommitLog.open` returns: Lance's own dataset, whose upkeep goes through the log too."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import lance
from lance.dataset import DatasetOptimizer

from commitlog.client.upkeep import Kept

Compact = Callable[..., Kept]


class ManagedDataset(lance.LanceDataset):
    """A dataset whose `optimize.compact_files` is `CommitLog.compact`.

    Lance itself gives a compaction up as soon as somebody deletes a row of its fragments.
    """

    _compact: Compact

    @classmethod
    def of(cls, dataset: lance.LanceDataset, compact: Compact) -> lance.LanceDataset:
        """Return the same dataset, compacted through the log."""
        dataset.__class__ = cls
        cast(ManagedDataset, dataset)._compact = compact
        return dataset

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as a plain dataset: another process has no connection to the log."""
        _, state = super().__reduce__()  # type: ignore[no-untyped-call]
        return lance.LanceDataset.__deserialize__, state

    @property
    def optimize(self) -> DatasetOptimizer:
        """Return what compacts and keeps indices."""
        return _Optimizer(self)


class _Optimizer(DatasetOptimizer):
    def compact_files(self, **options: Any) -> Any:
        """Merge small fragments and drop deleted rows; leaves the dataset at the new head."""
        dataset = cast(ManagedDataset, self._dataset)
        given = {name: value for name, value in options.items() if value is not None}
        kept = dataset._compact(**given)
        dataset.checkout_latest()  # type: ignore[no-untyped-call]
        none = dict.fromkeys(
            ("fragments_removed", "fragments_added", "files_removed", "files_added"), 0
        )
        return SimpleNamespace(**(kept.metrics or none))
