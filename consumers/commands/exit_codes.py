"""What the program's exit code tells a script: one code per thing that it would do next.

An error that is not in the table is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import errno
from enum import IntEnum

from commitlog.adapters import disk
from consumers.commands.output import visible

_NAMELESS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE}
)
"""What counts without a file's name, too: of standard output, say, or a socket."""


class ExitCode(IntEnum):
    """The codes."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    UNAVAILABLE = 3
    UNKNOWN = 4
    STOP = 5
    MACHINE = 6
    BUG = 70
    INTERRUPTED = 130


MEANING = {
    ExitCode.OK: "done",
    ExitCode.REFUSED: "refused, or a check failed: correct the request",
    ExitCode.USAGE: "wrong flag or setting",
    ExitCode.UNAVAILABLE: (
        "Kafka, leader or network doesn't answer, or memory ran out: try again later"
    ),
    ExitCode.UNKNOWN: "no answer in time; it may be committed: ask again with the same id",
    ExitCode.STOP: "the log contradicts itself or its settings: stop, run `commitlog doctor`",
    ExitCode.MACHINE: "this machine: port or root in use, disk full, no Java",
    ExitCode.BUG: "a bug in this program",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
}

_Kinds = type[BaseException] | tuple[type[BaseException], ...]


def _table() -> tuple[tuple[_Kinds, ExitCode], ...]:
    # Loaded when something went wrong: the broker's errors come with Kafka's client.
    from commitlog import errors
    from commitlog.java import NoJava
    from consumers.broker import errors as broker
    from consumers.commands.on_spark import SparkEnded
    from consumers.runtime.config import ConfigurationError
    from consumers.runtime.places import RootMoved
    from consumers.runtime.roots import PartFailed, PortTaken, RootAway, RootInUse, RootUnusable

    # The first match counts: subclasses stand before their bases.
    return (
        (ConfigurationError, ExitCode.USAGE),
        (RootAway, ExitCode.UNAVAILABLE),
        ((RootInUse, PortTaken, RootUnusable, RootMoved), ExitCode.MACHINE),
        ((PartFailed, SparkEnded), ExitCode.UNAVAILABLE),
        (errors.InvalidSettings, ExitCode.USAGE),
        (errors.OutcomeUnknown, ExitCode.UNKNOWN),
        (errors.StorageUnwritable, ExitCode.MACHINE),
        (errors.Unavailable, ExitCode.UNAVAILABLE),
        ((errors.WrongLog, errors.TopicSettings), ExitCode.STOP),
        ((errors.CorruptLog, errors.UnsupportedFormat), ExitCode.STOP),
        ((broker.BrokerHasNoJava, NoJava), ExitCode.MACHINE),
        ((broker.PortInUse, broker.DiskFull, broker.BrokerRunning), ExitCode.MACHINE),
        ((broker.TooFewFiles, broker.CacheUnwritable), ExitCode.MACHINE),
        (broker.RootUnsuitable, ExitCode.USAGE),
        (broker.JarMismatch, ExitCode.STOP),
        (broker.BrokerError, ExitCode.UNAVAILABLE),
        (errors.CommitLogError, ExitCode.REFUSED),
        (MemoryError, ExitCode.UNAVAILABLE),  # not MACHINE: `up` starts such a part again
        (KeyboardInterrupt, ExitCode.INTERRUPTED),
    )


def exit_code(error: BaseException) -> ExitCode:
    """Return the code of an error; BUG for one that is none of ours."""
    from commitlog.errors import InvalidRequest

    if isinstance(error, InvalidRequest) and error.field == "COMMITLOG_LANE":
        return ExitCode.USAGE  # what the table imports would only raise it again
    from consumers.runtime.roots import PartFailed

    if isinstance(error, PartFailed) and error.code:
        # The part's code is the whole's.
        return ExitCode(error.code)
    for kind, code in _table():
        if isinstance(error, kind):
            return code
    if isinstance(error, RuntimeError) and str(error) == "Query interrupted":
        return ExitCode.INTERRUPTED  # what DuckDB makes of Ctrl-C
    if isinstance(error, OSError) and error.filename and error.errno in disk.AWAY:
        return ExitCode.UNAVAILABLE
    if isinstance(error, OSError) and (error.filename or error.errno in _NAMELESS):
        return ExitCode.MACHINE
    if type(error) is OSError and error.errno is None:
        return ExitCode.UNAVAILABLE  # an object store's answer
    return ExitCode.BUG


def in_one_line(error: BaseException) -> str:
    """Return what an error says; the system's own begin with the file, or with both of a rename."""
    if isinstance(error, OSError):
        said = (error.strerror or str(error)).split("\n", 1)[0]
        if error.filename:
            names = f"{error.filename} -> {error.filename2}" if error.filename2 else error.filename
            said = f"{names}: {said}"
        return visible(f"{said} ({advice})" if (advice := disk.advice(error)) else said)
    # Other programs' messages may point at a place in the line above.
    lines = (line.strip() for line in disk.with_advice(error).splitlines())
    return visible(" ".join(line for line in lines if line.strip("^")))


def is_final(code: int) -> bool:
    """Return True if a part that ended with this code would only fail again."""
    return code in (ExitCode.REFUSED, ExitCode.USAGE, ExitCode.STOP, ExitCode.MACHINE)
