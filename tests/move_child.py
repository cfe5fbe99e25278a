"""Moves a log, and ends by SIGKILL at a point that its parent names."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commitlog.adapters import kafka_moved, kafka_restore
from commitlog.adapters.kafka_moved import Moves
from commitlog.adapters.kafka_restore import RestoredTopics
from commitlog.adapters.kafka_settings import ClientSettings
from consumers.tools import move


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner: Any, name: str, times: int = 1) -> Callable[[], None]:
    """Have a function end the process once it has done its work so often."""
    whole, left = getattr(owner, name), iter(range(times - 1))

    def patched(*given: Any, **named: Any) -> Any:
        found = whole(*given, **named)
        if next(left, None) is None:
            die()
        return found

    return lambda: setattr(owner, name, patched)


def half(owner: Any) -> Callable[[], None]:
    """Have only the first of both topics be set, then end the process."""
    whole = owner.set_topics

    def patched(admin: Any, names: Any, settings: Any) -> None:
        whole(admin, names[:1], settings)
        die()

    return lambda: setattr(owner, "set_topics", patched)


POINTS = {
    "half of the partitions copied": after(RestoredTopics, "put", 3),
    "departure noted": after(Moves, "_append"),
    "one topic closed": half(kafka_moved),
    "all copied": after(move, "_copy", 2),
    "proved": after(move, "prove"),
    "arrived": after(Moves, "arrive"),
    "one topic finished": half(kafka_restore),
    "finished": after(RestoredTopics, "finish"),
}
BACK = ("one topic reopened", "reopened", "arrived")
POINTS["one topic reopened"] = half(kafka_restore)
POINTS["reopened"] = after(RestoredTopics, "reopen")


def main(old: str, new: str, log: str, root: str, point: str) -> None:
    move.CLOSED_SECONDS = 0.3  # these clusters have one broker
    POINTS[point]()
    move.move(ClientSettings(old, {}), ClientSettings(new, {}), log, new, Path(root))


if __name__ == "__main__":
    main(*sys.argv[1:])
