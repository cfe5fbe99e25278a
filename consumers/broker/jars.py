"""Kafka's jars in the cache: fetched once, checked against the pins at every start.

`ensure_jars` returns a folder that holds exactly the pinned jars. The folder appears by one rename
after all checks, under a file lock, so processes may start together and be killed at any moment.

The Ivy that ships inside PySpark fetches them: no Maven, Docker or root is needed. It uses its own
default repository, or the settings file that COMMITLOG_IVY_SETTINGS names (a mirror, a proxy).
"""

import contextlib
import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from commitlog.java import Java
from consumers.broker.errors import CacheUnwritable, JarMismatch, JarsUnavailable
from consumers.broker.java import find_java
from consumers.broker.pins import KAFKA, Pin, mismatches, pin_of, pins_path, read_pins
from consumers.runtime.locks import taken

Progress = Callable[[str], None]

RESOLVE_TIMEOUT_SECONDS = 600.0
MAVEN = "http://ant.apache.org/ivy/maven"
# Of Kafka's closure: one that is not published, and one that only macros need while compiling.
NOT_NEEDED = (("org.apache.kafka", "kafka-tools-api"), ("org.scala-lang", "scala-reflect"))


def cache_root() -> Path:
    """Where fetched things are kept: COMMITLOG_CACHE, else the platform's cache folder.

    Raises CacheUnwritable if it is in a home folder, and this user has none.
    """
    try:
        return _cache_root()
    except RuntimeError:
        raise CacheUnwritable(
            "this user has no home folder to keep Kafka's jars in: name a folder by COMMITLOG_CACHE"
        ) from None


def _cache_root() -> Path:
    if named := os.environ.get("COMMITLOG_CACHE"):
        return Path(named).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "lance-commitlog"
    home = Path.home()
    user_cache = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    return user_cache / "lance-commitlog"


class JarSet(NamedTuple):
    """Jars that are fetched together, Kafka's unless said otherwise."""

    pins: tuple[Pin, ...]
    file: str
    """What the file of their pins is called."""
    what: str = "Kafka's jars"
    name: str = "jars"
    renewal: str = "regenerate them with `python -m consumers.broker --pin`"
    """How the pins are changed."""

    @property
    def folder(self) -> Path:
        """Where they are kept, whether they are there or not."""
        contents = "".join(f"{pin.file_name} {pin.sha256}\n" for pin in self.pins)
        return cache_root() / f"{self.name}-{hashlib.sha256(contents.encode()).hexdigest()[:12]}"


def ensure_jars(
    java: Java, jars: JarSet | None = None, *, on_progress: Progress | None = None
) -> Path:
    """Return the folder of the pinned jars, fetching them first if the cache has none.

    Raises:
        JarsUnavailable: they could not be fetched; check the network and call again.
        JarMismatch: what was fetched is not what was pinned; nothing of it is kept.
    """
    jars = jars or JarSet(read_pins(), pins_path().name)
    deadline = time.monotonic() + RESOLVE_TIMEOUT_SECONDS
    folder = jars.folder
    if not mismatches(folder, jars.pins):
        return folder
    _may_write(folder.parent, jars.what)
    with locked(folder.with_suffix(".lock"), deadline, on_progress):
        if not mismatches(folder, jars.pins):  # another process fetched them meanwhile
            return folder
        _fetch(java, jars, folder, deadline, on_progress)
    return folder


def _may_write(cache: Path, what: str) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if not os.access(cache, os.W_OK):
            raise PermissionError(errno.EACCES, "this user may not write there")
    except OSError as error:
        raise CacheUnwritable(
            f"{what} can't be kept in {cache} ({error.strerror}): name another folder by"
            " COMMITLOG_CACHE"
        ) from None


def _fetch(
    java: Java, jars: JarSet, folder: Path, deadline: float, on_progress: Progress | None
) -> None:
    with making(folder.parent, f"fetching-{folder.name}") as scratch:
        fetched = Path(scratch) / "jars"
        _run_ivy(java, Path(scratch), jars, fetched, deadline, on_progress)
        if wrong := mismatches(fetched, jars.pins):
            raise JarMismatch(
                f"fetched jars differ from the pins in {jars.file}, and were discarded: "
                f"{', '.join(wrong)}. Check the repository or mirror that served them; only if "
                f"the pins themselves are meant to change, {jars.renewal}"
            )
        # A damaged folder of an earlier fetch is in the way of the rename.
        shutil.rmtree(folder, ignore_errors=True)
        fetched.rename(folder)


def _run_ivy(
    java: Java,
    scratch: Path,
    jars: JarSet,
    into: Path,
    deadline: float,
    on_progress: Progress | None,
    *,
    closure: bool = False,
) -> None:
    """Fetch what is wanted, and with `closure` all that it needs to run, into a folder."""
    _write_ivy_files(scratch, jars.pins, closure)
    settings = os.environ.get("COMMITLOG_IVY_SETTINGS") or str(scratch / "ivysettings.xml")
    command = [str(java.path), "-jar", str(_ivy_jar()), "-settings", settings]
    command += ["-cache", str(scratch / "ivy-cache"), "-ivy", str(scratch / "ivy.xml")]
    command += ["-types", "jar", "bundle", "-retrieve"]
    command += [str(into / "[organisation]--[artifact]-[revision](-[classifier]).[ext]")]
    lines: deque[str] = deque(maxlen=200)
    fetched_count = 0
    for line in _lines_of(command, deadline):
        lines.append(line)
        if "[SUCCESSFUL ]" in line and on_progress:
            fetched_count += 1
            total = "" if closure else f" of {len(jars.pins)}"
            on_progress(f"fetching {jars.what}: {fetched_count}{total}")
    is_late = time.monotonic() >= deadline
    if is_late or not into.is_dir():
        late = " in time" if is_late else ""
        reasons = [line for line in lines if _tells_why(line)] or list(lines)
        # A proxy of a company's that has a certificate of its own in the place of the server's.
        advice = "Check the network"
        if any("SSLHandshakeException" in line for line in reasons):
            advice = (
                "Java doesn't trust the server's certificate: name a trust store that has it with"
                " JDK_JAVA_OPTIONS=-Djavax.net.ssl.trustStore=FILE"
            )
        raise JarsUnavailable(
            f"{jars.what} could not be fetched{late} (needed once; later starts use the cache)."
            f" {advice}, or name a mirror in an Ivy settings file with"
            " COMMITLOG_IVY_SETTINGS, then start again. Ivy said:"
            + "".join(f"\n  {line}" for line in list(dict.fromkeys(reasons))[-6:])
        )


def _write_ivy_files(scratch: Path, wanted: Sequence[Pin], closure: bool) -> None:
    # Without POMs Ivy asks for the wanted files and no others, and is ten times faster. With them,
    # Maven's scopes become configurations, of which a running broker needs these two.
    scope = ' conf="default->runtime,master"' if closure else ""
    modules: dict[str, list[Pin]] = {}
    for pin in wanted:
        org, name, version = map(quoteattr, (pin.group, pin.artifact, pin.version))
        modules.setdefault(f"org={org} name={name} rev={version}{scope}", []).append(pin)
    dependencies = "".join(
        f"<dependency {module}>{_artifacts(pins)}</dependency>" for module, pins in modules.items()
    )
    excludes = "".join(f'<exclude org="{org}" module="{name}"/>' for org, name in NOT_NEEDED)
    (scratch / "ivy.xml").write_text(
        f'<ivy-module version="2.0" xmlns:m="{MAVEN}"><info organisation="local" module="broker"/>'
        f"<dependencies>{dependencies}{excludes}</dependencies></ivy-module>"
    )
    use_poms = str(closure).lower()
    (scratch / "ivysettings.xml").write_text(
        '<ivysettings><settings defaultResolver="central"/><resolvers>'
        f'<ibiblio name="central" m2compatible="true" usepoms="{use_poms}"/>'
        "</resolvers></ivysettings>"
    )


def _artifacts(pins: Sequence[Pin]) -> str:
    """Name a module's jars if it isn't only its main one."""
    if not any(pin.classifier for pin in pins):
        return ""
    named = ""
    for pin in pins:
        classifier = f" m:classifier={quoteattr(pin.classifier)}" if pin.classifier else ""
        named += f'<artifact name={quoteattr(pin.artifact)} type="jar" ext="jar"{classifier}/>'
    return named


def _lines_of(command: list[str], deadline: float) -> Iterator[str]:
    """Yield what a command prints; it is killed at the deadline, or when the reader stops."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        timer = threading.Timer(max(0.0, deadline - time.monotonic()), process.kill)
        timer.daemon = True
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                yield line.strip()
        finally:
            timer.cancel()
            process.kill()


def _tells_why(line: str) -> bool:
    signs = ("not found", "Exception", "unreachable", "timed out", "FAILED", "refused", "Unknown")
    return any(sign in line for sign in signs)


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
        if found:
            return found[-1]
    raise JarsUnavailable(
        "fetching Kafka's jars needs the Ivy that PySpark carries:"
        " `pip install 'lance-commitlog[broker]'`"
    )


def making(parent: Path, name: str) -> tempfile.TemporaryDirectory[str]:
    """Return a folder for who holds a lock in the cache; what a killed one left there is removed.

    `name` is of what is made under that lock.
    """
    for left in parent.glob(f"{name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"{name}-", dir=parent)


@contextlib.contextmanager
def locked(path: Path, deadline: float, on_progress: Progress | None) -> Iterator[None]:
    """Hold a lock in the cache.

    Raises:
        JarsUnavailable: another process holds it beyond the deadline.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        told = False
        while not taken(file):
            if time.monotonic() >= deadline:
                raise JarsUnavailable(
                    f"another process holds {path} and did not finish preparing Kafka in time; end"
                    " it, then start again"
                )
            if on_progress and not told:
                on_progress("waiting for another process that prepares Kafka")
                told = True
            time.sleep(0.1)
        yield


def resolve_pins(kafka: str, *, on_progress: Progress | None) -> tuple[Pin, ...]:
    """Resolve Kafka's runtime closure afresh and pin what came.

    Twice, because the binding between slf4j and log4j has to be of the log4j that Kafka brings.
    """
    deadline = time.monotonic() + RESOLVE_TIMEOUT_SECONDS
    java = find_java()
    with tempfile.TemporaryDirectory(prefix="pinning-") as scratch:
        folder = Path(scratch)
        first, second = folder / "first", folder / "second"
        wanted = JarSet((Pin(*KAFKA, kafka, ""),), "")
        _run_ivy(java, folder, wanted, first, deadline, on_progress, closure=True)
        found = {pin.artifact: pin.version for pin in map(pin_of, first.iterdir())}
        binding = Pin("org.apache.logging.log4j", "log4j-slf4j-impl", found["log4j-core"], "")
        wanted = JarSet((Pin(*KAFKA, found["kafka_2.13"], ""), binding), "")
        _run_ivy(java, folder, wanted, second, deadline, on_progress, closure=True)
        return tuple(sorted(map(pin_of, second.iterdir())))
