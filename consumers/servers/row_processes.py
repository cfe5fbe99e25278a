"""Work that may take a process down, in processes of their own.

Pylance is native code: one of its panics, or one request for too much memory, ends the process that
it is in. So such work is done in children, one piece at a time in each. A child that dies costs the
piece that it was at, and the next piece starts another one.

Work is small and many ask for it, so the event loop itself talks to the children: no thread stands
between a request and its rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any, TypeAlias

from commitlog.errors import CommitLogError, Unavailable
from consumers.runtime.forking import CAN_FORK, START_SECONDS, Forked, Template
from consumers.runtime.process import NICENESS, be_nice
from consumers.servers import row_process
from consumers.servers.row_process import HEAD_BYTES, frame_bytes, packed, unpacked

END_SECONDS = 5.0
YIELD_SECONDS = 1.0
"""What takes longer gets less of the processors than commits and short work do, until it ends."""
_SMALL_BYTES = 65536
"""Answers up to this are received where the ones before them were."""

logger = logging.getLogger(__name__)

_Process: TypeAlias = "Forked | subprocess.Popen[bytes]"


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """How many children there are, and what each may take."""

    processes: int = 4
    memory_bytes: int = 2 * 1024**3
    wait_seconds: float = 30.0
    """How long a piece of work waits for a free child."""
    spare: int = 0
    """Children beyond those that are asked at a time: one that died takes a while to come back."""
    imports: tuple[str, ...] = ()
    """Modules that children share, so that each starts with them."""


class WorkLost(CommitLogError):
    """A child ended before it answered; what it was at may have been done."""


class RowProcesses:
    """Children that all do the same kind of work, asked in one event loop."""

    def __init__(
        self,
        factory: str,
        argument: Any,
        settings: ProcessSettings,
        template: Template | None = None,
    ) -> None:
        """Have each child make its handler by `factory`, "module:function", of `argument`.

        A `template` that has the imports may be there already; it is ended with the children.
        """
        self._settings = settings
        self.count = settings.processes
        """How many children may be asked at a time."""
        self._templates = _Templates(settings.imports, template)
        self._children = [
            _Child(self._templates, (factory, argument, settings.memory_bytes))
            for _ in range(settings.processes + settings.spare)
        ]
        self._free: asyncio.LifoQueue[_Child] = asyncio.LifoQueue()
        """The last one used has the most in its caches; who came first is served first."""
        self._starting: set[asyncio.Task[None]] = set()
        for child in self._children:
            self._free.put_nowait(child)

    def warm(self) -> None:
        """Start a child in the background: the first piece of work need not wait for that."""
        threading.Thread(target=self._warm, name="row-process", daemon=True).start()

    async def ask(self, work: Any, seconds: float) -> Any:
        """Return the answer to a piece of work.

        Raises WorkLost if its child died, or took longer than that and was ended; Unavailable if
        no child was free, and nothing was done.
        """
        child = await self._take()
        yields = asyncio.get_running_loop().call_later(YIELD_SECONDS, child.yield_to_others)
        try:
            return await child.ask(work, seconds)
        finally:
            yields.cancel()
            child.yield_no_longer()
            if child.is_ready:
                self._free.put_nowait(child)
            else:  # the next piece of work takes another one, if there is one
                task = asyncio.get_running_loop().create_task(self._start_again(child))
                self._starting.add(task)
                task.add_done_callback(self._starting.discard)

    async def _start_again(self, child: _Child) -> None:
        try:
            started = asyncio.get_running_loop().run_in_executor(None, child.start)
        except RuntimeError:
            return  # the loop is ending, and has no threads any more
        try:
            await started
        except Unavailable as error:
            logger.warning("%s", error)
        finally:
            self._free.put_nowait(child)

    def pids(self) -> list[int]:
        """Return the ids of the children that run."""
        return [child.pid for child in self._children if child.pid is not None]

    def close(self) -> None:
        """End the children. From any thread."""
        for child in self._children:
            child.end()
        self._templates.close()

    async def _take(self) -> _Child:
        if not self._free.empty():
            return self._free.get_nowait()
        try:
            async with asyncio.timeout(self._settings.wait_seconds):
                return await self._free.get()
        except TimeoutError as error:
            # `RowTurns` lets no more work in than there are children, so some have to start again.
            raise Unavailable(
                "the server's processes for work on rows aren't there yet; try again in a while"
            ) from error

    def _warm(self) -> None:
        try:
            self._children[-1].start()  # who is taken first
        except Unavailable as error:
            logger.warning("%s", error)


class _Templates:
    """The template that children are forked from, started again if it died."""

    def __init__(self, imports: tuple[str, ...], template: Template | None) -> None:
        self._imports, self._template = imports, template
        self._is_over = False
        self._starting = threading.Lock()

    def start(self, connection: socket.socket) -> _Process:
        """Start a child that answers on a connection; OSError, EOFError."""
        number = connection.fileno()
        shown = ("-P", "-m", row_process.__name__, str(number))
        if not CAN_FORK:
            return subprocess.Popen(
                [sys.executable, *shown],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(number,),
                start_new_session=True,
            )
        answers = f"{row_process.__name__}:answer_on"
        return self._running().fork(answers, number, inherited=[number], shown=shown)

    def _running(self) -> Template:
        with self._starting:
            if self._is_over:
                raise EOFError("the server ends")
            if self._template is not None and not self._template.is_running:
                self._template.close()
                self._template = None
            self._template = self._template or Template(self._imports)
            return self._template

    def close(self) -> None:
        self._is_over = True
        with self._starting:
            if self._template is not None:
                self._template.close()


class _Child:
    """One process and the connection to it; one task at a time asks it."""

    def __init__(self, templates: _Templates, made_of: tuple[str, Any, int]) -> None:
        self._templates, self._made_of = templates, made_of
        self._process: _Process | None = None
        self._socket: socket.socket | None = None
        """The connection to a process that was started and not asked yet."""
        self._channel: _Channel | None = None
        self._is_over = self._is_nice = False
        self._starting = threading.Lock()

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def is_ready(self) -> bool:
        """Whether it can be asked at once."""
        return self._channel is not None and self._channel.is_idle

    def yield_to_others(self) -> None:
        """Have it get less of the processors."""
        if self.pid is not None and be_nice(NICENESS, self.pid):
            self._is_nice = True

    def yield_no_longer(self) -> None:
        """Have it get as much as others again, as far as that is allowed."""
        if self._is_nice and self.pid is not None and be_nice(0, self.pid):
            self._is_nice = False

    def start(self) -> None:
        """Start it unless it runs; Unavailable if it can't. It takes a while."""
        with self._starting:
            if self._socket is None or self.pid is None:
                self._start()

    def _start(self) -> None:
        self._reap(self.close())
        self._is_nice = False
        problem = ""
        try:
            ours, theirs = socket.socketpair()
            self._socket = ours
            with theirs:
                self._process = self._templates.start(theirs)
            problem = "the server ends" if self._is_over else ""
            if not problem:
                ours.settimeout(START_SECONDS)
                row_process.send(ours, self._made_of)
                problem = row_process.receive(ours)
                ours.setblocking(False)
        except (EOFError, OSError) as error:
            problem = f"it ended as it started, or took over {START_SECONDS:g} s: {error}"
        if problem:
            self._reap(self.close())
            raise Unavailable(f"the process for work on rows can't start: {problem}")

    async def ask(self, work: Any, seconds: float) -> Any:
        """Return its answer; WorkLost if there is none in time."""
        channel = self._channel
        if channel is None or channel.is_over:
            channel = await self._connect()
        try:
            async with asyncio.timeout(seconds):
                return await channel.ask(work)
        except TimeoutError:
            raise WorkLost(f"it took over {seconds:g} s and was ended; ask for less") from None
        except OSError as error:
            reason = await asyncio.to_thread(self._ended)
            logger.error("a process for work on rows ended: %s", reason)
            raise WorkLost(f"the process that did the work ended: {reason}") from error
        finally:
            if not channel.is_idle:  # it works, but no request waits for it
                self._channel = None
                channel.end()
                self.close()

    async def _connect(self) -> _Channel:
        await asyncio.to_thread(self.start)
        opened, self._socket = self._socket, None
        if opened is None:
            raise WorkLost("the server ends")
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(_Channel, sock=opened)
        self._channel = channel
        return channel

    def end(self) -> None:
        """Kill it for good, whatever it is at, and though it may be starting just now."""
        self._is_over = True
        self._reap(self.close())

    def close(self) -> _Process | None:
        """Kill it; return what may be waited for. Its end ends the connection."""
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()
        process = self._process
        if process is not None:
            process.kill()
        return process

    @staticmethod
    def _reap(process: _Process | None) -> None:
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)

    def _ended(self) -> str:
        process = self._process
        if process is None:
            return "the server ends"
        try:
            code = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        if code >= 0:
            return f"it exited with {code}"
        with contextlib.suppress(ValueError):
            return f"by {signal.Signals(-code).name}"
        return f"by signal {-code}"


class _Channel(asyncio.BufferedProtocol):
    """A connection in the event loop: one piece of work, then its answer."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._small = self._frame = bytearray(_SMALL_BYTES)
        self._filled = 0
        self.is_over = False

    @property
    def is_idle(self) -> bool:
        """Whether the next piece of work can be sent."""
        return self._answer is None and not self.is_over

    async def ask(self, work: Any) -> Any:
        """Send a piece of work and return its answer; ConnectionError if the child ended."""
        if self.is_over or self._transport is None:
            raise ConnectionResetError
        answer = self._answer = asyncio.get_running_loop().create_future()
        for piece in packed(work):
            self._transport.write(piece)
        return await answer

    def end(self) -> None:
        """Close the connection, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError())

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < HEAD_BYTES:
            return
        total = frame_bytes(self._frame)
        if total > len(self._frame):
            self._frame = bytearray(total)
            self._frame[: self._filled] = self._small[: self._filled]
        if self._filled < total:
            return
        frame = self._frame if self._frame is not self._small else self._frame[:total]
        self._frame, self._filled = self._small, 0
        # What can't be unpacked ends the connection, which tells who waits.
        found = unpacked(memoryview(frame))
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(found)
