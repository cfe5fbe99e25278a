"""What honest programs write passes `mypy --strict`: `make check` checks this module as one."""

from typing import assert_type

from commitlog import CommitLog, Outcome
from commitlog.client.leader.row_tickets import RowsOutcome
from tests.steered_leader import SCHEMA


def test_outcomes_need_no_question_about_none(client: CommitLog) -> None:
    client.create_table("a$t", SCHEMA, primary_key="id")
    with client.transact() as t:
        t.append("a$t", {"id": [1], "v": ["a"]})
    assert t.outcome.versions() == {"a$t": 2}
    assert t.ticket.result() == t.outcome
    assert client.drop_table("a$t").raise_for_conflict().sequence > t.outcome.sequence


def test_a_block_may_be_empty_and_a_table_missing(client: CommitLog) -> None:
    with client.transact() as t:
        pass
    assert t.outcome is None
    assert client.drop_table("a$t", missing_ok=True) is None


def test_what_is_checked_for_conflicts_keeps_its_type(client: CommitLog) -> None:
    made = client.create_table("a$t", SCHEMA)
    assert assert_type(made.raise_for_conflict(), Outcome) is made
    rows = RowsOutcome(1, made.transaction_id, 0, made.status)
    assert assert_type(rows.raise_for_conflict(), RowsOutcome).inserted == 0
