"""Numbers and sets that can't be read: what holds one is refused, and nobody ends by it.

`int` raises ValueError beyond 4,300 digits, and a set of an unfit number OverflowError. That must
not get out: a leader would end by the record, and each that follows it.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from commitlog.client.commits.iceberg_text import number_problem
from commitlog.codecs.iceberg_changes import _summary
from commitlog.codecs.manifest_file import parse_manifest_name
from commitlog.core.lance.staged_keys import BASE_VERSION, base_version
from commitlog.core.log.replica import Decided
from commitlog.core.manifest.manifest_state import DeltaRefused
from commitlog.core.schema_check.schema import schema_problem
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import AffectedRows, CreateTable
from commitlog.model.records import Application, Status
from consumers.views.version_index import IndexPosition, VersionIndex
from consumers.views.version_index.rows import no_recordings
from tests.core_world import FORMAT, ROOT, World, append, delete
from tests.unit.manifest_examples import UUID, state
from tests.unit.test_direct import build, with_field_metadata
from tests.unit.test_iceberg_machine import EVENTS
from tests.unit.test_iceberg_rebase import Writers
from tests.unit.test_staged import appending, stage

LONG = "9" * 5_000
LONGEST = "9" * 4_300
"""That Python reads; it makes no text of what is one more."""


@pytest.mark.parametrize("kind", ["fixed_size_list:float", "fixed_size_list:int64:2"])
@pytest.mark.parametrize("extension", ["", "arrow.fixed_shape_tensor"])
def test_a_type(kind: str, extension: str) -> None:
    field = Field(name="v", id=0, parent_id=-1, logical_type=f"{kind}:{LONG}", nullable=True)
    if extension:
        field.metadata["ARROW:extension:name"] = extension.encode()
        field.metadata["ARROW:extension:metadata"] = b'{"shape": [1]}'
    made = CreateTable(
        ("t",), "i-t", f"{ROOT}/t", (field.SerializeToString(),), data_storage_version=FORMAT
    )
    world = World(rules=Rules(PROTOCOL_SUPPORTED))
    assert world.ask("create", made).status is Status.REJECTED


@pytest.mark.slow
@pytest.mark.parametrize("shape", [[int("9" * 4_000)] * 3_000, [1] * 3_000 + [2, 0, 9], [-1, -2]])
def test_the_shape_of_a_tensor(shape: list[int]) -> None:
    """Multiplied out, the first one would keep a leader busy for hours."""
    field = Field(name="v", id=0, parent_id=-1, logical_type="fixed_size_list:float:2")
    field.metadata["ARROW:extension:name"] = b"arrow.fixed_shape_tensor"
    for said, problem in ((shape, "extension_undescribed"), ([1, 2, 1], None)):
        field.metadata["ARROW:extension:metadata"] = json.dumps({"shape": said}).encode()
        found = schema_problem([field])
        assert (found.problem.name if found else None) == problem


def test_a_path() -> None:
    world = World()
    world.create()
    world.ask("first", append(1, "a.lance", "b.lance"))
    operation = stage(world, *appending(world))
    outcome = world.ask("s", replace(operation, manifest_path=f"_versions/{LONG}.manifest-1"))
    assert outcome.code == "LOCATION_NOT_ALLOWED"
    for name in (f"{LONG}.manifest", f"d{LONG}.manifest", f"{LONG}.manifest-1"):
        assert parse_manifest_name(name) is None


def test_the_version_that_a_client_had_read() -> None:
    assert base_version(((BASE_VERSION, LONG),), 7) == 7
    assert base_version(((BASE_VERSION, "5"),), 7) == 5


@pytest.mark.parametrize("kind", ["primary", "clustering"])
def test_the_position_of_a_key_column(kind: str) -> None:
    key = f"lance-schema:unenforced-{kind}-key:position"
    with pytest.raises(DeltaRefused):
        build(state(), with_field_metadata(0, key, LONG))


def test_a_field_of_the_older_form() -> None:
    transaction = LanceTransaction(read_version=5, uuid=UUID)
    transaction.update_config.field_metadata[2**31].metadata["a"] = "b"
    with pytest.raises(DeltaRefused, match="2147483648"):
        build(state(), transaction)


def test_rows_that_are_no_bitmap() -> None:
    world = World()
    world.create()
    world.ask("first", append(1, "a.lance"))
    late = delete(world, 2, {0: [1]})
    assert world.ask("other", delete(world, 2, {0: [2]})).status is Status.COMMITTED
    for number, rows in enumerate((b"", b"\xff" * 8)):
        offered = replace(late, affected_rows=(AffectedRows(0, rows),))
        assert world.ask(f"late{number}", offered).code == "MALFORMED_RECORD"


@pytest.mark.parametrize("said", [LONG, LONGEST])
def test_the_totals_of_a_snapshot_that_is_put_upon_another(said: str) -> None:
    world = Writers()
    racing = [world.written(says={"added-records": said}) for _ in range(3)]
    outcomes = [world.commit(one) for one in racing]
    assert [one.status for one in outcomes] == [Status.COMMITTED] * 3
    found = world.machine.iceberg.tables[EVENTS].snapshots.get(racing[2].snapshot_id)
    assert found is not None
    assert "total-records" not in found["summary"]
    world.check()


def test_what_the_index_counts() -> None:
    assert _summary([f'{{"added-records": "{LONG}"}}']).rows_added == 2**63 - 1


def test_an_application_that_begins_below_zero() -> None:
    world = World()
    world.create()
    for sequence in (-1, -1, 0):
        outcome = world.ask(
            f"a{len(world.log)}",
            append(1, f"{sequence}-{len(world.log)}.lance"),
            application=Application("stream", sequence),
        )
        assert outcome.status is Status.COMMITTED
    assert world.state().version == 3
    assert world.replayed().digest() == world.machine.digest()


def test_more_rows_than_the_index_has_numbers_for(tmp_path: Path) -> None:
    world = World(rules=Rules(PROTOCOL_SUPPORTED))
    world.create()
    assert world.ask("many", append(1, "a.lance", "b.lance", rows=2**63)).version == 2
    assert world.ask("more", append(2, "c.lance", rows=2**62)).version == 3
    decided = [Decided(submitted, outcome, 0) for submitted, outcome in world.log]
    with VersionIndex(tmp_path) as index:
        index.apply(decided, IndexPosition(0, len(decided)), recordings=no_recordings)
        assert index.position(0).sequence == len(decided)


def test_long_numbers_are_looked_for_in_one_pass() -> None:
    """A body of 16 MB full of numbers of 199 digits held the HTTP server up for seconds.

    A search that began anew at each digit took four times as long with these as with short ones.
    """
    short, long = (b"[" + b",".join([b"1" * n] * (200_000 // n)) + b"]" for n in (9, 199))
    taken = [(_seconds(short), _seconds(long)) for _ in range(7)]
    assert min(took for _, took in taken) < 2 * min(took for took, _ in taken)
    assert number_problem(b"[1, " + b"9" * 310 + b".0]").endswith("64-bit float holds")


def _seconds(text: bytes) -> float:
    """Return this thread's CPU for a look: nobody else's counts."""
    began = time.thread_time()
    assert not number_problem(text)
    return time.thread_time() - began
