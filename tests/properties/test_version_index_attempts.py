"""The rest of the macros, also against plain recomputations; and that none is left out."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from commitlog.core.log.replica import Decided
from commitlog.model.operations import IcebergChange, target
from commitlog.model.records import Status, TableVersionIs
from commitlog.model.table import format_table_id
from consumers import history
from consumers.views.version_index import IndexPosition, VersionIndex
from consumers.views.version_index.rows import no_recordings
from consumers.views.version_index.surface import QUESTIONS
from tests.fakes.log_stream import PartitionLog, batches
from tests.properties import test_version_index_laws as laws
from tests.unit import test_index_counts as index_counts
from tests.unit import test_version_index_iceberg as iceberg
from tests.unit.test_version_index_store import asked_of, expected_heads, position_after

pytestmark = pytest.mark.usefixtures("empty_index")

Ask = laws.Ask


def check_history(ask: Ask, decided: list[Decided]) -> None:
    for name, (life, _) in expected_heads(decided).items():
        rows = ask("FROM history(?, n := 10000)", [name])
        found = [(row["sequence"], row["ordinal"], row["version"]) for row in rows]
        assert found == asked_of(name, life, decided)
        assert ask("FROM history(?, n := 3)", [name]) == rows[:3]
        kept = [row for row in rows if row["status"] == "committed"]
        assert ask("FROM history(?, n := 10000, refused := false)", [name]) == kept


def check_cuts(ask: Ask, decided: list[Decided]) -> None:
    for sequence in {1, len(decided) // 3, len(decided)}:
        rows = ask("FROM heads_at(?)", [sequence])
        found = {row["table_name"]: (row["incarnation"], row["version"]) for row in rows}
        assert found == expected_heads(decided[:sequence])
    for name, (incarnation, _) in expected_heads(decided).items():
        rows = ask("FROM life_of(?)", [name])
        assert [row["incarnation"] for row in rows] == [incarnation]


def check_attempts(ask: Ask, decided: list[Decided]) -> None:
    ids = [one.outcome.transaction_id for one in decided]
    assert [row["transaction_id"] for row in ask("FROM timeline", [])] == ids[::-1]
    rows = ask("FROM transactions ORDER BY sequence", [])
    assert [(row["transaction_id"], row["principal"]) for row in rows] == [
        (one.outcome.transaction_id, one.submitted.principal) for one in decided
    ]
    operations = Counter(
        (one.outcome.sequence, ordinal, format_table_id(target(operation)))
        for one in decided
        for ordinal, operation in enumerate(one.submitted.operations)
    )
    rows = ask("FROM operations", [])
    assert Counter((r["sequence"], r["ordinal"], r["table_name"]) for r in rows) == operations
    met = [one for one in decided if one.outcome.conflict]
    assert [row["sequence"] for row in ask("FROM collisions ORDER BY sequence", [])] == [
        one.outcome.sequence for one in met
    ]
    first = {
        one.outcome.transaction_id: one
        for one in decided
        if one.outcome.status is Status.COMMITTED and one.outcome.answers is None
    }
    rows = ask("FROM conflicts ORDER BY sequence DESC", [])
    expected = []
    for one in reversed(met):
        conflict = one.outcome.conflict
        assert conflict is not None
        winner = first[conflict.transaction_id]
        table = format_table_id(conflict.table)
        expected.append(
            (one.outcome.sequence, table, winner.submitted.principal, winner.outcome.sequence)
        )
    columns = ("sequence", "table_name", "winner_principal", "winner_sequence")
    assert [tuple(row[column] for column in columns) for row in rows] == expected
    for table in {row[1] for row in expected}:
        own = ask("FROM conflicts_of(?, n := 10000)", [table])
        assert own == [row for row in rows if row["table_name"] == table]


def check_writers(ask: Ask, decided: list[Decided]) -> None:
    statuses = ("retryable", "incompatible", "rejected", "superseded")
    names = ("transactions", "committed", *statuses, "repeated", "rebased")
    counts: dict[str, Counter[str]] = {}
    for one in decided:
        outcome, own = one.outcome, counts.setdefault(one.submitted.principal, Counter())
        own["transactions"] += 1
        own["repeated"] += outcome.answers is not None
        if outcome.status is not Status.COMMITTED:
            own[str(outcome.status)] += 1
        elif outcome.answers is None:
            own["committed"] += 1
            own["rebased"] += sum(result.rebased_over > 0 for result in outcome.results)
    found = {
        row["principal"]: {name: row[name] for name in names} for row in ask("FROM writers", [])
    }
    assert found == {one: {n: own[n] for n in names} for one, own in counts.items()}


def check_records(ask: Ask, decided: list[Decided]) -> None:
    expected = [
        (one.outcome.sequence, ordinal, format_table_id(expect.table), expect.version)
        for one in decided
        for ordinal, expect in enumerate(getattr(one.submitted.record, "expects", ()))
        if isinstance(expect, TableVersionIs)
    ]
    rows = ask("FROM expectations ORDER BY sequence, ordinal", [])
    columns = ("sequence", "ordinal", "table_name", "version")
    assert [tuple(row[column] for column in columns) for row in rows] == expected


@pytest.mark.slow
@settings(max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 2**20), count=st.integers(20, 300), batch=st.integers(1, 90))
def test_attempts_are_what_the_log_says(seed: int, count: int, batch: int) -> None:
    log = PartitionLog(seed=seed)
    log.grow(count)
    decided = log.decided()
    with tempfile.TemporaryDirectory() as folder:
        with VersionIndex(folder, hot_transactions_max=100) as index:
            for some in batches(decided, batch):
                index.apply(some, position_after(some), recordings=no_recordings)
            index.settle()
            index.publish()
        with history.connect(Path(folder)) as connection:
            ask: Ask = partial(history.ask, connection)
            check_history(ask, decided)
            check_cuts(ask, decided)
            check_attempts(ask, decided)
            check_writers(ask, decided)
            check_records(ask, decided)


_NAMES = st.sampled_from(["main", "a", "b"])
_REFS = st.lists(
    st.one_of(
        st.tuples(_NAMES, st.sampled_from(["tag", "branch"]), st.integers(1, 5)),
        st.tuples(_NAMES, st.none(), st.none()),
    ),
    min_size=1,
    max_size=12,
)


def ref_change(name: str, kind: str | None, snapshot_id: int | None) -> IcebergChange:
    if kind is None:
        update: dict[str, Any] = {"action": "remove-snapshot-ref", "ref-name": name}
    else:
        update = {"action": "set-snapshot-ref", "ref-name": name, "type": kind}
        update["snapshot-id"] = snapshot_id
    return IcebergChange(iceberg.T, "[]", json.dumps([update]))


@pytest.mark.slow
@settings(max_examples=5, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(steps=_REFS)
def test_refs_and_tags_are_those_that_were_set_last(
    steps: list[tuple[str, str | None, int | None]],
) -> None:
    decided = [iceberg.step(1, iceberg.CREATE)]
    decided += [iceberg.step(n, iceberg.append(n - 1, None), n - 1) for n in range(2, 7)]
    decided += [iceberg.step(n, ref_change(*one)) for n, one in enumerate(steps, len(decided) + 1)]
    standing: dict[str, tuple[str, int]] = {"main": ("branch", 5)}
    for name, kind, snapshot_id in steps:
        if kind is None:
            standing.pop(name, None)
        else:
            standing[name] = (kind, cast(int, snapshot_id))
    with tempfile.TemporaryDirectory() as folder:
        with VersionIndex(folder) as index:
            index.apply(decided, IndexPosition(0, len(decided)), recordings=no_recordings)
            index.publish()
        with history.connect(Path(folder)) as connection:
            ask: Ask = partial(history.ask, connection)
            rows = ask("FROM refs", [])
            assert {r["name"]: (r["kind"], r["snapshot_id"]) for r in rows} == standing
            tags = {name for name, (kind, _) in standing.items() if kind == "tag"}
            assert {row["name"] for row in ask("FROM tags", [])} == tags
            for name in ("main", "a", "b"):
                rows = ask("FROM table_at_tag(?, ?)", ["ns$facts", name])
                found = [(row["kind"], row["snapshot_id"], row["operation"]) for row in rows]
                assert found == ([(*standing[name], "append")] if name in standing else [])


def test_no_macro_or_view_goes_without_a_comparison() -> None:
    """Each is asked where what it answers is computed once more."""
    files = [laws.__file__, iceberg.__file__, index_counts.__file__, __file__]
    sources = "\n".join(Path(str(file)).read_text(encoding="utf-8") for file in files)
    compared = {*re.findall(r"\bFROM (\w+)", sources)}
    # `check_ranges` asks these by their names in a loop.
    compared |= {*re.findall(r'\("(fragments|data_files|deletion_files)", ', sources)}
    assert {question.name for question in QUESTIONS} - compared == set()
