"""On a cluster with SASL, TLS and an authorizer, can each role do its work, and nothing else?"""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from commitlog import CommitLog
from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.kafka_acls import ROLES
from commitlog.adapters.kafka_io import answer_of
from commitlog.errors import CommitLogError, InvalidSettings, LogMoved
from commitlog.protocol import outcomes_topic, transactions_topic
from consumers import cli
from consumers.broker import ports
from consumers.broker.embedded import EmbeddedBroker
from consumers.commands.exit_codes import ExitCode
from tests import forked
from tests.certificates import make_certificate

pytestmark = [pytest.mark.broker]

SENT, DECIDED = transactions_topic("commitlog"), outcomes_topic("commitlog")
DEADLINE_SECONDS = 180.0
READ, WRITE, LOOK, MAKE = "read", "write", "look at settings of", "make"
CHANGE = "change settings"
BOTH = {(READ, SENT), (READ, DECIDED)}
LOOKING = {(LOOK, SENT), (LOOK, DECIDED)}
WRITING = {(WRITE, SENT), (WRITE, DECIDED)}
MAY: dict[str, set[tuple[str, str]]] = {
    "init": BOTH | WRITING | LOOKING | {(MAKE, SENT), (MAKE, DECIDED)},
    "writer": BOTH | {(WRITE, SENT)},
    "reader": BOTH,
    "committer": BOTH | WRITING | LOOKING,
    "server": BOTH | LOOKING | {(WRITE, SENT)},
    "index": BOTH,
    "maintenance": BOTH | {(WRITE, SENT)},
    "auditor": BOTH | LOOKING,
    "archive": BOTH | WRITING,
    "eraser": BOTH | WRITING | {(LOOK, SENT), (CHANGE, SENT)},
    "mover": BOTH
    | WRITING
    | LOOKING
    | {(what, t) for what in (MAKE, CHANGE) for t in (SENT, DECIDED)},
    "nobody": set(),
}


@dataclass(frozen=True)
class Secured:
    """A cluster that refuses what no ACL allows, and how to reach it."""

    servers: str
    folder: Path
    certificate: Path

    def settings(self, who: str) -> dict[str, Any]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": who,
            "sasl.password": f"secret-of-{who}",
            "ssl.ca.location": str(self.certificate),
        }

    def environment(self, who: str) -> dict[str, str]:
        """Return what a process is told as whom to connect."""
        kafka = {
            f"COMMITLOG_KAFKA__{name.replace('.', '_').upper()}": value
            for name, value in self.settings(who).items()
        }
        own = {"BOOTSTRAP_SERVERS": self.servers, "ROOT": str(self.folder / "root")}
        return kafka | {f"COMMITLOG_{name}": value for name, value in own.items()}

    def run(self, who: str, *arguments: str) -> int:
        """Run a command in this process."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment(who).items():
                patch.setenv(name, value)
            return cli.main(arguments)

    def allow(self, role: str, log: str) -> None:
        """Give a role of a log to the user of its name."""
        allowed = self.run("admin", "acl", role, f"User:{role}", "--apply", "--log", log)
        assert allowed == ExitCode.OK

    @contextlib.contextmanager
    def part(self, who: str, *arguments: str) -> Iterator[str]:
        """Run a command as a process until the block ends; yield what it says when ready."""
        environment = {**os.environ, **self.environment(who)}
        command = ["-m", "consumers.cli", *arguments]
        with forked.beside(command, env=environment) as (process, said):
            line = said.readline()
            assert line.startswith("ready"), (who, line, process.wait(60))
            try:
                yield line.split()[-1]
            finally:
                process.terminate()
                process.wait(60)

    def log(self, who: str) -> KafkaLog:
        return KafkaLog.connect(self.servers, settings=self.settings(who))

    def admin(self, who: str) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.servers, **self.settings(who)})


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("secured"), "commitlog") as made:
        yield made


@contextlib.contextmanager
def secured_cluster(folder: Path, log: str) -> Iterator[Secured]:
    """Run a cluster with users of the roles' names, who may do what the roles of a log need."""
    folder.mkdir(exist_ok=True)
    certificate, key = make_certificate(folder)
    (folder / "both.pem").write_bytes(key.read_bytes() + certificate.read_bytes())
    plain = ports.pick()
    secure = ports.pick(but_not=plain)
    controller = next(one for one in iter(ports.pick, 0) if one not in (plain, secure))
    users = "".join(f' user_{who}="secret-of-{who}"' for who in ("admin", *MAY))
    open_to = f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{secure}"
    settings = {
        "listeners": f"{open_to},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": open_to,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT"
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Brokers and controllers, among each other; on a real cluster they have names too.
        "super.users": "User:ANONYMOUS;User:admin",
        "allow.everyone.if.no.acl.found": "false",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f"org.apache.kafka.common.security.plain.PlainLoginModule required{users};"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "both.pem"),
    }
    with EmbeddedBroker.start(folder / "broker", port=plain, settings=settings):
        made = Secured(f"127.0.0.1:{secure}", folder, certificate)
        for role in ROLES:
            made.allow(role, log)
        yield made


def people(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def test_doctor_says_at_once_and_at_the_end_why_the_cluster_lets_nobody_in(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value, told in (
        ("SASL_PASSWORD", "a guess", "refuses these credentials"),
        ("SECURITY_PROTOCOL", "PLAINTEXT", "security.protocol may not be that of"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Secured, "environment", _with(Secured.environment, name, value))
            assert secured.run("writer", "doctor") == ExitCode.REFUSED
        said = capsys.readouterr()
        assert told in said.out
        assert "brokers are down" not in said.out
        if name == "SASL_PASSWORD":
            assert told in said.err
            assert "commitlog up" not in said.out
            assert "hasn't answered" not in said.err


def _with(
    environment: Callable[[Secured, str], dict[str, str]], name: str, value: str
) -> Callable[[Secured, str], dict[str, str]]:
    return lambda secured, who: environment(secured, who) | {f"COMMITLOG_KAFKA__{name}": value}


def test_each_role_does_its_work(secured: Secured) -> None:
    assert secured.run("nobody", "init") == ExitCode.UNAVAILABLE
    assert secured.run("init", "init") == ExitCode.OK
    with (
        secured.part("committer", "committer"),
        secured.part("index", "index"),
        secured.part("server", "server", "--port", "0") as address,
        secured.part("writer", "rows"),
    ):
        with CommitLog.connect(secured.servers, **secured.settings("writer")) as log:
            log.create_table("shop$t", people().schema)
            assert log.append("shop$t", people(1, 2, 3)).version == 2
            rows = iter(log.subscribe("shop$t", from_position=0))
            assert next(rows).outcome.version == 1
            applied = log.write_rows("shop$t", people(4)).result(timeout=DEADLINE_SECONDS)
            assert applied.inserted == 1
        asked = urllib.request.Request(
            f"http://{address}/v1/table/shop$t/count_rows", b"{}", method="POST"
        )
        asked.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert json.load(answer) == 4
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=60) as answer:
            assert answer.status == 200
        for who, *arguments in (
            ("maintenance", "maintain", "--once"),
            ("maintenance", "orphans", "--remove"),
            ("auditor", "verify"),
            ("auditor", "doctor"),
            ("reader", "log"),
            ("eraser", "erase", "shop$t", "--where", "id = 4", "--reason", "asked", "--now"),
            ("auditor", "verify"),
        ):
            assert secured.run(who, *arguments) == ExitCode.OK, (who, arguments)
    assert secured.run("archive", "archive", "--give-up") == ExitCode.OK


@pytest.mark.parametrize("who", MAY)
def test_each_role_may_do_nothing_else(secured: Secured, who: str) -> None:
    """Runs after the other one, since it writes what is no record."""
    assert secured.run("init", "init") == ExitCode.OK
    found = {(what, topic) for topic in (SENT, DECIDED) for what in tried(secured, who, topic)}
    assert found == MAY[who]


def tried(secured: Secured, who: str, topic: str) -> Iterator[str]:
    """Yield what somebody can do with a topic, of all that roles need and that none may do."""
    log, admin = secured.log(who), secured.admin(who)
    if reads(log, topic):
        yield READ
    if writes(log, topic):
        yield WRITE
    log.close()
    resource = ConfigResource(ResourceType.TOPIC, topic)
    setting = ConfigEntry("retention.ms", "-1", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[setting])
    other = f"{topic}.other"
    asked = {
        LOOK: admin.describe_configs([resource])[resource],
        MAKE: admin.create_topics([NewTopic(topic, 1, 1)])[topic],
        "make any topic": admin.create_topics([NewTopic(other, 1, 1)])[other],
        "delete": admin.delete_topics([topic])[topic],
        CHANGE: admin.incremental_alter_configs([changed])[changed],
        "allow more": admin.create_acls([MORE])[MORE],
    }
    for what, future in asked.items():
        try:
            answer_of(future, DEADLINE_SECONDS)
        except KafkaException as error:
            name = error.args[0].name()
            assert name.endswith("AUTHORIZATION_FAILED") or name == "TOPIC_ALREADY_EXISTS", what
            if name == "TOPIC_ALREADY_EXISTS":
                yield what
        else:
            yield what


def test_a_log_is_backed_up_moved_and_restored_by_roles(secured: Secured, tmp_path: Path) -> None:
    name, root, saved = "second", str(tmp_path / "root"), str(tmp_path / "saved")
    here = ("--log", name, "--root", root)
    for role in ("init", "committer", "writer", "auditor", "mover"):
        secured.allow(role, name)
    assert secured.run("init", "init", *here) == ExitCode.OK
    with (
        secured.part("committer", "committer", *here),
        CommitLog.connect(secured.servers, log=name, **secured.settings("writer")) as log,
    ):
        log.create_table("t", people().schema)
        log.append("t", people(1, 2, 3))
    assert secured.run("auditor", "backup", saved, *here) == ExitCode.OK
    with secured_cluster(tmp_path / "new", name) as new:
        settings = tmp_path / "new.properties"

        def move(who: str) -> int:
            pairs = new.settings(who).items()
            settings.write_text("".join(f"{key}={value}\n" for key, value in pairs))
            return secured.run(who, "move", new.servers, *here, "--to-kafka-file", str(settings))

        assert move("auditor") != ExitCode.OK
        assert move("mover") == ExitCode.OK
        with pytest.raises(LogMoved):
            CommitLog.connect(secured.servers, log=name, **secured.settings("writer")).tables()
        with (
            new.part("committer", "committer", *here),
            CommitLog.connect(new.servers, log=name, **new.settings("writer")) as log,
        ):
            assert log.append("t", people(4)).version == 3
        assert new.run("auditor", "verify", *here) == ExitCode.OK
    with secured_cluster(tmp_path / "restored", name) as third:
        again = str(tmp_path / "again")
        bound = f"{root}/tables={again}/tables"
        there = ("--log", name, "--root", again, "--places", bound)
        assert third.run("auditor", "restore", saved, *there) != ExitCode.OK
        assert third.run("mover", "restore", saved, *there) == ExitCode.OK
        assert third.run("auditor", "verify", *there) == ExitCode.OK


MORE = AclBinding(
    ResourceType.TOPIC,
    "other",
    ResourcePatternType.LITERAL,
    "User:other",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)


def reads(log: KafkaLog, topic: str) -> bool:
    """Return True if a record comes, False if the cluster refuses."""
    reader = log.read_raw(0, is_transactions=topic == SENT)
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        while time.monotonic() < deadline:
            if reader.poll():
                return True
    except CommitLogError as error:
        if "AUTHORIZATION_FAILED" not in str(error):
            raise
        return False
    finally:
        reader.close()
    raise AssertionError(f"{topic}: neither a record nor a refusal")


def writes(log: KafkaLog, topic: str) -> bool:
    """Return True if a record is appended, False if the cluster refuses."""
    told: list[Exception | None] = []
    writer = log.transactions_writer() if topic == SENT else log.outcomes_writer(0)
    writer._produce(0, b"?", b"?", lambda offset, error: told.append(error))
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not told and time.monotonic() < deadline:
        writer.poll(0.1)
    writer.close()
    if told[0] is not None:
        assert "AUTHORIZATION_FAILED" in str(told[0])
    return told[0] is None


def test_a_cluster_without_an_authorizer_is_named(broker: EmbeddedBroker) -> None:
    from commitlog.adapters.kafka_acls import allow, rights_of

    with pytest.raises(InvalidSettings, match="has no authorizer"):
        allow(rights_of("index", "commitlog"), ["User:a"], broker.bootstrap_servers, {})
