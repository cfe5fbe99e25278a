"""Reads all rows of a version of a table, to see that they can be read, and rows by SQL."""

from __future__ import annotations

from collections.abc import Iterator

import lance
import pyarrow as pa

from commitlog.adapters.lance_datasets import open_dataset
from commitlog.errors import NoSuchVersion


def count_rows(location: str, version: int) -> Iterator[tuple[int, int]]:
    """Yield (fragment id, living rows) of a version, having read every column of every row.

    Raises NoSuchVersion if the version cannot be opened, OSError if its rows cannot be read.
    """
    try:
        dataset = open_dataset(location, version)
    except (ValueError, OSError) as error:
        raise NoSuchVersion(f"version {version} at {location} cannot be opened: {error}") from error
    for fragment in dataset.get_fragments():
        rows = 0
        try:
            for batch in fragment.to_batches():
                rows += batch.num_rows
        except ValueError as error:
            raise OSError(f"fragment {fragment.fragment_id} at {location}: {error}") from error
        yield fragment.fragment_id, rows


def rows_where(rows: pa.Table, predicate: str) -> pa.Table:
    """Return the rows for which a predicate holds, in Lance's SQL; ValueError if it can't be."""
    try:
        return lance.write_dataset(rows, "memory://rows").to_table(filter=predicate)
    except (OSError, RuntimeError) as error:
        raise ValueError(str(error)) from error
