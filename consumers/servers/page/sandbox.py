"""Takes away from this process what it doesn't need: writing files, connecting, growing.

On Linux the kernel holds it to that (Landlock), whatever a library is talked into; elsewhere the
limits of resources remain, and DuckDB's own settings.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct
import sys
from collections.abc import Iterable

MEMORY_BYTES = 4 << 30
"""Address space; DuckDB uses a part of it."""
FILES_MAX = 256

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_CHANGES_OF_FOLDERS = 0b1_1111_1111 << 4
"""Removing and making of all kinds of entries."""
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_NETWORK = 0b11
"""Binding and connecting."""
_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/proc", "/sys", "/etc/ld.so.cache"),
    # Not all of /dev: programs put what they share into /dev/shm.
    *("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"),
)


def limit_resources() -> None:
    """Let this process write no file, and use so much memory and no more."""
    wanted = [
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, FILES_MAX),
    ]
    if sys.platform == "linux":
        wanted.append((resource.RLIMIT_AS, MEMORY_BYTES))
    for what, most in wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))


def allow_reading_only(paths: Iterable[str]) -> bool:
    """Let this process read below these paths and the system's libraries, and do nothing else.

    Returns whether the kernel does so. There is no way back.
    """
    if sys.platform != "linux":
        return False
    kernel = ctypes.CDLL(None, use_errno=True)
    version = kernel.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    if version < 1:
        return False
    reading = _READ_FILE | _READ_DIR
    handled = _EXECUTE | _WRITE_FILE | reading | _CHANGES_OF_FOLDERS
    handled |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("QQ", handled, _NETWORK if version >= 4 else 0)
    ruleset = kernel.syscall(_CREATE_RULESET, attributes, len(attributes) if version >= 4 else 8, 0)
    if ruleset < 0:
        return False
    try:
        for path in {*paths, *_SYSTEM, sys.prefix, sys.base_prefix, *filter(None, sys.path)}:
            _allow(kernel, ruleset, path, reading)
        kernel.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return bool(kernel.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(kernel: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what isn't there needs no rule
    try:
        is_folder = os.path.isdir(path)
        rule = struct.pack("=Qi", access if is_folder else access & _READ_FILE, descriptor)
        kernel.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
