"""What every long-running part has in common: its log, its stop, its end with its parent.

A part that `commitlog up` started holds one end of a socket pair (its lifeline): it says there
that it is ready, and ends when the other end is gone. On Linux the kernel ends it too, so that a
part that hangs doesn't outlive a supervisor that was killed.

Signals are noticed by a thread that reads the interpreter's wake-up pipe: the main thread may be
deep in a library that doesn't return to Python for seconds.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import logging.handlers
import os
import queue
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path

from commitlog.adapters.disk import advice, with_advice
from commitlog.errors import LogMoved, Unavailable
from consumers.runtime.config import ConfigurationError
from consumers.runtime.forking import die_with_parent
from consumers.runtime.log_lines import VARIABLE, JsonLines
from consumers.runtime.memory import keep_memory_small
from consumers.runtime.steady_clock import stop_when_set_back

LIFELINE = "COMMITLOG_SUPERVISOR_FD"
GARBAGE_THRESHOLDS = (50_000, 20, 50)
NICENESS, NICENESS_FIXED = 10, 3
_OWN_NICENESS = os.getpriority(os.PRIO_PROCESS, 0)
"""What this process began with, since somebody may have started it by `nice`."""
LOG_BYTES_MAX = 16 * 1024 * 1024
LOG_FILES = 2
WAIT_SECONDS = 0.25
WAIT_SECONDS_MAX = 5.0
"""From one try to reach Kafka or a leader to the next."""
GRACE_SECONDS = 4.0
"""How long a part may take to end after its supervisor is gone."""
END_SECONDS, SUPERVISED_END_SECONDS = 9.0, 3.8
"""How long it may take to end when it is to; a supervisor waits a little longer."""
_PENDING_LINES_MAX = 10_000
_FLUSH_SECONDS = 0.5

logger = logging.getLogger(__name__)

OnReady = Callable[[str], None]


class Stopped(BaseException):
    """A signal came while something was still being started."""


_may_leave, _is_signalled = threading.Event(), threading.Event()
hurried = threading.Event()
"""A second signal came: what may still take a while is to end at once."""
AGAIN_SECONDS = 0.5
"""From a first signal to what counts as a second: a wrapper may pass on what its child got, too."""


@contextlib.contextmanager
def left_by_signals() -> Iterator[None]:
    """Have a signal end the part by Stopped if its main thread waits in here, or comes here later.

    Where other signals are handled, and in other threads, nothing is different.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main:
        _may_leave.set()
    try:
        if is_main and _is_signalled.is_set():
            raise Stopped
        yield
    finally:
        if is_main:
            _may_leave.clear()


def _leave() -> None:
    _is_signalled.set()
    if _may_leave.is_set():
        _may_leave.clear()  # what is closed on the way out isn't left by a second signal
        raise Stopped


def run_part(
    name: str,
    root: Path,
    work: Callable[[threading.Event, OnReady], None],
    *,
    niceness: int = 0,
    is_client: bool = True,
    drain_seconds: float = 0,
) -> None:
    """Run a part's work until it returns; it gets an event to end by and whom to tell "ready".

    With a `niceness` it gets less of a processor that others want too. A client of Kafka ends if
    the clock is set back. After a signal it may serve for `drain_seconds`.
    """
    configure_logging(name, root)
    _allow_many_files()
    if niceness:
        be_nice(niceness)
    # What a part keeps is hardly ever garbage: looking for some took a fifth of the leader's time.
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    stop = threading.Event()
    keep_memory_small(stop)
    lifeline = _take_lifeline()
    if lifeline is not None:
        threading.Thread(
            target=_end_with_supervisor, args=(lifeline, stop), name="lifeline", daemon=True
        ).start()
    stop_on_signals(stop, on_signal=_leave)
    has_ended, set_back = threading.Event(), stop_when_set_back(stop) if is_client else []
    seconds = END_SECONDS if lifeline is None else SUPERVISED_END_SECONDS
    ending = (name, stop, has_ended, drain_seconds, seconds, set_back)
    threading.Thread(target=_end_by_force, args=ending, name="end", daemon=True).start()

    def on_ready(address: str) -> None:
        logger.info("%s is ready%s", name, f" at {address}" if address else "")
        if lifeline is None:
            print(f"ready {name} {address}".rstrip(), flush=True)
        else:
            with contextlib.suppress(OSError):
                lifeline.sendall(f"{address or '-'}\n".encode())

    logger.info("%s starts (process %d)", name, os.getpid())
    try:
        _work_patiently(name, work, stop, on_ready, is_patient=lifeline is not None)
        if set_back:
            raise Unavailable(set_back[0])
    except Stopped:
        logger.info("%s was stopped while it started", name)
    except Exception as error:
        logger.error("%s ends: %s", name, _in_one_line(error))
        raise
    finally:
        has_ended.set()
    logger.info("%s has ended", name)


def _in_one_line(error: Exception) -> str:
    """Return what an error says, also if a library's message in it has several lines."""
    return " ".join(with_advice(error).split())


def ending(code: int) -> str:
    """Say how a process ended: by an exit code, or below 0 by a signal."""
    if code >= 0:
        return f"exit code {code}"
    why = ", as the system ends what takes too much memory" if code == -signal.SIGKILL else ""
    return f"signal {signal.Signals(-code).name}{why}"


def _allow_many_files() -> None:
    """Let this process have as many files open as the system lets it: each writer is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _work_patiently(
    name: str,
    work: Callable[[threading.Event, OnReady], None],
    stop: threading.Event,
    on_ready: OnReady,
    *,
    is_patient: bool,
) -> None:
    """Work until `stop`; begin again, in this process, when Kafka, a leader or a disk was away.

    A part started by hand reports a wrong address at once: only a supervised part waits for
    what it has never reached.
    """
    pause, was_ready = WAIT_SECONDS, False

    def ready(address: str) -> None:
        nonlocal pause, was_ready
        pause, was_ready = WAIT_SECONDS, True
        on_ready(address)

    while True:
        try:
            return work(stop, ready)
        except LogMoved as error:
            if not is_patient:
                raise
            # The broker of the same supervisor may be what the log is being moved from.
            logger.error("%s has stopped working: %s", name, error)
            stop.wait()
            return None
        except (Unavailable, OSError) as error:
            if isinstance(error, OSError):
                # A disk that is full, or has lost a folder: what ran may run again by itself, and
                # the service needn't end meanwhile. What never ran says at once what it lacks.
                if not was_ready or not (error.filename or advice(error)):
                    raise
            elif not (is_patient or was_ready):
                raise
            logger.warning("%s starts again in %.2g s: %s", name, pause, _in_one_line(error))
        gc.collect()  # what it had read of the log: by itself, Python may keep it for months
        if stop.wait(pause):
            return None
        pause = min(2 * pause, WAIT_SECONDS_MAX)


def stop_on_signals(
    stop: threading.Event,
    *,
    on_signal: Callable[[], None] | None = None,
    stirred: threading.Event | None = None,
) -> None:
    """Set `stop` at SIGTERM and SIGINT; `on_signal` runs on the main thread and may raise.

    `stirred` is set then, too, and when a child process has ended; `hurried` at a second signal.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def handle(number: int, frame: object) -> None:
        if on_signal is not None:
            on_signal()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    if stirred is not None:
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def watch() -> None:
        again_from = inf
        while True:
            received = os.read(woken, 64)
            if {signal.SIGTERM, signal.SIGINT} & set(received):
                if time.monotonic() > again_from:
                    hurried.set()
                again_from = min(again_from, time.monotonic() + AGAIN_SECONDS)
                stop.set()
            if stirred is not None:
                stirred.set()

    threading.Thread(target=watch, name="signals", daemon=True).start()


def configure_logging(name: str, root: Path | None) -> None:
    """Log to standard error, and to ROOT/NAME.log if there is a root; ConfigurationError."""
    form = os.environ.get(VARIABLE, "")
    if form not in ("", "json", "text"):
        raise ConfigurationError(f"{VARIABLE} cannot be {form!r}; it is json or text (the default)")
    # A full disk or a closed terminal is no reason to end.
    logging.raiseExceptions = False
    logging.Formatter.converter = time.gmtime
    line = logging.Formatter(
        f"%(asctime)s.%(msecs)03dZ %(levelname)-7s {name}: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    handlers: list[logging.Handler] = [_StandardError()]
    if root is not None:
        with contextlib.suppress(OSError):
            handlers.append(
                logging.handlers.RotatingFileHandler(
                    root / f"{name}.log",
                    maxBytes=LOG_BYTES_MAX,
                    backupCount=LOG_FILES,
                    encoding="utf-8",
                    errors="backslashreplace",
                )
            )
    for handler in handlers:
        handler.setFormatter(JsonLines(name) if form == "json" else line)
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    for noisy in ("asyncio", "uvicorn", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def has_begun() -> bool:
    """Return True in a part that has begun: its log, on standard error too, says what ends it."""
    return any(isinstance(one, _StandardError) for one in logging.getLogger().handlers)


def be_nice(niceness: int, pid: int | None = None) -> bool:
    """Get less of a processor than others, with all threads; return False if that isn't allowed.

    The niceness is added to what this process began with. With a process's id, that one gets it,
    and what ends meanwhile is none.

    Being less nice than before takes a privilege. Where Linux groups processes by session, niceness
    tells apart those of one session alone, and the group has a niceness of its own.
    """
    own = pid or os.getpid()
    tasks = Path(f"/proc/{own}/task")
    try:
        threads = [int(task.name) for task in tasks.iterdir()] if tasks.is_dir() else [pid or 0]
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, thread, _OWN_NICENESS + niceness)
        if os.getsid(own) == own:
            with contextlib.suppress(FileNotFoundError):
                Path(f"/proc/{own}/autogroup").write_text(str(niceness))
    except OSError:
        return False
    return True


def yielding() -> Callable[[bool], object]:
    """Return what has this process be nice, or not, from now on; at first it isn't.

    Where it may not be less nice again, it is a little nice for ever.
    """
    if be_nice(1) and be_nice(0):
        return lambda to_others: be_nice(NICENESS if to_others else 0)
    be_nice(NICENESS_FIXED)
    return lambda to_others: None


def _take_lifeline() -> socket.socket | None:
    number = os.environ.pop(LIFELINE, None)
    if number is None:
        return None
    lifeline = socket.socket(fileno=int(number))
    lifeline.set_inheritable(False)
    die_with_parent()
    return lifeline


def _end_with_supervisor(lifeline: socket.socket, stop: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while lifeline.recv(64):
            pass
    stop.set()
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def _end_by_force(
    name: str,
    stop: threading.Event,
    has_ended: threading.Event,
    drain_seconds: float,
    seconds: float,
    set_back: Sequence[str],
) -> None:
    """End a part that may be killed at any time, if its work waits for a silent Kafka or disk."""
    stop.wait()
    hurried.wait(drain_seconds)
    if has_ended.wait(seconds):
        return
    why = set_back[0] if set_back else "it waited for something that didn't answer"
    logger.log(logging.ERROR if set_back else logging.INFO, "%s ends: %s", name, why)
    logging.shutdown()
    os._exit(3 if set_back else 0)  # as Unavailable ends a command


class _StandardError(logging.Handler):
    """Writes from a thread of its own: a reader that doesn't read stops only itself."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[bytes] = queue.Queue(_PENDING_LINES_MAX)
        threading.Thread(target=self._write, name="stderr", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line over; it is dropped if the reader is too far behind."""
        with contextlib.suppress(queue.Full):
            line = self.format(record).encode(errors="backslashreplace")
            self._lines.put_nowait(line + b"\n")

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            with contextlib.suppress(OSError):
                os.write(2, line)
            self._lines.task_done()

    def flush(self) -> None:
        """Wait a moment for what is still to be written."""
        deadline = time.monotonic() + _FLUSH_SECONDS
        while self._lines.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.005)
