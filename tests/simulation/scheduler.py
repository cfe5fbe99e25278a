"""One seeded scheduler: whose step is next, what time it is, who is dead or paused.

A task is a function that does a little and returns. Wherever the code under test touches the world
(the log, a store, its disk, the clock), it passes a point: there the process may be killed, or be
held up while all others go on. Each step runs in a greenlet, so a task that is held up keeps its
stack, any number of them overlap in any way, and the order of everything follows from the seed. A
greenlet whose step has ended takes the next one: Python maps memory for each new one.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import math
import random
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from greenlet import getcurrent, greenlet

IDLE_SECONDS, QUIET_SECONDS = 0.05, 0.5
"""How long a task rests at most that had nothing to do; and one that is woken if there is."""
STEP_SECONDS = (0.0002, 0.0005, 0.001, 0.003)
LOOKS_MAX, LOOK_SECONDS = 1_000_000, 1.0
"""After so many looks at the clock within one step, each further one takes a while: what does
nothing but wait for a time comes to it, as everywhere else."""


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
    rests_seconds: float = IDLE_SECONDS
    wakes_at: float = 0.0
    wakes_after: int = 0
    """The scheduler's step after which it goes on, where others come first."""
    held_up: greenlet | None = None
    """Its step, which is held up or waits."""
    woken: list[float] = field(default_factory=list)
    """When there will be something to do."""

    def wake(self, at: float = 0.0) -> None:
        """Let it begin a step at a time."""
        self.woken.append(at)
        if self.held_up is None:
            self.wakes_at = min(self.wakes_at, at)


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
        self._looks = 0
        self.tasks: list[Task] = []
        self._task: Task | None = None
        """Whose step it is."""
        self.counters: Counter[str] = Counter()
        self.after_step: Callable[[], None] = lambda: None
        self.on_killed: Callable[[Process], None] = lambda process: None
        self._trace = hashlib.blake2b(digest_size=16)
        self._free: list[greenlet] = []
        """Those that wait for a task."""
        self.coroutines: list[Coroutine[Any, Any, Any]] = []
        """All that tasks of event loops were made of."""
        self.listing: list[str] | None = None
        """Every traced line, when somebody wants to read the run."""
        self._thread = threading.get_ident()
        self.strangers: list[str] = []
        """Stacks of other threads that passed a point: what they do would be taken for a task's."""

    @property
    def running(self) -> Process | None:
        """The process whose step it is."""
        return None if self._task is None else self._task.process

    def close(self) -> None:
        """End all tasks, and what a kill overtook before it began.

        Python warns of coroutines never awaited.
        """
        self.stop()
        for coroutine in self.coroutines:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()

    def stop(self) -> None:
        """End all tasks where they stand."""
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task.process.is_alive = False
        self._end(tasks)
        # One that waits holds this scheduler on its stack, where no collector looks.
        while self._free:
            self._free.pop().throw()

    def clock(self) -> float:
        """Return the present time in seconds, as `time.monotonic` does."""
        self._looks += 1
        if self._looks > LOOKS_MAX:
            self.now += LOOK_SECONDS
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

    def add(
        self,
        process: Process,
        name: str,
        step: Callable[[], object],
        rests_seconds: float = IDLE_SECONDS,
    ) -> Task:
        """Add a task of a process."""
        task = Task(process, name, step, rests_seconds)
        self.tasks.append(task)
        return task

    def wake(self, process: Process, name: str, at: float = 0.0) -> None:
        """Let a process's task of this name begin a step at a time."""
        for task in self.tasks:
            if task.process is process and task.name == name:
                task.wake(at)

    def remove(self, process: Process) -> None:
        """Forget a process's tasks."""
        self.tasks = [task for task in self.tasks if task.process is not process]

    def kill(self, process: Process, why: str) -> None:
        """Let a process die where it stands."""
        if process.is_alive:
            process.is_alive = False
            self.trace("kill", process.name, why)
            tasks = [task for task in self.tasks if task.process is process]
            self.remove(process)
            self.on_killed(process)
            self._end(tasks)

    def point(self, process: Process, what: str) -> None:
        """Pass a point where the code under test touches the world."""
        self._refuse_strangers()
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
            raise Killed(process.name)
        task = self._task
        if task is None or chance >= rates.kill + rates.pause + rates.preempt:
            return
        if chance < rates.kill + rates.pause:
            self.counters["pause"] += 1
            seconds = self.random.choice((0.05, 0.5, 5.0))
            self.trace("pause", process.name, what, seconds)
            process.paused_until = self.now + seconds
            self._hold_up(task, process)
            self.trace("wakes", process.name, what)
        else:
            self.counters["preempt"] += 1
            task.wakes_after = self.steps + self.random.randrange(1, 6)
            self._hold_up(task, process)

    def _refuse_strangers(self) -> None:
        """Keep out a thread that another test left: it found the world in a module's globals."""
        if threading.get_ident() != self._thread:
            self.strangers.append("".join(traceback.format_stack()))
            raise RuntimeError("a simulated world is for the thread that made it")

    def sleep(self, process: Process, seconds: float) -> None:
        """Let others run while a task waits."""
        self._refuse_strangers()
        if not process.is_alive:
            raise Killed(process.name)
        if self._task is not None:
            self._task.wakes_at = self.now + seconds
            self._hold_up(self._task, process)
            return
        until = self.now + seconds
        while self.now < until:
            self.step()

    def step(self) -> bool:
        """Run one step of a task that is ready, or let time pass; return whether one ran."""
        self.steps = steps = self.steps + 1
        self._looks = 0
        self.now = now = self.now + STEP_SECONDS[int(self.random.random() * len(STEP_SECONDS))]
        ready = [
            task
            for task in self.tasks
            if task.wakes_at <= now
            and task.process.paused_until <= now
            and task.wakes_after <= steps
        ]
        if not ready:
            times = [max(task.wakes_at, task.process.paused_until) for task in self.tasks]
            self.now = max(now, min(times, default=now + 0.01))
            return False
        task = ready[int(self.random.random() * len(ready))]
        step, task.held_up = task.held_up, None
        self._task = task
        try:
            if step is None:
                step = self._free.pop() if self._free else greenlet(self._run_each)
                step.parent = getcurrent()
                step.switch(task)
            else:
                step.switch()
        finally:
            self._task = None
        self.after_step()
        return True

    def _run_each(self, task: Task) -> None:
        """Run a task's step, then those of others; end with the first that was killed."""
        here = getcurrent()
        while self._run(task):
            self._free.append(here)
            task = here.parent.switch()

    def _run(self, task: Task) -> bool:
        began = self.now
        try:
            is_idle = task.step() is False
            task.woken = [at for at in task.woken if at > began]
            if is_idle:
                rested = self.now + self.random.random() * task.rests_seconds
                task.wakes_at = min(rested, *task.woken) if task.woken else rested
        except Killed:
            if task.process.is_alive:
                raise
            return False
        return True

    def _hold_up(self, task: Task, process: Process) -> None:
        """Go on with the others; return when the task's turn has come again."""
        task.held_up = getcurrent()
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            task.held_up.parent.switch()
        finally:
            asyncio._set_running_loop(loop)
        if not process.is_alive:
            raise Killed(process.name)

    def _end(self, tasks: list[Task]) -> None:
        """Let steps that are held up end where they stand: their processes are dead."""
        running, loop = self._task, asyncio._get_running_loop()
        for task in tasks:
            step, task.held_up = task.held_up, None
            if step is not None:
                # It comes back here.
                step.parent, self._task = getcurrent(), task
                step.throw(Killed(task.process.name))
        self._task = running
        asyncio._set_running_loop(loop)


class SimulatedLock:
    """Stands in for a lock between two threads of a process: who waits for it lets others run."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        """Begin released."""
        self._scheduler, self._process = scheduler, process
        self._is_held = False

    def acquire(self, timeout: float = math.inf) -> bool:
        """Take it; return False if it isn't free in time."""
        deadline = self._scheduler.now + timeout
        while self._is_held:
            if self._scheduler.now >= deadline:
                return False
            self._scheduler.sleep(self._process, 0.02)
        self._is_held = True
        return True

    def release(self) -> None:
        """Give it back."""
        self._is_held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()
