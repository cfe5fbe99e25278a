"""The options of format `commitlog`, read and checked in one place.

Spark hands them over in lower case and without order. An option that nobody knows is an error
that suggests the nearest name: a misspelt `txnAppId` must not quietly lose exactly-once.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from commitlog.errors import InvalidTransaction
from commitlog.model.table import parse_table_id

KAFKA_PREFIX = "kafka."
BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"

COMMON = ("table", "path", BOOTSTRAP_SERVERS, "log", "timeoutSeconds")
WRITE = ("txnAppId", "txnVersion", "rowsPerFile", "bytesPerFile")
READ = ("versionAsOf", "timestampAsOf", "positionAsOf", "tag", "columns", "startingVersion")
PLANNED = ("timestampAsOf", "positionAsOf", "tag", "startingVersion")
"""Names that are taken, for reads that are not there yet."""
SPARKS_OWN = ("checkpointLocation", "queryName", "outputMode", "header")
"""What Spark puts beside ours."""

ROWS_PER_FILE = 1024 * 1024
BYTES_PER_FILE = 90 * 1024**3
"""Lance's own defaults."""
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the log; hashable, so that a worker keeps one connection per value."""

    bootstrap_servers: str
    log: str
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a sink needs to know."""

    connection: Connection
    table: str
    application_id: str = ""
    application_sequence: int | None = None
    rows_per_file: int = ROWS_PER_FILE
    bytes_per_file: int = BYTES_PER_FILE
    timeout_seconds: float = TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a batch source needs to know."""

    connection: Connection
    table: str
    version: int | None = None
    columns: tuple[str, ...] = ()
    timeout_seconds: float = TIMEOUT_SECONDS


def parse_write(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Read a sink's options.

    Raises:
        InvalidTransaction: correct the option that `field` names.
    """
    values = _known(options, COMMON + WRITE, use="a write", others=READ)
    application_id = values.get("txnappid", "")
    sequence = _integer(values, "txnVersion", minimum=0)
    if streaming and sequence is not None:
        raise _bad(
            "txnVersion", sequence, "a streaming write numbers its batches itself",
            "Leave txnVersion out, or write from foreachBatch with txnVersion = batch id",
        )  # fmt: skip
    if not streaming and bool(application_id) != (sequence is not None):
        raise _bad(
            "txnAppId", application_id, "txnAppId and txnVersion belong together",
            "Give both, or none",
        )  # fmt: skip
    return WriteOptions(
        connection=_connection(values),
        table=_table(values),
        application_id=application_id,
        application_sequence=sequence,
        rows_per_file=_integer(values, "rowsPerFile", minimum=1) or ROWS_PER_FILE,
        bytes_per_file=_integer(values, "bytesPerFile", minimum=1) or BYTES_PER_FILE,
        timeout_seconds=_seconds(values),
    )


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """Read a batch source's options.

    Raises:
        InvalidTransaction: correct the option that `field` names.
    """
    values = _known(options, COMMON + READ, use="a read", others=WRITE)
    for name in PLANNED:
        if name.lower() in values:
            raise _bad(name, values[name.lower()], "is not supported yet", "Use versionAsOf")
    columns = tuple(c.strip() for c in values.get("columns", "").split(",") if c.strip())
    return ReadOptions(
        connection=_connection(values),
        table=_table(values),
        version=_integer(values, "versionAsOf", minimum=1),
        columns=columns,
        timeout_seconds=_seconds(values),
    )


def _known(
    options: Mapping[str, str], names: tuple[str, ...], *, use: str, others: tuple[str, ...]
) -> dict[str, str]:
    values = {str(key).lower(): str(value) for key, value in options.items()}
    allowed = {name.lower(): name for name in names + SPARKS_OWN}
    for key, value in values.items():
        if key in allowed or key.startswith(KAFKA_PREFIX):
            continue
        elsewhere = next((name for name in others if name.lower() == key), None)
        if elsewhere is not None:
            raise _bad(elsewhere, value, f"is not an option of {use}", "Leave it out")
        near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.5)
        raise _bad(
            key, value, "is unknown",
            f"Perhaps you mean {allowed[near[0]]!r}" if near else f"Known are {', '.join(names)}",
        )  # fmt: skip
    return values


def _connection(values: Mapping[str, str]) -> Connection:
    servers = values.get(BOOTSTRAP_SERVERS, "")
    if not servers:
        raise _bad(
            BOOTSTRAP_SERVERS, "", "is missing",
            f"Set .option({BOOTSTRAP_SERVERS!r}, 'HOST:PORT'), as `commitlog up` prints it",
        )  # fmt: skip
    settings = sorted(
        (key.removeprefix(KAFKA_PREFIX), value)
        for key, value in values.items()
        if key.startswith(KAFKA_PREFIX) and key != BOOTSTRAP_SERVERS
    )
    return Connection(servers, values.get("log") or "commitlog", tuple(settings))


def _table(values: Mapping[str, str]) -> str:
    named = {values[key] for key in ("table", "path") if values.get(key)}
    if len(named) != 1:
        problem = "is missing" if not named else f"names two tables: {', '.join(sorted(named))}"
        raise _bad("table", "", problem, "Set .option('table', 'namespace$table')")
    (table,) = named
    parse_table_id(table)
    return table


def _integer(values: Mapping[str, str], name: str, *, minimum: int) -> int | None:
    text = values.get(name.lower(), "")
    if not text:
        return None
    try:
        number = int(text)
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise _bad(name, text, "is not a number that fits", f"Give a whole number from {minimum}")
    return number


def _seconds(values: Mapping[str, str]) -> float:
    text = values.get("timeoutseconds", "")
    try:
        seconds = float(text) if text else TIMEOUT_SECONDS
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise _bad("timeoutSeconds", text, "is not a time", "Give seconds above 0")
    return seconds


def _bad(name: str, value: object, problem: str, advice: str) -> InvalidTransaction:
    return InvalidTransaction(f"option {name!r} {problem}", field=name, value=value, advice=advice)
