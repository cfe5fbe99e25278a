"""Random histories of columns: they come, go, change type and name beside whoever else commits.

`python -m tests.histories.columns --seconds 1800 --seed 1` lives through one history per seed. Each
step is a change of rows, an act of maintenance, or a change of a column. While a column is changed,
others commit between what it computes and when it lands: their rows must be in the column, too.
A plain model holds what each row is; the newest version must be that after each step, by path.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa

from commitlog.adapters.memory import MemoryLog
from commitlog.client.new_columns import NewColumns
from commitlog.client.rows.row_keys import KnownKeys
from commitlog.model.table import Policy
from consumers.tools.maintenance.cleaning import clean
from consumers.tools.verify import VerifyOptions, verify
from tests.histories import acts
from tests.histories.command import command
from tests.service import Service, service

STEPS, BATCH = 20, 5
BESIDE_MAX = 3
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
TYPES = (pa.int64(), pa.int32(), pa.int16())
ROW_KINDS = ("append", "append", "delete", "update", "upsert")
BESIDE_KINDS = ("compact", "index", "optimize", "expire")
UPKEEP_KINDS = (*BESIDE_KINDS, "maintain", "remove")
"""The last two remove files however young they are: also those of a column that is on its way."""
COLUMN_KINDS = ("add", "add", "cast", "rename", "drop", "forbid nulls", "allow nulls")


class ColumnHistory:
    """One table, and the rows that it should hold."""

    def __init__(self, made: Service, seed: int, tally: Counter[str]) -> None:
        """Make the table of a random kind, with a few rows."""
        self.made, self.log, self.tally = made, made.client, tally
        self.chance = random.Random(seed)
        self.log.opened.keys = KnownKeys(searches_first=self.chance.choice([0, 3]))
        self.table = f"columns$s{seed}"
        self.rows: dict[int, dict[str, Any]] = {}
        self.types: dict[str, pa.DataType] = {"n": pa.int64()}
        self.strict: set[str] = set()
        """Columns that may not be null."""
        self.next_id, self.named = 1, 0
        self.log.create_table(
            self.table,
            SCHEMA,
            stable_row_ids=self.chance.random() < 0.5,
            policy=self.chance.choice(list(Policy)),
            properties=acts.POLICY,
        )
        self.append()
        self.append()

    def live(self) -> None:
        """Do some steps, and compare after each."""
        for _ in range(STEPS):
            kind = self.chance.choice((*ROW_KINDS, *UPKEEP_KINDS, *COLUMN_KINDS * 2))
            if kind in COLUMN_KINDS:
                self.change_column(kind)
            else:
                self.act(kind)
            self.compare(kind)

    def act(self, kind: str) -> None:
        """Do something that changes no column."""
        self.tally[kind] += 1
        getattr(self, kind)()

    def append(self) -> None:
        """Append rows with all columns."""
        new = [self.new_row(self.next_id + n) for n in range(self.chance.randint(1, 4))]
        self.next_id += len(new)
        self.log.append(self.table, self.as_table(new))
        self.rows.update({row["id"]: row for row in new})

    def delete(self) -> None:
        """Delete some rows."""
        gone = self.picked()
        self.log.delete(self.table, among(gone))
        for number in gone:
            del self.rows[number]

    def update(self) -> None:
        """Give some rows another value."""
        mark, chosen = self.chance.randint(100, 999), self.picked()
        self.log.update(self.table, {"n": str(mark)}, among(chosen))
        for number in chosen:
            self.rows[number] = {**self.rows[number], "n": mark}

    def upsert(self) -> None:
        """Write whole rows anew, and one that is new."""
        new = [self.new_row(number) for number in (*self.picked(), self.next_id)]
        self.next_id += 1
        self.log.merge_insert(self.table, self.as_table(new), "id")
        self.rows.update({row["id"]: row for row in new})

    def compact(self) -> None:
        """Merge the fragments."""
        self.log.compact(self.table, target_rows_per_fragment=1000)

    def index(self) -> None:
        """Index the key."""
        self.log.create_index(self.table, "id", "BTREE", replace=True)

    def optimize(self) -> None:
        """Add to indices what they lack."""
        self.log.optimize(self.table)

    def expire(self) -> None:
        """Delete most versions."""
        self.log.expire_versions(self.table, older_than=timedelta(0), retain_versions=2)

    def maintain(self) -> None:
        """Do what is due by policy."""
        for one in acts.maintained(self.log, self.made.cluster):
            self.tally[f"maintenance: {one.kind}"] += 1

    def remove(self) -> None:
        """Remove the files that nobody needs, however young they are."""
        clean(MemoryLog(self.made.cluster), self.table, 0, self.log)

    def change_column(self, kind: str) -> None:
        """Change a column while others commit between its tries and their ends."""
        others = [name for name in self.types if name != "n"]
        if kind != "add" and not others:
            kind = "add"
        name = self.new_name() if kind == "add" else self.chance.choice(others)
        left = self.chance.randint(0, BESIDE_MAX)
        # Between what is computed and when it lands nobody may write by the columns of after.
        attempt = NewColumns.attempt

        def beaten(columns: NewColumns, *given: Any) -> Any:
            nonlocal left
            done = attempt(columns, *given)
            while left:
                left -= 1
                self.act(self.chance.choice((*ROW_KINDS * 2, *BESIDE_KINDS)))
                self.tally["beside a change of columns"] += 1
            return done

        change, after = self.chosen(kind, name)
        found = ""
        with mock.patch.object(NewColumns, "attempt", beaten):
            try:
                kept = change()
            except OSError as error:  # Lance's, of a null that is there or that came meanwhile
                found = str(error)
        if kind == "cast" and name in self.strict and "unmasked nulls" in found:
            # Lance casts dead rows, too, whose nulls were no obstacle before. Plain pylance fails
            # in the same way, until a compaction takes these rows away.
            self.tally["dead nulls can't be cast"] += 1
            return
        if found:
            assert kind == "forbid nulls", found
            assert "NULL" in found
            assert any(row[name] is None for row in self.rows.values())
            self.tally["nulls were found"] += 1
            return
        self.tally[f"{kind} after {len(kept.refusals)} refusals"] += 1
        # An index that came meanwhile is in the way once: it is there at the next try.
        assert len(kept.refusals) <= 1, kept.refusals
        after()

    def chosen(self, kind: str, name: str) -> tuple[Callable[[], Any], Callable[[], None]]:
        """Return a change of a column, and what it does to the model once it has landed."""
        log, table = self.log, self.table
        if kind == "add":
            factor = self.chance.randint(2, 9)

            def added() -> None:
                self.types[name] = pa.int64()
                for row in self.rows.values():
                    row[name] = None if row["n"] is None else row["n"] * factor

            return lambda: log.add_columns(table, {name: f"n * {factor}"}), added
        if kind == "cast":
            wanted = self.chance.choice(TYPES)

            def cast() -> None:
                values = pa.array([row[name] for row in self.rows.values()], self.types[name])
                for row, value in zip(self.rows.values(), values.cast(wanted), strict=True):
                    row[name] = value.as_py()
                self.types[name] = wanted

            to: Any = {"path": name, "data_type": wanted}
            return lambda: log.alter_columns(table, to), cast
        if kind == "rename":
            new = self.new_name()

            def renamed() -> None:
                self.types = {new if n == name else n: kind for n, kind in self.types.items()}
                self.strict = {new if n == name else n for n in self.strict}
                for row in self.rows.values():
                    row[new] = row.pop(name)

            to = {"path": name, "name": new}
            return lambda: log.alter_columns(table, to), renamed
        if kind == "drop":

            def dropped() -> None:
                del self.types[name]
                self.strict.discard(name)
                for row in self.rows.values():
                    del row[name]

            return lambda: log.drop_columns(table, [name]), dropped
        is_strict = kind == "forbid nulls"

        def altered() -> None:
            assert not is_strict or all(row[name] is not None for row in self.rows.values())
            (self.strict.add if is_strict else self.strict.discard)(name)

        to = {"path": name, "nullable": not is_strict}
        return lambda: log.alter_columns(table, to), altered

    def new_name(self) -> str:
        """Return a column's name that wasn't given yet."""
        self.named += 1
        return f"c{self.named}"

    def new_row(self, number: int) -> dict[str, Any]:
        """Return a row with a value in each column, or none where there need not be one."""
        row: dict[str, Any] = {"id": number, "n": self.chance.randint(0, 99)}
        for name, kind in self.types.items():
            if name != "n":
                value = pa.scalar(self.chance.randint(0, 99)).cast(kind).as_py()
                is_null = name not in self.strict and self.chance.random() < 0.2
                row[name] = None if is_null else value
        return row

    def as_table(self, new: list[dict[str, Any]]) -> pa.Table:
        """Return rows with the table's schema."""
        return pa.Table.from_pylist(new, schema=self.schema())

    def schema(self) -> pa.Schema:
        """Return the schema that the table should have."""
        fields = [pa.field(n, t, n not in self.strict) for n, t in self.types.items()]
        return pa.schema([pa.field("id", pa.int64()), *fields])

    def picked(self) -> list[int]:
        """Choose a few rows."""
        held = sorted(self.rows)
        return self.chance.sample(held, min(len(held), self.chance.randint(1, 3)))

    def compare(self, kind: str) -> None:
        """See that plain pylance reads what the model holds, by a scan and by an index."""
        dataset = lance.dataset(self.made.location(self.table))
        found = dataset.schema
        assert {f.name: (f.type, f.nullable) for f in found} == {
            f.name: (f.type, f.nullable) for f in self.schema()
        }, kind
        rows = {row["id"]: row for row in dataset.to_table().to_pylist()}
        assert rows == self.rows, kind
        assert dataset.count_rows() == len(rows), kind
        for number in list(rows)[:2]:
            assert dataset.to_table(filter=f"id = {number}").to_pylist() == [rows[number]], kind
        self.tally["compared"] += 1


def among(numbers: list[int]) -> str:
    """Return the predicate of rows."""
    return f"id in ({', '.join(map(str, numbers))})" if numbers else "false"


def run(seconds: float, seed: int, report: Callable[[str], None]) -> Counter[str]:
    """Live through one history per seed until the time is over; a few share a log."""
    deadline = time.monotonic() + seconds
    tally: Counter[str] = Counter()
    while time.monotonic() < deadline:
        with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as made:
            for number in range(seed, seed + BATCH):
                try:
                    ColumnHistory(made, number, tally).live()
                except BaseException as error:
                    report(f"seed {number}: {error!r}")
                    raise
            verdict = verify(made.log, 0, VerifyOptions(root=made.root, contents=True))
            assert verdict.problems == [], f"seeds {seed} to {number}: {verdict.problems}"
        seed += BATCH
        tally["histories"] += BATCH
        report(f"to seed {seed - 1}: {tally['histories']} histories, {tally['compared']} steps")
    return tally


if __name__ == "__main__":
    sys.exit(command("python -m tests.histories.columns", run))
