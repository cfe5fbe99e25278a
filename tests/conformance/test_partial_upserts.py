"""Upserts whose source lacks columns, beside plain pylance: equal rows, ids, schema, refusals."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from commitlog import CommitLog, InvalidTransaction
from tests.service import Service, service

POINT = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.int32())])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("n", pa.int32()),
        pa.field("point", POINT),
        pa.field("v", pa.list_(pa.float32(), 2)),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
FIRST = range(8)


@dataclass(frozen=True)
class Case:
    """What is asked of both."""

    matched: str = "update"
    insert: bool = True
    by_source: str | None = None
    """None: nothing is deleted; empty: all that has no match."""
    names: tuple[str, ...] = ("id", "n")
    nested: bool = False
    """Whether structs lack a field."""

    def options(self) -> dict[str, Any]:
        """Return the options of `CommitLog.merge_insert`."""
        return {
            "when_matched_update_all": self.matched in ("update", "update_if"),
            "when_matched_update_all_filt": "target.n < 25"
            if self.matched == "update_if"
            else None,
            "when_matched_delete": self.matched == "delete",
            "when_matched_fail": self.matched == "fail",
            "when_not_matched_insert_all": self.insert,
            "when_not_matched_by_source_delete": self.by_source is not None,
            "when_not_matched_by_source_delete_filt": self.by_source or None,
        }

    def asked_of(self, dataset: lance.LanceDataset) -> Any:
        """Return the same as pylance is asked for it."""
        builder = dataset.merge_insert("id")
        if self.matched.startswith("update"):
            condition = "target.n < 25" if self.matched == "update_if" else None
            builder = builder.when_matched_update_all(condition)
        elif self.matched == "delete":
            builder = builder.when_matched_delete()
        elif self.matched == "fail":
            builder = builder.when_matched_fail()
        if self.insert:
            builder = builder.when_not_matched_insert_all()
        if self.by_source is not None:
            builder = builder.when_not_matched_by_source_delete(self.by_source or None)
        return builder


@dataclass
class Both:
    """One table twice: behind the log, and pylance's alone."""

    client: CommitLog
    table: str
    plain: str
    stable_row_ids: bool
    refused: int = field(default=0)
    ids: list[int] = field(default_factory=list)
    """Of the rows that both have."""

    def merge(self, case: Case, source: pa.Table) -> None:
        """Ask both, and compare."""
        theirs: Any = None
        try:
            theirs = case.asked_of(lance.dataset(self.plain)).execute(source)
        except (OSError, ValueError) as error:
            theirs = error
        if isinstance(theirs, Exception):
            with pytest.raises(InvalidTransaction):
                self.client.merge_insert(self.table, source, "id", **case.options())
            self.refused += 1
        else:
            outcome = self.client.merge_insert(self.table, source, "id", **case.options())
            outcome.raise_for_conflict()
        self.compare()

    def compare(self) -> None:
        """See that both hold the same."""
        plain, ours = lance.dataset(self.plain), self.client.open(self.table)
        assert ours.schema.equals(plain.schema)
        ours.validate()  # type: ignore[no-untyped-call]
        found = [
            dataset.scanner(with_row_id=self.stable_row_ids).to_table().sort_by("id")
            for dataset in (ours, plain)
        ]
        assert found[0].to_pylist() == found[1].to_pylist()
        self.ids = found[0]["id"].to_pylist()


def rows_of(ids: Any, mark: int, case: Case | None = None) -> pa.Table:
    """Return rows that differ from those of another mark, with a case's columns."""
    table = pa.table(
        {
            "id": list(ids),
            "name": [f"{mark}-{i}" for i in ids],
            "n": [mark * 10 + i for i in ids],
            "point": [{"x": mark, "y": i} if (mark + i) % 3 else None for i in ids],
            "v": [[mark, i] for i in ids],
            "tags": [[str(mark)] * (i % 3) for i in ids],
        },
        schema=SCHEMA,
    )
    if case is None:
        return table
    if case.nested and "point" in case.names:
        whole = pa.array([{"x": mark} for _ in ids], pa.struct([("x", pa.int32())]))
        table = table.set_column(3, "point", whole)
    return table.select(list(case.names))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("partial")) as made:
        yield made


def both(
    shared: Service, where: Path, *, stable: bool, declared: bool, indexed: bool = False
) -> Both:
    """Make a table of three fragments twice."""
    name = f"p${where.name}"
    key = "id" if declared else None
    shared.client.create_table(name, SCHEMA, stable_row_ids=stable, primary_key=key)
    schema = shared.client.open(name).schema
    plain = str(where / "plain")
    lance.write_dataset(schema.empty_table(), plain, enable_stable_row_ids=stable)
    for part in (FIRST[:3], FIRST[3:6], FIRST[6:]):
        data = rows_of(part, 1).cast(schema)
        shared.client.append(name, data)
        lance.write_dataset(data, plain, mode="append")
    if indexed:
        for dataset in (shared.client.open(name), lance.dataset(plain)):
            dataset.create_scalar_index("id", "BTREE")
    made = Both(shared.client, name, plain, stable)
    made.compare()
    return made


MATCHED = ("update", "update_if", "delete", "fail", "nothing")
COLUMNS = (("id", "n"), ("id",), ("n", "id", "tags", "v"), ("id", "name", "n", "point"))


@pytest.mark.parametrize("indexed", [False, True], ids=["", "indexed"])
@pytest.mark.parametrize("declared", [False, True], ids=["undeclared", "declared"])
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_every_option_does_what_pylance_does(
    shared: Service, tmp_path: Path, stable: bool, declared: bool, indexed: bool
) -> None:
    made = both(shared, tmp_path, stable=stable, declared=declared, indexed=indexed)
    fresh = 100
    for mark, choice in enumerate(product(MATCHED, (True, False), (None, "n < 15"), COLUMNS), 2):
        matched, insert, by_source, names = choice
        if matched == "nothing" and not insert and by_source is None:
            continue
        # Each kind of table is asked for half of the choices, and each choice of half of the kinds:
        # any six of the seven values meet.
        chosen = MATCHED.index(matched), insert, by_source is None, COLUMNS.index(names)
        if sum((*chosen, stable, declared, indexed)) % 2:
            continue
        case = Case(matched, insert, by_source, names)
        ids = [] if matched == "fail" and mark % 2 else made.ids[1::3]
        made.merge(case, rows_of([*ids, fresh, fresh + 1], mark % 5, case))
        fresh += 2
    assert made.refused


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("insert", [False, True], ids=["", "insert"])
@pytest.mark.parametrize("matched", ["update", "update_if", "delete", "nothing"])
def test_a_struct_that_lacks_fields_keeps_them(
    shared: Service, tmp_path: Path, matched: str, insert: bool, stable: bool
) -> None:
    made = both(shared, tmp_path, stable=stable, declared=False)
    for names in (("id", "point"), ("id", "point", "n")):
        case = Case(matched, insert or matched == "nothing", None, names, nested=True)
        made.merge(case, rows_of([1, 4, 50, 51], 3, case))


def test_columns_that_the_source_lacks_are_kept(shared: Service, tmp_path: Path) -> None:
    made = both(shared, tmp_path, stable=False, declared=True)
    made.client.merge_insert(made.table, {"id": [2, 9], "n": [99, 98]}, "id").raise_for_conflict()
    found = made.client.open(made.table).to_table(filter="id in (2, 9)").sort_by("id").to_pylist()
    before = rows_of([2], 1).to_pylist()[0]
    nothing = dict.fromkeys(SCHEMA.names)
    assert found == [before | {"n": 99}, nothing | {"id": 9, "n": 98}]


def test_new_rows_without_a_required_column_are_refused(shared: Service, tmp_path: Path) -> None:
    schema = SCHEMA.set(1, pa.field("name", pa.string(), nullable=False))
    shared.client.create_table("p$required", schema)
    shared.client.append("p$required", rows_of([1, 2], 1).cast(schema))
    part = {"id": [2, 9], "n": [99, 98]}
    with pytest.raises(InvalidTransaction, match="'name' of p\\$required may not be null and is"):
        shared.client.merge_insert("p$required", part, "id")
    with pytest.raises(InvalidTransaction, match="lacks the key column 'id'"):
        shared.client.merge_insert("p$required", {"n": [1]}, "id")
    outcome = shared.client.merge_insert(
        "p$required", part, "id", when_not_matched_insert_all=False
    )
    outcome.raise_for_conflict()
    found = shared.client.open("p$required").to_table(columns=["id", "name", "n"]).sort_by("id")
    assert found["name"].to_pylist() == ["1-1", "1-2"]
    assert found["n"].to_pylist() == [11, 99]
    # As pylance: by no rows, or where a struct lacks fields, it is missed by rows that are new.
    inner = pa.array([{"x": 7}, {"x": 8}], pa.struct([("x", pa.int32())]))
    lacking = pa.table({"id": pa.array([1, 9], pa.int64()), "point": inner})
    with pytest.raises(InvalidTransaction, match="'name' of p\\$required may not be null and is"):
        shared.client.merge_insert("p$required", lacking, "id")
    for rows in (lacking.slice(0, 1), lacking.slice(0, 0)):
        shared.client.merge_insert("p$required", rows, "id").raise_for_conflict()
    point = shared.client.open("p$required").to_table(filter="id = 1")["point"]
    assert point.to_pylist() == [{"x": 7, "y": 1}]


def test_many_tables_are_upserted_in_part_as_one_record(shared: Service, tmp_path: Path) -> None:
    made = both(shared, tmp_path, stable=False, declared=False)
    case = Case(names=("id", "tags"))
    source = rows_of([1, 77], 4, case)
    with made.client.transact() as t:
        t.merge_insert(made.table, source, "id")
    case.asked_of(lance.dataset(made.plain)).execute(source)
    made.compare()


@pytest.mark.parametrize("seed", range(3))
def test_random_upserts_in_part_leave_what_pylance_leaves(
    shared: Service, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    print(f"seed {seed}")
    made = both(shared, tmp_path, stable=seed % 2 == 1, declared=seed % 3 == 0, indexed=seed == 2)
    for mark in range(2, 14):
        others = [name for name in SCHEMA.names if name != "id"]
        names = ["id", *chance.sample(others, chance.randint(0, len(others)))]
        chance.shuffle(names)
        case = Case(
            chance.choice(MATCHED[:3]),
            chance.random() < 0.8,
            chance.choice([None, None, "id % 7 = 3"]),
            tuple(names),
            nested=chance.random() < 0.3,
        )
        made.merge(case, rows_of(chance.sample(range(20), chance.randint(1, 6)), mark, case))
