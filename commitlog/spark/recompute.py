"""Decides a partition of the log again, record by record, and compares with what was recorded.

The machine is pure, so all it needs is what the leader saw: sizes and hashes of files stand in the
outcome, what pylance or a client built is recorded there as a delta, and deletion vectors are
files that never change. An outcome decided again must seal to the recorded hash. Where a file is
gone (a vacuum may remove it once no version needs it) the outcome is taken as recorded, and
counted; the states that later leaders declared show whether it was right.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from commitlog.adapters.storage import store_for
from commitlog.codecs.avro import seal_outcome
from commitlog.codecs.deletion_file import decode_deletion_file
from commitlog.core.chain import Chain
from commitlog.core.creation import empty_state
from commitlog.core.decisions import (
    BuildWanted,
    BytesWanted,
    Decision,
    FileWanted,
    Found,
    ManifestWanted,
    Need,
    PlaceWanted,
    VectorWanted,
    Wanted,
)
from commitlog.core.machine import Machine
from commitlog.core.manifest import ManifestDelta, ManifestState, apply_delta
from commitlog.core.refusals import build_error
from commitlog.core.replica import Decided
from commitlog.core.versions import STAGED_DIRECTORY, recorded
from commitlog.errors import CorruptLog
from commitlog.lancepb.table_pb2 import DeletionFile
from commitlog.model.operations import CreateTableVersion, target
from commitlog.model.records import (
    Code,
    LeaderStarted,
    Observation,
    OperationResult,
    Outcome,
    Status,
    Transaction,
)
from commitlog.ports import Log
from commitlog.spark.log_positions import Position, Stretch, decided_in, read_to, stretches

RECORDINGS = "_commitlog/recordings"
"""Below the tables root: what an outcome recorded outside itself, by sha256."""
DECIDED = (
    *("status", "code", "message", "answers", "time_ms", "results", "conflict", "observed"),
    *("failed_requirements", "payload_hash", "attempt"),
)
"""An outcome's fields that the machine decides."""
DIFFERENCES_MAX = 20
STRETCH_OUTCOMES = 5_000
PROGRESS_SECONDS = 1.0


@dataclass(frozen=True)
class Difference:
    """An outcome that would be decided otherwise, or a state that a leader didn't have."""

    sequence: int
    transaction_id: str
    problem: str


@dataclass
class Audited:
    """What was found in one partition."""

    partition: int
    outcomes: int = 0
    recomputed: int = 0
    """Decided again, with the recorded hash as the result."""
    as_recorded: int = 0
    """Not decided again, since a file that the decision read is gone."""
    states: int = 0
    """States declared by leaders, and found equal."""
    differences: list[Difference] = field(default_factory=list)
    head: str = ""
    """The hash of the last outcome."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"ok": self.is_whole, **asdict(self)}


class FileGone(Exception):
    """A file that a decision read is no longer there."""


OnProgress = Callable[[int, int], None]
"""Called with the outcomes done so far, and the last offset that was read."""


def audit_partition(
    log: Log, partition: int, end_offset: int, on_progress: OnProgress = lambda done, offset: None
) -> Audited:
    """Read a partition from its beginning up to an offset of its outcomes, and decide it again.

    Raises CorruptLog where the chain itself is broken.
    """
    genesis = log.genesis(partition)
    machine, found = Machine(genesis), Audited(partition)
    terms = _declared_states(log, partition, end_offset)
    cut = stretches(log, partition, Position(), end_offset, outcomes_max=STRETCH_OUTCOMES)
    told = time.monotonic()
    for stretch, _ in cut:
        for decided in _checked(log, stretch, machine, found, terms):
            _audit(machine, decided, found)
            if time.monotonic() - told > PROGRESS_SECONDS:
                on_progress(found.outcomes, decided.answered_offset)
                told = time.monotonic()
    _check_state(machine, found, terms)
    on_progress(found.outcomes, end_offset)
    return found


def _checked(
    log: Log, stretch: Stretch, machine: Machine, found: Audited, terms: dict[int, bytes]
) -> Iterator[Decided]:
    for decided in decided_in(log, stretch):
        _check_state(machine, found, terms)
        yield decided


def _declared_states(log: Log, partition: int, end_offset: int) -> dict[int, bytes]:
    """Return the state's digest by sequence, as valid leaders declared it."""
    chain, declared = Chain(), {}
    for answered in read_to(log.read_outcomes(partition, 0), end_offset):
        is_valid = not chain.admit(answered.record)
        if is_valid and isinstance(answered.record, LeaderStarted):
            declared[answered.record.sequence] = answered.record.state_digest
    return declared


def _check_state(machine: Machine, found: Audited, terms: dict[int, bytes]) -> None:
    declared = terms.pop(machine.sequence, None)
    if declared is None:
        return
    if declared == machine.digest():
        found.states += 1
    else:
        _differs(found, machine.sequence, "", "a leader began with another state")


def _audit(machine: Machine, decided: Decided, found: Audited) -> None:
    outcome = decided.outcome
    found.outcomes += 1
    found.head = outcome.hash.hex()
    recordings = _recordings(machine, outcome)
    try:
        again = decide_again(machine, decided, recordings)
        sealed, _ = seal_outcome(
            again, previous_hash=outcome.previous_hash, epoch=outcome.epoch, node=outcome.node
        )
        if sealed.hash == outcome.hash:
            found.recomputed += 1
        else:
            _differs(found, outcome.sequence, outcome.transaction_id, _problem(again, outcome))
    except FileGone:
        found.as_recorded += 1
    machine.apply(decided.submitted, outcome, recordings=recordings)


def decide_again(machine: Machine, decided: Decided, recordings: dict[bytes, bytes]) -> Outcome:
    """Return what the machine decides when it sees what the leader saw.

    Raises FileGone.
    """
    memory = _Memory(machine, decided, recordings)
    observed = {wanted: memory.find(wanted) for wanted in machine.prefetch(decided.submitted)}
    while True:
        decision = machine.decide(decided.submitted, observed)
        if isinstance(decision, Decision):
            return decision.outcome
        assert isinstance(decision, Need)
        missing = [wanted for wanted in decision.wanted if wanted not in observed]
        if not missing:
            raise CorruptLog(
                f"outcome {decided.outcome.sequence} cannot be decided again: the machine asks"
                " for what it was shown"
            )
        observed |= {wanted: memory.find(wanted) for wanted in missing}


class _Memory:
    """What the leader saw when it decided one record."""

    def __init__(self, machine: Machine, decided: Decided, recordings: dict[bytes, bytes]) -> None:
        self._machine = machine
        self._outcome = decided.outcome
        self._record = decided.submitted.record
        self._recordings = recordings
        self._seen = {seen.path: seen for seen in decided.outcome.observed}

    def find(self, wanted: Wanted) -> Found:
        if isinstance(wanted, FileWanted | PlaceWanted):
            seen = self._seen.get(wanted.path)
            size = seen.size if seen else store_for(wanted.location).size(wanted.path)
            return Found(seen or Observation(wanted.path, size))
        if isinstance(wanted, VectorWanted | BytesWanted):
            return self._read(wanted)
        if isinstance(wanted, ManifestWanted):
            return self._staged(wanted)
        return self._built(wanted)

    def _read(self, wanted: VectorWanted | BytesWanted) -> Found:
        seen = self._seen.get(wanted.path)
        if seen is not None and seen.size < 0:
            return Found(seen, error="there is no such deletion file")
        try:
            data = store_for(wanted.location).read(wanted.path)
        except FileNotFoundError as error:
            raise FileGone(wanted.path) from error
        found = Observation(wanted.path, len(data), hashlib.sha256(data).digest())
        if isinstance(wanted, BytesWanted):
            return Found(found, data=data)
        arrow = wanted.path.endswith(".arrow")
        file_type = DeletionFile.ARROW_ARRAY if arrow else DeletionFile.BITMAP
        return Found(found, vector=decode_deletion_file(data, file_type))

    def _staged(self, wanted: ManifestWanted) -> Found:
        assert isinstance(self._record, Transaction)
        seen = self._seen.get(wanted.path)
        for operation, result in zip(self._record.operations, self._outcome.results, strict=False):
            if not isinstance(operation, CreateTableVersion) or seen is None:
                continue
            if operation.manifest_path == wanted.path:
                table = self._machine.tables.get(target(operation))
                before = table.manifest if table is not None else None
                return Found(seen, state=self._after(before, result), transaction=operation.message)
        raise FileGone(wanted.path)

    def _built(self, wanted: BuildWanted) -> Found:
        if self._outcome.code is Code.BUILD_REFUSED:
            return Found(Observation("", -1), error=build_error(self._outcome, wanted))
        if self._outcome.status is not Status.COMMITTED or wanted.index >= len(
            self._outcome.results
        ):
            raise FileGone(f"what Lance built of version {wanted.version}")
        result = self._outcome.results[wanted.index]
        staged = next((f for f in result.files if f.path.startswith(STAGED_DIRECTORY)), None)
        seen = Observation(staged.path, staged.size, staged.sha256) if staged else None
        table = self._machine.tables.get(wanted.table)
        before = table.manifest if table is not None else None
        return Found(seen or Observation("", -1), state=self._after(before, result))

    def _after(self, before: ManifestState | None, result: OperationResult) -> ManifestState:
        if result.delta is None:
            raise FileGone(f"the delta of version {result.version}")
        state = before.fork() if before is not None else empty_state()
        apply_delta(state, ManifestDelta.from_bytes(recorded(result.delta, self._recordings)))
        return state


def _recordings(machine: Machine, outcome: Outcome) -> dict[bytes, bytes]:
    root = machine.genesis.tables_root
    found: dict[bytes, bytes] = {}
    for result in outcome.results:
        if result.delta is not None and result.delta.inline is None and root:
            path = f"{RECORDINGS}/{result.delta.sha256.hex()}"
            try:
                found[result.delta.sha256] = store_for(root).read(path)
            except FileNotFoundError as error:
                raise CorruptLog(
                    f"the recording {path} of outcome {outcome.sequence} is gone; restore it"
                ) from error
    return found


def _problem(again: Outcome, outcome: Outcome) -> str:
    other = [name for name in DECIDED if getattr(again, name) != getattr(outcome, name)]
    shown = {n: f"{getattr(outcome, n)} -> {getattr(again, n)}"[:300] for n in other[:2]}
    return f"decided again it differs in {', '.join(other) or 'its hash'}: {json.dumps(shown)}"


def _differs(found: Audited, sequence: int, transaction_id: str, problem: str) -> None:
    if len(found.differences) < DIFFERENCES_MAX:
        found.differences.append(Difference(sequence, transaction_id, problem))
