"""What one commit costs, counted: records, bytes, messages, files, calls. No clock is looked at.

The limits are what is true now with a little room: who makes a commit dearer changes a number
here, and says why.
"""

from __future__ import annotations

import os
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import lance
import pytest

import commitlog
import consumers
from commitlog.adapters.places import use_places
from commitlog.adapters.storage import LocalStore
from commitlog.codecs.lanes import NATIVE, lane
from commitlog.codecs.manifest_file import encode_manifest
from commitlog.core.partition.machine import Machine
from commitlog.model.records import Status, Submitted, Transaction
from commitlog.protocol import outcomes_topic, transactions_topic
from commitlog.wire import FrameBuffer
from consumers.partition.files.table_files import UNHINTED_MAX
from consumers.tools.bench.made_log import MadeLog, append_to, configure, create, decide
from tests.service import SCHEMA, Service, rows, service

COMMITS = 16
TABLE = "shop$orders"

TRANSACTION_BYTES_MAX, OUTCOME_BYTES_MAX = 360, 360
FRAGMENT_BYTES_MAX = 75
"""Of a manifest, for a fragment of one file with three columns and a name of 38 bytes."""
DECIDE_CALLS_MAX = 175 if lane() == NATIVE else 200
"""164 at the head, 169 five versions behind: of Python's functions and the interpreter's own; 189
and 194 without machine code."""
CLIENT_CALLS_MAX, CLIENT_CALLS_ALONE_MAX = (38, 42) if lane() == NATIVE else (127, 131)
"""35 with many in flight, 39 with one: of Python's functions, from `submit` to the answer; 124
and 128 without machine code."""
DELETE_CALLS_MAX = 262 if lane() == NATIVE else 276
"""260 of Python's functions in the writer, for a row of a fragment that lost rows before; 274
without machine code."""
LEADER_CALLS_MAX, LEADER_CALLS_ALONE_MAX = (276, 530) if lane() == NATIVE else (315, 590)
"""513 for a commit that has each turn of each thread to itself, more on a busy machine, whose
turns are more; 266 in company, or 271 if that takes a turn more; 309 without machine code."""
NEW_FILES_MAX = 200
"""So many fragments at most are taken out of a manifest one by one; the others by 64."""
CALLS_SPREAD, BLOCKS_MAX = 1.05, 25


@pytest.fixture(autouse=True)
def _no_place_is_bound() -> None:
    """Have files where they were recorded: what another test bound costs two calls a place."""
    use_places("")


class Counted:
    """What went through the service."""

    def __init__(self) -> None:
        self.frames: Counter[str] = Counter()
        self.files: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def clear(self) -> None:
        for counter in (self.frames, self.files, self.bytes):
            counter.clear()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Count frames as they arrive on either side, and calls of a table's store."""
    found = Counted()
    feed = FrameBuffer.feed

    def counting_feed(self: FrameBuffer, data: bytes) -> Any:
        frames = feed(self, data)
        found.frames.update(kind.name for kind, _ in frames)
        return frames

    monkeypatch.setattr(FrameBuffer, "feed", counting_feed)
    for name in ("write", "write_hint", "write_ahead", "create", "read", "size", "delete", "names"):
        monkeypatch.setattr(LocalStore, name, _counting(found, name, getattr(LocalStore, name)))
    return found


def _counting(found: Counted, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def counting(self: LocalStore, path: str, *arguments: Any) -> Any:
        if path.startswith(("_versions", "_transactions", "data")):  # others are the log's own
            found.files[name] += 1
            if arguments:
                found.bytes[name] += len(arguments[0])
        return call(self, path, *arguments)

    return counting


@contextmanager
def table(root: Path, policy: str) -> Iterator[tuple[Service, Callable[[], None]]]:
    """Run a service with a table; yield it with what commits one append of it."""
    with service(root) as running:
        running.client.create_table(TABLE, SCHEMA, policy=policy)
        info = running.client.table(TABLE)
        [fragment] = lance.fragment.write_fragments(
            rows(1), info.location, data_storage_version=info.data_storage_version
        )

        def commit() -> None:
            append = lance.LanceOperation.Append([fragment])
            ticket = running.client.submit(TABLE, append, read_version=info.version)
            ticket.result(60).raise_for_conflict()

        commit()
        yield running, commit


@pytest.mark.parametrize("policy", ["every", "latest"])
def test_a_commit_is_two_records_one_answer_and_one_manifest(
    tmp_path: Path, counted: Counted, policy: str
) -> None:
    with table(tmp_path, policy) as (running, commit):
        topics = (transactions_topic(running.log.name), outcomes_topic(running.log.name))
        partitions = [running.cluster.topics[topic].partitions[0] for topic in topics]
        before = [partition.end for partition in partitions]
        counted.clear()
        for _ in range(COMMITS):
            commit()
        frames, files = Counter(counted.frames), Counter(counted.files)
        assert [p.end - b for p, b in zip(partitions, before, strict=True)] == [COMMITS, COMMITS]
        sizes = [max(len(r.value or b"") for r in p.records[-COMMITS:]) for p in partitions]
    assert sizes[0] <= TRANSACTION_BYTES_MAX
    assert sizes[1] <= OUTCOME_BYTES_MAX
    # The answer comes unasked; a writer that hears nothing for long may ask as well.
    assert frames["APPEND"] == frames["OUTCOME"] == COMMITS
    assert sum(frames.values()) <= 2 * COMMITS + 2, frames
    # The manifest, and the transaction that it names.
    assert files["create"] == files["write_ahead"] == COMMITS, files
    hints = {"every": 0, "latest": COMMITS // UNHINTED_MAX}[policy]
    assert hints <= files["write_hint"] <= hints + bool(hints), files
    assert not files["write"], files
    assert files["size"] + files["read"] + files["names"] <= 2 * COMMITS, "to look is to wait"


def test_a_manifest_grows_by_its_fragments_alone() -> None:
    """Linear by format: an append writes the bytes of every fragment, and nothing beside them."""
    sizes = {}
    for fragments in (10, 1_000):
        made = MadeLog()
        made.run(create("t"))
        made.run(append_to("t", 1, fragments=fragments))
        state = made.machine.tables[("t",)].manifest
        assert state is not None
        sizes[fragments] = len(encode_manifest(state, None))
    each = (sizes[1_000] - sizes[10]) / 990
    assert 0 < each <= FRAGMENT_BYTES_MAX
    assert sizes[10] - 10 * each < 400, "what a manifest holds beside fragments"


class Deciding:
    """A machine with one table of some versions, and the next appends to it."""

    def __init__(self, versions: int) -> None:
        self.machine = Machine(MadeLog().log.genesis(0))
        self._offset = 0
        self.run(create("t"))
        while (version := self.machine.tables[("t",)].version) < versions:
            self.run(configure("t", version))

    def run(self, transaction: Transaction) -> None:
        self.take(self.submitted(transaction))

    def submitted(self, transaction: Transaction) -> Submitted:
        hashed = replace(transaction, payload_hash=transaction.transaction_id.encode()[:32])
        self._offset += 1
        return Submitted(0, self._offset, self._offset, hashed)

    def take(self, submitted: Submitted) -> None:
        decision = decide(self.machine, submitted)
        assert decision.outcome.status is Status.COMMITTED
        self.machine.apply(submitted, decision.outcome, changes=decision.changes)

    def next_append(self, number: int, *, behind: int = 0) -> Submitted:
        head = self.machine.tables[("t",)].version
        return self.submitted(append_to("t", number, read_version=head - behind))


def calls(deciding: Deciding, submitted: Submitted) -> int:
    """Count the functions that are called to decide and apply a transaction."""
    count = 0

    def count_one(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(count_one)
    try:
        deciding.take(submitted)
    finally:
        sys.setprofile(None)
    return count


def blocks(deciding: Deciding, submitted: Submitted) -> int:
    """Count the blocks of memory that deciding and applying leave behind."""
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        deciding.take(submitted)
        changes = tracemalloc.take_snapshot().compare_to(before, "filename")
    finally:
        tracemalloc.stop()
    ours = [one for one in changes if "commitlog" in one.traceback[0].filename]
    return sum(one.count_diff for one in ours)


@pytest.fixture(scope="module")
def young_and_old() -> tuple[Deciding, Deciding]:
    return Deciding(10), Deciding(10_000)


@pytest.mark.slow
@pytest.mark.parametrize("behind", [0, 5])
def test_deciding_takes_as_many_calls_at_ten_versions_as_at_ten_thousand(
    young_and_old: tuple[Deciding, Deciding], behind: int
) -> None:
    counts = []
    for deciding in young_and_old:
        # The best of some: now and then a list grows, or a chunk of ids begins.
        work = [deciding.next_append for _ in range(5)]
        counts.append(
            min(
                calls(deciding, make(1_000 * behind + n, behind=behind))
                for n, make in enumerate(work, 1)
            )
        )
    young, old = counts
    assert old <= CALLS_SPREAD * young
    assert young <= DECIDE_CALLS_MAX


@pytest.mark.slow
def test_a_writer_that_is_far_behind_takes_as_many_calls(
    young_and_old: tuple[Deciding, Deciding],
) -> None:
    old = young_and_old[1]
    near = calls(old, old.next_append(50_001, behind=1))
    far = calls(old, old.next_append(50_002, behind=9_000))
    assert far <= CALLS_SPREAD * near


@pytest.mark.slow
def test_what_deciding_leaves_in_memory_does_not_grow_with_the_versions(
    young_and_old: tuple[Deciding, Deciding],
) -> None:
    young, old = (
        min(blocks(deciding, deciding.next_append(90_000 + n)) for n in range(5))
        for deciding in young_and_old
    )
    assert old <= young + 5
    assert young <= BLOCKS_MAX


@pytest.mark.slow
def test_more_fragments_take_no_more_calls() -> None:
    counts = []
    for fragments in (10, 10_000):
        deciding = Deciding(2)
        deciding.run(append_to("t", 1, fragments=fragments))
        counts.append(min(calls(deciding, deciding.next_append(n)) for n in range(2, 7)))
    assert counts[1] <= CALLS_SPREAD * counts[0]


class CallsByThread:
    """Counts the calls of Python's functions in this program, those of each thread apart."""

    def __init__(self) -> None:
        self.counting = False
        self.calls: Counter[int] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self.counting and event == "call" and is_ours(frame.f_code.co_filename):
            self.calls[threading.get_ident()] += 1

    def of(self, work: Callable[[], object]) -> tuple[int, int]:
        """Return how many calls some work takes: of the calling thread, and of all others."""
        self.calls.clear()
        sys.setprofile(self)
        self.counting = True
        try:
            work()
        finally:
            self.counting = False
            sys.setprofile(None)
        own = self.calls.pop(threading.get_ident())
        return own, sum(self.calls.values())


PROGRAM = tuple(f"{Path(str(one.__file__)).parent}{os.sep}" for one in (commitlog, consumers))


@cache
def is_ours(file: str) -> bool:
    """Return True for what runs over Kafka too: the log in memory isn't part of a commit's cost."""
    is_memory = Path(file).stem.startswith("memory")
    return file == "<string>" or (file.startswith(PROGRAM) and not is_memory)


@pytest.mark.slow
def test_a_commit_takes_few_calls_in_its_writer_and_in_the_leader(tmp_path: Path) -> None:
    counted = CallsByThread()
    threading.setprofile(counted)
    try:
        with table(tmp_path, "latest") as (running, commit):
            info = running.client.table(TABLE)
            [fragment] = lance.fragment.write_fragments(
                rows(1), info.location, data_storage_version=info.data_storage_version
            )
            append = lance.LanceOperation.Append([fragment])

            def many() -> None:
                # The leader takes all at once: on an idle machine it would begin with the first.
                with running.running[0].committer._answers._turn:
                    tickets = [
                        running.client.submit(TABLE, append, read_version=info.version)
                        for _ in range(COMMITS)
                    ]
                for ticket in tickets:
                    ticket.result(60).raise_for_conflict()

            def one_by_one() -> None:
                for _ in range(COMMITS):
                    commit()

            # The best of some: who waits longer looks more often.
            found = {work: [counted.of(work) for _ in range(7)] for work in (many, one_by_one)}
    finally:
        threading.setprofile(None)
    assert min(own for own, _ in found[many]) <= COMMITS * CLIENT_CALLS_MAX, found
    assert min(own for own, _ in found[one_by_one]) <= COMMITS * CLIENT_CALLS_ALONE_MAX, found
    assert min(others for _, others in found[many]) <= COMMITS * LEADER_CALLS_MAX, found
    assert min(others for _, others in found[one_by_one]) <= COMMITS * LEADER_CALLS_ALONE_MAX, found


def test_a_delete_by_a_number_takes_few_calls_in_its_writer(tmp_path: Path) -> None:
    counted = CallsByThread()
    with table(tmp_path, "latest") as (running, _):
        log = running.client
        log.append(TABLE, rows(*range(40))).raise_for_conflict()
        found = []
        for number in range(30):
            found.append(counted.of(partial(log.delete, TABLE, f"id = {number}"))[0])
    assert min(found) <= DELETE_CALLS_MAX, found


@pytest.mark.slow
def test_an_update_takes_few_calls_more_of_a_table_of_five_hundred_files(tmp_path: Path) -> None:
    counted, found = CallsByThread(), []
    with table(tmp_path, "latest") as (running, commit):
        log = running.client
        log.append(TABLE, rows(*range(100, 140))).raise_for_conflict()
        for files in (0, 500):
            for _ in range(files):
                commit()
            updates = [
                partial(log.update, TABLE, {"name": "'b'"}, f"id = {100 + number}")
                for number in range(files // 50, files // 50 + 10)
            ]
            found.append(min(counted.of(update)[0] for update in updates))
    assert found[1] <= found[0] + NEW_FILES_MAX, found
