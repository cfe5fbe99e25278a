"""Does `undrop` find by a version index what it finds by reading all of the log?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog.client.history import dropped
from commitlog.client.history.dropped import dropped_table
from commitlog.client.history.feed import PartitionFeed
from commitlog.core.iceberg.reading import dump_json
from commitlog.errors import NoSuchTable, Unavailable, WrongLog
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    DeleteTableVersions,
    DeregisterTable,
    DropNamespace,
    DropTable,
    IcebergChange,
    Operation,
    RenameTable,
)
from consumers.views.version_index import VersionIndex
from consumers.views.version_index.process import follow
from tests.service import SCHEMA, Service, rows, service
from tests.unit.iceberg_examples import create_updates
from tests.waiting import up_to_end


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path / "root") as running:
        yield running


def bring_up(made: Service) -> Path:
    with VersionIndex(made.root) as index:
        follow(made.log, index, **up_to_end())
    return made.root / "index.duckdb"


def done(made: Service, *operations: Operation) -> None:
    from commitlog.client.commits.catalogue import commit

    commit(made.client, list(operations), 30)


def many_lives(made: Service) -> None:
    """Leave dropped tables of the names a$t, a$u, b$t and b$gone, one of them twice."""
    client = made.client
    client.create_table("a$t", SCHEMA, primary_key="id", properties={"x": "1", "y": "1"})
    for number in range(6):
        client.append("a$t", rows(number))
    client.create_table("a$other", SCHEMA)
    done(made, AlterProperties(("a", "t"), upserts=(("x", "2"), ("z", "3")), removals=("y",)))
    done(made, DeleteTableVersions(("a", "t"), ((2, 3),)))
    done(made, DeleteTableVersions(("a", "t"), ((4, 4),)))
    client.drop_table("a$t")
    client.create_table("a$t", SCHEMA, policy="latest")
    client.append("a$t", rows(7))
    done(made, RenameTable(("a", "t"), ("a", "u")))
    done(made, RenameTable(("a", "other"), ("a", "t")))
    client.append("a$t", rows(8))
    client.drop_table("a$u")
    client.undrop("a$u", name="b$t")
    done(made, AlterProperties(("b", "t"), upserts=(("again", "1"),)))
    client.append("b$t", rows(9))
    done(made, DropNamespace(("b",), cascade=True))
    client.drop_table("a$t")
    client.create_table("b$only", SCHEMA)
    done(made, DeregisterTable(("b", "only")))
    client.create_table("b$stays", SCHEMA)
    client.create_table("b$gone", SCHEMA)
    client.drop_table("b$gone")
    done(made, CreateNamespace(("i",)))
    for name in ("a", "b"):
        place = str(made.root / "tables" / f"iceberg-{name}")
        create = dump_json(create_updates(place))
        done(made, IcebergChange(("i", name), '[{"type":"assert-create"}]', create))
        change = dump_json([{"action": "set-properties", "updates": {"x": "1"}}])
        done(made, IcebergChange(("i", name), "[]", change))
    done(made, RenameTable(("i", "b"), ("i", "c")))
    done(made, DropTable(("i", "a")))
    done(made, DropTable(("i", "c")))


def found(made: Service, table: str, index: Path | None, incarnation: str = "") -> Any:
    deadline = time.monotonic() + 30
    name = tuple(table.split("$"))
    try:
        return dropped_table(made.client.runtime(), name, incarnation, deadline, index)
    except NoSuchTable as error:
        return str(error)


@pytest.mark.slow
def test_an_index_and_the_log_find_the_same(made: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    many_lives(made)
    names = (
        "a$t",
        "a$u",
        "b$t",
        "b$gone",
        "a$other",
        "b$only",
        "b$stays",
        "a$never",
        "i$a",
        "i$b",
        "i$c",
    )
    asked = [(name, "") for name in names]
    by_log = [found(made, name, None) for name in names]
    lives = {one.incarnation for one in by_log if not isinstance(one, str)}
    asked += [(name, life) for name in ("a$t", "a$u", "b$t") for life in sorted(lives)]
    by_log += [found(made, *one[:1], None, *one[1:]) for one in asked[len(names) :]]
    index = bring_up(made)
    monkeypatch.setattr(dropped, "PartitionFeed", None)  # the log isn't read
    for (name, life), expected in zip(asked, by_log, strict=True):
        assert found(made, name, index, life) == expected
    is_found = {name for name, one in zip(names, by_log, strict=False) if not isinstance(one, str)}
    assert is_found == {"a$t", "b$t", "b$gone", "i$a", "i$c"}


@pytest.mark.slow
def test_versions_that_were_deleted_and_properties_come_with_a_table(made: Service) -> None:
    many_lives(made)
    index = bring_up(made)
    of_log = [one for one in _all_lives(made) if one.deleted]
    assert [(one.name, one.deleted) for one in of_log] == [("a$t", ((2, 4),))]
    life = found(made, "a$t", index, of_log[0].incarnation)
    assert (life.deleted, life.properties, life.primary_key, life.version) == (
        ((2, 4),), {"x": "2", "z": "3"}, ("id",), 7,
    )  # fmt: skip
    outcome = made.client.undrop("a$t", incarnation=life.incarnation, index=index)
    assert outcome.version == 7
    assert made.client.open("a$t").count_rows() == 6


def _all_lives(made: Service) -> list[Any]:
    from commitlog.client.history.feed_events import Selection, Start
    from commitlog.client.history.lives import Lives
    from commitlog.core.log.chain import BEGINNING

    runtime, lives = made.client.runtime(), Lives()
    end = int(runtime.request(0, "status")["sequence"])
    with closing(PartitionFeed(runtime.log, 0, Start(BEGINNING, 0))) as feed:
        for outcome, submitted in feed.read_to(end, time.monotonic() + 30, Selection()):
            lives.apply(outcome, submitted)
    return [one for name in ("a$t", "a$u", "b$t", "b$gone") for one in lives.dropped(name)]


@pytest.mark.slow
def test_an_index_and_the_log_have_the_same_tables_at_each_position(made: Service) -> None:
    many_lives(made)
    index = bring_up(made)
    for position in range(1, next(iter(made.client.position().values())) + 1):
        by_log = made.client.snapshot(position)
        by_index = made.client.snapshot(position, index=index)
        assert sorted(by_index.tables) == sorted(by_log.tables)
        for name in by_log.tables:
            one, other = by_log.table(name), by_index.table(name)
            assert replace(one, properties={}) == other


@pytest.mark.slow
def test_an_index_that_is_behind_or_gone_isn_t_waited_for(
    made: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropped, "INDEX_SECONDS", 0.0)
    client = made.client
    client.create_table("a$t", SCHEMA)
    client.append("a$t", rows(1))
    index = bring_up(made)
    position = next(iter(client.position().values()))
    client.append("a$t", rows(2))
    client.restore("a$t", position, index=index)
    assert client.open("a$t").count_rows() == 1
    client.restore("a$t", position + 1, index=index)
    client.drop_table("a$t")
    assert client.undrop("a$t", index=index).version == 5
    client.drop_table("a$t")
    index.write_bytes(b"x" * 5000)
    assert client.undrop("a$t", index=index).version == 5
    client.drop_table("a$t")
    index.unlink()
    assert client.undrop("a$t", index=index).version == 5


@pytest.mark.slow
def test_another_log_s_index_is_refused(made: Service, tmp_path: Path) -> None:
    with service(tmp_path / "other") as other:
        other.client.create_table("a$t", SCHEMA)
        index = bring_up(other)
    made.client.create_table("a$t", SCHEMA)
    made.client.drop_table("a$t")
    for ask in (
        lambda: made.client.undrop("a$t", index=index),
        lambda: made.client.snapshot(1, index=index),
        lambda: made.client.restore("a$t", 1, index=index),
    ):
        with pytest.raises(WrongLog, match="give this log's index, or none"):
            ask()


def test_who_ran_out_of_time_goes_on_when_it_asks_again(
    made: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of which less can be read than the time allows could never go back."""
    made.client.create_table("a$t", SCHEMA)
    for number in range(20):
        made.client.append("a$t", rows(number))
    position = next(iter(made.client.position().values()))
    read_to, most = PartitionFeed.read_to, 5

    def short(feed: PartitionFeed, sequence: int, *rest: Any) -> Iterator[Any]:
        until = min(sequence, feed.told.sequence + most)
        yield from read_to(feed, until, *rest)
        if until < sequence:
            raise Unavailable("time ran out")

    monkeypatch.setattr(PartitionFeed, "read_to", short)
    tries = 0
    while True:
        tries += 1
        try:
            made.client.restore("a$t", position - 3)
            break
        except Unavailable:
            assert tries < 20
    assert tries > 2
    assert made.client.open("a$t").count_rows() == 17
