"""Adds a column, and kills itself at a point: `column_child KAFKA LOG TABLE COLUMN POINT`.

A row is appended between the column's computation and its record, so it lacks something when its
turn comes.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any
from unittest import mock

import pyarrow as pa

from commitlog import CommitLog
from commitlog.adapters.storage import LocalStore
from commitlog.client.new_columns import NewColumns

servers, name, table, column, point = sys.argv[1:]


def dies_at(here: str) -> None:
    """Kill this process if this is its point."""
    if here == point:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Add the column, or die."""
    attempt, lacking = NewColumns.attempt, NewColumns._lacking
    write, delete = LocalStore.write, LocalStore.delete
    with CommitLog.connect(servers, name) as client, CommitLog.connect(servers, name) as other:

        def beaten(columns: NewColumns, *given: Any) -> Any:
            done = attempt(columns, *given)
            schema = other.open(table).schema
            other.append(table, pa.Table.from_pylist([{"id": 0}], schema=schema))
            dies_at("computed")
            return done

        def computing(columns: NewColumns, *given: Any) -> Any:
            dies_at("submitted")
            return lacking(columns, *given)

        def writing(store: LocalStore, path: str, data: bytes) -> Any:
            if path.endswith(".columns"):
                dies_at("completed")
            return write(store, path, data)

        def deleting(store: LocalStore, path: str) -> Any:
            if path.endswith(".columns"):
                dies_at("decided")
            return delete(store, path)

        with (
            mock.patch.object(NewColumns, "attempt", beaten),
            mock.patch.object(NewColumns, "_lacking", computing),
            mock.patch.object(LocalStore, "write", writing),
            mock.patch.object(LocalStore, "delete", deleting),
        ):
            client.add_columns(table, {column: "id * 2"})


if __name__ == "__main__":
    main()
