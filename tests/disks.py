"""A small disk of a test's own, where the test may mount one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.child import ended


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a disk of this size ("8m") at a folder, or skip the test."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        made = ended(mount)
        problem = made.stderr.strip() if made.returncode else ""
    except OSError as error:  # no such command
        problem = str(error)
    if problem:
        pytest.skip(f"nothing may be mounted here: {problem}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
