"""Worker threads for slow jobs, with a lane per table: the jobs of one lane run one by one.

A slow or hanging store holds up its own lane only. At a job's deadline its reply is refused, but
the lane stays taken until the call returns, since two jobs may not write at once. A stuck worker
doesn't count: another one is started in its place.

The loop owns the lanes: it hands out jobs, takes them back and gives the replies. Workers see
nothing but the jobs.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from commitlog.newest import Newest
from consumers.partition.mailbox import Displaced, Reply

WORKERS = 16
WORKERS_MAX = 256
"""The most worker threads, stuck ones included."""
STUCK_SECONDS = 0.5
TICK_SECONDS = 0.1
QUICK_SECONDS = 0.002
QUICK_MAX = 10_000


@dataclass(eq=False, slots=True)
class Job:
    """Something to do in a lane."""

    lane: Hashable
    work: Callable[[], Any]
    reply: Reply[Any]
    deadline: float
    what: str
    began_at: float = 0.0
    value: Any = None
    error: BaseException | None = None
    took_seconds: float = float("inf")

    def run(self) -> None:
        """Do it, on a worker."""
        began = time.monotonic()
        try:
            self.value = self.work()
        except BaseException as error:
            self.error = error
        self.took_seconds = time.monotonic() - began


class Lanes:
    """Jobs by lane, and the workers that do them."""

    def __init__(
        self,
        name: str,
        post: Callable[[Job], None],
        *,
        workers: int = WORKERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Do at most `workers` jobs at once; `post` hands a job that is done to the loop."""
        self._name, self._post = name, post
        self._workers_max, self._clock = workers, clock
        self._lanes: dict[Hashable, deque[Job]] = {}
        """Jobs of each lane; the first one is being done, or is about to be."""
        self._running: dict[Job, None] = {}
        self._unstarted: deque[Job] = deque()
        self._for_workers: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._workers = 0
        self._tick_at = 0.0
        self._quick: Newest[Hashable, None] = Newest(QUICK_MAX)
        """Lanes whose last job took next to no time."""

    def submit(
        self,
        lane: Hashable,
        work: Callable[[], Any],
        reply: Reply[Any],
        *,
        seconds: float,
        what: str,
        outside: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Have something done within so many seconds; OSError to the reply if it takes longer.

        With `outside`, the loop does a free lane's job itself, at once. If another thread becomes
        the loop meanwhile (Displaced), the job goes on as if a worker did it.
        """
        job = Job(lane=lane, work=work, reply=reply, deadline=self._clock() + seconds, what=what)
        jobs = self._lanes.setdefault(lane, deque())
        jobs.append(job)
        if len(jobs) > 1:
            return
        if outside is None:
            self._unstarted.append(job)
            self._start()
            return
        job.began_at = self._clock()
        self._running[job] = None
        try:
            outside(job.run)
        except Displaced as displaced:
            displaced.value = partial(self.done, job)
            raise
        self.done(job)

    def done(self, job: Job) -> None:
        """Take a job back, and begin the next one of its lane that somebody still waits for."""
        del self._running[job]
        self.note(job.lane, job.took_seconds)
        jobs = self._lanes[job.lane]
        jobs.popleft()
        while jobs and jobs[0].reply.is_given:
            jobs.popleft()
        if jobs:
            self._unstarted.append(jobs[0])
        else:
            del self._lanes[job.lane]
        self._start()
        if job.error is not None:
            job.reply.refuse(job.error)
        else:
            job.reply.give(job.value)

    def note(
        self, lane: Hashable, took_seconds: float, quick_seconds: float = QUICK_SECONDS
    ) -> None:
        """Remember whether something was quick in a lane."""
        self._quick.pop(lane, None)
        if took_seconds <= quick_seconds:
            self._quick[lane] = None

    def forget(self, lane: Hashable) -> None:
        """Forget a lane that gets no more jobs."""
        self._quick.pop(lane, None)

    def is_quick(self, lane: Hashable) -> bool:
        """Return True if a lane is free, and its last job took next to no time."""
        return lane in self._quick and lane not in self._lanes

    @property
    def due_at(self) -> float:
        """When to `tick` though nothing happens."""
        return self._tick_at if self._lanes else inf

    def tick(self) -> None:
        """Refuse jobs that are past their deadline, and replace stuck workers."""
        now = self._clock()
        if not self._lanes or now < self._tick_at:
            return
        self._tick_at = now + TICK_SECONDS
        late = [job for jobs in self._lanes.values() for job in jobs if job.deadline <= now]
        for job in late:
            job.reply.refuse(OSError(f"{job.what} did not end in time"))
        self._start()

    def close(self) -> None:
        """Begin nothing more; workers end after what they do now."""
        self._unstarted.clear()
        for _ in range(self._workers):
            self._for_workers.put(None)

    def _start(self) -> None:
        while self._unstarted and self._has_room():
            job = self._unstarted.popleft()
            job.began_at = self._clock()
            self._running[job] = None
            self._hand_out(job)

    def _has_room(self) -> bool:
        if len(self._running) < self._workers_max:
            return True
        late = self._clock() - STUCK_SECONDS
        stuck = sum(job.began_at < late for job in self._running)
        return len(self._running) < min(self._workers_max + stuck, WORKERS_MAX)

    def _hand_out(self, job: Job) -> None:
        if self._workers < len(self._running):
            self._workers += 1
            threading.Thread(
                target=self._work, name=f"{self._name}-{self._workers}", daemon=True
            ).start()
        self._for_workers.put(job)

    def _work(self) -> None:
        while (job := self._for_workers.get()) is not None:
            job.run()
            self._post(job)
