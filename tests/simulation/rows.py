"""The specification as a dumb twin: tables as plain dictionaries of rows, one outcome at a time.

It knows nothing of manifests, grids or vectors. Each outcome is judged by what its writer meant
(`Intent`): a commit must be possible on the rows as they stand, a refusal must have its reason.
What it accepts becomes its state. Problems are sentences that begin with an invariant's number:

I4 dense sequences and versions   I5 an id has one effect     I6 outcomes follow the rules
I7 nothing is skipped             I8 time and real-time order  I14 row truth   I17 all or nothing
I21 what is held isn't deleted
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from commitlog.core.catalogue.version_deletion import HOLD
from commitlog.model.limits import CONFIRMED_CLOCK_SINCE, HOLDS_SINCE

Row = tuple[int, int]
"""(key, value)"""
Rows = dict[int, Row]
"""Living rows of a fragment by offset."""
Place = tuple[int, int]
"""(fragment id, offset)"""
Group = tuple[tuple[int, ...], tuple[tuple[int, tuple[Place, ...]], ...]]
"""Fragments that are rewritten, and the new ones with their rows' former places."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What one operation is meant to do."""

    kind: str
    """create, drop, rename, append, delete, update, config, write, rows, apply, reserve, rewrite,
    expire or alter."""
    table: str
    incarnation: str = ""
    read_version: int = 0
    adds: tuple[tuple[Row, ...], ...] = ()
    """New fragments' rows."""
    removes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(fragment id, offsets)"""
    drops: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Fragments removed whole, with the rows that the writer saw in them."""
    config: str = ""
    is_keyed: bool = False
    """Whether the writer says which keys it adds, to a table that declares its key."""
    has_key: bool = False
    """create: whether the table declares its key."""
    location: str = ""
    new_table: str = ""
    is_bad: bool = False
    """write: whether its rows aren't what the record says."""
    mode: str = "append"
    """write: append, delete, insert, update, upsert, or touch, which brings keys and no values."""
    base: tuple[tuple[tuple[int, int], Row], ...] = ()
    """apply: the rows of the version that was read, by fragment and offset."""
    writes: tuple[tuple[int, int, bool], ...] = ()
    """apply: sequence and operation of each write, and whether it is refused."""
    after: int = 0
    """apply: through which sequence writes were applied before."""
    count: int = 0
    """reserve: how many fragment ids."""
    groups: tuple[Group, ...] = ()
    """rewrite: the old fragments of each group, and where each row of its new ones was."""
    ranges: tuple[tuple[int, int], ...] = ()
    """expire: versions, both ends included."""
    planned_at: float = 0.0
    """expire: when somebody began to look what may be deleted."""
    sets: tuple[tuple[str, str], ...] = ()
    """alter: properties; one that is to be removed has an empty value."""
    images: tuple[tuple[int, int], ...] = ()
    """delete and update: how many rows of a fragment are said to be deleted then."""

    @property
    def expires(self) -> set[int]:
        """The versions that are to be deleted."""
        return {v for first, last in self.ranges for v in range(first, last + 1)}


@dataclass(frozen=True, slots=True)
class Asked:
    """A transaction as its writer meant it; by its content."""

    intents: tuple[Intent, ...]
    expects: tuple[tuple[str, int], ...] = ()
    """(table, version) that must be its head; version -1: the table must not exist."""
    application: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """An outcome of the log, with what it answers."""

    sequence: int
    epoch: int
    transaction_id: str
    attempt: int
    offset: int
    """Of the transaction."""
    payload: str
    status: str
    code: str = ""
    answers: int | None = None
    time_ms: int = 0
    results: tuple[tuple[str, str, int, int], ...] = ()
    """(table, incarnation, version, first fragment id)"""
    asked: Asked | None = None
    """None: a record that no writer of ours wrote, or the rules."""
    id_horizon_ms: int = 0
    history_versions: int = 0
    submitted_at_ms: int = 0
    append_ms: int = 0
    protocol: int = 0


@dataclass
class Fragment:
    """A fragment's living rows, which version touched it last, and how many rows it began with."""

    rows: Rows
    changed_at: int
    size: int


@dataclass
class TableRows:
    """One incarnation."""

    incarnation: str
    location: str
    has_key: bool
    version: int = 1
    fragments: dict[int, Fragment] = field(default_factory=dict)
    next_fragment: int = 0
    added_at: int = 0
    """The last version that added rows."""
    config_at: dict[str, int] = field(default_factory=dict)
    applications: dict[str, int] = field(default_factory=dict)
    accepted: dict[tuple[int, int], Intent] = field(default_factory=dict)
    """Writes of rows that wait to be applied, by sequence and operation."""
    applied: int = 0
    """The sequence through which writes of rows are applied."""
    expired: set[int] = field(default_factory=set)
    """Versions that a record deleted."""
    holds: dict[str, str] = field(default_factory=dict)
    """Versions that may not be deleted, as `commitlog.hold.NAME` says it."""

    def held(self, time_ms: int) -> set[int]:
        """Return the versions that are held at a time."""
        found = set()
        for said in self.holds.values():
            versions, _, until = said.partition(" until ")
            first = int(versions.removesuffix("-"))
            last = self.version if versions.endswith("-") else first
            if not until or int(until) > time_ms:
                found |= set(range(first, last + 1))
        return found

    def is_next(self, intent: Intent) -> bool:
        """Say whether an application names the next writes, whole transactions of them."""
        named = [(sequence, index) for sequence, index, _ in intent.writes]
        through = named[-1][0]
        return intent.after == self.applied and named == [
            w for w in self.accepted if w[0] <= through
        ]

    def lacks(self, removes: Iterable[tuple[int, tuple[int, ...]]]) -> bool:
        """Return True if one of these rows doesn't live in its fragment."""
        return any(
            offset not in self.fragments[fragment_id].rows
            for fragment_id, offsets in removes
            if fragment_id in self.fragments
            for offset in offsets
        )

    def rows(self) -> dict[tuple[int, int], Row]:
        """Return all living rows by fragment and offset."""
        return {
            (fragment_id, offset): row
            for fragment_id, fragment in sorted(self.fragments.items())
            for offset, row in sorted(fragment.rows.items())
        }


HOUR_MS = 3_600_000


class Spec:
    """The state that the outcomes so far make, and the problems found on the way."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        """Begin before the first outcome."""
        self.sequence = 0
        self.epoch = 0
        self.time_ms = 0
        self.forgets_by_ms = 0
        """The clock that ids are forgotten by: an hour per record at most, whatever Kafka says."""
        self.append_ms = 0
        self.is_confirmed = False
        """Whether that clock is bounded by the writers', too, from the first record on."""
        self.tables: dict[str, TableRows] = {}
        self.dropped: dict[str, TableRows] = {}
        """Incarnations that were dropped, at their last version."""
        self.locations: dict[str, str] = dict(names or {})
        self.ids: dict[str, Entry] = {}
        """By id: the commit, or the newest refusal."""
        self.repeating: dict[str, str] = {}
        """What came first under an id that repeats another one's commit."""
        self.answered: set[int] = set()
        self.by_sequence: dict[int, Entry] = {}
        self.horizon_ms = 1 << 62
        """The shortest that ids were ever remembered."""
        self.history_versions = 1 << 62
        """The fewest versions that were ever compared."""
        self.problems: list[str] = []

    def judge(self, entry: Entry) -> None:
        """Check the next outcome and take it."""
        before = len(self.problems)
        self._frame(entry)
        if entry.asked is not None and entry.status == "committed" and entry.answers is None:
            self._commit(entry, entry.asked)
        elif entry.answers is not None:
            self._repeat(entry)
        elif entry.asked is not None:
            self._refusal(entry, entry.asked)
        elif entry.status == "committed" and entry.payload:
            self._problem(entry, "I7 a record that is no transaction was committed")
        known = self.ids.get(entry.transaction_id)
        forgettable = entry.code in {"ID_REUSED", "TOO_OLD", "MALFORMED_RECORD"}
        newest = known.attempt if known is not None else 0
        # Who forgot an id may still know its commit, by an application's number.
        is_known = entry.answers is not None or entry.code == "ID_REUSED"
        is_repeated = is_known and self._is_forgettable(entry)
        is_behind = entry.attempt < newest and entry.status != "superseded" and not is_repeated
        if is_behind and entry.code != "TOO_OLD":
            self._problem(entry, f"I5 attempt {entry.attempt} is decided after {newest}")
        is_final = known is not None and known.status == "committed"
        is_new = entry.status != "superseded" and entry.answers is None and not forgettable
        if is_new and not is_final:
            self.ids[entry.transaction_id] = entry
        elif entry.answers is not None:
            self.repeating.setdefault(entry.transaction_id, entry.payload)
        self.by_sequence[entry.sequence] = entry
        self.sequence, self.epoch = entry.sequence, max(self.epoch, entry.epoch)
        self._pass_time(entry)
        assert len(self.problems) >= before

    def _pass_time(self, entry: Entry) -> None:
        since, goal_ms = self.forgets_by_ms or self.time_ms or entry.time_ms, entry.append_ms
        if entry.sequence == 1:
            self.is_confirmed = entry.protocol >= CONFIRMED_CLOCK_SINCE
        if self.is_confirmed:
            passed = since + entry.append_ms - (self.append_ms or entry.append_ms)
            confirmed = (entry.submitted_at_ms or self.time_ms or goal_ms) + HOUR_MS
            goal_ms = min(goal_ms, max(passed, confirmed))
        self.forgets_by_ms = max(since, min(goal_ms, since + HOUR_MS))
        self.time_ms, self.append_ms = max(self.time_ms, entry.time_ms), entry.append_ms

    def _problem(self, entry: Entry, what: str) -> None:
        self.problems.append(f"{what} (sequence {entry.sequence}, id {entry.transaction_id[:8]})")

    def _frame(self, entry: Entry) -> None:
        if entry.sequence != self.sequence + 1:
            self._problem(entry, f"I4 sequence {entry.sequence} follows {self.sequence}")
        if entry.epoch < self.epoch:
            self._problem(entry, f"I3 epoch {entry.epoch} decides after {self.epoch}")
        if entry.time_ms < self.time_ms:
            self._problem(entry, f"I8 time goes back from {self.time_ms} to {entry.time_ms}")
        if entry.offset in self.answered:
            self._problem(entry, f"I4 the record at {entry.offset} is answered twice")
        self.answered.add(entry.offset)
        self.horizon_ms = min(self.horizon_ms, entry.id_horizon_ms)
        self.history_versions = min(self.history_versions, entry.history_versions)

    def _is_forgettable(self, entry: Entry) -> bool:
        """Return True if what is known of an id may be forgotten by now."""
        newest_ms = max(entry.time_ms, self.forgets_by_ms)
        return 0 < entry.submitted_at_ms <= newest_ms - self.horizon_ms

    def _commit(self, entry: Entry, asked: Asked) -> None:
        known = self.ids.get(entry.transaction_id)
        if known is not None and known.status == "committed":
            self._problem(entry, f"I5 the id committed before, as {known.sequence}")
        if known is not None and known.attempt >= entry.attempt:
            self._problem(entry, f"I5 attempt {entry.attempt} after attempt {known.attempt}")
        for reason in self._unexpected(asked):
            self._problem(entry, f"I6 committed although {reason}")
        made = {result[0] for result in entry.results}
        if len(entry.results) != len(asked.intents):
            self._problem(entry, "I17 some of its operations have no result")
        for index, result in enumerate(entry.results[: len(asked.intents)]):
            for what in self._apply(asked.intents[index], result, entry):
                self._problem(entry, what)
            for what in self._rows(entry.sequence, index, asked):
                self._problem(entry, what)
        if asked.application is not None:
            name, number = asked.application
            for table in made & set(self.tables):
                last = self.tables[table].applications.get(name, -1)
                if number <= last:
                    self._problem(entry, f"I5 {name} committed {number} after {last}")
                self.tables[table].applications[name] = max(number, last)

    def _unexpected(self, asked: Asked) -> Iterator[str]:
        for name, version in asked.expects:
            table = self.tables.get(name)
            found = table.version if table is not None else -1
            if found != version:
                yield f"{name} is at {found} and {version} was expected"

    def _apply(
        self, intent: Intent, result: tuple[str, str, int, int], entry: Entry
    ) -> Iterator[str]:
        name, incarnation, version, first_fragment = result
        if intent.kind == "create":
            yield from self._create(intent, name)
            return
        table = self.tables.get(intent.table)
        if table is None:
            yield f"I6 {intent.kind} of {intent.table}, which doesn't exist"
            return
        if intent.incarnation not in {"", table.incarnation} or incarnation != table.incarnation:
            yield f"I6 {intent.kind} meant incarnation {intent.incarnation} of {name}"
        if intent.kind == "drop":
            self.dropped[table.incarnation] = self.tables.pop(intent.table)
            return
        if intent.kind == "rename":
            self.tables[intent.new_table] = self.tables.pop(intent.table)
            return
        if intent.kind in {"write", "apply"}:
            return
        if intent.kind == "alter":
            table.holds |= {name: value for name, value in intent.sets if HOLD in name}
            table.holds = {name: value for name, value in table.holds.items() if value}
            return
        if intent.kind == "expire":
            yield from self._expire(intent, table, entry)
            return
        if version != table.version + 1:
            yield f"I4 version {version} of {name} follows {table.version}"
        if intent.read_version > table.version:
            yield f"I6 {name} was read at {intent.read_version} before it was made"
        table.version = version
        yield from self._remove(intent, table)
        yield from self._add(intent, table, first_fragment)
        yield from self._rewrite(intent, table)
        table.next_fragment += intent.count
        if intent.config:
            since = table.config_at.get(intent.config, 0)
            if since > intent.read_version:
                yield f"I6 config {intent.config} was changed by version {since} meanwhile"
            table.config_at[intent.config] = version

    def _rows(self, sequence: int, index: int, asked: Asked) -> Iterator[str]:
        """Each accepted write is applied once, in order, or refused if its rows are unusable."""
        intent = asked.intents[index]
        table = self.tables.get(intent.table)
        if table is None or intent.kind not in {"write", "apply"}:
            return
        if intent.kind == "write":
            table.accepted[sequence, index] = intent
            return
        if not table.is_next(intent):
            yield f"I20 {intent.writes} of {intent.table} aren't what comes after {table.applied}"
        base = dict(intent.base)
        due = list(base.values())
        for position, number, is_refused in intent.writes:
            write = table.accepted.pop((position, number), None)
            if write is None or write.is_bad is not is_refused:
                yield f"I20 the write {position}/{number} was applied before, or shouldn't be"
            elif not is_refused:
                due = _written(due, write)
        for other in asked.intents:
            gone = {(f, o) for f, offsets in (*other.removes, *other.drops) for o in offsets}
            base = {place: row for place, row in base.items() if place not in gone}
        made = [row for other in asked.intents for rows in other.adds for row in rows]
        if sorted([*base.values(), *made]) != sorted(due):
            yield f"I20 the writes {intent.writes} of {intent.table} come to other rows one by one"
        table.applied = intent.writes[-1][0]

    def _create(self, intent: Intent, name: str) -> Iterator[str]:
        if name in self.tables:
            yield f"I6 {name} was created over the one that stands"
        if self.locations.get(intent.location, "") not in {"", intent.incarnation}:
            yield f"I6 {intent.location} was given to two incarnations"
        if intent.incarnation in self.dropped:
            yield f"I6 incarnation {intent.incarnation} was made again at its old location"
        self.locations[intent.location] = intent.incarnation
        self.tables[name] = TableRows(intent.incarnation, intent.location, intent.has_key)

    def _remove(self, intent: Intent, table: TableRows) -> Iterator[str]:
        for fragment_id, seen in intent.drops:
            fragment = table.fragments.pop(fragment_id, None)
            if fragment is None:
                yield f"I14 lost update: fragment {fragment_id} was removed before"
            # Who names no incarnation removes it from a table that was made again, too.
            elif intent.incarnation and tuple(sorted(fragment.rows)) != seen:
                yield f"I14 fragment {fragment_id} was removed with other rows than were seen"
        for fragment_id, offsets in intent.removes:
            fragment = table.fragments.get(fragment_id)
            for offset in offsets:
                if fragment is None or fragment.rows.pop(offset, None) is None:
                    yield f"I14 lost update: row {fragment_id}/{offset} was gone already"
            if fragment is not None:
                # Who names no incarnation may say so of a smaller fragment in another table.
                is_unchanged = not intent.incarnation and fragment.changed_at <= intent.read_version
                said = dict(intent.images).get(fragment_id) if is_unchanged else None
                fragment.changed_at = table.version
                if said == fragment.size or not fragment.rows:
                    del table.fragments[fragment_id]

    def _add(self, intent: Intent, table: TableRows, first_fragment: int) -> Iterator[str]:
        if not intent.adds:
            return
        if first_fragment < table.next_fragment:
            yield f"I4 fragment id {first_fragment} was used before"
        if table.has_key and intent.is_keyed:
            living = {row[0] for row in table.rows().values()}
            twice = {row[0] for rows in intent.adds for row in rows} & living
            if twice:
                yield f"I14 duplicate keys {sorted(twice)[:3]}"
        for number, rows in enumerate(intent.adds, first_fragment):
            table.fragments[number] = Fragment(dict(enumerate(rows)), table.version, len(rows))
            table.next_fragment = number + 1
        table.added_at = table.version

    def _rewrite(self, intent: Intent, table: TableRows) -> Iterator[str]:
        """Rows that live by now are in the new fragments, each at the rank that it was read at."""
        rows = table.rows()
        for olds, news in intent.groups:
            for fragment_id in olds:
                table.fragments.pop(fragment_id, None)
            for fragment_id, places in news:
                if fragment_id in table.fragments:
                    yield f"I4 fragment id {fragment_id} is used twice"
                living = {n: rows.pop(place) for n, place in enumerate(places) if place in rows}
                if living:
                    table.fragments[fragment_id] = Fragment(living, table.version, len(places))
                table.next_fragment = max(table.next_fragment, fragment_id + 1)
            if lost := [place for place in rows if place[0] in olds]:
                yield f"I14 the rows at {lost[:3]} are in no fragment that was rewritten"

    def _expire(self, intent: Intent, table: TableRows, entry: Entry) -> Iterator[str]:
        """I21: what is held stays, and so does the newest; nothing is deleted twice."""
        gone = intent.expires
        held = table.held(entry.time_ms) if entry.protocol >= HOLDS_SINCE else set()
        for what, kept in (("held", held), ("deleted before", table.expired)):
            if gone & kept:
                yield f"I21 the versions {sorted(gone & kept)[:3]} of {intent.table} are {what}"
        if max(gone) >= table.version:
            yield f"I21 the newest version of {intent.table} is deleted"
        table.expired |= gone

    def _repeat(self, entry: Entry) -> None:
        earlier = self.by_sequence.get(entry.answers or 0)
        if earlier is None or earlier.status != entry.status:
            self._problem(entry, f"I5 it repeats {entry.answers}, which says otherwise")
            return
        is_same = earlier.transaction_id == entry.transaction_id
        application = entry.asked.application if entry.asked else None
        theirs = earlier.asked.application if earlier.asked else None
        if is_same and earlier.payload != entry.payload and application is None:
            self._problem(entry, "I5 other content was answered with the first commit")
        if not is_same and (application is None or application != theirs):
            self._problem(entry, f"I5 it repeats {entry.answers}, of another id")
        told = [earlier]
        if application is not None:
            # Each table has its own sequences: what two records did may be told as one.
            others = (e for e in self.by_sequence.values() if e.asked and e.status == "committed")
            told += [e for e in others if e.asked and e.asked.application == application]
        # A table may have another name by now.
        versions = {(made, version) for one in told for _, made, version, _ in one.results}
        if any((made, version) not in versions for _, made, version, _ in entry.results):
            self._problem(entry, f"I5 it repeats {entry.answers} with other versions")

    def _refusal(self, entry: Entry, asked: Asked) -> None:
        """A refusal must have a reason that is true."""
        if entry.status == "superseded":
            known = self.ids.get(entry.transaction_id)
            if known is None or known.attempt <= entry.attempt:
                self._problem(entry, "I6 superseded by no later attempt")
        elif entry.status in {"retryable", "incompatible"}:
            if not any(self._excuses(entry, asked)):
                self._problem(entry, f"I6 {entry.status} ({entry.code}) without a conflict")
        elif not self._is_rejectable(entry, asked):
            self._problem(entry, f"I6 rejected as {entry.code} without that being so")

    def _excuses(self, entry: Entry, asked: Asked) -> Iterator[bool]:
        if entry.code == "EXPECTATION_FAILED":
            yield any(True for _ in self._unexpected(asked))
            return
        for intent in asked.intents:
            table = self.tables.get(intent.table)
            if table is None:
                continue
            read = intent.read_version
            if entry.code == "READ_VERSION_PRUNED":
                yield read < table.version - self.history_versions or read < 1
                continue
            old = [fragment_id for olds, _ in intent.groups for fragment_id in olds]
            for fragment_id in (*old, *(f for f, _ in (*intent.removes, *intent.drops))):
                fragment = table.fragments.get(fragment_id)
                yield fragment is None or fragment.changed_at > read
            yield (intent.is_keyed or intent.kind == "rows") and table.added_at > read
            yield bool(intent.adds) and table.has_key and table.added_at > read
            yield bool(intent.config) and table.config_at.get(intent.config, 0) > read

    def _is_rejectable(self, entry: Entry, asked: Asked) -> bool:
        names = [(intent, self.tables.get(intent.table)) for intent in asked.intents]
        code, known = entry.code, self.ids.get(entry.transaction_id)
        if any(t and i.groups and i.incarnation != t.incarnation for i, t in names):
            return True  # whatever the other table has instead
        if code == "NO_SUCH_TABLE":
            if any(version >= 0 and name not in self.tables for name, version in asked.expects):
                return True
            return any(i.kind != "create" and t is None for i, t in names)
        if code == "TABLE_EXISTS":
            renames = any(i.new_table in self.tables for i, _ in names)
            return renames or any(i.kind == "create" and t is not None for i, t in names)
        if code == "TABLE_REPLACED":
            return any(t and i.incarnation not in {"", t.incarnation} for i, t in names)
        if code == "ROWS_RANGE":
            return any(t and i.kind == "apply" and not t.is_next(i) for i, t in names)
        if code == "LOCATION_TAKEN":
            return any(i.location in self.locations for i, _ in names)
        if code == "EXPECTATION_FAILED":
            return any(True for _ in self._unexpected(asked)) or any(
                t and i.expires & t.expired for i, t in names
            )
        if code == "INVALID_OPERATION":
            held = (i.expires & t.held(entry.time_ms) for i, t in names if t)
            if entry.protocol >= HOLDS_SINCE and any(held):
                return True
            # As with fragments: the rows of another table, if it named no incarnation.
            return any(t and not i.incarnation and t.lacks(i.removes) for i, t in names)
        if code == "ID_REUSED":
            first = self.repeating.get(entry.transaction_id, entry.payload)
            is_reused = (known.payload if known is not None else first) != entry.payload
            return is_reused or asked.application is not None
        if code == "TOO_OLD":
            name, number = asked.application or ("", 0)
            if any(t and t.applications.get(name, -1) > number for _, t in names):
                return True
            return self._is_forgettable(entry)
        if code in {"UNKNOWN_FRAGMENT", "FUTURE_READ_VERSION"}:
            # Only a request that didn't name its incarnation can mean another table's fragments.
            return any(not i.incarnation for i in asked.intents)
        return code in {"MISSING_FILE", "SPLIT_TRANSACTION", "BUILD_REFUSED"}


def _written(rows: list[Row], write: Intent) -> list[Row]:
    """Return what rows become by one write alone."""
    given = [row for added in write.adds for row in added]
    if write.mode == "append":
        return rows + given
    keys, values = {key for key, _ in rows}, dict(given)
    if write.mode == "delete":
        return [row for row in rows if row[0] not in values]
    if write.mode in {"update", "upsert"}:
        rows = [(key, values.get(key, value)) for key, value in rows]
    if write.mode in {"insert", "upsert"}:
        rows = rows + [row for row in given if row[0] not in keys]
    return rows
