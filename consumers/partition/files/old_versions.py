"""Outcomes and versions of long ago, fetched from the log when somebody asks.

Under policy `latest` most versions have no file. Any of them is the nearest older manifest plus
the changes since, which the log holds; it is written under its canonical name, so the next reader
finds it. Outcomes are read by the chain, from the nearest place that is known to be valid.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing

from google.protobuf.message import DecodeError

from commitlog.adapters.lance_refs import manifest_in, versions_in
from commitlog.adapters.recordings import Recordings
from commitlog.adapters.storage import ObjectStore, sha256_of, store_for
from commitlog.client.leader.transactions_by_offset import TransactionsByOffset
from commitlog.client.leader.valid_outcomes import Valid
from commitlog.codecs.manifest_file import (
    NamingScheme,
    decode_manifest,
    encode_manifest,
    manifest_name,
    manifest_path,
    parse_manifest_name,
    transaction_path,
)
from commitlog.core.catalogue.catalogue_state import make_table
from commitlog.core.decisions import Change
from commitlog.core.draft import parse
from commitlog.core.lance.versions import realize, recorded
from commitlog.core.log.chain import BEGINNING
from commitlog.core.log.known_ids import KnownId
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState, apply_delta
from commitlog.core.tables.creation import empty_state
from commitlog.core.tables.lance_tables import Table, is_in
from commitlog.errors import CommitLogError, CorruptLog, NoSuchVersion, Unavailable
from commitlog.model.limits import Rules
from commitlog.model.operations import (
    CreateTable,
    CreateTableVersion,
    DeleteTableVersions,
    LanceCommit,
    RegisterTable,
)
from commitlog.model.records import OperationResult, Outcome, Submitted, Transaction, is_commit
from commitlog.model.table import Policy, format_table_id
from commitlog.newest import Newest
from commitlog.ports import Log
from consumers.partition.files.catalogue import Head
from consumers.partition.files.events import Version, by_record
from consumers.partition.files.past_outcomes import PastOutcomes, ReadPlaces
from consumers.partition.files.table_files import quarantined

BLAME_SECONDS = 3.0
OURS_MAX = 10_000
REACHED_MAX = 4

logger = logging.getLogger(__name__)


class OldVersions:
    """Looks back in one partition's log; from any thread."""

    def __init__(
        self,
        log: Log,
        partition: int,
        recordings: Recordings,
        places: ReadPlaces,
        *,
        open_store: Callable[[str], ObjectStore] = store_for,
        clock: Callable[[], float] = time.monotonic,
        reached_max: int = REACHED_MAX,
    ) -> None:
        """Search this partition of the log; of so many tables, know how far that came."""
        self._open_store, self._clock = open_store, clock
        self._ours: Newest[Version, None] = Newest(OURS_MAX)
        """Versions under `latest` whose files were seen to be the log's."""
        self._reached: Newest[str, Table] = Newest(reached_max)
        """By incarnation: where making versions again took too long. Asked again, it goes on."""
        self._log = log
        self._partition = partition
        self._recordings = recordings
        self._places = places
        self._past = PastOutcomes(log, partition, places, clock=clock)
        self.rules: Callable[[], Rules] = Rules
        """Return the rules in force, which know what older versions were made by; any thread."""

    def outcome(self, known: KnownId, transaction_id: str) -> tuple[Outcome, int, bytes] | None:
        """Return an id's outcome, with its offset and record; None if it isn't in the log yet.

        An id that came with an application's sequence again repeats the outcome of another id:
        then its own is the one that says so.
        """
        first = self._outcome_at(known.sequence, transaction_id)
        if first is not None or known.noted <= known.sequence:
            return first
        return self._outcome_at(known.noted, transaction_id)

    def _outcome_at(self, sequence: int, transaction_id: str) -> tuple[Outcome, int, bytes] | None:
        for valid in self._past.read_from(self._places.before(sequence)):
            if valid.outcome.sequence >= sequence:
                is_it = valid.outcome.transaction_id == transaction_id
                return (valid.outcome, valid.offset, valid.record) if is_it else None
        return None

    def transaction(self, outcome: Outcome) -> Submitted:
        """Return the transaction that an outcome answers."""
        with closing(TransactionsByOffset(self._log, self._partition)) as transactions:
            return transactions.of(outcome)

    def transaction_at(self, offset: int) -> Submitted:
        """Return the transaction at an offset."""
        with closing(TransactionsByOffset(self._log, self._partition)) as transactions:
            return transactions.at(offset)

    def materialize(self, head: Head, version: int) -> str:
        """Write a version's manifest if it has none; return its path below the location.

        Raises NoSuchVersion.
        """
        if is_in(version, head.deleted):
            raise NoSuchVersion(
                f"version {version} of table {format_table_id(head.table)} was deleted"
                f"{self._by_whom(head, version)}; {head.version} is the newest"
            )
        store = self._open_store(head.location)
        # A table has many names to look through, and nearly always the file is there.
        path = manifest_in(store, version) if 1 <= version <= head.version else None
        if path is not None and self._is_ours(head, version, store, path):
            return path
        made = self.make_again(head, [version])
        if version not in made:
            raise NoSuchVersion(
                f"table {format_table_id(head.table)} has no version {version}; it has "
                f"{min(versions_in(store), default=1)} to {head.version}"
            )
        return made[version]

    def make_again(self, head: Head, versions: Collection[int]) -> dict[int, str]:
        """Write manifests that a table lost, with the files of their transactions.

        Returns their paths. A version that the log didn't make isn't among them: a registered
        table has older ones.
        """
        store = self._open_store(head.location)
        there = versions_in(store)
        wanted = {v for v in versions if 1 <= v <= head.version}
        made = {
            v: there[v] for v in wanted if v in there and self._is_ours(head, v, store, there[v])
        }
        wanted -= made.keys()
        if not wanted:
            return made
        first, last = min(wanted), max(wanted)
        base, state = self.newest_before(head, first, store, there)
        scheme = parse_manifest_name(next(iter(there.values()), manifest_name(1)).split("/")[-1])
        assert scheme is not None
        for change, now, _ in self.made_after(head, base, last, state, first=first):
            if change.version in wanted:
                made[change.version] = _put_again(store, change, now, scheme.scheme)
        return made

    def newest_before(
        self, head: Head, version: int, store: ObjectStore, there: Mapping[int, str]
    ) -> tuple[int, ManifestState | None]:
        """Return the newest version before one that has its file, and its state; 0 if none has."""
        for older in sorted((v for v in there if v < version), reverse=True):
            if self._is_ours(head, older, store, there[older]):
                return older, decode_manifest(store.read(there[older]))[0]
        return 0, None

    def made_after(
        self, head: Head, base: int, last: int, state: ManifestState | None, *, first: int
    ) -> Iterator[tuple[Change, ManifestState, Valid]]:
        """Yield the versions after `base`, whose state is given, to `last`, while theirs stand.

        With each comes its outcome. Where reading took too long before `first`, it goes on.
        """
        began: int | None = None
        table = Table(head.table, head.incarnation, head.location, head.policy, state)
        reached = self._reached.pop(head.incarnation, table)
        if base < reached.version < first:
            table, base = reached, reached.version
        elif reached.version > base:
            self._reached[head.incarnation] = reached  # of who asked for a later version
        try:
            for valid, submitted in self._past.decided(head, base, last, table.manifest):
                began = _registered_at(valid.outcome, head) if began is None else began
                for change, made in self._made_by(table, valid.outcome, submitted, last):
                    yield change, made, valid
        except Unavailable:
            self._reached[head.incarnation] = table
            raise
        # Before the version that was registered, there are those whose files Lance has left.
        if 0 < table.version < last and (began or 0) <= last:
            raise CorruptLog(
                f"the log holds version {table.version} of {format_table_id(head.table)} "
                f"but not {last}; run `commitlog verify`"
            )

    def _is_ours(self, head: Head, version: int, store: ObjectStore, path: str) -> bool:
        """Return False if a file has a version's name and isn't the log's.

        Under `latest` the log skips names, and a commit around it may have taken one.
        """
        known = head.incarnation, version
        if head.policy is not Policy.LATEST or version >= head.version or known in self._ours:
            return True
        try:
            state, _ = decode_manifest(store.read(path))
        except (CommitLogError, DecodeError):
            return False
        made_by = self._places.made_by(head, version)
        # The log says it, too, but one of years is read for hours.
        is_named = state.version == version and made_by and made_by in state.transaction_file
        decided = () if is_named else self._past.decided(head, version - 1, version, state)
        for valid, submitted in decided:
            if not _may_have_made(valid.outcome, submitted, known, state):
                return False
            break
        self._ours[known] = None
        return True

    def _by_whom(self, head: Head, version: int) -> str:
        """Say which record deleted a version; nothing, if that takes long to find."""
        with closing(TransactionsByOffset(self._log, self._partition)) as transactions:
            deadline = self._clock() + BLAME_SECONDS
            place = self._places.before_version(head, version) or BEGINNING
            for valid in self._past.read_from(place):
                if self._clock() > deadline:
                    break
                outcome = valid.outcome
                if not _deletes(outcome, head):
                    continue
                record = transactions.of(outcome).record
                assert isinstance(record, Transaction)
                deletions = (o for o in record.operations if isinstance(o, DeleteTableVersions))
                if any(is_in(version, operation.ranges) for operation in deletions):
                    said = by_record(outcome.sequence, outcome.time_ms, record.principal)
                    return f"{said} ({outcome.transaction_id})"
        return ""

    def _made_by(
        self, table: Table, outcome: Outcome, submitted: Submitted, last: int
    ) -> Iterator[tuple[Change, ManifestState]]:
        """Apply what one outcome did to the table, to the version `last` at most.

        Yields each version while its state stands.
        """
        transaction = submitted.record
        assert isinstance(transaction, Transaction)
        recordings = self._recordings.of(outcome)
        release = self.rules().lance_release_at(outcome.sequence)
        for operation, result in zip(transaction.operations, outcome.results, strict=True):
            if result.incarnation != table.incarnation:
                continue
            if not table.version < result.version <= last:
                continue
            if isinstance(operation, CreateTable | RegisterTable):
                registered = None
                if isinstance(operation, RegisterTable):
                    registered = ManifestDelta.from_bytes(_recorded(result, recordings))
                first, change = make_table(
                    operation,
                    transaction.transaction_id,
                    outcome.time_ms,
                    result.location,
                    registered,
                    release,
                )
                table.manifest = first.manifest
            elif isinstance(operation, LanceCommit | CreateTableVersion):
                table.manifest = table.manifest or empty_state()
                change = realize(
                    table, operation, parse(operation), result, outcome.time_ms, recordings, release
                )
                assert change.delta is not None
                apply_delta(table.manifest, change.delta)
            else:
                continue
            assert table.manifest is not None
            yield change, table.manifest


def _registered_at(outcome: Outcome, head: Head) -> int:
    """Return the version with which an outcome registered a table; 0 if it did not."""
    kind = RegisterTable.__name__
    own = (one for one in outcome.results if one.incarnation == head.incarnation)
    return next((one.version for one in own if one.operation == kind), 0)


def _may_have_made(
    outcome: Outcome, submitted: Submitted, version: tuple[str, int], state: ManifestState
) -> bool:
    """Return True unless a version's state names another transaction than its record."""
    record = submitted.record
    assert isinstance(record, Transaction)
    for operation, result in zip(record.operations, outcome.results, strict=True):
        if (result.incarnation, result.version) != version:
            continue
        name = ""
        if isinstance(operation, CreateTable):
            name = record.transaction_id
        elif isinstance(operation, LanceCommit | CreateTableVersion):
            name = parse(operation).transaction.uuid
        return name in state.transaction_file
    return True


def _put_again(store: ObjectStore, change: Change, now: ManifestState, scheme: NamingScheme) -> str:
    """Write a version's manifest, and its transaction if that has a file; return its path."""
    if change.message and (beside := transaction_path(now)):
        store.write_ahead(beside, change.message)
    path = manifest_path(change.version, scheme)
    _put(store, path, encode_manifest(now, change.message or None))
    return path


def _put(store: ObjectStore, path: str, data: bytes) -> None:
    """Put a manifest; what a stranger has put under its name is kept in quarantine."""
    if store.create(path, data):
        return
    existing = store.read(path)
    if existing != data:
        target = quarantined(path, sha256_of(existing))
        store.create(target, existing)
        store.write(path, data)
        logger.error("%s was written around the log; what it was is now %s", path, target)


def _deletes(outcome: Outcome, head: Head) -> bool:
    """Return True if an outcome deleted versions of a table."""
    if not is_commit(outcome):
        return False
    deletions = (r for r in outcome.results if r.operation == DeleteTableVersions.__name__)
    return any(result.incarnation == head.incarnation for result in deletions)


def _recorded(result: OperationResult, recordings: Mapping[bytes, bytes]) -> bytes:
    assert result.delta is not None
    return recorded(result.delta, recordings)
