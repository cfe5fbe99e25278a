"""Programs that a test runs to their end, in a process of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def lines_of(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], seconds: float
) -> list[str]:
    """Return what a program printed, line by line; fail with the end of its errors if it fails."""
    done = subprocess.run(
        command,
        env={**os.environ, **env},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()
