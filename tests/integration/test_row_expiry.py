"""Do rows leave the log by policy, by a record, once a version has them, and is all else kept?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.client.accepted.row_rebuild import content_of
from commitlog.codecs.payloads import inline_rows
from commitlog.errors import InvalidSettings, TransactionRejected
from commitlog.model.names import ROWS_EXPIRED_THROUGH
from commitlog.model.operations import (
    AlterProperties,
    DropNamespace,
    RenameTable,
)
from commitlog.protocol import transactions_topic
from consumers.tools.archive import row_notes
from consumers.tools.archive import writer as archive_writer
from consumers.tools.archive.log import FOLDER
from consumers.tools.archive.proof import Archive
from consumers.tools.archive.rows import decided, take_out
from consumers.tools.archive.writer import ArchiveRun, archive, give_up
from consumers.tools.replay.replay import ReplayOptions, replay
from consumers.tools.rows import expiry as row_expiry
from consumers.tools.rows.expiry import expire_rows
from consumers.tools.verify import ProblemKind, VerifyOptions, verify
from consumers.views.explanation import explain
from tests.integration.test_erasure import dies_after, open_log
from tests.integration.test_explain import indexed
from tests.integration.test_row_writer import writing
from tests.service import Service, service

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
EXPIRES, STAYS = "shop$expires", "shop$stays"
POLICY = {"rows": "log", "commitlog.maintain.expire-rows-days": "30"}
DAY_MS = 86_400_000


def row(id: int, name: str) -> pa.Table:
    return pa.table({"id": [id], "name": [name]}, schema=SCHEMA)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Service]:
    """Two tables, one of which lets its rows expire; one write to it is refused when applied."""
    with service(tmp_path / "root") as made:
        client = made.client
        client.create_table(EXPIRES, SCHEMA, primary_key="id", properties=POLICY)
        client.create_table(STAYS, SCHEMA, primary_key="id", properties={"rows": "log"})
        condition = "cast(source.name as bigint) > 1"
        with writing(made, age_seconds=0.01):
            for number in range(3):
                client.write_rows(EXPIRES, row(number, "leaves-it"), mode="upsert").result(60)
                client.write_rows(STAYS, row(number, "stays-here"), mode="upsert").result(60)
            refused = client.write_rows(
                EXPIRES,
                row(0, "was-refused"),
                mode="upsert",
                when_matched_update_all_filt=condition,
            )
            with pytest.raises(TransactionRejected):
                refused.result(60).raise_for_conflict()
        yield made


def later_ms(days: float) -> int:
    return time.time_ns() // 1_000_000 + int(days * DAY_MS)


def archived(world: Service, days: float = 0.0) -> ArchiveRun:
    """Archive all, give it up, have rows expire as if so many days had gone by; compact."""
    folder, log = world.root / FOLDER, open_log(world)
    run = archive(log, 0, folder)
    give_up(log, 0, folder, run)
    expire_rows(world.client, log, folder, run, now_ms=lambda: later_ms(days))
    world.cluster.compact(transactions_topic(world.log.name))
    return run


def found(world: Service, word: str) -> bool:
    """Return whether the topic or the archive has a word."""
    [partition] = world.cluster.topics[transactions_topic(world.log.name)].partitions
    in_topic = any(word.encode() in (one.value or b"") for one in partition.records)
    folder, log = world.root / FOLDER, open_log(world)
    kept = Archive.open(folder, log.identity(), log.genesis(0))
    rows = [p for s in kept.segments for _, t in decided(kept, s) for p in t.payloads]
    return in_topic or any(word.encode() in one for one in rows)


def proven(world: Service) -> Any:
    verdict = verify(open_log(world), 0, VerifyOptions(root=world.root, contents=True))
    assert verdict.problems == []
    return verdict


def test_rows_expire_by_a_record_and_all_else_is_kept(world: Service, tmp_path: Path) -> None:
    before = content_of(world.client.open(EXPIRES))
    assert archived(world, days=29).expired == [], "they are too young"
    assert found(world, "leaves-it")
    [said] = archived(world, days=31).expired
    assert "shop$expires" in said
    assert "3 writes are older than 30 days" in said
    assert not found(world, "leaves-it")
    assert found(world, "stays-here"), "its table has no such policy"
    assert found(world, "was-refused"), "no version has it"
    assert content_of(world.client.open(EXPIRES)) == before
    verdict = proven(world)
    assert (verdict.rows_expired.records, verdict.rows_expired.writes) == (1, 3)
    assert "shop$expires through position" in verdict.rows_expired.newest[0]
    assert archived(world, days=31).expired == [], "nothing is left to do"
    # Who builds the rows again is told why they don't come.
    result = replay(open_log(world), 0, ReplayOptions(tmp_path / "new", rows="all"))
    assert result.problems == []
    assert result.rows_expired == verdict.rows_expired.newest
    of = {one.table: one for one in result.rebuilt}
    assert "expired" in of[EXPIRES].why
    assert of[STAYS].is_equal
    # So is whoever asks about the write.
    log = open_log(world)
    kept = Archive.open(world.root / FOLDER, log.identity(), log.genesis(0))
    both = [pair for segment in kept.segments for pair in decided(kept, segment)]
    ids = [
        t.transaction_id for o, t in both if inline_rows(t) and o.results[0].table[1] == "expires"
    ]
    [attempt] = explain(indexed(world.root, log), ids[0])
    assert "expired by record" in str(attempt["words"])


def test_what_a_later_run_archived_is_given_up_by_no_expiry(world: Service) -> None:
    archived(world)
    world.client.write_rows(STAYS, row(8, "came-later"), mode="upsert").result(60, "accepted")
    folder, log = world.root / FOLDER, open_log(world)
    run = archive(log, 0, folder)
    expire_rows(world.client, log, folder, run, now_ms=lambda: later_ms(31))
    kept = Archive.open(folder, log.identity(), log.genesis(0))
    assert len(run.expired) == 1
    assert [one.given_up for one in kept.segments] == [True, False]


def test_it_may_be_killed_after_each_step(world: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [
        (row_expiry, "_record"),
        (row_expiry, "take_out"),
        (archive_writer, "_say"),
        (MemoryLog, "tombstone"),
    ]
    archived(world)
    for owner, name in steps:
        with monkeypatch.context() as patch:
            dies_after(patch, owner, name)
            with pytest.raises(KeyboardInterrupt):
                archived(world, days=31)
    archived(world, days=31)
    assert not found(world, "leaves-it")
    assert found(world, "stays-here")
    assert proven(world).rows_expired.records == 1


def test_what_was_read_before_is_not_read_again(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = decided

    def counting(kept: Archive, segment: Any) -> Any:
        read.append(segment.name)
        return whole(kept, segment)

    monkeypatch.setattr(row_notes, "decided", counting)
    archived(world)
    first = len(read)
    archived(world, days=29)
    assert set(read[first:]).isdisjoint(read[:first]), "only what was archived since"
    assert len(archived(world, days=31).expired) == 1
    for _ in range(2):  # what is left of rows was refused
        archived(world, days=31)
    read.clear()
    archived(world, days=31)
    assert len(set(read)) <= 1, "the segment that this run made"
    for path in world.root.rglob("rows.json"):
        path.write_bytes(b"{")
    assert archived(world, days=31).expired == []
    assert found(world, "was-refused")


def test_what_waits_stays_and_a_wrong_policy_is_named(world: Service) -> None:
    waits = world.client.write_rows(EXPIRES, row(7, "waits-here"), mode="upsert")
    waits.result(60, "accepted")
    archived(world, days=31)
    assert found(world, "waits-here")
    with writing(world, age_seconds=0.01):
        assert waits.result(60).version
    archived(world, days=31)
    assert not found(world, "waits-here")
    wrong = AlterProperties(
        ("shop", "stays"), upserts=(("commitlog.maintain.expire-rows-days", "x"),)
    )
    world.client.submit(None, wrong).result(60).raise_for_conflict()
    with pytest.raises(InvalidSettings, match="expire-rows-days"):
        archived(world, days=31)


def test_what_waits_for_a_table_whose_namespace_ended_waits_no_more(world: Service) -> None:
    """A namespace's end names no table, so all that came later stayed in the topic for good."""
    waits = world.client.write_rows(EXPIRES, row(7, "waits-here"), mode="upsert")
    waits.result(60, "accepted")
    renamed = RenameTable(("shop", "expires"), ("shop", "new"))
    world.client.submit(None, renamed).result(60).raise_for_conflict()
    end = DropNamespace(("shop",), cascade=True)
    world.client.submit(None, end).result(60).raise_for_conflict()
    folder, log = world.root / FOLDER, open_log(world)
    run = archive(log, 0, folder)
    give_up(log, 0, folder, run)
    assert run.given_up
    assert not run.waiting


def test_rows_that_no_record_lets_expire_are_a_problem(world: Service) -> None:
    """A record excuses what came before its position in its own table, and nothing else."""
    archived(world)
    log = open_log(world)
    kept = Archive.open(world.root / FOLDER, log.identity(), log.genesis(0))
    both = [pair for segment in kept.segments for pair in decided(kept, segment)]
    at = {o.results[0].table[1]: o.sequence for o, t in both if inline_rows(t)}
    for table, through in (("expires", at["expires"]), ("stays", at["stays"] - 1)):
        said = ((ROWS_EXPIRED_THROUGH, str(through)),)
        record = AlterProperties(("shop", table), upserts=said)
        world.client.submit(None, record).result(60).raise_for_conflict()
    take_out(kept, {at["stays"]: {0}})
    problems = verify(log, 0, VerifyOptions(root=world.root)).problems
    assert {one.sequence for one in problems if one.kind is ProblemKind.ROWS} == {at["stays"]}
