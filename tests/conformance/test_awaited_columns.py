"""Do new columns land beside writers, with right values, and hold nobody up for long?"""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from commitlog import CommitLog
from commitlog.adapters import log_start
from commitlog.client.leader.tickets import Ticket
from commitlog.client.new_columns import NewColumns
from commitlog.core.operations.awaited_columns import PRIVATE_DIRECTORY, delivery_path
from commitlog.errors import RetryableConflict
from commitlog.model.limits import COLUMNS_AWAITED_SINCE
from commitlog.model.records import Outcome, Status
from consumers.partition import deciding
from consumers.tools.verify import VerifyOptions, verify
from tests.operations_world import T, decided_again_alike, opened, three_fragments
from tests.service import Service, rows

STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])


class Paused:
    """A new column that is computed and not submitted yet."""

    def __init__(self, log: CommitLog) -> None:
        """Compute `double`."""
        self.log = log

        def describe(table: Any) -> Any:
            return log.describe(table, fresh=True, readable=True)

        self.info = describe(("ns", "t"))
        self.columns = NewColumns(
            log.runtime(), describe, lambda dataset: dataset.add_columns({"double": "id * 2"})
        )
        made = self.columns._upon(self.info)
        assert made is not None
        self.message = made

    def submit(self) -> Ticket:
        return self.log.submit(T, self.message.SerializeToString())

    def finish(self, ticket: Ticket) -> Outcome:
        return self.columns.finish(ticket, self.info, self.message, float("inf"))


def check_values(running: Service, version: int) -> None:
    """All rows of a version have their values, and the log proves it."""
    found = opened(running).checkout_version(version).to_table().to_pylist()
    assert found
    assert all(row["double"] == 2 * row["id"] for row in found)
    opened(running).validate()  # type: ignore[no-untyped-call]
    assert not list(running.location(T).glob(f"{PRIVATE_DIRECTORY}/*.columns"))
    decided_again_alike(running)


@STABLE
def test_random_commits_between(stable: bool, tmp_path: Path, seed: int) -> None:
    chance = random.Random(f"{seed}/{stable}")
    with three_fragments(tmp_path / "root", stable_row_ids=stable) as made:
        log = made.client
        for step in range(6):
            paused = Paused(log)
            for _ in range(chance.randrange(1, 6)):
                ids = ", ".join(map(str, chance.sample(range(12), chance.randrange(1, 5))))
                act = chance.choice(["append", "delete", "update", "upsert", "compact"])
                if act == "append":
                    log.append(T, rows(*chance.sample(range(12), 3)))
                elif act == "delete":
                    log.delete(T, f"id in ({ids})")
                elif act == "update":
                    log.update(T, {"name": f"'step{step}'", "id": "id + 1"}, f"id in ({ids})")
                elif act == "upsert":
                    log.merge_insert(T, rows(chance.randrange(12), 50 + step), "id")
                else:
                    log.compact(T)
            log.append(T, rows(7))
            before = opened(made).to_table().sort_by("id").to_pylist()
            outcome = paused.finish(paused.submit())
            assert outcome.status is Status.COMMITTED, (seed, outcome.message)
            check_values(made, outcome.version)
            log.open(T).drop_columns(["double"])
            assert opened(made).to_table().sort_by("id").to_pylist() == before


def test_whoever_comes_after_waits_and_is_not_refused(tmp_path: Path) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=False) as made:
        log = made.client
        paused = Paused(log)
        log.append(T, rows(100))
        ticket = paused.submit()
        others = [
            threading.Thread(target=log.append, args=(T, rows(200))),
            threading.Thread(target=log.update, args=(T, {"name": "'new'"}, "id = 100")),
        ]
        for other in others:
            other.start()
        outcome = paused.finish(ticket)
        assert outcome.status is Status.COMMITTED, outcome.message
        for other in others:
            other.join()
        check_values(made, outcome.version)
        found = {row["id"]: row for row in opened(made).to_table().to_pylist()}
        assert (found[100]["name"], found[100]["double"]) == ("new", 200)
        assert found[200]["id"] == 200


@pytest.mark.parametrize("data", [None, b"", b"no message", b"\x12\x00"])
def test_what_is_not_delivered_holds_up_others_for_a_while_and_is_tried_again(
    data: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With data, long enough that it is there before the leader has waited in vain.
    monkeypatch.setattr(deciding, "AWAITED_SECONDS", 0.3 if data is None else 3.0)
    with three_fragments(tmp_path / "root", stable_row_ids=False) as made:
        log = made.client
        paused = Paused(log)
        head = log.append(T, rows(100)).version
        ticket = paused.submit()
        if data is not None:
            path = made.location(T) / delivery_path(ticket.transaction_id, head)
            whole = tmp_path / "data"
            whole.write_bytes(data)
            whole.rename(path)  # at once, as writers put it: the leader may be looking
        assert log.append(T, rows(101)).status is Status.COMMITTED
        lost = ticket.result()
        assert lost.status is Status.RETRYABLE
        assert "columns_not_delivered" in lost.message
        if data is not None:
            path.unlink()
        kept = log.add_columns(T, {"double": "id * 2"})
        assert kept.outcome is not None
        found = opened(made).to_table().to_pylist()
        assert [row["double"] for row in found] == [2 * row["id"] for row in found]
        if data:  # gone, so this outcome can only be taken as it is recorded
            verdict = verify(made.log, 0, VerifyOptions(root=made.root))
            assert (verdict.problems, verdict.decided_again) == ([], verdict.outcomes - 1)
        else:
            decided_again_alike(made)


def test_a_function_that_fails_on_new_rows_frees_the_table_at_once(tmp_path: Path) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=False) as made:
        paused = Paused(made.client)
        made.client.append(T, rows(100))
        ticket = paused.submit()
        with (
            mock.patch.object(NewColumns, "_compute", side_effect=ValueError("not this row")),
            pytest.raises(ValueError, match="not this row"),
        ):
            paused.finish(ticket)
        assert ticket.result().status is Status.RETRYABLE
        made.client.append(T, rows(101))
        decided_again_alike(made)


def test_a_leader_that_begins_while_it_waits_waits_again(tmp_path: Path) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=False) as made:
        made.client.create_table("ns$other", rows(1).schema)
        paused = Paused(made.client)
        made.client.append(T, rows(100))
        ticket = paused.submit()
        made.client.append("ns$other", rows(1))  # decided, so the leader has come to it
        second = made.start()
        made.running[0].stop()
        second.await_leading()
        outcome = paused.finish(ticket)
        assert outcome.status is Status.COMMITTED, outcome.message
        check_values(made, outcome.version)


def test_before_the_protocol_it_is_refused(tmp_path: Path) -> None:
    with (
        mock.patch.object(log_start, "PROTOCOL_SUPPORTED", COLUMNS_AWAITED_SINCE - 1),
        three_fragments(tmp_path / "root", stable_row_ids=False) as made,
    ):
        paused = Paused(made.client)
        made.client.append(T, rows(100))
        with pytest.raises(RetryableConflict, match="merge_append_always"):
            paused.finish(paused.submit()).raise_for_conflict()
        assert made.client.add_columns(T, {"double": "id * 2"}).refusals == ()
