"""Follows the log after every step, and judges what nodes, writers and the store say by it.

The auditor reads with the product's own follower, so a valid outcome means here what it means
everywhere; what outcomes should say is judged by the dumb twin in `rows`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from commitlog.adapters.memory import MemoryLog
from commitlog.codecs.deletion_file import decode_deletion_file
from commitlog.codecs.manifest_file import (
    decode_manifest,
    encode_manifest,
    manifest_name,
    parse_manifest_name,
    transaction_path,
)
from commitlog.core.decisions import Change, ChangeKind
from commitlog.core.log.replica import Replica
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.core.manifest.manifest_state import ManifestState, apply_delta
from commitlog.core.partition.machine import Machine
from commitlog.core.tables.creation import empty_state
from commitlog.lancepb.table_pb2 import DataFragment, DeletionFile
from commitlog.model.records import LeaderStarted, Outcome, Status, Transaction
from commitlog.model.table import Policy, format_table_id
from commitlog.protocol import outcomes_topic
from consumers.partition.files.events import Event
from consumers.partition.follower import Follower
from tests.simulation.disk import Objects, SimulatedStore
from tests.simulation.log import Decoders, SimulatedLog
from tests.simulation.requests import View
from tests.simulation.rows import Asked, Entry, Spec
from tests.simulation.scheduler import Process
from tests.simulation.standing import Standing

VIEWS_KEPT = 12


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass
class Told:
    """What writers were told of an id, and when."""

    invoked_at: int = -1
    """The step before the first append."""
    answered_at: int = -1
    """The step of the first answer."""
    sequence: int = -1


@dataclass
class Answered:
    """What was answered about the past, to be held against the log at the end."""

    by_id: list[tuple[str, int, int, bytes]] = field(default_factory=list)
    """Id, sequence, offset and hash."""
    by_version: list[tuple[str, int, bytes]] = field(default_factory=list)
    """Incarnation, version and the manifest's sha256."""
    by_ticket: list[tuple[str, int, bytes]] = field(default_factory=list)
    """Id, sequence and hash, as clients were told."""


@dataclass
class TableLog:
    """An incarnation as the log has it."""

    location: str
    policy: Policy
    state: ManifestState
    hashes: dict[int, bytes] = field(default_factory=dict)
    """sha256 of each version's manifest."""
    expected: dict[int, bytes] = field(default_factory=dict)
    is_dropped: bool = False


class Auditor:
    """The judge of a run."""

    def __init__(self, log: MemoryLog, objects: Objects) -> None:
        """Begin with the log's first record."""
        self.process = Process("auditor", is_spared=True)
        scheduler = objects.scheduler
        self._scheduler, self._objects, self._log = scheduler, objects, log
        self.decoders = Decoders()
        self.simulated_log = SimulatedLog(log, self.decoders, scheduler, self.process)
        genesis = log.genesis()
        self.machine = Machine(genesis)
        self.follower = Follower(
            self.simulated_log,
            genesis,
            self.machine,
            Replica(),
            open_store=self.open_store,
            clock=scheduler.clock,
        )
        self.spec = Spec()
        self.meant: dict[bytes, Asked] = {}
        """By payload hash."""
        self.entries: list[Entry] = []
        self.by_id: dict[tuple[str, int], Outcome] = {}
        """The first outcome of an id's attempt."""
        self.outcomes: dict[int, tuple[int, bytes]] = {}
        """Offset and hash by sequence."""
        self.told: dict[tuple[str, int], Told] = {}
        """By id and attempt."""
        self.answered = Answered()
        self.stood: dict[int, dict[str, tuple[str, int]]] = {0: {}}
        """Incarnation and version of each table, by the sequence right after which they stood."""
        self.surely_not: set[tuple[str, int]] = set()
        """Ids and attempts that a client was told were not appended."""
        self.complaints: list[str] = []
        """What is wrong where an error would be taken for one of the program's."""
        self.tables: dict[str, TableLog] = {}
        self.by_location: dict[str, str] = {}
        self.views: OrderedDict[tuple[str, int], View] = OrderedDict()
        self.heads: dict[str, int] = {}
        self.digests: dict[int, bytes] = {}
        self.rogue: set[bytes] = set()
        """sha256 of what strangers put under canonical names."""
        self.standing: Standing | None = None
        """If tables are maintained: what may not be removed."""
        self.readable: dict[str, int] = {}
        """The newest version that somebody was told is readable, by incarnation."""
        self._deletions: dict[str, bytes] = {}
        self._thinned: set[str] = set()
        """Transactions that maintenance removed with their manifests."""
        self._terms_seen = 0
        self._followed = 0
        self._partition = log.cluster.partition(outcomes_topic(log.name), 0)
        objects.on_put = self._on_put
        objects.on_gone = self._on_gone

    def open_store(self, location: str) -> SimulatedStore:
        """Open a location as nobody in particular."""
        return SimulatedStore(self._objects, self.process, location)

    def follow(self) -> None:
        """Take what the log has now, outcome by outcome."""
        if self.complaints:
            raise Violation(self.complaints[0])
        if self._followed == self._partition.end:
            return
        while self._followed < self._partition.end:
            before = self.follower.replica.outcomes_position
            for event in self.follower.step(0):
                self._take(event)
            after = self.follower.replica.outcomes_position
            # Some offsets hold no record.
            self._followed = after if after > before else self._partition.end
        for leader, _ in list(self.follower.replica.terms)[self._terms_seen :]:
            self._terms_seen += 1
            self._check_term(leader)
        if self.spec.problems:
            raise Violation("; ".join(self.spec.problems[:5]))

    def _check_term(self, leader: LeaderStarted) -> None:
        known = self.digests.setdefault(leader.sequence, leader.state_digest)
        self.expect(known == leader.state_digest, f"I11 two states at {leader.sequence}")

    def told_times(self) -> dict[tuple[str, int], tuple[int, int, int]]:
        """Return what was told, as the history has it."""
        return {k: (t.invoked_at, t.answered_at, t.sequence) for k, t in self.told.items()}

    def digest(self, sequence: int, digest: bytes, who: str) -> None:
        """Compare a node's state with everybody else's at the same sequence."""
        if sequence == self.machine.sequence and sequence not in self.digests:
            self.digests[sequence] = self.machine.digest()
        known = self.digests.setdefault(sequence, digest)
        self.expect(known == digest, f"I11 {who} has another state at {sequence}")

    def expect(self, is_so: bool, what: str) -> None:
        """Raise unless something holds."""
        if not is_so:
            # The program may take it for an error of its own, and go on.
            self.complaints.append(what)
            raise Violation(what)

    def committed(self, events: list[Event]) -> None:
        """A node tells writers these outcomes: each must be the log's, for good."""
        self.follow()
        for event in events:
            outcome = event.outcome
            found = self.outcomes.get(outcome.sequence)
            self.expect(
                found == (event.offset, outcome.hash),
                f"I2 {outcome.sequence} was told at offset {event.offset}, the log has "
                f"{found[0] if found else 'nothing'}",
            )
            told = self.told.setdefault((outcome.transaction_id, outcome.attempt), Told())
            if told.answered_at < 0:
                told.answered_at = self._scheduler.steps
                told.sequence = outcome.sequence if outcome.answers is None else outcome.answers

    def told_a_client(
        self, outcome: Outcome, asked: tuple[str, int, bytes], *, readable: bool
    ) -> None:
        """A client's ticket gets an answer: it must be the log's, and of what was asked."""
        self.follow()
        transaction_id, attempt, payload_hash = asked
        said = f"a client that asked for {transaction_id} was told {outcome.sequence}"
        known = self.outcomes.get(outcome.sequence)
        self._complain(known is not None and known[1] == outcome.hash, f"I2 {said}, not the log's")
        is_it = outcome.transaction_id == transaction_id and outcome.attempt >= attempt
        is_it = is_it and payload_hash in (b"", outcome.payload_hash)
        self._complain(is_it, f"I17 {said}, which is another record's")
        if readable and outcome.status is Status.COMMITTED:
            for result in outcome.results:
                self._check_readable(result.incarnation, result.version, said)
        self._scheduler.counters["answer: readable" if readable else "answer: by ticket"] += 1
        self.answered.by_ticket.append((transaction_id, outcome.sequence, outcome.hash))

    def _check_readable(self, incarnation: str, version: int, said: str) -> None:
        table = self.tables.get(incarnation)
        if table is None or table.is_dropped or not version or table.policy is not Policy.EVERY:
            return
        is_there = version not in table.hashes or self._stands(incarnation, version)
        self._complain(is_there, f"I10 {said} as readable; version {version} isn't there")

    def _complain(self, is_so: bool, what: str) -> None:
        if not is_so:
            self.complaints.append(what)

    def files_written(self, events: list[Event]) -> None:
        """A node tells that these versions can be read by path."""
        for event in events:
            for change in event.changes:
                table = self.tables[change.incarnation]
                if not change.version or table.is_dropped or change.delta is None:
                    continue
                newest = max(change.version, self.readable.get(change.incarnation, 0))
                self.readable[change.incarnation] = newest
                if table.policy is Policy.EVERY:
                    path = manifest_path(table.location, change.version)
                    is_there = self._stands(change.incarnation, change.version)
                    self.expect(is_there, f"I10 {path} was told, and isn't there")

    def stores(self, path: str) -> bool:
        """Say whether a file is there."""
        return path in self._objects.bytes

    def _stands(self, incarnation: str, version: int) -> bool:
        """Say whether a version has its file, or was deleted by a record."""
        path = manifest_path(self.tables[incarnation].location, version)
        return path in self._objects.bytes or self.is_expired(incarnation, version)

    def is_expired(self, incarnation: str, version: int) -> bool:
        """Say whether a record deleted a version."""
        return self.standing is not None and self.standing.is_expired(incarnation, version)

    def _take(self, event: Event) -> None:
        outcome, record = event.outcome, event.submitted.record
        self.outcomes[outcome.sequence] = (event.offset, outcome.hash)
        if isinstance(record, Transaction) and record.payload_hash in self.meant:
            self.by_id.setdefault((outcome.transaction_id, outcome.attempt), outcome)
        self._scheduler.trace("outcome", outcome.sequence, outcome.status, outcome.hash.hex()[:12])
        asked = None
        if isinstance(record, Transaction):
            asked = self.meant.get(record.payload_hash)
        entry = _entry(event, asked, self.machine)
        self.entries.append(entry)
        self.spec.judge(entry)
        for change in event.changes:
            self._change(change)
            self._count_carried(asked, change)
        if self.standing is not None and outcome.status is Status.COMMITTED:
            self.standing.announced(event)
            for intent in asked.intents if asked is not None and outcome.answers is None else ():
                if intent.kind == "expire":
                    self.standing.deleted(
                        intent, self.tables[outcome.results[0].incarnation].location
                    )
        self.stood[outcome.sequence] = {
            format_table_id(table_id): (table.incarnation, table.version)
            for table_id, table in self.machine.tables.items()
        }
        for table_id, table in self.machine.tables.items():
            if self.heads.get(table.incarnation) != table.version:
                self._keep_view(format_table_id(table_id))
        if outcome.sequence % 50 == 0:
            self.digest(outcome.sequence, self.machine.digest(), "the auditor")

    def _count_carried(self, asked: Asked | None, change: Change) -> None:
        """Count Rewrites that came over deletions of rows that they had read."""
        is_rewrite = asked is not None and any(intent.groups for intent in asked.intents)
        if is_rewrite and change.delta is not None:
            made = (DataFragment.FromString(encoded) for _, encoded in change.delta.fragments)
            if any(fragment.HasField("deletion_file") for fragment in made):
                self._scheduler.counters["rows deleted under a compaction"] += 1

    def _change(self, change: Change) -> None:
        table = self.tables.get(change.incarnation)
        if table is None or change.kind is ChangeKind.CREATED:
            table = TableLog(change.location, change.policy, empty_state())
            self.tables[change.incarnation] = table
            self.by_location[change.location] = change.incarnation
        if change.kind is ChangeKind.DROPPED:
            table.is_dropped = True
        if self.standing is not None:
            self.standing.note(change)
        if change.delta is None:
            return
        apply_delta(table.state, change.delta)
        data = encode_manifest(table.state, change.message or None)
        table.hashes[change.version] = hashlib.sha256(data).digest()
        table.expected[change.version] = data
        self._check_rows(change, table)

    def _check_rows(self, change: Change, table: TableLog) -> None:
        """The fragments that a version touched hold the rows that the twin has."""
        twin = next(
            (t for t in self.spec.tables.values() if t.incarnation == change.incarnation), None
        )
        assert change.delta is not None
        if twin is None or twin.version != change.version:
            return
        for fragment_id, encoded in change.delta.fragments:
            fragment = DataFragment.FromString(encoded)
            expected = twin.fragments.get(fragment_id)
            living = self.living(table.location, fragment)
            self.expect(
                expected is not None and living == set(expected.rows),
                f"I14 fragment {fragment_id} of {table.location} at {change.version} holds "
                f"{sorted(living)} instead of {sorted(expected.rows) if expected else None}",
            )
        for fragment_id in change.delta.removed:
            self.expect(fragment_id not in twin.fragments, f"I14 fragment {fragment_id} is gone")

    def is_every(self, location: str) -> bool:
        """Say whether each version of a location's table gets its file."""
        return self.tables[self.by_location[location]].policy is Policy.EVERY

    def living(self, location: str, fragment: DataFragment) -> set[int]:
        """Return the offsets that live in a fragment, by its deletion file in the store."""
        rows = set(range(fragment.physical_rows))
        if not fragment.HasField("deletion_file"):
            return rows
        path = f"{location}/{deletion_file_path(fragment.id, fragment.deletion_file)}"
        data = self._objects.bytes.get(path)
        if data is None:
            raise Violation(f"I10 the deletion file {path} is missing")
        return rows - set(decode_deletion_file(data, DeletionFile.BITMAP))

    def _keep_view(self, name: str) -> None:
        table = self.machine.tables[(name,)]
        twin = self.spec.tables.get(name)
        self.heads[table.incarnation] = table.version
        if twin is None or table.manifest is None:
            return
        # The rows of fragments that didn't change are shared between views.
        view = View(
            name,
            table.incarnation,
            table.location,
            table.version,
            dict(table.manifest.fragments),
            {number: dict(f.rows) for number, f in twin.fragments.items()},
            twin.has_key,
            frozenset(row[0] for f in twin.fragments.values() for row in f.rows.values()),
        )
        self.views[table.incarnation, table.version] = view
        if len(self.views) > VIEWS_KEPT:
            self.views.popitem(last=False)

    def _on_put(self, process: Process, path: str, data: bytes) -> None:
        """No canonical name before its outcome, and never other bytes than the log's."""
        folder, _, name = path.rpartition("/")
        location, _, kind = folder.rpartition("/")
        if kind == "_deletions" and not process.is_spared:
            self.expect(
                self._deletions.setdefault(path, data) == data, f"I9 {path} got other bytes"
            )
        if kind != "_versions" or not name.endswith(".manifest"):
            return
        parsed = parse_manifest_name(name)
        digest = hashlib.sha256(data).digest()
        if parsed is None or digest in self.rogue:
            return
        self.follow()
        incarnation = self.by_location.get(location)
        table = self.tables.get(incarnation or "")
        known = table.hashes.get(parsed.version) if table is not None else None
        self.expect(known is not None, f"I9 {path} was written before its outcome")
        self.expect(known == digest, f"I9 {path} was written with other bytes than the log's")
        state, transaction = decode_manifest(data)
        named = transaction_path(state)
        beside = f"{location}/{named}"
        # Who was held up between the two puts may put a manifest that was removed meanwhile: the
        # leader puts its transaction back.
        whole = not named or self._objects.bytes.get(beside) == transaction
        whole = whole or beside in self._thinned
        self.expect(whole, f"I9 {path} names {named}, which doesn't stand there (whole)")

    def _on_gone(self, process: Process, path: str, data: bytes) -> None:
        if self.standing is not None and not process.is_spared:
            self.standing.removed(path)
        folder, _, name = path.rpartition("/")
        location, _, kind = folder.rpartition("/")
        if kind == "_transactions":
            self._thinned.add(path)
        parsed = parse_manifest_name(name) if kind == "_versions" else None
        incarnation = self.by_location.get(location, "")
        is_rogue = hashlib.sha256(data).digest() in self.rogue
        if parsed is None or parsed.staged_by or is_rogue or incarnation not in self.tables:
            return
        self.follow()
        if self.standing is not None and self.standing.may_go(incarnation, parsed.version):
            return
        told = self.readable.get(incarnation, 0)
        stands = self._objects.bytes.get(path)
        self.expect(
            parsed.version > told or stands is not None,
            f"I10 {path} vanished after version {told} was told to be readable",
        )


def manifest_path(location: str, version: int) -> str:
    """Return where a version's manifest stands."""
    return f"{location}/_versions/{manifest_name(version)}"


def _entry(event: Event, asked: Asked | None, machine: Machine) -> Entry:
    outcome: Outcome = event.outcome
    return Entry(
        outcome.sequence,
        outcome.epoch,
        outcome.transaction_id,
        outcome.attempt,
        outcome.transaction_offset,
        getattr(event.submitted.record, "payload_hash", b"").hex()[:16],
        str(outcome.status),
        str(outcome.code),
        outcome.answers,
        outcome.time_ms,
        tuple(
            (format_table_id(r.table), r.incarnation, r.version, r.first_fragment_id)
            for r in outcome.results
        ),
        asked,
        machine.rules.id_horizon_ms,
        machine.rules.history_versions,
        getattr(event.submitted.record, "submitted_at_ms", 0),
        event.submitted.append_time_ms,
        machine.rules.protocol,
    )
