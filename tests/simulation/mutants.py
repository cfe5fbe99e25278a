"""Broken histories: a checker that doesn't notice them is no checker.

A mutant changes what a run recorded, in one place, to what a bug would have recorded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.simulation.history import FinalRows
from tests.simulation.rows import Entry, Spec

Times = dict[tuple[str, int], tuple[int, int, int]]


@dataclass
class History:
    """What a mutant changes."""

    entries: list[Entry]
    told: Times
    rows: FinalRows | None

    def first_commits(self, kind: str = "") -> list[int]:
        """Return positions of commits of transactions, of a kind."""
        return [
            position
            for position, entry in enumerate(self.entries)
            if entry.asked is not None
            and entry.status == "committed"
            and entry.answers is None
            and (not kind or any(intent.kind == kind for intent in entry.asked.intents))
        ]

    def cut(self, position: int, entry: Entry) -> History:
        """Return the history up to a position, which gets another entry: nothing comes after."""
        entries = [*self.entries[:position], entry]
        said = {
            (e.transaction_id, e.attempt): e.sequence if e.answers is None else e.answers
            for e in reversed(entries)
        }
        told = {key: times for key, times in self.told.items() if said.get(key) == times[2]}
        return History(entries, told, None)

    def changed(self, position: int, entry: Entry) -> History:
        """Return the history with one entry changed."""
        entries = list(self.entries)
        entries[position] = entry
        return History(entries, self.told, self.rows)

    def twin_before(self, position: int) -> Spec:
        """Return the dumb twin as it stood before an entry."""
        spec = Spec()
        for entry in self.entries[:position]:
            spec.judge(entry)
        return spec


Mutant = Callable[[History, random.Random], History | None]


def drop_an_outcome(history: History, chance: random.Random) -> History | None:
    position = chance.choice(history.first_commits())
    entries = history.entries[:position] + history.entries[position + 1 :]
    return History(entries, history.told, history.rows)


def swap_two_outcomes(history: History, chance: random.Random) -> History | None:
    """Each takes the other's sequence: only versions and rows can tell."""
    for first in history.first_commits():
        second = first + 1
        if second in history.first_commits():
            a, b = history.entries[first], history.entries[second]
            made = [{r[1] for r in one.results if r[2]} for one in (a, b)]
            if made[0] & made[1]:
                entries = list(history.entries)
                entries[first] = replace(b, sequence=a.sequence, time_ms=a.time_ms)
                entries[second] = replace(a, sequence=b.sequence, time_ms=b.time_ms)
                swapped = {(e.transaction_id, e.attempt) for e in (a, b)}
                told = {k: times for k, times in history.told.items() if k not in swapped}
                return History(entries, told, None)
    return None


def _with_version(entry: Entry, by: int) -> Entry:
    # The last one's: a table that is made and appended to at once is read at that version only.
    table, incarnation, version, fragment = entry.results[-1]
    return replace(
        entry, results=(*entry.results[:-1], (table, incarnation, version + by, fragment))
    )


def repeat_a_version(history: History, chance: random.Random) -> History | None:
    position = chance.choice(history.first_commits("append"))
    return history.cut(position, _with_version(history.entries[position], -1))


def skip_a_version(history: History, chance: random.Random) -> History | None:
    position = chance.choice(history.first_commits("config"))
    return history.cut(position, _with_version(history.entries[position], 1))


def ignore_a_conflict(history: History, chance: random.Random) -> History | None:
    """A refused delete or update of rows that are gone commits."""
    for position, entry in enumerate(history.entries):
        asked = entry.asked
        if entry.status != "retryable" or asked is None or len(asked.intents) != 1:
            continue
        intent, spec = asked.intents[0], history.twin_before(position)
        table = spec.tables.get(intent.table)
        if table is None or not intent.removes or asked.expects:
            continue
        living = table.rows()
        gone = any((f, o) not in living for f, offsets in intent.removes for o in offsets)
        if gone and intent.incarnation in {"", table.incarnation}:
            result = (intent.table, table.incarnation, table.version + 1, table.next_fragment)
            return history.cut(
                position, replace(entry, status="committed", code="", results=(result,))
            )
    return None


def fork_an_epoch(history: History, chance: random.Random) -> History | None:
    """An outcome of an ended term counts."""
    late = [p for p in history.first_commits() if history.entries[p].epoch > 1]
    if not late:
        return None
    position = chance.choice(late)
    entry = history.entries[position]
    return (
        history.changed(position, replace(entry, epoch=entry.epoch - 1))
        if (history.entries[position - 1].epoch == entry.epoch)
        else None
    )


def resurrect_a_row(history: History, chance: random.Random) -> History | None:
    rows = {name: dict(table) for name, table in (history.rows or {}).items()}
    for table in rows.values():
        for number, offsets in table.items():
            missing = set(range(max(offsets, default=0) + 1)) - offsets
            if missing:
                table[number] = offsets | {min(missing)}
                return History(history.entries, history.told, rows)
    return None


def lose_a_row(history: History, chance: random.Random) -> History | None:
    rows = {name: dict(table) for name, table in (history.rows or {}).items()}
    for table in rows.values():
        for number, offsets in table.items():
            table[number] = offsets - {min(offsets)}
            return History(history.entries, history.told, rows)
    return None


def insert_a_key_twice(history: History, chance: random.Random) -> History | None:
    for position in history.first_commits("append"):
        entry = history.entries[position]
        assert entry.asked is not None
        intent = entry.asked.intents[0]
        table = history.twin_before(position).tables.get(intent.table)
        if not intent.is_keyed or table is None or not table.has_key or not table.rows():
            continue
        taken = next(iter(table.rows().values()))[0]
        adds = (((taken, 1),), *intent.adds[1:])
        intents = (replace(intent, adds=adds), *entry.asked.intents[1:])
        asked = replace(entry.asked, intents=intents)
        return history.cut(position, replace(entry, asked=asked))
    return None


def tell_what_the_log_does_not_say(history: History, chance: random.Random) -> History | None:
    key = chance.choice([k for k, t in history.told.items() if t[1] >= 0])
    invoked, answered, sequence = history.told[key]
    told = {**history.told, key: (invoked, answered, sequence + 1)}
    return History(history.entries, told, history.rows)


def answer_out_of_real_time_order(history: History, chance: random.Random) -> History | None:
    """The later of two was answered before the earlier one was asked."""
    known = [
        p
        for p in history.first_commits()
        for e in [history.entries[p]]
        if history.told.get((e.transaction_id, e.attempt), (0, -1, -1))[2] == e.sequence
    ]
    if len(known) < 2:
        return None
    first, second = known[0], known[-1]
    a, b = history.entries[first], history.entries[second]
    told = dict(history.told)
    told[a.transaction_id, a.attempt] = (900_001, 900_002, a.sequence)
    told[b.transaction_id, b.attempt] = (1, 900_000, b.sequence)
    return History(history.entries, told, history.rows)


def commit_an_id_twice(history: History, chance: random.Random) -> History | None:
    for position in reversed(history.first_commits("append")):
        entry = history.entries[position]
        assert entry.asked is not None
        spec = history.twin_before(len(history.entries))
        table = spec.tables.get(entry.asked.intents[0].table)
        is_alone = len(entry.asked.intents) == 1 and not entry.asked.expects
        if table is None or not is_alone or entry.asked.application or table.has_key:
            continue
        if entry.asked.intents[0].incarnation not in {"", table.incarnation}:
            continue
        result = (entry.results[0][0], table.incarnation, table.version + 1, table.next_fragment)
        again = replace(
            entry,
            sequence=len(history.entries) + 1,
            offset=1_000_000,
            epoch=spec.epoch,
            time_ms=spec.time_ms,
            results=(result,),
        )
        return History([*history.entries, again], history.told, None)
    return None


def answer_a_duplicate_with_another_commit(
    history: History, chance: random.Random
) -> History | None:
    for position, entry in enumerate(history.entries):
        if entry.answers is not None and entry.status == "committed":
            others = [
                history.entries[p].sequence
                for p in history.first_commits()
                if p < position and history.entries[p].transaction_id != entry.transaction_id
            ]
            if others:
                return history.changed(position, replace(entry, answers=others[0]))
    return None


def let_time_go_back(history: History, chance: random.Random) -> History | None:
    position = chance.choice(history.first_commits()[1:])
    entry = history.entries[position]
    return history.changed(position, replace(entry, time_ms=entry.time_ms - 10_000_000_000))


def refuse_without_a_reason(history: History, chance: random.Random) -> History | None:
    for position in history.first_commits("append"):
        entry = history.entries[position]
        assert entry.asked is not None
        intent = entry.asked.intents[0]
        if len(entry.asked.intents) == 1 and not intent.is_keyed and intent.read_version > 0:
            table = history.twin_before(position).tables[intent.table]
            if not table.has_key:
                refused = replace(entry, status="retryable", code="CONFLICT", results=())
                return history.cut(position, refused)
    return None


def commit_half_of_a_transaction(history: History, chance: random.Random) -> History | None:
    for position in history.first_commits():
        entry = history.entries[position]
        if len(entry.results) > 1:
            return history.cut(position, replace(entry, results=entry.results[:1]))
    return None


def commit_an_older_attempt(history: History, chance: random.Random) -> History | None:
    for position in history.first_commits():
        entry = history.entries[position]
        if entry.attempt > 0:
            return history.cut(position, replace(entry, attempt=0))
    return None


def reuse_a_fragment_id(history: History, chance: random.Random) -> History | None:
    for position in history.first_commits("append"):
        entry = history.entries[position]
        table, incarnation, version, fragment = entry.results[-1]
        if len(entry.results) == 1 and fragment > 0:
            result = (table, incarnation, version, fragment - 1)
            return history.cut(position, replace(entry, results=(result,)))
    return None


def ignore_an_expectation(history: History, chance: random.Random) -> History | None:
    for position in history.first_commits("append"):
        entry = history.entries[position]
        assert entry.asked is not None
        if not entry.asked.expects:
            expects = ((entry.asked.intents[-1].table, 10_000),)
            asked = replace(entry.asked, expects=expects)
            return history.cut(position, replace(entry, asked=asked))
    return None


def answer_a_record_twice(history: History, chance: random.Random) -> History | None:
    position = chance.choice(history.first_commits()[1:])
    earlier = history.entries[position - 1]
    return history.changed(position, replace(history.entries[position], offset=earlier.offset))


HISTORY_MUTANTS: tuple[Mutant, ...] = (
    drop_an_outcome,
    swap_two_outcomes,
    repeat_a_version,
    skip_a_version,
    ignore_a_conflict,
    fork_an_epoch,
    resurrect_a_row,
    lose_a_row,
    insert_a_key_twice,
    tell_what_the_log_does_not_say,
    answer_out_of_real_time_order,
    commit_an_id_twice,
    answer_a_duplicate_with_another_commit,
    let_time_go_back,
    refuse_without_a_reason,
    commit_half_of_a_transaction,
    commit_an_older_attempt,
    reuse_a_fragment_id,
    ignore_an_expectation,
    answer_a_record_twice,
)


def mutated(
    history: History, mutants: Iterator[Mutant] | tuple[Mutant, ...]
) -> Iterator[tuple[Mutant, History]]:
    """Yield the mutants that can be made of a history."""
    for mutant in mutants:
        try:
            made = mutant(history, random.Random(0))
        except IndexError:
            made = None
        if made is not None:
            yield mutant, made
