"""A check costs what its transaction touches: not the versions it missed, not the fragments."""

from __future__ import annotations

import pytest

from commitlog.core.conflicts.candidate import Candidate
from commitlog.core.conflicts.grid import first_conflict
from commitlog.core.conflicts.history import CHUNK_VERSIONS, Aspect, History, WriteSet
from commitlog.core.log.canonical import to_json
from commitlog.core.operations.registry import candidate_of
from commitlog.core.partition import table_parts
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import Rules
from tests.core_world import World, append, delete, replayed_from_parts


def deleting(*fragment_ids: int) -> Candidate:
    """Ask to delete whole fragments."""
    message = Transaction()
    message.delete.deleted_fragment_ids.extend(fragment_ids)
    return candidate_of(message)


def history_of(count: int, fragments: int = 100) -> History:
    """Return `count` versions of deletes in fragments from 10 on."""
    history = History(1)
    for number in range(count):
        fragment_id = 10 + number % fragments
        aspects = (("Delete.updated", fragment_id),)
        history.record(f"t{number}", WriteSet("Delete", aspects, (), ((fragment_id, ""),)))
    return history


def steps_of(history: History, candidate: Candidate, after: int) -> int:
    """Return how many look-ups a check makes."""
    before = history.steps
    first_conflict(candidate, history, after)
    return history.steps - before


def test_first_finds_the_first_version_behind() -> None:
    history = history_of(10, fragments=3)
    assert history.first("Delete.updated", 10, 1) == 2
    assert history.first("Delete.updated", 10, 2) == 5
    assert history.first("Delete.updated", 10, 11) == 0
    assert history.first("Delete.updated", 99, 0) == 0
    assert history.committed(5).transaction_id == "t3"


@pytest.mark.parametrize("missed", [1, 100, 10_000])
def test_steps_do_not_grow_with_missed_versions(missed: int) -> None:
    history = history_of(10_000)
    after = history.head - missed
    assert steps_of(history, deleting(1, 2), after) == 5
    assert steps_of(history, deleting(10), after) == 3


@pytest.mark.slow
@pytest.mark.parametrize("fragments", [1, 100, pytest.param(100_000, marks=pytest.mark.slow)])
def test_steps_do_not_grow_with_fragments(fragments: int) -> None:
    history = history_of(100_000, fragments)
    assert steps_of(history, deleting(1, 2), 1) == 5
    assert steps_of(history, deleting(10, 11), 1) == 5


def test_the_deletion_file_of_a_past_version_is_known() -> None:
    history = History(1)
    for version, before in enumerate(["", "first", "second"], 2):
        history.record(f"t{version}", WriteSet("Delete", (), (), ((7, before),)))
    assert history.deletion_file_at(7, 1) == ""
    assert history.deletion_file_at(7, 2) == "first"
    assert history.deletion_file_at(7, 3) == "second"
    assert history.deletion_file_at(7, 4) is None
    assert history.deletion_file_at(8, 1) is None


def test_pruning_changes_no_answer_within_the_window() -> None:
    kept, pruned = history_of(1000, 7), History(1)
    for number in range(1000):
        fragment_id = 10 + number % 7
        aspects = (("Delete.updated", fragment_id),)
        pruned.record(f"t{number}", WriteSet("Delete", aspects, (), ((fragment_id, ""),)))
        pruned.prune(100)
    assert pruned.floor > 800
    for after in range(kept.head - 100, kept.head + 1):
        for fragment_id in range(9, 18):
            expected = kept.first("Delete.updated", fragment_id, after)
            assert pruned.first("Delete.updated", fragment_id, after) == expected
        assert pruned.first_of_kind("Delete", after) == kept.first_of_kind("Delete", after)


def test_pruning_keeps_the_hashes_of_chunks_that_stay_whole() -> None:
    history = history_of(3 * CHUNK_VERSIONS)
    history.digests = {0: b"gone", 1: b"cut", 2: b"whole"}
    history.prune(3 * CHUNK_VERSIONS // 2)
    assert history.digests == {2: b"whole"}


def test_an_older_read_version_is_retryable_exactly_at_the_bound() -> None:
    world = World(rules=Rules(history_versions=5))
    world.create()
    for number in range(40):
        world.ask(f"a{number}", append(0, f"{number}.lance"))
    head = world.machine.tables[("t",)].version
    assert world.ask("near", append(head - 5, "near.lance")).status == "committed"
    outcome = world.ask("far", append(head - 5, "far.lance"))
    assert (outcome.status, outcome.code) == ("retryable", "READ_VERSION_PRUNED")
    assert outcome.conflict is not None


def test_a_delete_of_one_of_many_fragments_costs_the_same_late_and_early() -> None:
    world = World()
    world.create()
    world.ask("a", append(0, *[f"{i}.lance" for i in range(300)]))
    head, state = world.state().version, world.state().fork()
    for number in range(200):
        world.ask(f"d{number}", delete(world, 0 + head + number, {number: [1]}))
    history = world.machine.tables[("t",)].history
    steps = []
    for read_version in (head, head + 199):
        before = history.steps
        rows = {250 + read_version - head: [2]} if read_version == head else {251: [2]}
        operation = delete(world, read_version, rows, state=state)
        assert world.ask(f"late{read_version}", operation).status == "committed"
        steps.append(history.steps - before)
    assert steps[0] == steps[1]


def test_a_pruned_history_equals_one_that_is_restored() -> None:
    world = World(rules=Rules(history_versions=3))
    world.create(primary_key=("c0",))
    world.ask("keyed", append(0, "k.lance", keys=[b"k"]))
    for number in range(30):
        world.ask(f"a{number}", append(0, f"{number}.lance"))
    history = world.machine.tables[("t",)].history
    assert history.floor > 2
    assert not history.keyed
    restored = replayed_from_parts(world.machine)
    assert restored.tables[("t",)].history.keyed == history.keyed
    world.ask("keyed2", append(0, "k2.lance", keys=[b"k"]))
    world.ask("plain", append(0, "p.lance"))
    for submitted, outcome in world.log[-2:]:
        restored.apply(submitted, outcome)
    assert restored.digest() == world.machine.digest()
    lost = world.ask("k3", append(history.head - 1, "k3.lance", keys=[b"other"]))
    assert lost.conflict is not None
    assert lost.conflict.transaction_id == "plain"


@pytest.mark.parametrize(
    "aspects",
    [
        (),
        (("a.key", b"\x01" * 16), ("a.key", b"\xff" * 16), ('b".kéy', b"k")),
        (("a.key", b"one"), ("a.key", b"three"), ("a.key", b"")),
        (("a.key", b""),),
        (("a.key", b"one"), ("a.key", "two"), ("a.key", ("three", 4)), ("a", 5), ("b", b"six")),
    ],
)
def test_what_a_version_touched_is_written_the_same_however_it_is_encoded(
    aspects: tuple[Aspect, ...],
) -> None:
    write_set = WriteSet("Append", aspects, ((("c", b"note"), [1]),), ((7, "path"),))
    touched = [table_parts._aspect(one) for one in aspects]
    whole = [3, "Append", touched, [[["c", "b", b"note".hex()], [1]]], [[7, "path"]]]
    assert table_parts._entry(History(1), 3, write_set) == to_json(whole)


def test_the_keys_of_an_append_are_encoded_once_and_the_same_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(rules=Rules(history_versions=3))
    world.create(primary_key=("c0",))
    keys = [str(number).encode() for number in range(table_parts.LARGE)]
    world.ask("keyed", append(0, "k.lance", keys=keys))
    table = world.machine.tables[("t",)]
    before = table_parts._whole(table)
    assert list(table.history.texts) == [2]
    replayed_from_parts(world.machine)
    # Who never kept it writes the same bytes.
    monkeypatch.setattr(table_parts, "LARGE", len(keys) * 2)
    table.history.texts.clear()
    assert table_parts._whole(table) == before
    assert not table.history.texts
    monkeypatch.undo()
    table_parts._whole(table)
    seen = list[object]()
    monkeypatch.setattr(table_parts, "_aspect", seen.append)
    assert table_parts._whole(table) == before
    assert not seen
    monkeypatch.undo()
    for number in range(30):
        world.ask(f"a{number}", append(0, f"{number}.lance"))
    assert not table.history.texts
