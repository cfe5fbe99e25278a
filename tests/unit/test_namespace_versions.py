"""Does a version commit once, whatever becomes of the answer, and does 409 name a winner?"""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import lance
import pytest

from consumers.servers.namespace import reach
from consumers.servers.namespace.version_facts import KnownVersions
from tests.namespace_world import World, numbers


@pytest.fixture
def table(world: World) -> list[str]:
    name = world.fresh_name()
    world.write([name, "t"], numbers(0, 10))
    return [name, "t"]


def path(table: list[str], operation: str) -> str:
    return f"/v1/table/{'$'.join(table)}/version/{operation}"


def stage(world: World, table: list[str], first: int = 100) -> dict[str, Any]:
    (staged,) = world.stage(table, lambda dataset: dataset.insert(numbers(first, first + 5)))
    return staged


def test_a_staged_manifest_is_committed_once(world: World, table: list[str]) -> None:
    staged = stage(world, table)
    first = world.post(path(table, "create"), staged)
    assert first[0] == 200, first
    assert first[1]["version"]["e_tag"] == staged["e_tag"]
    assert world.post(path(table, "create"), staged) == first, "the file is staged no more"
    assert world.open(table).count_rows() == 15
    left = os.listdir(f"{world.location(table)}/_versions")
    assert not [name for name in left if ".manifest-" in name]


@pytest.mark.parametrize("way", ["log.open", "plain client"])
def test_no_configuration_has_lance_delete_what_the_log_keeps(
    world: World, table: list[str], way: str
) -> None:
    def opened() -> lance.LanceDataset:
        return world.log.open("$".join(table)) if way == "log.open" else world.open(table)

    lance.write_dataset(numbers(20, 25), opened(), mode="overwrite")
    asked: Any = {"lance.auto_cleanup.interval": "1", "lance.auto_cleanup.older_than": "0s"}
    opened().update_config(asked)
    opened().insert(numbers(30, 35))
    assert opened().config() == asked
    assert world.log.open("$".join(table), 1).to_table().num_rows == 10


def test_a_taken_version_is_409_and_the_winner_can_be_described(
    world: World, table: list[str]
) -> None:
    loser, winner = stage(world, table), stage(world, table, 200)
    assert world.post(path(table, "create"), winner)[0] == 200
    status, body = world.post(path(table, "create"), loser)
    assert (status, body["code"]) == (409, 14)
    status, body = world.post(path(table, "describe"), {"version": 2})
    assert status == 200
    assert body["version"]["manifest_path"].endswith(".manifest")
    assert os.path.exists(f"/{body['version']['manifest_path']}")


def test_of_many_who_want_a_version_one_asks_the_log(world: World, table: list[str]) -> None:
    wanted = [stage(world, table, 100 * number) for number in range(1, 7)]
    before = decided(world)
    with ThreadPoolExecutor(len(wanted)) as threads:
        made = list(threads.map(lambda one: world.post(path(table, "create"), one), wanted))
    assert sorted(status for status, _ in made) == [200, 409, 409, 409, 409, 409]
    assert {body["code"] for status, body in made if status == 409} == {14}
    assert decided(world) == before + 1, "who lost before it was asked needs no record"
    won = next(body["version"] for status, body in made if status == 200)
    status, body = world.post(path(table, "describe"), {"version": 2})
    assert (status, body["version"]) == (200, won)
    assert world.open(table).count_rows() == 15


def decided(world: World) -> int:
    """Return how many transactions the log has answered."""
    answer = world.log.runtime().request(0, "status")
    return int(answer["sequence"])


def test_a_version_beyond_the_next_is_a_conflict_as_in_a_batch(
    world: World, table: list[str]
) -> None:
    second, third = world.stage(
        table, lambda dataset: [dataset.insert(numbers(n, n + 1)) for n in (100, 200)]
    )
    status, body = world.post(path(table, "create"), third)
    assert (status, body["code"]) == (409, 14), body
    assert "the next version is 2" in body["error"]
    assert world.post(path(table, "create"), second)[0] == 200
    assert world.post(path(table, "create"), third)[0] == 200
    assert world.open(table).version == 3


def test_a_version_written_around_the_log_does_not_wedge_the_table(
    world: World, table: list[str]
) -> None:
    location = world.location(table)
    lance.write_dataset(numbers(50, 60), location, mode="append")
    managed = world.open(table)
    assert managed.count_rows() == 10, "it is none of the log's"
    deleting = world.open(table)
    with pytest.raises(OSError, match="unknown"):
        deleting.delete("id < 3")
    managed.insert(numbers(10, 12))
    assert (managed.version, managed.count_rows()) == (2, 12)
    opened = world.open(table)
    assert (opened.version, opened.count_rows()) == (2, 12)
    assert len(os.listdir(f"{location}/_quarantine")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["lost", "500", "503", "409"])
def test_an_answer_that_goes_wrong_leaves_no_duplicate(
    world: World, table: list[str], answer: str
) -> None:
    dataset = world.open(table)
    world.faults.path, world.faults.answers = "/version/create", [answer]
    dataset.insert(numbers(50, 60))
    assert world.faults.answers == []
    opened = world.open(table)
    assert (opened.version, opened.count_rows()) == (2, 20)
    dataset.insert(numbers(60, 70))
    assert world.open(table).count_rows() == 30


def test_writers_that_conflict_are_rebased_by_lance(world: World, table: list[str]) -> None:
    one, two = world.open(table), world.open(table)
    one.insert(numbers(10, 20))
    two.insert(numbers(20, 30))
    one = world.open(table)
    two = world.open(table)
    one.delete("id = 1")
    two.delete("id = 2")
    one, two = world.open(table), world.open(table)
    one.update({"x": "1.0"}, "id = 5")
    two.update({"x": "2.0"}, "id = 5")
    opened = world.open(table)
    assert (opened.version, opened.count_rows()) == (7, 28)
    assert opened.to_table(filter="id = 5")["x"].to_pylist() == [2.0]


def test_an_overwrite_that_won_refuses_an_update(world: World, table: list[str]) -> None:
    late = world.open(table)
    world.write(table, numbers(0, 3), mode="overwrite")
    with pytest.raises(OSError, match=r"(?i)conflict|incompatible"):
        late.update({"x": "x + 1"}, "id = 1")
    assert world.open(table).count_rows() == 3


def test_versions_are_listed_by_pages_both_ways(world: World, table: list[str]) -> None:
    dataset = world.open(table)
    for number in range(6):
        dataset.insert(numbers(number, number + 1))

    def pages(order: str) -> list[list[int]]:
        found, token = [], ""
        while True:
            query = f"?limit=3{order}" + (f"&page_token={token}" if token else "")
            status, body = world.post(path(table, "list") + query, b"null")
            assert status == 200
            found.append([version["version"] for version in body["versions"]])
            token = body.get("page_token")
            if not token:
                return found

    assert pages("") == [[1, 2, 3], [4, 5, 6], [7]]
    assert pages("&descending=true") == [[7, 6, 5], [4, 3, 2], [1]]
    status, body = world.post(path(table, "list") + "?limit=1&descending=true")
    assert [version["version"] for version in body["versions"]] == [7]
    for wrong in ("x", "-1", "%C2%B2", quote("٣"), "9" * 5000):
        status, body = world.post(path(table, "list") + f"?page_token={wrong}")
        assert (status, body["code"]) == (400, 13)


def test_a_declared_table_has_no_versions(world: World) -> None:
    assert world.post("/v1/table/declared$t/declare")[0] == 200
    assert world.post("/v1/table/declared$t/version/list") == (200, {"versions": []})
    status, body = world.post("/v1/table/declared$t/version/describe")
    assert (status, body["code"]) == (404, 11)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"manifest_path": "etc/passwd"}, 400, 13),
        ({"manifest_path": "/etc/passwd"}, 400, 13),
        ({"manifest_path": "{}/_versions/../../../x.manifest-1"}, 400, 13),
        ({"manifest_path": "{}/data/18446744073709551613.manifest-x"}, 400, 13),
        ({"manifest_path": "{}/_versions/18446744073709551613.manifest"}, 400, 13),
        ({"manifest_path": "{}/_versions/18446744073709551613.manifest-absent"}, 400, 13),
        ({"version": 0}, 400, 13),
        ({"version": -9223372036854775807}, 400, 13),
        ({"version": 3}, 400, 13),
        ({"naming_scheme": "V3"}, 400, 13),
        ({"naming_scheme": "V1"}, 400, 13),
        ({"manifest_size": 1}, 400, 13),
        ({"branch": "dev"}, 400, 13),
        ({"id": ["other"]}, 400, 13),
        ({"version": "2"}, 400, 13),
        ({"metadata": {"by": "me", "commitlog.base_version": "1"}}, 400, 13),
    ],
)
def test_a_wrong_request_appends_nothing(
    world: World, table: list[str], change: dict[str, Any], status: int, code: int
) -> None:
    staged = stage(world, table)
    location = world.location(table)
    wrong = {k: v.format(location) if isinstance(v, str) else v for k, v in change.items()}
    before = world.log.runtime().request(0, "status")["sequence"]
    answered, body = world.post(path(table, "create"), {**staged, **wrong})
    assert (answered, body["code"]) == (status, code), body
    assert world.log.runtime().request(0, "status")["sequence"] == before
    assert world.post(path(table, "create"), staged)[0] == 200, "the staged file is untouched"


def test_a_manifest_that_does_more_than_its_transaction_is_refused(
    world: World, table: list[str]
) -> None:
    other = [table[0], "other"]
    world.write(other, numbers(0, 3))
    foreign, own = stage(world, other), stage(world, table)
    with open(f"/{foreign['manifest_path']}", "rb") as file:
        data = file.read()
    with open(f"/{own['manifest_path']}", "wb") as file:
        file.write(data)
    del own["manifest_size"]
    status, body = world.post(path(table, "create"), own)
    assert (status, body["code"]) == (400, 13), body
    assert world.open(table).version == 1


def test_a_manifest_that_brings_files_that_are_not_there_is_refused(
    world: World, table: list[str]
) -> None:
    staged = stage(world, table)
    location = world.location(table)
    known = {file.path for f in world.open(table).get_fragments() for file in f.data_files()}
    (brought,) = set(os.listdir(f"{location}/data")) - known
    os.remove(f"{location}/data/{brought}")
    status, body = world.post(path(table, "create"), staged)
    assert (status, body["code"]) == (400, 13), body
    assert world.open(table).count_rows() == 10


def test_both_naming_schemes_are_honoured(world: World) -> None:
    table = ["schemes", "v1"]
    dataset = lance.write_dataset(
        numbers(0, 3),
        namespace_client=world.namespace,
        table_id=table,
        mode="create",
        enable_v2_manifest_paths=False,
    )
    dataset.insert(numbers(3, 6))
    names = set(os.listdir(f"{world.location(table)}/_versions"))
    assert {"1.manifest", "2.manifest"} <= names
    assert world.open(table).count_rows() == 6


def test_what_was_said_of_a_version_is_kept_and_told_by_all(world: World) -> None:
    table = [world.fresh_name(), "t"]
    world.write(table, numbers(0, 3))
    (staged,) = world.stage(table, lambda dataset: dataset.insert(numbers(3, 4)))
    said = {"metadata": {"by": "me", "why": "a test"}, "e_tag": '"claimed"'}
    path = f"/v1/table/{'$'.join(table)}/version"
    status, body = world.post(f"{path}/create", {**staged, **said})
    assert status == 200, body
    made = body["version"]
    assert made["metadata"] == said["metadata"]
    assert made["e_tag"] == said["e_tag"]
    assert made["manifest_size"] > 0
    assert made["timestamp_millis"] > 0
    assert world.post(f"{path}/describe", {"version": 2})[1]["version"] == made
    assert world.post(f"{path}/list")[1]["versions"][-1] == made
    world.open(table).insert(numbers(4, 5))
    assert world.post(f"{path}/describe", {"version": 2})[1]["version"] == made
    other = world.post(f"{path}/describe", {"version": 3})[1]["version"]
    assert "metadata" not in other
    assert other["e_tag"] != said["e_tag"]


def test_a_commit_lists_none_of_the_tables_folders(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be tens of thousands of files, of which the commit names those that are new."""
    staged = stage(world, table)
    with monkeypatch.context() as patched:
        patched.setattr(reach, "_list", Mock(side_effect=AssertionError))
        assert world.post(path(table, "create"), staged)[0] == 200
    folder = Path(world.location(table), "data")
    before = set(os.listdir(folder))
    staged = stage(world, table)
    (data,) = set(os.listdir(folder)) - before
    (folder / data).symlink_to((folder / data).rename(world.root / data))
    status, body = world.post(path(table, "create"), staged)
    assert (status, body["code"]) == (403, 15), body


def test_a_table_that_was_made_again_is_not_taken_for_the_old_one(world: World) -> None:
    """The server remembers where a table lies for a while, and notices when it lies elsewhere."""
    table = [world.fresh_name(), "t"]
    for first in (0, 100):
        world.write(table, numbers(first, first + 3))
        (staged,) = world.stage(table, lambda dataset: dataset.insert(numbers(7, 8)))
        status, body = world.post(path(table, "create"), staged)
        assert status == 200, body
        assert world.open(table).count_rows() == 4
        world.log.drop_table(table)


def test_a_version_whose_manifest_goes_while_it_is_described_is_made_again_or_left_out(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance thins out the manifests of tables under `latest` at any time."""
    world.log.append("$".join(table), numbers(20, 25))
    newest = world.log.table("$".join(table)).version
    learn, gone = KnownVersions.learn, list[str]()

    def thinned_before(
        known: KnownVersions, location: str, key: tuple[str, int], path: str, *said: Any
    ) -> Any:
        if key[1] == 1 and not gone:
            gone.append(path)
            os.unlink(os.path.join(location, path))
        return learn(known, location, key, path, *said)

    monkeypatch.setattr(KnownVersions, "learn", thinned_before)
    monkeypatch.setattr(KnownVersions, "get", lambda *asked: None)
    status, listed = world.post(path(table, "list"))
    assert status == 200, listed
    assert [one["version"] for one in listed["versions"]] == list(range(2, newest + 1))
    gone.clear()
    status, described = world.post(path(table, "describe"), {"version": 1})
    assert (status, described["version"]["version"]) == (200, 1)
    assert gone
