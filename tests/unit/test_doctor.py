"""Does `commitlog doctor` find what is wrong, and say what to do?"""

import errno
import json
from importlib.metadata import version as package_version
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest

from commitlog.adapters.kafka import KafkaLog, TopicCopies
from consumers import cli
from consumers.commands import output
from consumers.commands.exit_codes import ExitCode
from consumers.runtime.config import load
from consumers.runtime.places import MARKS
from consumers.tools import doctor
from consumers.tools.rules import rules_in
from consumers.views.health import Check, Level


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def find(name: str, **flags: object) -> Check:
    return next(check for check in doctor.doctor(load(flags)) if check.name == name)


def test_every_failure_says_what_to_do() -> None:
    found = tuple(doctor.doctor(load({})))
    assert {check.name for check in found} >= {"python", "settings", "java", "jars", "cluster"}
    assert all(check.advice for check in found if check.level is Level.FAIL)
    assert found[-1].name == "cluster"
    assert found[-1].level is Level.FAIL


@pytest.mark.parametrize(
    ("codec", "said"), [(object(), "in machine code"), (None, "by Python alone")]
)
def test_doctor_says_which_lane_runs(
    monkeypatch: pytest.MonkeyPatch, codec: object, said: str
) -> None:
    monkeypatch.setattr("commitlog.codecs.lanes.CODEC", codec)
    assert find("python").message.endswith(said)


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CONNECT_SECONDS", 1.0)
    found = find("cluster", bootstrap_servers="127.0.0.1:9")
    assert found.level is Level.FAIL
    assert "127.0.0.1:9" in found.message


@pytest.mark.slow
def test_a_moved_root_is_found_without_its_broker(tmp_path: Path) -> None:
    tables = tmp_path / "first" / "tables"
    marks = tables / MARKS
    marks.mkdir(parents=True)
    noted = {"log": "commitlog", "log_id": "an-id", "tables_root": str(tables)}
    (marks / "an-id.json").write_text(json.dumps(noted))
    assert find("places", root=tmp_path / "first").level is Level.OK
    (tmp_path / "first").rename(tmp_path / "moved")
    found = find("places", root=tmp_path / "moved")
    assert found.level is Level.FAIL
    assert f"--places {tables}={tmp_path / 'moved' / 'tables'}" in found.message
    assert not (tmp_path / "first").exists()


def test_a_variable_that_nobody_reads_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMITLOG_ROTO", "x")
    found = find("settings")
    assert found.level is Level.WARN
    assert "COMMITLOG_ROTO" in found.message


def test_no_java_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMMITLOG_JAVA", str(tmp_path / "none"))
    assert find("java").level is Level.WARN


def test_missing_jars_are_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COMMITLOG_CACHE", str(tmp_path))
    assert find("jars").level is Level.WARN


def test_what_may_not_be_looked_at_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused = PermissionError(errno.EACCES, "Permission denied", "/secret")
    monkeypatch.setattr(doctor, "mismatches", Mock(side_effect=refused))
    monkeypatch.setenv("COMMITLOG_CACHE", str(tmp_path))
    (tmp_path / "jars-1").mkdir()
    monkeypatch.setattr("shutil.disk_usage", Mock(side_effect=refused))
    found = {check.name: check for check in doctor.doctor(load({"root": tmp_path}))}
    assert (found["jars"].level, found["disk"].level) == (Level.WARN, Level.FAIL)
    assert "Permission denied" in found["disk"].message
    assert "user" in found["disk"].advice


@pytest.mark.slow
def test_little_room_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "DISK_FREE_MINIMUM", 2**70)
    assert find("disk", root=tmp_path / "not" / "yet").level is Level.WARN
    monkeypatch.setattr(doctor, "DISK_FULL", 2**70)
    full = find("disk", root=tmp_path / "not" / "yet")
    assert full.level is Level.FAIL
    assert "make room now" in full.advice


def test_the_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    assert "put-if-absent holds" in doctor._probe(str(tmp_path))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


class Cluster:
    """A log of which only the copies are asked."""

    def __init__(self, *topics: TopicCopies) -> None:
        self.topics = topics

    def copies(self) -> tuple[TopicCopies, ...]:
        return self.topics


def durability(root: Path | None, copies: int, in_step: int, needed: int) -> Check:
    topics = (TopicCopies("t", copies, copies, 2), TopicCopies("o", copies, in_step, needed))
    flags = {} if root is None else {"root": root}
    return doctor._durability(cast(KafkaLog, Cluster(*topics)), load(flags))


@pytest.mark.parametrize(("fsync", "level"), [(True, Level.OK), (False, Level.WARN)])
def test_durability_is_told_as_it_is(tmp_path: Path, fsync: bool, level: Level) -> None:
    (tmp_path / "kafka").mkdir()
    line = "log.flush.interval.messages=1\n" if fsync else ""
    (tmp_path / "kafka" / "server.properties").write_text(f"node.id=1\n{line}")
    assert durability(tmp_path, 1, 1, 1).level is level


def test_durability_is_counted_on_the_cluster() -> None:
    found = durability(None, 3, 3, 2)
    assert found.level is Level.OK
    assert "3 copies, and a commit is acknowledged once 2 have it" in found.message
    alone = durability(None, 1, 1, 1)
    assert alone.level is Level.WARN
    assert "one copy" in alone.message
    late = durability(None, 3, 2, 2)
    assert late.level is Level.WARN
    assert "2 of 3 copies of o are in step" in late.message
    stopped = durability(None, 3, 1, 2)
    assert stopped.level is Level.FAIL
    assert "nothing is acknowledged" in stopped.message
    weak = durability(None, 3, 3, 1)
    assert weak.level is Level.WARN
    assert "min.insync.replicas" in weak.advice


@pytest.mark.slow
def test_the_command_ends_with_one_if_something_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == ExitCode.REFUSED
    findings = json.loads(capsys.readouterr().out)
    assert {finding["level"] for finding in findings} <= {"ok", "warn", "fail"}
    assert cli.main(["doctor"]) == ExitCode.REFUSED
    assert "-> start `commitlog up" in capsys.readouterr().out


def test_a_leader_with_another_pylance_than_the_rules_name_is_a_warning() -> None:
    status = {"pylance": "15.0.0", "rules": {"protocol": 4, "lance_releases": [[7, "14.1.0"]]}}
    found = doctor.lance_release(status)
    assert found.level is Level.WARN
    assert "pylance 15.0.0, and manifests name Lance 14.1.0" in found.message
    assert "--lance-release 15.0.0" in found.advice
    status["pylance"] = "14.1.0"
    assert doctor.lance_release(status).level is Level.OK


@pytest.mark.parametrize(
    ("partitions", "names"), [(1, ["version"]), (2, ["version 0", "version 1"])]
)
def test_each_of_many_partitions_is_named_and_messages_are_aligned(
    partitions: int,
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    health = Mock(statuses={number: {} for number in range(partitions)})
    health.check.return_value = [Check("leader", Level.OK, "") for _ in range(partitions)]
    monkeypatch.setattr(doctor, "Health", lambda *_: health)
    found = [*doctor._service(cast(KafkaLog, None), load({}))]
    assert [one.name for one in found if one.name.startswith("version")] == names
    for one in found:
        output.print_check(one.name, "ok", "!")
    assert len({line.index("!") for line in capsys.readouterr().out.splitlines()}) == 1


def test_a_leader_of_another_version_is_a_warning() -> None:
    found = doctor._version({"version": "0.0.9"})
    assert found.level is Level.WARN
    assert "the leader's is 0.0.9" in found.message
    ours = package_version("lance-commitlog")
    assert doctor._version({"version": ours}).level is Level.OK


def test_a_leader_that_is_too_old_to_say_its_rules_is_a_warning() -> None:
    found = doctor.lance_release({"pylance": "14.0.2"})
    assert found.level is Level.WARN
    assert "upgrade committers first" in found.message
    newer = {"protocol": 4, "lance_releases": [], "not known here": 1}
    assert rules_in({"rules": newer}).protocol == 4
