"""Jars that only tests need: pinned by coordinates and sha256, fetched once into the cache.

One line per jar, `group:artifact:version[:classifier] sha256`. PySpark's Ivy fetches them, from its
default repository or as the settings file says that COMMITLOG_IVY_SETTINGS names.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from consumers.broker import find_java
from consumers.broker.jars import cache_root

FETCH_SECONDS = 600
_MAVEN = "http://ant.apache.org/ivy/maven"


class JarsUnavailable(Exception):
    """The jars could not be fetched, or are not what was pinned."""


class Unreachable(JarsUnavailable):
    """No registry answers."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar by coordinates and content."""

    group: str
    artifact: str
    version: str
    classifier: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The jar's name in the cache."""
        tail = f"-{self.classifier}" if self.classifier else ""
        return f"{self.group}--{self.artifact}-{self.version}{tail}.jar"


def pinned(pins: Path) -> tuple[Jar, ...]:
    """Read a file of pins."""
    jars = []
    for line in pins.read_text(encoding="utf-8").splitlines():
        content = line.partition("#")[0].strip()
        if content:
            coordinates, sha256 = content.split()
            group, artifact, version, *classifier = coordinates.split(":")
            jars.append(Jar(group, artifact, version, "".join(classifier), sha256))
    return tuple(jars)


def folder_of(pins: Path) -> Path:
    """Return where the jars are kept, whether they are there or not."""
    jars = pinned(pins)
    contents = "".join(f"{jar.file_name} {jar.sha256}\n" for jar in jars)
    return cache_root() / f"{pins.stem}-{hashlib.sha256(contents.encode()).hexdigest()[:12]}"


def is_whole(folder: Path, jars: tuple[Jar, ...]) -> bool:
    """Tell whether a folder holds exactly the pinned jars."""
    expected = {jar.file_name: jar.sha256 for jar in jars}
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return present == expected.keys() and all(
        hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha256
        for name, sha256 in expected.items()
    )


def fetch(pins: Path) -> Path:
    """Return the folder of the pinned jars, fetching them first if the cache has none."""
    jars = pinned(pins)
    folder = folder_of(pins)
    if is_whole(folder, jars):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=folder.parent) as scratch:
        fetched = Path(scratch) / "jars"
        _run_ivy(Path(scratch), jars, fetched)
        if not is_whole(fetched, jars):
            raise JarsUnavailable("fetched jars differ from the pins, and were thrown away")
        shutil.rmtree(folder, ignore_errors=True)
        fetched.rename(folder)
    return folder


def _run_ivy(scratch: Path, jars: tuple[Jar, ...], into: Path) -> None:
    modules: dict[tuple[str, str, str], list[str]] = {}
    for jar in jars:
        modules.setdefault((jar.group, jar.artifact, jar.version), []).append(jar.classifier)
    wanted = ""
    for (group, artifact, version), classifiers in modules.items():
        own = f"org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)}"
        files = ""
        for classifier in classifiers:
            more = f" m:classifier={quoteattr(classifier)}" if classifier else ""
            files += f'<artifact name={quoteattr(artifact)} type="jar" ext="jar"{more}/>'
        wanted += f"<dependency {own}>{files}</dependency>"
    (scratch / "ivy.xml").write_text(
        f'<ivy-module version="2.0" xmlns:m="{_MAVEN}"><info organisation="local" module="pinned"/>'
        f"<dependencies>{wanted}</dependencies></ivy-module>"
    )
    (scratch / "ivysettings.xml").write_text(
        '<ivysettings><settings defaultResolver="central"/><resolvers>'
        '<ibiblio name="central" m2compatible="true" usepoms="false"/>'
        "</resolvers></ivysettings>"
    )
    import pyspark

    found = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    settings = os.environ.get("COMMITLOG_IVY_SETTINGS") or str(scratch / "ivysettings.xml")
    command = [str(find_java().path), "-jar", str(found[-1]), "-settings", settings]
    command += ["-cache", str(scratch / "cache"), "-ivy", str(scratch / "ivy.xml")]
    command += ["-types", "jar", "-retrieve"]
    command += [str(into / "[organisation]--[artifact]-[revision](-[classifier]).[ext]")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
    )
    if not into.is_dir():
        raise Unreachable(f"the jars could not be fetched:\n{done.stdout[-2_000:]}")
