"""Random histories of one table: writers with stale views, a plain model of rows, and pylance.

Each step reads some older version, writes files as of it, and submits through the leader. What
commits must do to the newest rows exactly what it did to the rows it had read; what is refused
must have been stale. Where the same operation is given to pylance alone, on a copy of the table,
both must leave the same rows if both commit.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from hypothesis import strategies as st
from lance import LanceOperation
from lance.commit import CommitConflictError
from lance.fragment import RowIdSequence, write_fragments

from commitlog.adapters.lance_refs import versions_with_files
from commitlog.client.rows.merging import MergeOptions, prepare_merge
from commitlog.client.rows.row_keys import KnownKeys
from commitlog.client.rows.rows import Prepared, prepare_delete
from commitlog.client.rows.updating import prepare_update as prepare
from commitlog.model.records import Outcome, Status
from commitlog.model.table import Policy
from tests.histories import acts
from tests.operations_world import column_file, patched
from tests.service import SCHEMA, Service, rows

STEPS_MAX = 30
FIRST_APPENDED = 1000
"""Ids below it are upserted, others are appended once."""
ANSWER_SECONDS = 600.0
"""Long runs go on beside other work on slow machines; an answer that is lost never comes."""
Row = tuple[int, str]
Rows = frozenset[Row]
KINDS = (
    *("append", "delete", "update", "upsert") * 4,
    *("patch", "rewrite", "index", "config") * 2,
    *("overlay", "replace", "compact") * 2,
    *("restore", "overwrite"),
    *acts.KINDS,
)
ROWS_KNOWN = frozenset({"delete", "update", "upsert"})
"""Kinds that carry which rows they touched, which pylance's `commit` has no argument for."""


@dataclass(frozen=True)
class Step:
    """What a writer does, from a version that is `lag` behind."""

    kind: str
    lag: int
    pick: int
    count: int
    bare: bool
    """Whether the writer keeps to itself which rows it touched."""
    asks_pylance: bool


STEP = st.builds(
    Step,
    kind=st.sampled_from(KINDS),
    lag=st.integers(0, 5),
    pick=st.integers(0, 30),
    count=st.integers(1, 4),
    bare=st.sampled_from([False, False, True]),
    asks_pylance=st.sampled_from([False, False, True]),
)


def histories(steps_min: int) -> st.SearchStrategy[list[Step]]:
    """Return histories of so many steps, up to 30."""
    return st.lists(STEP, min_size=steps_min, max_size=STEPS_MAX)


@dataclass
class Effect:
    """What an operation does to rows, and how it is submitted."""

    prepared: Prepared
    gone: Rows = frozenset()
    come: Rows = frozenset()
    all_rows: Rows | None = None
    """What the table holds afterwards, whatever it held."""
    names: Mapping[int, str] = field(default_factory=dict)
    """What it names those of these rows that are still there, whatever they were called."""
    spares_overlaid: bool = False
    """Whether rows that were overlaid since it read keep their names."""


@dataclass
class Tally:
    """What was tried in all histories."""

    histories: int = 0
    steps: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    with_pylance: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """Return it as people read it."""
        ended = ", ".join(f"{count} {name}" for name, count in sorted(self.ended.items()))
        both = ", ".join(f"{count} {name}" for name, count in sorted(self.with_pylance.items()))
        return f"{self.histories} histories, {self.steps} steps: {ended}; beside pylance: {both}"


class History:
    """One table, its model, and who writes."""

    def __init__(
        self, service: Service, *, stable_row_ids: bool, tally: Tally, policy: Policy
    ) -> None:
        """Make the table with its first rows: version 2."""
        self.service = service
        self.table = f"h$t{uuid.uuid4().hex[:12]}"
        self.client = service.client
        self.known = KnownKeys(searches_first=0)
        self.client.create_table(
            self.table,
            SCHEMA,
            stable_row_ids=stable_row_ids,
            policy=policy,
            properties=acts.POLICY,
        )
        self.location = str(service.location(self.table))
        self.next_id = FIRST_APPENDED
        self.model: dict[int, Rows] = {1: frozenset()}
        self.sequences: dict[int, int] = {}
        """Of the outcomes that made versions."""
        self.remembered = 1
        """What changed before this version is no longer known: the table was dropped since."""
        self.born: dict[int, int] = {}
        """The version that inserted an id last."""
        self.overlaid: dict[int, int] = {}
        """The version that last laid a value over an id's row."""
        self.stable_row_ids = stable_row_ids
        self.tally = tally
        tally.histories += 1
        for _ in range(2):
            self.take(Step("append", 0, 0, 4, False, False))

    @property
    def head(self) -> int:
        """The newest version."""
        return max(self.model)

    def take(self, step: Step) -> None:
        """Do one step, and compare."""
        if step.kind == "compact":
            self.compact()
            return
        if step.kind in acts.KINDS:
            self.tally.steps += 1
            acts.act(self, step)
            return
        read = max((v for v in self.model if v <= self.head - step.lag), default=min(self.model))
        self.client.open(self.table, read)  # a thinned version gets its manifest again
        dataset = lance.dataset(self.location, version=read)
        effect: Effect = getattr(self, step.kind)(step, dataset)
        prepared = effect.prepared
        # Pylance looks at what lies between, which may have expired.
        is_whole = {*range(read, self.head + 1)} <= versions_with_files(self.location).keys()
        is_whole = is_whole and read >= self.remembered
        theirs = self.of_pylance(prepared, read) if step.asks_pylance and is_whole else None
        outcome = self.client.submit(
            self.table,
            prepared.operation,
            read_version=read,
            affected_rows=None if step.bare else prepared.affected,
            inserted_keys=prepared.keys,
        ).result(ANSWER_SECONDS)
        self.tally.steps += 1
        self.tally.ended[str(outcome.status)] += 1
        if outcome.status is Status.COMMITTED:
            self.committed(outcome, effect, read)
        else:
            conflict = (Status.RETRYABLE, Status.INCOMPATIBLE)
            assert read < self.head, f"nobody was before it: {outcome.message}"
            assert outcome.status in conflict, outcome.message
        if theirs is not None:
            self.compare(step, outcome, theirs)

    def committed(self, outcome: Outcome, effect: Effect, read: int) -> None:
        """Apply an effect to the model, and compare its rows with the table's."""
        before = self.model[self.head]
        assert outcome.version == self.head + 1
        if effect.all_rows is None:
            gone = self.as_now(effect.gone, before, read)
            assert gone <= before, f"rows {gone - before} were gone already"
            after = before - gone | effect.come
        else:
            after = effect.all_rows
        held = {number for number, _ in before}
        for number, _ in effect.come:
            if number not in held:
                self.born[number] = outcome.version
        names = {n: name for n, name in effect.names.items() if self.born.get(n, 0) <= read}
        if effect.spares_overlaid:
            names = {n: name for n, name in names.items() if self.overlaid.get(n, 0) <= read}
        else:
            self.overlaid.update(dict.fromkeys(names, outcome.version))
        after = frozenset((number, names.get(number, name)) for number, name in after)
        self.model[outcome.version] = after
        self.sequences[outcome.version] = outcome.sequence
        self.check_head()

    def check_head(self) -> None:
        """Compare the newest version with the model, by path and by an index, if there is one."""
        after = self.model[self.head]
        ids = [number for number, _ in after]
        assert len(set(ids)) == len(ids), "a key is there twice"
        dataset = lance.dataset(self.location, version=self.head)
        found = frozenset(rows_of(dataset))
        assert found == after, f"too many: {found - after}, missing: {after - found}"
        assert dataset.count_rows() == len(after)
        for number, name in sorted(after)[:2]:
            by_index = dataset.to_table(filter=f"id = {number}")
            assert by_index["name"].to_pylist() == [name]

    def as_now(self, gone: Rows, before: Rows, read: int) -> Rows:
        """Return deleted rows by the names that overlays have given them since."""
        called = dict(before)
        return frozenset(
            (number, called.get(number, name) if self.overlaid.get(number, 0) > read else name)
            for number, name in gone
        )

    def compact(self) -> None:
        """Have Lance compact the head, indices to be seen to later where that can be."""
        dataset = self.client.open(self.table)
        dataset.optimize.compact_files(
            target_rows_per_fragment=1000, defer_index_remap=not self.stable_row_ids
        )
        self.tally.steps += 1
        self.tally.ended["compacted by Lance"] += 1
        held = self.model[self.head]
        for version in range(self.head + 1, self.client.table(self.table).version + 1):
            self.model[version] = held
        assert rows_of(lance.dataset(self.location)) == sorted(held)

    def of_pylance(self, prepared: Prepared, read: int) -> tuple[str, list[Row]]:
        """Commit the operation on a copy of the table by pylance alone."""
        copy = Path(self.location).with_name(f"copy-{uuid.uuid4().hex}")
        shutil.copytree(self.location, copy)
        try:
            lance.LanceDataset.commit(str(copy), prepared.operation, read_version=read)
            verdict = "committed"
        except CommitConflictError as error:
            verdict = "retryable" if error.retryable else "incompatible"
        except (OSError, ValueError) as error:
            verdict = f"failed ({error})"
        found = rows_of(lance.dataset(str(copy)))
        shutil.rmtree(copy)
        return verdict, found

    def compare(self, step: Step, outcome: Outcome, theirs: tuple[str, list[Row]]) -> None:
        """Compare with what pylance did."""
        verdict, found = theirs
        ours = str(outcome.status)
        if verdict == ours == "committed":
            assert found == sorted(self.model[self.head]), step
            self.tally.with_pylance["both committed, rows equal"] += 1
        elif verdict == ours:
            self.tally.with_pylance["both refused alike"] += 1
        elif ours == "committed":
            assert step.kind in ROWS_KNOWN, f"{step}: pylance is {verdict}"
            self.tally.with_pylance["carried over newer deletions by us alone"] += 1
        elif verdict != "committed" and step.kind in ROWS_KNOWN:
            # Pylance loses to the first version that touched the fragment; we go on to the next.
            self.tally.with_pylance["both refused, for other versions"] += 1
        else:
            assert step.kind == "upsert", f"{step}: {outcome.message}; pylance is {verdict}"
            self.tally.with_pylance["refused by us alone, for a key's sake"] += 1

    def append(self, step: Step, dataset: lance.LanceDataset) -> Effect:
        """Append rows with new ids."""
        ids = range(self.next_id, self.next_id + step.count)
        self.next_id += step.count
        operation = LanceOperation.Append(self.written(*ids, name="a"))
        return Effect(Prepared(operation, dataset.version), come=named(ids, "a"))

    def delete(self, step: Step, dataset: lance.LanceDataset) -> Effect:
        """Delete some rows."""
        gone = self.picked(step, dataset)
        info, where = self.client.table(self.table), among(gone)
        search = self.known.scan if step.pick % 2 else None
        return Effect(prepare_delete(info, dataset, where, search=search), gone)

    def update(self, step: Step, dataset: lance.LanceDataset) -> Effect:
        """Give some rows another name, in new fragments."""
        gone, name = self.picked(step, dataset), f"u{step.pick}"
        info = self.client.table(self.table)
        search = self.known.scan if step.pick % 2 else None
        prepared = prepare(info, dataset, {"name": f"'{name}'"}, among(gone), search)
        return Effect(prepared, gone, named((number for number, _ in gone), name))

    def upsert(self, step: Step, dataset: lance.LanceDataset) -> Effect:
        """Update or insert rows of few keys, by pylance's own join or by the keys' search."""
        ids = range(step.pick, step.pick + step.count)
        gone = frozenset(row for row in self.model[dataset.version] if row[0] in ids)
        info = self.client.table(self.table)
        source = rows(*ids, name="m").cast(dataset.schema)
        known = self.known if step.pick % 2 else None
        prepared = prepare_merge(info, dataset, source, ["id"], MergeOptions(), known)
        return Effect(prepared, gone, named(ids, "m"))

    def patch(self, step: Step, dataset: lance.LanceDataset) -> Effect:
        """Rewrite the column `name` of one fragment in place."""
        fragments = dataset.get_fragments()
        if not fragments:
            return self.config(step, dataset)
        fragment = fragments[step.pick % len(fragments)]
        held = rows_of(fragment)
        gone, name = frozenset(held[: step.count]), f"p{step.pick}"
        ids = [number for number, _ in gone]
        data = pa.table({"id": ids, "name": [name] * len(ids)}, schema=SCHEMA)
        operation = patched(fragment, data)
        return Effect(Prepared(operation, dataset.version), gone, named(ids, name))

    def overlay(self, step: Step, dataset: lance.LanceDataset) -> Effect:
        """Lay another name over some rows of one fragment."""
        fragments = dataset.get_fragments()
        if not fragments:
            return self.config(step, dataset)
        fragment = fragments[step.pick % len(fragments)]
        table = fragment.to_table(columns=["id"], with_row_address=True).slice(0, step.count)
        offsets = [address & 0xFFFFFFFF for address in table["_rowaddr"].to_pylist()]
        name = f"l{step.pick}"
        file = column_file(dataset, [name] * len(offsets))
        laid = LanceOperation.DataOverlayFile(file, offsets)
        group = LanceOperation.DataOverlayGroup(fragment.fragment_id, [laid])
        operation = LanceOperation.DataOverlay([group])
        names = dict.fromkeys(table["id"].to_pylist(), name)
        return Effect(Prepared(operation, dataset.version), names=names)

    def replace(self, step: Step, dataset: lance.LanceDataset) -> Effect:
        """Put a file of other names in the place of one fragment's."""
        fragments = dataset.get_fragments()
        if not fragments:
            return self.config(step, dataset)
        fragment = fragments[step.pick % len(fragments)]
        name, count = f"r{step.pick}", fragment.metadata.physical_rows
        file = column_file(dataset, [name] * count)
        group = LanceOperation.DataReplacementGroup(fragment.fragment_id, file)
        names = dict.fromkeys((number for number, _ in rows_of(fragment)), name)
        operation = LanceOperation.DataReplacement([group])
        return Effect(Prepared(operation, dataset.version), names=names, spares_overlaid=True)

    def rewrite(self, step: Step, dataset: lance.LanceDataset) -> Effect:
        """Put the rows of two fragments into one."""
        old = dataset.get_fragments()[:2]
        if not old:
            return self.config(step, dataset)
        table = pa.concat_tables([fragment.to_table(with_row_id=True) for fragment in old])
        new = list(write_fragments(table.select(SCHEMA.names), self.location, schema=SCHEMA))
        if old[0].metadata.row_id_meta is not None:
            new[0].row_id_meta = RowIdSequence(table["_rowid"].to_pylist()).to_inline_metadata()
        group = LanceOperation.RewriteGroup([fragment.metadata for fragment in old], new)
        return Effect(Prepared(LanceOperation.Rewrite([group], []), dataset.version))

    def index(self, step: Step, dataset: lance.LanceDataset) -> Effect:
        """Index a column of all fragments that stood."""
        ids = [fragment.fragment_id for fragment in dataset.get_fragments()]
        if not ids:
            return self.config(step, dataset)
        column = ("id", "name")[step.pick % 2]
        made = dataset.create_index_uncommitted(
            column, "BTREE", name=f"i{uuid.uuid4().hex[:8]}", fragment_ids=ids
        )
        return Effect(Prepared(LanceOperation.CreateIndex([made], []), dataset.version))

    def config(self, step: Step, dataset: lance.LanceDataset) -> Effect:
        """Set one of few config keys."""
        updates = LanceOperation.UpdateMap({f"k{step.pick % 3}": str(step.count)})
        operation = LanceOperation.UpdateConfig(config_updates=updates)
        return Effect(Prepared(operation, dataset.version))

    def restore(self, step: Step, dataset: lance.LanceDataset) -> Effect:
        """Bring an older version back."""
        standing = sorted(v for v in self.model if v <= dataset.version)
        version = standing[step.pick % len(standing)]
        self.client.open(self.table, version)  # pylance asks for its manifest
        operation = LanceOperation.Restore(version)
        return Effect(Prepared(operation, dataset.version), all_rows=self.model[version])

    def overwrite(self, step: Step, dataset: lance.LanceDataset) -> Effect:
        """Put new rows in the place of all."""
        ids = range(self.next_id, self.next_id + step.count)
        self.next_id += step.count
        operation = LanceOperation.Overwrite(SCHEMA, self.written(*ids, name="o"))
        return Effect(Prepared(operation, dataset.version), all_rows=named(ids, "o"))

    def written(self, *ids: int, name: str) -> list[Any]:
        """Write rows as fragments."""
        return list(write_fragments(rows(*ids, name=name), self.location, schema=SCHEMA))

    def picked(self, step: Step, dataset: lance.LanceDataset) -> Rows:
        """Choose rows that follow each other in the version that is read."""
        held = sorted(self.model[dataset.version])
        if not held:
            return frozenset()
        start = step.pick % len(held)
        return frozenset(held[start : start + step.count])


def named(ids: Any, name: str) -> Rows:
    """Return rows of one name."""
    return frozenset((number, name) for number in ids)


def among(chosen: Rows) -> str:
    """Return the predicate of rows."""
    ids = ", ".join(str(number) for number, _ in sorted(chosen))
    return f"id in ({ids})" if ids else "false"


def rows_of(source: Any) -> list[Row]:
    """Return what a dataset or a fragment holds, sorted."""
    table = source.to_table(columns=["id", "name"])
    return sorted(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))


def run(
    service: Service,
    steps: list[Step],
    *,
    stable_row_ids: bool,
    tally: Tally,
    policy: Policy = Policy.EVERY,
) -> None:
    """Live through one history."""
    history = History(service, stable_row_ids=stable_row_ids, tally=tally, policy=policy)
    for step in steps:
        history.take(step)
    for version, held in history.model.items():
        dataset = service.client.open(history.table, version)
        assert rows_of(dataset) == sorted(held), f"version {version} changed later"
    service.client.drop_table(history.table)
    shutil.rmtree(history.location)
