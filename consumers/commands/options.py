"""The options that commands share: where the log is."""

from __future__ import annotations

import getpass
import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number, mutually_exclusive

from commitlog.adapters.places import is_misspelt_uri, use_named, use_places
from commitlog.adapters.storage_options import use_storage_file
from commitlog.errors import Unavailable, WrongLog
from commitlog.protocol import check_log_name
from consumers.commands import output
from consumers.runtime.config import BY_NAME, Config, ConfigurationError, load, parse_kafka_flags
from consumers.runtime.endpoints import ENDPOINTS, noted_roots, read_endpoints
from consumers.runtime.patience import told_if_slow, waiting_for

if TYPE_CHECKING:
    from commitlog.client.log import CommitLog
    from commitlog.ports import ArchivableLog, Log


def setting(name: str, **more: Any) -> Parameter:
    """Return a flag that is also a setting: its help is the description, default and variable."""
    one = BY_NAME[name]
    what, semicolon, rest = one.description.partition(";")
    default = "yes" if one.default is True else str(one.default or "")
    if default and default not in what:
        what += f" ({default})"
    end = "" if one.description.endswith(".") else "."
    told = f"{what[0].upper()}{what[1:]}{semicolon}{rest}{end} [{one.variable}]"
    return Parameter(help=told, show_default=False, **more)


WHERE = Group("Where the log is", sort_key=10)

KAFKA = (
    "A Kafka client setting, for example sasl.mechanism=PLAIN; may be repeated. Secrets belong in"
    " a file (--kafka-file) or in the environment (COMMITLOG_KAFKA__SASL_PASSWORD)."
)
ANSWER_SECONDS = 30.0
"""How long Kafka may take for its first answer."""
Flag = Annotated[bool, Parameter(negative="", show_default=False)]
# At most one of them; help lists them beside the other flags.
FORMATS = ("Parameters", Group("output formats", show=False, validator=mutually_exclusive))
JSON_FLAG = Parameter(name="--json", negative="", show_default=False, group=FORMATS)
AsJson = Annotated[bool, JSON_FLAG, Parameter(help="Print a JSON array.")]
AsJsonObject = Annotated[bool, JSON_FLAG, Parameter(help="Print a JSON object.")]
AsJsonReport = Annotated[bool, JSON_FLAG, Parameter(help="Print the whole report as JSON.")]
AsCsv = Annotated[
    bool, Parameter(name="--csv", negative="", show_default=False, group=FORMATS, help="Print CSV.")
]
COUNT_MAX = 10_000
"""Kafka's client takes no more brokers, and so no more copies; each partition has a process."""
LIMIT_MAX = 2**31
_AT = "SELECT transaction_id FROM transaction_at(?, of_partition := ?)"


def _folder(_: object, tokens: Sequence[Token]) -> Path:
    """Refuse what a variable that isn't set leaves, the current folder for a `Path`, and a URI."""
    value = tokens[0].value
    if not value.strip():
        raise ValueError("it is empty; `.` is the current folder")
    if "://" in value or is_misspelt_uri(value):
        raise ValueError(f"{value} is a URI; name a folder of this machine, and copy it from there")
    return Path(value)


Folder = Annotated[Path, Parameter(converter=_folder)]


def _from_zero(_: object, value: float | None) -> None:
    if value is not None and not 0 <= value < math.inf:
        raise ValueError("It must be 0 or more.")


def _above_zero(_: object, value: float | None) -> None:
    if value is not None and not 0 < value <= LIMIT_MAX:
        raise ValueError(f"It must be above 0, and {LIMIT_MAX} at most.")


FROM_ZERO = Parameter(validator=_from_zero)
ABOVE_ZERO = Parameter(validator=_above_zero)
COUNT = Parameter(validator=Number(gte=1, lte=COUNT_MAX))
Limit = Annotated[
    int,
    Parameter(
        name=["--limit", "-n"],
        help="How many rows at most.",
        validator=Number(gte=1, lte=LIMIT_MAX),
    ),
]


@Parameter(name="*", group=WHERE)
@dataclass(frozen=True, kw_only=True)
class Where:
    """Names a log; each flag is also a setting (environment, `commitlog.toml`)."""

    root: Annotated[Folder | None, setting("root")] = None
    bootstrap_servers: Annotated[str | None, setting("bootstrap_servers")] = None
    log: Annotated[str | None, setting("log")] = None
    tables_root: Annotated[str | None, setting("tables_root")] = None
    kafka: Annotated[
        tuple[str, ...],
        Parameter(
            negative="", consume_multiple=False, metavar="KEY=VALUE", show_default=False, help=KAFKA
        ),
    ] = ()
    kafka_file: Annotated[Path | None, setting("kafka_file")] = None
    storage_file: Annotated[Path | None, setting("storage_file")] = None
    places: Annotated[str | None, setting("places", metavar="OLD=NEW,...")] = None
    config: Path | None = None
    """The configuration file (./commitlog.toml, if not set). [COMMITLOG_CONFIG]"""

    debug: Flag = False
    """Show the traceback of an error. [COMMITLOG_DEBUG]"""

    def load(self, *, is_start: bool = False, **flags: object) -> Config:
        """Put the settings together, and let them say how this process reaches its stores.

        Where the root's `up` found its tables, other commands do; a start of it says so itself.

        Raises WrongLog if the root is another log's, ConfigurationError for what can't be right.
        """
        kafka = parse_kafka_flags(self.kafka)
        config = load({**vars(self), **flags}, kafka=kafka, file=self.config)
        check_log_name(config.log)
        _check_root(config)
        if not is_start:
            config = _with_places_of_root(config)
        use_storage_file(config.storage_file)
        has_tables = config.tables_root or config.root is not None
        use_places(config.places, config.need_tables_root() if has_tables else "")
        return config

    def index_root(self) -> Path:
        """Return the root whose index is asked."""
        root = self.load().need_root()
        if not root.exists():
            raise ConfigurationError(f"root {root} does not exist: name the folder of a log")
        use_named(noted_roots(root), has_tables=True)
        return root


def _check_root(config: Config) -> None:
    """Raise WrongLog if the root is that of another log than the settings name."""
    if config.root is None:
        return
    if config.root.exists() and not config.root.is_dir():
        raise ConfigurationError(f"root {config.root} is not a folder: name a folder")
    kept = read_endpoints(config.root).get("log") or config.log
    if kept != config.log:
        raise WrongLog(
            f"{config.root} is the root of log {kept!r}, not of {config.log!r}, which"
            f" {config.sources['log']} says: leave that out, or name the root of that log"
        )


HERE = Where()
"""No flag was given."""


def _with_places_of_root(config: Config) -> Config:
    """Take the places with which `up` runs on the root; one that was moved since has none."""
    left = read_endpoints(config.root) if config.root is not None else {}
    if config.places or not left.get("places") or left.get("root") != str(config.root):
        return config
    sources = {**config.sources, "places": f"{config.root}/{ENDPOINTS}"}
    return replace(config, places=left["places"], sources=sources)


def connect(config: Config) -> ArchivableLog:
    """Reach the log that the settings name, together with the archive in its root."""
    from commitlog.adapters.kafka import KafkaLog
    from commitlog.adapters.kafka_settings import ClientSettings
    from consumers.runtime.process import left_by_signals

    servers = config.need_bootstrap_servers()
    is_of_root = config.sources["bootstrap_servers"] == f"{config.root}/{ENDPOINTS}"
    command = shlex.join(("commitlog", "up", "--root", str(config.root)))
    settings = ClientSettings(servers, config.kafka)

    def advice() -> str:
        is_away = is_of_root and not settings.trouble()
        return f"; if nothing runs on this root, start `{command}`" if is_away else ""

    def waits() -> str:
        return waiting_for(servers, ANSWER_SECONDS, settings.trouble()) + advice()

    try:
        with left_by_signals(), told_if_slow(output.note, waits):
            log = KafkaLog.reach(settings, config.log, ANSWER_SECONDS)
    except Unavailable as error:
        if type(error) is not Unavailable or not advice():
            raise
        raise Unavailable(f"{error}{advice()}") from error
    if config.root is None:
        return log
    from consumers.tools.archive.log import with_archive

    return with_archive(log, config.root)


def connect_to_files(config: Config, *, needs_checkpoint: bool = True) -> ArchivableLog:
    """Reach the log as `connect` does, and learn from it where its tables are.

    Raises CorruptLog if the root has a damaged checkpoint, unless that isn't needed.
    """
    from consumers.partition.checkpoints.table_places import find_roots

    log = connect(config)
    try:
        find_roots(log, config.root, needs_checkpoint=needs_checkpoint)
    except BaseException:
        log.close()
        raise
    return log


def connect_client(config: Config, principal: str = "") -> CommitLog:
    """Return a client of the log that the settings name; it writes in the name of `principal`.

    It reads what was given up to the archive in the root, too.
    """
    from commitlog.client.leader.runtime import RuntimeSettings
    from commitlog.client.log import CommitLog

    settings = RuntimeSettings(token=config.token)
    client = CommitLog(lambda: connect(config), principal=principal, settings=settings)
    client.runtime().connection(0)
    return client


def index_of(config: Config) -> Path | None:
    """Return where the root's version index is, or would be; None without a root."""
    return config.root / "index.duckdb" if config.root is not None else None


def is_number(text: str) -> bool:
    """Return True for ASCII digits alone: ² is a digit too, and no number."""
    return text.isascii() and text.isdigit()


def from_stdin() -> str:
    """Return what standard input has; ConfigurationError if that is no text."""
    try:
        text = sys.stdin.read()
        text.encode()
    except UnicodeError as error:
        raise ConfigurationError(f"standard input isn't text in UTF-8: {error}") from None
    return text


def user() -> str:
    """Return who runs this; in a container, a user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def partitions_of(log: Log, only: int | None) -> Sequence[int]:
    """Return the partition that is named, or all; ConfigurationError if the log has no such one."""
    count = log.partitions()
    if only is None:
        return range(count)
    _check_partition(only, count)
    return [only]


def id_of(root: Path, transaction: str, partition: int) -> str:
    """Return the id of a transaction that is named by it, or by a position of a partition."""
    if not is_number(transaction):
        return transaction
    from consumers.history import query

    if found := query(root, _AT, [int(transaction), partition]):
        return str(found[0]["transaction_id"])
    _check_partition(partition, len(query(root, "FROM index_status")))
    return transaction


def _check_partition(only: int, count: int) -> None:
    if not 0 <= only < count:
        has = "only partition 0" if count == 1 else f"partitions 0 to {count - 1}"
        raise ConfigurationError(f"--partition {only} does not exist: the log has {has}")
