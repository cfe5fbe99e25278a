"""One seeded scheduler: whose step is next, what time it is, who is dead or paused.

A task is a function that does a little and returns. Wherever the code under test touches the world
(the log, a store, its disk, the clock), it passes a point: there the process may be killed, or be
held up while all others go on. Being held up is a nested run of the scheduler on top of the
caller's stack, so that no thread is needed and the order of everything follows from the seed. What
it cannot do is let two held-up tasks overlap otherwise than nested.
"""

from __future__ import annotations

import hashlib
import inspect
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

DEPTH_MAX = 5
IDLE_SECONDS = 0.05
STEP_SECONDS = (0.0002, 0.0005, 0.001, 0.003)


class Killed(BaseException):
    """The process is dead; passes through every `except Exception`, as a kill does."""


@dataclass(eq=False)
class Process:
    """Something that can be killed and paused as a whole."""

    name: str
    is_alive: bool = True
    paused_until: float = 0.0
    is_cut_off: bool = False
    """Whether the log doesn't answer it."""
    is_disk_full: bool = False
    is_spared: bool = False
    """Nothing happens to it: writers' and the observer's own machinery."""


@dataclass(eq=False)
class Task:
    """A step function of a process."""

    process: Process
    name: str
    step: Callable[[], object]
    """Returns False if there was nothing to do."""
    is_running: bool = False
    wakes_at: float = 0.0


@dataclass
class Rates:
    """How often something happens at a point; all 0 when the faults are over."""

    kill: float = 0.0
    pause: float = 0.0
    preempt: float = 0.0
    hot: str = ""
    """A kind of point at which tasks are held up often."""


@dataclass
class Scheduler:
    """Runs tasks one at a time."""

    seed: int
    rates: Rates = field(default_factory=Rates)

    def __post_init__(self) -> None:
        """Begin at time 0 with nothing to do."""
        self.random = random.Random(self.seed)
        self.now = 0.0
        self.steps = 0
        self.depth = 0
        self.tasks: list[Task] = []
        self.running: Process | None = None
        """Whose step it is."""
        self.counters: Counter[str] = Counter()
        self.after_step: Callable[[], None] = lambda: None
        self.on_killed: Callable[[Process], None] = lambda process: None
        self._trace = hashlib.blake2b(digest_size=16)
        self.coroutines: list[Coroutine[Any, Any, Any]] = []
        """All that tasks of event loops were made of."""
        self.listing: list[str] | None = None
        """Every traced line, when somebody wants to read the run."""

    def close(self) -> None:
        """End what a kill overtook before it began: Python warns of coroutines never awaited."""
        for coroutine in self.coroutines:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()

    def clock(self) -> float:
        """Return the present time in seconds, as `time.monotonic` does."""
        return self.now

    def trace(self, *what: object) -> None:
        """Note what happened; the trace of a seed is always the same."""
        line = " ".join(map(str, what))
        self._trace.update(f"{self.now:.6f} {line}\n".encode())
        if self.listing is not None:
            self.listing.append(f"{self.now:10.4f} {line}")

    def digest(self) -> str:
        """Return the hash of everything that was traced."""
        return self._trace.hexdigest()

    def chance(self, probability: float) -> bool:
        """Say yes with a probability."""
        return probability > 0 and self.random.random() < probability

    def add(self, process: Process, name: str, step: Callable[[], object]) -> Task:
        """Add a task of a process."""
        task = Task(process, name, step)
        self.tasks.append(task)
        return task

    def remove(self, process: Process) -> None:
        """Forget a process's tasks."""
        self.tasks = [task for task in self.tasks if task.process is not process]

    def kill(self, process: Process, why: str) -> None:
        """Let a process die where it stands."""
        if process.is_alive:
            process.is_alive = False
            self.trace("kill", process.name, why)
            self.remove(process)
            self.on_killed(process)

    def point(self, process: Process, what: str) -> None:
        """Pass a point where the code under test touches the world."""
        if not process.is_alive:
            raise Killed(process.name)
        if process.is_spared:
            return
        chance, rates = self.random.random(), self.rates
        if rates.hot and what.startswith(rates.hot):
            chance /= 20.0
        if chance < rates.kill:
            self.counters[f"kill at {what.split()[0]}"] += 1
            self.counters["kill"] += 1
            self.kill(process, what)
        elif chance < rates.kill + rates.pause and self.depth < DEPTH_MAX:
            self.counters["pause"] += 1
            seconds = self.random.choice((0.05, 0.5, 5.0))
            self.trace("pause", process.name, what, seconds)
            process.paused_until = self.now + seconds
            self._run_until(process.paused_until)
            self.trace("wakes", process.name, what)
        elif chance < rates.kill + rates.pause + rates.preempt and self.depth < DEPTH_MAX:
            self.counters["preempt"] += 1
            self._run_steps(self.random.randrange(1, 6))
        if not process.is_alive:
            raise Killed(process.name)

    def sleep(self, process: Process, seconds: float) -> None:
        """Let others run while a task waits."""
        if not process.is_alive:
            raise Killed(process.name)
        if self.depth < DEPTH_MAX:
            self._run_until(self.now + seconds)
        else:
            self.now += seconds
        if not process.is_alive:
            raise Killed(process.name)

    def step(self) -> bool:
        """Run one step of a task that is ready, or let time pass; return whether one ran."""
        self.steps += 1
        self.now = now = self.now + STEP_SECONDS[int(self.random.random() * len(STEP_SECONDS))]
        ready = [
            task
            for task in self.tasks
            if task.wakes_at <= now and not task.is_running and task.process.paused_until <= now
        ]
        if not ready:
            times = [
                max(task.wakes_at, task.process.paused_until)
                for task in self.tasks
                if not task.is_running
            ]
            self.now = max(self.now, min(times, default=self.now + 0.01))
            return False
        task = ready[int(self.random.random() * len(ready))]
        task.is_running = True
        held_up, self.running = self.running, task.process
        try:
            if task.step() is False:
                task.wakes_at = self.now + self.random.random() * IDLE_SECONDS
        except Killed:
            if task.process.is_alive:
                raise
        finally:
            task.is_running = False
            self.running = held_up
        self.after_step()
        return True

    def _run_until(self, time: float) -> None:
        self.depth += 1
        try:
            while self.now < time:
                self.step()
        finally:
            self.depth -= 1

    def _run_steps(self, count: int) -> None:
        self.depth += 1
        try:
            for _ in range(count):
                self.step()
        finally:
            self.depth -= 1
