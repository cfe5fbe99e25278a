"""Settings: a flag wins over the environment, that over `commitlog.toml`, and that over a default.

The fields of `Config` are the one list of them: the file's keys are their names, the environment's
are these in capitals after `COMMITLOG_`. A key of the file that is not in the list is refused, with
the one that was probably meant.

Kafka's client settings pass through as they are: `--kafka sasl.mechanism=PLAIN`, a `[kafka]`
table, a properties file, or `COMMITLOG_KAFKA__SASL_MECHANISM`, where secrets belong. Nothing of
them is ever printed but their names.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from commitlog.adapters.kafka_file import read_kafka_file
from commitlog.adapters.places import is_misspelt_uri
from commitlog.adapters.storage import local_path, store_for
from commitlog.errors import CommitLogError, InvalidSettings, UnsupportedFormat
from consumers.runtime.endpoints import ENDPOINTS, is_damaged, read_endpoints

PREFIX = "COMMITLOG_"
KAFKA_PREFIX = "COMMITLOG_KAFKA__"
FILE = "commitlog.toml"
PORT_MAX = 65_535
NUMBER_MAX = 2**31 - 1
ROW_MEMORY_MIN = 512
"""MiB: less than what pylance itself takes once it is loaded leaves nothing to work with."""

NOT_SETTINGS = frozenset(
    PREFIX + name
    for name in (
        *("CACHE", "CONFIG", "DEBUG", "HTTP_FD", "IVY_SETTINGS", "JAVA", "LANE", "LOG_FORMAT"),
        "SUPERVISOR_FD",
    )
)
"""Variables that others read."""


class ConfigurationError(CommitLogError):
    """A setting that is unknown, missing or invalid: correct it where the message says."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `default` gives its type; "" and 0 mean "none" or "choose one"."""

    name: str
    default: str | int | bool
    description: str
    is_secret: bool = False
    least: int = 0
    """Of a number."""

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.name.upper()

    @property
    def is_port(self) -> bool:
        """Whether its number is a port."""
        return self.name.endswith("port")

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")


def _setting(
    default: str | int | bool, description: str, *, is_secret: bool = False, least: int = 0
) -> Any:
    """Return a field of `Config` that is a setting; see `Setting`."""
    told = {"description": description, "is_secret": is_secret, "least": least}
    return field(default=default, repr=not is_secret, metadata=told)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings, and where each came from."""

    root: Path | None = _setting("", "folder of the log: broker, tables, index, checkpoints, logs")
    bootstrap_servers: str = _setting("", "a Kafka cluster to use, HOST:PORT,...")
    log: str = _setting("commitlog", "the log's name (commitlog, if not set)")
    tables_root: str = _setting(
        "", "where new tables are created, or a moved root is (ROOT/tables)"
    )
    places: str = _setting("", "where recorded places are now, after a move")
    host: str = _setting("127.0.0.1", "address of the HTTP server")
    port: int = _setting(2333, "port of the HTTP server; 0 picks one")
    kafka_port: int = _setting(0, "port of the embedded broker; 0 picks one and keeps it")
    fsync: bool = _setting(False, "sync records and files to disk before a commit is acknowledged")
    start_seconds: int = _setting(120, "seconds until a start without progress fails", least=1)
    socket_host: str = _setting("127.0.0.1", "address at which writers get their answers")
    socket_port: int = _setting(
        0, "the leader's port; 0 picks one. With several partitions, partition N gets port + N"
    )
    token: str = _setting("", "what writers must show at the leader's socket", is_secret=True)
    maintain: bool = _setting(True, "keep tables fast unattended: compaction, indices, manifests")
    quotas: str = _setting("", "transactions per second by principal: NAME=RATE,...; * is others")
    unwritten_versions: int = _setting(20_000, "versions of a table that may lack files", least=1)
    unwritten_memory: int = _setting(512, "MiB that all that lacks files may take", least=1)
    iceberg_tables_max: int = _setting(100, "tables of one Iceberg transaction", least=1)
    iceberg_updates_max: int = _setting(1000, "updates of a table in an Iceberg commit", least=1)
    iceberg_timeout: int = _setting(30, "seconds that an Iceberg commit may take", least=1)
    access_file: str = _setting(
        "", "who may do what over HTTP, in TOML; without it everybody may do everything"
    )
    base_path: str = _setting("", "serve the APIs below this path")
    http_hosts: str = _setting("", "public names, separated by commas, that lead to loopback")
    allowed_locations: str = _setting("", "prefixes, separated by commas, besides the tables root")
    storage_file: str = _setting("", "how to reach tables in object stores, in TOML")
    tls_certificate: str = _setting("", "serve HTTPS with this certificate chain (PEM)")
    tls_key: str = _setting("", "the certificate's private key (PEM)")
    tls_client_ca: str = _setting("", "authorities that must have signed client certificates (PEM)")
    http_requests_max: int = _setting(256, "requests that may run at the same time", least=1)
    http_drain: int = _setting(0, "seconds that /healthz is red before the server ends")
    batch_operations_max: int = _setting(1000, "operations that one batch may have", least=1)
    row_processes: int = _setting(4, "processes for work on rows; 0 does it in the server's own")
    row_memory: int = _setting(2048, "MiB that each process for rows may use", least=ROW_MEMORY_MIN)
    sql: bool = _setting(True, "answer SQL over the index at /v1/sql")
    kafka_file: str = _setting("", "a properties file with Kafka client settings")
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def http_scheme(self) -> str:
        """What the HTTP server speaks."""
        return "https" if self.tls_certificate else "http"

    @property
    def allowed_prefixes(self) -> tuple[str, ...]:
        """The prefixes besides the tables root below which tables and their files may be."""
        return tuple(filter(None, map(str.strip, self.allowed_locations.split(","))))

    def need_root(self) -> Path:
        """Return the root, made absolute; ConfigurationError if none is set."""
        if self.root is None:
            raise ConfigurationError(
                f"no root is set: give --root DIR, set {PREFIX}ROOT, or write `root` in {FILE}"
            )
        return self.root

    def need_bootstrap_servers(self) -> str:
        """Return where Kafka is, as named or as what ran a broker left it in the root."""
        if self.bootstrap_servers:
            return self.bootstrap_servers
        raise ConfigurationError(
            f"no Kafka cluster is set, and {self._what_root_says()}: give --root DIR of a "
            f"running `commitlog up` or `commitlog broker`, or --bootstrap-servers HOST:PORT "
            f"(or {PREFIX}ROOT, {PREFIX}BOOTSTRAP_SERVERS, {FILE})"
        )

    def _what_root_says(self) -> str:
        if self.root is None:
            return "no root either"
        if is_damaged(self.root):
            return (
                f"{self.root}/{ENDPOINTS}, where it would be noted, is damaged (`commitlog up`"
                " or `commitlog broker` writes it anew at its start)"
            )
        return f"no broker has run on {self.root} yet"

    def need_tables_root(self) -> str:
        """Return where new tables are put, as the log records it."""
        return _absolute_tables_root(self.tables_root or str(self.need_root() / "tables"))


SETTINGS = tuple(
    Setting(one.name, one.default, **one.metadata)  # type: ignore[arg-type]
    for one in fields(Config)
    if one.metadata
)
BY_NAME = {setting.name: setting for setting in SETTINGS}


def load(
    flags: Mapping[str, object] | None = None,
    *,
    kafka: Mapping[str, str] | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Put the settings together; flags that are None were not given.

    Raises:
        ConfigurationError: names the setting, where it was found and what to write instead.
    """
    environment = os.environ if environment is None else environment
    file_path, table = _read_file(file, environment)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for setting in SETTINGS:
        value, source = _find(setting, flags or {}, environment, table, str(file_path))
        values[setting.name] = _typed(setting, value, source)
        sources[setting.name] = source
    kafka_file = values["kafka_file"]
    settings = _kafka_of_properties(kafka_file) if kafka_file else {}
    settings |= _kafka_of_file(table, str(file_path))
    settings |= _kafka_of_environment(environment)
    settings |= kafka or {}
    root = _absolute(values.pop("root"), sources["root"])
    left = read_endpoints(root) if root is not None else {}
    for name in ("bootstrap_servers", "log"):
        if (sources[name] == "default" or not values[name]) and left.get(name):
            values[name], sources[name] = left[name], f"{root}/{ENDPOINTS}"
    return Config(root=root, kafka=settings, sources=sources, **values)


def _absolute(root: str, source: str) -> Path | None:
    """Return a root without '..' in it: the log records places below it."""
    path = os.path.abspath(expanded(root)) if root else ""
    if not _is_plain(path) or "?" in path:  # DuckDB takes what follows a ? for settings
        why = "it has a NUL, a backslash or a ?, or isn't UTF-8"
        raise ConfigurationError(f"{source}: root cannot be {path!r}: {why}")
    return Path(path) if path else None


def expanded(path: str | Path) -> Path:
    """Return a path without the ~ that names somebody's home; ConfigurationError."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigurationError(f"{path}: the home folder that ~ stands for is unknown") from None


def _is_plain(path: str) -> bool:
    """Return True if a path is UTF-8, as a log records it, and Lance finds a file by it."""
    return not any(one in "\0\\" or "\ud800" <= one <= "\udfff" for one in path)


def _absolute_tables_root(text: str) -> str:
    """Return a tables root as a log records it: an absolute folder, or a URI."""
    path = local_path(text)
    is_uri = path is None
    escapes = is_uri and ".." in text.split("/")
    if is_misspelt_uri(text) or not _is_plain(text) or escapes:
        raise ConfigurationError(
            f"tables_root cannot be {text!r}: use a folder, or a URI such as s3://bucket/tables"
        )
    if path is not None:
        return os.path.abspath(expanded(path))
    try:
        store_for(text)
    except UnsupportedFormat as error:
        raise ConfigurationError(f"tables_root: {error}") from error
    return text.rstrip("/")


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return names in the environment that look like settings and are none."""
    known = {setting.variable for setting in SETTINGS} | NOT_SETTINGS
    return sorted(
        name
        for name in environment
        if name.startswith(PREFIX)
        and not name.startswith((KAFKA_PREFIX, PREFIX + "TEST_"))
        and name not in known
    )


def parse_kafka_flags(pairs: tuple[str, ...]) -> dict[str, str]:
    """Read `--kafka KEY=VALUE` flags."""
    settings: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            # The pair may be a secret: it isn't repeated here.
            raise ConfigurationError("--kafka takes KEY=VALUE, for example sasl.mechanism=PLAIN")
        settings[name.strip()] = value
    return settings


def _read_file(file: Path | None, environment: Mapping[str, str]) -> tuple[Path, Mapping[str, Any]]:
    variable = environment.get(PREFIX + "CONFIG")
    named = file or (Path(variable) if variable else None)
    path = named or Path(FILE)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named is None:
            return path, {}
        raise ConfigurationError(f"the configuration file {path} does not exist") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    for name in table:
        if name not in BY_NAME and name != "kafka":
            raise ConfigurationError(
                f"{path}: unknown setting {name!r}{_meant(name)}; known are "
                + ", ".join([*BY_NAME, "[kafka]"])
            )
    return path, table


def _meant(name: str) -> str:
    near = difflib.get_close_matches(name.replace("-", "_").lower(), [*BY_NAME, "kafka"], 1, 0.6)
    return f", did you mean {near[0]!r}?" if near else ""


def _find(
    setting: Setting,
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    table: Mapping[str, Any],
    file: str,
) -> tuple[object, str]:
    if flags.get(setting.name) is not None:
        return flags[setting.name], setting.flag
    if environment.get(setting.variable):
        return environment[setting.variable], setting.variable
    if setting.name in table:
        return table[setting.name], file
    return setting.default, "default"


def _typed(setting: Setting, value: object, source: str) -> str | int | bool:
    shown = "the given value" if setting.is_secret else repr(value)
    wrong = ConfigurationError(
        f"{source}: {setting.name} must be {_kind(setting)}, not {shown} ({setting.description})"
    )
    if isinstance(setting.default, bool):
        words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        chosen = words.get(str(value).lower())
        if chosen is None:
            raise wrong
        return chosen
    if isinstance(setting.default, int):
        try:
            number = int(str(value))
        except ValueError:
            raise wrong from None
        most = PORT_MAX if setting.is_port else NUMBER_MAX
        if isinstance(value, bool) or not setting.least <= number <= most:
            raise wrong
        return number
    if isinstance(value, bool | int | float | list | dict):
        raise wrong
    return str(value)


def _kind(setting: Setting) -> str:
    if isinstance(setting.default, bool):
        return "true or false"
    if not isinstance(setting.default, int):
        return "text"
    if setting.is_port:
        return f"a port number from 0 to {PORT_MAX}"
    return f"a whole number, {setting.least} or more"


def _kafka_of_file(table: Mapping[str, Any], file: str) -> dict[str, str]:
    section = table.get("kafka", {})
    if not isinstance(section, dict):
        raise ConfigurationError(f"{file}: `kafka` is a table: [kafka]")
    settings: dict[str, str] = {}
    _flatten(section, "", settings)
    return settings


def _flatten(table: Mapping[str, Any], prefix: str, into: dict[str, str]) -> None:
    # Unquoted, `sasl.mechanism = "PLAIN"` is TOML for a table in a table.
    for name, value in table.items():
        if isinstance(value, dict):
            _flatten(value, f"{prefix}{name}.", into)
        else:
            into[prefix + name] = str(value).lower() if isinstance(value, bool) else str(value)


def _kafka_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(KAFKA_PREFIX).lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith(KAFKA_PREFIX)
    }


def _kafka_of_properties(path: str) -> dict[str, str]:
    try:
        return read_kafka_file(str(expanded(path)))
    except InvalidSettings as error:
        raise ConfigurationError(f"kafka_file: {error}") from error
