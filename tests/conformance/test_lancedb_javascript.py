"""LanceDB's JavaScript client, unmodified, against the server: the scripts beside this assert.

`lancedb_methods.mjs` fails if a release of the client adds a method, until the method is tried.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.child import ended
from tests.namespace_world import World

PACKAGES = ("@lancedb/lancedb@0.39.0", "apache-arrow@18.1.0")
SCRIPTS = ("lancedb_remote.mjs", "lancedb_methods.mjs")
INSTALL_SECONDS, RUN_SECONDS = 300, 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the client installed; the test is skipped where that can't be."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm aren't on this machine, so the JavaScript client is not tested")
    # Installed once, into this Python's environment: npm takes seven seconds of CPU each time.
    key = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:12]
    kept = Path(sys.prefix) / f"tests-javascript-{key}"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=sys.prefix) as scratch:
            _install(Path(scratch) / "npm")
            with suppress(OSError):  # another run was quicker
                (Path(scratch) / "npm").rename(kept)
    made = tmp_path_factory.mktemp("npm")
    (made / "node_modules").symlink_to(kept / "node_modules")
    for script in SCRIPTS:
        shutil.copy(Path(__file__).with_name(script), made)
    return made


def _install(into: Path) -> None:
    into.mkdir()
    (into / "package.json").write_text('{"private": true}')
    try:
        installed = ended(
            ["npm", "install", "--no-audit", "--no-fund", *PACKAGES],
            cwd=into,
            timeout=INSTALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        pytest.skip("npm could not install the JavaScript client in time, so it is not tested")
    if installed.returncode:
        pytest.skip(f"npm could not install the JavaScript client: {installed.stderr[-300:]}")


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_javascript_client_works_unmodified(world: World, folder: Path, script: str) -> None:
    ran = ended(
        ["node", script, world.uri, "k-0123456789abcdef", world.fresh_name()],
        cwd=folder,
        timeout=RUN_SECONDS,
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "done"), ran.stderr[-3000:]
