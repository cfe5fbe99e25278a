"""What `CommitLog.open` returns: Lance's own dataset, whose upkeep goes through the log too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import lance
import pyarrow as pa
from lance.dataset import DatasetOptimizer, MergeInsertBuilder, Tags

from commitlog.adapters.lance_datasets import open_dataset
from commitlog.adapters.lance_namespace import LogNamespace, saying_why
from commitlog.adapters.places import bound
from commitlog.client.columns import ChangesColumns, is_reader, raising_its_own, values_of_rows
from commitlog.client.commits.caller import Caller, acting_for, caller
from commitlog.client.commits.native import open_managed
from commitlog.client.leader.arguments import OF_ARGUMENTS, has_columns, lances_words, refused
from commitlog.client.leader.tables import TableInfo, Tables
from commitlog.client.rows.full_storage import naming_full_storage
from commitlog.client.rows.lost_files import is_of_deleted_version
from commitlog.client.rows.merging import has_nulls
from commitlog.client.rows.read_only import COMMITS, Asked, SentDataset
from commitlog.client.rows.rows import whole
from commitlog.client.upkeep import Kept
from commitlog.core.tables.branch_names import TAG_NAMES, branch_home, is_tag_name
from commitlog.errors import InvalidRequest, InvalidTransaction, NoSuchVersion
from commitlog.model.table import TableId, format_table_id

_REMOVED = (
    *("bytes_removed", "data_files_removed", "deletion_files_removed", "failed_deletes"),
    *("index_files_removed", "transaction_files_removed"),
)
_HARMLESS = frozenset({"error_if_tagged_old_versions", "delete_rate_limit", "delete_concurrency"})
_NO_REFERENCE, _NO_INDEX = "Ref not found error: ", "Lance index not found: name="
"""How Lance begins to say that there is no tag or no index of a name."""
_NO_COLUMN = " not found in schema"


@contextmanager
def _saying_why(dataset: lance.LanceDataset) -> Iterator[None]:
    """Raise the log's own error in place of Lance's, or name the disk that is full."""
    name = format_table_id(cast(ManagedDataset, dataset)._table)
    try:
        with saying_why(dataset), naming_full_storage(name, dataset.uri):
            yield
    except (KeyError, OSError, RuntimeError, ValueError) as error:
        if is_of_deleted_version(error, dataset.version):
            raise NoSuchVersion(
                f"version {dataset.version} of {name} was deleted since it was opened; check out"
                " the newest (checkout_latest) and write again"
            ) from error
        said = lances_words(error)
        if said.startswith(_NO_REFERENCE):
            has = ", ".join(dataset.tags.list()) or "none"
            said = said.removeprefix(_NO_REFERENCE)
            raise NoSuchVersion(f"{name}: {said}. Its tags: {has}") from error
        if said.startswith(_NO_INDEX):
            has = ", ".join(one.name for one in dataset.describe_indices()) or "none"
            raise InvalidTransaction(
                f"{name} has no index {said.removeprefix(_NO_INDEX)!r}",
                field="name",
                advice=f"Its indices: {has}",
            ) from error
        if said.startswith(OF_ARGUMENTS) or said.endswith(_NO_COLUMN):
            raise InvalidTransaction(
                f"Lance can't write to {name}: {said}",
                field="arguments",
                advice=has_columns(dataset),
            ) from error
        raise


def _carried_out(
    dataset: lance.LanceDataset, write: Callable[..., Any], /, *arguments: Any, **options: Any
) -> Any:
    """Call what writes, and say why not; what a reader among its arguments raises is its own."""
    with ExitStack() as stack:
        given = [stack.enter_context(raising_its_own(one)) for one in arguments]
        named = {key: stack.enter_context(raising_its_own(one)) for key, one in options.items()}
        stack.enter_context(_saying_why(dataset))
        return write(*given, **named)


def _says_why(write: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(write)
    def refusable(self: Any, *arguments: Any, **options: Any) -> Any:
        dataset = self if isinstance(self, ManagedDataset) else self._dataset
        return _carried_out(dataset, functools.partial(write, self), *arguments, **options)

    return refusable


def _whole(sql: Any, field: str = "predicate") -> Any:
    """Return SQL so that Lance reads all of it; nothing and Arrow's expressions as they are."""
    return whole(sql, field) if isinstance(sql, str) else sql


class _Merge(MergeInsertBuilder):
    dataset: lance.LanceDataset
    on: str | Sequence[str] | None

    def when_matched_update_all(self, condition: str | None = None) -> Any:
        """Update what matches, as Lance's own does."""
        return super().when_matched_update_all(_whole(condition))

    def when_not_matched_by_source_delete(self, expr: str | None = None) -> Any:
        """Delete what no row of the source matches, as Lance's own does."""
        with _saying_why(self.dataset):
            return super().when_not_matched_by_source_delete(_whole(expr))

    def execute(self, *arguments: Any, **options: Any) -> Any:
        """Carry the merge out, and say why if the log refuses it."""
        self._avoid_index(*arguments, **options)
        return _carried_out(self.dataset, super().execute, *arguments, **options)

    def execute_uncommitted(self, *arguments: Any, **options: Any) -> Any:
        """Write the merge's files, as Lance's own does."""
        self._avoid_index(*arguments, **options)
        return super().execute_uncommitted(*arguments, **options)

    def _avoid_index(self, data_obj: Any, **_: Any) -> None:
        """Join without an index if keys may be null: by it, Lance leaves out their rows."""
        known = self.dataset.schema
        keys = [self.on] if isinstance(self.on, str) else self.on or known.names
        if isinstance(data_obj, pa.Table | pa.RecordBatch):
            may_be_null = has_nulls(data_obj, keys)
        else:
            wanted = {name.lower() for name in keys}  # Lance takes a name in another case
            may_be_null = any(one.nullable for one in known if one.name.lower() in wanted)
        if may_be_null:
            self.use_index(False)


class ManagedDataset(Asked):
    """A dataset whose compactions, changes of columns and cleanup are the log's own.

    Lance itself gives a compaction up as soon as somebody deletes a row of its fragments, and a new
    column as soon as somebody appends; it deletes versions that the log still has. Of a write that
    the log refused it says that its result is unknown; here the write raises `CommitConflict`,
    which names the reason, or `NoSuchTable` if the table was dropped or renamed. Where it finds no
    space, it raises `StorageFull`.
    """

    _log: ChangesColumns
    _table: TableId
    _caller: Caller

    @classmethod
    def of(
        cls, dataset: lance.LanceDataset, log: ChangesColumns, table: TableId
    ) -> lance.LanceDataset:
        """Return the same dataset, looked after through the log."""
        dataset.__class__ = cls
        managed = cast(ManagedDataset, dataset)
        managed._log, managed._table, managed._caller = log, table, caller()
        return dataset

    def checkout_version(self, version: Any) -> lance.LanceDataset:
        """Check out a version, as Lance's own does; NoSuchVersion if there is none."""
        number = version[1] if isinstance(version, tuple) and len(version) == 2 else version
        if isinstance(number, int) and number < 1:
            name = format_table_id(self._table)
            raise NoSuchVersion(f"{name} has no version {number}: its first is 1")
        with _saying_why(self):
            return super().checkout_version(version)

    def merge_insert(self, on: Any = None) -> MergeInsertBuilder:
        """Return what merges rows, as Lance's own does."""
        with _saying_why(self):
            merge = _Merge(self._ds, on)
        merge.dataset, merge.on = self, on
        return merge

    def delete(self, predicate: Any, **options: Any) -> Any:
        """Delete rows, as Lance's own does; refuse a predicate that Lance would read in part."""
        if isinstance(predicate, str):  # checked apart: the commit names it as it was given
            self.scanner(filter=whole(predicate)).explain_plan()
        return super().delete(predicate, **options)

    def update(self, updates: Any, where: Any = None, *how: Any, **options: Any) -> Any:
        """Update rows, as Lance's own does; refuse SQL that Lance would read in part."""
        if isinstance(updates, dict):
            updates = {name: _whole(sql, str(name)) for name, sql in updates.items()}
        return super().update(updates, _whole(where), *how, **options)

    def add_columns(
        self, transforms: Any, read_columns: list[str] | None = None, *reading: Any, **options: Any
    ) -> None:
        """Add columns while others write, as `CommitLog.add_columns`; then check out that version.

        A reader's values belong to this version's rows, so Lance adds them itself. That fails if
        another writer commits meanwhile: with InvalidTransaction if that was before the call.
        """
        options |= dict(zip(("reader_schema", "batch_size"), reading, strict=False))
        if is_reader(transforms):
            newest = self._newest()
            if newest != self.version:
                raise values_of_rows(
                    f"the reader's values belong to the rows of version {self.version} of "
                    f"{format_table_id(self._table)}, and {newest} is the newest"
                )
            what = "the columns can't be changed", "transforms", transforms, has_columns(self)
            with raising_its_own(transforms) as values, refused(*what), _saying_why(self):
                super().add_columns(values, read_columns, **options)
            return
        self._change(
            lambda: self._log.add_columns(
                self._table, transforms, read_columns=read_columns, **options
            )
        )

    def alter_columns(self, *alterations: Any) -> None:
        """Change columns while others write, as `CommitLog.alter_columns`; check out the result."""
        self._change(lambda: self._log.alter_columns(self._table, *alterations))

    def drop_columns(self, columns: list[str]) -> None:
        """Drop columns while others write, as `CommitLog.drop_columns`; check out the result."""
        self._change(lambda: self._log.drop_columns(self._table, columns))

    def _change(self, change: Callable[[], Kept]) -> None:
        self._newest()
        with acting_for(self._caller):
            outcome = change().outcome
        if outcome is not None:
            self._ds = self._ds.checkout_version(outcome.version)

    def cleanup_old_versions(self, *arguments: Any, **options: Any) -> Any:
        """Delete old versions by a record, as `CommitLog.expire_versions`; data files stay."""
        given = dict(zip(("older_than", "retain_versions"), arguments, strict=False)) | options
        given = {name: value for name, value in given.items() if value not in (None, False)}
        unknown = sorted(set(given) - {"older_than", "retain_versions", *_HARMLESS})
        if unknown:
            raise InvalidTransaction(
                f"cleanup_old_versions doesn't accept {', '.join(unknown)} for a table of the log",
                field=unknown[0],
                value=given[unknown[0]],
                advice="Use older_than and retain_versions, which the log records",
            )
        self._newest()
        before = self._deleted_count()
        self._log.expire_versions(
            self._table,
            older_than=given.get("older_than"),
            retain_versions=given.get("retain_versions"),
        )
        removed = dict.fromkeys(_REMOVED, 0)
        return SimpleNamespace(**removed, old_versions=self._deleted_count() - before)

    def _newest(self) -> int:
        """Return the newest version; NoSuchVersion if another table has the name by now.

        What the log does in place of Lance, it does to the table of that name.
        """
        return cast(LogNamespace, self._namespace_client).newest()

    def _deleted_count(self) -> int:
        ranges = self._log.describe(self._table, fresh=True).deleted
        return sum(last - first + 1 for first, last in ranges)

    def create_branch(self, branch: str, *reference: Any, **options: Any) -> NoReturn:
        """Refuse a branch that Lance would make beside the log."""
        raise InvalidRequest(
            f"create_branch of an opened dataset makes no branch {branch!r} in the log",
            field="branch",
            value=branch,
            advice='Submit lance.LanceOperation.Clone(True, None, version, location, "name") under'
            " the branch's own table name, or open the location with pylance for one outside it",
        )

    def check_unbranched(self, branch: str) -> None:
        """Refuse to delete a branch that a Clone made a table of the log."""
        here = f"{cast(LogNamespace, self._namespace_client).location}/"
        for table in self._log.tables():
            place = bound(table.location)
            home = branch_home(place, branch)
            if home != place and here.startswith(f"{home}/"):
                raise InvalidRequest(
                    f"branch {branch!r} is a table of the log, {table.name}",
                    field="branch",
                    value=branch,
                    advice="Drop it under that name",
                )

    def shallow_clone(self, *arguments: Any, **options: Any) -> lance.LanceDataset:
        """Clone a version to a place outside the log, without its files, as Lance's own does."""
        return open_dataset(self.uri, self.version).shallow_clone(*arguments, **options)

    def deep_clone(self, *arguments: Any, **options: Any) -> lance.LanceDataset:
        """Copy a version to a place outside the log, as Lance's own does."""
        return open_dataset(self.uri, self.version).deep_clone(*arguments, **options)

    def mem_wal_writer(self, *arguments: Any, **options: Any) -> NoReturn:
        """Refuse rows that no version of the log would have."""
        raise InvalidRequest(
            "mem_wal_writer of an opened dataset writes rows that no version in the log has",
            field="dataset",
            value="mem_wal_writer",
            advice="Use log.write_rows for many small writes, or open the location with pylance"
            " and merge what you write there yourself",
        )

    def committed_by(self, name: str, commit: functools.partial[Any]) -> Any:
        """Say why if the log refuses it; what comes of it is looked after too."""
        if commit.keywords.get("detached"):
            raise InvalidRequest(
                f"{name} makes no version in the log that is detached from all others",
                field="detached",
                value=True,
                advice="Leave it out, or open the location with pylance for one outside the log",
            )
        made = _carried_out(self, commit.func, *commit.args, **commit.keywords)
        opened = made.get("dataset") if isinstance(made, dict) else made
        if type(opened) is lance.LanceDataset:
            opened.__dict__.update({**vars(self), "_ds": opened._ds})
            opened.__class__ = ManagedDataset
        return made

    def __copy__(self) -> lance.LanceDataset:
        """Return a handle that is looked after too; `checkout_version` begins with this."""
        made = super().__copy__()  # type: ignore[no-untyped-call]
        made.__class__ = ManagedDataset
        made._log, made._table, made._caller = self._log, self._table, self._caller
        return cast(lance.LanceDataset, made)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to be read: another process has no connection to the log."""
        _, state = super().__reduce__()  # type: ignore[no-untyped-call]
        return SentDataset.__deserialize__, state

    @property
    def latest_version(self) -> int:
        """Return the newest version; NoSuchTable if the table was dropped or renamed."""
        with _saying_why(self):
            return super().latest_version

    @property
    def tags(self) -> Tags:
        """Return what names versions."""
        return _Tags(self)

    @property
    def optimize(self) -> DatasetOptimizer:
        """Return what compacts and keeps indices."""
        return _Optimizer(self)


class _Tags(Tags):
    def __init__(self, dataset: ManagedDataset) -> None:
        super().__init__(dataset._ds)
        self._dataset = dataset

    def create(self, tag: str, reference: Any = None) -> None:
        """Name a version, by a name that Lance finds again."""
        if not is_tag_name(tag):
            raise InvalidRequest(
                f"{tag!r} is not a valid tag name", field="tag", value=tag, advice=TAG_NAMES
            )
        with _saying_why(self._dataset):
            super().create(tag, reference)


class _Optimizer(DatasetOptimizer):
    def compact_files(self, **options: Any) -> Any:
        """Merge small fragments and drop deleted rows; leaves the dataset at the new head."""
        if options.get("defer_index_remap"):
            # Pylance's own: what it commits is no Rewrite that the log could carry over others.
            return super().compact_files(**options)
        dataset = cast(ManagedDataset, self._dataset)
        given = {name: value for name, value in options.items() if value is not None}
        dataset._newest()
        kept = dataset._log.compact(dataset._table, **given)
        dataset.checkout_latest()  # type: ignore[no-untyped-call]
        none = dict.fromkeys(
            ("fragments_removed", "fragments_added", "files_removed", "files_added"), 0
        )
        return SimpleNamespace(**(kept.metrics or none))


_SAYING_WHY = {
    ManagedDataset: (*COMMITS, "checkout_latest"),
    _Tags: ("delete", "update"),
    _Optimizer: ("optimize_indices", "enable_auto_cleanup", "disable_auto_cleanup"),
}
"""Methods that do what Lance's own do; Lance's cleanup is guarded by maintenance."""
for _kind, _names in _SAYING_WHY.items():
    for _name in _names:
        setattr(_kind, _name, _says_why(getattr(_kind, _name)))


def opened(
    log: ChangesColumns, tables: Tables, info: TableInfo, version: int | None, principal: str
) -> lance.LanceDataset:
    """Open a version of a table whose writes and upkeep go through the log."""
    dataset = open_managed(log.runtime, tables, info, version, principal)
    return ManagedDataset.of(dataset, log, info.table_id)
