"""Runs Iceberg's REST Compatibility Kit: `python -m tests.conformance.iceberg_kit [URI]`.

Without a URI it starts the catalogue over memory. Needs Java 17+ and Maven, which fetches the kit.
Ends with 0 only if no test failed; prints how many were skipped or aborted, and which failed.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from consumers.iceberg_catalog import IcebergSettings
from tests.fakes.iceberg_memory import MemoryIcebergService
from tests.iceberg_server import serving

_POM = Path(__file__).parent / "data" / "iceberg-kit-pom.xml"
_SUITE = "org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests"
_FETCH_SECONDS = 600
_RUN_SECONDS = 600
_SETTINGS = {
    "rck.local": "false",
    "rck.requires-namespace-create": "true",
    "rck.supports-names-with-dot": "true",
    "rck.supports-variant": "true",
}


def run(uri: str, folder: Path) -> int:
    """Run the kit against a catalogue; return how many tests failed, or -1 if none could run."""
    java, maven = shutil.which("java"), shutil.which("mvn")
    if java is None or maven is None:
        print("skipped: the kit needs java and mvn on the path")
        return -1
    shutil.copy(_POM, folder / "pom.xml")
    fetch = [maven, "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=classpath"]
    subprocess.run(fetch, cwd=folder, check=True, timeout=_FETCH_SECONDS)
    settings = {**_SETTINGS, "uri": uri, "warehouse": f"file://{folder}"}
    command = [
        java,
        *(f"-D{name}={value}" for name, value in settings.items()),
        "-cp",
        (folder / "classpath").read_text(),
        "org.junit.platform.console.ConsoleLauncher",
        "execute",
        f"--select-class={_SUITE}",
        "--details=summary",
        "--disable-banner",
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False
    )
    found = {what: int(n) for n, what in re.findall(r"\[\s*(\d+) tests (\w+)\s*\]", done.stdout)}
    if not found:
        print(done.stdout[-2_000:], done.stderr[-2_000:])
        return -1
    for failed in re.findall(r"^  JUnit Jupiter:\w+:(.+)$", done.stdout, re.MULTILINE):
        print(f"failed: {failed}")
    print(", ".join(f"{count} {what}" for what, count in found.items()))
    return found["failed"]


@contextlib.contextmanager
def _catalogue(folder: Path) -> Iterator[str]:
    if len(sys.argv) > 1:
        yield sys.argv[1]
        return
    service = MemoryIcebergService(time_ms=time.time_ns() // 1_000_000)
    with serving(service, IcebergSettings(f"file://{folder}/warehouse")) as server:
        yield f"{server.uri}/"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, _catalogue(Path(name)) as address:
        sys.exit(1 if run(address, Path(name)) else 0)
