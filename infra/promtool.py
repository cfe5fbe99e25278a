"""Fetch Prometheus' promtool into the cache: `python -m infra.promtool`. It checks `infra/watch`.

Debian's package is taken apart, not installed: that takes a few seconds and no rights. Elsewhere Go
builds it, in five minutes of CPU.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from consumers.broker.jars import cache_root
from infra.iceberg_clients import find_go

PACKAGE = "prometheus"
MODULE, VERSION = "github.com/prometheus/prometheus", "v0.315.0"
FETCH_SECONDS = 600
BUILD_SECONDS = 3_600


def promtool_path() -> Path | None:
    """Return where a promtool is: on the PATH, or in the cache; None if there is none."""
    if found := shutil.which("promtool"):
        return Path(found)
    return kept if (kept := _kept()).exists() else None


def fetch() -> Path:
    """Return where one is, fetched or built if need be; RuntimeError if this machine can't."""
    if found := promtool_path():
        return found
    _kept().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_kept().parent) as folder:
        made = _from_debian(Path(folder)) or _by_go(Path(folder))
        if made is None:
            raise RuntimeError(f"there is no promtool: install {PACKAGE} or Go")
        made.replace(_kept())
    return _kept()


def _kept() -> Path:
    return cache_root() / "promtool"


def _from_debian(folder: Path) -> Path | None:
    def run(*command: str) -> bool:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=FETCH_SECONDS)
        return done.returncode == 0

    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    download = "apt-get", "download", PACKAGE
    # Its lists may be missing or old: root may fetch them.
    if not (run(*download) or (os.geteuid() == 0 and run("apt-get", "update") and run(*download))):
        return None
    [package] = folder.glob("*.deb")
    return folder / "usr/bin/promtool" if run("dpkg-deb", "-x", package.name, ".") else None


def _by_go(folder: Path) -> Path | None:
    if (go := find_go()) is None:
        return None
    made, program = folder / "promtool", f"{MODULE}/cmd/promtool"
    # Its module replaces others, which `go install` refuses.
    for arguments in (
        ["mod", "init", "promtool"],
        ["get", f"{program}@{VERSION}"],
        ["build", "-ldflags", "-s -w", "-o", str(made), program],
    ):
        subprocess.run([go, *arguments], cwd=folder, check=True, timeout=BUILD_SECONDS)
    return made


if __name__ == "__main__":
    try:
        print(fetch())
    except RuntimeError as error:
        sys.exit(str(error))
