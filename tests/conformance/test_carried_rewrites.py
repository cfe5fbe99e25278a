"""Does a compaction that others delete rows beside land, with each row where it belongs?

What a test asserts is seen by plain pylance, which opens the table by its path.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pytest

from commitlog import CommitLog, RetryableConflict
from commitlog.adapters import log_start
from commitlog.client import upkeep
from commitlog.errors import InvalidTransaction
from commitlog.model.limits import REWRITES_CARRIED_SINCE
from commitlog.model.operations import ROW_ORDER
from commitlog.model.records import Outcome, Status
from tests.operations_world import T, decided_again_alike, opened, three_fragments
from tests.service import SCHEMA, Service, rows, service
from tests.waiting import at_once, meanwhile

STABLE = pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])


class Paused:
    """A compaction whose Rewrite is ready and not submitted yet."""

    def __init__(self, log: CommitLog, **options: Any) -> None:
        """Do all of the work but the last step."""
        self._log = log
        self._info = log.describe(("ns", "t"), fresh=True, readable=True)
        ready = log._rewrite(options, upkeep.rewrite_here, self._info, float("inf"))
        assert ready is not None
        self.message, self.metrics = ready

    def submit(self) -> Outcome:
        return self._log.submit(T, self.message.SerializeToString()).result()


def table_of(running: Service) -> list[dict[str, Any]]:
    """Return the rows with their stable row ids if they have any, by id."""
    dataset = opened(running)
    found = dataset.to_table(with_row_id=dataset.has_stable_row_ids)
    return sorted(found.to_pylist(), key=lambda row: tuple(row.values()))


def check_whole(running: Service, before: list[dict[str, Any]]) -> None:
    """The rows are what they were, the index finds each, and the log proves it."""
    assert table_of(running) == before
    dataset = opened(running)
    dataset.validate()  # type: ignore[no-untyped-call]
    assert dataset.count_rows() == len(before)
    for number in range(40):
        expected = sum(row["id"] == number for row in before)
        assert dataset.count_rows(f"id = {number}") == expected, number
    decided_again_alike(running)


@pytest.fixture(params=[False, True], ids=["no index", "index"])
def has_index(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@STABLE
def test_rows_that_went_meanwhile_are_gone_in_the_new_fragments(
    stable: bool, has_index: bool, tmp_path: Path
) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=stable) as made:
        log = made.client
        if has_index:
            log.create_index(T, "id", "BTREE", name="by_id")
        log.delete(T, "id = 1")
        paused = Paused(log)
        log.delete(T, "id in (2, 5)")
        log.delete(T, "id >= 8")  # a whole fragment
        log.update(T, {"name": "'moved'"}, "id = 6")
        log.append(T, rows(20))
        before = table_of(made)
        outcome = paused.submit()
        assert outcome.status is Status.COMMITTED, outcome.message
        assert outcome.results[0].rebased
        check_whole(made, before)
        fragments = opened(made).get_fragments()
        assert len(fragments) == 3, "the compacted one, the moved row's, the appended one"


@STABLE
def test_a_compaction_of_which_no_row_is_left_is_planned_again(
    stable: bool, tmp_path: Path
) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=stable) as made:
        paused = Paused(made.client)
        made.client.append(T, rows(30))
        made.client.delete(T, "id < 12")
        before = table_of(made)
        assert paused.submit().status is Status.RETRYABLE
        assert made.client.compact(T).outcome is None
        check_whole(made, before)


@STABLE
def test_random_deletes_and_updates_between(
    stable: bool, has_index: bool, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(f"{seed}/{stable}/{has_index}")
    with service(tmp_path / "root") as made:
        log = made.client
        log.create_table(T, SCHEMA, stable_row_ids=stable)
        for first in range(0, 40, 4):
            log.append(T, rows(*range(first, first + 4)))
        if has_index:
            log.create_index(T, "id", "BTREE", name="by_id")
        for step in range(4):
            log.delete(T, f"id = {chance.randrange(40)}")
            log.append(T, rows(*chance.sample(range(40), 3), name=f"new{step}"))
            log.append(T, rows(39))  # so that there is always something to compact
            paused = Paused(log, target_rows_per_fragment=chance.choice([15, 100, 1000]))
            for _ in range(chance.randrange(1, 6)):
                ids = ", ".join(map(str, chance.sample(range(40), chance.randrange(1, 9))))
                if chance.random() < 0.6:
                    log.delete(T, f"id in ({ids})")
                else:
                    log.update(T, {"name": f"'step{step}'"}, f"id in ({ids})")
            before = table_of(made)
            assert paused.submit().status is Status.COMMITTED, seed
            check_whole(made, before)


def test_new_values_of_a_column_are_not_lost(tmp_path: Path) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=False) as made:
        log = made.client
        paused = Paused(log)
        log.add_columns(T, {"twice": "id * 2"})
        before = table_of(made)
        outcome = paused.submit()
        assert outcome.status is Status.RETRYABLE
        assert outcome.conflict is not None
        assert table_of(made) == before
        kept = log.compact(T)
        assert kept.outcome is not None
        assert kept.metrics == {
            "fragments_removed": 3, "fragments_added": 1, "files_removed": 6, "files_added": 1
        }  # fmt: skip
        check_whole(made, before)


def test_only_a_rewrite_that_vouches_for_the_order_of_its_rows_is_carried(tmp_path: Path) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=False) as made:
        paused = Paused(made.client)
        del paused.message.transaction_properties[ROW_ORDER]
        made.client.delete(T, "id = 2")
        before = table_of(made)
        outcome = paused.submit()
        assert outcome.status is Status.RETRYABLE
        check_whole(made, before)


def test_under_an_older_protocol_it_is_refused_as_it_was(tmp_path: Path) -> None:
    with (
        mock.patch.object(log_start, "PROTOCOL_SUPPORTED", REWRITES_CARRIED_SINCE - 1),
        three_fragments(tmp_path / "root", stable_row_ids=False) as made,
    ):
        paused = Paused(made.client)
        made.client.delete(T, "id = 2")
        assert paused.submit().status is Status.RETRYABLE
        decided_again_alike(made)


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[tuple[Service, threading.Event]]:
    """A table that four writers delete from and append to, until they are told to stop."""
    with service(tmp_path / "root") as made:
        made.client.create_table(T, SCHEMA, policy="latest")
        for first in range(0, 400, 20):
            made.client.append(T, rows(*range(first, first + 20)))
        stop = threading.Event()
        failures: list[BaseException] = []

        def write(writer: int) -> None:
            try:
                number = writer
                while not stop.is_set():
                    made.client.delete(T, f"id = {number}")
                    made.client.append(T, rows(1000 + number))
                    number = (number + 4) % 400
            except BaseException as error:
                failures.append(error)

        with meanwhile(lambda _: at_once(write, range(4)), stop):
            yield made, stop
        assert failures == []


def test_beside_busy_writers_a_compaction_lands_within_two_tries(
    busy: tuple[Service, threading.Event],
) -> None:
    made, stop = busy
    for _ in range(3):
        kept = made.client.compact(T, target_rows_per_fragment=10_000)
        assert kept.outcome is not None
        assert len(kept.refusals) <= 1, kept.refusals
    stop.set()


def test_an_opened_dataset_compacts_through_the_log(tmp_path: Path) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=False) as made:
        dataset = made.client.open(T)
        metrics = dataset.optimize.compact_files(target_rows_per_fragment=100)
        assert (metrics.fragments_removed, metrics.fragments_added) == (3, 1)
        assert dataset.version == made.client.table(T).version
        assert dataset.count_rows() == 12
        assert dataset.optimize.compact_files().fragments_removed == 0


def test_deferred_remapping_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=False) as made:
        with pytest.raises(InvalidTransaction, match="defer"):
            made.client.compact(T, defer_index_remap=True)
        assert made.client.table(T).version == 4


def test_it_gives_up_after_as_many_tries_as_it_was_given(tmp_path: Path) -> None:
    with three_fragments(tmp_path / "root", stable_row_ids=False) as made:
        log, take = made.client, upkeep.KeepsTables._rewrite

        def disturbed(self: Any, *arguments: Any) -> Any:
            ready = take(self, *arguments)
            name = f"c{log.table(T).version}"
            log.add_columns(T, {name: "id"})
            return ready

        with (
            mock.patch.object(upkeep.KeepsTables, "_rewrite", disturbed),
            pytest.raises(RetryableConflict),
        ):
            log.compact(T, attempts_max=2)
        # No folder for each try either: a busy table is compacted every minute, for years.
        assert not list(made.location(T).glob("_commitlog-private/*"))
        assert (
            lance.dataset(str(made.location(T)))
            .to_table(columns=["id"])
            .equals(pa.table({"id": pa.array(range(12), SCHEMA.field("id").type)}))
        )
