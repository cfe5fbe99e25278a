"""Are old versions deleted by ranges, alone and in a batch, for all who look?"""

from pathlib import Path
from typing import Any

import lance
import pytest

from consumers.servers.namespace.service import Service
from tests.namespace_world import Capture, World, numbers

BATCH = "/v1/table/batch-commit"


@pytest.fixture
def table(world: World) -> list[str]:
    """A table of this test's own at version 5: 10 rows, and 1 more with each version."""
    name = [world.fresh_name(), "t"]
    dataset = world.write(name, numbers(0, 10))
    for number in range(4):
        dataset.insert(numbers(100 + number, 101 + number))
    return name


def path_of(table: list[str], operation: str) -> str:
    return f"/v1/table/{'$'.join(table)}/{operation}"


def delete(world: World, table: list[str], *ranges: tuple[int, int], **more: Any) -> Any:
    body = {"ranges": [{"start_version": a, "end_version": b} for a, b in ranges]}
    return world.post(path_of(table, "version/delete"), body, **more)


def listed(world: World, table: list[str]) -> list[int]:
    status, body = world.post(path_of(table, "version/list"))
    assert status == 200, body
    return [entry["version"] for entry in body["versions"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranges", "count", "left"),
    [
        ([(1, 3)], 2, [3, 4, 5]),
        ([(0, 2), (1, 3), (2, 3)], 2, [3, 4, 5]),
        ([(2, 2)], 0, [1, 2, 3, 4, 5]),
        ([(6, 9), (100, -1)], 0, [1, 2, 3, 4, 5]),
        ([(2, 3), (4, 5)], 2, [1, 3, 5]),
        ([(4, 100)], 2, [1, 2, 3, 6]),
        ([(2, -1)], 4, [1, 6]),
        ([(0, -1)], 5, [6]),
        ([], 0, [1, 2, 3, 4, 5]),
    ],
)
def test_ranges_mean_what_the_protocol_says(
    world: World, table: list[str], ranges: list[tuple[int, int]], count: int, left: list[int]
) -> None:
    status, body = delete(world, table, *ranges)
    assert (status, body["deleted_count"]) == (200, count), body
    assert listed(world, table) == left
    for version in range(1, 6):
        status, answer = world.post(path_of(table, "version/describe"), {"version": version})
        assert (status == 200) == (version in left), answer
        assert status == 200 or answer["code"] == 11
    names = [p.name for p in Path(world.location(table), "_versions").glob("*.manifest")]
    assert sorted(2**64 - 1 - int(name.split(".")[0]) for name in names) == left
    old = [one for one in ranges if 0 <= one[1] <= 6]
    assert delete(world, table, *old)[1]["deleted_count"] == 0, "what isn't there counts for 0"


@pytest.mark.parametrize("bad", [(3, 2), (-1, 2), (1, -2)])
def test_a_range_that_means_nothing_is_400(
    world: World, table: list[str], bad: tuple[int, int]
) -> None:
    status, body = delete(world, table, (1, 2), bad)
    assert (status, body["code"]) == (400, 13)
    assert "ranges[1]" in body["error"]
    assert listed(world, table) == [1, 2, 3, 4, 5]


def test_deleting_the_newest_leaves_the_newest_that_stays(world: World, table: list[str]) -> None:
    assert delete(world, table, (4, -1))[1]["deleted_count"] == 2
    dataset = world.open(table)
    assert (dataset.version, dataset.count_rows()) == (6, 12)
    dataset.insert(numbers(500, 501))
    assert dataset.version == 7, "numbers are never given again"
    assert delete(world, table, (0, -1))[1]["deleted_count"] == 5
    dataset = world.open(table)
    assert (dataset.version, dataset.count_rows()) == (8, 0)
    dataset.insert(numbers(600, 601))
    assert world.open(table).to_table()["id"].to_pylist() == [600]


def test_a_number_that_was_deleted_is_not_made_again(world: World, table: list[str]) -> None:
    (staged,) = world.stage(table, lambda dataset: dataset.insert(numbers(7, 8)))
    world.open(table).insert(numbers(8, 9))
    world.open(table).insert(numbers(9, 10))
    delete(world, table, (6, 7))
    status, body = world.post(path_of(table, "version/create"), staged)
    assert (status, body["code"]) == (409, 14)
    assert listed(world, table) == [1, 2, 3, 4, 5, 7]


def test_a_tagged_version_stays(world: World, table: list[str]) -> None:
    world.open(table).tags.create("kept", 2)
    status, body = delete(world, table, (1, 4))
    assert (status, body["code"]) == (409, 19)
    assert "'kept'" in body["error"]
    assert delete(world, table, (1, 2), (3, 4))[1]["deleted_count"] == 2


def test_a_held_version_stays(world: World, table: list[str]) -> None:
    world.log.hold("report", [table])
    world.open(table).insert(numbers(200, 201))
    status, body = delete(world, table, (5, 6))
    assert (status, body["code"]) == (409, 19)
    assert "held by its properties" in body["error"]
    assert delete(world, table, (1, 5))[1]["deleted_count"] == 4
    world.log.release("report")
    assert delete(world, table, (5, 6))[1]["deleted_count"] == 1


def test_an_idempotency_key_deletes_once(world: World, table: list[str]) -> None:
    key = {"Idempotency-Key": f"delete {table[0]}"}
    first = delete(world, table, (1, 3), headers=key)
    assert first[1]["deleted_count"] == 2
    assert delete(world, table, (1, 3), headers=key) == first
    assert delete(world, table, (1, 4), headers=key)[0] == 400


def test_a_batch_deletes_with_all_else_or_not_at_all(world: World, table: list[str]) -> None:
    other = [table[0], "other"]
    world.write(other, numbers(0, 3))
    (staged,) = world.stage(other, lambda dataset: dataset.insert(numbers(3, 5)))

    def deletion(start: int, end: int) -> dict[str, Any]:
        ranges = [{"start_version": start, "end_version": end}]
        return {"delete_table_versions": {"id": table, "ranges": ranges}}

    refused = [deletion(1, 3), deletion(4, -1), {"create_table_version": {**staged, "version": 1}}]
    status, body = world.post(BATCH, {"operations": refused})
    assert status in (400, 409)
    assert "operations[2]" in body["error"]
    assert listed(world, table) == [1, 2, 3, 4, 5]

    operations = [deletion(1, 3), {"create_table_version": staged}, deletion(2, 4)]
    status, body = world.post(BATCH, {"operations": operations})
    assert status == 200, body
    counts = [r.get("delete_table_versions", {}).get("deleted_count") for r in body["results"]]
    assert counts == [2, None, 1]
    assert listed(world, table) == [4, 5]
    assert world.open(other).count_rows() == 5

    status, body = world.post(BATCH, {"operations": [deletion(0, -1)]})
    assert body["results"] == [
        {"delete_table_versions": {"deleted_count": 2, "transaction_id": body["transaction_id"]}}
    ]
    assert listed(world, table) == [6]
    assert world.open(table).count_rows() == 0


def test_a_conflict_after_a_deletion_of_the_newest_names_the_operation_asked_for(
    world: World, table: list[str]
) -> None:
    other = [table[0], "other"]
    world.write(other, numbers(0, 3))
    (staged,) = world.stage(other, lambda dataset: dataset.insert(numbers(3, 5)))
    world.open(other).insert(numbers(5, 6))
    ranges = [{"start_version": 5, "end_version": -1}]
    operations = [
        {"delete_table_versions": {"id": table, "ranges": ranges}},
        {"create_table_version": staged},
    ]
    status, body = world.post(BATCH, {"operations": operations})
    assert (status, body["code"]) == (409, 14)
    assert "operations[1]" in body["error"]
    assert listed(world, table) == [1, 2, 3, 4, 5]


def test_versions_deleted_under_latest_leave_later_ones_readable(world: World) -> None:
    name = [world.fresh_name(), "latest"]
    world.log.create_table(name, numbers(0, 1).schema, policy="latest")
    for number in range(6):
        world.log.append(name, numbers(number, number + 1))
    assert delete(world, name, (1, 5))[1]["deleted_count"] == 4
    for version in (5, 6, 7):
        assert world.open(name, version).count_rows() == version - 1


@pytest.mark.parametrize("policy", ["every", "latest"])
def test_a_batch_that_makes_a_version_may_delete_those_before_it(world: World, policy: str) -> None:
    name = [world.fresh_name(), "t"]
    world.log.create_table(name, numbers(0, 1).schema, policy=policy)
    for number in range(2):
        world.log.append(name, numbers(number, number + 1))
    staged = world.stage(name, lambda dataset: dataset.insert(numbers(7, 8)))
    ranges = [{"start_version": 2, "end_version": 4}]
    operations = [
        {"create_table_version": staged[0]},
        {"delete_table_versions": {"id": name, "ranges": ranges}},
    ]
    status, body = world.post(BATCH, {"operations": operations})
    assert status == 200, body
    assert body["results"][1]["delete_table_versions"]["deleted_count"] == 2
    assert listed(world, name) == [1, 4]
    assert sorted(world.open(name).to_table()["id"].to_pylist()) == [0, 1, 7]


def test_a_version_that_its_own_batch_deletes_is_described_as_it_was_offered(
    world: World, table: list[str]
) -> None:
    staged = world.stage(table, lambda dataset: [dataset.insert(numbers(i, i + 1)) for i in (7, 8)])
    staged[0]["metadata"] = {"by": "test"}
    ranges = [{"start_version": 6, "end_version": 7}]
    operations = [
        *({"create_table_version": one} for one in staged),
        {"delete_table_versions": {"id": table, "ranges": ranges}},
    ]
    status, body = world.post(BATCH, {"operations": operations})
    assert status == 200, body
    made = body["results"][0]["create_table_version"]["version"]
    assert (made["version"], made["metadata"]) == (6, {"by": "test"})
    assert made["manifest_size"] == staged[0]["manifest_size"]
    assert listed(world, table) == [1, 2, 3, 4, 5, 7]
    assert world.post(BATCH, {"operations": operations}) == (status, body)


@pytest.mark.parametrize("together", [False, True], ids=["declared before", "in the batch"])
def test_versions_of_a_new_table_are_made_and_deleted_in_one_batch(
    world: World, together: bool
) -> None:
    name = [world.fresh_name(), "new"]
    location = str(world.tables_root / name[0] / "new.lance")
    capture = Capture(location, 0)
    for number, mode in enumerate(["create", "append", "append"]):
        rows = numbers(number, number + 1)
        lance.write_dataset(rows, namespace_client=capture, table_id=name, mode=mode)
    declared = {"declare_table": {"id": name, "location": location}}
    if not together:
        assert world.post(BATCH, {"operations": [declared]})[0] == 200

    def deletion(start: int, end: int, **more: str) -> dict[str, Any]:
        ranges = [{"start_version": start, "end_version": end}]
        return {"delete_table_versions": {"id": name, "ranges": ranges, **more}}

    made = [{"create_table_version": one} for one in capture.requests]
    operations = [*([declared] if together else []), *made, deletion(1, 2), deletion(0, 3)]
    at = len(operations)
    status, body = world.post(BATCH, {"operations": [*operations, deletion(0, 3, branch="b")]})
    assert (status, body["code"]) == (406, 0), body
    status, body = world.post(BATCH, {"operations": [*operations, deletion(0, -1)]})
    assert (status, body["code"]) == (400, 13)
    assert f"operations[{at}]: version 3 is created by this batch" in body["error"]
    status, body = world.post(BATCH, {"operations": operations})
    assert status == 200, body
    counts = [one["delete_table_versions"]["deleted_count"] for one in body["results"][-2:]]
    assert counts == [1, 1]
    assert listed(world, name) == [3]
    assert world.open(name).count_rows() == 3


def test_a_deletion_of_the_newest_version_leaves_no_place_for_the_next_one(
    world: World, table: list[str]
) -> None:
    (staged,) = world.stage(table, lambda dataset: dataset.insert(numbers(7, 8)))

    def batch(end: int) -> tuple[int, Any]:
        deletion = {"id": table, "ranges": [{"start_version": 0, "end_version": end}]}
        operations = [{"delete_table_versions": deletion}, {"create_table_version": staged}]
        return world.post(BATCH, {"operations": operations})

    status, body = batch(-1)
    assert (status, body["code"]) == (400, 13), body
    assert "operations[1]: an earlier operation deletes the newest version" in body["error"]
    assert batch(2)[0] == 200


def test_a_batch_takes_as_many_ranges_as_a_request(world: World, table: list[str]) -> None:
    ranges = [{"start_version": 0, "end_version": 0}] * 1001
    deletion = {"delete_table_versions": {"id": table, "ranges": ranges}}
    told = "ranges has 1001 items; at most 1000 are allowed"
    alone = world.post(f"/v1/table/{'$'.join(table)}/version/delete", {"ranges": ranges})
    for status, body in (alone, world.post(BATCH, {"operations": [deletion]})):
        assert (status, body["code"]) == (400, 13)
        assert told in body["error"]


def test_versions_of_a_table_that_another_client_has_made_again_are_deleted(
    world: World, table: list[str]
) -> None:
    (staged,) = world.stage(table, lambda dataset: dataset.insert(numbers(7, 8)))
    assert world.post(BATCH, {"operations": [{"create_table_version": staged}]})[0] == 200
    with world.client() as other:
        other.drop_table("$".join(table))
        other.create_table("$".join(table), numbers(0, 1).schema)
        for number in range(2):
            other.append("$".join(table), numbers(number, number + 1))
    ranges = [{"start_version": 1, "end_version": 3}]
    deletion = {"delete_table_versions": {"id": table, "ranges": ranges}}
    status, body = world.post(BATCH, {"operations": [deletion]})
    assert status == 200, body
    assert body["results"][0]["delete_table_versions"]["deleted_count"] == 2
    assert listed(world, table) == [3]


@pytest.mark.parametrize("in_batch", [False, True])
def test_versions_of_a_table_that_took_the_name_meanwhile_stay(
    world: World, table: list[str], in_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server looks at the table, the table is made again, the log decides."""
    submit = Service.submit

    def made_again_first(self: Service, *args: Any, **more: Any) -> Any:
        monkeypatch.setattr(Service, "submit", submit)
        with world.client() as other:
            other.drop_table("$".join(table))
            other.create_table("$".join(table), numbers(0, 1).schema)
            for number in range(2):
                other.append("$".join(table), numbers(number, number + 1))
        return submit(self, *args, **more)

    monkeypatch.setattr(Service, "submit", made_again_first)
    if in_batch:
        ranges = [{"start_version": 1, "end_version": 3}]
        deletion = {"delete_table_versions": {"id": table, "ranges": ranges}}
        status, body = world.post(BATCH, {"operations": [deletion]})
    else:
        status, body = delete(world, table, (1, 3))
    assert (status, body["code"]) == (409, 14), body
    assert listed(world, table) == [1, 2, 3]
