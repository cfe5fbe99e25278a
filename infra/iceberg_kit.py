"""Run Iceberg's REST Compatibility Kit: `python -m infra.iceberg_kit [URI]`.

Without an address it starts `commitlog up` in a temporary folder and tests that. The kit's jars are
fetched once, by the coordinates and checksums in `iceberg-kit-jars.txt`, into the same cache as
Kafka's. Prints what failed and how many tests passed, were aborted and were skipped; ends with 0
only if none failed but the one that asks for what only Java has.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from consumers.broker.java import find_java
from infra.maven_jars import fetch

PINS = Path(__file__).with_name("iceberg-kit-jars.txt")
SUITES = (
    "org.apache.iceberg.rest.RESTCompatibilityKitCatalogTests",
    "org.apache.iceberg.rest.RESTCompatibilityKitViewCatalogTests",
)
JAVA_ONLY = "createViewErrorCases()"
"""It wants the name of a Java exception in the answer to a wrong request."""
RUN_SECONDS = 1100
TABLES_ROOT = Path("/tmp")
"""The kit asks for some of its tables to lie there, at `file:/tmp/NAMESPACE/TABLE`. They are left
there, as with any catalogue: that folder is everybody's, so nothing in it is removed by name."""
_SETTINGS = {
    "rck.local": "false",
    "rck.requires-namespace-create": "true",
    "rck.supports-names-with-dot": "true",
    "rck.supports-variant": "true",
}


class KitFailed(Exception):
    """The kit could not be run."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the kit said."""

    counts: dict[str, int]
    """How many tests were `found`, `successful`, `failed`, `aborted`, `skipped`."""
    failures: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(f"{count} {what}" for what, count in self.counts.items())


def run(uri: str, jars: Path) -> Result:
    """Run the kit against a catalogue whose tables root is `TABLES_ROOT`."""
    settings = {**_SETTINGS, "uri": f"{uri.rstrip('/')}/", "warehouse": str(TABLES_ROOT)}
    command = [
        str(find_java().path),
        *(f"-D{name}={value}" for name, value in settings.items()),
        "-cp",
        f"{jars}/*",
        "org.junit.platform.console.ConsoleLauncher",
        "execute",
        *(f"--select-class={suite}" for suite in SUITES),
        "--details=summary",
        "--disable-banner",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    counts = {w: int(n) for n, w in re.findall(r"\[\s*(\d+) tests (\w+)\s*\]", done.stdout)}
    if not counts:
        raise KitFailed(f"the kit did not run:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    failures = re.findall(r"^  JUnit Jupiter:\w+:(.+)$", done.stdout, re.MULTILINE)
    return Result(counts, tuple(failures))


@contextlib.contextmanager
def service(root: Path) -> Iterator[str]:
    """Run `commitlog up` on a root; yield its address."""
    command = [sys.executable, "-P", "-m", "consumers.cli", "up", "--root", str(root)]
    command += ["--tables-root", str(TABLES_ROOT), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            said = up.stdout.readline().split()
            if len(said) < 2:
                raise KitFailed("the service did not start: see its output above")
            yield said[1]
        finally:
            up.terminate()


def main() -> int:
    """Fetch, run, print."""
    jars = fetch(PINS)
    with tempfile.TemporaryDirectory(prefix="iceberg-kit-") as name:
        root = Path(name)
        named = sys.argv[1:]
        with contextlib.nullcontext(named[0]) if named else service(root) as uri:
            result = run(uri, jars)
    for failure in result.failures:
        print(f"failed: {failure}")
    print(result)
    return 1 if set(result.failures) - {JAVA_ONLY} else 0


if __name__ == "__main__":
    sys.exit(main())
