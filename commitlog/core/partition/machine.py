"""One partition's state: what a transaction needs, how it is decided, and the effect of a commit.

`prefetch` names what a decision will read outside; `decide` changes nothing, and gives the same
answer for the same observations; `apply` is the only change, and needs nothing but the record and
its outcome. No clock, no randomness, no I/O: the same log makes the same state in every process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from commitlog.core.catalogue.decider import make_decider
from commitlog.core.decisions import (
    Change,
    Decision,
    ManifestWanted,
    Need,
    Observed,
    Refused,
    Wanted,
    Wants,
    rejected,
)
from commitlog.core.draft import Draft, Parsed, Parses
from commitlog.core.lance.commits import FILE_BY_VERSION, decide_commit
from commitlog.core.lance.named_manifests import share_of
from commitlog.core.lance.new_version import check_operation
from commitlog.core.lance.plain_commits import PlainCommit, decide_plainly
from commitlog.core.lance.request_checks import files_wanted, vectors_wanted
from commitlog.core.lance.staged import decide_staged, manifest_version
from commitlog.core.log.known_ids import KnownId
from commitlog.core.log.outcomes import FITTING_MESSAGE_BYTES, check_size, outcome_of
from commitlog.core.log.parts import Part, Saved
from commitlog.core.manifest.manifest_state import DeltaRefused
from commitlog.core.partition import snapshot
from commitlog.core.partition.effects import as_read, carry_out, check_supported, rules_after
from commitlog.core.partition.expectations import check_domains, check_expects
from commitlog.core.partition.log_time import forget, remember, time_of
from commitlog.core.partition.repeats import find_repeat
from commitlog.core.partition.state import PartitionState
from commitlog.core.refusals import delta_refused, refusal_told, told
from commitlog.core.rows.deciding import decide_application, decide_write
from commitlog.errors import CorruptLog
from commitlog.model.limits import NAMES_CHECKED_SINCE, Rules
from commitlog.model.operations import (
    ApplyRows,
    CreateTableVersion,
    DropNamespace,
    LanceCommit,
    Operation,
    RenameTable,
    WriteRows,
    target,
)
from commitlog.model.reasons import Aside, Phrase
from commitlog.model.records import (
    Code,
    Genesis,
    Outcome,
    ProtocolVersion,
    Status,
    Submitted,
    Transaction,
)
from commitlog.model.table import DomainMap, TableId

_NOT_REMEMBERED = frozenset({Code.ID_REUSED, Code.TOO_OLD, Code.MALFORMED_RECORD})
"""Refusals that say nothing about the id's own transaction."""


class Machine(PartitionState):
    """The state of a partition, and the operations on it."""

    def __init__(self, genesis: Genesis, rules: Rules | None = None) -> None:
        """Start before the first record."""
        super().__init__(genesis, rules)
        self._domains = DomainMap(genesis.domains)
        self._decide_catalogue = make_decider(genesis.tables_root, is_alone=not genesis.domains)
        self._parses = Parses()
        self._digests = snapshot.Digests()

    def locks_of(self, submitted: Submitted) -> frozenset[TableId | str]:
        """Return the tables and ids that no other record may touch while this one waits."""
        record = submitted.record
        if not isinstance(record, Transaction):
            return frozenset()
        held: list[TableId | str] = [record.transaction_id]
        for operation in record.operations:
            name = target(operation)
            held.append(name)
            if isinstance(operation, RenameTable):
                held.append(operation.new_table)
            elif isinstance(operation, DropNamespace):
                held += (*self.tables.within(name), *self.iceberg.tables.within(name))
        held.extend(expect.table for expect in record.expects)
        return frozenset(held)

    def prefetch(self, submitted: Submitted, *, is_next: bool = True) -> tuple[Wanted, ...]:
        """Name what a decision will certainly read; it may ask for more.

        Unless the record is the next one, deletion files are left out: a record before it may
        delete rows of the same fragments, and the files would be fetched in vain.
        """
        record = submitted.record
        if not isinstance(record, Transaction) or self._is_decided(record):
            return ()
        wanted: dict[Wanted, None] = {}
        try:
            parsed = self._parses.of(submitted.offset, record)
        except Refused:
            return ()
        share = share_of(self.rules, record.operations)
        for operation, message in zip(record.operations, parsed, strict=True):
            table = self.tables.get(target(operation))
            if table is None or message is None:
                continue
            if isinstance(operation, CreateTableVersion):
                path = operation.manifest_path
                if manifest_version(path, is_staged=not operation.adopt) == operation.version:
                    wanted[ManifestWanted(table.location, path, share)] = None
            is_checked = self.rules.protocol >= NAMES_CHECKED_SINCE
            if table.manifest and (is_checked or isinstance(operation, LanceCommit)):
                files, _ = files_wanted(table.location, table.manifest.header, message)
                wanted.update(dict.fromkeys(files))
                if is_next and is_checked and message.plain is None:
                    wanted.update(dict.fromkeys(vectors_wanted(table, operation, message)))
        return tuple(wanted)

    def decide(self, submitted: Submitted, observed: Observed) -> Decision | Need:
        """Decide a record, or name what is missing for it."""
        submitted = as_read(self.rules, submitted)
        record = submitted.record
        time_ms = time_of(self, submitted)
        try:
            if isinstance(record, Transaction):
                return self._decide(submitted, record, observed, time_ms)
            if isinstance(record, ProtocolVersion):
                rules_after(self.rules, record, self.sequence + 1)
                return self._decision(submitted, Status.COMMITTED, time_ms)
            raise rejected(
                Code.MALFORMED_RECORD,
                "record_undecodable",
                error=Aside(record.reason),
                problem=Phrase(record.problem),
            )
        except Refused as refusal:
            return self._refused(submitted, refusal, time_ms)
        except Wants as wants:
            return Need(wants.wanted)

    def apply(
        self,
        submitted: Submitted,
        outcome: Outcome,
        *,
        changes: tuple[Change, ...] | None = None,
        recordings: Mapping[bytes, bytes] | None = None,
    ) -> tuple[Change, ...]:
        """Apply an outcome; return what it does to tables.

        `changes` spares the leader computing again what it just decided.
        """
        if outcome.sequence != self.sequence + 1:
            raise CorruptLog(
                f"outcome {outcome.sequence} does not follow {self.sequence}; "
                "run `commitlog verify`"
            )
        record = submitted.record
        if isinstance(record, ProtocolVersion) and outcome.status is Status.COMMITTED:
            self.rules = rules_after(self.rules, record, outcome.sequence)
        done: tuple[Change, ...] = ()
        if isinstance(record, Transaction):
            if outcome.status is Status.COMMITTED and outcome.answers is None:
                parsed = self._parses.of(submitted.offset, record)
                done = carry_out(self, record, parsed, outcome, changes, recordings or {})
            self._parses.forget(submitted.offset)
            self._remember(submitted, record, outcome)
        self.sequence = outcome.sequence
        before_ms, self.time_ms = self.time_ms, outcome.time_ms
        forget(self, submitted, before_ms)
        return done

    def decides(self, table_id: TableId) -> bool:
        """Return True if a table of this name is decided by this partition."""
        return self._domains.partition(table_id) == self.genesis.partition

    def outcome_of(self, transaction_id: str) -> KnownId | None:
        """Return what is remembered about an id, or None."""
        return self.deduplication.get(transaction_id)

    def digest(self) -> bytes:
        """Return the hash of the whole state: equal in every process that applied the same log.

        It is the `snapshot.digest_of` the parts' hashes.
        """
        return self._digests.of(self)

    def to_parts(self) -> dict[str, Part]:
        """Return the state in parts; only those with a new counter need to be written again."""
        return snapshot.to_parts(self)

    def pieces(self) -> Iterator[snapshot.Piece]:
        """Yield the pieces of the state; a caller that has a piece needn't encode its parts."""
        return snapshot.pieces(self)

    def settled_parts(self, since: int, until: int) -> Iterator[tuple[str, Part]]:
        """Yield the parts changed after outcome `since` that won't change again.

        They are full, or tables that were left alone after outcome `until`.
        """
        return snapshot.settled_parts(self, since, until)

    @classmethod
    def from_parts(cls, genesis: Genesis, parts: Mapping[str, Saved]) -> Machine:
        """Make a machine of saved parts, whose hashes are taken as they are.

        Raises UnsupportedFormat if a newer program left them: the record that would stop this one
        is before them.
        """
        machine = cls(genesis)
        snapshot.restore(machine, parts)
        check_supported(machine.rules.protocol)
        machine._digests.know(parts)
        return machine

    def _is_decided(self, record: Transaction) -> bool:
        known = self.deduplication.get(record.transaction_id)
        return known is not None and known.attempt >= record.attempt

    def _decide(
        self, submitted: Submitted, record: Transaction, observed: Observed, time_ms: int
    ) -> Decision:
        repeat = find_repeat(self, record, time_ms)
        if repeat is not None:
            again = repeat._asdict()
            phrase = again.pop("phrase")
            again |= told(self.rules, phrase) if phrase is not None else {}
            return self._decision(submitted, again.pop("status"), time_ms, **again)
        count = len(record.operations)
        if not 0 < count <= self.rules.operations_max:
            raise rejected(
                Code.INVALID_OPERATION,
                "operations_count",
                operations_max=self.rules.operations_max,
                count=count,
            )
        check_domains(self._domains, self.genesis.partition, record)
        parsed = self._parses.of(submitted.offset, record)
        plain = self._plain_commit(record, parsed[0], observed, time_ms) if count == 1 else None
        if plain is not None:
            outcome = outcome_of(
                submitted,
                self.sequence + 1,
                Status.COMMITTED,
                time_ms,
                results=(plain.result,),
                observed=plain.observed,
            )
            if len(plain.change.message) > FITTING_MESSAGE_BYTES:
                check_size(outcome)
            return Decision(outcome, changes=(plain.change,))
        draft = Draft(
            record,
            parsed,
            observed,
            time_ms=time_ms,
            sequence=self.sequence + 1,
            rules=self.rules,
            tables=self.tables,
            locations=self.locations,
            namespaces=self.catalogue.namespaces,
            iceberg=self.iceberg,
        )
        if record.expects:
            check_expects(self, record)
        missing: dict[Wanted, None] = {}
        waiting: set[TableId] = set()
        try:
            for index, operation in enumerate(record.operations):
                if target(operation) in waiting:
                    continue
                try:
                    self._decide_operation(draft, index, operation)
                except Wants as wants:
                    # Operations on other tables name what they lack in the same round.
                    missing.update(dict.fromkeys(wants.wanted))
                    waiting.add(target(operation))
        except (DeltaRefused, Refused) as error:
            if not missing:
                refusal = error if isinstance(error, Refused) else delta_refused(error)
                raise draft.refused(refusal, index) from None
        if missing:
            raise Wants(tuple(missing))
        held: dict[str, Any] = {
            "results": tuple(draft.results),
            "observed": tuple(draft.observations.values()),
        }
        outcome = self._decision(submitted, Status.COMMITTED, time_ms, **held).outcome
        return Decision(outcome, tuple(draft.files), tuple(draft.recordings), tuple(draft.changes))

    def _plain_commit(
        self, record: Transaction, parsed: Parsed | None, observed: Observed, time_ms: int
    ) -> PlainCommit | None:
        """Decide a record whose only operation is plain; None if it needs all checks."""
        [operation] = record.operations
        is_plain = parsed is not None and parsed.plain is not None and not record.expects
        if not is_plain or FILE_BY_VERSION in record.properties:
            return None
        assert parsed is not None
        return decide_plainly(
            self.tables, operation, parsed, observed, rules=self.rules, time_ms=time_ms
        )

    def _decision(
        self, submitted: Submitted, status: Status, time_ms: int, **held: Any
    ) -> Decision:
        outcome = outcome_of(submitted, self.sequence + 1, status, time_ms, **held)
        check_size(outcome)
        return Decision(outcome)

    def _refused(self, submitted: Submitted, refusal: Refused, time_ms: int) -> Decision:
        why = refusal_told(self.rules, refusal)
        try:
            return self._decision(submitted, refusal.status, time_ms, **why)
        except Refused as too_large:
            return self._refused(submitted, too_large, time_ms)

    def _decide_operation(self, draft: Draft, index: int, operation: Operation) -> None:
        parsed = draft.parsed[index]
        check_operation(draft, operation, parsed)
        if isinstance(operation, WriteRows):
            decide_write(draft, operation)
        elif isinstance(operation, ApplyRows):
            decide_application(draft, operation)
        elif parsed is None:
            self._decide_catalogue(draft, operation)
        elif isinstance(operation, LanceCommit):
            decide_commit(draft, index, operation, parsed)
        else:
            assert isinstance(operation, CreateTableVersion)
            decide_staged(draft, operation, parsed)

    def _remember(self, submitted: Submitted, record: Transaction, outcome: Outcome) -> None:
        if outcome.code in _NOT_REMEMBERED or outcome.status is Status.SUPERSEDED:
            return
        if outcome.answers is not None and self.deduplication.is_known(record.transaction_id):
            return
        if record.transaction_id:
            remember(self, submitted, outcome)
