"""Python environments of what only some tests need: each file of pins has its own in the cache."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from consumers.broker.errors import JarMismatch, JarsUnavailable
from consumers.broker.jars import cache_root, locked

LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"
INSTALL_SECONDS = 900


def python(pins: Path) -> Path:
    """Return the Python of an environment, whether it is there or not."""
    return cache_root() / pins.stem / "bin" / "python"


def packages(pins: Path) -> Path:
    """Return the folder that an environment's packages are imported from."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return cache_root() / pins.stem / "lib" / version / "site-packages"


def fetch(pins: Path) -> None:
    """Install what a file pins by versions and hashes, if it isn't there; one process at a time.

    Raises:
        JarsUnavailable: no registry answers, or another process took too long.
    """
    installed, text = packages(pins) / pins.name, pins.read_text(encoding="utf-8")
    deadline = time.monotonic() + INSTALL_SECONDS
    with locked(cache_root() / f"{pins.stem}.lock", deadline, None):
        if not installed.exists() or installed.read_text(encoding="utf-8") != text:
            _install(pins)
            installed.write_text(text, encoding="utf-8")


def _install(pins: Path) -> None:
    home = python(pins).parents[1]
    subprocess.run(
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(home)], check=True
    )
    given = ["--require-hashes", "--no-deps", "-r", str(pins.absolute())]
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install"]
    uv += ["--python", str(python(pins)), "--build-constraints", str(LOCK)]
    pip = [sys.executable, "-m", "pip", "--python", str(python(pins)), "install"]
    # A mirror may be known to pip alone. Of the project's own settings uv heeds none there.
    said = ""
    for program in (uv, pip):
        done = subprocess.run(
            [*program, *given],
            cwd=home,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
        if done.returncode == 0:
            return
        said = done.stderr[-2_000:]
        if "hash" in said.lower():
            raise JarMismatch(f"what {pins.name} pins differs:\n{said}")
    raise JarsUnavailable(f"what {pins.name} pins could not be installed:\n{said}")
