"""Programs that a test runs to their end, in a process of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def ended(
    command: Sequence[str | Path], *, timeout: float = 600, check: bool = False, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with options of `subprocess.run`; return what it printed, too."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=check, **more
    )


def lines_of(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], seconds: float
) -> list[str]:
    """Return what a program printed, line by line; fail with the end of its errors if it fails."""
    done = ended(command, env={**os.environ, **env}, cwd=cwd, timeout=seconds)
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()
