"""Changes columns while others write: values are computed once, and completed at the decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from commitlog.client.leader.arguments import has_columns, refused
from commitlog.client.rows.host import TableName
from commitlog.client.upkeep import TIMEOUT_SECONDS, KeepsTables, Kept
from commitlog.errors import InvalidTransaction

if TYPE_CHECKING:
    import lance

COLUMN_ATTEMPTS_MAX = 100
"""Before protocol 5, any commit since the read version refuses a new column. Further attempts keep
the values that were computed."""


def is_reader(transforms: Any) -> bool:
    """Return True if values of new columns are read from elsewhere, not computed from each row."""
    import pyarrow as pa  # loaded here: a client that only submits needs none of it

    listed = transforms if isinstance(transforms, list) else [transforms]
    is_computed = isinstance(transforms, dict | pa.Schema) or callable(transforms)
    return not is_computed and not all(isinstance(one, pa.Field) for one in listed)


@contextmanager
def raising_its_own(reader: Any) -> Iterator[Any]:
    """Yield a reader's batches; raise the reader's own error, which Lance would reduce to text."""
    import pyarrow as pa

    raised: list[BaseException] = []

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            raised.append(error)
            raise

    if isinstance(reader, pa.RecordBatchReader):
        given: Any = pa.RecordBatchReader.from_batches(reader.schema, batches())
    else:
        given = batches() if isinstance(reader, Iterator) else reader
    try:
        yield given
    except Exception:
        if raised:
            raise raised[0] from None
        raise


def values_of_rows(message: str) -> InvalidTransaction:
    """Return the refusal of a reader, which has no values for rows that others added."""
    return InvalidTransaction(
        message,
        field="transforms",
        advice=(
            "Add the column as null (`add_columns(pa.field(...))`), and bring the values by a key "
            "(`merge_insert`); while nobody else writes, use `log.open(table).add_columns(reader)`"
        ),
    )


class ChangesColumns(KeepsTables):
    """Adds to `CommitLog` the methods that change a table's columns."""

    def add_columns(
        self,
        table_id: TableName,
        transforms: Any,
        *,
        timeout: float = TIMEOUT_SECONDS,
        attempts_max: int = COLUMN_ATTEMPTS_MAX,
        properties: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Kept:
        """Add columns by SQL expressions, a function, or a schema, like pylance's `add_columns`.

        When the leader decides it, other commits to the table wait for up to 10 seconds, while this
        client computes the column for rows that were committed meanwhile. A reader has no values
        for such rows: if there are any, InvalidTransaction is raised.
        """
        from commitlog.client.rows.rows import whole

        is_taken = False
        if isinstance(transforms, dict):
            transforms = {
                name: whole(sql, name) if isinstance(sql, str) else sql
                for name, sql in transforms.items()
            }

        def change(dataset: lance.LanceDataset, values: Any) -> None:
            nonlocal is_taken
            if is_taken:
                raise values_of_rows("rows were added meanwhile that the reader has no values for")
            is_taken = is_reader(transforms)
            dataset.add_columns(values, **options)

        bounds = (timeout, attempts_max, properties)
        return self._change_columns(table_id, change, ("transforms", transforms), bounds)

    def alter_columns(
        self,
        table_id: TableName,
        *alterations: Any,
        timeout: float = TIMEOUT_SECONDS,
        attempts_max: int = COLUMN_ATTEMPTS_MAX,
        properties: Mapping[str, str] | None = None,
    ) -> Kept:
        """Rename columns, change whether they may be null, or cast them, like `alter_columns`.

        If columns are cast, other commits wait as for `add_columns`. If a column becomes
        non-nullable, they wait until this client has checked the new rows for nulls.
        """
        return self._change_columns(
            table_id,
            lambda dataset, given: dataset.alter_columns(*given),
            ("alterations", alterations),
            (timeout, attempts_max, properties),
        )

    def drop_columns(
        self,
        table_id: TableName,
        columns: list[str],
        *,
        timeout: float = TIMEOUT_SECONDS,
        attempts_max: int = COLUMN_ATTEMPTS_MAX,
        properties: Mapping[str, str] | None = None,
    ) -> Kept:
        """Drop columns, like pylance's `drop_columns`; their data stays in the files."""
        return self._change_columns(
            table_id,
            lambda dataset, given: dataset.drop_columns(list(given)),
            ("columns", columns),
            (timeout, attempts_max, properties),
        )

    def _change_columns(
        self,
        table_id: TableName,
        change: Callable[[lance.LanceDataset, Any], None],
        given: tuple[str, Any],
        bounds: tuple[float, int, Mapping[str, str] | None],
    ) -> Kept:
        # Loaded here: it needs what decides.
        from commitlog.client.new_columns import NewColumns

        def checked(dataset: lance.LanceDataset) -> None:
            what = "the columns can't be changed", *given, has_columns(dataset)
            with raising_its_own(given[1]) as values, refused(*what):
                change(dataset, values)

        columns = NewColumns(
            self.runtime(), lambda table: self.describe(table, fresh=True, readable=True), checked
        )
        return self._until_it_lands(table_id, columns.attempt, *bounds, columns.finish)
