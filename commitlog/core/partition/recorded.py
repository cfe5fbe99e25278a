"""What a leader observed, as its outcome records it, and the decision made again from that.

What a decision saw outside the log is in its outcome: sizes and hashes of files, and, where
pylance or a client built a manifest, the result. So nothing is built again, and a staged file that
is gone since isn't missed. Only files that never change (deletion vectors, details of indices) are
read again, and count only if they have the recorded size and hash.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING

from commitlog.core.catalogue.iceberg_references import recorded_files
from commitlog.core.decisions import (
    BuildWanted,
    BytesWanted,
    Decision,
    FilteredWanted,
    Found,
    ListDeltaWanted,
    ListsWanted,
    ManifestWanted,
    Need,
    Wanted,
)
from commitlog.core.iceberg.manifests import read_deltas
from commitlog.core.lance.versions import STAGED_DIRECTORY, delivered_file, recorded
from commitlog.core.log.replica import Decided
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState, apply_delta
from commitlog.core.refusals import build_error
from commitlog.core.tables.creation import empty_state
from commitlog.errors import CorruptLog
from commitlog.model.operations import RegisterTable
from commitlog.model.records import Observation, Outcome, Transaction

if TYPE_CHECKING:
    from commitlog.core.partition.machine import Machine

_OF_THE_LEADER = {"epoch", "node", "previous_hash", "hash"}
_DECIDED = tuple(f.name for f in fields(Outcome) if f.name not in _OF_THE_LEADER)
_decision_of = attrgetter(*_DECIDED)

Look = Callable[[Wanted], Found | None]
"""Reads a file again; None: it can't be read."""


@dataclass(frozen=True, slots=True)
class Again:
    """The result of deciding again."""

    decision: Decision | None
    """None if the files that it was decided on are gone: then the recorded outcome stands."""
    difference: str = ""
    """Empty if it equals the recorded outcome in all that a machine decides."""


def decide_again(
    machine: Machine, decided: Decided, recordings: Mapping[bytes, bytes], look: Look
) -> Again:
    """Decide a transaction on what its leader saw, and compare with its outcome.

    `machine` holds all outcomes before; nothing is applied.
    """
    seen = Recorded(machine, decided, recordings, look)
    decision = machine.decide(decided.submitted, seen)
    if isinstance(decision, Need):
        return Again(None)
    mine, theirs = _decision_of(decision.outcome), _decision_of(decided.outcome)
    if mine == theirs:
        return Again(decision)
    name, ours, logged = next(
        (name, a, b) for name, a, b in zip(_DECIDED, mine, theirs, strict=True) if a != b
    )
    return Again(
        decision,
        f"outcome {decided.outcome.sequence} has {name} {_brief(logged)}, and deciding "
        f"transaction {decided.outcome.transaction_id} again gives {_brief(ours)}",
    )


class Recorded(Mapping[Wanted, Found]):
    """What a decision saw, by what it asks for, in the order in which it asks.

    An observation names a path and not its location, so of two looks at one path the first is the
    one that was asked for first.
    """

    def __init__(
        self, machine: Machine, decided: Decided, recordings: Mapping[bytes, bytes], look: Look
    ) -> None:
        self._machine = machine
        self._decided = decided
        self._recordings = recordings
        self._look = look
        self._given: dict[Wanted, Found] = {}
        self._observations: dict[str, deque[Observation]] = {}
        for observation in decided.outcome.observed:
            self._observations.setdefault(observation.path, deque()).append(observation)

    def __getitem__(self, wanted: Wanted) -> Found:
        found = self._given.get(wanted)
        if found is None:
            found = self._find(wanted)
            if found is None:
                raise KeyError(wanted)
            self._given[wanted] = found
        return found

    def __iter__(self) -> Iterator[Wanted]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def _find(self, wanted: Wanted) -> Found | None:
        if isinstance(wanted, BuildWanted):
            return self._built(wanted)
        observation = self._next(wanted.path)
        if observation is None:
            return None
        if isinstance(wanted, ListDeltaWanted | ListsWanted | FilteredWanted):
            return self._manifests(wanted, observation)
        if isinstance(wanted, ManifestWanted):
            return self._manifest(wanted, observation)
        if observation.size < 0 or not observation.sha256:
            # Whether a file was there, and how large.
            missing = "there is no such deletion file" if observation.size < 0 else ""
            return Found(observation, error=missing)
        if isinstance(wanted, BytesWanted):
            for data in self._bytes():
                if hashlib.sha256(data).digest() == observation.sha256:
                    return Found(observation, data=data)
        return self._read_again(wanted, observation)

    def _bytes(self) -> Iterator[bytes]:
        """Yield files that are in an outcome, or follow from it."""
        record, results = self._decided.submitted.record, self._decided.outcome.results
        yield b""  # of a writer who gave up
        yield from recorded_files(results, self._recordings).values()
        operations = record.operations if isinstance(record, Transaction) else ()
        for operation, result in zip(operations, results, strict=False):
            yield delivered_file(operation, result)

    def _next(self, path: str) -> Observation | None:
        known = self._observations.get(path)
        return known.popleft() if known else None

    def _read_again(self, wanted: Wanted, observation: Observation) -> Found | None:
        found = self._look(wanted)
        return found if found is not None and found.observation == observation else None

    def _built(self, wanted: BuildWanted) -> Found | None:
        """Return what pylance built, from the recording; or why it refused, from the refusal."""
        outcome, record = self._decided.outcome, self._decided.submitted.record
        if not outcome.results:
            observation = self._next("") or self._next_staged()
            reason = build_error(outcome, wanted)
            if observation is not None and reason:
                return Found(observation, error=reason)
            if isinstance(record, Transaction) and len(record.operations) > 1:
                return None  # it was built, but another operation of the record was refused
            return Found(Observation("", -1), error="the log has no trace of this build")
        result = outcome.results[wanted.index]
        staged = next((f.path for f in result.files if f.path.startswith(STAGED_DIRECTORY)), "")
        # A clone's first version stands on nothing, others on the version before.
        before_it = None if wanted.target else self._machine.tables[wanted.table].manifest
        state = self._state(before_it, wanted.index, is_first=bool(wanted.target))
        observation = self._next(staged)
        if observation is None or state is None:
            return None
        return Found(observation, state=state)

    def _next_staged(self) -> Observation | None:
        path = next((path for path in self._observations if path.startswith(STAGED_DIRECTORY)), "")
        return self._next(path)

    def _manifest(self, wanted: ManifestWanted, observation: Observation) -> Found | None:
        """Return a manifest as it was recorded: the staged file itself is gone by now."""
        if observation.size < 0:
            return Found(observation, error="there is no such file")
        if not observation.sha256:
            return Found(observation, error="it is too large")
        record, outcome = self._decided.submitted.record, self._decided.outcome
        if not outcome.results or not isinstance(record, Transaction):
            return self._read_again(wanted, observation)
        for index, operation in enumerate(record.operations):
            if getattr(operation, "manifest_path", None) != wanted.path:
                continue
            table = self._machine.tables.get(getattr(operation, "table", ()))
            is_first = isinstance(operation, RegisterTable)
            before = None if is_first or table is None else table.manifest
            state = self._state(before, index, is_first=is_first)
            return None if state is None else Found(observation, state=state)
        return None

    def _manifests(
        self, wanted: ListDeltaWanted | ListsWanted | FilteredWanted, observation: Observation
    ) -> Found | None:
        """Return what an outcome keeps of manifest lists: its client may have removed its own."""
        results = self._decided.outcome.results
        if observation.size < 0:
            return Found(observation)
        if not results:
            return self._read_again(wanted, observation)
        if not isinstance(wanted, ListDeltaWanted):
            return Found(observation)
        for result in results:
            if result.rebased and result.operation == "IcebergChange" and result.delta is not None:
                deltas = read_deltas(recorded(result.delta, self._recordings))
                if wanted.path in deltas:
                    return Found(observation, data=deltas[wanted.path].to_bytes())
        return None

    def _state(
        self, before: ManifestState | None, index: int, *, is_first: bool
    ) -> ManifestState | None:
        """Return the version that a result recorded, on the version before it.

        The first one of a registered table or of a clone stands on nothing, whatever its number.
        """
        results = self._decided.outcome.results
        made = results[index]
        state = empty_state() if before is None else before.fork()
        # On a version that this very transaction made, too.
        earlier = [r for r in results[:index] if r.delta and r.incarnation == made.incarnation]
        for result in [*earlier, made]:
            if result.delta is None:
                return None
            delta = ManifestDelta.from_bytes(recorded(result.delta, self._recordings))
            if not is_first and state.version + 1 != delta.version:
                return None
            try:
                apply_delta(state, delta)
            except CorruptLog:
                return None
        return state


def _brief(value: object) -> str:
    shown = repr(value)
    if len(shown) <= 120:
        return shown
    return f"{shown[:80]}… ({hashlib.sha256(shown.encode()).hexdigest()[:8]})"
