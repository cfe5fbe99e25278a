"""The demo's desks: their steps, and the plain model that says what must come of them."""

from __future__ import annotations

from pathlib import Path

import lance
import pytest

from consumers.tools.demo.desk import JournalEntry, append_entry, read_journal
from consumers.tools.demo.desks import (
    CORRECTION,
    DESK_COUNT,
    ROUND_COUNT,
    STATIONS,
    WEATHER_KEY,
    DeskStep,
    Ledger,
    StationHour,
    StepKind,
    plan,
    read_airports,
    read_observations,
    weather_table,
)
from consumers.tools.demo.run import open_run

pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def observations() -> list[StationHour]:
    return read_observations()


@pytest.fixture
def ledger(observations: list[StationHour]) -> Ledger:
    return Ledger.at_start(observations, read_airports())


@pytest.mark.slow
def test_a_desk_plans_the_same_steps_every_time(observations: list[StationHour]) -> None:
    steps = plan(3, observations)
    assert steps == plan(3, read_observations())
    assert [step.number for step in steps] == list(range(6 * ROUND_COUNT))
    assert {step.kind for step in steps} == set(StepKind)
    assert all(
        step.rows
        for step in steps
        if step.kind in (StepKind.PUBLISH, StepKind.APPEND, StepKind.UPSERT)
    )


@pytest.mark.slow
def test_the_order_of_desks_does_not_change_the_rows(observations: list[StationHour]) -> None:
    def after(desks: list[int]) -> Ledger:
        ledger = Ledger.at_start(observations, read_airports())
        queues = [plan(desk, observations) for desk in desks]
        for round_of_steps in zip(*queues, strict=True):
            for step in round_of_steps:
                ledger.apply(step)
        return ledger

    desks = list(range(DESK_COUNT))
    assert after(desks).tables() == after(desks[::-1]).tables()


@pytest.mark.slow
def test_every_late_observation_is_brought_once(
    observations: list[StationHour], ledger: Ledger
) -> None:
    deleted = 0
    for desk in range(DESK_COUNT):
        for step in plan(desk, observations):
            deleted += sum(map(step.covers, ledger.weather.values())) * (
                step.kind is StepKind.DELETE
            )
            ledger.apply(step)
    assert deleted > 0
    assert len(ledger.weather) == len(observations) - deleted
    counted = {faa: ledger.airports[faa].reports for faa in STATIONS}
    assert sum(counted.values()) == DESK_COUNT * ROUND_COUNT


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [StepKind.CORRECT, StepKind.DELETE, StepKind.UPSERT, StepKind.APPEND]
)
def test_the_model_agrees_with_lance_on_each_kind_of_step(
    kind: StepKind, tmp_path: Path, observations: list[StationHour], ledger: Ledger
) -> None:
    step = next(step for step in plan(1, observations) if step.kind is kind)
    ledger_table = ledger.tables()[0]
    dataset = lance.write_dataset(ledger_table, tmp_path / "weather")
    _do(dataset, step)
    ledger.apply(step)
    found = dataset.to_table().sort_by([(name, "ascending") for name in WEATHER_KEY])
    expected = ledger.tables()[0]
    assert expected != ledger_table
    assert found.combine_chunks() == expected


def _do(dataset: lance.LanceDataset, step: DeskStep) -> None:
    if step.kind is StepKind.CORRECT:
        dataset.update(CORRECTION, where=step.where())
    elif step.kind is StepKind.DELETE:
        dataset.delete(step.where())
    elif step.kind is StepKind.APPEND:
        dataset.insert(weather_table(step.rows))
    else:
        merge = dataset.merge_insert(list(WEATHER_KEY))
        merge.when_matched_update_all().when_not_matched_insert_all()
        merge.execute(weather_table(step.rows))


def test_a_journal_forgets_a_line_that_was_cut_off(tmp_path: Path) -> None:
    journal = tmp_path / "desk-0.jsonl"
    entries = [JournalEntry(n, "append", f"id-{n}", n, {"nyc$weather": n}, 0.1) for n in range(3)]
    assert read_journal(journal) == []
    for entry in entries:
        append_entry(journal, entry)
    with journal.open("a") as file:
        file.write('{"step": 3, "ki')
    assert read_journal(journal) == entries
    append_entry(journal, entries[0])
    assert read_journal(journal) == [*entries, entries[0]]


def test_an_interrupted_run_goes_on_and_a_finished_one_is_followed(tmp_path: Path) -> None:
    first, how = open_run(tmp_path)
    assert how == "first"
    again, how = open_run(tmp_path)
    assert (again, how) == (first, "resumed")
    again.with_start(17).finished()
    second, how = open_run(tmp_path)
    assert (second.number, second.first_sequence, how) == (2, 0, "next")
    assert second.seed != first.seed
    assert second.folder != first.folder
