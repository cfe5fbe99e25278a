"""Snapshots of Iceberg tables expire by their tables' policies."""

from __future__ import annotations

from typing import Any

import pytest

from commitlog.core.iceberg.metadata import table_of
from commitlog.model.maintenance_policy import MaintenancePolicy
from consumers.tools.maintenance import iceberg_expiry
from consumers.tools.maintenance.iceberg_expiry import expired
from tests.iceberg_files_world import ROWS, FilesWorld, reasons
from tests.unit.iceberg_examples import LOCATION, metadata, snapshot

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")

KEEP_TWO = {"commitlog.maintain.retain-versions": "2"}
DAY_MS = 86_400_000


def appended(catalog: Any, world: FilesWorld, count: int, **more: Any) -> Any:
    kept = catalog.create_table(("files", world.fresh_name()), ROWS.schema, **more)
    for _ in range(count):
        kept.append(ROWS)
    return kept


def ids(kept: Any) -> list[int]:
    kept.refresh()
    return [one.snapshot_id for one in kept.snapshots()]


@pytest.mark.slow
def test_snapshots_expire_by_policy_and_what_is_named_stays(alone: tuple[Any, FilesWorld]) -> None:
    catalog, world = alone
    kept = appended(catalog, world, 5, properties=KEEP_TWO)
    plain = appended(catalog, world, 3)
    before = ids(kept)
    kept.manage_snapshots().create_tag(before[1], "named").commit()
    [told] = world.remove()
    assert told.startswith(f"expire {'$'.join(kept.name())}: 2 snapshots, record ")
    assert ids(kept) == [before[1], *before[3:]]
    assert set(kept.refs()) == {"main", "named"}
    assert kept.scan().to_arrow().num_rows == 15
    assert kept.scan(snapshot_id=before[1]).to_arrow().num_rows == 6
    assert len(ids(plain)) == 3, "no policy asks for it"
    assert reasons(world.other)[-1] == "2 of 5 snapshots are behind 2 newer ones"
    assert world.remove() == []


@pytest.mark.slow
def test_a_namespace_has_a_policy_for_tables_of_both_formats(alone: tuple[Any, FilesWorld]) -> None:
    catalog, world = alone
    kept = appended(catalog, world, 3)
    off = appended(catalog, world, 3, properties={"commitlog.maintain.mode": "off"})
    wrong = appended(catalog, world, 3, properties={"commitlog.maintain.retain-versions": "few"})
    catalog.update_namespace_properties("files", updates=KEEP_TWO)
    assert len(world.remove()) == 1
    assert [len(ids(one)) for one in (kept, off, wrong)] == [2, 3, 3]


@pytest.mark.slow
def test_an_expiry_that_meets_another_commit_looks_again(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, world = alone
    kept = appended(catalog, world, 4, properties=KEEP_TWO)
    first, tried = ids(kept)[0], list[int]()
    removal = iceberg_expiry._removal

    def late(*given: Any) -> Any:
        made = removal(*given)
        if not tried:  # what was to go is the current one now
            kept.manage_snapshots().rollback_to_snapshot(first).commit()
        tried.append(len(given[2]))
        return made

    monkeypatch.setattr(iceberg_expiry, "_removal", late)
    world.remove()
    assert tried == [2, 1]
    assert first in ids(kept)
    assert kept.current_snapshot().snapshot_id == first


PARENTS = {1: None, 2: 1, 3: 2, 4: 3, 5: 3, 6: 4}
"""Snapshots, made on the day of their number. Nothing leads to 5, which was rolled back."""
LASTING = {"snapshot-id": 5, "type": "branch", "max-snapshot-age-ms": 13 * DAY_MS // 2}
MAIN = {"main": {"snapshot-id": 6, "type": "branch"}}


@pytest.mark.parametrize(
    ("days", "versions", "refs", "properties", "gone"),
    [
        (0, 2, {}, {}, [1, 2, 3]),  # 5 and 6 are the newest, 4 and 6 are in the branch
        (2.5, 0, {}, {}, [1, 2, 3, 4, 5]),
        (4.5, 0, {}, {}, [1, 2, 3]),
        (2.5, 4, {}, {}, [1]),
        (1, 0, {"t": {"snapshot-id": 2, "type": "tag"}}, {}, [1, 3, 4, 5]),
        (1, 0, {"b": {"snapshot-id": 5, "type": "branch"}}, {}, [1, 2, 3, 4]),
        (1, 0, {"b": {"snapshot-id": 4, "type": "branch", "min-snapshots-to-keep": 3}}, {}, [1, 5]),
        (1, 0, {"b": LASTING}, {}, [1, 4]),
        (1, 0, {}, {"history.expire.max-snapshot-age-ms": str(10 * DAY_MS)}, []),
        (1, 0, {}, {"history.expire.max-snapshot-age-ms": "a week"}, []),
        (1, 0, {}, {"history.expire.min-snapshots-to-keep": "3"}, [1, 2, 5]),
        (0, 9, {}, {}, []),
    ],
)
def test_what_expires_follows_the_rules_of_iceberg(
    days: float, versions: int, refs: Any, properties: dict[str, str], gone: list[int]
) -> None:
    made = [snapshot(n, n, p, **{"timestamp-ms": n * DAY_MS}) for n, p in PARENTS.items()]
    said = {"snapshots": made, "snapshot-log": [], "refs": MAIN | refs, "properties": properties}
    found = table_of(metadata(snapshots=6) | said, f"{LOCATION}/metadata/1.metadata.json")
    policy = MaintenancePolicy(expire_days=days, retain_versions=versions)
    assert expired(found, policy, 8 * DAY_MS) == gone
