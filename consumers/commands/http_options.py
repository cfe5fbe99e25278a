"""The options of the HTTP server, for `commitlog server` and `commitlog up` alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from consumers.commands.options import setting
from consumers.runtime.forking import CAN_FORK, Template

if TYPE_CHECKING:
    from commitlog.adapters.storage_options import Scoped, StorageFile
    from consumers.runtime.config import Config
    from consumers.servers.namespace.row_work import Done, Work
    from consumers.servers.namespace.settings import Settings
    from consumers.servers.row_processes import RowProcesses
    from consumers.servers.security.identity import Security
    from consumers.servers.server import ServerSettings
    from consumers.views.health import Health

HTTP = Group("The HTTP server", sort_key=5)


@Parameter(name="*", group=HTTP)
@dataclass(frozen=True, kw_only=True)
class Http:
    """Says how the HTTP server behaves; each flag is also a setting."""

    access_file: Annotated[Path | None, setting("access_file")] = None
    base_path: Annotated[str | None, setting("base_path")] = None
    http_hosts: Annotated[str | None, setting("http_hosts")] = None
    allowed_locations: Annotated[str | None, setting("allowed_locations")] = None
    tls_certificate: Annotated[Path | None, setting("tls_certificate")] = None
    tls_key: Annotated[Path | None, setting("tls_key")] = None
    tls_client_ca: Annotated[Path | None, setting("tls_client_ca")] = None
    http_requests_max: Annotated[int | None, setting("http_requests_max")] = None
    batch_operations_max: Annotated[int | None, setting("batch_operations_max")] = None
    row_processes: Annotated[int | None, setting("row_processes")] = None
    row_memory: Annotated[int | None, setting("row_memory")] = None
    iceberg_tables_max: Annotated[int | None, setting("iceberg_tables_max")] = None
    iceberg_updates_max: Annotated[int | None, setting("iceberg_updates_max")] = None
    iceberg_timeout: Annotated[int | None, setting("iceberg_timeout")] = None
    sql: Annotated[bool | None, setting("sql")] = None


HTTP_DEFAULTS = Http()
"""No flag was given."""


def check_http(config: Config) -> None:
    """Raise ConfigurationError, which names what is wrong in the server's settings.

    It needs no log, so `commitlog up` asks before it starts anything. It imports what the settings
    need: all of the server would take a second, in which nothing starts.
    """
    _check(config)
    if config.access_file:
        _security(config)


def _check(config: Config) -> None:
    from consumers.runtime.certificate import Tls
    from consumers.runtime.config import ConfigurationError

    base = config.base_path
    if base and not base.startswith("/"):
        raise ConfigurationError(f"base_path must begin with /, not {config.base_path!r}")
    if bool(config.tls_certificate) is not bool(config.tls_key):
        raise ConfigurationError("tls_certificate and tls_key go together: set both, or none")
    if config.tls_client_ca and not config.tls_certificate:
        raise ConfigurationError("tls_client_ca needs tls_certificate and tls_key")
    for name in ("tls_certificate", "tls_key", "tls_client_ca"):
        path = getattr(config, name)
        if path and not Path(path).is_file():
            raise ConfigurationError(f"{name}: the file {path} does not exist")
    if tls := Tls.of(config):
        tls.context()  # or each start of the server would fail at it
    _storage(config)


def _security(config: Config) -> Security:
    """Return who may do what; ConfigurationError names what is wrong in the access file."""
    from consumers.servers.security.access_file import AccessFile
    from consumers.servers.security.identity import Security

    return Security(AccessFile(Path(config.access_file)) if config.access_file else None)


def server_settings(config: Config, health: Health) -> ServerSettings:
    """Return what stands around the APIs; ConfigurationError names what is wrong."""
    from consumers.runtime.certificate import Tls
    from consumers.servers.metrics import Metrics
    from consumers.servers.security.limits import LimitSettings
    from consumers.servers.server import ServerSettings

    _check(config)
    hosts = frozenset(filter(None, (one.strip().lower() for one in config.http_hosts.split(","))))
    return ServerSettings(
        base_path=config.base_path.rstrip("/"),
        security=_security(config),
        limits=LimitSettings(hosts=hosts, requests_max=config.http_requests_max),
        metrics=Metrics(health.leaders, health.index_lags, health.index_steps),
        tls=Tls.of(config),
    )


def namespace_settings(config: Config) -> Settings:
    """Return how the namespace behaves; ConfigurationError names what is wrong."""
    from consumers.servers.namespace.settings import Settings

    storage, vending = _storage(config)
    return Settings(
        locations=config.allowed_prefixes,
        storage_options=storage.options,
        credentials=storage.credentials,
        vending=vending,
        operations_max=config.batch_operations_max,
    )


def _storage(config: Config) -> tuple[StorageFile, Scoped]:
    """Return the storage file and how it hands out access, which is checked, too."""
    from commitlog.adapters.storage_options import read_storage_file

    storage = read_storage_file(config.storage_file)
    if not storage.vending.by_prefix:
        return storage, storage.vending
    from consumers.servers.vending.vendor import checked

    return storage, checked(storage.vending)


_ROW_IMPORTS = (
    "commitlog.adapters.lean_import",  # before what imports that library
    *("consumers.commands.options", "consumers.servers.namespace.row_work"),
)


def row_template(config: Config) -> Template | None:
    """Have imported what processes for work on rows need; call it before there are threads."""
    if not (CAN_FORK and config.row_processes):
        return None
    return Template(_ROW_IMPORTS, is_fork=True)


def row_processes(config: Config, template: Template | None) -> RowProcesses | None:
    """Return the processes for work on rows, None if the server's own does it."""
    from consumers.servers.row_processes import ProcessSettings, RowProcesses

    if not config.row_processes:
        return None
    memory = config.row_memory * 1024**2
    settings = ProcessSettings(config.row_processes, memory, spare=1, imports=_ROW_IMPORTS)
    factory = f"{__name__}:{row_handler.__name__}"
    return RowProcesses(factory, config, settings, template)


def row_handler(config: Config) -> Callable[[Work], Done]:
    """Return what carries requests out in such a process."""
    import commitlog.adapters.lean_import  # noqa: F401  # before what imports that library

    # isort: split
    from consumers.commands.options import connect_client
    from consumers.servers.namespace.row_work import NotedMetrics, handler
    from consumers.servers.namespace.service import Service

    noted = NotedMetrics()
    log = connect_client(config, "http")
    return handler(Service(log, namespace_settings(config), _security(config), noted), noted)
