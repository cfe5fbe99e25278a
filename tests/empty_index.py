"""Lets version indices of tests begin with a copy of an empty file: making one takes 0.25 s of CPU.

A service that is started by a command line, not forked, makes its own, as users' do.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from consumers.views.version_index import live
from consumers.views.version_index.layout import Layout
from consumers.views.version_index.live import Live


def copying(empty: Path) -> Any:
    """Return the patch that copies `empty`, which the first index to need it makes."""
    opened, create = live._opened, Live.create

    def open_copy(layout: Layout, begin: Callable[[Live], None]) -> Live:
        if begin is not create:
            return opened(layout, begin)
        try:
            if not empty.exists():
                _make(empty)
            shutil.copyfile(empty, layout.live)
        except OSError:  # what a full disk does to DuckDB is DuckDB's to tell
            layout.live.unlink(missing_ok=True)
            return opened(layout, begin)
        return opened(layout, lambda one: one.set_meta("root", str(layout.root)))

    return mock.patch.object(live, "_opened", open_copy)


def _make(empty: Path) -> None:
    with tempfile.TemporaryDirectory(dir=empty.parent) as folder:
        layout = Layout(Path(folder))
        layout.folder.mkdir()
        one = Live(layout)
        one.create()
        one.query("CHECKPOINT live")
        one.close()
        os.replace(layout.live, empty)
