"""Many writes of rows are awaited at once on one event loop, without a thread for each."""

import asyncio
import threading
from pathlib import Path

import pytest

from commitlog import OutcomeUnknown
from commitlog.client.leader.row_tickets import RowsOutcome
from tests.integration.test_row_writer import writing
from tests.service import SCHEMA, rows, service

T = "ns$t"
COUNT = 40


def _workers() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name.startswith("asyncio_")}


def test_awaited_writes_take_no_threads_and_end_at_once_if_they_are_cancelled(
    tmp_path: Path,
) -> None:
    others = _workers()  # of the tests before
    with service(tmp_path) as running:
        client = running.client
        client.create_table(T, SCHEMA, properties={"rows": "log"})
        tickets = [client.write_rows(T, rows(number)) for number in range(COUNT)]

        async def give_up() -> set[threading.Thread]:
            tasks = [asyncio.ensure_future(ticket.result_async(60)) for ticket in tickets]
            done, _ = await asyncio.wait(tasks, timeout=0.2)
            assert not done, "no row writer runs"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            workers = _workers() - others
            with pytest.raises(OutcomeUnknown):
                await tickets[0].result_async(0.0)
            accepted = await tickets[0].result_async(60, "accepted")
            assert accepted.writes == ()
            return workers

        async def wait() -> list[RowsOutcome]:
            return await asyncio.gather(*tickets)

        assert asyncio.run(give_up()) == set()
        with writing(running, age_seconds=0.01):
            found = asyncio.run(wait())
        assert [one.inserted for one in found] == [1] * COUNT
        assert client.open(T).count_rows() == COUNT
