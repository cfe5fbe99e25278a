"""What a forked child may do with its parent's connections: nothing, not even free them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any


def keep_for_ever(value: Any) -> None:
    """Never free an object: Kafka's client would wait for threads that a fork left behind."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def on_fork(in_child: Callable[[], None]) -> None:
    """Call something in each child, before anything else runs there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)
