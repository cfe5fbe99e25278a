"""What a command leaves that Ctrl-C or SIGTERM ended, and how to continue."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence

_NOTHING = "nothing is changed; run it again"
_LEFT = {
    "archive": "each segment that it wrote counts; run it again: it continues after the last one",
    "backup": "an earlier backup there is intact; run it again: it continues",
    "doctor": _NOTHING,
    "erase": "run it without --where: it continues what is recorded, or says that nothing is",
    "move": "run it again: it continues",
    "orphans": "some files may be removed, all of them unneeded; run it again: it continues",
    "properties": "it may have been done; run it again: done twice, it has the same effect",
    "replay": "run it again with the same --into: it continues",
    "restore": "`commitlog up` refuses what is there; run it again: it continues",
    "rollback": "it may have been done; run it again: it does nothing if it was",
    "rules": "it may have been done; run it again: done twice, it has the same effect",
    "tag": "it may have been done; run it again: done twice, it has the same effect",
    "undrop": "it may have been done: `commitlog tables` tells",
    "upgrade": _NOTHING,
    "verify": "nothing is changed; run it again: with --root or --state, it continues",
}


def left_by(arguments: Sequence[str]) -> str:
    """Return what to say of an interrupted command; nothing of one that only asks or runs on."""
    command = arguments[0] if arguments else ""
    is_look = {"--check", "--dry-run"} & set(arguments)
    if command in _LEFT and (is_look or (command == "orphans" and "--remove" not in arguments)):
        return f"{command}: interrupted; {_NOTHING}"
    return f"{command}: interrupted; {_LEFT[command]}" if command in _LEFT else ""


def say_when_stopped(arguments: Sequence[str]) -> None:
    """Say that at SIGTERM, too, and end of it as a process that doesn't handle it.

    Nothing is unwound, since that may take longer than who stops it waits: what a killed command
    leaves is good to continue with.
    """
    if not (text := left_by(arguments)) or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    process = os.getpid()

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() == process:  # not a fork of it
            with contextlib.suppress(OSError):  # nobody reads it any more
                os.write(2, f"{text}\n".encode())  # `print` may be what was interrupted
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(128 + number)  # a container's first process isn't ended by that

    signal.signal(signal.SIGTERM, end)
