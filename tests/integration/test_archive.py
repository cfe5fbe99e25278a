"""Is what an archive holds proven, and is nothing missing once the topic has given it up?"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from commitlog import CommitLog
from commitlog.adapters.log_records import to_submitted
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import Fate
from commitlog.codecs.avro import encode_transaction
from commitlog.errors import CorruptLog, Unavailable, WrongLog
from commitlog.model.records import Outcome, Retained, Submitted, Transaction
from commitlog.ports import Log, RawRecord, Reader
from commitlog.protocol import outcomes_topic, transactions_topic
from consumers import cli
from consumers.commands import ask, prove
from consumers.commands.exit_codes import ExitCode
from consumers.servers.committer import Committer, CommitterOptions
from consumers.tools.archive import writer
from consumers.tools.archive.files import check_segment, read_file, write_file
from consumers.tools.archive.log import FOLDER, with_archive
from consumers.tools.archive.proof import PROOF, Archive, ArchivedFile
from consumers.tools.archive.writer import ArchiveRun, archive, give_up
from consumers.tools.bench.made_log import MadeLog, append_to, create
from consumers.tools.replay.replay import ReplayOptions as ReplayOptions
from consumers.tools.replay.replay import replay
from consumers.tools.verify import PartitionFindings, ProblemKind, VerifyOptions, verify
from tests.kills import Killed, killed_after
from tests.service import SCHEMA, Service, ids_of, rows, service
from tests.tampering import Copy
from tests.verified import filled_service
from tests.waiting import meanwhile, wait_until

pytestmark = pytest.mark.usefixtures("nobody_writes")

COUNT = 23
"""Outcomes of the service that is archived."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A service that was stopped, with its index."""
    return filled_service(tmp_path_factory.mktemp("archived"))


def opened(log: MemoryLog, folder: Path) -> Archive:
    """Return an archive as its proof has it."""
    return Archive.open(folder, log.identity(), log.genesis())


def in_topic(log: MemoryLog) -> list[int]:
    """Return the offsets of what is left of the transactions."""
    partition = log.cluster.topics[transactions_topic(log.name)].partitions[0]
    return [record.offset for record in partition.records if record.value is not None]


def compact(log: MemoryLog) -> None:
    """Do what Kafka's cleaner does in time."""
    log.cluster.compact(transactions_topic(log.name))


def log_of(log: Log) -> PartitionFindings:
    return verify(log, 0, VerifyOptions(log_only=True))


def test_all_that_is_decided_is_copied_with_its_proof(made: Service, tmp_path: Path) -> None:
    log = Copy(made.log).log
    result = archive(log, 0, tmp_path)
    whole = log_of(log)
    assert (result.segments, result.outcomes, result.transactions) == (1, COUNT, COUNT)
    assert (result.through, result.head) == (whole.outcomes, whole.head)
    [segment] = opened(log, tmp_path).segments
    assert segment.outcomes.rows == COUNT + 1 + 2, "Genesis and two terms are there too"
    assert not segment.given_up
    assert archive(log, 0, tmp_path).segments == 0, "there is nothing new"


def test_a_run_goes_on_after_the_last_segment(made: Service, tmp_path: Path) -> None:
    log = Copy(made.log).log
    for through in (3, 4, 11):
        assert archive(log, 0, tmp_path, through=through).through == through
    assert archive(log, 0, tmp_path).through == COUNT
    kept = opened(log, tmp_path)
    assert [segment.name for segment in kept.segments] == ["1-3", "4-4", "5-11", f"12-{COUNT}"]
    for before, after in zip(kept.segments, kept.segments[1:], strict=False):
        assert before.end.hash == after.start_hash


def test_an_archive_that_cannot_be_looked_into_fails_a_verification(
    made: Service, tmp_path: Path
) -> None:
    log, root = Copy(made.log).log, tmp_path / "root"
    archive(log, 0, root / FOLDER)
    assert verify(with_archive(log, root), 0, VerifyOptions(log_only=True)).archived == COUNT
    (root / FOLDER).rename(root / "kept")
    assert log_of(with_archive(log, root)).is_whole, "there is none"
    # As unreadable as another user's folder, for any user.
    (root / FOLDER).symlink_to(root / FOLDER)
    found = verify(with_archive(log, root), 0, VerifyOptions(root, log_only=True))
    [problem] = found.problems
    assert (found.outcomes, found.is_log_whole) == (COUNT, True)
    assert problem.message.startswith(f"the archive {root / FOLDER} cannot be read: ")


def test_only_what_is_old_enough_is_copied(made: Service, tmp_path: Path) -> None:
    log = Copy(made.log).log
    records = log.cluster.topics[outcomes_topic(log.name)].partitions[0].records
    assert archive(log, 0, tmp_path, before_ms=records[0].time_ms).segments == 0
    assert archive(log, 0, tmp_path, before_ms=records[-1].time_ms + 1).through == COUNT


def test_a_killed_run_leaves_whole_segments(
    made: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SEGMENT_OUTCOMES", 4)
    monkeypatch.setattr("consumers.tools.verify.walk.RECORDS_PER_POLL", 4)
    log = Copy(made.log).log

    with pytest.raises(Killed):
        archive(log, 0, tmp_path, on_progress=killed_after(13))
    before = opened(log, tmp_path).segments
    assert 0 < len(before) < 5
    archive(log, 0, tmp_path)
    after = opened(log, tmp_path).segments
    assert after[: len(before)] == before
    assert after[-1].end.sequence == COUNT


def gave_up(made: Service, root: Path) -> tuple[MemoryLog, Log, ArchiveRun]:
    """Return a log that gave its transactions up, alone and with its archive."""
    log = Copy(made.log).log
    result = archive(log, 0, root / FOLDER)
    give_up(log, 0, root / FOLDER, result)
    compact(log)
    return log, with_archive(log, root), result


def test_what_was_given_up_is_read_from_the_archive(made: Service, tmp_path: Path) -> None:
    alone, together, result = gave_up(made, tmp_path)
    assert result.given_up == COUNT - 1
    assert in_topic(alone) == [0], "the rules that it began with stay"
    assert "is not in the log" in log_of(alone).problem
    verdict = verify(together, 0, VerifyOptions(root=made.root, state=tmp_path / "state"))
    assert verdict.problems == []
    assert (verdict.outcomes, verdict.decided_again, verdict.archived) == (COUNT, COUNT, COUNT)
    assert verdict.index_rows > 50
    built = replay(together, 0, ReplayOptions(tmp_path / "new", made.root))
    assert built.problems == []
    assert built.equal_bytes > 10


def test_a_dropped_table_comes_back_from_the_archive(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        running.client.create_table("t", SCHEMA)
        running.client.append("t", rows(1))
        running.client.drop_table("t")
        log = MemoryLog(running.cluster)
        give_up(log, 0, tmp_path / FOLDER, archive(log, 0, tmp_path / FOLDER))
        compact(log)
        with pytest.raises(CorruptLog, match="--root"):
            running.client.undrop("t")
        with CommitLog(lambda: with_archive(MemoryLog(running.cluster), tmp_path)) as client:
            client.undrop("t")
            assert ids_of(client.open("t")) == [1]


def test_the_log_says_what_it_gave_up_before_it_is_gone(made: Service, tmp_path: Path) -> None:
    alone, together, _ = gave_up(made, tmp_path)
    last = alone.last_outcome_records(0)[0].record
    assert isinstance(last, Retained)
    [segment] = opened(alone, tmp_path / FOLDER).segments
    assert (last.sequence, last.hash.hex()) == (COUNT, segment.end.hash)
    assert last.transactions_offset == segment.end.transactions_offset
    [named] = last.segments
    assert named.transactions_digest.hex() == segment.transactions.digest
    shown = ask._record_row(alone.last_outcome_records(0)[0])
    assert (shown["kind"], shown["sequence"]) == ("retained", COUNT)
    assert log_of(together).retained == COUNT
    assert "name the root that has it (--root)" in log_of(alone).problem


@pytest.mark.parametrize("step", ["said", "tombstoned", "half"])
def test_a_run_that_is_killed_between_the_steps_is_done_again(
    made: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    log, folder = Copy(made.log).log, tmp_path / FOLDER
    for through in (9, 16, COUNT):
        archive(log, 0, folder, through=through)
    tombstone, calls = log.tombstone, 0

    def dying(partition: int, keys: Sequence[bytes]) -> None:
        nonlocal calls
        calls += 1
        if step == "said" or (step == "half" and calls == 2):
            tombstone(partition, keys[: calls - 1])
            raise Killed
        tombstone(partition, keys)
        if step == "tombstoned":
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(log, "tombstone", dying, raising=False)
        with pytest.raises(Killed):
            give_up(log, 0, folder, ArchiveRun(0))
    compact(log)
    together = with_archive(log, tmp_path)
    between = log_of(together)
    assert (between.problems, between.retained) == ([], COUNT)
    assert replay(together, 0, ReplayOptions(tmp_path / "between", made.root)).problems == []
    give_up(log, 0, folder, ArchiveRun(0))
    compact(log)
    assert in_topic(log) == [0]
    assert all(segment.given_up for segment in opened(log, folder).segments)
    verdict = log_of(with_archive(log, tmp_path))
    assert (verdict.problems, verdict.outcomes) == ([], COUNT)


def test_nothing_goes_before_the_log_says_so(made: Service, tmp_path: Path) -> None:
    log, folder = Copy(made.log).log, tmp_path / FOLDER
    archive(log, 0, folder)
    before = in_topic(log)
    log.cluster.on_append = lambda append: Fate.REFUSE
    with pytest.raises(Unavailable, match="nothing was given up"):
        give_up(log, 0, folder, ArchiveRun(0))
    compact(log)
    assert in_topic(log) == before


@pytest.mark.parametrize("lost", [True, False])
def test_an_archive_that_is_another_than_the_log_says_is_found(
    made: Service, tmp_path: Path, lost: bool
) -> None:
    """Also one that is whole by itself, forged with its proof: here, who asked."""
    log, _, _ = gave_up(made, tmp_path)
    kept = opened(log, tmp_path / FOLDER)
    [segment] = kept.segments
    forged = []
    for raw in read_file(kept.folder, segment.transactions):
        submitted = to_submitted(0, *raw)
        assert submitted is not None
        if isinstance(submitted.record, Transaction):
            other = replace(submitted.record, principal="mallory")
            raw = raw._replace(value=encode_transaction(other))
        forged.append(raw)
    name = segment.transactions.name
    written = replace(segment, transactions=write_file(kept.folder, name, forged))
    check_segment(kept.folder, written)
    kept._saved(() if lost else (written,))
    problem = log_of(with_archive(log, tmp_path)).problems[0]
    assert problem.kind is ProblemKind.ARCHIVE
    said = "has no such segment" if lost else "its transactions are others than the log says"
    assert said in problem.message


def epoch_of(made: Service) -> int:
    return int(made.client.runtime().request(0, "status")["epoch"])


def give_up_all(made: Service, folder: Path) -> None:
    log = MemoryLog(made.cluster)
    give_up(log, 0, folder, archive(log, 0, folder))


def test_a_leaders_term_goes_on_over_what_is_given_up_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with service(tmp_path) as running:
        running.client.create_table("t", SCHEMA)
        running.client.append("t", rows(1))
        for number in range(2, 6):
            give_up_all(running, tmp_path / FOLDER)
            assert running.client.append("t", rows(number)).version == number + 1
        assert epoch_of(running) == 1
        compact(running.log)
        verdict = log_of(with_archive(running.log, tmp_path))
        assert (verdict.problems, verdict.retained) == ([], 6)
        assert not [one for one in caplog.records if one.levelname == "WARNING"]
        running.running.pop().stop()
        running.start().await_leading()
        assert running.client.append("t", rows(6)).version == 7


def test_a_leader_that_has_nothing_to_do_passes_over_what_is_given_up(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        running.client.create_table("t", SCHEMA)
        give_up_all(running, tmp_path / FOLDER)
        leader = running.running[0].committer._leader
        assert leader is not None
        end = running.log.read_outcomes(0).end_offset()
        wait_until(lambda: leader._next_offset == end, "the leader's look at the end")
        assert running.client.append("t", rows(1)).version == 2
        assert epoch_of(running) == 1


def test_what_somebody_else_appends_ends_the_term(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also beside what the archive says, and with outcomes in flight behind it."""
    with service(tmp_path) as running:
        running.client.create_table("t", SCHEMA)
        give_up_all(running, tmp_path / FOLDER)
        last = running.log.last_outcome_records(0, 2)
        assert [type(one.record) for one in last] == [Outcome, Retained]
        writer = MemoryLog(running.cluster).outcomes_writer(0)
        writer.append("again", last[0].raw, lambda offset, error: None)
        assert running.client.append("t", rows(1)).version == 2
        wait_until(lambda: epoch_of(running) == 2, "the next term")
    assert "are not this term's: another committer leads by now" in caplog.text


def test_who_reads_already_finds_an_archive_that_is_made_meanwhile(tmp_path: Path) -> None:
    made = MadeLog()
    made.run(create("t0"))
    for number in range(1, 8):
        made.run(append_to("t0", number))
    together = with_archive(made.log, tmp_path)
    ahead, behind = together.read_transactions(0, 0), together.read_transactions(0, 0)
    idle = together.read_transactions(0, 5)
    assert [s.offset for s in ahead.poll(records_max=3)] == [0, 1, 2]
    assert behind.poll(records_max=1)[0].offset == 0
    end = archive(made.log, 0, tmp_path / FOLDER).through
    give_up(made.log, 0, tmp_path / FOLDER, ArchiveRun(0))
    compact(made.log)
    # They come to the gap with nothing behind it, and with a record behind it.
    assert offsets_of(idle, end) == [5, 6, 7, 8]
    assert offsets_of(ahead, 6) == [3, 4, 5]
    later = made.append(append_to("t0", 8)).offset
    assert offsets_of(ahead, later + 1) == [6, 7, 8, later]
    assert offsets_of(behind, later + 1) == [*range(1, 9), later]
    assert offsets_of(idle, later + 1) == [later]


def offsets_of(reader: Reader[Submitted], end: int) -> list[int]:
    """Read three records at a time, and not beyond the batch that comes to `end`."""
    offsets: list[int] = []
    while reader.position() < end:
        offsets += [submitted.offset for submitted in reader.poll(records_max=3)]
    return offsets


def test_a_committer_connected_before_there_was_an_archive_leads(tmp_path: Path) -> None:
    """As one does that begins a new term, or takes over, after somebody gave records up."""
    with service(tmp_path / "other") as running:
        log = with_archive(MemoryLog(running.cluster), tmp_path / "root")
        committer = Committer(log, CommitterOptions(tmp_path / "root"))
        running.client.create_table("t", SCHEMA)
        running.client.append("t", rows(1))
        running.running.pop().stop()
        archive(running.log, 0, tmp_path / "root" / FOLDER)
        give_up(running.log, 0, tmp_path / "root" / FOLDER, ArchiveRun(0))
        compact(running.log)
        with meanwhile(committer.run):
            assert running.client.append("t", rows(2)).version == 3


def test_only_what_the_limits_allow_is_given_up(made: Service, tmp_path: Path) -> None:
    """Earlier runs archived more. A segment that reaches beyond a limit stays whole."""
    copy, folder = Copy(made.log), tmp_path / FOLDER
    copy.outcomes[:] = [replace(one, time_ms=1_000 * one.offset) for one in copy.outcomes]
    for end in (5, 9, None):
        archive(copy.log, 0, folder, through=end)
    segments = opened(copy.log, folder).segments
    first, second, last = (1_000 * segment.end.outcome_offset for segment in segments)
    limits: tuple[tuple[int | None, int | None, int], ...] = (
        (4, None, 0),
        (None, first, 0),
        (8, None, 1),
        (None, second, 1),
        (9, second, 1),
        (9, last, 2),
        (None, None, 3),
    )
    for through, before_ms, wanted in limits:
        run = ArchiveRun(0)
        give_up(copy.log, 0, folder, run, through=through, before_ms=before_ms)
        now = opened(copy.log, folder).segments
        assert [one.given_up for one in now] == [number < wanted for number in range(3)]
        assert run.beyond == 3 - wanted


def test_giving_up_twice_changes_nothing(made: Service, tmp_path: Path) -> None:
    alone, _, _ = gave_up(made, tmp_path)
    again = ArchiveRun(0)
    give_up(alone, 0, tmp_path / FOLDER, again)
    assert again.given_up == 0


@pytest.mark.parametrize("kind", ["outcomes", "transactions"])
@pytest.mark.parametrize("damage", ["changed", "cut", "gone"])
def test_nothing_is_given_up_by_an_archive_that_is_not_proven(
    made: Service, tmp_path: Path, kind: str, damage: str
) -> None:
    log = Copy(made.log).log
    folder = tmp_path / FOLDER
    archive(log, 0, folder, through=9)
    archive(log, 0, folder)
    path = sorted((folder / "0").glob(f"*.{kind}.parquet"))[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink() if damage == "gone" else path.write_bytes(data if damage == "changed" else b"")
    before = in_topic(log)
    with pytest.raises(CorruptLog, match=path.name):
        give_up(log, 0, folder, ArchiveRun(0))
    compact(log)
    assert in_topic(log) == before
    verdict = log_of(with_archive(log, tmp_path))
    assert [problem.kind for problem in verdict.problems] == [ProblemKind.ARCHIVE]
    assert path.name in verdict.problem


def test_a_log_that_lost_what_is_archived_is_found(made: Service, tmp_path: Path) -> None:
    copy = Copy(made.log)
    archive(copy.log, 0, tmp_path / FOLDER)
    copy.truncate(copy.outcomes, copy.outcome_at(15))
    verdict = log_of(with_archive(copy.log, tmp_path))
    assert verdict.first_bad_sequence == 15
    assert "archive" in verdict.problem


def test_damage_is_not_archived(made: Service, tmp_path: Path) -> None:
    copy = Copy(made.log)
    del copy.outcomes[copy.outcome_at(7)]
    with pytest.raises(CorruptLog, match="outcome 7 cannot be archived"):
        archive(copy.log, 0, tmp_path)
    assert not (tmp_path / "0" / PROOF).exists()


def test_an_archive_belongs_to_one_log(made: Service, tmp_path: Path) -> None:
    log = Copy(made.log).log
    archive(log, 0, tmp_path)
    other = MemoryLog()
    other.create()
    with pytest.raises(WrongLog, match="log_id"):
        archive(other, 0, tmp_path)
    path = tmp_path / "0" / PROOF
    body = json.loads(path.read_text())
    body["segments"][0]["end"]["sequence"] = 3
    path.write_text(json.dumps(body))
    with pytest.raises(CorruptLog, match="hash"):
        archive(log, 0, tmp_path)


def test_transactions_that_were_decided_out_of_order_are_read_in_order(tmp_path: Path) -> None:
    made = MadeLog()
    made.run(create("t0"))
    late = made.append(append_to("t0", 1))
    for number in range(2, 6):
        made.run(append_to("t0", number))
    folder = tmp_path / FOLDER
    first = archive(made.log, 0, folder)
    give_up(made.log, 0, folder, first)
    assert (first.through, first.given_up) == (6, 0), "one before them is still undecided"
    made.decide(late)
    made.run(append_to("t0", 6))
    second = archive(made.log, 0, folder)
    give_up(made.log, 0, folder, second)
    assert second.given_up == 7
    compact(made.log)
    assert in_topic(made.log) == [0]
    made.run(append_to("t0", 7))
    together = with_archive(made.log, tmp_path)
    reader = together.read_transactions(0, 0)
    offsets = []
    while reader.position() < reader.end_offset():
        offsets += [submitted.offset for submitted in reader.poll(records_max=3)]
    assert offsets == [*range(8), offsets[-1]]
    assert [s.offset for s in together.read_transactions(0, 4).poll()] == [4, 5, 6, 7]
    verdict = log_of(together)
    assert verdict.problems == []
    assert (verdict.outcomes, verdict.undecided) == (9, 0)
    answered = [a.record for a in together.read_outcomes(0).poll()]
    order = [a.transaction_offset for a in answered if isinstance(a, Outcome)]
    assert order != sorted(order)


def test_one_run_at_a_time_changes_an_archive(
    made: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each replaces the proof by what it has read of it: the other one's segments would be lost."""
    monkeypatch.setattr(prove, "connect", lambda config: MemoryLog(made.cluster))
    arguments = ["archive", "--root", str(tmp_path)]
    ends: list[int] = []

    def write_beside(folder: Path, name: str, records: Sequence[RawRecord]) -> ArchivedFile:
        if not ends:
            ends.append(ExitCode.OK)  # so that the other one isn't interrupted
            ends[0] = cli.main(arguments)
        return write_file(folder, name, records)

    monkeypatch.setattr(writer, "write_file", write_beside)
    assert cli.main(arguments) == ExitCode.OK
    assert ends == [ExitCode.UNAVAILABLE]
    assert cli.main(arguments) == ExitCode.OK


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_file_that_a_disk_does_not_take_is_named_and_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """What was written of it would keep the disk full; and nobody knew which disk that was."""

    def failed(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failed)
    with pytest.raises(OSError, match=rf"{os.strerror(number)}: '{tmp_path}/a\.parquet\.tmp'"):
        write_file(tmp_path, "a.parquet", [])
    assert list(tmp_path.iterdir()) == []
