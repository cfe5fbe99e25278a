"""Void records in a log don't keep it from being archived: what deposed leaders sent, and holes."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.adapters.reading import read_to
from commitlog.codecs.avro import seal_outcome
from commitlog.errors import Unavailable
from commitlog.model.records import Submitted
from commitlog.protocol import transactions_topic
from consumers.tools.archive.files import check_segment
from consumers.tools.archive.log import FOLDER, ArchivedLog
from consumers.tools.archive.proof import Archive
from consumers.tools.archive.writer import archive
from consumers.tools.bench.made_log import NODE, MadeLog, append_to, create, decide


class Terms(MadeLog):
    """A log of several terms."""

    def __init__(self) -> None:
        """Begin with a table."""
        super().__init__()
        self.run(create("t"))

    def say_void(self, submitted: Submitted, sequence: int, *, head: bytes) -> None:
        """Append an outcome of the first term."""
        outcome = decide(self.machine, submitted).outcome
        sent = outcome.__class__(sequence, outcome.transaction_id, submitted.offset, outcome.status)
        _, record = seal_outcome(sent, previous_hash=head, epoch=1, node=NODE)
        self._append_outcome(f"1/{sequence}", record)


def test_an_outcome_of_a_deposed_leader_that_continues_the_chain_is_passed_over(
    tmp_path: Path,
) -> None:
    made = Terms()
    submitted = made.append(append_to("t", 1))
    head = made.replica.chain.hash
    made.lead()
    made.say_void(submitted, made.machine.sequence + 1, head=head)
    made.decide(submitted)
    made.run(append_to("t", 2))
    assert archive(made.log, 0, tmp_path).through == made.machine.sequence
    kept = Archive.open(tmp_path, made.log.identity(), made.log.genesis())
    for segment in kept.segments:
        check_segment(kept.folder, segment)


@pytest.mark.parametrize("ahead", [1, 2])
def test_outcomes_behind_a_hole_dont_say_where_an_archive_ends(tmp_path: Path, ahead: int) -> None:
    made = Terms()
    through = made.machine.sequence + ahead
    waiting = [made.append(append_to("t", number)) for number in (1, 2, 3)]
    for sequence, submitted in enumerate(waiting[1:], made.machine.sequence + 2):
        made.say_void(submitted, sequence, head=b"x" * 32)
    made.lead()
    for submitted in waiting:
        made.decide(submitted)
    assert archive(made.log, 0, tmp_path, through=through).through == through
    assert archive(made.log, 0, tmp_path).through == made.machine.sequence


def test_a_time_between_a_hole_and_the_next_term_ends_an_archive(tmp_path: Path) -> None:
    made = Terms()
    now = made.log.cluster.now_ms()
    made.log.cluster.now_ms = lambda: now
    submitted = made.append(append_to("t", 1))
    before = made.machine.sequence
    made.say_void(submitted, before + 2, head=b"x" * 32)
    now += 10_000
    made.lead()
    made.decide(submitted)
    assert archive(made.log, 0, tmp_path, before_ms=now).through == before
    assert archive(made.log, 0, tmp_path).through == before + 1


def test_what_a_killed_run_has_left_goes_with_the_next_run(tmp_path: Path) -> None:
    made = Terms()
    archive(made.log, 0, tmp_path)
    named = {path.name for path in (tmp_path / "0").iterdir()}
    left = [f"{2:012}-{9:012}.outcomes.parquet", f"{2:012}-{9:012}.transactions.parquet.tmp"]
    for name in left:
        (tmp_path / "0" / name).write_bytes(b"PAR1")
    assert archive(made.log, 0, tmp_path).segments == 0
    assert {path.name for path in (tmp_path / "0").iterdir()} == named
    check_segment(tmp_path / "0", Archive.as_written(tmp_path, 0).segments[0])  # type: ignore[union-attr]


def test_files_without_a_proof_stay_until_there_is_one(tmp_path: Path) -> None:
    made = Terms()
    file = tmp_path / "0" / f"{1:012}-{9:012}.outcomes.parquet"
    file.parent.mkdir()
    file.write_bytes(b"PAR1")
    assert archive(made.log, 0, tmp_path, through=0).segments == 0
    assert file.exists()
    assert archive(made.log, 0, tmp_path).segments == 1
    assert not file.exists()


def test_an_archive_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    made = Terms()
    for number in (1, 2, 3):
        made.run(append_to("t", number))
    folder = tmp_path / FOLDER
    folder.symlink_to(folder)
    log = ArchivedLog(made.log, folder)
    assert list(read_to(log.read_transactions(0)))  # nothing needs it yet
    keys = [one.key for one in read_to(made.log.read_transactions(0))][1:3]
    made.log.tombstone(0, keys)
    made.log.cluster.compact(transactions_topic(made.log.name))
    with pytest.raises(Unavailable, match="cannot be read: Too many levels"):
        list(read_to(log.read_transactions(0)))
    with pytest.raises(Unavailable, match="cannot be read: Too many levels"):
        assert log.has_archive
    folder.unlink()
    assert not log.has_archive
    assert list(read_to(log.read_transactions(0)))
