"""Every macro answers what a plain recomputation from the log answers."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from commitlog.core.log.replica import Decided
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.operations import LanceCommit, target
from commitlog.model.records import Status, Transaction
from commitlog.model.table import format_table_id
from consumers import history
from consumers.views.version_index import VersionIndex
from consumers.views.version_index.rows import no_recordings
from tests.fakes.log_stream import PartitionLog, Truth, batches
from tests.unit.test_version_index_store import position_after

pytestmark = pytest.mark.usefixtures("empty_index")

Row = dict[str, Any]
Image = tuple[int, int, int, tuple[str, ...], str | None]
"""Physical rows, deleted rows, bytes, files, deletion file."""


@dataclass
class Life:
    """A life of a table: its versions with what made them, and what is in them."""

    incarnation: str
    name: str
    versions: dict[int, Decided] = field(default_factory=dict)
    states: dict[int, dict[int, Image]] = field(default_factory=dict)
    truths: dict[int, Truth] = field(default_factory=dict)

    @property
    def is_registered(self) -> bool:
        """Whether its first versions were made before it came to the log."""
        return min(self.versions) > 1

    @property
    def head(self) -> int:
        return max(self.versions)

    def events(self, version: int) -> dict[int, str]:
        """Return what became of fragments in a version."""
        before, after = self.states.get(version - 1, {}), self.states[version]
        changes = {one: "removed" for one in before if one not in after}
        for one, image in after.items():
            if before.get(one) != image:
                changes[one] = "changed" if one in before else "added"
        return changes


def image(fragment_id: int, fragment: DataFragment) -> Image:
    deleted = fragment.deletion_file.num_deleted_rows
    path = deletion_file_path(fragment_id, fragment.deletion_file) if deleted else None
    size = sum(one.file_size_bytes for one in fragment.files)
    files = tuple(one.path for one in fragment.files)
    return fragment.physical_rows, deleted, size, files, path


def lives_of(log: PartitionLog) -> list[Life]:
    """Return the lives that stand at the end."""
    lives: dict[str, Life] = {}
    standing: dict[str, str] = {}
    for one in log.decided():
        record, outcome = one.submitted.record, one.outcome
        if not isinstance(record, Transaction) or outcome.status is not Status.COMMITTED:
            continue
        results = outcome.results if outcome.answers is None else ()
        for operation, result in zip(record.operations, results, strict=False):
            name = format_table_id(target(operation))
            if result.operation == "DropTable":
                del standing[name]
            elif result.operation == "RenameTable":
                new = format_table_id(operation.new_table)  # type: ignore[union-attr]
                standing[new] = standing.pop(name)
            elif result.version:
                life = lives.setdefault(result.incarnation, Life(result.incarnation, name))
                standing[name] = life.incarnation
                truth = log.truth[life.incarnation, result.version]
                life.versions[result.version] = one
                life.truths[result.version] = truth
                life.states[result.version] = {
                    number: image(number, made) for number, made in truth.fragments.items()
                }
    for name, incarnation in standing.items():
        lives[incarnation].name = name
    return [lives[incarnation] for incarnation in standing.values()]


Ask = Callable[..., list[Row]]


def check_states(ask: Ask, life: Life, version: int) -> None:
    state = life.states[version]
    rows = ask("FROM fragments_at(?, ?)", [life.name, version])
    assert {
        row["fragment_id"]: (
            row["physical_rows"],
            row["deleted_rows"],
            row["bytes"],
            tuple(row["files"]),
            row["deletion_file"],
        )
        for row in rows
    } == state
    expected = {f"data/{path}" for one in state.values() for path in one[3]}
    expected |= {one[4] for one in state.values() if one[4]}
    files = ask("FROM files_at(?, ?)", [life.name, version])
    assert {row["path"] for row in files} == expected
    assert sorted(row["path"] for row in files) == sorted(expected)
    fields = [row["name"] for row in ask("FROM schema_at(?, ?)", [life.name, version])]
    # What a registered table had before it was registered is not in this log.
    assert fields in ([*life.truths[version].fields], [] if life.is_registered else None)
    (made,) = ask("FROM table_at(?, ?)", [life.name, version])
    outcome = life.versions[version].outcome
    assert (made["sequence"], made["incarnation"]) == (outcome.sequence, life.incarnation)


def check_ranges(ask: Ask, life: Life) -> None:
    """The views give each fragment and file with the versions that have it."""
    for view, thing in (("fragments", None), ("data_files", 3), ("deletion_files", 4)):
        rows = ask(f"FROM {view} WHERE incarnation = ?", [life.incarnation])
        for version, state in life.states.items():
            found = [
                (row["fragment_id"], row.get("path"))
                for row in rows
                if row["first_version"] <= version
                and (row["last_version"] is None or version <= row["last_version"])
            ]
            expected: list[tuple[int, str | None]] = [(one, None) for one in state]
            if thing == 3:
                expected = [(one, path) for one, there in state.items() for path in there[3]]
            elif thing == 4:
                expected = [(one, there[4]) for one, there in state.items() if there[4]]
            assert sorted(found, key=str) == sorted(expected, key=str)


def check_difference(ask: Ask, life: Life, before: int, after: int) -> None:
    old, new = life.states[before], life.states[after]
    expected = {}
    for one in {*old, *new}:
        if old.get(one) != new.get(one):
            change = "added" if one not in old else "removed" if one not in new else "changed"
            sizes = [s[one][0] - s[one][1] if one in s else None for s in (old, new)]
            files = [set(s[one][3]) if one in s else set() for s in (old, new)]
            expected[one] = (change, *sizes, files[1] - files[0], files[0] - files[1])
    rows = ask("FROM diff(?, ?, ?)", [life.name, before, after])
    assert {
        row["fragment_id"]: (
            row["change"],
            row["rows_before"],
            row["rows_after"],
            set(row["files_added"] or ()),
            set(row["files_removed"] or ()),
        )
        for row in rows
    } == expected
    low, high = sorted((before, after))
    steps = [
        (version, one, change)
        for version in range(low + 1, high + 1)
        for one, change in sorted(life.events(version).items())
    ]
    rows = ask("FROM changes(?, ?, ?)", [life.name, low, high])
    assert [(row["version"], row["fragment_id"], row["change"]) for row in rows] == steps
    for row in rows:
        made = life.versions[row["version"]]
        assert row["transaction_id"] == made.outcome.transaction_id
        assert row["principal"] == made.submitted.record.principal  # type: ignore[union-attr]


def check_blame(ask: Ask, life: Life) -> None:
    made: dict[int, int] = {}
    changed: dict[int, int] = {}
    events = defaultdict(list)
    for version in life.versions:
        for one, change in life.events(version).items():
            events[one].append((version, change))
            changed[one] = version
            if change == "added":
                made[one] = version
    rows = ask("FROM blame(?)", [life.name])
    head = life.states[life.head]
    found = {row["fragment_id"]: (row["made_in"], row["changed_in"]) for row in rows}
    assert found == {one: (made[one], changed[one]) for one in head}
    for row in rows:
        writer = life.versions[row["made_in"]].submitted.record
        assert row["made_by"] == writer.principal  # type: ignore[union-attr]
    for one in [*events][:4]:
        rows = ask("FROM blame_of(?, ?)", [life.name, one])
        assert [(row["version"], row["change"]) for row in rows] == events[one]
    for one, there in [*head.items()][:2]:
        rows = ask("FROM blame_of(?, ?)", [life.name, there[3][0]])
        assert [(r["version"], r["change"]) for r in rows if r["fragment_id"] == one] == events[one]


def ancestors(life: Life, fragment: int) -> set[int]:
    origins: dict[int, list[int]] = {}
    for version in life.versions:
        origins |= life.truths[version].origins
    found, left = set(), [fragment]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += origins.get(one, [])
    return found


def check_totals(ask: Ask, life: Life) -> None:
    def totals(state: dict[int, Image]) -> tuple[int, int, int, int]:
        rows = sum(one[0] - one[1] for one in state.values())
        files = sum(len(one[3]) for one in state.values())
        return rows, len(state), files, sum(one[2] for one in state.values())

    grown = {one: totals(life.states[one]) for one in life.versions if life.events(one)}
    rows = ask("FROM growth(?, points := 100000)", [life.name])
    assert {
        r["version"]: (r["rows"], r["fragments"], r["files"], r["bytes"]) for r in rows
    } == grown
    few = ask("FROM growth(?, points := 3)", [life.name])
    assert len(few) == min(3, len(grown))
    assert [row for row in rows if row in few] == few
    assert few[-1:] == rows[-1:]
    head = life.states[life.head]
    small = ask("FROM small_files(?, rows_max := 50)", [life.name])
    expected = sorted((i[0] - i[1], one) for one, i in head.items() if i[0] - i[1] < 50)
    assert [(row["rows"], row["fragment_id"]) for row in small] == expected
    for one in [*head][-3:]:
        rows = ask("FROM lineage(?, ?, steps := 1000)", [life.name, one])
        assert {row["fragment_id"] for row in rows} == ancestors(life, one)


def check_removable(ask: Ask, life: Life, version: int) -> None:
    def needed(versions: Iterator[int]) -> set[str]:
        images = [one for v in versions for one in life.states[v].values()]
        data = {f"data/{path}" for one in images for path in one[3]}
        return data | {one[4] for one in images if one[4]}

    moment = datetime.fromtimestamp(life.versions[version].outcome.time_ms / 1000, UTC)
    naive = moment.replace(tzinfo=None)
    head = max(v for v, made in life.versions.items()
               if made.outcome.time_ms <= life.versions[version].outcome.time_ms)  # fmt: skip
    old = needed(v for v in life.versions if v < head)
    kept = needed(v for v in life.versions if v >= head)
    rows = ask("FROM removable_before(?, ?)", [life.name, naive])
    assert {row["path"] for row in rows} == old - kept
    (at,) = ask("FROM table_at_time(?, ?)", [life.name, naive])
    assert at["version"] == head


def check_schemas(ask: Ask, life: Life) -> None:
    steps: list[tuple[int, tuple[str, ...]]] = []
    for version, truth in life.truths.items():
        if not steps or steps[-1][1] != truth.fields:
            steps.append((version, truth.fields))
    rows = ask("FROM schemas WHERE incarnation = ?", [life.incarnation])
    found = [(r["first_version"], tuple(f.split(" ")[0] for f in r["fields"])) for r in rows]
    if not life.is_registered:
        assert found == steps
    assert [one for one, _ in found][1:] == [r["last_version"] + 1 for r in rows[:-1]]
    expected = []
    fields_before: tuple[str, ...] = ()
    for version, fields in found:
        names = {*fields} ^ {*fields_before}
        expected += [(version, n, "added" if n in fields else "removed") for n in sorted(names)]
        fields_before = fields
    rows = ask("FROM schema_changes WHERE incarnation = ?", [life.incarnation])
    changes = [(r["version"], r["new_name"] or r["old_name"], r["change"]) for r in rows]
    assert sorted(changes) == sorted(expected)
    indices = ask("FROM indices WHERE incarnation = ?", [life.incarnation])
    assert [row["name"] for row in indices] == sorted(life.truths[life.head].indices)


def check_losses(ask: Ask, decided: list[Decided]) -> None:
    refused_ids = [
        o.outcome.transaction_id for o in decided if o.outcome.status is not Status.COMMITTED
    ]
    assert [r["transaction_id"] for r in ask("FROM refusals", [])] == refused_ids[::-1]
    writers = {one.outcome.sequence: one.submitted.principal for one in decided}
    first = {}
    for one in decided:
        if one.outcome.status is Status.COMMITTED and one.outcome.answers is None:
            first[one.outcome.transaction_id] = one.outcome.sequence
    rivals: Counter[tuple[str, str, str, str]] = Counter()
    for one in decided:
        if conflict := one.outcome.conflict:
            winner = writers[first[conflict.transaction_id]]
            table = format_table_id(conflict.table)
            rivals[table, writers[one.outcome.sequence], winner, conflict.rule] += 1
    names = ("table_name", "principal", "winner_principal", "rule")
    found_rivals = {tuple(r[n] for n in names): r["conflicts"] for r in ask("FROM rivals", [])}
    assert found_rivals == dict(rivals)
    latest = ask("FROM latest_conflicts(n := 7)", [])
    met = [one.outcome.sequence for one in decided if one.outcome.conflict]
    assert [row["sequence"] for row in latest] == met[::-1][:7]


def check_transactions(ask: Ask, log: PartitionLog) -> None:
    decided = log.decided()
    times: dict[str, list[int]] = defaultdict(list)
    conflicts = {}
    for one in decided:
        times[one.outcome.transaction_id].append(one.outcome.sequence)
        if one.outcome.conflict:
            conflicts[one.outcome.transaction_id] = one.outcome.conflict.transaction_id
    retried = {row["transaction_id"]: row["times"] for row in ask("FROM retries", [])}
    assert retried == {one: len(seen) for one, seen in times.items() if len(seen) > 1}
    for loser in [*conflicts][:5]:
        chain, expected = loser, []
        while chain in conflicts:
            expected.append((chain, conflicts[chain]))
            chain = conflicts[chain]
        rows = ask("FROM conflict_chain(?)", [loser])
        found = [(row["transaction_id"], row["winner_transaction_id"]) for row in rows]
        assert found == expected
    streams = [one.submitted.record for one in decided]
    numbered = [r for r in streams if isinstance(r, Transaction) and r.application]
    assert len(ask("FROM batches", [])) == len(numbered)
    committed = {
        file.path
        for truth in log.truth.values()
        for fragment in truth.fragments.values()
        for file in fragment.files
    }
    refused = {
        path
        for one in decided
        if one.outcome.status is not Status.COMMITTED
        for operation in one.submitted.operations
        if isinstance(operation, LanceCommit)
        for path in operation.summary.data_files
    }
    assert {row["path"] for row in ask("FROM orphans", [])} == refused - committed
    assert [row["lag"] for row in ask("FROM lag", [])] == [0]
    assert [row["sequence"] for row in ask("FROM index_status", [])] == [len(decided)]
    for identifier, seen in [*times.items()][:5]:
        rows = ask("FROM transaction_of(?)", [identifier])
        assert [row["sequence"] for row in rows] == seen
        rows = ask("FROM operations_of(?)", [identifier])
        assert [row["sequence"] for row in rows] == [
            number for number in seen for _ in decided[number - 1].submitted.operations
        ]
    made = sum(
        bool(result.version)
        for one in decided
        if one.outcome.answers is None
        for result in one.outcome.results
    )
    assert len(ask("FROM versions", [])) == made
    for one in decided[:: max(1, len(decided) // 5)]:
        (row,) = ask("FROM transaction_at(?)", [one.outcome.sequence])
        assert row["transaction_id"] == one.outcome.transaction_id
    newest = {row["table_name"]: row["version"] for row in ask("FROM heads_at_time(now())", [])}
    assert newest == {life.name: life.head for life in lives_of(log)}


@pytest.mark.slow
# Each example builds an index: one that fails is shown as it is.
@settings(max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    seed=st.integers(0, 2**20),
    count=st.integers(20, 400),
    batch=st.integers(1, 90),
    hot=st.sampled_from([30, 10_000]),
)
def test_macros_answer_what_the_log_says(seed: int, count: int, batch: int, hot: int) -> None:
    log = PartitionLog(seed=seed)
    log.grow(count)
    with tempfile.TemporaryDirectory() as folder:
        with VersionIndex(folder, hot_transactions_max=hot) as index:
            for some in batches(log.decided(), batch):
                index.apply(some, position_after(some), recordings=no_recordings)
            index.settle()
            index.publish()
        with history.connect(Path(folder)) as connection:
            ask: Ask = partial(history.ask, connection)
            for life in lives_of(log)[:4]:
                versions = [*life.versions]
                middle = versions[len(versions) // 2]
                for version in {versions[0], middle, life.head}:
                    check_states(ask, life, version)
                for before, after in ((versions[0], life.head), (life.head, middle)):
                    check_difference(ask, life, before, after)
                check_ranges(ask, life)
                check_blame(ask, life)
                check_totals(ask, life)
                check_removable(ask, life, middle)
                check_schemas(ask, life)
            check_transactions(ask, log)
            check_losses(ask, log.decided())
