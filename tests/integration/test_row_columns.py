"""Do rows land in the columns that they were written for, never in a later one with that id?"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from commitlog.client.leader.row_tickets import RowsTicket
from commitlog.errors import TransactionRejected
from commitlog.model.records import Code, Status
from consumers.tools.replay.replay import ReplayOptions, replay
from consumers.tools.rows.writer import RowWriter
from consumers.tools.verify import VerifyOptions, verify
from tests.integration.test_row_writer import SCHEMA, T, apply_once, waiting
from tests.service import Service

pytestmark = pytest.mark.usefixtures("nobody_writes")


@pytest.fixture
def running(running: Service) -> Service:
    """A service with one table that has a key and no data file, and no row writer."""
    running.client.create_table(T, SCHEMA, primary_key="id")
    return running


def written(running: Service, number: int, *names: str) -> RowsTicket:
    """Write a row of these columns; return once it is accepted."""
    row = {name: "x" if name == "b" else number for name in ("id", *names)}
    ticket = running.client.write_rows(T, pa.Table.from_pylist([row]), mode="append")
    ticket.result(60, "accepted")
    return ticket


def replace_column(running: Service) -> None:
    """Drop a column and add another one of its name and type: Lance gives it the same id."""
    before = running.client.table(T).column_ids
    running.client.open(T).drop_columns(["b"])
    running.client.open(T).add_columns(pa.field("b", pa.string()))
    assert running.client.table(T).column_ids == before, "else nothing is tried here"


def content(running: Service) -> list[dict[str, object]]:
    found: list[dict[str, object]] = running.client.scan(T).to_pylist()
    return sorted(found, key=lambda row: str(row["id"]))


LEFT = [{"id": 2, "a": 2, "b": None}, {"id": 3, "a": 3, "b": "x"}]


def test_rows_for_a_column_that_was_dropped_dont_land_in_its_successor(
    running: Service, tmp_path: Path
) -> None:
    old, kept = written(running, 1, "a", "b"), written(running, 2, "a")
    replace_column(running)
    new = written(running, 3, "a", "b")
    view = running.client.open(T, fresh=True)
    assert view.to_table().sort_by("id").to_pylist() == LEFT
    assert apply_once(RowWriter(running.client), running.client) is not None
    with pytest.raises(TransactionRejected, match="dropped or replaced"):
        old.result(60).raise_for_conflict()
    assert running.client.outcome(old.transaction_id).code is Code.WRONG_SCHEMA
    assert [one.result(60).status for one in (kept, new)] == [Status.COMMITTED] * 2
    assert content(running) == LEFT
    again = running.client.open(T, fresh=True, position=view.position)
    assert again.to_table().sort_by("id").to_pylist() == LEFT

    options = VerifyOptions(running.root, contents=True)
    assert verify(running.log, 0, options).problems == []
    result = replay(running.log, 0, ReplayOptions(tmp_path / "again", rows="all"))
    assert (result.problems, [one.is_equal for one in result.rebuilt]) == ([], [True])


def test_a_row_writer_that_read_before_the_column_was_dropped_reads_again(running: Service) -> None:
    written(running, 1, "a", "b")
    seen = waiting(running.client)
    replace_column(running)
    assert apply_once(RowWriter(running.client), running.client, seen) is None
    assert content(running) == []
    assert apply_once(RowWriter(running.client), running.client) is not None
    assert content(running) == []


def test_a_restarted_leader_knows_which_columns_were_dropped(running: Service) -> None:
    written(running, 1, "a", "b")
    replace_column(running)
    for leader in running.running:
        leader.stop()
    running.start().await_leading()
    assert apply_once(RowWriter(running.client), running.client) is not None
    assert content(running) == []
