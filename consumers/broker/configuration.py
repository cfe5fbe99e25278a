"""The files a single Kafka node starts from, as text: server and log configuration, JVM flags.

Everything is bound to loopback; nothing here reads a clock, a file or the environment.
"""

from collections.abc import Mapping
from pathlib import Path

HOST = "127.0.0.1"
MEBIBYTE = 1024 * 1024

# The log's limit for one record is 16 MiB; key, headers and batch take a little more.
MESSAGE_BYTES_MAX = 17 * MEBIBYTE
# The smallest power of two that holds one such batch in a request.
REQUEST_BYTES_MAX = 32 * MEBIBYTE
# Requests wait on the heap: this bounds them where a count of 500 would not.
QUEUED_REQUEST_BYTES_MAX = 128 * MEBIBYTE

JVM_FLAGS = (
    "-Xms512m",
    "-Xmx512m",
    # Of the collectors this one keeps the process a third smaller, at no cost in latency.
    "-XX:+UseSerialGC",
    # A broker without memory is of no use to anyone: end, and be started again.
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-CreateCoredumpOnCrash",
    "-XX:-UsePerfData",
    "-Djava.awt.headless=true",
)


def server_properties(
    *, port: int, controller_port: int, data: Path, fsync: bool, settings: Mapping[str, str]
) -> str:
    """Text of `server.properties`; `settings` come last and win."""
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        # Voters by configuration, not by log: the controller's port may differ at each start.
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "num.partitions": "1",
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "false",
        # Nothing expires by default: what may go is a topic's own setting.
        "log.retention.ms": "-1",
        "message.max.bytes": str(MESSAGE_BYTES_MAX),
        "replica.fetch.max.bytes": str(MESSAGE_BYTES_MAX),
        "socket.request.max.bytes": str(REQUEST_BYTES_MAX),
        "queued.max.request.bytes": str(QUEUED_REQUEST_BYTES_MAX),
        "group.initial.rebalance.delay.ms": "0",
        # Nobody here is in a group, and each thread wakes several times a second.
        "group.coordinator.threads": "1",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        # After a crash the controller waits this long for the broker it remembers. Shorter, and a
        # starved machine would fence the only broker there is.
        "broker.session.timeout.ms": "3000",
        # Each one wakes six threads: at twice a second a fifth of what an idle broker takes.
        "broker.heartbeat.interval.ms": "1000",
        # A single node needs no heartbeat records: an idle broker writes nothing.
        "metadata.max.idle.interval.ms": "0",
        "num.network.threads": "1",
        # Each one wakes three times a second, here and at the controller. Under fsync one waits for
        # the disk while the other serves readers.
        "num.io.threads": "2" if fsync else "1",
        "background.threads": "2",
        # The default, 128 MiB, would take a quarter of the heap.
        "log.cleaner.dedupe.buffer.size": str(16 * MEBIBYTE),
    }
    if fsync:
        properties["log.flush.interval.messages"] = "1"
    properties |= settings
    return "".join(f"{name}={_escaped(value)}\n" for name, value in properties.items())


def log_configuration(log: Path) -> str:
    """Text of `log4j2.properties`: one file, rolled, without the pages of settings at start."""
    pattern = "%d{yyyy-MM-dd HH:mm:ss.SSS} %-5p %m (%c{1})%n"
    quiet = {
        "settings": "org.apache.kafka.common.config",
        "clients": "org.apache.kafka.clients",
        "state": "state.change.logger",
    }
    lines = [
        "status=error",
        "rootLogger.level=info",
        "rootLogger.appenderRef.file.ref=file",
        "appender.file.type=RollingFile",
        "appender.file.name=file",
        f"appender.file.fileName={_escaped(str(log))}",
        f"appender.file.filePattern={_escaped(str(log))}.%i",
        "appender.file.layout.type=PatternLayout",
        f"appender.file.layout.pattern={pattern}",
        "appender.file.policies.type=Policies",
        "appender.file.policies.size.type=SizeBasedTriggeringPolicy",
        "appender.file.policies.size.size=16MB",
        "appender.file.strategy.type=DefaultRolloverStrategy",
        "appender.file.strategy.max=2",
    ]
    for key, name in quiet.items():
        lines += [f"logger.{key}.name={name}", f"logger.{key}.level=warn"]
    return "".join(f"{line}\n" for line in lines)


def parse_properties(text: str) -> dict[str, str]:
    """Read the simple properties that Kafka writes (`meta.properties`)."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _escaped(value: str) -> str:
    """Return a value for Java, which reads such a file as Latin-1."""
    value = value.replace("\\", "\\\\").replace("\n", "\\n")
    units = value.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)
