"""Has a Ctrl-C wait until pylance is imported, which takes a second at a program's first call.

A process can't begin that import again: pylance's machine code panics when it is loaded a second
time, and modules that were half made may stay. Each later call would fail.
"""

from __future__ import annotations

import signal
import sys
import threading


def import_pylance() -> None:
    """Import pylance as a whole; a Ctrl-C that came meanwhile is the caller's afterwards."""
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if "lance" in sys.modules or not (is_main and callable(handler)):
        return  # nothing interrupts the caller's own import
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        import lance  # noqa: F401
    finally:
        signal.signal(signal.SIGINT, handler)
    if pressed:
        signal.raise_signal(signal.SIGINT)
