"""Decides transactions one after the other: reads, builds and writes what each decision needs.

The order of effects for one transaction: read what the decision needs; decide; write the files that
the decision made (merged deletion vectors, large recordings). Their paths follow from the
transaction, so a repetition writes them to the same place. Then decide finally, and append.

Workers do the reads, builds and writes. A transaction that waits for one, or for a failing
store, delays only its own tables and ids. Transactions behind it are already read for while
it waits.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial

from commitlog.core.decisions import BuildWanted, BytesWanted, Decision, Found, Need, Wanted
from commitlog.core.partition.driving import next_step
from commitlog.core.partition.machine import Machine
from commitlog.core.tables.lance_tables import normalize_location
from commitlog.errors import CommitLogError
from commitlog.model.operations import IcebergChange
from commitlog.model.records import Submitted
from consumers.partition.glances import Glances, Outside
from consumers.partition.lanes import Lanes
from consumers.partition.mailbox import Displaced, Reply
from consumers.partition.observer import StoreObserver
from consumers.partition.readable import Readable
from consumers.partition.undecided import LockQueues, Seen, Undecided, Written

BUILD_WAIT_SECONDS = 60.0
"""How long a build waits for the file of the version that it builds on, before it is requested
again."""
LOOK_SECONDS = 30.0
AWAITED_SECONDS = 10.0
"""How long a decision, and all later ones at its table, wait for a file that a writer announced."""
AWAITED_LOOK_SECONDS = 0.02
WRITE_SECONDS = 60.0
BUILD_SECONDS = 300.0
BARRIER_SECONDS, BARRIER_SECONDS_MAX = 0.05, 2.0
QUICK_WRITE_SECONDS = 0.0005
"""Writes this quick happen on the loop: waking a worker takes as long."""
PROOF_SECONDS = 0.002
"""The interval of checks whether all appended outcomes are acknowledged."""


class Deciding:
    """The transactions of a term that have no outcome yet. Owned by the loop."""

    def __init__(
        self,
        machine: Machine,
        observer: StoreObserver,
        lanes: Lanes,
        readable: Readable,
        *,
        undecided: Iterable[Submitted],
        outside: Outside,
        append: Callable[[Submitted, Decision], None],
        may_decide: Callable[[], bool],
        fail: Callable[[BaseException], None],
        end_offset: Callable[[], int],
        led_to: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        """Decide on `machine` and `append` outcomes, while it `may_decide`.

        `fail` ends the term; `outside` makes calls that may take long after all. A worker asks
        where the outcomes end (`end_offset`); all before `led_to()` is known to be this term's or
        older.
        """
        self._machine, self._observer = machine, observer
        root = machine.genesis.tables_root
        self._root = normalize_location(root) if root else ""
        self._lanes, self._readable = lanes, readable
        self._append, self._may_decide, self._fail = append, may_decide, fail
        self._outside, self._clock = outside, clock
        self._end_offset, self._led_to = end_offset, led_to
        self.backlog = deque(undecided)
        """Records that were read, but not handled."""
        self._queues = LockQueues()
        self._ready: OrderedDict[Undecided, None] = OrderedDict()
        """Transactions that can be tried now, in their order."""
        self._late: dict[Undecided, None] = {}
        """Transactions that wait for a time, or for a file to build on."""
        self._looks: dict[Hashable, list[tuple[Undecided, Wanted]]] = {}
        self._looking: set[tuple[Undecided, Wanted]] = set()
        self._glances = Glances(
            machine, observer, lanes, lane_of=self._lane, outside=outside, clock=clock
        )
        self._barrier: Undecided | None = None
        self._barrier_until = 0.0

    @property
    def due_at(self) -> float:
        """When something is due without any event."""
        due = [item.build_by if item.unbuilt else item.retry_at for item in self._late]
        if self._barrier is not None:
            due.append(self._barrier_until)
        return min(due, default=float("inf"))

    def forget(self, location: str) -> None:
        """Forget a table that is gone."""
        self._observer.forget(location)
        for lane in (location, ("build", location), ("write", location)):
            self._lanes.forget(lane)

    def step(self) -> None:
        """Decide all records whose turn it is and that wait for nothing, then those read since."""
        if self._barrier is not None and self._clock() < self._barrier_until:
            return
        self._barrier = None
        while self._ready and self._has_room():
            self._attempt(self._ready.popitem(last=False)[0])
        while self.backlog and self._has_room():
            self._glances.ahead(self.backlog)
            submitted = self.backlog.popleft()
            seen = Seen(self._observer.known, self._glances.take(submitted.offset))
            item = Undecided(submitted, self._machine.locks_of(submitted), seen)
            self._queues.enter(item)
            if self._queues.is_first(item):
                self._attempt(item)
            else:
                self._look(item, self._machine.prefetch(submitted, is_next=False))
            while self._ready and self._has_room():
                self._attempt(self._ready.popitem(last=False)[0])

    def _has_room(self) -> bool:
        return self._barrier is None and self._may_decide()

    def _attempt(self, item: Undecided) -> None:
        """Decide a transaction whose turn it is, or request what it lacks."""
        if item.error is not None:
            self._defer(item, item.error)
            return
        while isinstance(step := self._next_step(item), Need):
            item.unbuilt = [w for w in step.wanted if isinstance(w, BuildWanted)]
            if item.unbuilt:
                item.build_by = self._clock() + BUILD_WAIT_SECONDS
                self._late[item] = None
                self._begin_builds(item)
            if not self._look(item, step.wanted) or not item.is_free:
                return
        item.decision = step
        if self._write(item, step):
            item.is_through(self._clock)
            self._append(item.submitted, step)
            self._ready.update(dict.fromkeys(o for o in self._queues.leave(item) if o.is_free))

    def _next_step(self, item: Undecided) -> Decision | Need:
        """Decide, or take the decision from before its files were written, if it still holds."""
        decided = item.decision
        if decided is not None and decided.outcome.sequence == self._machine.sequence + 1:
            return decided
        return next_step(self._machine, item.submitted, item.observed)

    def _look(self, item: Undecided, wanted: Iterable[Wanted]) -> bool:
        """Request the reads that are missing; return whether everything is known."""
        for one in wanted:
            if (item.observed and one in item.observed) or isinstance(one, BuildWanted):
                continue
            known = self._observer.known(one)
            if known is None and self._is_quick(item, one):
                known = self._glance(item, one)
            if known is not None:
                item.observed[one] = known
            elif (item, one) not in self._looking:
                self._looking.add((item, one))
                item.outstanding += 1
                lane = self._lane(item.submitted, one.location)
                self._looks.setdefault(lane, []).append((item, one))
        return not item.outstanding

    def _lane(self, submitted: Submitted, location: str) -> Hashable:
        """Return the lane of a record's work in a place.

        Files of Iceberg tables are found from the tables root, which all of them share: there each
        has a lane of its own, and a record of several that of its first.
        """
        if location != self._root:
            return location
        tables = (o.table for o in submitted.operations if isinstance(o, IcebergChange))
        return (location, next(tables, ()))

    def _is_quick(self, item: Undecided, wanted: Wanted) -> bool:
        """Return True if the loop itself may read it."""
        if isinstance(wanted, BytesWanted) and wanted.is_awaited:
            return False
        return self._lanes.is_quick(self._lane(item.submitted, wanted.location))

    def _glance(self, item: Undecided, wanted: Wanted) -> Found | None:
        """Read on the loop itself, where that is quicker than asking a worker.

        If it takes long all the same, another thread is the loop when it comes back.
        """
        began = self._clock()
        self._looking.add((item, wanted))
        item.outstanding += 1
        try:
            [found] = self._outside(partial(self._observer.look_all, [wanted]))
        except Displaced as displaced:
            displaced.value = partial(
                self._looked, [(item, wanted)], displaced.value, displaced.error
            )
            raise
        self._looking.discard((item, wanted))
        item.outstanding -= 1
        self._lanes.note(self._lane(item.submitted, wanted.location), self._clock() - began)
        if isinstance(found, Found):
            self._observer.learn(wanted, found)
            return found
        return None  # a worker looks again, and says what is wrong

    def flush_looks(self) -> None:
        """Hand out the requested reads, as one job per place."""
        looks, self._looks = self._looks, {}
        for lane, group in looks.items():
            location = group[0][1].location
            self._lanes.submit(
                lane,
                partial(self._observer.look_all, [one for _, one in group]),
                Reply(partial(self._looked, group)),
                seconds=LOOK_SECONDS,
                what=f"a look into {location}",
            )

    def _looked(
        self,
        group: list[tuple[Undecided, Wanted]],
        found: list[Found | OSError | MemoryError] | None,
        error: BaseException | None,
    ) -> None:
        for number, (item, one) in enumerate(group):
            self._looking.discard((item, one))
            came = found[number] if found is not None else error
            if isinstance(came, Found) and self._is_awaited(item, one, came):
                item.retry_at = self._clock() + AWAITED_LOOK_SECONDS
                self._late[item] = None
            elif isinstance(came, Found):
                item.observed[one] = came
                self._observer.learn(one, came)
            else:
                self._note_error(item, came)
            self._came(item)

    def _is_awaited(self, item: Undecided, wanted: Wanted, found: Found) -> bool:
        """Return True if a file doesn't exist yet, and is worth waiting for."""
        if not isinstance(wanted, BytesWanted) or not wanted.is_awaited:
            return False
        item.awaits_until = item.awaits_until or self._clock() + AWAITED_SECONDS
        return found.observation.size < 0 and self._clock() < item.awaits_until

    def _came(self, item: Undecided) -> None:
        """Note that one read or build of a transaction came back."""
        item.outstanding -= 1
        if item.is_free and self._queues.is_first(item):
            self._ready[item] = None

    def _note_error(self, item: Undecided, error: BaseException | None) -> None:
        if isinstance(error, OSError | MemoryError):
            item.error = error
        else:
            self._fail(error or CommitLogError("a worker ended without a result"))

    def _begin_builds(self, item: Undecided) -> None:
        """Start the builds whose base versions have their files."""
        newest = self._readable.newest
        ready = [w for w in item.unbuilt if newest(w.incarnation) >= w.version - 1]
        item.unbuilt = [wanted for wanted in item.unbuilt if wanted not in ready]
        for wanted in ready:
            item.outstanding += 1
            self._lanes.submit(
                ("build", wanted.location),
                partial(self._observer.build, wanted),
                Reply(partial(self._built, item, wanted)),
                seconds=BUILD_SECONDS,
                what=f"building a manifest for {wanted.location}",
            )

    def _built(
        self, item: Undecided, wanted: BuildWanted, found: Found | None, error: BaseException | None
    ) -> None:
        if found is not None:
            item.observed[wanted] = found
        else:
            self._note_error(item, error)
        self._came(item)

    def _write(self, item: Undecided, decision: Decision) -> bool:
        """Have a decision's files written; return whether all of them exist.

        Meanwhile other decisions may advance the log's time, and with it change the content of some
        files. Then they are written again while no other transaction is decided, for a time that
        grows until it is enough.
        """
        if not decision.files and not decision.recordings:
            return True
        missing, recordings = item.unwritten(decision)
        if not missing and not recordings:
            return True
        if item.in_the_way and self._led_to() < item.read_at_offset:
            # Another leader may have begun before that was read, and have written it.
            item.retry_at = self._clock() + PROOF_SECONDS
            self._late[item] = None
            return False
        displaced, item.in_the_way = item.in_the_way, {}
        ours = item.written.keys() & missing.keys()
        if ours:
            self._barrier = item
            self._barrier_until = self._clock() + min(
                BARRIER_SECONDS * 2**item.rewrites, BARRIER_SECONDS_MAX
            )
            item.rewrites += 1
        item.outstanding += 1
        wanted = (tuple(missing.values()), recordings, ours, displaced)
        place = decision.files[0].location if decision.files else ""
        lane = self._lane(item.submitted, place)
        is_quick = self._lanes.is_quick(lane) and self._lanes.is_quick(("write", lane))
        self._lanes.submit(
            lane,
            partial(Written.by, partial(self._observer.write, *wanted), self._end_offset),
            Reply(partial(self._wrote, item, decision, lane, bool(displaced))),
            seconds=WRITE_SECONDS,
            what=f"writing to {place or 'the tables root'}",
            outside=self._outside if is_quick and not displaced else None,
        )
        return False

    def _wrote(
        self,
        item: Undecided,
        decision: Decision,
        lane: Hashable,
        was_displaced: bool,
        found: Written | None,
        error: BaseException | None,
    ) -> None:
        if found is None:
            self._note_error(item, error)
        else:
            item.in_the_way, item.read_at_offset, seconds = found
            self._lanes.note(("write", lane), seconds, QUICK_WRITE_SECONDS)
            item.note_written(decision)
            if not item.in_the_way:
                self._observer.wrote(decision)
            elif was_displaced:
                item.error = FileExistsError(
                    f"another program keeps writing files where the log's own belong:"
                    f" {', '.join('/'.join(place) for place in item.in_the_way)}"
                )
        item.outstanding -= 1
        # Before all others: what it wrote holds as long as nothing else is decided.
        self._ready[item] = None
        self._ready.move_to_end(item, last=False)
        if self._barrier is item:
            self._barrier = None

    def _defer(self, item: Undecided, error: Exception) -> None:
        """Try this one again later, since the store fails; its tables wait, others don't."""
        item.try_later(error, self._clock())
        item.observed, item.decision, item.error = Seen(self._observer.known, {}), None, None
        self._late[item] = None

    def wake_late(self) -> None:
        """Continue with transactions that waited for a time, or for a file to build on."""
        now = self._clock()
        for item in list(self._late):
            if item.unbuilt:
                self._begin_builds(item)
            if item.unbuilt and now >= item.build_by:
                head = item.unbuilt[0].version - 1
                item.unbuilt = []
                item.error = OSError(
                    f"version {head} has no manifest file yet; it must be written first"
                )
            elif item.unbuilt or now < item.retry_at:
                continue
            del self._late[item]
            item.retry_at = 0.0
            if item.is_free and self._queues.is_first(item):
                self._ready[item] = None
