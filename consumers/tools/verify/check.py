"""Verifies one partition: one pass over the log, with everything that follows from it alongside.

An interrupted run continues at its last saved position, with what it had found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from commitlog.adapters.recordings import Recordings
from commitlog.codecs.avro_chain import plain_chain
from commitlog.core.lance.commits import FILE_BY_VERSION
from commitlog.core.log.attribution import PRINCIPAL_PROPERTY, principal_in_content
from commitlog.core.log.replica import Decided, Replica
from commitlog.core.partition.machine import Machine
from commitlog.errors import CommitLogError, CorruptLog, Unavailable, UnsupportedFormat
from commitlog.model.records import LeaderStarted, Status, Transaction
from commitlog.model.table import format_table_id
from commitlog.ports import ArchivableLog, Log
from commitlog.wire import program
from consumers.partition.checkpoints.checkpoint import Checkpoint
from consumers.runtime.progress import OnProgress, untold
from consumers.tools.archive.log import ArchivedLog
from consumers.tools.erasure.acts import ERASURE
from consumers.tools.from_json import from_json
from consumers.tools.verify.deciding import Decider
from consumers.tools.verify.files import PartitionFiles
from consumers.tools.verify.findings import PartitionFindings, Problem, ProblemKind
from consumers.tools.verify.iceberg import check_metadata
from consumers.tools.verify.options import VerifyOptions
from consumers.tools.verify.plain import PlainRun, PlainWalk
from consumers.tools.verify.retention import GivenUp
from consumers.tools.verify.rows import WrittenRows, read_contents
from consumers.tools.verify.settling import settled
from consumers.tools.verify.state import State
from consumers.tools.verify.versions import Versions
from consumers.tools.verify.walk import Walk
from consumers.tools.verify.witnesses import (
    Witness,
    check_root,
    check_table,
    checkpoint_problems,
    hear,
    witnesses,
)

if TYPE_CHECKING:
    from consumers.tools.verify.rebuilt_index import RebuiltIndex

INDEX = "index"


def verify(
    log: Log,
    partition: int,
    options: VerifyOptions | None = None,
    *,
    on_progress: OnProgress = untold,
) -> PartitionFindings:
    """Read both topics of a partition to their present ends and compare what follows from them.

    Raises Unavailable if Kafka doesn't answer, UnsupportedFormat if a newer program wrote the log,
    WrongLog if the root is another log's.
    """
    if options is not None and options.root is not None:
        check_root(log, options.root, partition)
    with closing(_Check(log, partition, options or VerifyOptions(), on_progress)) as check:
        return check.run()


class _Check:
    """One run over one partition."""

    def __init__(
        self, log: Log, partition: int, options: VerifyOptions, on_progress: OnProgress
    ) -> None:
        self._log, self._partition, self._options = log, partition, options
        self._on_progress = on_progress
        self._verdict = PartitionFindings(partition)
        self._files: PartitionFiles | None = None
        self._decider: Decider | None = None
        self._index: RebuiltIndex | None = None
        self._terms: deque[LeaderStarted] = deque()
        """Terms whose first state is still to be compared."""
        self._genesis = log.genesis(partition)
        self._machine = Machine(self._genesis)
        self._recordings = Recordings(self._genesis.tables_root, options.open_store)
        self._state: State | None = None
        self._given_up, self._rows = GivenUp(), WrittenRows(contents=options.contents)
        replica = self._go_on()
        self._voids_before = self._verdict.voids
        self._counted = (self._verdict.versions, self._verdict.files)
        self._walk = self._new_walk(replica)
        self._witnesses = list(witnesses(options.root, partition))
        for move in log.moves():
            known = move.partitions[partition]
            name = f"the move from cluster {move.from_cluster}"
            self._witnesses.append(Witness(name, known.sequence, known.hash, known.offset))
        if options.expected_head is not None:
            self._witnesses.append(options.expected_head)

    def _go_on(self) -> Replica:
        """Take an interrupted run up, or begin one; return where it stands."""
        options, replica, found = self._options, Replica(), None
        if options.state is not None:
            wanted, seconds = options.wanted(), options.save_seconds
            self._state = State(options.state, self._log, self._genesis, wanted, seconds)
            found = self._state.load()
            if found is None:
                self._state.clear()
        if found is not None:
            replica, self._machine = found[0].replica(), found[0].machine
            self._verdict = from_json(PartitionFindings, found[1]["verdict"])
            self._verdict.resumed_at = replica.chain.sequence
            self._given_up.restore(found[1]["given_up"])
            self._rows.restore(found[1]["rows"])
        if not options.chain_only:
            self._decider = Decider(self._machine, options.open_store)
        if not (options.chain_only or options.log_only):
            versions = Versions(self._machine.tables)
            self._files = PartitionFiles(versions, options.open_store, options.table)
            if found is not None:
                versions.restore(found[1]["versions"])
                self._files.missing.restore(found[1]["files"], versions.lives)
            self._open_index(replica.chain.sequence)
        return replica

    def _new_walk(self, replica: Replica) -> Walk:
        log, options = self._log, self._options
        chain = plain_chain(PRINCIPAL_PROPERTY, (ERASURE, FILE_BY_VERSION[0]))
        is_of_log = options.chain_only or options.log_only
        if chain is None or not is_of_log or options.contents:
            return Walk(log, self._partition, replica)
        raw, machine = cast(ArchivableLog, log), None if options.chain_only else self._machine
        return PlainWalk(raw, self._partition, replica, chain, self._take_run, machine)

    def _open_index(self, sequence: int) -> None:
        root = self._options.root
        if root is None or not (root / "index.duckdb").is_file() or self._options.state is None:
            return
        # DuckDB is loaded here: not every log has an index.
        from consumers.tools.verify.rebuilt_index import RebuiltIndex

        folder = self._options.state / INDEX / str(self._partition)
        if not sequence:
            self._index = RebuiltIndex.anew(folder, self._partition, self._recordings.of)
            return
        try:
            self._index = RebuiltIndex(folder, self._partition, sequence, self._recordings.of)
        except Unavailable as error:
            text = f"the version index was not compared: {error}; verify again from the beginning"
            self._verdict.found([Problem(ProblemKind.INDEX, text)])

    def run(self) -> PartitionFindings:
        """Read, compare, and tell."""
        verdict, walk = self._verdict, self._walk
        if not self._is_archive_whole():
            return verdict
        self._read()
        if walk.problem is None and self._files is not None:
            # What is listed now and is committed later than that is read now.
            self._files.list_again()
            walk.extend()
            self._read()
        if walk.problem is not None:
            walk.problem = self._given_up.explained(walk.problem, self._log, self._partition)
        verdict.found(self._given_up.problems(self._log, self._partition))
        if walk.problem is None and self._files is not None:
            self._compare_what_follows(self._files)
        if walk.problem is not None:
            verdict.found([walk.problem])
        verdict.found(self._rows.problems())
        heard = (hear(self._log, self._partition, one, walk.sequence) for one in self._witnesses)
        verdict.found(filter(None, heard))
        self._count()
        if self._state is not None:
            self._state.clear()
        if self._index is not None:
            self._index.remove()
        return verdict

    def close(self) -> None:
        """Let go of readers and files."""
        self._walk.close()
        if self._index is not None:
            self._index.close()

    def _is_archive_whole(self) -> bool:
        """Prove the archive's files before anything is read from them."""
        log = self._log
        if not isinstance(log, ArchivedLog) or log.why_unread(self._partition):
            return True  # what retention finds names it
        if not log.has_archive:
            return True
        from consumers.tools.archive.files import check_segment

        archive = log.archive(self._partition)
        for segment in archive.segments:
            try:
                check_segment(archive.folder, segment)
            except CorruptLog as error:
                at = segment.first_sequence
                self._verdict.found([Problem(ProblemKind.ARCHIVE, str(error), at)])
        end, name = archive.end, f"the archive {archive.folder}"
        self._verdict.archived = end.sequence
        self._witnesses.append(Witness(name, end.sequence, end.hash, end.outcome_offset))
        return self._verdict.is_whole

    def _read(self) -> None:
        """Walk to the end that the walk knows, or to the first bad outcome."""
        walk, terms = self._walk, self._walk.terms
        for batch in walk.batches():
            self._terms.extend(leader for leader, _ in terms)
            self._given_up.take(self._walk.retained)
            for decided in batch:
                if not self._take(decided):
                    return
            self._check_states()
            if self._index is not None:
                self._index.take(batch, terms, walk.replica)
            terms.clear()
            self._on_progress(walk.replica.outcomes_position, walk.end)
            if self._state is not None and self._state.is_due and walk.is_settled:
                self._state.save(self._reached)

    def _take_run(self, run: PlainRun) -> None:
        """Count outcomes without findings."""
        verdict, expected = self._verdict, self._options.expected_head
        if expected is not None and (found := run.hash_of(expected.sequence)):
            self._compare_head(expected, found.hex())
        verdict.outcomes += run.outcomes
        verdict.committed += run.committed
        verdict.unattributed += run.unattributed
        verdict.decided_again += run.outcomes if self._decider is not None else 0

    def _take(self, decided: Decided) -> bool:
        """Take the next outcome; return True if the log can be followed over it."""
        verdict, outcome = self._verdict, decided.outcome
        expected = self._options.expected_head
        if expected is not None and expected.sequence == outcome.sequence:
            self._compare_head(expected, outcome.hash.hex())
        if self._decider is not None:
            self._check_states()
            try:
                self._decide(self._decider, decided)
            except UnsupportedFormat:
                raise
            except (CommitLogError, LookupError, ValueError, AssertionError) as error:
                is_gone = isinstance(error, CorruptLog) and "recording" in str(error)
                text = f"outcome {outcome.sequence} cannot be applied: {error!r}"
                kind = ProblemKind.RECORDING if is_gone else ProblemKind.DECISION
                self._walk.problem = Problem(kind, text, outcome.sequence)
                self._walk.sequence = outcome.sequence - 1
                return False
        self._check_principal(decided)
        self._rows.take(decided, verdict)
        verdict.outcomes += 1
        verdict.committed += outcome.status is Status.COMMITTED
        return True

    def _decide(self, decider: Decider, decided: Decided) -> None:
        """Decide again, apply, and look at the files of what was made."""
        verdict, outcome, submitted = self._verdict, decided.outcome, decided.submitted
        recordings = self._recordings.of(outcome)
        again = decider.decide(decided, recordings)
        changes = None
        if again.decision is None:
            verdict.not_decided_again += 1
        elif again.difference:
            verdict.found([Problem(ProblemKind.DECISION, again.difference, outcome.sequence)])
        else:
            verdict.decided_again += 1
            changes = again.decision.changes
        done = self._machine.apply(submitted, outcome, changes=changes, recordings=recordings)
        verdict.expired.take(done, outcome, submitted.principal)
        if self._files is not None and done:
            for made in self._files.versions.take(done, submitted.operations, outcome.sequence):
                verdict.found(self._files.look(made))

    def _check_states(self) -> None:
        """Compare the state that a leader began on with the one that the log makes."""
        while self._terms and self._terms[0].sequence <= self._machine.sequence:
            leader = self._terms.popleft()
            is_ours = leader.version == program()["version"]
            if leader.sequence < self._machine.sequence or not (is_ours and leader.state_digest):
                continue
            if leader.state_digest != self._machine.digest():
                text = (
                    f"the leader of epoch {leader.epoch} began on another state than the log makes "
                    f"of its first {leader.sequence} outcomes"
                )
                self._verdict.found([Problem(ProblemKind.STATE, text, leader.sequence)])

    def _check_principal(self, decided: Decided) -> None:
        """Compare whom a record names with whom its content does, which the chain covers."""
        record, sequence = decided.submitted.record, decided.outcome.sequence
        if not isinstance(record, Transaction):
            return
        named = principal_in_content(record)
        if named is None:
            self._verdict.unattributed += bool(record.principal)
        elif named != record.principal:
            text = (
                f"the transaction of outcome {sequence} says that {record.principal!r} submitted "
                f"it, and its content, which the chain covers, that {named!r} did"
            )
            self._verdict.found([Problem(ProblemKind.TRANSACTION, text, sequence)])

    def _compare_head(self, expected: Witness, digest: str) -> None:
        if not digest.startswith(expected.hash.lower()):
            text = (
                f"{expected.name} says that outcome {expected.sequence} has the hash "
                f"{expected.hash}, and in the log it has {digest}"
            )
            self._verdict.found([Problem(ProblemKind.END, text, expected.sequence)])

    def _compare_what_follows(self, files: PartitionFiles) -> None:
        table, index, lives = self._options.table, self._index, files.versions.lives
        known = {*self._machine.tables, *self._machine.iceberg.tables}
        if table and not any(one.is_shown({table}) for one in lives.values()):
            check_table(self._genesis, self._partition, table, known)

        def compare(names: Collection[str] | None) -> Iterator[Problem]:
            return self._differences(files, {table} if table and names is None else names)

        iceberg = self._machine.iceberg.tables
        self._verdict.found(settled(compare, self._read_on, lives.values(), iceberg))
        self._verdict.found(checkpoint_problems(self._options.root, self._partition))
        if index is not None and self._options.root is not None and self._walk.problem is None:
            self._verdict.found(index.compare(self._options.root, self._walk.replica))

    def _read_on(self) -> bool:
        """Read to the present end; return True if that is a later one and the log can be read."""
        walk, before = self._walk, self._walk.sequence
        walk.extend()
        self._read()
        return walk.problem is None and walk.sequence > before

    def _differences(
        self, files: PartitionFiles, names: Collection[str] | None
    ) -> Iterator[Problem]:
        """Compare all tables, or those of some names, with what the log says."""
        verdict, options = self._verdict, self._options
        shown = [one for one in files.versions.lives.values() if one.is_shown(names)]
        yield from files.finish(names)
        iceberg = {
            name: one
            for name, one in self._machine.iceberg.tables.items()
            if names is None or format_table_id(name) in names
        }
        yield from check_metadata(iceberg, options.open_store)
        if not options.contents:
            return

        def count(rows: int) -> None:
            verdict.rows += rows

        def rebuilt(rows: int) -> None:
            verdict.rows_rebuilt += rows

        yield from read_contents(shown, count)
        of_shown = {one.table for one in shown}
        tables = [one for name, one in self._machine.tables.items() if name in of_shown]
        yield from self._rows.compare(self._log, self._partition, tables, rebuilt)

    def _reached(self) -> tuple[Checkpoint, dict[str, Any]]:
        """Return how far this came, and what was found."""
        if self._index is not None:
            self._index.flush(self._walk.replica)
        self._count()
        found: dict[str, Any] = {
            "verdict": asdict(self._verdict),
            "given_up": self._given_up.to_json(),
            "rows": self._rows.to_json(),
        }
        if self._files is not None:
            found["files"] = self._files.missing.to_json()
            found["versions"] = self._files.versions.to_json()
        return Checkpoint.of(self._machine, self._walk.replica), found

    def _count(self) -> None:
        """Put into the verdict what others counted."""
        verdict, walk, replica = self._verdict, self._walk, self._walk.replica
        verdict.terms = replica.chain.epoch
        verdict.voids = self._voids_before + replica.void_count
        # Where the walk ended early, what was read ahead depends on how Kafka sent it.
        verdict.undecided = 0 if walk.problem else len(replica.undecided)
        head = walk.hashes.of(walk.sequence) if walk.problem else replica.chain.hash
        verdict.head = head.hex()
        verdict.retained = self._given_up.sequence
        if self._files is not None:
            compared = self._files.manifests_equal + self._files.manifests_alike
            verdict.versions = self._counted[0] + compared
            verdict.files = self._counted[1] + self._files.files_looked_at
        if self._index is not None:
            verdict.index_rows = self._index.rows_compared
