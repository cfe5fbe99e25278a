"""Overlays beside Updates and DataReplacements, by the row: verdicts and rows as Lance has them."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pytest
from lance import LanceOperation
from lance.schema import LanceSchema

from commitlog.adapters import log_start
from commitlog.adapters.lance_builder import OVERLAYS_ENABLED_BY
from commitlog.client.rows.rows import Prepared, prepare_delete
from commitlog.client.rows.updating import prepare_update
from commitlog.model.limits import OVERLAYS_BY_ROW_SINCE
from commitlog.model.records import Code, Outcome, Status
from tests.operations_world import (
    T,
    column_file,
    committed,
    decided_again_alike,
    manifest,
    opened,
    pylance_commits,
    submit,
    three_fragments,
)
from tests.service import Service

HEAD = 4
"""What all that is asked here has read."""


@pytest.fixture(autouse=True)
def overlays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Lance open what has overlays."""
    monkeypatch.setenv(OVERLAYS_ENABLED_BY, "1")


@pytest.fixture(params=[False, True], ids=["addresses", "stable_row_ids"])
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    with three_fragments(tmp_path / "log", stable_row_ids=request.param) as made:
        yield made
        decided_again_alike(made)


@pytest.fixture
def older(tmp_path: Path) -> Iterator[Service]:
    """Make the table in a log of the protocol before."""
    with (
        mock.patch.object(log_start, "PROTOCOL_SUPPORTED", OVERLAYS_BY_ROW_SINCE - 1),
        three_fragments(tmp_path / "log", stable_row_ids=False) as made,
    ):
        yield made


def overlay(running: Service, *ids: int) -> LanceOperation.DataOverlay:
    """Return an overlay that names ids of fragment 1, which has 4 to 7, "o"."""
    file = column_file(opened(running), ["o"] * len(ids))
    laid = LanceOperation.DataOverlayFile(file, [i - 4 for i in ids])
    return LanceOperation.DataOverlay([LanceOperation.DataOverlayGroup(1, [laid])])


def replacement(running: Service) -> LanceOperation.DataReplacement:
    """Return what names all of fragment 1 "r"."""
    file = column_file(opened(running), ["r"] * 4)
    return LanceOperation.DataReplacement([LanceOperation.DataReplacementGroup(1, file)])


def update(running: Service, *ids: int) -> Prepared:
    """Name ids "u"; their rows move to a new fragment."""
    where = f"id in ({', '.join(map(str, ids))})"
    return prepare_update(running.client.table(T), opened(running), {"name": "'u'"}, where)


def ask(running: Service, asked: Any, *, tells_rows: bool = True) -> Outcome:
    """Submit what was made of version 4."""
    if isinstance(asked, Prepared):
        rows = asked.affected if tells_rows else None
        ticket = running.client.submit(T, asked.operation, read_version=HEAD, affected_rows=rows)
    else:
        ticket = running.client.submit(T, asked, read_version=HEAD)
    return ticket.result()


def of_pylance(running: Service, *operations: Any) -> tuple[Status, Mapping[int, str]]:
    """Commit operations as of version 4 to a copy, or carry them out; return how the last ended.

    Those before it have to commit.
    """
    copy = f"{running.location(T)}-{uuid.uuid4()}"
    shutil.copytree(running.location(T), copy)
    status = Status.COMMITTED
    for operation in operations:
        assert status is Status.COMMITTED
        if callable(operation):
            operation(lance.dataset(copy))
            continue
        status = pylance_commits(copy, lance.Transaction(HEAD, operation, str(uuid.uuid4())))
    return status, names(lance.dataset(copy))


def names(dataset: lance.LanceDataset) -> dict[int, str]:
    table = dataset.to_table()
    return dict(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))


def named(**changed: str) -> dict[int, str]:
    """Return the table's names, with these of ids `i…` changed."""
    return {i: "a" for i in range(12)} | {int(i[1:]): name for i, name in changed.items()}


@pytest.mark.parametrize("tells_rows", [True, False], ids=["rows told", "rows derived"])
def test_an_update_of_other_rows_goes_with_an_overlay(running: Service, tells_rows: bool) -> None:
    other, same = update(running, 4, 6), update(running, 6, 7)
    assert ask(running, overlay(running, 5, 7)).status is Status.COMMITTED
    assert ask(running, other, tells_rows=tells_rows).status is Status.COMMITTED
    assert names(opened(running)) == named(i4="u", i5="o", i6="u", i7="o")
    # Of two reasons the one that came first is told.
    outcome = ask(running, same, tells_rows=tells_rows)
    assert outcome.status is Status.RETRYABLE
    assert outcome.conflict is not None
    assert outcome.conflict.rule.endswith("overlaid_rows")
    assert outcome.conflict.keys == ("1/3",)
    assert outcome.conflict.version == HEAD + 1


def test_an_overlay_of_other_rows_goes_with_an_update(running: Service) -> None:
    other, same = overlay(running, 5, 7), overlay(running, 4, 5)
    moved = update(running, 4, 6)
    theirs = [of_pylance(running, moved.operation, asked) for asked in (same, other)]
    assert ask(running, moved).status is Status.COMMITTED
    refused = ask(running, same)
    assert (refused.status, names(opened(running))) == theirs[0]
    assert refused.status is Status.RETRYABLE
    assert refused.conflict is not None
    assert refused.conflict.keys == ("1/0",)
    committed = ask(running, other)
    assert (committed.status, names(opened(running))) == theirs[1]
    assert names(opened(running)) == named(i4="u", i5="o", i6="u", i7="o")


def test_deletes_between_count_as_lance_counts_them(running: Service) -> None:
    asked = overlay(running, 5, 7)
    moved = update(running, 4)
    deleted = prepare_delete(running.client.table(T), opened(running), "id = 7")
    theirs, _ = of_pylance(
        running,
        lambda dataset: dataset.delete("id = 7"),
        lambda dataset: dataset.update({"name": "'u'"}, "id = 4"),
        asked,
    )
    assert ask(running, deleted).status is Status.COMMITTED
    assert ask(running, moved).status is Status.COMMITTED
    # Once an Update took rows of the fragment, all that is gone since counts.
    assert ask(running, asked).status is theirs is Status.RETRYABLE


def test_a_replacement_keeps_the_overlays_that_it_never_saw(running: Service) -> None:
    seen = overlay(running, 4)
    replaced = replacement(running)
    unseen = overlay(running, 5)
    theirs = of_pylance(running, seen, unseen, replaced)
    for asked in (seen, unseen):
        assert ask(running, asked).status is Status.COMMITTED
    outcome = ask(running, replaced)
    assert (outcome.status, names(opened(running))) == theirs
    assert names(opened(running)) == named(i4="o", i5="o", i6="r", i7="r")


def test_a_replacement_ends_the_overlays_that_it_saw(running: Service) -> None:
    assert ask(running, overlay(running, 4)).status is Status.COMMITTED
    replaced, unseen = replacement(running), overlay(running, 5)
    assert ask(running, unseen).status is Status.COMMITTED
    ticket = running.client.submit(T, replaced, read_version=HEAD + 1)
    assert ticket.result().status is Status.COMMITTED
    assert names(opened(running)) == named(i4="r", i5="o", i6="r", i7="r")
    state, _ = manifest(running, HEAD + 3)
    again = running.client.open(T)
    again.delete("id = 6")
    assert names(opened(running)) == {
        i: name for i, name in named(i4="r", i5="o", i7="r").items() if i != 6
    }
    assert state.version == HEAD + 3


def test_older_logs_compare_fragments(older: Service) -> None:
    other, replaced, laid = update(older, 4), replacement(older), overlay(older, 6)
    assert ask(older, overlay(older, 5)).status is Status.COMMITTED
    for asked in (other, replaced):
        assert ask(older, asked).status is Status.RETRYABLE
    committed(older, update(older, 4).operation)
    outcome = ask(older, laid)
    assert outcome.status is Status.RETRYABLE
    assert outcome.conflict is not None
    assert outcome.conflict.rule.endswith("overlaid_fragment_updated")


def without_name(running: Service) -> LanceOperation.Project:
    """Return what drops the column that the overlays are of."""
    fields = opened(running).lance_schema.__reduce__()[1]
    return LanceOperation.Project(LanceSchema._from_protos(*fields[:2]), True)


def test_an_overlay_of_a_dropped_column_loses_to_who_dropped_it(running: Service) -> None:
    laid = overlay(running, 4)
    committed(running, without_name(running))
    outcome = submit(running, laid, HEAD)
    assert (outcome.status, outcome.code) == (Status.INCOMPATIBLE, Code.CONFLICT), outcome.message
    assert outcome.conflict is not None
    assert (outcome.conflict.operation, outcome.conflict.version) == ("Project", HEAD + 1)
    assert outcome.conflict.rule.endswith("field_dropped")
    # Whoever read the version without the column, names one that isn't there.
    assert submit(running, laid).status is Status.REJECTED


def test_older_logs_call_it_wrong_as_it_stands(older: Service) -> None:
    laid = overlay(older, 4)
    committed(older, without_name(older))
    outcome = submit(older, laid, HEAD)
    assert (outcome.status, outcome.code) == (Status.REJECTED, Code.WRONG_SCHEMA)
