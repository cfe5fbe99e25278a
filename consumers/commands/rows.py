"""`commitlog rows`: applies small writes of rows."""

from __future__ import annotations

import threading
from pathlib import Path

from commitlog.errors import InvalidSettings
from consumers.commands.options import HERE, Where, connect_client
from consumers.runtime.process import OnReady, run_part


def rows(*, where: Where = HERE, age_ms: int = 50, writes_max: int = 5_000) -> None:
    """Apply accepted writes of rows to their tables, in groups.

    Any number may run for one log; `commitlog up` runs one by itself.

    Parameters
    ----------
    age_ms
        How long writes to a table are gathered, from one group to the next.
    writes_max
        How many writes one group has at most.
    """
    from consumers.tools.row_writer import RowWriter, RowWriterOptions

    for name, value in (("age_ms", age_ms), ("writes_max", writes_max)):
        if value < 1:
            raise InvalidSettings(f"--{name.replace('_', '-')} is {value}; it is 1 or more")
    config = where.load()
    root = config.root or Path.cwd()

    def work(stop: threading.Event, on_ready: OnReady) -> None:
        with connect_client(config, "rows") as log:
            on_ready("")
            RowWriter(log, RowWriterOptions(age_ms / 1000, writes_max)).run(stop)

    run_part("rows", root, work)
