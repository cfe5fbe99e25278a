"""Runs every path for every column, and writes the table of types down."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import duckdb
import lance
import pyarrow as pa

from commitlog import CommitLogError
from commitlog.adapters.row_values import is_blob
from commitlog.client.commits import catalogue
from tests.made_tables import TYPES, MadeTable
from tests.namespace_world import World
from tests.types.columns import Column, columns, plain

WRITTEN = MadeTable(TYPES, "python -m tests.types --write")
YES = "yes"
UPSERT = "on=id&when_matched_update_all=true&when_not_matched_insert_all=true"
NOTES = {
    "Unsupported data type": "Lance stores no such type",
    "Unsupported Internal Arrow Type": "DuckDB reads no such type",
    "holds blobs": "Lance sets no blobs by an update; `merge_insert` does",
    "non-nullable child": "pylance wants elements below a null vector; the other paths add them",
}
"""Refusals that begin or end in a library's own words."""
ROUNDED_BY_DUCKDB = {"duration ns": "DuckDB reads it in microseconds"}


class Refused(Exception):
    """A path said no."""


@dataclass
class Table:
    """One column's table, whose rows have it twice: `c`, and `d` to be copied from."""

    world: World
    column: Column
    name: str
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        """Name the columns."""
        c = self.column.field
        self.schema = pa.schema([pa.field("id", pa.int64()), c, c.with_name("d")])

    def rows(self, first: int, *, empty: bool = False) -> pa.Table:
        """Return the column's values under ids from `first`; `c` is null if `empty`."""
        values = self.column.values
        ids = pa.array(range(first, first + len(values)), pa.int64())
        if not empty:
            return pa.table([ids, values, values], schema=self.schema)
        rows = pa.table([ids, values], schema=self.schema.remove(1))
        return rows.select(["id", "d"])

    def literals(self, first: int) -> list[dict[str, Any]]:
        """Return the same as Python's own values."""
        try:
            values = self.column.values.to_pylist()
        except ValueError as error:
            raise Refused("Python has no nanoseconds") from error
        if is_blob(self.column.field.type):
            values = [None if v is None else v["data"] for v in values]
        return [{"id": first + at, "c": v, "d": v} for at, v in enumerate(values)]

    def where(self, first: int, at: int | None = None) -> str:
        """Return the predicate of one row, or of all from `first`."""
        end = first + len(self.column.values) - 1
        return f"id between {first} and {end}" if at is None else f"id = {first + at}"


def _append(t: Table, first: int) -> None:
    t.world.log.append(t.name, t.rows(first)).raise_for_conflict()


def _python(t: Table, first: int) -> None:
    t.world.log.append(t.name, t.literals(first)).raise_for_conflict()


def _transact(t: Table, first: int) -> None:
    with t.world.log.transact() as transaction:
        transaction.append(t.name, t.rows(first).to_reader(max_chunksize=1))


def _merge(t: Table, first: int) -> None:
    t.world.log.append(t.name, t.rows(first, empty=True).slice(0, 1)).raise_for_conflict()
    t.world.log.merge_insert(t.name, t.rows(first), "id").raise_for_conflict()


def _update(t: Table, first: int) -> None:
    t.world.log.append(t.name, t.rows(first, empty=True)).raise_for_conflict()
    for at, value in enumerate(t.column.values):
        t.world.log.update(t.name, {"c": value}, t.where(first, at)).raise_for_conflict()


def _update_sql(t: Table, first: int) -> None:
    t.world.log.append(t.name, t.rows(first, empty=True)).raise_for_conflict()
    t.world.log.update(t.name, {"c": "d"}, t.where(first)).raise_for_conflict()


def _native(t: Table, first: int) -> None:
    lance.write_dataset(t.rows(first), t.world.log.open(t.name), mode="append")


def _native_merge(t: Table, first: int) -> None:
    _native(t, first)
    builder = t.world.log.open(t.name).merge_insert("id").when_matched_update_all()
    builder.when_not_matched_insert_all().execute(t.rows(first))


def _http_insert(t: Table, first: int) -> None:
    _good(t.world.rows(f"/v1/table/{t.name}/insert", t.rows(first)))


def _http_merge(t: Table, first: int) -> None:
    _http_insert(t, first)
    _good(t.world.rows(f"/v1/table/{t.name}/merge_insert?{UPSERT}", t.rows(first)))


def _http_update(t: Table, first: int) -> None:
    rows = t.rows(first, empty=True)
    _good(t.world.rows(f"/v1/table/{t.name}/insert", rows))
    asked = {"predicate": t.where(first), "updates": [["c", "d"]]}
    _good(t.world.post(f"/v1/table/{t.name}/update", asked))


WRITES: dict[str, Callable[[Table, int], None]] = {
    "append": _append,
    "append in transact": _transact,
    "append of Python values": _python,
    "merge_insert": _merge,
    "update": _update,
    "update by SQL": _update_sql,
    "native append": _native,
    "native merge": _native_merge,
    "HTTP insert": _http_insert,
    "HTTP merge": _http_merge,
    "HTTP update": _http_update,
}


GROUPS: dict[str, tuple[str, ...]] = {
    "`append`": ("append", "append in transact", "append of Python values"),
    "`merge_insert`": ("merge_insert",),
    "`update`": ("update", "update by SQL"),
    "`log.open`": ("native append", "native merge"),
    "HTTP": ("HTTP insert", "HTTP merge", "HTTP update"),
    "read": ("by path", "log.open"),
    "DuckDB": ("DuckDB",),
}
"""The document's columns; what Spark writes and reads is held by Spark's own tests."""


def _by_path(t: Table) -> pa.Table:
    return _scanned(lance.dataset(t.world.log.table(t.name).location))


def _by_log(t: Table) -> pa.Table:
    return _scanned(t.world.log.open(t.name))


def _by_duckdb(t: Table) -> pa.Table:
    if t.column.name in ROUNDED_BY_DUCKDB:
        raise Refused(ROUNDED_BY_DUCKDB[t.column.name])
    try:
        found = duckdb.from_arrow(_scanned(t.world.log.open(t.name))).to_arrow_table()
    except (duckdb.Error, pa.ArrowException) as error:
        raise Refused(f"DuckDB: {error}") from error
    wanted = t.column.field.type
    values = found["c"]
    if pa.types.is_interval(values.type):
        factor = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[wanted.unit]
        counts = [None if v is None else (v.nanoseconds // factor) for v in values.to_pylist()]
        values = pa.array(counts, pa.int64()).view(wanted)
    elif wanted == pa.uuid():
        texts = [None if v is None else bytes.fromhex(v.replace("-", "")) for v in _text(values)]
        values = pa.array(texts, pa.binary(16))
    return pa.table({"id": found["id"], "c": values})


def _text(values: pa.ChunkedArray) -> list[str | None]:
    return [None if v is None else str(v) for v in values.to_pylist()]


def _scanned(dataset: lance.LanceDataset) -> pa.Table:
    return dataset.scanner(columns=["id", "c"], blob_handling="all_binary").to_table()


READS: dict[str, Callable[[Table], pa.Table]] = {
    "by path": _by_path,
    "log.open": _by_log,
    "DuckDB": _by_duckdb,
}


def run(
    world: World, storage_version: str = "2.2", *, but: Collection[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each column's name, and what each path but some did: `YES`, or why it was refused.

    Tables have files of a storage version.

    Raises AssertionError for a value that is another one afterwards.
    """
    for number, column in enumerate(columns()):
        table = Table(world, column, f"t$c{number}")
        found: dict[str, str] = {}
        try:
            with mock.patch.object(catalogue, "DATA_STORAGE_VERSION", storage_version):
                world.log.create_table(table.name, table.schema).raise_for_conflict()
        except CommitLogError as error:
            yield column.name, {"create": _reason(error)}
            continue
        for at, (path, write) in enumerate(WRITES.items()):
            if path not in but:
                found[path] = _tried(partial(write, table, 1000 * at))
        written = [path for path in found if found[path] == YES]
        for reader, read in READS.items():
            if reader not in but:
                found[reader] = _tried(partial(_compare, table, read, written))
        yield column.name, found


def _compare(table: Table, reader: Callable[[Table], pa.Table], written: list[str]) -> None:
    read = reader(table)
    by_id = dict(zip(read["id"].to_pylist(), plain(read["c"]), strict=True))
    expected = plain(table.column.values)
    for path in written:
        first = 1000 * list(WRITES).index(path)
        found = [by_id[first + at] for at in range(len(expected))]
        assert found == expected, (table.column.name, path)


def _tried(work: Callable[[], None]) -> str:
    try:
        work()
    except (CommitLogError, Refused, OSError, ValueError, NotImplementedError) as error:
        return _reason(error)
    return YES


def _good(answer: tuple[int, Any]) -> None:
    if answer[0] != 200:
        raise Refused(answer[1]["error"])


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def document(found: dict[str, dict[str, str]]) -> str:
    """Return the table of types with its notes."""
    rows = []
    for name, paths in found.items():
        if "create" in paths:
            rows.append([name, *["\u2013"] * len(GROUPS), _noted(paths["create"])])
            continue
        cells = []
        remarks: dict[str, list[str]] = {}
        for members in GROUPS.values():
            refused = [path for path in members if paths[path] != YES]
            cells.append(YES if not refused else "no" if len(refused) == len(members) else "part")
            for path in refused:
                remarks.setdefault(_noted(paths[path]), []).append(path)
        notes = (f"{', '.join(members)}: {why}" for why, members in remarks.items())
        rows.append([name, *cells, "; ".join(notes)])
    header = ["type", *GROUPS, "what is refused, and why"]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _noted(reason: str) -> str:
    """Return a reason in the document's words."""
    for found, words in NOTES.items():
        if found in reason:
            return words
    return reason.partition(". ")[0].rstrip(".,").replace("|", "\\|")


def differing(found: dict[str, dict[str, str]]) -> list[str]:
    """Return the types whose row isn't the documented one."""
    documented = WRITTEN.read().splitlines()
    rows = document(found).splitlines()[2:]
    return [row.split(" | ")[0].removeprefix("| ") for row in rows if row not in documented]
