"""Is a checkpoint refused, by name, on any log but its own at its own position?"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitlog.errors import CommitLogError, CorruptLog, WrongLog
from commitlog.model.records import ProtocolVersion
from commitlog.protocol import transactions_topic
from consumers.partition.checkpoints.checkpoint import Checkpoints
from consumers.partition.checkpoints.checkpoint_proof import check_log_holds
from consumers.tools.archive.writer import archive, give_up
from tests.contract.worlds import transactions_of
from tests.service import SCHEMA, Service, ids_of, rows, service
from tests.tampering import Copy, flip

Head = dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A service that was stopped in its second term, with a checkpoint."""
    with service(tmp_path_factory.mktemp("identity")) as running:
        running.client.create_table("t", SCHEMA)
        for number in range(5):
            running.client.append("t", rows(number))
        running.running.pop().stop()
        running.start().await_leading()
    return running


def load(copy: Copy, root: Path) -> None:
    """Do what a committer does with its checkpoint at its start."""
    genesis = copy.log.genesis()
    checkpoint = Checkpoints(root, copy.log.identity(), genesis).load()
    assert checkpoint is not None
    check_log_holds(copy.log, 0, checkpoint)


@pytest.fixture
def root(made: Service, tmp_path: Path) -> Path:
    shutil.copytree(made.root / "checkpoints", tmp_path / "checkpoints")
    return tmp_path


def edited(root: Path, edit: Callable[[Head], object]) -> Path:
    """Change a checkpoint and seal it again, as if it had been written so."""
    path = root / "checkpoints" / "0" / "head.json"
    head = json.loads(path.read_bytes())
    head.pop("sha256")
    edit(head)
    head["sha256"] = hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(head))
    return root


def test_a_checkpoint_of_this_log_is_taken(made: Service, root: Path) -> None:
    load(Copy(made.log), root)


@pytest.mark.parametrize(
    "name",
    ["cluster_id", "transactions_topic_id", "outcomes_topic_id", "log", "log_id", "partition"],
)
def test_a_checkpoint_of_another_log_is_refused_by_name(
    made: Service, root: Path, name: str
) -> None:
    changed = edited(root, lambda head: head["identity"].update({name: "other"}))
    with pytest.raises(WrongLog, match=f"{name} is 'other' there"):
        load(Copy(made.log), changed)


EDITS: dict[str, Callable[[Head], object]] = {
    "hash": lambda head: head["chain"].update(hash="00" * 32),
    "sequence": lambda head: head["chain"].update(sequence=head["chain"]["sequence"] - 1),
    "outcome_offset": lambda head: head.update(outcome_offset=head["outcome_offset"] - 1),
    "outcomes_position": lambda head: head.update(outcomes_position=10_000),
    "transactions_position": lambda head: head.update(transactions_position=10_000),
    "epoch": lambda head: (
        head["chain"].update(epoch=9),
        head["chain"]["leader"].update(epoch=9, leader_id="nobody"),
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_checkpoint_at_another_position_is_refused(made: Service, root: Path, name: str) -> None:
    with pytest.raises(CorruptLog, match="verify"):
        load(Copy(made.log), edited(root, EDITS[name]))


def test_a_log_that_lost_records_is_refused(made: Service, root: Path) -> None:
    def truncated(copy: Copy) -> None:
        copy.truncate(copy.outcomes, copy.outcome_at(4))

    def lost_transactions(copy: Copy) -> None:
        copy.truncate(copy.transactions, copy.transaction_of(4))

    def other_outcome(copy: Copy) -> None:
        place = copy.outcome_at(7)
        copy.outcomes[place] = flip(copy.outcomes[place], 60)

    def other_transaction(copy: Copy) -> None:
        place = copy.transaction_of(7)
        copy.transactions[place] = flip(copy.transactions[place], -1)

    for damage in (truncated, lost_transactions, other_outcome, other_transaction):
        copy = Copy(made.log)
        damage(copy)
        with pytest.raises(CommitLogError, match="verify"):
            load(copy, root)


@pytest.mark.parametrize("name", ["head.json", ".part", ".hint"])
def test_damaged_bytes_are_refused(made: Service, root: Path, name: str) -> None:
    [path, *_] = [p for p in (root / "checkpoints" / "0").iterdir() if p.name.endswith(name)]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptLog, match="damaged|JSON"):
        load(Copy(made.log), root)


def test_a_checkpoint_without_hints_is_taken_too(made: Service, root: Path) -> None:
    """As one is that a program saved which knew of none, and packed no parts."""
    for hint in root.rglob("*.hint"):
        hint.unlink()
    load(Copy(made.log), edited(root, lambda head: head.pop("hints")))


def test_a_checkpoint_at_the_end_of_an_archive_is_taken_without_the_archive(
    tmp_path: Path,
) -> None:
    with service(tmp_path / "root") as running:
        running.client.create_table("t", SCHEMA)
        running.client.append("t", rows(1))
        running.running.pop().stop()
        elsewhere = tmp_path / "elsewhere"
        give_up(running.log, 0, elsewhere, archive(running.log, 0, elsewhere))
        running.cluster.compact(transactions_topic(running.log.name))
        kept = transactions_of(running.log)
        assert all(isinstance(one.record, ProtocolVersion) for one in kept)
        running.start().await_leading()
        running.client.append("t", rows(2))
        assert ids_of(running.client.open("t")) == [1, 2]


def test_a_lost_transaction_is_no_archived_one(tmp_path: Path) -> None:
    with service(tmp_path / "root") as running:
        running.client.create_table("t", SCHEMA)
        running.client.append("t", rows(1))
        running.running.pop().stop()
        elsewhere = tmp_path / "elsewhere"
        give_up(running.log, 0, elsewhere, archive(running.log, 0, elsewhere, through=2))
        partition = running.cluster.partition(transactions_topic(running.log.name), 0)
        partition.records = [r for r in partition.records if r.value is None]
        with pytest.raises(CorruptLog, match="the topic lost records"):
            load(Copy(running.log), running.root)
