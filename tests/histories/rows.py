"""Random histories of rows: partial upserts, blobs and nested columns, beside plain pylance.

`python -m tests.histories.rows --seconds 1800 --seed 1` lives through one history per seed. Each
step is done twice: behind the log, by a path chosen at random, and by pylance alone on a twin of
the table. Both must hold the same rows after it. In a race two operations read one version; the
second is done on the twin if the log commits it.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.merging import MergeOptions, prepare_merge
from commitlog.client.rows.row_keys import KnownKeys
from commitlog.client.rows.rows import Prepared, prepare_delete
from commitlog.client.rows.updating import prepare_update
from commitlog.model.records import Status
from tests.histories.command import command
from tests.namespace_world import World

STEPS = 25
ANSWER_SECONDS = 600.0
POINT = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("n", pa.int32()),
        pa.field("point", POINT),
        pa.field("tags", pa.list_(pa.string())),
        lance.blob_field("b"),
    ]
)
KINDS = ("append", "delete", "update", *["upsert"] * 3, "compact", "index", *["race"] * 2)
PATHS = ("client", "transact", "native", "http")
UPDATES = ("n", "n + 1"), ("name", "'changed'"), ("point", "named_struct('x', 5, 'y', 'q')")


@dataclass(frozen=True)
class Act:
    """One operation on rows, to be done by any path."""

    kind: str
    ids: tuple[int, ...]
    rows: pa.Table | None = None
    value: tuple[str, str] = ("", "")

    @property
    def where(self) -> str:
        """Return the predicate of its rows."""
        return f"id in ({', '.join(map(str, self.ids))})" if self.ids else "false"

    def by_pylance(self, dataset: lance.LanceDataset) -> None:
        """Do it natively."""
        if self.kind == "append":
            lance.write_dataset(self.rows, dataset, mode="append")
        elif self.kind == "delete":
            dataset.delete(self.where)
        elif self.kind == "update":
            dataset.update(dict([self.value]), self.where)
        else:
            assert self.rows is not None
            builder = dataset.merge_insert("id").when_matched_update_all()
            # An index that covers some rows makes pylance panic if a struct lacks fields.
            whole = "point" not in self.rows.schema.names or self.rows.field("point").type == POINT
            builder.use_index(whole).when_not_matched_insert_all().execute(self.rows)

    def by_client(self, target: Any, table: str) -> Any:
        """Do it on a client, or on what `transact` gives."""
        if self.kind == "append":
            return target.append(table, self.rows)
        if self.kind == "delete":
            return target.delete(table, self.where)
        if self.kind == "update":
            return target.update(table, dict([self.value]), self.where)
        return target.merge_insert(table, self.rows, "id")

    def by_http(self, world: World, table: str) -> None:
        """Do it by a request."""
        place = f"/v1/table/{table}"
        if self.kind in ("append", "upsert"):
            options = "on=id&when_matched_update_all=true&when_not_matched_insert_all=true"
            asked = "insert" if self.kind == "append" else f"merge_insert?{options}"
            answer = world.rows(f"{place}/{asked}", self.rows)
        elif self.kind == "delete":
            answer = world.post(f"{place}/delete", {"predicate": self.where})
        else:
            body = {"predicate": self.where, "updates": [list(self.value)]}
            answer = world.post(f"{place}/update", body)
        assert answer[0] == 200, answer

    def prepared(self, info: TableInfo, dataset: lance.LanceDataset) -> Prepared:
        """Write its files as of a version."""
        if self.kind == "delete":
            return prepare_delete(info, dataset, self.where)
        if self.kind == "update":
            return prepare_update(info, dataset, dict([self.value]), self.where)
        assert self.rows is not None
        return prepare_merge(info, dataset, self.rows, ["id"], MergeOptions())


class RowHistory:
    """One table and its twin."""

    def __init__(self, world: World, where: Path, seed: int, tally: Counter[str]) -> None:
        """Make both, of a random kind."""
        self.world, self.tally = world, tally
        self.chance = random.Random(seed)
        self.table = f"rows$s{seed}_{world.fresh_name()}"
        self.plain = str(where / f"plain-{seed}")
        stable = self.chance.random() < 0.5
        key = "id" if self.chance.random() < 0.5 else None
        world.log.create_table(self.table, SCHEMA, stable_row_ids=stable, primary_key=key)
        nothing = pa.Table.from_batches([], schema=SCHEMA)
        lance.write_dataset(nothing, self.plain, enable_stable_row_ids=stable)
        world.log.opened.keys = KnownKeys(searches_first=self.chance.choice([0, 3]))
        self.next_id = 100
        self.mark = 0

    def live(self, steps: int = STEPS) -> None:
        """Do so many steps."""
        for _ in range(steps):
            kind = self.chance.choice(KINDS)
            getattr(self, kind, self.act)(kind)
            self.compare()

    def act(self, kind: str) -> None:
        """Do one operation by any path."""
        act = self.chosen(kind)
        path = self.chance.choice(PATHS)
        self.tally[f"{kind} by {path}"] += 1
        if path == "client":
            act.by_client(self.world.log, self.table).raise_for_conflict()
        elif path == "transact":
            with self.world.log.transact() as t:
                act.by_client(t, self.table)
        elif path == "native":
            act.by_pylance(self.world.log.open(self.table))
        else:
            act.by_http(self.world, self.table)
        act.by_pylance(lance.dataset(self.plain))

    def race(self, _: str) -> None:
        """Have two operations read one version."""
        log = self.world.log
        info = log.table(self.table)
        dataset = lance.dataset(info.location, version=info.version)
        acts = [self.chosen(self.chance.choice(("delete", "update", "upsert"))) for _ in range(2)]
        both = [(act, act.prepared(info, dataset)) for act in acts]
        for number, (act, prepared) in enumerate(both):
            outcome = log.submit(
                self.table,
                prepared.operation,
                read_version=prepared.read_version,
                affected_rows=prepared.affected,
                inserted_keys=prepared.keys,
            ).result(ANSWER_SECONDS)
            self.tally[f"race {number}: {outcome.status}"] += 1
            if outcome.status is Status.COMMITTED:
                act.by_pylance(lance.dataset(self.plain))
            else:
                assert number == 1, outcome.message
                assert outcome.status in (Status.RETRYABLE, Status.INCOMPATIBLE), outcome.message

    def compact(self, _: str) -> None:
        """Compact both."""
        for dataset in self.both():
            dataset.optimize.compact_files()

    def index(self, _: str) -> None:
        """Index the key of both, so that partial upserts patch columns."""
        for dataset in self.both():
            dataset.create_scalar_index("id", "BTREE", replace=True)

    def both(self) -> tuple[lance.LanceDataset, lance.LanceDataset]:
        """Open the table and its twin."""
        return self.world.log.open(self.table), lance.dataset(self.plain)

    def chosen(self, kind: str) -> Act:
        """Choose an operation's rows."""
        held = lance.dataset(self.plain).to_table(columns=["id"])["id"].to_pylist()
        ids = self.chance.sample(held, min(len(held), self.chance.randint(1, 4)))
        if kind == "delete":
            return Act(kind, tuple(ids))
        if kind == "update":
            return Act(kind, tuple(ids), value=self.chance.choice(UPDATES))
        new = list(range(self.next_id, self.next_id + self.chance.randint(1, 3)))
        self.next_id += len(new)
        used = new if kind == "append" else [*ids, *new]
        return Act(kind, tuple(used), self.rows(used))

    def rows(self, ids: list[int]) -> pa.Table:
        """Return rows with some of the columns, and some of a struct's fields."""
        self.mark += 1
        chance, mark = self.chance, self.mark
        blobs = [chance.choice([None, b"", bytes([mark % 250, i % 250]) * 9]) for i in ids]
        if chance.random() < 0.1:
            blobs[0] = bytes([mark % 250]) * 100_000
        points = [{"x": mark, "y": str(i)} if chance.random() < 0.8 else None for i in ids]
        columns = {
            "id": pa.array(ids, pa.int64()),
            "name": pa.array([f"{mark}-{i}" for i in ids]),
            "n": pa.array([mark] * len(ids), pa.int32()),
            "point": pa.array(points, POINT),
            "tags": pa.array([[str(mark)] * (i % 3) for i in ids], pa.list_(pa.string())),
            "b": lance.blob_array(blobs),
        }
        names = [name for name in SCHEMA.names if name == "id" or chance.random() < 0.6]
        if "point" in names and "b" not in names and chance.random() < 0.3:
            columns["point"] = pa.array([{"x": mark}] * len(ids), pa.struct([("x", pa.int32())]))
        return pa.table({name: columns[name] for name in names})

    def compare(self) -> None:
        """See that both hold the same rows."""
        ours, plain = self.both()
        assert ours.schema.equals(plain.schema)
        found, expected = (
            dataset.scanner(blob_handling="all_binary").to_table().sort_by("id").to_pylist()
            for dataset in (ours, plain)
        )
        assert found == expected, [
            (a, b) for a, b in zip(found, expected, strict=False) if a != b
        ] or (len(found), len(expected))
        self.tally["compared"] += 1


def run(seconds: float, seed: int, report: Callable[[str], None]) -> Counter[str]:
    """Live through one history per seed until the time is over."""
    deadline = time.monotonic() + seconds
    tally: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        try:
            while time.monotonic() < deadline:
                try:
                    RowHistory(world, Path(folder), seed, tally).live()
                except Exception as error:
                    report(f"seed {seed}: {error!r}")
                    raise
                seed += 1
                tally["histories"] += 1
                report(
                    f"to seed {seed - 1}: {tally['histories']} histories, {tally['compared']} steps"
                )
        finally:
            world.close()
    return tally


if __name__ == "__main__":
    sys.exit(command("python -m tests.histories.rows", run))
