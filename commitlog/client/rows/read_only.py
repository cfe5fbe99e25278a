"""Datasets of Lance's that can only be read: what would commit a version says where to write.

Lance's functions that commit to a dataset ask it here first.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any, NoReturn, Self

import lance
from lance.dataset import Branches
from lance.optimize import Compaction

from commitlog.errors import InvalidRequest

COMMITS = (
    *("add_bases", "commit_existing_index_segments", "create_index", "create_scalar_index"),
    *("delete", "delete_config_keys", "drop_index", "initialize_mem_wal", "insert", "merge"),
    *("migrate_manifest_paths_v2", "replace_field_metadata", "replace_schema"),
    *("replace_schema_metadata", "restore", "truncate_table", "update", "update_config"),
    *("update_field_metadata", "update_metadata", "update_schema_metadata"),
)
"""Methods of Lance's dataset that commit a version."""
_WRITES = (
    *COMMITS,
    *("add_columns", "alter_columns", "cleanup_old_versions", "create_branch", "drop_columns"),
    *("mem_wal_writer", "merge_insert"),
)


class Asked(lance.LanceDataset):
    """A dataset that is asked before one of Lance's functions commits to it."""

    def committed_by(self, name: str, commit: functools.partial[Any]) -> Any:
        """Return what the function returns that is called so."""
        raise NotImplementedError

    def check_unbranched(self, branch: str) -> None:
        """Raise unless this dataset may delete a branch."""
        raise NotImplementedError

    @property
    def branches(self) -> Branches:
        """Return what lists and deletes branches."""
        return _Branches(self)


class _Branches(Branches):
    def __init__(self, dataset: Asked) -> None:
        super().__init__(dataset._ds)
        self._dataset = dataset

    def delete(self, branch: str) -> None:
        """Delete a branch that is outside the log."""
        self._dataset.check_unbranched(branch)
        super().delete(branch)


class ReadOnlyDataset(Asked):
    """A dataset whose own writes are refused, also after `checkout_version`."""

    what = "a table of a snapshot"
    advice = "Write through log.open(table)"

    def __copy__(self) -> Self:
        """Return one that can't write either; `checkout_version` begins with this."""
        made = super().__copy__()  # type: ignore[no-untyped-call]
        made.__class__ = type(self)
        return made  # type: ignore[no-any-return]

    def refuse(self, name: str) -> NoReturn:
        """Refuse what would write."""
        raise InvalidRequest(
            f"{self.what} is read-only, and {name} writes",
            field="dataset",
            value=name,
            advice=self.advice,
        )

    def committed_by(self, name: str, commit: functools.partial[Any]) -> NoReturn:
        """Refuse it."""
        self.refuse(name)

    def check_unbranched(self, branch: str) -> NoReturn:
        """Refuse it."""
        self.refuse("branches.delete")

    @property
    def optimize(self) -> NoReturn:
        """Refuse: what it does is written."""
        self.refuse("optimize")


class SentDataset(ReadOnlyDataset):
    """A pickled handle of an opened table, which has no connection to the log.

    What it wrote would go around the log, and be moved away. Fragments can be written for it
    (`lance.fragment.write_fragments`), which a process with a connection submits.
    """

    what = "a handle that was pickled"
    advice = (
        "Write through log.open(table) in this process, or write fragments and submit them"
        " with log.submit"
    )


def _refusing(name: str) -> Any:
    @functools.wraps(getattr(lance.LanceDataset, name))
    def refuse(self: ReadOnlyDataset, *given: Any, **more: Any) -> NoReturn:
        self.refuse(name)

    return refuse


for _name in _WRITES:
    setattr(ReadOnlyDataset, _name, _refusing(_name))


_inherited = lance.LanceDataset._inherit_base_store_params


def _checking_inherited(destination: Any, given: Any) -> Any:
    if isinstance(destination, ReadOnlyDataset):
        destination.refuse("lance.write_dataset")
    return _inherited(destination, given)


# `write_dataset` begins with this, also if a program had imported it before it is replaced here.
lance.LanceDataset._inherit_base_store_params = staticmethod(  # type: ignore[assignment, method-assign]
    _checking_inherited
)


def _asking(place: Any, name: str, at: int, argument: str) -> None:
    """Have a function ask the dataset that it is given as one of its arguments."""
    function = getattr(place, name)

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        dataset = given[at] if at < len(given) else named.get(argument)
        if not isinstance(dataset, Asked):
            return function(*given, **named)
        return dataset.committed_by(name, functools.partial(function, *given, **named))

    setattr(place, name, staticmethod(call) if isinstance(place, type) else call)


# What they use of the dataset are the parts that also read.
_asking(lance.LanceDataset, "commit", 0, "base_uri")
_asking(lance.LanceDataset, "commit_batch", 0, "dest")
_asking(Compaction, "commit", 0, "dataset")
_asking(Compaction, "execute", 0, "dataset")
for _place in (lance, import_module("lance.dataset")):
    _asking(_place, "write_dataset", 1, "uri")
