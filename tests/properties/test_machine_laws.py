"""Laws of the machine, for all histories that Hypothesis thinks of.

Replay, prefix, serial equivalence, once, monotone, union, determinism.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.partition.machine import Machine
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.operations import LanceCommit
from commitlog.model.records import Outcome, Status, Transaction
from tests.child import ended
from tests.core_world import World, append, commit, delete, replayed_from_parts

ROWS = 6
Row = tuple[int, int]


@dataclass(frozen=True)
class Step:
    """What a writer does, from a version that is `lag` behind."""

    kind: str
    lag: int = 0
    pick: int = 0
    rows: tuple[int, ...] = (0,)
    derived: bool = False
    again: bool = False


STEPS = st.builds(
    Step,
    kind=st.sampled_from(
        ["append", "delete", "delete", "delete", "whole", "config", "reserve", "update"]
    ),
    lag=st.integers(0, 6),
    pick=st.integers(0, 20),
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=4, unique=True).map(tuple),
    derived=st.booleans(),
    again=st.booleans(),
)


@dataclass
class Conversation:
    """Writers with stale views, and a dumb table of rows beside the machine."""

    stable_row_ids: bool = False
    world: World = field(default_factory=World)
    states: dict[int, ManifestState] = field(default_factory=dict)
    rows: set[Row] = field(default_factory=set)
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the table and its first rows."""
        self.world.create(stable_row_ids=self.stable_row_ids)
        self.take("start", append(1, "0.lance", "1.lance", rows=ROWS), set())

    def run(self, steps: list[Step]) -> None:
        """Take all steps."""
        for number, step in enumerate(steps):
            made = self.operation(step, number)
            if made is None:
                continue
            operation, deleted = made
            self.take(f"s{number}", operation, deleted)
            if step.again:
                self.repeat()

    def operation(self, step: Step, number: int) -> tuple[LanceCommit, set[Row]] | None:
        """Make what a step asks for, from the version that it read."""
        versions = sorted(self.states)
        read = versions[max(len(versions) - 1 - step.lag, 0)]
        state = self.states[read]
        if step.kind == "append":
            return append(read, f"f{number}.lance", rows=ROWS), set()
        if step.kind in {"config", "reserve"}:
            transaction = LanceTransaction(read_version=read, uuid=f"c{number}")
            if step.kind == "reserve":
                transaction.reserve_fragments.num_fragments = 2
            else:
                updates = transaction.update_config.config_updates
                updates.update_entries.add(key=f"k{step.pick % 3}", value=str(number))
            return commit(transaction), set()
        present = list(state.fragments)
        if not present:
            return None
        fragment_id = present[step.pick % len(present)]
        gone = set(self.world.deleted_rows(fragment_id, state))
        count = DataFragment.FromString(state.fragments[fragment_id]).physical_rows
        live = [row for row in range(count) if row not in gone]
        if step.kind == "whole":
            operation = delete(self.world, read, {}, whole=[fragment_id], state=state)
            return operation, {(fragment_id, row) for row in live}
        wanted = [row for row in step.rows if row in live][: max(len(live) - 1, 0)]
        if not wanted:
            return None
        operation = delete(
            self.world,
            read,
            {fragment_id: wanted},
            state=state,
            with_rows=not step.derived,
            base={fragment_id: gone},
        )
        if step.kind == "update":
            operation = as_update(operation)
        return operation, {(fragment_id, row) for row in wanted}

    def take(self, name: str, operation: LanceCommit, deleted: set[Row]) -> None:
        """Ask the machine, and tell the dumb table if it committed."""
        before = self.world.machine.tables[("t",)].version
        outcome = self.world.ask(name, operation)
        self.outcomes.append(outcome)
        assert outcome.code in {"", "CONFLICT"}, outcome.message
        if outcome.status is Status.COMMITTED:
            assert outcome.version == before + 1
            # Serial: every row that it deletes is there when its turn comes.
            assert deleted <= self.rows
            self.rows -= deleted
            result = outcome.results[0]
            if result.first_fragment_id >= 0:
                state = self.world.state()
                for fragment_id in range(result.first_fragment_id, state.fragments.last_id + 1):
                    new = DataFragment.FromString(state.fragments[fragment_id])
                    self.rows |= {(fragment_id, row) for row in range(new.physical_rows)}
            self.states[outcome.version] = self.world.state().copy()

    def repeat(self) -> None:
        """Send the last record again: it changes nothing."""
        record = self.world.log[-1][0].record
        assert isinstance(record, Transaction)
        first, tables = self.outcomes[-1], parts_of(self.world.machine)
        outcome = self.world.run(record)
        assert (outcome.status, outcome.answers) == (first.status, first.sequence)
        assert outcome.versions() == first.versions()
        assert parts_of(self.world.machine) == tables

    def rows_of_manifest(self) -> set[Row]:
        """Return the rows that a reader would see."""
        found: set[Row] = set()
        for fragment_id, encoded in self.world.state().fragments.items():
            count = DataFragment.FromString(encoded).physical_rows
            gone = self.world.deleted_rows(fragment_id)
            found |= {(fragment_id, row) for row in range(count) if row not in gone}
        return found


def as_update(operation: LanceCommit) -> LanceCommit:
    """Turn a Delete into an Update that moves the rows."""
    deleting = LanceTransaction.FromString(operation.message)
    transaction = LanceTransaction(read_version=deleting.read_version, uuid=deleting.uuid)
    transaction.update.updated_fragments.extend(deleting.delete.updated_fragments)
    moved = append(1, f"m{deleting.uuid}.lance", rows=1)
    transaction.update.new_fragments.extend(
        LanceTransaction.FromString(moved.message).append.fragments
    )
    return commit(transaction, affected_rows=operation.affected_rows)


def parts_of(machine: Machine) -> dict[str, bytes]:
    """Return the tables' parts."""
    parts = machine.to_parts().items()
    return {name: part.encode() for name, part in parts if name.startswith("table/")}


@pytest.mark.slow
@given(st.lists(STEPS, max_size=25), st.booleans())
def test_history_is_serial_and_replays(steps: list[Step], stable: bool) -> None:
    talk = Conversation(stable_row_ids=stable and all(s.kind != "update" for s in steps))
    talk.run(steps)
    # Serial equivalence and union: no deletion is lost, no row comes back.
    assert talk.rows_of_manifest() == talk.rows
    # Replay: records and outcomes alone make the same state, and the same changes.
    assert talk.world.replayed().digest() == talk.world.machine.digest()
    replica = Machine(talk.world.genesis)
    changes = [change for s, o in talk.world.log for change in replica.apply(s, o)]
    assert changes == talk.world.changes


@pytest.mark.slow
@given(st.lists(STEPS, max_size=15), st.data())
def test_stopping_after_any_record_ends_the_same(steps: list[Step], data: st.DataObject) -> None:
    talk = Conversation()
    talk.run(steps)
    log = talk.world.log
    stop = data.draw(st.integers(0, len(log)))
    machine = Machine(talk.world.genesis)
    for submitted, outcome in log[:stop]:
        machine.apply(submitted, outcome)
    restored = replayed_from_parts(machine)
    assert restored.digest() == machine.digest()
    for submitted, outcome in log[stop:]:
        # Deciding again on restored state gives the same outcome.
        assert redecided(talk, restored, submitted) == outcome
        restored.apply(submitted, outcome)
    assert restored.digest() == talk.world.machine.digest()


def redecided(talk: Conversation, machine: Machine, submitted) -> Outcome:  # type: ignore[no-untyped-def]
    """Decide a record on another machine, with the same store."""
    original, talk.world.machine = talk.world.machine, machine
    try:
        return talk.world.decide(submitted).outcome
    finally:
        talk.world.machine = original


@pytest.mark.slow
@given(st.lists(STEPS, max_size=25))
def test_versions_and_ids_only_grow(steps: list[Step]) -> None:
    talk = Conversation()
    talk.run(steps)
    versions = [o.version for o in talk.outcomes if o.version]
    assert versions == list(range(2, 2 + len(versions)))
    given_ids = [
        result.first_fragment_id
        for outcome in talk.outcomes
        for result in outcome.results
        if result.first_fragment_id >= 0
    ]
    assert given_ids == sorted(set(given_ids))
    sequences = [outcome.sequence for _, outcome in talk.world.log]
    assert sequences == list(range(1, len(sequences) + 1))
    times = [outcome.time_ms for _, outcome in talk.world.log]
    assert times == sorted(times)


def fixed_conversation() -> str:
    """Return what a fixed history comes to: digests, and every file and outcome."""
    talk = Conversation()
    kinds = ["append", "delete", "update", "config", "whole", "delete", "reserve"]
    steps = [
        Step(
            kinds[n % 7], lag=n % 5, pick=n, rows=(n % ROWS, (n * 5 + 1) % ROWS), derived=n % 3 == 0
        )
        for n in range(60)
    ]
    talk.run(steps)
    return json.dumps(
        {
            "digest": talk.world.machine.digest().hex(),
            "outcomes": [repr(outcome) for outcome in talk.outcomes],
            "deltas": [c.delta.to_bytes().hex() for c in talk.world.changes if c.delta],
            "messages": [c.message.hex() for c in talk.world.changes],
        }
    )


@pytest.mark.slow
def test_processes_agree_whatever_their_hash_seed() -> None:
    program = "from tests.properties.test_machine_laws import *; print(fixed_conversation())"
    answers = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = ended([sys.executable, "-c", program], env=environment, check=True)
        answers.add(done.stdout)
    assert len(answers) == 1
    assert fixed_conversation() + "\n" in answers
