"""Readers under simulation: the product's feed and snapshots, among all faults.

A feed tells each decided transaction once and in order, over restarts, from a token or any other
position. A snapshot has what stood at one position, and nothing of before or after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from commitlog.client.history.feed import Subscription, starts
from commitlog.client.history.feed_events import FeedEvent, Selection
from commitlog.client.history.folds import Folds
from commitlog.client.history.positions import positions_of
from commitlog.errors import CommitLogError, Unavailable
from tests.simulation.clients import SimulatedRuntime
from tests.simulation.scheduler import QUIET_SECONDS, Process

if TYPE_CHECKING:
    from tests.simulation.world import World

LEFT = 0.03
"""How often a subscription is left, per step, to be taken up again from its token."""
LOOKED = 0.2
PATIENCE_SECONDS = 3.0


class Reader:
    """A process that follows the log and looks at positions of it."""

    def __init__(self, world: World) -> None:
        """Begin to read."""
        self.world = world
        self.told = 0
        """The last sequence that was told, or left out on purpose."""
        self._token = ""
        self._boots = 0
        self.boot()

    def boot(self) -> None:
        """Start the process; it has the token that it kept."""
        self._boots += 1
        world, self.process = self.world, Process(f"r{self._boots}")
        self._runtime = SimulatedRuntime(world, self.process)
        self._folds = Folds()
        self._feed: Subscription | None = None
        world.scheduler.add(self.process, "feed", self._follow, 0.15)
        world.scheduler.add(self.process, "snapshots", self._look, QUIET_SECONDS)

    def is_behind(self) -> bool:
        """Say whether there is something that it wasn't told."""
        return any(entry.sequence > self.told for entry in self._due())

    def _due(self) -> list[Any]:
        # A repeated answer is no event.
        return [e for e in self.world.auditor.entries if e.answers is None]

    def _follow(self) -> bool:
        try:
            if self._feed is None:
                self._subscribe()
            elif not self.world.faults.is_over and self.world.scheduler.chance(LEFT):
                self._feed.close()
                self._feed = None
            elif events := self._feed.poll(0.0, self.world.scheduler.random.choice((1, 3, 500))):
                for event in events:
                    self._hear(event)
                return True
        except Unavailable:
            self.world.count("answer: no events for now")
        except CommitLogError as error:
            self.world.auditor.expect(False, f"I17 the feed ends: {error!r}")
        return False

    def _subscribe(self) -> None:
        world, chance = self.world, self.world.scheduler.random
        position: Any = "beginning"
        if self._token:
            position = chance.choice((self._token, self._token, self.told, "now"))
        if world.faults.is_over and position == "now":
            position = self._token
        begins = starts(self._runtime, position)
        world.auditor.follow()
        if position == "now":
            self.told, newest = begins[0].told, world.auditor.machine.sequence
            what = f"I17 a feed from now on begins behind {self.told}; the log ends at {newest}"
            world.auditor.expect(self.told <= newest, what)
        self._feed = Subscription(
            cast(Any, self._runtime.log), begins, Selection.of(None, True), None
        )
        self._token = self._feed.token
        world.count("answer: subscribed")

    def _hear(self, event: FeedEvent) -> None:
        auditor, outcome = self.world.auditor, event.outcome
        auditor.follow()
        due = next((e.sequence for e in self._due() if e.sequence > self.told), -1)
        auditor.expect(
            outcome.sequence == due,
            f"I17 a feed that told {self.told} tells {outcome.sequence}, and not {due}",
        )
        auditor.expect(
            auditor.outcomes[due][1] == outcome.hash, f"I17 a feed tells another outcome {due}"
        )
        is_it = getattr(event.submitted.record, "transaction_id", "") == outcome.transaction_id
        auditor.expect(is_it, f"I17 the event {due} has another transaction")
        self.told, self._token = outcome.sequence, event.token
        self.world.count("answer: event")

    def _look(self) -> bool:
        world, chance = self.world, self.world.scheduler.random
        if not world.scheduler.chance(LOOKED):
            return False
        deadline = world.scheduler.now + PATIENCE_SECONDS
        when: Any = chance.choice((None, self._token or None, self.told))
        try:
            found = positions_of(self._runtime, self._folds, when, deadline)
            fold = self._folds.at(self._runtime, 0, found[0], deadline)
        except CommitLogError as error:
            what = f"I17 no snapshot: {error!r}"
            world.auditor.expect(isinstance(error, Unavailable), what)
            world.count("answer: no snapshot for now")
            return True
        world.auditor.follow()
        stood = world.auditor.stood.get(found[0])
        has = {one.name: (one.incarnation, one.version) for one in fold.tables.values()}
        world.auditor.expect(
            has == stood, f"I17 the snapshot of {found[0]} has {has} instead of {stood}"
        )
        world.count("answer: snapshot")
        return True
