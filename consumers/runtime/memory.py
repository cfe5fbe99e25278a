"""How much memory a process of the service keeps that it doesn't use."""

from __future__ import annotations

import ctypes
import sys
import threading

ARENAS, TRIM_SECONDS = 2, 10.0
"""What the allocator may spread its memory over, and how often it gives back what is free. A
millisecond gives back two megabytes, so that is asked for before much has gathered."""
_M_ARENA_MAX = -8


def keep_memory_small(stop: threading.Event) -> None:
    """Have the system's allocator keep little of what was freed, until `stop`.

    Each thread has glibc take memory from another arena, and what Lance and protobuf free in them
    stays with the process: half of its memory after ten minutes of small commits.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if not (hasattr(library, "malloc_trim") and hasattr(library, "mallopt")):
        return  # not glibc
    library.mallopt(_M_ARENA_MAX, ARENAS)

    def trim() -> None:
        while not stop.wait(TRIM_SECONDS):
            library.malloc_trim(0)

    threading.Thread(target=trim, name="memory", daemon=True).start()
