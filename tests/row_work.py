"""What processes for work on rows do in tests; each of them imports this, and little else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pickle import PickleBuffer
from typing import Any


def handler(argument: Any) -> Callable[[Any], Any]:
    """Return what the children do."""
    if argument == "broken":
        raise ValueError("it is broken")
    return _do


def _do(work: tuple[str, Any]) -> Any:
    what, value = work
    if what == "abort":
        os.abort()
    if what == "exit":
        os._exit(value)
    if what == "take":
        return len(bytearray(value))
    if what == "unreadable":
        return Unreadable()
    if what == "native":
        return _panic_of_lance()
    if what == "sleep":
        time.sleep(value)
    while what == "until" and not os.path.exists(value):
        time.sleep(0.01)
    if isinstance(value, memoryview):
        return PickleBuffer(value)
    return os.getpid() if what == "pid" else value


class Unreadable:
    """What can be sent, and not read where it arrives."""

    def __reduce__(self) -> Any:
        return _unread, ()


def _unread() -> Any:
    raise ValueError("nobody can read it")


def _panic_of_lance() -> Any:
    """Have Lance panic where nothing can catch it: a field whose name Arrow can't export."""
    import lance
    import pyarrow as pa

    schema = pa.schema([pa.field("a", pa.int64())])
    dataset = lance.write_dataset(pa.table({"a": [1]}, schema=schema), "memory://t")
    dataset.add_columns({"b\0c": "a + 1"})
    return dataset.to_table().num_rows
