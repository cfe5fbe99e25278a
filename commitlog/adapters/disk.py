"""Files of this machine that outlast a power cut, where that is asked for.

What was written is on the disk once the file was synced, and its name once its folder was; a folder
that was made just now has a name in the one above, too. Until then a power cut may leave the file
empty, torn, under its old name or without any.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from commitlog.model.limits import READ_BYTES_MAX

_lock = threading.Lock()
_kept_folders: set[str] = set()
"""Folders whose own names are on the disk."""
TEMPORARY = re.compile(r".*\.tmp-([0-9]+)-[0-9]+")
"""The name of a file that is still being written, with its process."""
_NOT_KEPT = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL}
)
"""What a system says of a file that isn't there, or that this process cannot sync."""
AWAY = frozenset(
    {
        *(errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
    }
)
"""What is said of a file while the server of its file system is away."""
_ADVICE = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "let this process read and write there"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space there"),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "move away the file that is no folder"),
    errno.EISDIR: "move away the folder that has a file's name",
    errno.ENXIO: "move away what is no file, but a pipe or a socket",
    errno.EROFS: "mount it for writing",
    errno.ENODEV: "mount its disk, or put it back where it was",
    errno.EFBIG: "move such a file away, or let this process write larger ones (ulimit -f)",
    errno.EIO: "see what the system's log says of that disk",
    errno.EMFILE: "let this process have more files open (ulimit -n)",
    errno.ENFILE: "let this system have more files open (fs.file-max)",
    **dict.fromkeys(AWAY, "its file system doesn't answer; look at the mount"),
}
_counter = itertools.count()
_OF_THE_DISK = "lost+found"
"""The file system's own folder at the top of a disk, which only root may list."""


def beside(path: str) -> str:
    """Return a unique name for a file that is still being written."""
    return f"{path}.tmp-{os.getpid()}-{next(_counter)}"


def put_new(path: str, data: bytes, *, durable: bool) -> None:
    """Put a new file in as few calls to the system as there can be; sync it, not its folder."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if durable:
            os.fsync(descriptor)
    except OSError as error:
        error.filename = path  # the call itself knows none
        discard(path)
        raise
    finally:
        os.close(descriptor)


TO_READ = os.O_RDONLY | os.O_NONBLOCK
"""How a file is opened that may be a pipe: a reader would wait for one, perhaps for ever."""


def no_file(path: str, mode: int) -> OSError:
    """Return the error of what has a file's name and is none."""
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.ENXIO
    return OSError(number, os.strerror(number), path)


def unreadable(path: str, found: os.stat_result) -> OSError:
    """Return the error of what has a file's name and is none, or is too large to be in memory."""
    if stat.S_ISREG(found.st_mode):
        return OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return no_file(path, found.st_mode)


def opened(path: str) -> int:
    """Open a file to be read; raise OSError of a pipe or a device."""
    descriptor = os.open(path, TO_READ)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise no_file(path, mode)


def digest(path: str) -> str:
    """Return a file's SHA-256; if it is too large to be read, that of what tells it from others."""
    with open(opened(path), "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_size <= READ_BYTES_MAX:
            return hashlib.file_digest(file, "sha256").hexdigest()
    told = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return hashlib.sha256(repr(told).encode()).hexdigest()


_marks: dict[str, str] = {}
"""Paths that were there, by the folder that each says is still the same."""


@contextlib.contextmanager
def expecting(folder: str, mark: str) -> Iterator[None]:
    """Make no folder in one of this machine's, for as long, once the path that marks it is gone.

    Where a disk isn't mounted any more, or a folder was moved, there is another one.
    """
    _marks[folder] = mark
    try:
        yield
    finally:
        _marks.pop(folder, None)


def expect_there(path: str) -> None:
    """Raise OSError of a path in a folder that isn't the one that was expected."""
    for folder, mark in list(_marks.items()):
        if f"{path}/".startswith(f"{folder}/") and not os.path.exists(mark):
            raise OSError(errno.ENODEV, "It isn't there any more", folder)


def make_folder(path: str) -> None:
    """Make a folder, and those above it, unless it is there."""
    expect_there(path)
    os.makedirs(path, exist_ok=True)


_KEYS_REFUSED = re.compile(
    "<Code>(AccessDenied|ExpiredToken|InvalidAccessKeyId|InvalidToken|RequestTimeTooSkewed|"
    "SignatureDoesNotMatch)</Code>"
)
"""By these codes S3 refuses keys, or a clock. Lance's error has them among its retries."""
_HEAD_REFUSED = re.compile(r"performing HEAD .*(?:400 Bad Request|403 Forbidden)")
"""Keys that have expired are 400. An answer to HEAD has no code that would say so."""


def refused_keys(said: str) -> tuple[str, str]:
    """Return why a store refuses keys, by S3's code, and what to do; empty if it doesn't."""
    if not (refused := _KEYS_REFUSED.search(said)):
        return "", ""
    is_clock = refused[1] == "RequestTimeTooSkewed"
    mend = "set this machine's clock right" if is_clock else "give this process keys that are valid"
    return refused[1], mend


def advice(error: OSError) -> str:
    """Return what to do about what a system or store says of a file; empty if that is plain."""
    if error.errno:
        return _ADVICE.get(error.errno, "")
    said = str(error)
    if _HEAD_REFUSED.search(said):
        return (
            "a store answers so if keys have expired or may not read there, or if the region or"
            " this machine's clock is wrong: correct that, and start this process again"
        )
    code, mend = refused_keys(said)
    return f"{code}: {mend}" if code else ""


def advice_for(said: str) -> str:
    """Return what to do about a system's words that a library repeats; empty if there are none."""
    return next((advice for code, advice in _ADVICE.items() if os.strerror(code) in said), "")


def with_advice(error: BaseException) -> str:
    """Return what an error says and, of files or memory, what to do about it."""
    if isinstance(error, MemoryError):
        said = f" ({error})" if str(error) else ""
        return f"memory ran out{said}: free some, give this process more, or ask for less at once"
    said = advice(error) if isinstance(error, OSError) else ""
    return f"{error}: {said}" if said else str(error)


def or_no_files(advice: str) -> str:
    """Return what to do where Kafka's client says nothing of why it can't connect.

    It tries for ever to open what this process may not have open any more.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return f"Nothing more can be opened here: {with_advice(error)}"
    return advice


_AT_CWD, _RENAME_NOREPLACE, _RENAME_EXCHANGE = -100, 1, 2
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK})
"""What a system says without hard links, or if another user's file may get none."""


@cache
def _renameat2() -> Any:
    """Return what renames with conditions; None on a system without it."""
    import ctypes  # writers start without it

    return getattr(ctypes.CDLL(None), "renameat2", None)


def _is_renamed(new: str, path: str, how: int) -> bool:
    rename = _renameat2()
    ends = (_AT_CWD, os.fsencode(new), _AT_CWD, os.fsencode(path))
    return rename is not None and rename(*ends, how) == 0


def discard(path: str) -> None:
    """Remove a file that is of no use any more; one that stays is no reason to fail."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def replace(new: str, path: str) -> None:
    """Give a new file another one's name; if that fails, the new one goes."""
    try:
        os.replace(new, path)
    except OSError:
        discard(new)
        raise


def take_place(new: str, path: str) -> None:
    """Give a new file another one's name, as `replace` does, but with no word to the disk.

    ext4 writes a file out before it replaces another, which takes longer than all the rest; where
    both swap their names it doesn't. So a power cut may leave the file empty.
    """
    if _is_renamed(new, path, _RENAME_EXCHANGE):
        discard(new)
    else:
        replace(new, path)


def take_free(new: str, path: str) -> None:
    """Give a file a name that no other one has; raise FileExistsError."""
    try:
        os.link(new, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if not _is_renamed(new, path, _RENAME_NOREPLACE):
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            raise
    else:
        discard(new)


def keep(path: str) -> None:
    """Sync a file that somebody else may have written, and its name."""
    sync(path)
    keep_name(path)


def keep_if_there(path: str) -> None:
    """Sync a file and its name, if there is one that this process can sync."""
    with _if_it_can():
        keep(path)


def keep_name(path: str) -> None:
    """Sync the names that lead to a file, as far as this process can."""
    folder = os.path.dirname(path)
    with _if_it_can():
        sync(folder)
    made = []
    while folder not in _kept_folders and (above := os.path.dirname(folder)) != folder:
        with _if_it_can():
            sync(above)
        made.append(folder)
        folder = above
    if made:
        with _lock:
            _kept_folders.update(made)


@contextlib.contextmanager
def _if_it_can() -> Iterator[None]:
    """Pass over what isn't there, is closed to this process, or can't be synced at all."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NOT_KEPT:
            raise


def sync(path: str | os.PathLike[str]) -> None:
    """Make a file's bytes, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


OnError = Callable[[OSError], None]


def raised(error: OSError) -> None:
    """Raise an error."""
    raise error


def walk(top: str, on_error: OnError = raised) -> Iterator[tuple[str, list[str]]]:
    """Yield a folder and those below it, each with the names of its files.

    A folder that can't be listed is no empty one: its error is raised, or given to `on_error`. What
    goes away meanwhile is passed over.
    """

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            on_error(error)

    for folder, below, names in os.walk(top, onerror=failed):
        if folder == top and _OF_THE_DISK in below:
            below.remove(_OF_THE_DISK)
        yield folder, names
