"""Get the Iceberg clients that aren't Python's: `python -m infra.iceberg_clients`.

DuckDB's extension is made for one release of DuckDB, so both get a virtual environment of their own
in the cache; DuckDB itself checks the extension's signature. The programs over iceberg-go and
iceberg-rust are built once and kept in the cache, too: each takes two to three minutes of CPU where
nothing of it is compiled yet. The tests build the first themselves, the second only here.
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
RUST_SOURCE = Path(__file__).with_name("iceberg_rust")
NO_RUST = (
    "there is no Cargo 1.94 or newer, which iceberg-rust needs: install it, put it on the PATH"
)
NO_RUST_PROGRAM = "the program over iceberg-rust isn't built: run `python -m infra.iceberg_clients`"
NO_GO = "there is no Go 1.25 or newer, which iceberg-go needs: install it and put it on the PATH"
INSTALL_SECONDS = 900
BUILD_SECONDS = 1_200
RUST_BUILD_SECONDS = 3_600


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
    target = _kept("iceberg-go", GO_SOURCE)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        built = target.with_name(f"{target.name}.{os.getpid()}")
        command = [go, "build", "-ldflags", "-s -w", "-o", str(built), "."]
        subprocess.run(command, cwd=GO_SOURCE, check=True, timeout=BUILD_SECONDS)
        built.rename(target)
    return target


def find_cargo() -> str | None:
    """Return the Cargo command, None if this machine has none."""
    return shutil.which("cargo") or shutil.which(Path.home() / ".cargo/bin/cargo")


def built_rust_program(source: Path = RUST_SOURCE) -> Path | None:
    """Return the program that a crate makes if it is built."""
    target = _kept(_crate(source), source)
    return target if target.exists() else None


def rust_program(cargo: str, source: Path = RUST_SOURCE) -> Path:
    """Return the program that a crate makes; build it if it isn't there."""
    target = _kept(_crate(source), source)
    if target.exists():
        return target
    # What is compiled on the way has 800 MB. It stays if it takes too long, and the next try
    # goes on from there.
    folder = target.with_name(f"{target.name}-making")
    shutil.copytree(source, folder, dirs_exist_ok=True)
    command = [cargo, "build", "--quiet", "--target-dir", str(folder / "made")]
    subprocess.run(command, cwd=folder, check=True, timeout=RUST_BUILD_SECONDS)
    (folder / "made" / "debug" / f"commitlog-{_crate(source)}").rename(target)
    shutil.rmtree(folder)
    return target


def _crate(source: Path) -> str:
    return source.name.replace("_", "-")


def _kept(name: str, source: Path) -> Path:
    """Return where a program is kept that is made of a folder's files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        digest.update(path.read_bytes())
    return cache_root() / f"{name}-{digest.hexdigest()[:12]}"


if __name__ == "__main__":
    print(duckdb_python())
    found = find_go()
    print(go_program(found) if found else NO_GO)
    cargo = find_cargo()
    print(rust_program(cargo) if cargo else NO_RUST)
