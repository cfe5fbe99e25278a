"""Does a row writer make again what it lost, and leave the CPU to those who write?"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, cast

import lance
import pytest

from commitlog import CommitLog
from commitlog.client.accepted.row_application import prepare_group
from commitlog.client.accepted.row_tail import Waiting
from commitlog.client.rows.lance_request import new_transaction_id
from commitlog.core.partition import repeats
from commitlog.model.records import Code, Status
from consumers.tools.rows import attempt as row_attempt
from consumers.tools.rows import writer as row_writer
from consumers.tools.rows.writer import RowWriter, RowWriterOptions
from tests.integration.test_row_columns import running
from tests.integration.test_row_writer import T, apply_once, writing
from tests.service import Service

__all__ = ["running"]


def test_a_write_is_made_again_if_what_the_row_writer_made_of_it_is_lost(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its data file goes before it is submitted; then its transaction comes a year late."""
    client, prepared = running.client, []

    def prepare(*given: Any) -> Any:
        prepared.append(found := prepare_group(*given))
        if found is not None and len(prepared) == 1:
            [fragment] = found.operation.new_fragments
            (running.location(T) / "data" / fragment.files[0].path).unlink()
        return prepared[-1]

    _, late, last = ids = [new_transaction_id() for _ in range(3)]
    made = iter(ids)
    monkeypatch.setattr(row_attempt, "find_rows", lambda *_: None)
    monkeypatch.setattr(row_attempt, "prepare_group", prepare)
    monkeypatch.setattr(row_attempt, "new_transaction_id", lambda: next(made))
    monkeypatch.setattr(repeats, "is_too_old", lambda _, record, __: record.transaction_id == late)
    monkeypatch.setattr(row_writer, "PAUSE_SECONDS", 0.01)
    ticket = client.write_rows(T, [{"id": 1, "a": 1, "b": "x"}], mode="upsert")
    ticket.result(60, "accepted")
    done = apply_once(RowWriter(client), client)
    assert done is not None
    assert (done.transaction_id, len(prepared)) == (last, 3)
    assert client.outcome(late).code is Code.TOO_OLD
    assert ticket.result(60).inserted == 1
    assert len(client.scan(T)) == 1
    assert len(list((running.location(T) / "data").iterdir())) == 1, "no other file is left"


@pytest.mark.parametrize(
    ("last", "awaited", "rests"),
    [(7, 0, True), (9, 0, False), (7, 2, False)],
    ids=["all", "some", "awaited"],
)
def test_a_row_writer_rests_for_longer_than_it_worked_unless_more_waits_or_its_writers_do(
    last: int, awaited: int, rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Waiting(("t",), "i-t", 0, ((7, 1, (0,)), (last, 2, (0,))), awaited=awaited)

    def work(writer: RowWriter, *_: Any) -> None:
        time.sleep(0.04)
        writer._through["i-t"] = 7
        worked.append(time.monotonic())

    monkeypatch.setattr(RowWriter, "_try", work)
    writer = RowWriter(cast(CommitLog, None), RowWriterOptions(age_seconds=0.01))
    began, worked = time.monotonic(), list[float]()
    writer._apply(seen, {})
    rest = writer._due["i-t"] - worked[-1]
    assert (rest > 0.1) is rests, rest
    assert writer._coming["i-t"][0] == awaited
    stop, work_on = threading.Event(), Future[None]()
    while writer._due.get("i-t", 0.0) > time.monotonic():
        writer._gather({"i-t": work_on}, stop)
    assert time.monotonic() - began >= (0.16 if rests else 0.04)


def test_a_group_opens_no_version_if_it_is_known_where_its_rows_are(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = running.client
    writer = RowWriter(client)
    client.write_rows(T, [{"id": 1, "a": 1, "b": "x"}], mode="upsert").result(60, "accepted")
    assert apply_once(writer, client) is not None
    client.write_rows(T, [{"id": 1, "a": 2, "b": "x"}], mode="upsert").result(60, "accepted")
    opened, made = list[int](), lance.LanceDataset.__init__

    def counting(self: lance.LanceDataset, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        opened.append(self.version)

    monkeypatch.setattr(lance.LanceDataset, "__init__", counting)
    assert apply_once(writer, client) is not None
    assert not opened


def test_groups_of_whole_rows_by_a_number_need_no_version_opened_by_lance(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates, new rows and deletions, of rows in old and new fragments, and of deleted ones."""
    client, writer = running.client, RowWriter(running.client)
    monkeypatch.setattr(row_attempt, "prepare_group", None)
    steps: list[tuple[str, Sequence[int], tuple[int, int, int]]] = [
        ("upsert", range(5), (5, 0, 0)),
        ("upsert", range(3, 8), (3, 2, 0)),
        ("delete", [0, 3, 9], (0, 0, 2)),
        ("delete", [0, 3], (0, 0, 0)),
        ("upsert", [3, 4], (1, 1, 0)),
    ]
    for step, (mode, ids, counts) in enumerate(steps):
        rows = [{"id": n} if mode == "delete" else {"id": n, "a": step, "b": "x"} for n in ids]
        ticket = client.write_rows(T, rows, mode=mode)
        ticket.result(60, "accepted")
        apply_once(writer, client)
        done = ticket.result(60)
        assert (done.inserted, done.updated, done.deleted) == counts, f"step {step}"
        client.describe(("ns", "t"), fresh=True, readable=True)
    found = lance.dataset(str(running.location(T))).to_table().to_pylist()
    assert sorted((row["id"], row["a"]) for row in found) == [
        (1, 0), (2, 0), (3, 4), (4, 4), (5, 1), (6, 1), (7, 1)
    ]  # fmt: skip


def test_a_condition_that_ends_its_process_is_refused_and_others_are_applied(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without rows to compare it is sound, so its client takes it."""
    monkeypatch.setattr(row_writer, "FAILURES_MAX", 1)
    monkeypatch.setattr(row_writer, "REFUSED_AT", 2)
    client, row = running.client, {"id": 1, "a": 1, "b": "x"}
    deadly = "array_length(array_repeat(1, target.id * 100000000000)) > 1"
    with writing(running, age_seconds=0.01, writes_max=4):
        client.write_rows(T, [row]).result(60)
        bad = client.write_rows(T, [row], mode="upsert", when_matched_update_all_filt=deadly)
        good = client.write_rows(T, [{**row, "id": 2}])
        refused, done = bad.result(120), good.result(120)
    assert (refused.status, refused.code) == (Status.REJECTED, Code.ROWS_REFUSED)
    assert (done.status, done.inserted) == (Status.COMMITTED, 1)
