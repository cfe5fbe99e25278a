"""The pure parts of the embedded broker: pins, Java's version, configuration, diagnosis."""

import errno
import os
import re
import shutil
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest

from commitlog.java import Java, parse_version
from consumers.broker import ports
from consumers.broker.configuration import (
    log_configuration,
    parse_properties,
    server_properties,
)
from consumers.broker.errors import (
    BrokerFailed,
    BrokerHasNoJava,
    CacheUnwritable,
    DiskFull,
    JarsUnavailable,
    PortInUse,
    TooFewFiles,
    failure,
)
from consumers.broker.home import META, Home, full_disk_named, new_id
from consumers.broker.jars import cache_root, ensure_jars
from consumers.broker.java import find_java
from consumers.broker.pins import (
    Pin,
    format_pins,
    kafka_version,
    mismatches,
    parse_pins,
    pin_of,
    read_pins,
)
from consumers.broker.prepared import QuickStart, ensure_prepared
from consumers.commands.exit_codes import ExitCode, exit_code

SHA_OF_NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
REPOSITORY = Path(__file__).parents[2]


def test_pins_survive_writing_and_reading() -> None:
    pins = read_pins()
    assert parse_pins(format_pins(pins)) == pins
    assert kafka_version(pins).startswith("4.")


@pytest.mark.parametrize("line", ["a:b:1", "a:b " + "0" * 64, "a:b:1 123", ":b:1 " + "0" * 64])
def test_a_broken_pin_is_shown(line: str) -> None:
    with pytest.raises(ValueError, match="not a pin"):
        parse_pins(line)


@pytest.mark.parametrize("artifact", ["zstd-jni", "kafka_2.13", "log4j-slf4j-impl"])
@pytest.mark.parametrize("version", ["1.5.7-17", "4.4.0", "33.4.8-jre"])
def test_a_jar_tells_its_pin_by_name(tmp_path: Path, artifact: str, version: str) -> None:
    pin = Pin("org.example", artifact, version, SHA_OF_NOTHING)
    (tmp_path / pin.file_name).touch()
    assert pin_of(tmp_path / pin.file_name) == pin


def test_missing_changed_and_foreign_jars_are_mismatches(tmp_path: Path) -> None:
    names = ("good", "changed", "missing")
    good, changed, missing = (Pin("org.example", name, "1", SHA_OF_NOTHING) for name in names)
    (tmp_path / good.file_name).touch()
    (tmp_path / changed.file_name).write_bytes(b"other")
    (tmp_path / "foreign.jar").touch()
    wrong = mismatches(tmp_path, (good, changed, missing))
    assert set(wrong) == {changed.file_name, missing.file_name, "foreign.jar"}
    assert mismatches(tmp_path / "nowhere", (good,)) == (good.file_name,)


def test_the_compose_file_runs_the_pinned_version() -> None:
    compose = (REPOSITORY / "infra" / "compose.yaml").read_text()
    assert f"apache/kafka:{kafka_version(read_pins())} " in compose


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.delenv("COMMITLOG_CACHE", raising=False)
    assert cache_root() == Path("/xdg/lance-commitlog")
    monkeypatch.setenv("COMMITLOG_CACHE", "/named")
    assert cache_root() == Path("/named")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "25.0.2" 2026-01-20 LTS', 25),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "24-ea" 2025-03-18', 24),
        ("Unable to locate a Java Runtime", None),
    ],
)
def test_java_tells_its_version(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return java


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old.parents[1]))
    monkeypatch.setenv("PATH", f"{new.parent}:/bin")
    monkeypatch.setenv("COMMITLOG_JAVA", "system")
    found = find_java()
    assert (found.path, found.version, found.source) == (new, 21, "PATH")
    with pytest.raises(BrokerHasNoJava, match="is Java 11"):
        find_java(minimum=22)


def test_a_named_java_is_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = fake_java(tmp_path / "named", "17.0.1")
    monkeypatch.setenv("COMMITLOG_JAVA", str(named.parents[1]))
    assert find_java().path == named
    for wrong in (str(tmp_path / "none"), "~nobody-of-this-name/java"):
        monkeypatch.setenv("COMMITLOG_JAVA", wrong)
        with pytest.raises(BrokerHasNoJava, match="does not run"):
            find_java()


def test_settings_win_and_everything_is_on_loopback() -> None:
    text = server_properties(
        port=1234,
        controller_port=1235,
        data=Path("/data"),
        fsync=True,
        settings={"num.io.threads": "9"},
    )
    properties = parse_properties(text)
    assert properties["num.io.threads"] == "9"
    assert properties["log.flush.interval.messages"] == "1"
    assert properties["auto.create.topics.enable"] == "false"
    assert set(re.findall(r"//([^:]+):", text)) == {"127.0.0.1"}


def test_java_reads_a_root_of_any_letters() -> None:
    root = Path("/my root/größe $x 🦊")
    text = server_properties(
        port=1, controller_port=2, data=root / "data", fsync=False, settings={}
    ) + log_configuration(root / "broker.log")
    written = r"/my root/gr\u00f6\u00dfe $x \ud83e\udd8a"
    assert f"log.dirs={written}/data\n" in text
    assert f"appender.file.fileName={written}/broker.log\n" in text
    assert text.isascii()


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("KafkaException: Socket server failed to bind to 127.0.0.1:9092: Address", PortInUse),
        ("java.io.IOException: No space left on device", DiskFull),
        ("java.io.IOException: Too many open files", TooFewFiles),
        ("java.lang.OutOfMemoryError: Java heap space", BrokerFailed),
        ("something else", BrokerFailed),
    ],
)
def test_the_log_tells_what_to_do(tmp_path: Path, line: str, kind: type[Exception]) -> None:
    error = failure(["before", line], root=tmp_path, exit_code=1, doing="start", free_bytes=2**40)
    assert type(error) is kind
    if isinstance(error, PortInUse):
        assert error.port == 9092
    if isinstance(error, BrokerFailed):
        assert str(error).endswith(f"broker.log:\n  before\n  {line}")
    killed = failure([line], root=tmp_path, exit_code=137, doing="run", free_bytes=2**40)
    assert not isinstance(killed, TooFewFiles)
    full = failure([], root=tmp_path, exit_code=1, doing="run", free_bytes=0)
    assert isinstance(full, DiskFull)


def test_what_a_signal_ended_names_it(tmp_path: Path) -> None:
    killed = failure(["any"], root=tmp_path, exit_code=137, doing="run", free_bytes=2**40)
    said = "the broker ended with signal SIGKILL, as the system ends what takes too much memory; "
    assert str(killed).startswith(said)


def test_a_picked_port_is_free_and_kept(tmp_path: Path) -> None:
    port = ports.pick()
    assert ports.is_free(port)
    home = Home(tmp_path)
    home.folder.mkdir()
    assert home.kept_port() is None
    home.keep_port(port)
    assert home.kept_port() == port


def test_cluster_ids_have_the_form_that_kafka_takes() -> None:
    for _ in range(200):
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", new_id())


def test_starts_are_prepared_once_for_a_java(tmp_path: Path) -> None:
    executable = tmp_path / "java"
    executable.touch()
    java, jars, made = Java(executable, 17, "PATH"), tmp_path / "jars-1", []

    def make(root: Path, into: QuickStart) -> None:
        assert not root.exists()
        into.classes.write_text("classes")
        made.append(into)

    first, again = (ensure_prepared(java, jars, make, None) for _ in range(2))
    assert first == again
    assert first is not None
    assert first.classes.read_text() == "classes"
    assert len(made) == 1
    os.utime(executable, (1, 1))
    assert ensure_prepared(java, jars, make, None) != first, "another build of Java"


def test_what_a_killed_start_was_preparing_is_removed(tmp_path: Path) -> None:
    executable = tmp_path / "java"
    executable.touch()
    java, jars = Java(executable, 17, "PATH"), tmp_path / "jars-1"
    scratches: list[Path] = []

    def make(root: Path, into: QuickStart) -> None:
        if not scratches:  # as if it were killed here
            shutil.copytree(root.parent, tmp_path / f"{root.parent.name}x")
        scratches.append(root.parent)

    assert (first := ensure_prepared(java, jars, make, None)) is not None
    first.folder.rmdir()
    assert ensure_prepared(java, jars, make, None) == first
    assert {one.name for one in tmp_path.iterdir()} == {"java", "jars-1.lock", first.folder.name}


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "ROOT"),
        (OSError(errno.ENOSPC, "No space left on device", "ROOT/kafka/lock"), "ROOT"),
        (OSError(errno.ENOSPC, "No space left on device", "/cache/jars"), "/cache/jars"),
        (shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")]), "ROOT"),
    ],
)
def test_a_full_disk_is_named(tmp_path: Path, error: OSError, named: str) -> None:
    if error.filename:
        error.filename = error.filename.replace("ROOT", str(tmp_path))
    place = re.escape(named.replace("ROOT", str(tmp_path)))
    with pytest.raises(DiskFull, match=f"the disk of {place}: "), full_disk_named(tmp_path):
        raise error


def test_a_start_goes_on_without_what_could_not_be_prepared(tmp_path: Path) -> None:
    executable = tmp_path / "java"
    executable.touch()

    def make(root: Path, into: QuickStart) -> None:
        into.classes.touch()
        raise BrokerFailed("no room")

    told: list[str] = []
    java = Java(executable, 17, "PATH")
    assert ensure_prepared(java, tmp_path / "jars-1", make, told.append) is None
    assert "no room" in told[-1]
    assert {path.name for path in tmp_path.iterdir()} == {"java", "jars-1.lock"}


def test_copied_data_has_ids_of_its_own(tmp_path: Path) -> None:
    formatted, home = tmp_path / "formatted", Home(tmp_path / "root")
    formatted.mkdir()
    home.folder.mkdir(parents=True)
    (formatted / META).write_text("#\nversion=1\ndirectory.id=theirs\ncluster.id=theirs\n")
    (formatted / "log").touch()
    home.copy_formatted(formatted, "ours")
    assert home.cluster_id() == "ours"
    assert (home.data / "log").exists()
    assert "theirs" not in (home.data / META).read_text()


def test_a_user_without_a_home_is_told_to_name_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COMMITLOG_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("no home")))
    with pytest.raises(CacheUnwritable, match="COMMITLOG_CACHE"):
        cache_root()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_user_whose_home_cannot_be_written_is_told_to_name_a_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_there: bool
) -> None:
    """Users of services often have a home folder of root's, or one that doesn't exist."""
    monkeypatch.setenv("COMMITLOG_CACHE", str(tmp_path / "cache"))
    if is_there:
        (tmp_path / "cache").mkdir()
        monkeypatch.setattr(os, "access", lambda *_: False)
    else:
        (tmp_path / "cache").touch()
    with pytest.raises(CacheUnwritable, match=r"Kafka's jars can't be kept in .*CACHE") as told:
        ensure_jars(Java(Path("/nowhere/java"), 21, "21"))
    assert exit_code(told.value) is ExitCode.MACHINE, "it is the same the next time"


def test_a_certificate_that_java_does_not_trust_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMMITLOG_CACHE", str(tmp_path / "cache"))
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'javax.net.ssl.SSLHandshakeException: no path'; exit 1\n")
    java.chmod(0o755)
    with pytest.raises(JarsUnavailable, match=r"-Djavax\.net\.ssl\.trustStore=FILE"):
        ensure_jars(Java(java, 21, "21"))
