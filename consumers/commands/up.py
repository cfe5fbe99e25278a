"""`commitlog up`: a supervisor with broker, committers, index and server as its children.

The parts are processes of their own, as they would be on machines of their own; what they share is
the log. The supervisor owns the root's lock and the HTTP port, so that both outlive a part that is
started again. Standard output carries one line, when everything answers.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.log_start import expect_begun
from commitlog.adapters.places import bound, named_here, places_setting
from commitlog.errors import Unavailable
from consumers.broker.embedded import EmbeddedBroker
from consumers.broker.errors import BrokerError, DiskFull, TooFewFiles
from consumers.broker.home import Home, check_path
from consumers.commands.exit_codes import in_one_line
from consumers.commands.parts import CommandProcess, Restarts
from consumers.partition.checkpoints.table_places import check_all, find_roots
from consumers.runtime import roots
from consumers.runtime.config import KAFKA_PREFIX, PREFIX, Config, unknown_variables
from consumers.runtime.endpoints import ENDPOINTS, is_damaged, write_endpoints
from consumers.runtime.forking import CAN_FORK, Template
from consumers.runtime.patience import Patience
from consumers.runtime.places import (
    check_own_place,
    check_unused,
    partitions_on,
    writable_tables_root,
)
from consumers.runtime.process import Stopped, configure_logging, stop_on_signals
from consumers.tools.archive.log import with_archive

PASSED_ON = (
    *("log", "host", "socket_host", "socket_port", "token", "quotas", "storage_file"),
    *("iceberg_tables_max", "iceberg_updates_max", "iceberg_timeout"),
    *("access_file", "base_path", "allowed_locations", "tls_certificate"),
    *("tls_key", "tls_client_ca", "http_requests_max", "batch_operations_max", "sql"),
    *("http_hosts", "row_processes", "row_memory"),
    *("unwritten_versions", "unwritten_memory"),
)
"""Settings that the parts get as they are here."""
HTTP_FD = "COMMITLOG_HTTP_FD"
POLL_SECONDS = 0.1
"""How often it looks while something is being started."""
WATCH_SECONDS = 1.0
"""How often it looks, though no part has ended."""
PARTS_END_SECONDS = 4.0
BROKER_END_SECONDS = 8.5
"""Counted from the signal too: the broker has what the parts left of it."""
HARD_END_SECONDS = 9.2
"""A stop that takes longer is ended by force: SIGTERM promises ten seconds."""

logger = logging.getLogger(__name__)


class Supervisor:
    """Starts the parts, keeps them running, and ends them."""

    def __init__(self, config: Config, *, say: Callable[[str], None]) -> None:
        """Plan a service; `say` shows progress."""
        self._config = config
        self._root = config.need_root()
        self._say = say
        self._stop, self._stirred = threading.Event(), threading.Event()
        self._is_starting = True
        self._broker: EmbeddedBroker | None = None
        self._broker_restarts = Restarts("the broker")
        self._broker_start_at = 0.0
        self._parts: list[CommandProcess] = []
        self._template: Template | None = None
        """Forks the parts; it imports what they need while Kafka starts."""
        self._listener: socket.socket | None = None
        self._lock = -1
        self._forced_code = 0

    def run(self) -> None:
        """Run until a signal comes."""
        if not self._uses_cluster():
            check_path(self._root)
        self._lock = roots.take(self._root)
        self._template = Template(_imports(self._config), is_fork=True) if CAN_FORK else None
        configure_logging("up", self._root)
        stop_on_signals(self._stop, on_signal=self._on_signal, stirred=self._stirred)
        threading.Thread(target=self._end_by_force, name="end", daemon=True).start()
        try:
            ready = self._start()
            self._is_starting = False
            print(ready, flush=True)
            while not self._stop.is_set():
                self._stirred.wait(WATCH_SECONDS if self._is_whole else POLL_SECONDS)
                self._stirred.clear()
                self._watch()
        except Stopped:
            logger.info("stopped while starting")
        except Exception as error:
            self._forced_code = 1
            logger.error("up ends: %s", in_one_line(error))
            raise
        finally:
            self._is_starting = False
            self._end()

    def _on_signal(self) -> None:
        if self._is_starting:
            self._is_starting = False
            raise Stopped

    def _start(self) -> str:
        config = self._config
        if unknown := unknown_variables(os.environ):
            logger.warning("no setting is named %s: correct or unset it", ", ".join(unknown))
        if is_damaged(self._root):
            told = "%s/%s is damaged: without it, the log of this root is taken to be %r"
            logger.warning(told, self._root, ENDPOINTS, config.log)
        self._listener = roots.listen(config.host, config.port, root=self._root)
        port = self._listener.getsockname()[1]
        servers = self._start_broker()
        partitions = self._await_log(servers)
        address = f"{config.http_scheme}://{roots.host_in_url(config.host)}:{port}"
        write_endpoints(
            self._root,
            {
                "bootstrap_servers": servers,
                "log": config.log,
                "roots": json.dumps(named_here()),
                "root": str(self._root),
                "places": config.places,
                "http": address,
            },
        )
        self._start_parts(servers, partitions)
        self._await_readiness(port)
        return f"ready {address} kafka {servers} root {self._root}"

    def _uses_cluster(self) -> bool:
        """Return True if the settings name a cluster, so that no broker is started here."""
        # What an earlier `up` left in the root names the broker that is about to be started.
        left = self._config.sources.get("bootstrap_servers", "").startswith(str(self._root))
        return bool(self._config.bootstrap_servers) and not left

    def _start_broker(self) -> str:
        config = self._config
        if self._uses_cluster():
            return config.bootstrap_servers
        if Home(self._root).cluster_id() is None:
            check_unused(self._root, config.log)
            writable_tables_root(config)
        self._broker = EmbeddedBroker.start(
            self._root,
            port=config.kafka_port,
            fsync=config.fsync,
            start_seconds=config.start_seconds,
            on_progress=self._say,
        )
        if not config.fsync:
            logger.info(
                "acknowledged means in the operating system's memory: this broker is the only copy,"
                " so a power cut may take the last commits. --fsync writes to disk first"
            )
        return self._broker.bootstrap_servers

    def _await_log(self, servers: str) -> int:
        """Make the log as soon as its broker answers; return how many partitions it has."""
        said = ""
        patience = self._patience(lambda: said)
        while True:
            try:
                return self._make_log(servers)
            except Unavailable as error:
                if self._broker is None or self._broker.poll() is not None or not patience.left:
                    raise
                said = str(error)
                logger.warning("waiting for the log: %s", error)
                self._stop.wait(1.0)

    def _make_log(self, servers: str) -> int:
        config = self._config
        self._say(f"opening log {config.log}")
        with contextlib.closing(KafkaLog.connect(servers, config.log, config.kafka)) as log:
            tables = config.need_tables_root()
            partitions = partitions_on(self._root, log)
            if not partitions:
                partitions = 1
                writable_tables_root(config)
            expect_begun(log, partitions)
            with roots.usable(self._root):
                genesis = log.create(partitions=partitions, tables_root=tables)
                find_roots(with_archive(log, self._root), self._root)
                check_own_place(genesis.tables_root, genesis.log_id, tables, self._root)
                check_all(log, self._root)
            if (place := bound(genesis.tables_root)) != tables:
                text = "the tables of this log are in %s: all its parts and writers use them there"
                logger.warning(text, place)
            return partitions

    def _start_parts(self, servers: str, partitions: int) -> None:
        assert self._listener is not None
        environment = self._environment(servers)
        shared, number = (self._lock,), self._listener.fileno()
        for partition in range(partitions):
            name = "committer" if partitions == 1 else f"committer-{partition}"
            self._add(name, environment, shared, "committer", "--partition", str(partition))
        self._add("index", environment, shared)
        self._add("rows", environment, shared)
        if self._config.maintain:
            self._add("maintenance", environment, shared, "maintain")
        self._add("server", {**environment, HTTP_FD: str(number)}, (*shared, number))
        for part in self._parts:
            self._say(f"starting {part.name}")
            part.start(self._template)
        self._end_template()

    def _end_template(self) -> None:
        if self._template is not None:
            self._template.close()
            self._template = None

    def _add(
        self, name: str, environment: Mapping[str, str], inherited: Sequence[int], *command: str
    ) -> None:
        """Add a part that runs a command, the one of its name unless another one is given."""
        arguments = command or (name,)
        part = CommandProcess(name, arguments, environment=environment, inherited=inherited)
        self._parts.append(part)

    def _environment(self, servers: str) -> dict[str, str]:
        """Return a child's environment: the settings as they were put together here."""
        config = self._config
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(KAFKA_PREFIX)
        }
        given = {name: str(getattr(config, name)) for name in PASSED_ON}
        given |= {"root": str(self._root), "bootstrap_servers": servers}
        given |= {"fsync": str(config.fsync).lower(), "places": places_setting()}
        environment |= {PREFIX + name.upper(): value for name, value in given.items()}
        for name, value in config.kafka.items():
            environment[KAFKA_PREFIX + name.upper().replace(".", "_")] = value
        return environment

    def _await_readiness(self, port: int) -> None:
        self._say("waiting until everything answers")
        missing, said = "no answer yet", ""
        patience = self._patience(lambda: missing)
        while patience.left:
            self._watch()
            missing = self._not_ready(port)
            if not missing:
                return
            if missing != said:
                logger.info("not ready yet: %s", missing)
                said = missing
            self._stop.wait(POLL_SECONDS)
            if self._stop.is_set():
                raise Stopped
        raise Unavailable(
            f"the service isn't ready and made no progress for {patience.seconds:.0f} s: "
            f"{missing}. See the logs in {self._root}; --start-seconds allows more time"
        )

    def _patience(self, news: Callable[[], str]) -> Patience:
        """Return what says how long to wait for something that broker and parts work on."""

        def processes() -> list[int]:
            broker = [self._broker.pid] if self._broker is not None else []
            return [*broker, *(part.pid for part in self._parts if part.pid is not None)]

        return Patience(self._config.start_seconds, news, processes)

    def _not_ready(self, port: int) -> str:
        config = self._config
        if not config.tls_client_ca:
            return _not_ready(config, port)
        # Only who has a client's certificate could ask it.
        return "" if self._parts[-1].address else "the HTTP server starts"

    @property
    def _is_whole(self) -> bool:
        """Whether broker and parts all run; else one is to be started when its pause is over."""
        return not self._broker_start_at and all(part.pid is not None for part in self._parts)

    def _watch(self) -> None:
        now = time.monotonic()
        self._watch_broker(now)
        for part in self._parts:
            part.check(now)

    def _watch_broker(self, now: float) -> None:
        broker = self._broker
        if broker is None or broker.poll() is None:
            return
        if self._broker_start_at == 0.0:
            with roots.usable(self._root):
                failure = broker.failure()
            if isinstance(failure, DiskFull | TooFewFiles):
                raise failure
            said = str(failure).partition("\n")[0].rstrip(":")
            logger.warning("%s. It is started again", said)
            self._broker_start_at = now + self._broker_restarts.after_death(now)
        elif now >= self._broker_start_at:
            self._broker_start_at = 0.0
            self._restart_broker(broker.port)

    def _restart_broker(self, port: int) -> None:
        self._is_starting = True
        try:
            self._broker = EmbeddedBroker.start(
                self._root,
                port=port,
                fsync=self._config.fsync,
                start_seconds=self._config.start_seconds,
            )
        except BrokerError as error:
            logger.warning("the broker could not be started again: %s", error)
            now = time.monotonic()
            self._broker_start_at = now + self._broker_restarts.after_death(now)
        finally:
            self._is_starting = False

    def _end(self) -> None:
        """End the parts, then the broker that they write to."""
        self._stop.set()
        began = time.monotonic()
        self._end_template()
        for part in self._parts:
            part.ask_to_end()
        for part in self._parts:
            part.end(began + PARTS_END_SECONDS)
        if self._broker is not None:
            self._broker.stop(began + BROKER_END_SECONDS - time.monotonic())
        if self._listener is not None:
            self._listener.close()
        if self._lock >= 0:
            os.close(self._lock)
        logger.info("stopped")

    def _end_by_force(self) -> None:
        self._stop.wait()
        time.sleep(HARD_END_SECONDS)
        # The parts and the broker end with this process; all of them may be killed at any time.
        os._exit(self._forced_code)


def up(config: Config, *, say: Callable[[str], None]) -> None:
    """Run the whole service on a root until SIGTERM or SIGINT."""
    Supervisor(config, say=say).run()


def _imports(config: Config) -> list[str]:
    """Return what the parts of a service import, in an order that suits them all."""
    return [
        "commitlog.adapters.lean_import",  # before what imports that library
        *("consumers.commands.app", "consumers.servers.committer"),
        *("consumers.views.version_index", "consumers.tools.rows.writer"),
        *(("consumers.tools.maintenance.maintenance",) if config.maintain else ()),
        *("consumers.servers.server", "consumers.servers.namespace.routes"),
        *("consumers.servers.iceberg.rest", "consumers.servers.feed"),
        *("consumers.servers.page.routes", "consumers.servers.page.sql"),
    ]


def take_http_listener() -> socket.socket | None:
    """Return the socket that the supervisor listens on for the server, if there is one."""
    number = os.environ.pop(HTTP_FD, None)
    return socket.socket(fileno=int(number)) if number is not None else None


def _not_ready(config: Config, port: int) -> str:
    """Return "" if `/readyz` says that all is well, else what it says."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    opened = http.client.HTTPConnection(reachable, port, timeout=3)
    if config.http_scheme == "https":
        # It is our own child on our own socket; its certificate is for others.
        opened = http.client.HTTPSConnection(
            reachable, port, timeout=3, context=ssl._create_unverified_context()
        )
    with contextlib.closing(opened) as connection:
        try:
            connection.request("GET", "/readyz")
            response = connection.getresponse()
            body = json.loads(response.read())
        except (OSError, ValueError, http.client.HTTPException) as error:
            return f"the HTTP server does not answer ({error})"
    if response.status == http.client.OK:
        return ""
    failed = (c for c in body.get("checks", ()) if c.get("level") == "fail")
    return "; ".join(f"{check['name']}: {check['message']}" for check in failed) or "not ready"
