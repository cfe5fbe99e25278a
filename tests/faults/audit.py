"""Compares the log with what writers were told, with every leader's state, and with the files.

It reads the log itself, from the beginning, with the product's follower, so that its state is a
replay; each LeaderStarted holds the digest of another process's state at the same sequence.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import lance

from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.storage import store_for
from commitlog.codecs.manifest_file import encode_manifest, manifest_name
from commitlog.core.decisions import Change
from commitlog.core.log.replica import Replica
from commitlog.core.manifest.manifest_state import ManifestState, apply_delta
from commitlog.core.partition.machine import Machine
from commitlog.core.tables.creation import empty_state
from commitlog.model.records import Genesis, Status
from consumers.partition.files.events import Event
from consumers.partition.follower import Follower
from consumers.tools.verify import VerifyOptions, verify
from tests.faults.processes import Violated, Writer
from tests.simulation.porcupine import Operations

CATCH_UP_SECONDS = 120.0
FILES_SECONDS = 60.0
ATTEMPTS_MAX = 2
"""Outcomes per transaction, on average."""


@dataclass
class _Table:
    location: str
    state: ManifestState
    version: int = 0
    unchecked: dict[int, bytes] = field(default_factory=dict)
    """Manifests whose files were not compared yet."""


class Audit:
    """A replay of the log that goes on from round to round."""

    def __init__(self, log: KafkaLog, genesis: Genesis) -> None:
        """Begin before the first record."""
        self._log, self._genesis = log, genesis
        self.machine = Machine(genesis)
        # The follower applies as much as it read at once; ours goes from outcome to outcome.
        self._follower = Follower(log, genesis, Machine(genesis), Replica())
        self.committed: dict[str, int] = {}
        """The sequence at which an id committed."""
        self.made: dict[str, list[tuple[str, int, int]]] = {}
        """What an id's commit made: the table's incarnation, the version, and the one it read."""
        self.sequences: dict[int, tuple[str, str, int | None]] = {}
        """By sequence: id, status, and the sequence that it repeats."""
        self.digests: dict[int, bytes] = {0: self.machine.digest()}
        """The state's digest after the sequences that a term began on, and where a reading ended:
        it costs what the state's size does."""
        self._terms: set[int] = set()
        self._tables: dict[str, _Table] = {}
        self.checked: Counter[str] = Counter()

    @property
    def epoch(self) -> int:
        """The newest valid term."""
        return self._follower.replica.chain.epoch

    @property
    def voids(self) -> int:
        """How many outcome records nobody may heed."""
        return self._follower.replica.void_count

    def read(self, *wanted: int) -> None:
        """Read to the log's present end; keep the digests of these sequences too."""
        events: list[Event] = []
        self._follower.catch_up(CATCH_UP_SECONDS, events.extend)
        terms = [one for one, _ in self._follower.replica.terms if one.epoch not in self._terms]
        digested = {*wanted, *(leader.sequence for leader in terms)}
        for event in events:
            self._take(event)
            if event.outcome.sequence in digested:
                self.digests[event.outcome.sequence] = self.machine.digest()
        self.digests[self.machine.sequence] = self.machine.digest()
        for leader in terms:
            self._terms.add(leader.epoch)
            # A leader may have begun before outcomes that were read here the last time.
            known = self.digests.get(leader.sequence)
            self.checked["terms' states"] += known is not None
            if known not in (None, leader.state_digest):
                raise Violated(f"epoch {leader.epoch} began with another state than a replay's")
        self.checked["terms"] = len(self._terms)

    def check(self, writers: list[Writer]) -> None:
        """Compare everything up to the log's present end."""
        self.read()
        for writer in writers:
            self._check_told(writer)
        self._check_attempts()
        self._check_files()
        self._check_rows(writers)

    def operations(self, writers: list[Writer]) -> Operations:
        """Return what was committed as the writers saw it, for Porcupine."""
        tables = {incarnation for made in self.made.values() for incarnation, _, _ in made}
        found: Operations = [
            _operation(0, 1, [{"table": name, "kind": "create", "version": 1}]) for name in tables
        ]
        for entry in (one for writer in writers for one in _told(writer.entries())):
            made = self.made.get(entry["asked"])
            if made is None:
                continue
            rows = [f"r{number}" for _, number in (*entry["adds"], *entry["removes"])]
            effects = [
                {
                    "table": incarnation,
                    "kind": "commit",
                    "version": version,
                    "read": read,
                    "needs": rows if entry["removes"] else [],
                    "touches": rows,
                }
                for incarnation, version, read in made
            ]
            found.append(_operation(entry["at"], entry.get("told_at"), effects))
        for number, operation in enumerate(found):
            operation["client"] = number
        return found

    def check_from_nothing(self) -> None:
        """Replay the whole log once more, and let `verify` walk it."""
        again = Audit(self._log, self._genesis)
        try:
            self._compare(again)
        finally:
            again.close()

    def _compare(self, again: Audit) -> None:
        again.read()
        self.read(again.machine.sequence)
        if again.machine.digest() != self.digests[again.machine.sequence]:
            raise Violated("a second replay came to another state")
        # Files are compared as they come; under load the newest ones aren't there yet.
        verdict = verify(self._log, 0, VerifyOptions(log_only=True))
        if not verdict.is_whole:
            raise Violated(f"verify: {verdict.problem}")
        self.checked["replays"] += 1

    def close(self) -> None:
        """Let go of the log."""
        self._follower.close()

    def _take(self, event: Event) -> None:
        outcome = event.outcome
        self.sequences[outcome.sequence] = (
            outcome.transaction_id,
            str(outcome.status),
            outcome.answers,
        )
        if outcome.status is Status.COMMITTED and outcome.answers is None:
            earlier = self.committed.setdefault(outcome.transaction_id, outcome.sequence)
            if earlier != outcome.sequence:
                raise Violated(
                    f"{outcome.transaction_id} committed at {earlier} and at {outcome.sequence}"
                )
            self.made.setdefault(
                outcome.transaction_id,
                [(one.incarnation, one.version, one.read_version) for one in outcome.results],
            )
        self.machine.apply(event.submitted, outcome)
        for change in event.changes:
            self._change(change)

    def _change(self, change: Change) -> None:
        if change.delta is None:
            return
        table = self._tables.get(change.incarnation)
        if table is None:
            table = self._tables[change.incarnation] = _Table(change.location, empty_state())
        apply_delta(table.state, change.delta)
        table.version = change.version
        table.unchecked[change.version] = encode_manifest(table.state, change.message or None)

    def _check_told(self, writer: Writer) -> None:
        """What a writer was told is what the log says."""
        for entry in writer.entries():
            if "told" not in entry:
                continue
            found = self.sequences.get(entry["sequence"])
            if found is None:
                if entry["sequence"] > self.machine.sequence:
                    continue  # told after we read
                raise Violated(f"{writer.name} was told {entry}, which the log doesn't have")
            transaction_id, status, answers = found
            first = answers if answers is not None else entry["sequence"]
            is_right = status == entry["status"] and (
                transaction_id == entry["told"]
                and (status != "committed" or self.committed[transaction_id] == first)
            )
            if not is_right:
                raise Violated(f"{writer.name} was told {entry}, the log says {found}")
            self.checked["answers"] += 1

    def _check_attempts(self) -> None:
        """Nothing that breaks has many transactions appended again: no storm of retries."""
        asked = len({transaction_id for transaction_id, _, _ in self.sequences.values()})
        if self.machine.sequence > ATTEMPTS_MAX * asked:
            raise Violated(f"{asked} transactions took {self.machine.sequence} attempts")

    def _check_files(self) -> None:
        """Each version has its file, with the bytes that follow from the log."""
        deadline = time.monotonic() + FILES_SECONDS
        for table in self._tables.values():
            store = store_for(table.location)
            for version, expected in list(table.unchecked.items()):
                path = f"_versions/{manifest_name(version)}"
                while store.size(path) < 0:
                    if time.monotonic() > deadline:
                        raise Violated(f"version {version} of {table.location} has no file")
                    time.sleep(0.02)
                if store.read(path) != expected:
                    raise Violated(f"{path} of {table.location} isn't what the log says")
                del table.unchecked[version]
                self.checked["manifests"] += 1

    def _check_rows(self, writers: list[Writer]) -> None:
        """The tables hold what was committed and not removed since, each row once."""
        expected: dict[str, Counter[int]] = {}
        entries = [entry for writer in writers for entry in writer.entries()]
        asked = {entry["asked"]: entry for entry in entries if "asked" in entry}
        for transaction_id, _ in sorted(self.committed.items(), key=lambda item: item[1]):
            entry = asked.get(transaction_id)
            if entry is None:
                continue  # the making of a table
            for table, number in entry["adds"]:
                expected.setdefault(table, Counter())[number] += 1
            for table, number in entry["removes"]:
                expected.setdefault(table, Counter())[number] -= 1
        for table_id, table in self.machine.tables.items():
            name = "$".join(table_id)
            dataset = lance.dataset(table.location, version=table.version)
            found = Counter(dataset.to_table(columns=["id"]).column("id").to_pylist())
            wanted = +expected.get(name, Counter())
            if found != wanted:
                lost, more = wanted - found, found - wanted
                raise Violated(
                    f"{name} at {table.version}: {sum(lost.values())} rows are missing "
                    f"{sorted(lost)[:3]}, {sum(more.values())} too many {sorted(more)[:3]}"
                )
            self.checked["rows"] = sum(found.values())


def _told(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what a writer asked, each with when it was told what came of it."""
    told_at = {entry["told"]: entry["at"] for entry in entries if "told" in entry}
    for entry in entries:
        if "asked" in entry:
            at = told_at.get(entry["asked"])
            yield entry if at is None else {**entry, "told_at": at}


def _operation(began: float, ended: float | None, effects: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an operation by the clock that all processes of a machine share."""
    return {
        "call": int(began * 1_000_000_000),
        "return": int(ended * 1_000_000_000) if ended is not None else 0,
        "committed": True,
        "effects": effects,
    }
