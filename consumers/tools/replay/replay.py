"""Builds again what a log makes: every manifest, every Iceberg metadata file, the version index.

Only the log is read, never the tables: the old root may be gone. What was at LOCATION below the
log's tables root comes to INTO/tables/..., what was elsewhere to INTO/elsewhere/...; the index to
INTO/index.duckdb. Where the old root can be seen, each file is compared with the old one, byte by
byte, and the index row by row. Rows that were written by the log come to INTO/rows/... where their
table's data files are gone.

A manifest that was registered is a file somebody else wrote: the log has all its fields and not its
bytes, so it is compared by its fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from commitlog.adapters.recordings import Recordings
from commitlog.adapters.storage import LocalStore, ObjectStore
from commitlog.client.rows.full_storage import naming_full_disk
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY, parse_manifest_name, transaction_path
from commitlog.core.decisions import Change, ChangeKind
from commitlog.core.log.replica import Decided, Replica
from commitlog.core.partition.machine import Machine
from commitlog.core.tables.lance_tables import is_in, normalize_location
from commitlog.model.table import Policy, format_table_id
from commitlog.ports import Log
from consumers.partition.checkpoints.checkpoint import Checkpoint
from consumers.partition.files.table_files import HINT
from consumers.runtime.progress import OnProgress, untold
from consumers.tools.erasure.acts import expiry_in
from consumers.tools.from_json import from_json
from consumers.tools.replay.rebuilt import RebuiltPlaces, RebuiltTable, Rows, RowsPlace
from consumers.tools.verify.files import PartitionFiles
from consumers.tools.verify.findings import (
    EXPIRIES_KEPT,
    PROBLEMS_MAX,
    Expired,
    Problem,
    ProblemKind,
)
from consumers.tools.verify.iceberg import is_same_metadata
from consumers.tools.verify.rebuilt_index import RebuiltIndex
from consumers.tools.verify.state import SAVE_SECONDS, State
from consumers.tools.verify.versions import LifeManifests, Versions, manifest_paths
from consumers.tools.verify.walk import Walk

STATE = ".replay"
INDEX = "index.duckdb"
ROWS = "rows"
BUILT = frozenset({STATE, INDEX, "index", "tables", "elsewhere", ROWS})
"""What a folder has that was built in."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Where to build, and what to compare with."""

    into: Path
    against: Path | None = None
    """The old root, wherever it is now; None: only the log's own places are tried."""
    all_versions: bool = False
    """Write every version of tables under policy `latest` too."""
    rows: Rows = "missing"
    """Whose rows to write again: of tables whose data files are missing, of all, of none."""
    save_seconds: float = SAVE_SECONDS


@dataclass(slots=True)
class Replayed:
    """What was built of one partition, and how it compares."""

    partition: int
    outcomes: int = 0
    tables: int = 0
    manifests: int = 0
    """Manifests that were written."""
    metadata_files: int = 0
    """Iceberg metadata files that were written."""
    equal_bytes: int = 0
    """Files that are there in the old place too, byte for byte the same."""
    equal_fields: int = 0
    """Registered manifests: other bytes, and every field the same."""
    index_rows: int = 0
    """Rows of the index that were compared with the old one."""
    rebuilt: list[RebuiltTable] = field(default_factory=list)
    """Tables whose rows were to be written again."""
    state_digest: str = ""
    """Of the state that the log makes: the same in every process."""
    resumed_at: int = 0
    expired: Expired = field(default_factory=Expired)
    rows_expired: list[str] = field(default_factory=list)
    """In words: the last records by which rows of writes left the log."""
    problems: list[Problem] = field(default_factory=list)
    problems_count: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs from what stands in the old place."""
        return not self.problems_count

    def found(self, problems: Iterable[Problem]) -> None:
        """Add differences; all are counted, the first ones kept."""
        for problem in problems:
            self.problems_count += 1
            if len(self.problems) < PROBLEMS_MAX:
                self.problems.append(problem)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"ok": self.is_equal, **asdict(self)}


def replay(
    log: Log, partition: int, options: ReplayOptions, *, on_progress: OnProgress = untold
) -> Replayed:
    """Build what one partition of the log makes; continue where an interrupted run was.

    Raises CorruptLog if the log cannot be followed, naming the sequence; StorageFull.
    """
    with naming_full_disk(str(options.into)):
        run = _Replay(log, partition, options, on_progress)
        with closing(run):
            return run.run()


class _Replay:
    """One run over one partition."""

    def __init__(
        self, log: Log, partition: int, options: ReplayOptions, on_progress: OnProgress
    ) -> None:
        self._log, self._options, self._on_progress = log, options, on_progress
        self._genesis = log.genesis(partition)
        against = str(options.against.absolute()) if options.against else ""
        wanted = {
            "against": against,
            "all_versions": options.all_versions,
            "rows": options.rows,
            "program": package_version("lance-commitlog"),
        }
        folder, seconds = options.into / STATE, options.save_seconds
        self._state = State(folder, log, self._genesis, wanted, seconds)
        self._places = RebuiltPlaces(self._genesis.tables_root, options.into, options.against)
        self._result = Replayed(partition)
        self._machine = Machine(self._genesis)
        found = self._state.load()
        replica = Replica()
        if found is None:
            self._state.clear()
        else:
            replica, self._machine = found[0].replica(), found[0].machine
            self._result = from_json(Replayed, found[1]["result"])
            self._result.resumed_at = replica.chain.sequence
        self._before = (self._result.equal_bytes, self._result.equal_fields)
        self._equal_metadata, self._alike_metadata = 0, 0
        self._empty: dict[str, tuple[int, int]] = {}
        """By incarnation: where in the log it had no rows last, and in which version."""
        self._versions = Versions(self._machine.tables)
        if found is not None:
            self._versions.restore(found[1]["versions"])
            self._empty = {name: (at, version) for name, at, version in found[1]["empty"]}
        self._files: PartitionFiles | None = None
        if self._places.is_old_seen:
            seen = self._places.is_seen
            self._files = PartitionFiles(self._versions, self._places.old, is_seen=seen)
            if found is not None and found[1]["files"]:
                self._files.missing.restore(found[1]["files"], self._versions.lives)
        self._recordings = Recordings(self._genesis.tables_root, self._recordings_store)
        identity = asdict(log.identity()) | {"log_id": self._genesis.log_id}
        sequence, recordings = replica.chain.sequence, self._recordings.of
        self._index = RebuiltIndex(options.into, partition, sequence, recordings, identity)
        self._walk = Walk(log, partition, replica)

    def run(self) -> Replayed:
        """Read, build, compare."""
        walk = self._walk
        for batch in walk.batches():
            for decided in batch:
                self._take(decided)
            self._index.take(batch, walk.terms, walk.replica)
            walk.terms.clear()
            self._on_progress(walk.replica.outcomes_position, walk.end)
            if self._state.is_due and walk.is_settled:
                self._state.save(self._reached)
        walk.check()
        if walk.is_settled:
            self._state.save(self._reached)  # what comes now may take as long as the walk
        self._finish()
        return self._result

    def close(self) -> None:
        """Let go of readers and files."""
        self._walk.close()
        self._index.close()

    def _recordings_store(self, location: str) -> ObjectStore:
        return _Copying(self._places.new(location), self._places.old(location))

    def _take(self, decided: Decided) -> None:
        """Apply the next outcome and write what it makes."""
        outcome, submitted, result = decided.outcome, decided.submitted, self._result
        changes = self._machine.apply(submitted, outcome, recordings=self._recordings.of(outcome))
        result.outcomes += 1
        result.expired.take(changes, outcome, submitted.principal)
        if (expiry := expiry_in(decided)) is not None:
            result.rows_expired = [*result.rows_expired, str(expiry)][-EXPIRIES_KEPT:]
        for change in changes:
            if change.kind is ChangeKind.ICEBERG and change.iceberg is not None:
                self._write_metadata(change, outcome.sequence)
        for made in self._versions.take(changes, submitted.operations, outcome.sequence):
            if not made.life.state.fragments:
                self._empty[made.life.incarnation] = outcome.sequence, made.change.version
            if made.life.policy is Policy.EVERY or self._options.all_versions:
                self._write(made.life, made.paths()[0])
            if self._files is not None:
                result.found(self._files.look(made))

    def _write(self, life: LifeManifests, path: str) -> None:
        """Put a manifest."""
        store, data = self._places.new(life.location), life.encode()
        if life.message and (beside := transaction_path(life.state)):
            store.write_ahead(beside, life.message)
        _put(store, path, data)
        self._result.manifests += 1

    def _write_metadata(self, change: Change, sequence: int) -> None:
        table = change.iceberg
        assert table is not None
        place = normalize_location(table.metadata_location)
        folder, _, name = place.rpartition("/")
        data = table.encode()
        store = self._places.new(folder)
        _put(store, name, data)
        self._result.metadata_files += 1
        if self._files is None:
            return
        try:
            old = self._places.old(folder).read(name)
        except OSError:
            return  # of a table that was dropped, or vacuumed
        if old == data:
            self._equal_metadata += 1
        elif is_same_metadata(old, data):
            self._alike_metadata += 1
        else:
            text = f"{place} isn't what the log says"
            name = format_table_id(change.table)
            self._result.found([Problem(ProblemKind.MANIFEST, text, sequence, table=name)])

    def _finish(self) -> None:
        """Write the heads of tables under `latest`, remove deleted versions, compare."""
        result = self._result
        lives = list(self._versions.lives.values())
        for life in lives:
            if life.policy is Policy.LATEST and life.state.version:
                if not self._options.all_versions:
                    path = manifest_paths(life.state.version, life.naming_scheme)[0]
                    self._write(life, path)
                hint = json.dumps({"version": life.state.version}).encode()
                self._places.new(life.location).write(HINT, hint)
            if life.deleted:
                self._delete_versions(life)
        result.tables = sum(life.is_live for life in lives) + len(self._machine.iceberg.tables)
        result.state_digest = self._machine.digest().hex()
        self._index.publish(self._walk.replica)
        against = self._options.against
        if self._files is not None:
            result.found(self._files.finish())
        if against is not None and (against / INDEX).is_file():
            result.found(self._index.compare(against, self._walk.replica))
        self._count()
        self._write_rows()
        self._state.clear()

    def _write_rows(self) -> None:
        """Read the log again for the rows of tables whose data files are gone."""
        wanted = self._options.rows
        tables = [
            table
            for table in self._machine.tables.values()
            if table.rows is not None and wanted != "none"
            if wanted == "all" or not self._places.has_data(table)
        ]
        if not tables:
            return
        # Loaded here: it needs pylance.
        from consumers.tools.replay.replay_rows import rebuild

        into, result = self._options.into, self._result
        places = {
            table.incarnation: RowsPlace(
                at=self._places.old_uri(table.location),
                made_in=self._state.path / ROWS / table.incarnation,
                put_at=into / ROWS / self._places.below(table.location),
                empty=self._empty.get(table.incarnation, (0, 0)),
            )
            for table in tables
        }
        with closing(Walk(self._log, result.partition, Replica())) as walk:
            through = self._walk.replica.chain.sequence
            result.rebuilt, problems = rebuild(tables, places, walk, through, self._on_progress)
        result.found(problems)

    def _delete_versions(self, life: LifeManifests) -> None:
        store = self._places.new(life.location)
        for name in list(store.names(VERSIONS_DIRECTORY)):
            parsed = parse_manifest_name(name)
            if parsed is not None and is_in(parsed.version, life.deleted):
                store.delete(f"{VERSIONS_DIRECTORY}/{name}")

    def _reached(self) -> tuple[Checkpoint, dict[str, Any]]:
        """Return how far this came, and what was built."""
        self._index.flush(self._walk.replica)
        self._count()
        found = {
            "result": asdict(self._result),
            "versions": self._versions.to_json(),
            "files": self._files.missing.to_json() if self._files is not None else [],
            "empty": [[name, *empty] for name, empty in self._empty.items()],
        }
        return Checkpoint.of(self._machine, self._walk.replica), found

    def _count(self) -> None:
        result = self._result
        if self._files is not None:
            equal = self._files.manifests_equal + self._equal_metadata
            alike = self._files.manifests_alike + self._alike_metadata
            result.equal_bytes = self._before[0] + equal
            result.equal_fields = self._before[1] + alike
        result.index_rows = self._index.rows_compared


def _put(store: ObjectStore, path: str, data: bytes) -> None:
    """Put a file; what an interrupted run wrote stands there already."""
    if not store.create(path, data) and store.read(path) != data:
        store.write(path, data)


class _Copying(LocalStore):
    """What the log keeps outside itself: read where it was, and kept in the new place as well."""

    def __init__(self, new: LocalStore, old: LocalStore) -> None:
        self._new, self._old = new, old

    def read(self, path: str) -> bytes:
        """Return a file's bytes; raise FileNotFoundError."""
        try:
            return self._new.read(path)
        except FileNotFoundError:
            data = self._old.read(path)
        self._new.create(path, data)
        return data
