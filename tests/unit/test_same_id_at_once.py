"""Two programs that write under one id at the same moment: the files of the first one stay."""

from __future__ import annotations

import contextlib
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog import CommitLog
from commitlog.client.commits import execution
from commitlog.client.commits.execution import Execution
from commitlog.client.rows.rows import prepare_append
from commitlog.errors import CommitLogError, OutcomeUnknown, Unavailable
from commitlog.model.reasons import Phrase, bounded
from commitlog.model.records import Code, Outcome, Status
from tests.namespace_world import World, numbers

TRIES = 6
"""Who hears of which outcome is a race: most tries lost a file, not all."""


def test_the_files_of_what_was_committed_first_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both heard of the second record's refusal, and both removed what they had written."""
    both = threading.Barrier(2)

    def prepared(*given: Any) -> Any:
        done = prepare_append(*given)
        both.wait(60)
        return done

    monkeypatch.setattr(execution, "prepare_append", prepared)
    world = World(tmp_path)
    other = world.client()

    def append(log: CommitLog, transaction_id: str) -> None:
        options = {"transaction_id": transaction_id, "attempts_max": 2, "by_log": False}
        with contextlib.suppress(CommitLogError):  # who is refused asks for the first outcome
            Execution(log, ("t",), **options).append(numbers(0, 3))  # type: ignore[arg-type]

    try:
        world.log.create_table("t", numbers(0, 1).schema)
        for number in range(1, TRIES + 1):
            again = threading.Thread(target=append, args=(other, given := str(uuid.uuid4())))
            again.start()
            append(world.log, given)
            again.join(60)
            assert world.log.open("t").to_table().num_rows == 3 * number
    finally:
        other.close()
        world.close()


def test_what_a_later_attempt_could_not_append_stays_if_an_earlier_one_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append is tried again with the same files, and then they are an earlier attempt's too."""
    submit, outcomes = Execution._submit, list[Outcome]()

    def submitted(self: Execution, *given: Any) -> Any:
        if outcomes:
            raise Unavailable("the leader is away")
        transaction, outcome = submit(self, *given)
        outcomes.append(outcome)
        return transaction, replace(outcome, status=Status.REJECTED, code=Code.ID_REUSED)

    monkeypatch.setattr(Execution, "_submit", submitted)
    world = World(tmp_path)
    try:
        world.log.create_table("t", numbers(0, 1).schema)
        again = Execution(
            world.log, ("t",), transaction_id=str(uuid.uuid4()), attempts_max=2, by_log=False
        )
        with pytest.raises(Unavailable, match="the leader is away"):
            again.append(numbers(0, 3))
        assert [one.status for one in outcomes] == [Status.COMMITTED]
        assert world.log.open("t").to_table().num_rows == 3
    finally:
        world.close()


def test_what_was_written_too_late_to_be_appended_is_removed(tmp_path: Path) -> None:
    """No record names it, though an earlier call under this id may have committed others."""
    world = World(tmp_path)
    try:
        world.log.create_table("t", numbers(0, 1).schema)
        folder = Path(world.log.table("t").location) / "data"
        late = Execution(
            world.log, ("t",), transaction_id=str(uuid.uuid4()), timeout=0.0, by_log=False
        )
        with pytest.raises(OutcomeUnknown, match="passed before this call appended transaction"):
            late.append(numbers(0, 3))
        assert list(folder.glob("*")) == []
    finally:
        world.close()


def test_who_comes_second_under_an_id_asks_for_the_first_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt has files of other names, so all that it appended would be refused."""
    submit, outcomes = Execution._submit, list[Outcome]()

    def submitted(self: Execution, *given: Any) -> Any:
        transaction, outcome = submit(self, *given)
        outcomes.append(outcome)
        said = {"transaction_id": outcome.transaction_id, "sequence": outcome.sequence}
        reason = bounded(Phrase("id_reused", {**said, "status": outcome.status}))
        refusal: dict[str, Any] = {
            "status": Status.REJECTED,
            "code": Code.ID_REUSED,
            "reason": reason,
        }
        return transaction, replace(outcome, **refusal)

    monkeypatch.setattr(Execution, "_submit", submitted)
    world = World(tmp_path)
    try:
        world.log.create_table("t", numbers(0, 1).schema)
        second = Execution(world.log, ("t",), transaction_id=str(uuid.uuid4()), by_log=False)
        outcome = second.append(numbers(0, 3))
        assert len(outcomes) == 1
        assert (outcome.status, outcome.results) == (Status.COMMITTED, outcomes[0].results)
    finally:
        world.close()
