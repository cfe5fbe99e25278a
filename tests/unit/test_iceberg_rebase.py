"""Iceberg commits over snapshots that their client missed: which may, and what becomes of them."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import fastavro
import pytest

from commitlog.codecs.avro_manifests import encode_list, encode_record, read_list
from commitlog.core.decisions import FilteredWanted, Found, ListDeltaWanted, ListsWanted, Wanted
from commitlog.core.iceberg.manifests import ListHeader, Record
from commitlog.core.log.replica import Decided
from commitlog.core.partition.machine import Machine
from commitlog.core.partition.recorded import decide_again
from commitlog.model.limits import (
    ICEBERG_MERGES_SINCE,
    ICEBERG_REBASE_SINCE,
    PROTOCOL_SUPPORTED,
    Rules,
)
from commitlog.model.operations import CreateNamespace, IcebergChange
from commitlog.model.records import Code, Outcome, Status
from consumers.partition.manifest_lists import ManifestLists
from tests.core_world import ROOT
from tests.unit.iceberg_examples import change, create_updates, schema
from tests.unit.test_iceberg_machine import EVENTS, OTHER, IcebergWorld

_numbers = count(1)


@dataclass(frozen=True)
class Commit:
    """What a client wrote, and asks for."""

    operation: IcebergChange
    snapshot_id: int
    manifest: str


class Writers(IcebergWorld):
    """A table, and clients that read and write its manifest lists."""

    def __init__(self, *, format_version: int = 2, protocol: int = PROTOCOL_SUPPORTED) -> None:
        super().__init__(rules=Rules(protocol))
        self.ask("ns", CreateNamespace(("db",)))
        self.lists = ManifestLists()
        for name in (EVENTS, OTHER):
            updates = [
                {"action": "upgrade-format-version", "format-version": format_version},
                *create_updates(f"{ROOT}/ice/{name[-1]}"),
            ]
            made = self.ask(f"make {name}", change(updates, ({"type": "assert-create"},), name))
            assert made.status is Status.COMMITTED, made.message

    def observe(self, wanted: Wanted) -> Found:
        if isinstance(wanted, ListDeltaWanted | ListsWanted | FilteredWanted):
            return self.lists.look(wanted, self._read)
        return super().observe(wanted)

    def _read(self, path: str) -> bytes:
        data = self.files.get(f"{ROOT}/{path}")
        if data is None:
            raise FileNotFoundError(path)
        return data

    def head(self, name: tuple[str, ...] = EVENTS, branch: str = "main") -> int | None:
        ref = self.machine.iceberg.tables[name].refs.get(branch)
        return None if ref is None else int(ref["snapshot-id"])

    def listed(self, snapshot_id: int | None, name: tuple[str, ...] = EVENTS) -> list[Record]:
        """The manifests of a snapshot, as any client reads them."""
        if snapshot_id is None:
            return []
        found = self.machine.iceberg.tables[name].snapshots.get(snapshot_id)
        assert found is not None
        return read_list(self.files[found["manifest-list"]])

    def paths(self, snapshot_id: int | None, name: tuple[str, ...] = EVENTS) -> set[str]:
        return {record["manifest_path"] for record in self.listed(snapshot_id, name)}

    def written(
        self,
        *,
        over: int | None = None,
        name: tuple[str, ...] = EVENTS,
        operation: str = "append",
        branch: str = "main",
        without: tuple[str, ...] = (),
        says: Mapping[str, str] | None = None,
        **record: Any,
    ) -> Commit:
        """Write a manifest and a list over a snapshot that was read, as a client does."""
        table, snapshot_id = self.machine.iceberg.tables[name], next(_numbers)
        manifest = f"{ROOT}/ice/{name[-1]}/metadata/m{snapshot_id}.avro"
        new = manifest_of(manifest, snapshot_id, table.last_sequence_number + 1) | record
        numbers = {"sequence-number": table.last_sequence_number + 1}
        if table.format_version == 1:
            numbers = {}
        elif table.format_version == 3:
            new["first_row_id"] = table.next_row_id
            numbers |= {"first-row-id": table.next_row_id, "added-rows": 10}
        kept = [one for one in self.listed(over, name) if one["manifest_path"] not in without]
        header = ListHeader(table.format_version, snapshot_id, over or -1, 0, None)
        place = f"{ROOT}/ice/{name[-1]}/metadata/snap-{snapshot_id}.avro"
        encoded = [encode_record(one, table.format_version) for one in [new, *kept]]
        self.files[place] = encode_list(header, encoded)
        before = table.snapshots.get(over) if over is not None else None
        total = int(before["summary"]["total-records"]) if before is not None else 0
        snapshot = {
            "snapshot-id": snapshot_id,
            "timestamp-ms": self.now_ms,
            "manifest-list": place,
            "schema-id": table.current_schema_id,
            "summary": {
                "operation": operation,
                "added-records": "10",
                "total-records": str(total + 10),
                **(says or {}),
            },
            **numbers,
            **({} if over is None else {"parent-snapshot-id": over}),
        }
        ref = {"ref-name": branch, "type": "branch", "snapshot-id": snapshot_id}
        updates = [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", **ref},
        ]
        required = {"type": "assert-ref-snapshot-id", "ref": branch}
        head = self.head(name, branch) if branch != "main" else over
        requirements = [required if head is None else {**required, "snapshot-id": head}]
        return Commit(change(updates, requirements, name), snapshot_id, manifest)

    def commit(self, *commits: Commit) -> Outcome:
        return self.ask(f"t{next(_numbers)}", *(one.operation for one in commits))

    def set(self, **properties: str) -> None:
        named = {name.replace("__", "."): value for name, value in properties.items()}
        update = {"action": "set-properties", "updates": named}
        made = self.ask(f"t{next(_numbers)}", change([update], (), EVENTS))
        assert made.status is Status.COMMITTED

    def check(self) -> None:
        """Replay comes to the same state, and every outcome is decided again without any file."""
        self.check_replay()
        machine = Machine(self.genesis, self.rules)
        for submitted, outcome in self.log:
            again = decide_again(
                machine, Decided(submitted, outcome, 0), self.recordings, lambda wanted: None
            )
            assert not again.difference
            if any(result.rebased for result in outcome.results):
                assert again.decision is not None
            machine.apply(submitted, outcome, recordings=self.recordings)


def manifest_of(path: str, snapshot_id: int, sequence_number: int) -> Record:
    return {
        "manifest_path": path,
        "manifest_length": 100,
        "partition_spec_id": 0,
        "content": 0,
        "sequence_number": sequence_number,
        "min_sequence_number": sequence_number,
        "added_snapshot_id": snapshot_id,
        "added_files_count": 1,
        "existing_files_count": 0,
        "deleted_files_count": 0,
        "added_rows_count": 10,
        "existing_rows_count": 0,
        "deleted_rows_count": 0,
        "partitions": [],
        "key_metadata": None,
        "first_row_id": None,
    }


@pytest.fixture
def world() -> Writers:
    return Writers()


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_appends_that_raced_all_commit(format_version: int) -> None:
    world = Writers(format_version=format_version)
    racing = [world.written() for _ in range(4)]
    outcomes = [world.commit(one) for one in racing]
    assert [one.status for one in outcomes] == [Status.COMMITTED] * 4
    assert [one.results[0].rebased_over for one in outcomes] == [0, 1, 2, 3]
    table = world.machine.iceberg.tables[EVENTS]
    assert world.paths(world.head()) == {one.manifest for one in racing}
    for number, one in enumerate(racing):
        found = table.snapshots.get(one.snapshot_id)
        assert found is not None
        assert found["summary"]["total-records"] == str(10 * (number + 1))
        assert world.paths(one.snapshot_id) == {r.manifest for r in racing[: number + 1]}
        if number:
            assert found["parent-snapshot-id"] == racing[number - 1].snapshot_id
            assert found["summary"]["commitlog.rebased-over"] == str(number)
    if format_version > 1:
        assert table.last_sequence_number == 4
        numbers = [one["sequence_number"] for one in world.listed(world.head())]
        assert numbers == [4, 3, 2, 1]
        assert [one["min_sequence_number"] for one in world.listed(world.head())] == numbers
    if format_version == 3:
        assert table.next_row_id == 40
        assert [one["first_row_id"] for one in world.listed(world.head())] == [30, 20, 10, 0]
    world.check()


def test_the_client_may_remove_its_own_list_once_it_is_answered(world: Writers) -> None:
    first, second = world.written(), world.written()
    world.commit(first)
    assert world.commit(second).status is Status.COMMITTED
    del world.files[f"{ROOT}/ice/events/metadata/snap-{second.snapshot_id}.avro"]
    world.lists = ManifestLists()
    third = world.written(over=second.snapshot_id)
    fourth = world.written(over=second.snapshot_id)
    world.commit(third)
    assert world.commit(fourth).status is Status.COMMITTED
    world.check()


def test_many_tables_in_one_record(world: Writers) -> None:
    for name in (EVENTS, OTHER):
        world.commit(world.written(name=name))
    both = world.written(), world.written(name=OTHER)
    outcome = world.commit(*both)
    assert outcome.status is Status.COMMITTED, outcome.message
    assert [one.rebased_over for one in outcome.results] == [1, 1]
    other = world.machine.iceberg.tables[OTHER].uuid
    stale = world.written()
    required = [{"type": "assert-table-uuid", "uuid": f"{other[:-1]}z"}]
    refused = world.ask("r", stale.operation, change([], required, OTHER))
    assert refused.status is Status.RETRYABLE
    named = [json.loads(one.requirement)["type"] for one in refused.failed_requirements]
    assert named == ["assert-ref-snapshot-id", "assert-table-uuid"]
    world.check()


def test_two_branches_do_not_race_for_sequence_numbers(world: Writers) -> None:
    base = world.written()
    world.commit(base)
    world.ask("branch", change([ref("audit", base.snapshot_id)], (), EVENTS))
    one = world.written(over=base.snapshot_id)
    two = world.written(over=base.snapshot_id, branch="audit")
    assert world.commit(one).status is Status.COMMITTED
    outcome = world.commit(two)
    assert outcome.status is Status.COMMITTED, outcome.message
    table = world.machine.iceberg.tables[EVENTS]
    assert table.snapshots.get(two.snapshot_id)["sequence-number"] == 3  # type: ignore[index]
    assert world.head() == one.snapshot_id
    assert world.paths(two.snapshot_id) == {base.manifest, two.manifest}
    world.check()


def test_merged_appends_keep_what_others_merged(world: Writers) -> None:
    """The client of the second merged manifests that are still there: they go, as it asked."""
    base = world.written()
    world.commit(base)
    merged = world.written(over=base.snapshot_id, without=(base.manifest,), existing_files_count=1)
    other = world.written(over=base.snapshot_id)
    world.commit(other)
    outcome = world.commit(merged)
    assert outcome.status is Status.COMMITTED, outcome.message
    assert world.paths(world.head()) == {merged.manifest, other.manifest}
    world.check()


def test_compactions_go_over_appends_and_not_over_deletes(world: Writers) -> None:
    base = world.written()
    world.commit(base)
    compaction = world.written(
        over=base.snapshot_id, operation="replace", without=(base.manifest,), deleted_files_count=1
    )
    late = world.written(over=base.snapshot_id, operation="replace", without=(base.manifest,))
    appended = world.written(over=base.snapshot_id)
    world.commit(appended)
    outcome = world.commit(compaction)
    assert outcome.status is Status.COMMITTED, outcome.message
    assert world.paths(world.head()) == {compaction.manifest, appended.manifest}
    refused = world.commit(late)
    assert refused.code is Code.EXPECTATION_FAILED
    assert "replace" in refused.message
    world.check()


DELETES: dict[str, Any] = {"operation": "delete", "content": 1}


@pytest.mark.parametrize("level", ["", "serializable", "snapshot"])
def test_row_changes_go_over_appends_under_snapshot_isolation_only(
    world: Writers, level: str
) -> None:
    if level:
        kinds = ("delete", "update", "merge")
        world.set(**{f"write__{kind}__isolation-level": level for kind in kinds})
    base = world.written()
    world.commit(base)
    deletion = world.written(over=base.snapshot_id, **DELETES)
    world.commit(world.written(over=base.snapshot_id))
    outcome = world.commit(deletion)
    assert (outcome.status is Status.COMMITTED) == (level == "snapshot"), outcome.message
    after = world.written(over=base.snapshot_id)
    assert world.commit(after).status is Status.COMMITTED, "appends go over everything"
    if level == "snapshot":
        late = world.written(over=base.snapshot_id, operation="overwrite", content=1)
        assert "delete" in world.commit(late).message
    world.check()


@pytest.mark.parametrize(
    ("policy", "overtaken", "is_rebased"),
    [
        ("append", "append", True),
        ("append", "delete", True),
        ("serializable", "append", False),
        ("serializable", "replace", True),
        ("off", "append", False),
        ("of", "append", False),
    ],
)
def test_the_table_says_what_is_rebased(
    world: Writers, policy: str, overtaken: str, is_rebased: bool
) -> None:
    world.set(commitlog__iceberg__rebase=policy)
    base = world.written()
    world.commit(base)
    late = world.written(over=base.snapshot_id)
    world.commit(world.written(over=base.snapshot_id, operation=overtaken))
    outcome = world.commit(late)
    assert (outcome.status is Status.COMMITTED) == is_rebased, outcome.message
    world.check()


SPARK = {"engine-name": "spark", "engine-version": "4.1.4"}
MERGED = SPARK | {"spark.merge-into.num-target-rows-inserted": "1"}
STREAMED = {"spark.sql.streaming.epochId": "3"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("says", "level", "is_rebased"),
    [
        (SPARK, "", True),
        (MERGED, "", False),
        (MERGED, "serializable", False),
        (MERGED, "snapshot", True),
        # Before 4.1 Spark doesn't say which of its batches are a MERGE.
        (SPARK | {"engine-version": "3.5.6"}, "", False),
        (SPARK | {"engine-version": "4.0.1"}, "snapshot", True),
        (SPARK | {"engine-version": "3.5.6"} | STREAMED, "", True),
        (SPARK | {"engine-version": "10.0"}, "", True),
        (SPARK | {"engine-version": "own"}, "", True),
        ({"engine-name": "flink", "engine-version": "2.0.0"}, "", True),
    ],
)
def test_a_merge_does_not_go_over_rows_that_it_has_not_read(
    world: Writers, says: Mapping[str, str], level: str, is_rebased: bool
) -> None:
    if level:
        world.set(**{"write__merge__isolation-level": level})
    base = world.written()
    world.commit(base)
    first, late = (world.written(over=base.snapshot_id, says=says) for _ in range(2))
    assert world.commit(first).status is Status.COMMITTED
    outcome = world.commit(late)
    assert (outcome.status is Status.COMMITTED) == is_rebased, outcome.message
    if not is_rebased:
        assert outcome.code is Code.EXPECTATION_FAILED
        assert "write.merge.isolation-level" in outcome.message
    world.check()


@pytest.mark.parametrize(
    ("protocol", "theirs"),
    [
        (ICEBERG_MERGES_SINCE, {"operation": "replace"}),
        (ICEBERG_MERGES_SINCE - 1, {"says": MERGED}),
    ],
    ids=["over a compaction", "as protocol 4 takes it for an append"],
)
def test_a_merge_goes_over(protocol: int, theirs: dict[str, Any]) -> None:
    world = Writers(protocol=protocol)
    base = world.written()
    world.commit(base)
    late = world.written(over=base.snapshot_id, says=MERGED)
    world.commit(world.written(over=base.snapshot_id, **theirs))
    assert world.commit(late).status is Status.COMMITTED
    world.check()


def test_older_protocols_refuse_as_they_did() -> None:
    world = Writers(protocol=ICEBERG_REBASE_SINCE - 1)
    first, second = world.written(), world.written()
    world.commit(first)
    refused = world.commit(second)
    assert (refused.code, refused.observed) == (Code.EXPECTATION_FAILED, ())
    assert "rebased" not in refused.message


def test_another_schema_or_spec_is_not_overtaken(world: Writers) -> None:
    base = world.written()
    world.commit(base)
    late = world.written(over=base.snapshot_id)
    update = [
        {"action": "add-schema", "schema": schema("id", "data", "more")},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    world.ask("s", change(update, (), EVENTS))
    world.commit(world.written(over=base.snapshot_id))
    assert "another schema" in world.commit(late).message
    late = world.written(over=base.snapshot_id)
    spec = {"fields": [{"source-id": 1, "name": "id", "transform": "identity", "field-id": 1000}]}
    updates = [{"action": "add-spec", "spec": spec}, {"action": "set-default-spec", "spec-id": -1}]
    assert world.ask("p", change(updates, (), EVENTS)).status is Status.COMMITTED
    assert "partition spec" in world.commit(late).message
    world.check()


@pytest.mark.parametrize("broken", ["missing", "rubbish", "outside"])
def test_lists_that_cannot_be_read_are_not_rebased(world: Writers, broken: str) -> None:
    world.commit(world.written())
    late = world.written()
    place = f"{ROOT}/ice/events/metadata/snap-{late.snapshot_id}.avro"
    operation = late.operation
    if broken == "missing":
        del world.files[place]
    elif broken == "rubbish":
        world.files[place] = b"Obj\x01rubbish"
    else:
        updates = operation.updates.replace(place, "/elsewhere/snap.avro")
        operation = IcebergChange(EVENTS, operation.requirements, updates)
    refused = world.ask("x", operation)
    assert refused.code is Code.EXPECTATION_FAILED
    assert [json.loads(one.actual) for one in refused.failed_requirements] == [
        {"snapshot-id": world.head()}
    ]
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        ("added_files_count", "string", "many"),
        ("partition_spec_id", "double", 0.5),
        ("min_sequence_number", ["null", "long"], None),
        ("manifest_path", ["null", "string"], None),
        ("manifest_path", "bytes", b"m.avro"),
        ("key_metadata", ["null", "string"], "key"),
        ("partitions", ["null", "string"], "none"),
        ("first_row_id", ["null", "string"], "first"),
    ],
)
@pytest.mark.parametrize("format_version", [2, 3])
def test_a_list_whose_columns_have_other_types_is_not_rebased(
    format_version: int, column: str, kind: Any, value: Any
) -> None:
    world = Writers(format_version=format_version)
    world.commit(world.written())
    late = world.written()
    place = f"{ROOT}/ice/events/metadata/snap-{late.snapshot_id}.avro"
    reader: Any = fastavro.reader(io.BytesIO(world.files[place]))
    written: Any = reader.writer_schema
    fields = [
        {**field, "type": kind} if field["name"] == column else field for field in written["fields"]
    ]
    rows = [{**row, column: value} for row in reader]
    out = io.BytesIO()
    fastavro.writer(out, {"type": "record", "name": "manifest_file", "fields": fields}, rows)
    world.files[place] = out.getvalue()
    if column != "first_row_id" or format_version == 3:
        refused = world.commit(late)
        assert refused.code is Code.EXPECTATION_FAILED, refused.message
    world.check()


def test_a_list_with_row_ids_that_its_snapshot_lacks_is_not_rebased() -> None:
    world = Writers(format_version=3)
    world.commit(world.written())
    late = world.written()
    updates = json.loads(late.operation.updates)
    for member in ("first-row-id", "added-rows"):
        del updates[0]["snapshot"][member]
    operation = change(updates, json.loads(late.operation.requirements), EVENTS)
    assert world.ask("late", operation).code is Code.EXPECTATION_FAILED
    world.check()


def test_an_append_goes_over_a_branch_that_was_set_back(world: Writers) -> None:
    first = world.written()
    world.commit(first)
    second = world.written(over=first.snapshot_id)
    world.commit(second)
    late = world.written(over=second.snapshot_id)
    world.ask("back", change([ref("main", first.snapshot_id)], (), EVENTS))
    assert world.commit(late).status is Status.COMMITTED
    assert world.paths(world.head()) == {first.manifest, late.manifest}
    world.check()


def test_an_append_that_removes_files_is_not_rebased(world: Writers) -> None:
    base = world.written()
    world.commit(base)
    forged = world.written(over=base.snapshot_id, deleted_files_count=1)
    world.commit(world.written(over=base.snapshot_id))
    assert "append" in world.commit(forged).message
    world.check()


@pytest.mark.parametrize(
    ("mine", "theirs", "is_rebased"),
    [
        ({"source-snapshot-id": "7"}, {}, False),
        ({"kafka.connect.offsets.c.g": "{}"}, {"kafka.connect.offsets.c.g": "{}"}, False),
        ({"kafka.connect.offsets.c.g": "{}"}, {"kafka.connect.offsets.c.h": "{}"}, True),
    ],
)
def test_what_was_published_before_is_its_clients_to_check(
    world: Writers, mine: dict[str, str], theirs: dict[str, str], is_rebased: bool
) -> None:
    late = world.written(says=mine)
    world.commit(world.written(says=theirs))
    outcome = world.commit(late)
    assert (outcome.status is Status.COMMITTED) == is_rebased
    assert is_rebased or "publishes" in outcome.message
    world.check()


@pytest.mark.parametrize("is_overtaken", [False, True])
def test_an_append_from_before_an_upgrade_is_to_be_tried_again(
    world: Writers, is_overtaken: bool
) -> None:
    base = world.written()
    world.commit(base)
    late = world.written(over=base.snapshot_id)
    upgrade = {"action": "upgrade-format-version", "format-version": 3}
    assert world.ask("u", change([upgrade], (), EVENTS)).status is Status.COMMITTED
    if is_overtaken:
        assert world.commit(world.written(over=base.snapshot_id)).status is Status.COMMITTED
    refused = world.commit(late)
    assert refused.code is Code.EXPECTATION_FAILED, "a client tries again, and then knows"
    assert "format version 3" in refused.message
    world.check()


def ref(name: str, snapshot_id: int) -> dict[str, Any]:
    about = {"ref-name": name, "type": "branch", "snapshot-id": snapshot_id}
    return {"action": "set-snapshot-ref", **about}
