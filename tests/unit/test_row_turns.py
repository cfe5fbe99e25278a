"""Work on rows: whoever asks for much waits for itself, and nobody waits forever."""

import asyncio

import pytest

from commitlog.errors import Unavailable
from consumers.servers.namespace import row_turns
from consumers.servers.namespace.row_turns import (
    LONG_REMEMBERED_SECONDS,
    LONG_SECONDS,
    LOST_PAUSE_SECONDS,
    LOST_REMEMBERED_SECONDS,
    RowTurns,
)
from consumers.servers.row_processes import WorkLost

DEADLINE = 120.0


class Crowd:
    """Clients that hold their places until they are told to go."""

    def __init__(self, turns: RowTurns) -> None:
        self.turns = turns
        self.began: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.leave: dict[str, asyncio.Semaphore] = {}

    async def come(self, client: str, count: int = 1) -> None:
        leave = self.leave.setdefault(client, asyncio.Semaphore(0))

        async def work() -> None:
            async with self.turns.turn(client):
                self.began.append(client)
                await leave.acquire()

        self.tasks += [asyncio.create_task(work()) for _ in range(count)]
        await _settle()

    async def lose(self, client: str) -> None:
        with pytest.raises(WorkLost):
            async with self.turns.turn(client):
                raise WorkLost("its process ended")

    async def finish(self, client: str) -> None:
        self.leave[client].release()
        await _settle()

    async def go(self) -> None:
        for leave in self.leave.values():
            for _ in self.tasks:
                leave.release()
        await asyncio.wait_for(asyncio.gather(*self.tasks), DEADLINE)


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_one_client_leaves_a_place_and_who_has_the_fewest_is_next() -> None:
    async def run() -> None:
        crowd = Crowd(RowTurns(4, tells_clients_apart=True))
        await crowd.come("greedy", 20)
        assert crowd.began == ["greedy"] * 3
        await crowd.come("polite", 2)
        assert crowd.began[3:] == ["polite"], "the place that was left"
        await crowd.finish("greedy")
        assert crowd.began[4:] == ["polite"], "it has one place, the other two"
        await crowd.come("late")
        await crowd.finish("greedy")
        assert crowd.began[5:] == ["late"]
        await crowd.finish("polite")
        assert crowd.began[6:] == ["greedy"], "nobody else waits"
        await crowd.go()
        assert sorted(crowd.began) == ["greedy"] * 20 + ["late"] + ["polite"] * 2

    asyncio.run(run())


def test_short_work_waits_for_no_long_work() -> None:
    async def run() -> None:
        now = 0.0
        crowd = Crowd(RowTurns(3, tells_clients_apart=False, clock=lambda: now))
        await crowd.come("long")
        await crowd.come("short")
        await crowd.finish("short")
        now += 2 * LONG_SECONDS
        await crowd.finish("long")
        await crowd.come("long", 5)
        assert crowd.began[2:] == ["long"] * 2, "a place is left"
        for _ in range(3):
            await crowd.come("short")
            assert crowd.began[-1] == "short"
            await crowd.finish("short")
        await crowd.finish("long")  # a short piece among long ones
        assert crowd.began.count("long") == 4, "a place is still left"
        await crowd.go()
        now += LONG_REMEMBERED_SECONDS
        later = Crowd(crowd.turns)
        await later.come("long", 5)
        assert len(later.began) == 3, "all places"
        await later.go()

    asyncio.run(run())


def test_who_has_no_place_waits_for_nobody_who_has_several() -> None:
    async def run() -> None:
        now = 0.0
        crowd = Crowd(RowTurns(4, tells_clients_apart=True, clock=lambda: now))
        await crowd.come("greedy")
        await crowd.come("polite")
        now += 2 * LONG_SECONDS
        await crowd.finish("greedy")
        await crowd.finish("polite")
        await crowd.come("greedy", 4)
        assert crowd.began[2:] == ["greedy"] * 3
        await crowd.come("polite")
        assert crowd.began[5:] == ["polite"], "though its work was long, too"
        await crowd.go()

    asyncio.run(run())


def test_who_ended_a_process_pauses_and_has_one_place_for_a_while() -> None:
    async def run() -> None:
        now = 0.0
        crowd = Crowd(RowTurns(4, tells_clients_apart=True, clock=lambda: now))
        await crowd.lose("deadly")
        await crowd.come("deadly", 3)
        await crowd.come("polite", 3)
        assert crowd.began == ["polite"] * 3, "the pause is the other's alone"
        now += LOST_PAUSE_SECONDS
        await crowd.finish("polite")
        assert crowd.began[3:] == ["deadly"]
        await crowd.finish("polite")
        assert crowd.began[4:] == [], "one place"
        await crowd.finish("deadly")
        assert crowd.began[4:] == ["deadly"], "one after the other"
        now += LOST_REMEMBERED_SECONDS
        await crowd.finish("polite")
        assert crowd.began[5:] == ["deadly"], "it is forgotten"
        await crowd.go()

    asyncio.run(run())


def test_a_pause_ends_though_nobody_else_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_turns, "LOST_PAUSE_SECONDS", 0.05)

    async def run() -> None:
        crowd = Crowd(RowTurns(4, tells_clients_apart=True))
        await crowd.lose("deadly")
        await crowd.come("deadly")
        await crowd.go()

    asyncio.run(run())


def test_all_places_are_used_where_clients_are_not_told_apart() -> None:
    async def run() -> None:
        crowd = Crowd(RowTurns(3, tells_clients_apart=False))
        await crowd.come("", 5)
        assert len(crowd.began) == 2, "nobody knows yet how long its work takes"
        await crowd.finish("")
        assert len(crowd.began) == 4
        await crowd.go()
        assert len(crowd.began) == 5

    asyncio.run(run())


def test_who_waits_too_long_or_goes_away_takes_no_place() -> None:
    async def run() -> None:
        turns = RowTurns(
            1,
            tells_clients_apart=True,
            wait_seconds=0.01,
            problem=lambda: "leader: it did not answer",
        )
        async with turns.turn("a"):
            why = r"on rows, which waits \(leader: it did not answer\); try"
            with pytest.raises(Unavailable, match=why):
                async with turns.turn("b"):
                    raise AssertionError("there is no place")
        turns = RowTurns(1, tells_clients_apart=True, wait_seconds=0.01)
        async with turns.turn("a"):
            with pytest.raises(Unavailable, match="other work"):
                async with turns.turn("b"):
                    raise AssertionError("there is no place")
            patient = RowTurns(1, tells_clients_apart=True)
        crowd = Crowd(patient)
        await crowd.come("a")
        await crowd.come("b")
        gone = crowd.tasks.pop()
        gone.cancel()
        # It is given its place and goes away in the same moment.
        await crowd.come("c")
        crowd.leave["a"].release()
        crowd.tasks[-1].cancel()
        await _settle()
        crowd.tasks = [task for task in crowd.tasks if not task.cancelled()]
        await crowd.come("d")
        await crowd.go()
        assert crowd.began[0] == "a"
        assert crowd.began[-1] == "d"
        async with asyncio.timeout(DEADLINE), turns.turn("b"):
            pass

    asyncio.run(run())
