"""Questions about rows: read at the log's end, though reading begins before the leader said so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commitlog.client.leader.tables import TableInfo
from commitlog.model.table import Policy
from consumers.partition.allowed_places import lies_in
from consumers.servers.namespace.branch_rows import read_from
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.service import Service
from tests.namespace_world import World, numbers

INFO = TableInfo(
    table_id=("t",),
    incarnation="i",
    location="/t",
    version=3,
    readable_version=3,
    policy=Policy.EVERY,
    primary_key=(),
    properties={},
    stable_row_ids=False,
)


@dataclass
class Asked:
    """A service that says in which order it was asked for what."""

    likely: TableInfo | None
    info: TableInfo
    fails_at: int = 0
    is_past: bool = False
    steps: list[Any] = field(default_factory=list)

    @property
    def log(self) -> Any:
        return SimpleNamespace(ask_table=lambda table: (self.likely, self.answer))

    def answer(self) -> TableInfo:
        self.steps.append("answer")
        return self.info

    def open(self, info: TableInfo, version: int | None) -> Any:
        return version or info.version

    def read(self, version: Any) -> Any:
        self.steps.append(version)
        if version == self.fails_at:
            raise ValueError(f"no version {version}")
        return version

    def ask(self, version: int | None = None) -> Any:
        call = Call("QueryTable", "/v1/table/t/query", "t")
        return read_from(cast(Service, self), call, None, version, self.read)


def test_the_likely_version_is_read_before_the_leader_answers() -> None:
    asked = Asked(INFO, INFO)
    assert (asked.ask(), asked.steps) == (3, [3, "answer"])


@pytest.mark.parametrize(
    "other",
    [{"version": 4}, {"incarnation": "j"}, {"location": "/u"}, {"deleted": ((1, 2),)}],
    ids=str,
)
def test_what_was_read_counts_only_if_the_leader_says_the_same(other: Any) -> None:
    asked = Asked(INFO, replace(INFO, **other))
    assert asked.ask() == asked.info.version
    assert asked.steps == [3, "answer", asked.info.version]


def test_nothing_is_guessed_of_a_table_that_changes() -> None:
    asked = Asked(None, INFO)
    assert (asked.ask(), asked.steps) == (3, ["answer", 3])


def test_a_failure_counts_only_if_the_leader_says_the_same() -> None:
    with pytest.raises(ValueError, match="no version 3"):
        Asked(INFO, INFO, fails_at=3).ask()
    assert Asked(INFO, replace(INFO, version=4), fails_at=3).ask() == 4
    with pytest.raises(ValueError, match="no version 2"):
        Asked(INFO, INFO, fails_at=2).ask(version=2)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a server over a log in memory."""
    made = World(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
def test_each_question_sees_what_was_committed_before_it(world: World) -> None:
    assert world.rows("/v1/table/t/create", numbers(0, 10))[0] == 200

    for rows in range(10, 40, 3):
        # Twice alike is likely a third time, and then it is not.
        assert [world.post("/v1/table/t/count_rows", {})[1] for _ in range(3)] == [rows] * 3
        likely, answer = world.log.ask_table(("t",))
        assert likely is not None
        assert likely == answer()
        assert world.rows("/v1/table/t/insert", numbers(rows, rows + 3))[0] == 200
    assert world.post("/v1/table/t/drop", {})[0] == 200
    assert world.post("/v1/table/t/count_rows", {})[0] == 404
    assert world.rows("/v1/table/t/create", numbers(0, 2))[0] == 200
    assert world.post("/v1/table/t/count_rows", {})[1] == 2


def test_all_rows_of_a_version_are_counted_by_its_manifest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.rows("/v1/table/t/create", numbers(0, 10))[0] == 200
    assert world.post("/v1/table/t/delete", {"predicate": "id < 3"})[0] == 200
    assert world.rows("/v1/table/t/insert", numbers(20, 25))[0] == 200
    assert (
        world.post("/v1/table/t/update", {"updates": [["x", "2"]], "predicate": "id = 4"})[0] == 200
    )
    assert world.post("/v1/table/t/delete", {"predicate": "true"})[0] == 200
    assert world.post("/v1/table/u/declare", {"location": "u"})[0] == 200
    opened: list[object] = []
    open_ = Service.open

    def noted(service: Service, info: TableInfo, version: int | None = None) -> Any:
        opened.append(version)
        return open_(service, info, version)

    monkeypatch.setattr(Service, "open", noted)
    count = "/v1/table/t/count_rows"
    found = [world.post(count, {"version": version})[1] for version in range(1, 6)]
    assert (found, world.post(count, {})) == ([10, 7, 12, 12, 0], (200, 0))
    assert not opened
    assert world.post(count, {"version": 1, "predicate": "id < 4"}) == (200, 4)
    assert opened == [1]
    assert [world.post(count, {"version": version})[0] for version in (0, 6)] == [404, 404]
    # What is declared has no version, and Lance's words for that are those of the way by rows.
    assert world.post("/v1/table/u/count_rows", {})[0] == 404
    monkeypatch.setattr("consumers.servers.namespace.version_facts.COUNTED_BYTES_MAX", 10)
    assert world.rows("/v1/table/t/insert", numbers(30, 33))[0] == 200
    opened.clear()
    assert world.post(count, {}) == (200, 3)
    assert opened, "a large manifest is read by a process"


@pytest.mark.parametrize("blank", ["", " \n"])
def test_an_empty_condition_is_a_mistake_and_not_all_rows(world: World, blank: str) -> None:
    assert world.rows("/v1/table/t/create", numbers(0, 3))[0] == 200
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "count_rows": ("predicate", {}),
        "query": ("filter", {"k": 5}),
        "update": ("predicate", {"updates": [["x", "2"]]}),
        "delete": ("predicate", {}),
    }
    for path, (name, others) in asked.items():
        status, answer = world.post(f"/v1/table/t/{path}", {name: blank, **others})
        assert (status, answer["code"]) == (400, 13)
        assert f"{name} is empty; to mean all rows" in answer["error"]
    status, answer = world.post("/v1/table/t/explain_plan", {"query": {"filter": blank, "k": 1}})
    assert (status, "filter is empty" in answer["error"]) == (400, True)
    assert world.post("/v1/table/t/count_rows", {}) == (200, 3)


@pytest.mark.parametrize("sql", ["id > 1 LIMIT 1", "id = 1 x = 2", "id = 1) OR (true"])
@pytest.mark.parametrize("branch", [None, "dev"])
def test_sql_of_which_lance_would_read_the_first_expression_is_refused(
    world: World, sql: str, branch: str | None
) -> None:
    """A branch lost and changed more rows than were meant; all counted and returned more."""
    assert world.rows("/v1/table/t/create", numbers(0, 3))[0] == 200
    assert world.post("/v1/table/t/branches/create", {"name": "dev"})[0] == 200
    where = {"predicate": sql, "branch": branch}
    ones = {"predicate": "id = 1", "branch": branch}
    for path, body in (
        ("count_rows", where),
        ("query", {"filter": sql, "k": 5, "branch": branch}),
        ("explain_plan", {"query": {"filter": sql, "k": 5, "branch": branch}}),
        ("update", {**where, "updates": [["x", "2"]]}),
        ("update", {**ones, "updates": [["x", sql]]}),
        ("delete", where),
    ):
        status, answer = world.post(f"/v1/table/t/{path}", body)
        assert (path, status, answer["code"]) == (path, 400, 13)
    changed = {"branch": branch, "predicate": "x IN (0, 2) -- both;"}
    assert world.post("/v1/table/t/count_rows", changed) == (200, 2)
    status, answer = world.post("/v1/table/t/update", {**changed, "updates": [["x", "7;"]]})
    assert (status, answer["updated_rows"]) == (200, 2)
    status, answer = world.post("/v1/table/t/delete", {"branch": branch, "predicate": "x = 7;"})
    assert (status, answer["num_deleted_rows"]) == (200, 2)


def test_a_path_below_another_one_is_so_without_links_only(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a" / "b").mkdir(parents=True)
    (outside / "b").mkdir(parents=True)
    (root / "link").symlink_to(outside)
    (root / "a" / "in").symlink_to(root / "a" / "b")
    (tmp_path / "other").symlink_to(root)
    below = ("a", "a/b", "a/b/not-there", "a/in", "a//b", "a/./b", "link/../root/a")
    assert [name for name in below if not lies_in(f"{root}/{name}", str(root))] == []
    assert lies_in(f"{tmp_path}/other/a", str(root))
    assert lies_in(str(root), str(root))
    beside = ("link", "link/b", "a/../../outside", "../root2", "a/b/../../../outside/b", "a\0")
    assert [name for name in beside if lies_in(f"{root}/{name}", str(root))] == []
