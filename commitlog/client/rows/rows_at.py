"""Reads rows, or a column, of which it is known where they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import lance
import pyarrow as pa
import pyarrow.compute as pc

from commitlog.adapters.lance_datasets import scan_columns, take_rows
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.key_predicates import comparison
from commitlog.client.rows.rows import OFFSET_BITS, ROW_ADDRESS, ROW_ID, fragment_of

FEW = 16


def rows_at(
    dataset: lance.LanceDataset, columns: Iterable[str], addresses: Sequence[int]
) -> pa.Table:
    """Read the rows at some addresses that weren't deleted, with their addresses and ids."""
    if dataset.has_stable_row_ids or not addresses:
        return scan_at(dataset, scan_columns(list(columns)), addresses)
    return take_rows(dataset, [*columns, ROW_ADDRESS, ROW_ID], addresses)


class KnowsPlaces(ABC):
    """What may know where rows are."""

    @abstractmethod
    def places(
        self,
        info: TableInfo,
        dataset: lance.LanceDataset,
        column: str,
        values: pa.Array | pa.ChunkedArray,
        /,
    ) -> list[int] | None:
        """Return the addresses of all rows that may have one of some values; None: not known."""

    def scan(
        self,
        info: TableInfo,
        dataset: lance.LanceDataset,
        columns: list[str] | dict[str, str],
        predicate: str,
    ) -> pa.Table | None:
        """Return the rows of a predicate with their addresses and ids; None: search for them."""
        compared = comparison(predicate, info.schema)
        if compared is None:
            return None
        addresses = self.places(info, dataset, compared.column, compared.values)
        if addresses is None:
            return None
        if compared.is_all and not columns:
            rows = rows_at(dataset, [compared.column], addresses)
            return having(rows, compared.column, compared.values)
        return scan_at(dataset, columns, addresses, f" AND ({predicate})")


def having(rows: pa.Table, column: str, values: pa.Array) -> pa.Table:
    """Return the rows that have one of some values: other keys may have the same hash."""
    if rows.num_rows <= FEW:  # with so few a filter costs more than a look
        wanted = set(values.to_pylist())
        if all(one in wanted for one in rows[column].to_pylist()):
            return rows
    return rows.filter(pc.is_in(rows[column], values))


def scan_at(
    dataset: lance.LanceDataset,
    columns: list[str] | dict[str, str],
    addresses: Sequence[int],
    condition: str = "",
) -> pa.Table:
    """Read the same with a scan, those for which a condition holds, too."""
    numbers = dict.fromkeys(address >> OFFSET_BITS for address in addresses)
    there = f"{ROW_ADDRESS} IN ({','.join(map(str, addresses))})" if addresses else "false"
    return dataset.scanner(
        columns=columns,
        filter=there + condition,
        fragments=[fragment_of(dataset, number) for number in numbers] or None,
        with_row_address=True,
        with_row_id=True,
    ).to_table()


def read_column(
    dataset: lance.LanceDataset, column: str, numbers: Sequence[int]
) -> pa.ChunkedArray:
    """Read a column of fragments, of deleted rows too: a restored version has them again."""
    scanner = dataset.scanner(
        columns=[column],
        fragments=[fragment_of(dataset, number) for number in numbers],
        with_row_id=True,
        include_deleted_rows=True,
        scan_in_order=True,
    )
    return scanner.to_table().column(column)
