"""What the index says of tables that were renamed, dropped, or came back."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pytest

from commitlog.errors import InvalidRequest, NoSuchVersion
from commitlog.model.names import REASON
from commitlog.model.operations import (
    AlterProperties,
    DropNamespace,
    DropTable,
    RegisterTable,
    RenameTable,
)
from commitlog.model.table import TableId
from consumers import history
from consumers.servers.page import contention, contents, questions
from consumers.views.version_index import VersionIndex
from consumers.views.version_index.process import follow
from tests.service import SCHEMA, Service, rows, service
from tests.waiting import up_to_end

A, B = ("ns", "a"), ("ns", "b")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Service]:
    """Run a service with a table `ns$a` of two fragments, in its versions 2 and 3."""
    with service(tmp_path / "root") as running:
        running.client.create_table("ns$a", SCHEMA)
        running.client.append("ns$a", rows(0, 1))
        running.client.append("ns$a", rows(2, 3))
        yield running


FOLLOWED: dict[Path, int] = {}
"""The end of the log that the index under a root has; each test has a root of its own."""


def ask(made: Service, question: str, *values: object) -> list[history.Row]:
    """Bring the index up to the log, unless it is there and has all, and ask it."""
    end = made.log.last_outcome_records(0)[-1].offset
    if FOLLOWED.get(made.root) != end or not (made.root / "index.duckdb").exists():
        bring_up(made)
        FOLLOWED[made.root] = end
    return history.query(made.root, question, values)


def bring_up(made: Service) -> None:
    with VersionIndex(made.root) as index:
        follow(made.log, index, **up_to_end())


def rename(made: Service, old: TableId, new: TableId) -> None:
    made.client.submit(None, RenameTable(old, new)).result(30).raise_for_conflict()


def end(made: Service, table: TableId) -> None:
    made.client.submit(None, DropTable(table)).result(30).raise_for_conflict()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ns$a", "ns$b"])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_what_is_in_a_table_is_known_by_each_of_its_names(
    made: Service, name: str, is_dropped: bool
) -> None:
    rename(made, A, B)
    made.client.append("ns$b", rows(4))
    made.client.delete("ns$b", "id = 0")
    if is_dropped:
        end(made, B)
    found = ask(made, "FROM blame(?)", name)
    assert [(one["fragment_id"], one["rows"], one["changed_in"]) for one in found] == [
        (0, 1, 5),
        (1, 2, 3),
        (2, 1, 4),
    ]
    [at_two] = history.query(made.root, "FROM fragments_at(?, 2)", [name])
    assert at_two["rows"] == 2
    changes = history.query(made.root, "FROM diff(?, 2, 5)", [name])
    assert [one["change"] for one in changes] == ["changed", "added", "added"]


@pytest.mark.slow
def test_a_dropped_table_has_the_history_that_it_had_under_other_names(made: Service) -> None:
    rename(made, A, B)
    made.client.append("ns$b", rows(4))
    end(made, B)
    happened = [one["operation"] for one in ask(made, "FROM history('ns$b')")]
    assert happened == ["DropTable", "Append", "RenameTable", "Append", "Append", "CreateTable"]
    (at,) = ask(made, "FROM table_at('ns$b', 2)")
    assert at["table_name"] == "ns$a"


def test_of_dropped_tables_of_a_name_the_last_one_brings_its_other_names(made: Service) -> None:
    end(made, A)
    made.client.create_table("ns$b", SCHEMA)
    rename(made, B, A)
    end(made, A)
    made.client.create_table("ns$b", SCHEMA)
    happened = [one["operation"] for one in ask(made, "FROM history('ns$a')")]
    assert happened == ["DropTable", "RenameTable", "CreateTable", "DropTable"] + [
        "Append",
        "Append",
        "CreateTable",
    ]


@pytest.mark.slow
def test_what_stood_before_a_namespace_was_dropped_or_after_it_came_back(made: Service) -> None:
    runtime = made.client.runtime()
    before = made.client.submit(None, AlterProperties(A)).result(30)
    dropped = made.client.submit(None, DropNamespace(("ns",), cascade=True)).result(30)
    dropped.raise_for_conflict()
    assert runtime.partitions == 1
    made.client.undrop("ns$a")
    heads = "SELECT table_name, version FROM heads_at(?)"
    stood = [{"table_name": "ns$a", "version": 3}]
    assert ask(made, heads, before.sequence) == stood
    assert ask(made, heads, dropped.sequence) == []
    assert ask(made, heads, dropped.sequence + 5) == stood
    assert ask(made, "SELECT table_name, version FROM heads_at_time(now())") == stood


def test_what_a_program_calls_its_try_breaks_no_view(made: Service) -> None:
    said = {REASON: "ours", "commitlog.try": "the second"}
    made.client.append("ns$a", rows(4), properties=said)
    (done,) = ask(made, "FROM maintenance_done")
    assert (done["reason"], done["try"]) == ("ours", None)


def compact_by_path(made: Service) -> None:
    """Drop the table, compact it where it lies, and register what is there now."""
    life = made.client.table("ns$a")
    end(made, A)
    lance.dataset(life.location).optimize.compact_files()
    found = lance.dataset(life.location)
    path = f"_versions/{2**64 - 1 - found.version:020}.manifest"
    back = RegisterTable(A, life.incarnation, life.location, found.version, path)
    made.client.submit(None, back).result(30).raise_for_conflict()


def drop_and_undrop(made: Service) -> None:
    made.client.drop_table("ns$a")
    made.client.undrop("ns$a")


BLAMED = "SELECT fragment_id AS n, rows, made_in, made_as, changed_in, changed_as FROM blame(?)"
SPANS = "SELECT fragment_id, first_version, last_version, rows FROM fragments ORDER BY ALL"
ONCE_ADDED = [(0, 2, 3, 2), (0, 4, None, 1), (1, 3, None, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("is_followed", [False, True])
@pytest.mark.parametrize(
    ("come_back", "blamed", "spans"),
    [
        (
            drop_and_undrop,
            [(0, 1, 2, "Append", 4, "Delete"), (1, 2, 3, "Append", 3, "Append")],
            ONCE_ADDED,
        ),
        (
            compact_by_path,
            [(2, 3, 6, "RegisterTable", 6, "RegisterTable")],
            [(0, 2, 3, 2), (0, 4, 5, 1), (1, 3, 5, 2), (2, 6, None, 3)],
        ),
    ],
)
def test_of_a_table_that_came_back_only_what_differs_has_changed(
    made: Service,
    come_back: Callable[[Service], None],
    blamed: list[tuple[object, ...]],
    spans: list[tuple[object, ...]],
    is_followed: bool,
) -> None:
    made.client.delete("ns$a", "id = 0")
    if is_followed:
        ask(made, "FROM tables")  # so that what was there before is read from the index
    come_back(made)
    assert [tuple(one.values()) for one in ask(made, BLAMED, "ns$a")] == blamed
    assert [tuple(one.values()) for one in ask(made, SPANS)] == spans
    counted = "SELECT rows, deleted_rows, fragments FROM health"
    assert ask(made, counted)[0]["rows"] == made.client.open("ns$a").count_rows() == 3
    assert ask(made, "SELECT rows_added, rows_removed FROM tables") == [
        {"rows_added": 4, "rows_removed": 1}
    ]
    followed = ask(made, "FROM fragment_changes ORDER BY ALL")
    shutil.rmtree(made.root / "index")
    (made.root / "index.duckdb").unlink()
    assert ask(made, "FROM fragment_changes ORDER BY ALL") == followed


@pytest.mark.slow
def test_a_table_that_came_back_without_rows_has_no_fragments(made: Service) -> None:
    life = made.client.table("ns$a")
    end(made, A)
    lance.dataset(life.location).delete("true")
    path = f"_versions/{2**64 - 1 - 4:020}.manifest"
    back = RegisterTable(A, life.incarnation, life.location, 4, path)
    made.client.submit(None, back).result(30).raise_for_conflict()
    assert ask(made, "FROM blame('ns$a')") == []
    changes = "SELECT version, change, operation FROM changes('ns$a', 3, 4)"
    assert ask(made, changes) == [
        {"version": 4, "change": "removed", "operation": "RegisterTable"} for _ in range(2)
    ]


@pytest.mark.slow
def test_a_table_that_went_twice_has_what_it_had(made: Service) -> None:
    drop_and_undrop(made)
    made.client.append("ns$a", rows(4))
    drop_and_undrop(made)
    made.client.delete("ns$a", "id = 2")
    found = [tuple(one.values()) for one in ask(made, BLAMED, "ns$a")]
    assert found == [
        (0, 2, 2, "Append", 2, "Append"),
        (1, 1, 3, "Append", 5, "Delete"),
        (2, 1, 4, "Append", 4, "Append"),
    ]


@pytest.mark.slow
def test_a_former_name_means_the_table_that_had_it(made: Service) -> None:
    rename(made, A, B)
    made.client.add_columns("ns$b", {"twice": "id * 2"})
    schema = "SELECT name FROM schema_at(?, 4)"
    assert [one["name"] for one in ask(made, schema, "ns$a")] == ["id", "name", "twice"]
    newest, renamed, *_ = ask(made, "FROM history('ns$a')")
    assert (newest["version"], renamed["operation"]) == (4, "RenameTable")
    (at,) = ask(made, "FROM table_at('ns$a', 4)")
    assert at["table_name"] == "ns$b"
    assert history.diff(made.root, "ns$a", 2, 4) == history.diff(made.root, "ns$b", 2, 4) != []


def swap(made: Service) -> None:
    """Give the tables `ns$a` and `ns$b` each other's name."""
    for old, new in ((A, ("ns", "c")), (B, A), (("ns", "c"), B)):
        rename(made, old, new)


@pytest.mark.slow
def test_of_swapped_tables_each_has_its_own_versions(made: Service) -> None:
    made.client.create_table("ns$b", SCHEMA)
    made.client.append("ns$b", rows(9))
    made.client.append("ns$a", rows(4))
    swap(made)
    one, other = (made.client.table(name).incarnation for name in ("ns$a", "ns$b"))
    for name, life in (("ns$a", one), ("ns$b", other)):
        (at,) = ask(made, "FROM table_at(?, 2)", name)
        assert at["incarnation"] == life
        (at,) = ask(made, "FROM table_at_time(?, now())", name)
        assert at["incarnation"] == life
        (meant,) = ask(made, "SELECT incarnation FROM life_of(?)", name)
        assert meant["incarnation"] == life


@pytest.mark.slow
def test_versions_of_an_earlier_table_of_the_name_are_not_compared(made: Service) -> None:
    end(made, A)
    made.client.create_table("ns$a", SCHEMA)
    ask(made, "FROM tables")
    with pytest.raises(NoSuchVersion, match="earlier table 'ns\\$a'; this one has versions 1 to 1"):
        history.diff(made.root, "ns$a", 1, 3)
    (at,) = ask(made, "FROM table_at('ns$a', 3)")
    assert at["incarnation"] != made.client.table("ns$a").incarnation


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "hours"),
    [
        ("'{:%Y-%m-%d %H:%M:%S.%f}'", 0),
        ("TIMESTAMP '{:%Y-%m-%d %H:%M:%S.%f}'", 0),
        ("'{:%Y-%m-%dT%H:%M:%S.%fZ}'", 0),
        ("'{:%Y-%m-%d %H:%M:%S.%f}+02'", 2),
        ("TIMESTAMPTZ '{:%Y-%m-%d %H:%M:%S.%f}-03:30'", -3.5),
    ],
)
def test_a_moment_with_a_zone_is_that_moment_wherever_it_is_asked(
    made: Service, moment: str, hours: float
) -> None:
    versions = ask(made, "SELECT version, time FROM versions ORDER BY version")
    times = [datetime.fromisoformat(str(one["time"])) for one in versions]
    with history.connect(made.root) as connection:
        connection.execute("SET TimeZone = 'America/New_York'")
        for at in (times[1], times[2]):
            expected, said = sum(one <= at for one in times), at + timedelta(hours=hours)
            for question in ("table_at_time('ns$a', {})", "heads_at_time({})"):
                query = f"SELECT version FROM {question.format(moment.format(said))}"
                assert connection.execute(query).fetchall() == [(expected,)], query
        (day,) = connection.execute(
            f"SELECT count(*) FROM heads_at_time('{times[0]:%Y-%m-%d}')"
        ).fetchall()
        assert day == (0,)


@pytest.mark.slow
@pytest.mark.parametrize(
    "question",
    ["table_at_time('ns$a', {})", "heads_at_time({})", "removable_before('ns$a', {})"],
)
def test_a_moment_in_the_future_is_refused(made: Service, question: str) -> None:
    for moment in ("'2100-01-01'", "TIMESTAMP '2100-01-01'", "now() + INTERVAL 9 SECOND"):
        with pytest.raises(
            history.QueryFailed, match="is in the future: commits up to then aren't known"
        ):
            ask(made, f"FROM {question.format(moment)}")


@pytest.mark.slow
def test_a_time_is_a_version_of_the_table_that_has_the_name_now(made: Service) -> None:
    index = made.root / "index.duckdb"
    at = "SELECT count(*) AS n FROM ns$a AT (TIMESTAMP => {})"
    (third,) = ask(made, "SELECT max(time) AS time FROM versions")
    end(made, A)
    made.client.create_table("ns$a", SCHEMA)
    made.client.append("ns$a", rows(7))
    made.client.append("ns$a", rows(8, 9))
    (first,) = ask(
        made, "SELECT min(time) AS time FROM versions JOIN life_of('ns$a') USING (incarnation)"
    )
    assert str(third["time"]) < str(first["time"])
    with pytest.raises(NoSuchVersion, match="had no version yet at"):
        made.client.sql(at.format(f"'{third['time']}'"), index=index)
    assert made.client.sql(at.format("now()"), index=index).to_pylist() == [{"n": 3}]
    for future in ("'2100-01-01'", "'2100-01-01 00:00+12:00'", "DATE '2100-01-01'"):
        with pytest.raises(InvalidRequest, match="is in the future"):
            made.client.sql(at.format(future), index=index)
    early = datetime.fromisoformat(str(first["time"])) + timedelta(hours=2, milliseconds=-1)
    with pytest.raises(NoSuchVersion, match="had no version yet at"):
        made.client.sql(at.format(f"'{early:%Y-%m-%d %H:%M:%S.%f}+02'"), index=index)


@pytest.mark.slow
def test_the_page_tells_swapped_tables_apart(made: Service) -> None:
    made.client.create_table("ns$b", SCHEMA, properties={"owner": "b"})
    made.client.append("ns$b", rows(9))
    swap(made)
    made.client.append("ns$b", rows(4))
    ask(made, "FROM tables")

    def told(run: history.Ask) -> list[history.Row]:
        found = [contents.contents(run, name) for name in ("ns$a", "ns$b")]
        about: list[Any] = [questions.table(run, name) for name in ("ns$a", "ns$b")]
        return [
            {"head": one["head"], "rows": of["lives"][0]["version"], "set": of["properties"]}
            for one, of in zip(found, about, strict=True)
        ]

    one, other = history.read(made.root, told)
    assert one == {"head": 2, "rows": 2, "set": [{"key": "owner", "value": "b"}]}
    assert other == {"head": 4, "rows": 4, "set": []}


@pytest.mark.slow
def test_the_page_knows_a_dropped_table_by_all_its_names(made: Service) -> None:
    rename(made, A, B)
    end(made, B)
    ask(made, "FROM tables")
    happened = history.read(made.root, lambda run: questions.events(run, table="ns$b"))
    assert happened["total"] == 5


@pytest.mark.slow
def test_the_page_tells_what_maintenance_did_before_a_rename_and_to_this_table_alone(
    made: Service,
) -> None:
    for name, reason in (("ns$a", "first"), ("ns$c", "other")):
        made.client.create_table(name, SCHEMA, exist_ok=True)
        made.client.append(name, rows(4), properties={REASON: reason})
    rename(made, A, B)
    rename(made, ("ns", "c"), A)
    ask(made, "FROM tables")
    for name, reason in (("ns$b", "first"), ("ns$a", "other")):
        done = history.read(made.root, partial(contents.upkeep, table=name))
        assert [one["reason"] for one in done] == [reason]


@pytest.mark.slow
def test_conflicts_follow_a_table_through_renames(made: Service) -> None:
    def lose(name: str, fragment: int) -> int:
        read_version = made.client.table(name).version
        made.client.delete(name, f"id = {2 * fragment}")
        whole = lance.LanceOperation.Delete([], [fragment], "true")
        lost = made.client.submit(name, whole, read_version=read_version).result(30)
        assert lost.conflict is not None
        return lost.sequence

    lost = [lose("ns$a", 0)]
    rename(made, A, B)
    lost.insert(0, lose("ns$b", 1))
    made.client.create_table("ns$c", SCHEMA)
    of_t = "SELECT sequence FROM conflicts_of(?)"
    for name, expected in (("ns$a", lost), ("ns$b", lost), ("ns$c", [])):
        assert [one["sequence"] for one in ask(made, of_t, name)] == expected

    found = history.read(made.root, partial(contention.conflicts, table="ns$b"))
    listed = history.read(made.root, partial(contention.collisions, table="ns$b"))
    assert found["total"] == 2
    assert [one["sequence"] for one in listed] == lost


@pytest.mark.slow
def test_what_a_commit_missed_is_told_across_a_rename(made: Service) -> None:
    whole = lance.LanceOperation.Delete([], [0], "true")
    rename(made, A, B)
    made.client.append("ns$b", rows(4))
    late = made.client.submit("ns$b", whole, read_version=2).result(30).raise_for_conflict()
    ask(made, "FROM tables")

    asked = partial(questions.transaction, transaction_id=late.transaction_id)
    found: Any = history.read(made.root, asked)
    ((one,),) = (attempt["details"] for attempt in found)
    assert [version["version"] for version in one["lineage"]["versions"]] == [5, 4, 3, 2]
    assert one["lineage"]["left_out"] == 0
