"""Commands that run something: the whole service, one of its parts, or the making of a log."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated
from uuid import uuid4

from cyclopts import Parameter
from cyclopts.validators import Number

from commitlog.adapters.storage import keep_on_disk
from commitlog.errors import InvalidRequest
from consumers.commands import output
from consumers.commands.http_options import (
    HTTP_DEFAULTS,
    Http,
    check_http,
    namespace_settings,
    row_processes,
    row_template,
    server_settings,
)
from consumers.commands.options import (
    COUNT,
    HERE,
    JSON_FLAG,
    Where,
    connect,
    connect_client,
    connect_to_files,
    is_number,
    partitions_of,
    setting,
)
from consumers.runtime import roots
from consumers.runtime.config import PORT_MAX, Config, ConfigurationError
from consumers.runtime.endpoints import read_endpoints, write_endpoints
from consumers.runtime.process import OnReady, left_by_signals, run_part

Partition = Annotated[
    int, Parameter(help="Which partition to decide for.", validator=Number(gte=0))
]
INDEX_NICENESS = 5


def up(
    *,
    where: Where = HERE,
    http: Http = HTTP_DEFAULTS,
    host: Annotated[str | None, setting("host")] = None,
    port: Annotated[int | None, setting("port")] = None,
    kafka_port: Annotated[int | None, setting("kafka_port")] = None,
    fsync: Annotated[bool | None, setting("fsync")] = None,
    start_seconds: Annotated[int | None, setting("start_seconds")] = None,
    maintain: Annotated[bool | None, setting("maintain")] = None,
    quotas: Annotated[str | None, setting("quotas")] = None,
) -> None:
    """Run everything on one machine: broker, log, leader, files, index and HTTP server.

    Prints one line when everything answers: `ready http://HOST:PORT kafka HOST:PORT root DIR`.
    SIGTERM and Ctrl-C stop it within ten seconds; run again, the same command continues.
    """
    from consumers.commands.up import up as run
    from consumers.partition.quotas import Quotas

    config = where.load(
        host=host,
        port=port,
        kafka_port=kafka_port,
        fsync=fsync,
        start_seconds=start_seconds,
        maintain=maintain,
        quotas=quotas,
        is_start=True,
        **asdict(http),
    )
    # Refused here rather than by a part of it, and before anything is written.
    config.need_tables_root()
    Quotas.parse(config.quotas)
    check_http(config)
    run(config, say=output.note)


def broker(
    *,
    where: Where = HERE,
    kafka_port: Annotated[int | None, setting("kafka_port")] = None,
    fsync: Annotated[bool | None, setting("fsync")] = None,
) -> None:
    """Run a single Kafka node from pinned jars; its data is in the root.

    Prints `ready kafka HOST:PORT` when it answers.
    """
    from consumers.broker.embedded import EmbeddedBroker
    from consumers.broker.home import Home, check_path
    from consumers.runtime.places import check_unused

    config = where.load(kafka_port=kafka_port, fsync=fsync)
    check_path(config.need_root())
    root = roots.made(config.need_root())
    if Home(root).cluster_id() is None:
        check_unused(root, config.log)  # its commands would ask this broker from now on

    def work(stop: threading.Event, on_ready: OnReady) -> None:
        with left_by_signals():  # the jars may take minutes
            started = EmbeddedBroker.start(
                root,
                port=config.kafka_port,
                fsync=config.fsync,
                start_seconds=config.start_seconds,
                on_progress=output.note,
            )
        with started as running:
            # What `up` left besides, such as named roots, is still so.
            found = {"bootstrap_servers": running.bootstrap_servers, "log": config.log}
            write_endpoints(root, {**read_endpoints(root), **found})
            on_ready(running.bootstrap_servers)
            while not stop.wait(0.2):
                if failure := running.failure():
                    raise failure

    run_part("kafka", root, work, is_client=False)


def init(
    *,
    where: Where = HERE,
    partitions: Annotated[int, COUNT] = 1,
    domain: Annotated[
        tuple[str, ...], Parameter(negative="", metavar="NAME=PARTITION", show_default=False)
    ] = (),
    replication_factor: Annotated[int | None, COUNT] = None,
    as_json: Annotated[bool, JSON_FLAG] = False,
) -> None:
    """Create a log on a Kafka cluster: its topics and their first records.

    May be run again: existing topics are checked, not changed.

    Parameters
    ----------
    partitions
        How many commit domains may have a leader of their own; fixed once created.
    domain
        Gives tables named NAME$... a partition of their own; may be repeated.
    replication_factor
        Copies of each record; 3 if the cluster has as many brokers.
    as_json
        Print a JSON object.
    """
    from consumers.runtime.places import (
        check_place,
        check_tables_root,
        partitions_on,
        writable_tables_root,
    )

    config = where.load()
    if config.root is None and not config.tables_root:
        raise ConfigurationError(
            "no place for tables is set: give --tables-root PLACE, or --root DIR, whose DIR/tables"
            " they get"
        )
    place = writable_tables_root(config)
    with closing(connect(config)) as log:
        if config.root is not None:
            partitions_on(config.root, log)
        genesis = log.create(
            partitions=partitions,
            domains=_domains(domain) or None,
            tables_root=place,
            replication_factor=replication_factor,
        )
        check_tables_root(config, genesis)
        check_place(log)
    facts = {
        "log": genesis.log,
        "log_id": genesis.log_id,
        "cluster": genesis.cluster_id,
        "partitions": partitions,
        "tables_root": genesis.tables_root,
    }
    output.print_facts(facts, as_json=as_json)


def committer(
    *,
    where: Where = HERE,
    partition: Partition = 0,
    socket_host: Annotated[str | None, setting("socket_host")] = None,
    socket_port: Annotated[int | None, setting("socket_port")] = None,
    quotas: Annotated[str | None, setting("quotas")] = None,
    unwritten_versions: Annotated[int | None, setting("unwritten_versions")] = None,
    unwritten_memory: Annotated[int | None, setting("unwritten_memory")] = None,
    allowed_locations: str | None = None,
    fsync: Annotated[bool | None, setting("fsync")] = None,
) -> None:
    """Decide the transactions of a partition, or stand by while another committer does.

    Parameters
    ----------
    allowed_locations
        Prefixes, separated by commas: base paths of tables must be below one of them or below the
        tables root. Without prefixes, any base path is allowed. [COMMITLOG_ALLOWED_LOCATIONS]
    """
    from consumers.partition.checkpoints.checkpoint import Checkpoints
    from consumers.partition.checkpoints.table_places import check_all
    from consumers.partition.files.unwritten import UnwrittenMax
    from consumers.partition.quotas import Quotas
    from consumers.servers.committer import Committer, CommitterOptions

    config = where.load(
        socket_host=socket_host,
        socket_port=socket_port,
        quotas=quotas,
        unwritten_versions=unwritten_versions,
        unwritten_memory=unwritten_memory,
        allowed_locations=allowed_locations,
        fsync=fsync,
    )
    port, allowed = _socket_port(config, partition), Quotas.parse(config.quotas)
    keep_on_disk(config.fsync)
    root = roots.made(config.need_root())
    options = CommitterOptions(
        root=root,
        partition=partition,
        host=config.socket_host,
        port=port,
        token=config.token,
        quotas=allowed,
        unwritten_max=UnwrittenMax(config.unwritten_versions, config.unwritten_memory),
        allowed_locations=config.allowed_prefixes,
    )

    def work(stop: threading.Event, on_ready: OnReady) -> None:
        log = connect_to_files(config)
        partitions_of(log, partition)
        with closing(log):
            checkpoints = Checkpoints(root, log.identity(), log.genesis(partition))
            check_all(log, root, {partition: checkpoints})
            Committer(log, options, on_ready=on_ready, checkpoints=checkpoints).run(stop)

    run_part("committer" if partition == 0 else f"committer-{partition}", root, work)


def _socket_port(config: Config, partition: int) -> int:
    port = config.socket_port + partition if config.socket_port else 0
    if port > PORT_MAX:
        raise ConfigurationError(
            f"the leader of partition {partition} would listen on port {port}, which is above"
            f" {PORT_MAX}: choose a lower --socket-port"
        )
    return port


def index(*, where: Where = HERE) -> None:
    """Keep the version index ROOT/index.duckdb up to date."""
    from consumers.views.version_index import run_index

    config = where.load()
    root = roots.made(config.need_root())

    def work(stop: threading.Event, on_ready: OnReady) -> None:
        log = connect_to_files(config)
        is_ready = threading.Event()
        with closing(log), ExitStack() as catching_up:
            bar = catching_up.enter_context(output.progress("index, reading the log"))

            def on_progress(done: int, total: int) -> None:
                if is_ready.is_set():
                    return
                bar(done, total)
                if done >= total:
                    catching_up.close()
                    is_ready.set()
                    on_ready("")

            run_index(log, root, stop=stop, on_progress=on_progress)

    # It catches up when the leader, who makes the commits, leaves it time.
    run_part("index", root, work, niceness=INDEX_NICENESS)


def server(
    *,
    where: Where = HERE,
    http: Http = HTTP_DEFAULTS,
    host: Annotated[str | None, setting("host")] = None,
    port: Annotated[int | None, setting("port")] = None,
    http_drain: Annotated[int | None, setting("http_drain")] = None,
) -> None:
    """Serve the Lance Namespace, the Iceberg catalogue, /healthz and /readyz over HTTP."""
    import commitlog.adapters.lean_import  # noqa: F401  # before what imports that library

    # isort: split
    from consumers.commands.up import take_http_listener
    from consumers.servers.feed import feed_routes
    from consumers.servers.iceberg.rest import routes as iceberg_routes
    from consumers.servers.namespace.routes import routes
    from consumers.servers.namespace.row_turns import LargeBodies
    from consumers.servers.page.routes import page_routes
    from consumers.servers.page.sql import SqlService
    from consumers.servers.server import serve
    from consumers.views.health import Health
    from consumers.views.version_index.comparison import check_index_of

    config = where.load(host=host, port=port, http_drain=http_drain, **asdict(http))
    root = config.root or Path.cwd()
    template = row_template(config)
    inherited = take_http_listener()
    drain = 0 if inherited else config.http_drain  # what ends `up` ends all that it serves

    def work(stop: threading.Event, on_ready: OnReady) -> None:
        listener = inherited or roots.listen(config.host, config.port)
        log = connect(config)
        check_index_of(root, log.name, log.genesis().log_id)
        client = connect_client(config, "http")
        health = Health(log, config.root, config.token, server=uuid4().hex)
        settings = replace(server_settings(config, health), drain_seconds=drain)
        processes = row_processes(config, template)
        names = replace(
            namespace_settings(config),
            index=root / "index.duckdb",
            is_alone=health.is_alone,
            is_alone_now=health.is_alone_now,
            problem=health.problem,
        )
        large = LargeBodies(tells_clients_apart=settings.security.is_on)
        lance = routes(client, names, settings.security, settings.metrics, processes, large)
        ours = iceberg_routes(client, config, names, settings.security, large)
        sql = SqlService(root)  # starts nothing before it is asked
        history = [*feed_routes(client), *page_routes(root), *(sql.routes() if config.sql else [])]
        if processes is not None:
            processes.warm()
        try:
            serve(
                health,
                listener,
                routes=[*lance, *ours, *history],
                settings=settings,
                stop=stop,
                on_ready=on_ready,
            )
        finally:
            sql.close()
            if processes is not None:
                processes.close()
            client.close()
            log.close()

    run_part("server", root, work, drain_seconds=drain)


def _domains(pairs: tuple[str, ...]) -> dict[str, int]:
    domains = {}
    for pair in pairs:
        name, _, partition = pair.partition("=")
        if not name or not is_number(partition):
            raise ConfigurationError(f"--domain takes NAME=PARTITION, not {pair!r}")
        if name in domains:
            raise InvalidRequest(f"domain {name!r} is named twice", field="domain", value=name)
        domains[name] = int(partition)
    return domains
