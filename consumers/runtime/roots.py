"""A root: the folder that one `commitlog up` owns, with its lock.

The holder of the lock owns the root. The children inherit it, so that a new `up` waits until the
last process of a killed one is gone.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

from commitlog.adapters import disk
from commitlog.errors import CommitLogError
from consumers.runtime import locks
from consumers.runtime.config import ConfigurationError

LOCK_FILE = "up.lock"
HTTP_PORT_FILE = "http-port"
RESTORING = "restoring.json"
"""Is in a root until a backup is restored to it in whole."""
_LISTEN_BACKLOG = 128
_UNWRITABLE = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST),
        *(errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP),
    }
)


class RootInUse(CommitLogError):
    """Another process has this root, or a part of it: use it, stop it, or choose another root."""


class RootUnusable(CommitLogError):
    """The root cannot be written: make room or change its permissions, then start again."""


class RootAway(RootUnusable):
    """The disk or store of a root doesn't answer; at another start it may."""


class PortTaken(CommitLogError):
    """Another process listens on the port: stop it, or choose another port."""


class PartFailed(CommitLogError):
    """A part of `commitlog up` ended for good: what it said, or its log, says why."""

    def __init__(self, message: str, *, code: int = 0) -> None:
        """Keep the part's exit code, if another start would end with it too."""
        super().__init__(message)
        self.code = code


def unusable(said: str, error: OSError) -> RootUnusable:
    """Return the error for a root whose disk or store failed; an object store's has no number."""
    is_away = error.errno in disk.AWAY or (type(error) is OSError and error.errno is None)
    return (RootAway if is_away else RootUnusable)(said)


@contextlib.contextmanager
def usable(root: Path) -> Iterator[None]:
    """Turn the system's refusals to write into the error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RootUnusable(
                f"the disk of {root} is full: free some and start again; nothing that was"
                " acknowledged is lost"
            ) from error
        if error.errno in _UNWRITABLE:
            advice = f"({error.strerror}): change its permissions, or choose another root"
            if error.errno == errno.EROFS:
                advice = f"({error.strerror}): mount it for writing, or choose another root"
            if error.errno == errno.ENOENT:
                advice = f"({error.strerror}): put it back, or choose another root"
            if os.path.isfile(root):
                advice = "because it is a file: choose a folder as the root"
            raise RootUnusable(f"{root} cannot be written {advice}") from error
        raise


def made(root: Path) -> Path:
    """Return a root that is there, made if need be; RootUnusable if it can't be."""
    with usable(root):
        root.mkdir(parents=True, exist_ok=True)
    return root


def take(root: Path) -> int:
    """Make the root if need be and take its lock; the descriptor returned holds it.

    Raises:
        RootInUse: another `commitlog up` has it, and lives.
        RootUnusable: it cannot be written, or a restore to it did not finish.
    """
    with usable(made(root)):
        if (root / RESTORING).exists():
            raise RootUnusable(
                f"a restore to {root} did not finish: run the same `commitlog restore` again"
            )
        lock = os.open(root / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    if not locks.inherited(lock):
        owner = locks.owner(lock)
        os.close(lock)
        raise RootInUse(
            f"`commitlog up` already runs on {root} (process {owner}): use it with"
            f" --root {shlex.quote(str(root))}, stop it, or choose another root"
        )
    with usable(root):
        locks.sign(lock)
    return lock


def listen(host: str, port: int, *, root: Path | None = None) -> socket.socket:
    """Listen on a port; 0 is the port that the root had before, if free, or any.

    Raises:
        PortTaken: somebody else listens there, or the address is none of this machine's.
        ConfigurationError: it can't be an address.
    """
    if port == 0 and root is not None:
        kept = _kept_port(root)
        if kept:
            with contextlib.suppress(PortTaken):
                return listen(host, kept)
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With the protocol named, asyncio sets TCP_NODELAY: answers don't wait 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            # Connections of an earlier server that only linger don't count.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_LISTEN_BACKLOG)
        except BaseException:
            listener.close()
            raise
    except UnicodeError as error:
        raise ConfigurationError(f"host cannot be {host!r}: {error}") from error
    except OSError as error:
        advice = "name an address of this machine by --host"
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            advice = (
                "end the process that uses the port, or choose another one with --port (0 picks a"
                " free one)"
            )
        why = error.strerror or error
        raise PortTaken(f"cannot listen on {host}:{port} ({why}): {advice}") from error
    if root is not None:
        with usable(root):
            (root / HTTP_PORT_FILE).write_text(f"{listener.getsockname()[1]}\n")
    return listener


def host_in_url(host: str) -> str:
    """Return a host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def _kept_port(root: Path) -> int:
    try:
        return int((root / HTTP_PORT_FILE).read_text())
    except (OSError, ValueError):
        return 0


def is_loopback(host: str) -> bool:
    """Return True if only programs of this machine can reach what listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
