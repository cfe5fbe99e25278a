"""Get the Iceberg clients that aren't Python's: `python -m infra.iceberg_clients`.

DuckDB's extension is made for one release of DuckDB, so both get a virtual environment of their own
in the cache; DuckDB itself checks the extension's signature. The program over iceberg-go is built
once and kept in the cache, too: that takes two minutes of CPU where Go has compiled none of it yet.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from consumers.broker.jars import cache_root

DUCKDB = "1.5.5"
EXTENSIONS = ("avro", "httpfs", "iceberg")
GO_SOURCE = Path(__file__).with_name("iceberg_go")
NO_GO = "there is no Go 1.25 or newer, which iceberg-go needs: install it and put it on the PATH"
INSTALL_SECONDS = 900
BUILD_SECONDS = 1_200


def duckdb_python() -> Path:
    """Return a Python that has DuckDB and its Iceberg extension; install it if it isn't there."""
    home = cache_root() / f"duckdb-iceberg-{DUCKDB}"
    python = home / "bin" / "python"
    done = home / "installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
        uv = Path(sys.executable).with_name("uv")
        wanted = [f"duckdb=={DUCKDB}"]
        wanted += [f"duckdb-extension-{name}=={DUCKDB}" for name in EXTENSIONS]
        command = [str(uv), "pip", "install", "-q", "--python", str(python), *wanted]
        subprocess.run(command, check=True, timeout=INSTALL_SECONDS)
        done.touch()
    return python


def find_go() -> str | None:
    """Return the Go command, None if this machine has none."""
    return shutil.which("go") or shutil.which("/usr/local/go/bin/go")


def go_program(go: str) -> Path:
    """Return the program over iceberg-go, built from modules that go.sum pins."""
    digest = hashlib.sha256()
    for path in sorted(GO_SOURCE.iterdir()):
        digest.update(path.read_bytes())
    target = cache_root() / f"iceberg-go-{digest.hexdigest()[:12]}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        built = target.with_name(f"{target.name}.{os.getpid()}")
        command = [go, "build", "-ldflags", "-s -w", "-o", str(built), "."]
        subprocess.run(command, cwd=GO_SOURCE, check=True, timeout=BUILD_SECONDS)
        built.rename(target)
    return target


if __name__ == "__main__":
    print(duckdb_python())
    found = find_go()
    print(go_program(found) if found else NO_GO)
