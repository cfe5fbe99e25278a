"""Does a move of several partitions end as it should, wherever it was killed, and back again?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from commitlog import CommitLog
from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.kafka_restore import RestoredTopics
from commitlog.adapters.kafka_settings import ClientSettings
from commitlog.errors import CorruptLog, LogMoved, TopicSettings, Unavailable
from consumers.broker.embedded import EmbeddedBroker
from consumers.runtime.progress import Tally
from consumers.tools import move
from consumers.tools.verify import VerifyOptions, verify
from tests.integration.test_move import killed
from tests.move_child import BACK, POINTS
from tests.service import ids_of, leading, rows

pytestmark = [pytest.mark.broker]

LOG = "traveller"
DOMAINS = {"a": 1, "b": 2}
TABLES = ("a$t", "b$t", "t")
WAIT_SECONDS = 180.0


@contextmanager
def led(servers: str, root: Path, name: str = LOG) -> Iterator[CommitLog]:
    """Lead all partitions on a cluster, and yield a client."""
    with ExitStack() as ends:
        asked = ends.enter_context(closing(KafkaLog.connect(servers, name)))
        for partition in range(asked.partitions()):
            log = ends.enter_context(closing(KafkaLog.connect(servers, name)))
            ends.enter_context(leading(log, root, partition=partition))
        yield ends.enter_context(CommitLog.connect(servers, name))


def cannot_be_followed(*arguments: Any) -> None:
    raise CorruptLog("its transactions are gone")


def moved(old: str, new: str, root: Path) -> list[Any]:
    told: dict[str, int] = {}
    source, target = (ClientSettings(one, {}) for one in (old, new))
    found = move.move(source, target, LOG, new, root, lambda kind, done: told.update({kind: done}))
    records = sum(side.transactions + side.outcomes for side in found.partitions)
    assert told["records compared"] == records
    assert told.keys() <= {"records copied", "records compared", "outcomes applied"}
    return found.partitions


def test_partitions_move_and_come_back_wherever_that_is_killed(
    broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move, "CLOSED_SECONDS", 0.3)
    here, root = broker.bootstrap_servers, tmp_path / "root"
    with closing(KafkaLog.connect(here, LOG)) as made:
        made.create(partitions=3, domains=DOMAINS, tables_root=str(root / "tables"))
        first_cluster = made.cluster_id()
    with led(here, root) as client:
        for number, table in enumerate(TABLES):
            client.create_table(table, rows().schema)
            for one in range(number + 1):
                client.append(table, rows(one))
    with EmbeddedBroker.start(tmp_path / "there") as other:
        there = other.bootstrap_servers
        there_and_back = [point for point in POINTS if "open" not in point]
        for point in there_and_back:
            killed(here, there, LOG, root, point)
            if point == "half of the partitions copied":
                with monkeypatch.context() as patched:
                    patched.setattr(move, "expect_followed", cannot_be_followed)
                    with pytest.raises(CorruptLog, match="are gone"):
                        moved(here, there, root)
                with closing(KafkaLog.connect(here, LOG)) as log:
                    assert log.genesis().log == LOG, "it isn't closed"
            if point == "arrived":
                half = closing(KafkaLog.connect(there, LOG))
                refused = pytest.raises(TopicSettings, match="a restore or move did not finish")
                with half as log, refused:
                    log.check_settings()
        sides = moved(here, there, root)
        assert [side.rows for side in sides] == [{"t": 3}, {"a$t": 1}, {"b$t": 2}]
        assert all(side.committed >= 2 for side in sides)
        with closing(KafkaLog.connect(here, LOG)) as log, pytest.raises(LogMoved):
            log.genesis()
        with led(there, root) as client:
            client.append("b$t", rows(7))
            # A run that stood still meanwhile appends nothing, nor advises to delete topics.
            stood_still = RestoredTopics(ClientSettings(there, {}), LOG, 3, 1, goes_on=True)
            with (
                closing(KafkaLog.connect(here, LOG)) as old,
                closing(KafkaLog.connect(there, LOG)) as new,
                pytest.raises(Unavailable, match="another run has filled"),
            ):
                move._copy(old, new, stood_still, 3, Tally(lambda kind, done: None))
        for point in BACK:
            killed(there, here, LOG, root, point)
        again = moved(there, here, root)
        assert [side.rows for side in again] == [{"t": 3}, {"a$t": 1}, {"b$t": 3}]
        assert again == moved(there, here, root), "run after its end, it compares once more"
        with led(here, root) as client:
            assert client.append("t", rows(8)).sequence == again[0].sequence + 1
            assert ids_of(client.open("b$t")) == [0, 1, 7]
            with pytest.raises(LogMoved, match=here), CommitLog.connect(there, LOG) as late:
                late.tables()
        # Both clusters know the log by now, and it goes once more.
        once_more = moved(here, there, root)
        assert once_more[0].rows == {"t": 4}
        with closing(KafkaLog.connect(there, LOG)) as log:
            route = [log.cluster_id(), first_cluster, log.cluster_id()]
            assert [one.to_cluster for one in log.moves()] == route
            for partition in range(3):
                assert verify(log, partition, VerifyOptions(root, contents=True)).problems == []
