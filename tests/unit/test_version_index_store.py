"""The index holds what the log says, whatever batches, seals, restarts and losses there were."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import duckdb
import pytest

from commitlog.core.log.replica import Decided
from commitlog.errors import (
    CorruptLog,
    NoSuchTable,
    NoSuchVersion,
    Unavailable,
    UnsupportedFormat,
    WrongLog,
)
from commitlog.model.operations import target
from commitlog.model.records import LeaderStarted, Outcome, Status, Transaction
from commitlog.model.table import format_table_id
from commitlog.ports import Log
from consumers import history
from consumers.runtime.roots import RootInUse
from consumers.views.version_index import IndexPosition, Term, VersionIndex, run_index
from consumers.views.version_index.process import follow
from consumers.views.version_index.rows import no_recordings
from consumers.views.version_index.schema import EVENTS, LEADERS, TABLES
from tests.fakes.log_stream import PartitionLog, ReadOnlyLog, batches
from tests.waiting import meanwhile, up_to_end

TRANSACTIONS = 640


@pytest.fixture(scope="module")
def stream() -> PartitionLog:
    made = PartitionLog()
    made.grow(TRANSACTIONS)
    return made


@pytest.fixture(scope="module")
def decided(stream: PartitionLog) -> list[Decided]:
    return stream.decided()


def log_of(*streams: PartitionLog, **fields: str) -> Log:
    return cast(Log, ReadOnlyLog(list(streams), **fields))


def build(root: Path, log: Log, *, hot: int = 20_000, grace: float = 3600) -> None:
    with VersionIndex(root, hot_transactions_max=hot, grace_seconds=grace) as index:
        follow(log, index, **up_to_end())


def contents(root: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return every row that must be the same in a rebuilt index."""
    with history.connect(root) as connection:
        return {
            relation.name: connection.execute(f"FROM {relation.name} ORDER BY ALL").fetchall()
            for relation in (*EVENTS, LEADERS, TABLES)
        }


def apply_all(index: VersionIndex, decided: list[Decided], size: int) -> None:
    for batch in batches(decided, size):
        index.apply(batch, position_after(batch), recordings=no_recordings)


def position_after(batch: list[Decided]) -> IndexPosition:
    last = batch[-1]
    return IndexPosition(
        0,
        last.outcome.sequence,
        last.answered_offset + 1,
        last.submitted.offset + 1,
        last_outcome_offset=last.answered_offset,
        hash=last.outcome.hash,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, stream: PartitionLog) -> Path:
    root = tmp_path_factory.mktemp("built")
    build(root, log_of(stream))
    return root


@pytest.mark.slow
def test_sealed_and_merged_rows_are_the_same_rows(
    tmp_path: Path, decided: list[Decided], built: Path
) -> None:
    tmp_path = tmp_path / "env=prod"  # which is no column of the segments' rows
    with VersionIndex(tmp_path, hot_transactions_max=50, grace_seconds=0) as index:
        for batch in batches(decided, 75):
            index.apply(batch, position_after(batch), recordings=no_recordings)
            index.settle()
            index.publish()
        index.settle()
        assert index.hot_transactions < 50
        index.publish()
        made = contents(tmp_path)
    expected = contents(built)
    for name in [relation.name for relation in EVENTS] + ["tables"]:
        assert made[name] == expected[name], name
    levels = history.query(tmp_path, "SELECT DISTINCT level FROM segments ORDER BY level")
    assert {"level": 1} in levels


@pytest.mark.slow
def test_merged_segments_go_after_their_grace_and_never_before(
    tmp_path: Path, decided: list[Decided]
) -> None:
    def segments() -> set[str]:
        return {path.name for path in (tmp_path / "index" / "segments").glob("*.parquet")}

    with VersionIndex(tmp_path, hot_transactions_max=25, grace_seconds=3600) as index:
        for batch in batches(decided, 75):
            index.apply(batch, position_after(batch), recordings=no_recordings)
            index.settle()
        index.publish()
        index.publish()
        obsolete = {str(r["path"]) for r in history.query(tmp_path, "FROM obsolete")}
        assert obsolete
        assert {Path(path).name for path in obsolete} <= segments()
    (tmp_path / "index" / "segments" / "transactions-0-leftover.parquet").write_bytes(b"x")
    with VersionIndex(tmp_path, grace_seconds=0) as index:
        assert "transactions-0-leftover.parquet" in segments()
        assert index.publish()
    assert not {Path(path).name for path in obsolete} & segments()
    assert "transactions-0-leftover.parquet" not in segments()
    assert len(history.timeline(tmp_path, limit=5000)) == TRANSACTIONS


def test_what_is_not_the_next_batch_is_refused(tmp_path: Path, decided: list[Decided]) -> None:
    with VersionIndex(tmp_path) as index:
        index.apply(decided[:10], position_after(decided[:10]), recordings=no_recordings)
        for wrong in (decided[:10], decided[11:20], decided[5:15]):
            with pytest.raises(CorruptLog, match="cannot lead"):
                index.apply(wrong, position_after(wrong), recordings=no_recordings)
        assert index.position(0).sequence == 10


def test_a_failed_batch_leaves_no_rows(tmp_path: Path, decided: list[Decided]) -> None:
    term = Term(LeaderStarted(2**40, "n", "i", 0, b"", b""), 0)  # its epoch fits no column
    with VersionIndex(tmp_path) as index:
        index.apply(decided[:10], position_after(decided[:10]), recordings=no_recordings)
        with pytest.raises(Exception, match="1099511627776"):
            index.apply(
                decided[10:20],
                position_after(decided[10:20]),
                terms=[term],
                recordings=no_recordings,
            )
    with VersionIndex(tmp_path) as index:
        assert index.position(0).sequence == 10
        index.publish()
    assert len(history.timeline(tmp_path, limit=100)) == 10


def test_one_keeper_at_a_time(tmp_path: Path) -> None:
    with (
        VersionIndex(tmp_path),
        pytest.raises(RootInUse, match="keeps the version index"),
    ):
        VersionIndex(tmp_path)
    VersionIndex(tmp_path).close()


LOSSES: dict[str, Callable[[Path], object]] = {
    "public": lambda root: (root / "index.duckdb").unlink(),
    "private": lambda root: shutil.rmtree(root / "index"),
    "both": lambda root: _lose(root / "index.duckdb", root / "index"),
    "live": lambda root: (root / "index" / "live.duckdb").unlink(),
    "a segment": lambda root: next((root / "index" / "segments").glob("operations*")).unlink(),
    "a segment's bytes": lambda root: _overwrite(next((root / "index").glob("*/collisions*"))),
    "the live file's bytes": lambda root: (root / "index" / "live.duckdb").write_bytes(b"x" * 9999),
    "a half live file": lambda root: _cut(root / "index" / "live.duckdb"),
    "all bytes": lambda root: [
        (root / "index" / "live.duckdb").write_bytes(b"x" * 9999),
        (root / "index.duckdb").write_bytes(b""),
    ],
}


def _lose(public: Path, private: Path) -> None:
    public.unlink()
    shutil.rmtree(private)


def _overwrite(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory, stream: PartitionLog) -> tuple[Path, Path]:
    """Return the root of an index with segments, and a copy of all that is in it."""
    root = tmp_path_factory.mktemp("sealed")
    build(root, log_of(stream), hot=500)
    build(root, log_of(stream), hot=500)
    return root, Path(shutil.copytree(root, root.with_name("copy-of-sealed")))


@pytest.fixture(scope="module")
def expected(built: Path) -> dict[str, list[tuple[object, ...]]]:
    return contents(built)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_what_is_lost_is_rebuilt_equal(
    stream: PartitionLog,
    sealed: tuple[Path, Path],
    expected: dict[str, list[tuple[object, ...]]],
    loss: Callable[[Path], object],
) -> None:
    # An index stays where it is: it notices a root that was moved.
    root, copy = sealed
    shutil.rmtree(root)
    shutil.copytree(copy, root)
    assert contents(root) == expected
    loss(root)
    build(root, log_of(stream), hot=500)
    assert contents(root) == expected


@pytest.mark.slow
def test_an_older_damaged_file_that_cannot_be_removed_is_not_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(path: str, **_: object) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)  # a file is still open

    monkeypatch.setattr(os, "rmdir", refusing)
    for damage in (b"x" * 9999, b"y" * 9999):
        VersionIndex(tmp_path).close()
        (tmp_path / "index" / "live.duckdb").write_bytes(damage)
        VersionIndex(tmp_path).close()
        assert (tmp_path / "index" / "damaged" / "live.duckdb").read_bytes() == damage


@pytest.mark.slow
def test_readers_of_a_rebuilt_index_see_no_step_back(
    tmp_path: Path, decided: list[Decided]
) -> None:
    with VersionIndex(tmp_path) as index:
        apply_all(index, decided[:500], 100)
        index.publish()
    with history.connect(tmp_path) as connection:  # an older program's file
        assert connection.execute("SELECT sequence FROM positions").fetchall() == [(500,)]
    shutil.rmtree(tmp_path / "index")
    with duckdb.connect(str(tmp_path / "index.duckdb")) as connection:
        connection.execute("UPDATE meta SET value = '0' WHERE key = 'schema_version'")
    with VersionIndex(tmp_path) as index:
        assert index.position(0).sequence == 0
        apply_all(index, decided[:400], 100)
        assert not index.publish()
        with pytest.raises(UnsupportedFormat, match="has format 0"):  # as it was left
            history.status(tmp_path)
        apply_part = decided[400:600]
        index.apply(apply_part, position_after(apply_part), recordings=no_recordings)
        assert index.publish()
    assert history.status(tmp_path)[0]["sequence"] == 600


@pytest.mark.slow
def test_another_log_is_refused_by_name(tmp_path: Path, stream: PartitionLog) -> None:
    build(tmp_path, log_of(stream))
    stop = threading.Event()
    stop.set()
    with pytest.raises(WrongLog, match="cluster_id is 'cluster' there and 'elsewhere' here"):
        run_index(log_of(stream, cluster_id="elsewhere"), tmp_path, stop=stop)
    other = PartitionLog(seed=1)
    with pytest.raises(WrongLog, match="log_id"):
        run_index(log_of(other), tmp_path, stop=stop)


@pytest.mark.slow
def test_a_log_that_lost_its_tail_is_noticed(tmp_path: Path) -> None:
    stream = PartitionLog()
    stream.grow(50)
    build(tmp_path, log_of(stream))
    shorter = PartitionLog()
    shorter.grow(40)
    with pytest.raises(CorruptLog, match="ends before"):
        build(tmp_path, log_of(shorter))
    last = cast(Outcome, stream.answered[-1].record)
    stream.answered[-1] = replace(stream.answered[-1], record=replace(last, hash=b"other"))
    with pytest.raises(CorruptLog, match="another outcome"):
        build(tmp_path, log_of(stream))


def test_void_records_leave_no_rows(tmp_path: Path) -> None:
    stream = PartitionLog()
    stream.grow(20)
    zombie = replace(cast(Outcome, stream.answered[5].record), epoch=9)
    answered = [*stream.answered]
    answered.insert(6, replace(stream.answered[5], record=zombie))
    stream.answered = [replace(one, offset=offset) for offset, one in enumerate(answered)]
    build(tmp_path, log_of(stream))
    rows = history.timeline(tmp_path, limit=100)
    assert [row["sequence"] for row in rows] == list(range(20, 0, -1))
    assert history.status(tmp_path)[0]["outcomes_offset"] == len(answered)


@pytest.mark.slow
def test_a_transaction_that_others_passed_is_read_again(tmp_path: Path) -> None:
    # The ones at even offsets wait for a build; those after them are decided first.
    stream = PartitionLog()
    stream.grow(41)
    swap = {0: 0} | {offset: offset + 1 if offset % 2 else offset - 1 for offset in range(1, 41)}
    by_offset = {
        swap[one.offset]: replace(one, offset=swap[one.offset]) for one in stream.submitted
    }
    whole = []
    for one in stream.answered:
        if isinstance(one.record, Outcome):
            moved = swap[one.record.transaction_offset]
            one = replace(one, record=replace(one.record, transaction_offset=moved))
        whole.append(one)
    stream.submitted = [by_offset[offset] for offset in sorted(by_offset)]
    for end in range(6, len(whole) + 1, 8):
        stream.answered = whole[:end]
        build(tmp_path, log_of(stream))
    stream.answered = whole
    build(tmp_path, log_of(stream))
    rows = history.timeline(tmp_path, limit=100)
    expected = [one.record for one in whole if isinstance(one.record, Outcome)]
    assert [row["transaction_id"] for row in reversed(rows)] == [
        outcome.transaction_id for outcome in expected
    ]


@pytest.mark.slow
def test_several_partitions_each_have_their_position(tmp_path: Path) -> None:
    streams = [PartitionLog(0), PartitionLog(1)]
    streams[0].grow(300)
    streams[1].grow(200)
    build(tmp_path, log_of(*streams), hot=100)
    streams[1].grow(50)
    build(tmp_path, log_of(*streams), hot=100)
    rows = history.status(tmp_path)
    assert [(row["partition"], row["sequence"], row["lag"]) for row in rows] == [
        (0, 300, 0),
        (1, 250, 0),
    ]
    for partition, stream in enumerate(streams):
        assert _heads_at(tmp_path, 200, partition) == expected_heads(stream.decided()[:200])


@pytest.mark.slow
def test_a_running_index_is_read_from_another_process(tmp_path: Path) -> None:
    stream = PartitionLog()
    stream.grow(200)
    script = (
        "import duckdb, sys, time\n"
        "wanted, deadline = 0, time.monotonic() + 100\n"
        "while wanted < 3 and time.monotonic() < deadline:\n"
        "    try:\n"
        "        c = duckdb.connect(sys.argv[1], read_only=True)\n"
        "    except duckdb.IOException:\n"
        "        time.sleep(0.05); continue\n"
        "    a, b = c.execute('SELECT (SELECT count(*) FROM timeline), max(sequence)"
        " FROM positions').fetchall()[0]\n"
        "    assert a == (b or 0), (a, b)\n"
        "    wanted += a > 200 * wanted\n"
        "    c.close(); time.sleep(0.02)\n"
        "print(wanted)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "index.duckdb")]
    with (
        meanwhile(lambda stop: run_index(log_of(stream), tmp_path, stop=stop)),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader,
    ):
        for _ in range(100):
            stream.grow(20)
            time.sleep(0.02)
        output, _ = reader.communicate(timeout=120)
    assert output.strip() == "3"


def test_two_connections_of_a_process_see_their_own_snapshots(
    tmp_path: Path, decided: list[Decided]
) -> None:
    with VersionIndex(tmp_path) as index:
        index.apply(decided[:10], position_after(decided[:10]), recordings=no_recordings)
        index.publish()
        with history.connect(tmp_path) as before:
            index.apply(decided[10:20], position_after(decided[10:20]), recordings=no_recordings)
            index.publish()
            with history.connect(tmp_path) as after:
                sql = "SELECT count(*) FROM transactions"
                assert before.execute(sql).fetchall() == [(10,)]
                assert after.execute(sql).fetchall() == [(20,)]


# The answers, computed once more in plain Python.


def effects(decided: list[Decided]) -> Iterator[tuple[Decided, int]]:
    for one in decided:
        if one.outcome.status is Status.COMMITTED and one.outcome.answers is None:
            for ordinal in range(len(one.outcome.results)):
                yield one, ordinal


def expected_heads(decided: list[Decided]) -> dict[str, tuple[str, int]]:
    standing: dict[str, tuple[str, int]] = {}
    for one, ordinal in effects(decided):
        result = one.outcome.results[ordinal]
        name = format_table_id(result.table)
        if result.operation == "DropTable":
            del standing[name]
        elif result.operation == "RenameTable":
            operation = cast(Transaction, one.submitted.record).operations[ordinal]
            new = cast(tuple[str, ...], operation.new_table)  # type: ignore[union-attr]
            standing[format_table_id(new)] = standing.pop(name)
        elif result.version:
            standing[name] = (result.incarnation, result.version)
    return standing


def _heads_at(root: Path, sequence: int, partition: int = 0) -> dict[str, tuple[object, object]]:
    rows = history.query(root, "FROM heads_at(?, of_partition := ?)", [sequence, partition])
    return {str(row["table_name"]): (row["incarnation"], row["version"]) for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [1, 2, 77, 250, 617, TRANSACTIONS])
def test_heads_at_a_position(built: Path, decided: list[Decided], sequence: int) -> None:
    assert _heads_at(built, sequence) == expected_heads(decided[:sequence])


def asked_of(name: str, life: str, decided: list[Decided]) -> list[tuple[int, int, int | None]]:
    """Return where a table was asked for, newest first, with the versions; no repeated request."""
    found = []
    for one in decided:
        record, outcome = one.submitted.record, one.outcome
        if not isinstance(record, Transaction) or outcome.answers is not None:
            continue
        results = outcome.results
        for ordinal, operation in enumerate(record.operations):
            made = results[ordinal] if results else None
            lives = made.incarnation if made else getattr(operation, "incarnation", "")
            if format_table_id(target(operation)) == name or lives == life:
                version = made.version if made else 0
                found.append((outcome.sequence, ordinal, version or None))
    return sorted(found, reverse=True)


@pytest.mark.slow
def test_history_has_versions_and_refused_attempts(built: Path, decided: list[Decided]) -> None:
    for name, (life, _) in expected_heads(decided).items():
        rows = history.history(built, name, limit=10_000)
        found = [(row["sequence"], row["ordinal"], row["version"]) for row in rows]
        assert found == asked_of(name, life, decided)
        assert history.history(built, name, limit=7) == rows[:7]
        kept = [row for row in rows if row["status"] == "committed"]
        assert history.history(built, name, limit=10_000, refused=False) == kept


@pytest.mark.slow
def test_timeline_conflicts_and_writers(built: Path, decided: list[Decided]) -> None:
    rows = history.timeline(built, limit=10_000)
    assert [row["transaction_id"] for row in rows] == [
        one.outcome.transaction_id for one in reversed(decided)
    ]
    after = history.timeline(built, limit=5, after=(0, 100))
    assert [row["sequence"] for row in after] == [101, 102, 103, 104, 105]
    lost = [one for one in reversed(decided) if one.outcome.conflict]
    by_id = {one.outcome.transaction_id: one for one in decided if not one.outcome.answers}
    met = history.conflicts(built, limit=10_000)
    assert [row["transaction_id"] for row in met] == [one.outcome.transaction_id for one in lost]
    for row in met:
        winner = by_id[str(row["winner_transaction_id"])]
        assert row["winner_sequence"] == winner.outcome.sequence
        assert row["winner_principal"] == cast(Transaction, winner.submitted.record).principal
    one_table = history.conflicts(built, "ns0$t1", limit=10_000)
    assert one_table == [row for row in met if row["table_name"] == "ns0$t1"]
    transactions: Counter[str] = Counter()
    commits: Counter[str] = Counter()
    for one in decided:
        writer = getattr(one.submitted.record, "principal", "")
        transactions[writer] += 1
        done = one.outcome.status is Status.COMMITTED and one.outcome.answers is None
        commits[writer] += done
    found = {
        row["principal"]: (row["transactions"], row["committed"]) for row in history.writers(built)
    }
    assert found == {name: (count, commits[name]) for name, count in transactions.items()}


@pytest.mark.slow
def test_one_transaction_and_one_version(built: Path, decided: list[Decided]) -> None:
    one, ordinal = [*effects(decided)][400]
    (row, *_) = history.transaction(built, one.outcome.transaction_id)
    assert row["sequence"] == one.outcome.sequence
    assert len(cast(list[object], row["details"])) == len(one.outcome.results)
    lost = next(one for one in decided if one.outcome.conflict)
    (row, *_) = history.transaction(built, lost.outcome.transaction_id)
    assert cast(history.Row, row["conflict"])["transaction_id"] == lost.outcome.transaction_id
    assert history.transaction(built, "nobody's") == []
    for name, (life, version) in expected_heads(decided).items():
        at = history.table_at(built, name, version)
        assert (at["incarnation"], at["version"]) == (life, version)
        assert at["location"]


def test_unknown_names_say_what_exists(built: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSuchTable, match=r"Did you mean ns0\$t"):
        history.history(built, "ns0$tt1")
    with pytest.raises(NoSuchTable, match=r"The tables are ns0\$t0, .*…"):
        history.conflicts(built, "?")
    with pytest.raises(NoSuchVersion, match=r"it has versions \d+ to \d+"):
        history.table_at(built, "ns0$t1", 10**6)
    with pytest.raises(Unavailable, match="commitlog up --root"):
        history.timeline(tmp_path)
    with pytest.raises(ValueError, match="at least 1"):
        history.timeline(built, limit=0)


@pytest.mark.slow
def test_everything_that_can_be_asked_is_documented(built: Path) -> None:
    views = history.query(
        built,
        "SELECT view_name, comment FROM duckdb_views() WHERE NOT internal"
        " AND database_name = 'commitlog'",
    )
    macros = history.query(
        built,
        "SELECT function_name, comment FROM duckdb_functions() WHERE NOT internal"
        " AND database_name = 'commitlog'",
    )
    assert views
    assert macros
    assert all(row["comment"] for row in [*views, *macros])
    for row in history.query(built, "SELECT name, kind, example FROM help"):
        if row["kind"] != "macro":
            assert history.query(built, f"FROM {row['name']} LIMIT 1") is not None


@pytest.mark.slow
def test_a_moved_root_is_noticed(tmp_path: Path, stream: PartitionLog) -> None:
    build(tmp_path / "a", log_of(stream), hot=250)
    build(tmp_path / "a", log_of(stream), hot=250)
    before = contents(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    build(tmp_path / "b", log_of(stream), hot=250)
    assert contents(tmp_path / "b") == before


def test_a_disk_that_was_full_leaves_no_lock_that_nobody_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that begins again is the same process."""

    def full(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        VersionIndex(tmp_path).close()  # its lock is no worse without a number
    VersionIndex(tmp_path).close()
