"""The options of format `commitlog`, read and checked in one place.

Spark hands them over in lower case and without order. An unknown option is an error that
suggests the nearest name: a misspelt `txnAppId` must not quietly lose exactly-once.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import PurePath

from commitlog.adapters.places import places_text
from commitlog.client.history.positions import milliseconds_of
from commitlog.errors import InvalidTransaction
from commitlog.model.names import first_problem, key_problem
from commitlog.model.table import parse_table_id
from commitlog.spark.arrow import column_names
from commitlog.spark.sql_tables import sql_options
from commitlog.spark.unknown_options import KAFKA_PREFIX, advice_about
from commitlog.spark.versions import VersionWanted

BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"

REACH = (BOOTSTRAP_SERVERS, "kafkaFile", "log", "places", "principal", "timeoutSeconds")
COMMON = ("table", "path", *REACH)
WRITE = ("txnAppId", "txnVersion", "strictRepeats", "rows", "rowsPerFile", "bytesPerFile")
ROWS_BY_FILES, ROWS_BY_LOG = "files", "log"
"""What option `rows` of a write may be."""
AS_OF = ("versionAsOf", "timestampAsOf", "positionAsOf", "tag")
READ = ("read", *AS_OF, "columns", "filter", "batchRows", "rowsPerPartition")
READ_TABLE, READ_CHANGES, READ_LOG = "table", "changes", "log"
"""What option `read` may be."""
ONLY_CHANGES = ("endingVersion", "startingVersion", "startingTimestamp")
CHANGES = ("columns", "read", *ONLY_CHANGES, "maxRowsPerTrigger", "maxFilesPerTrigger")
LOG = ("read", "startingPosition", "maxRowsPerTrigger")
FOR_CHANGES = (*ONLY_CHANGES, "startingPosition", "maxRowsPerTrigger", "maxFilesPerTrigger")
EARLIEST, LATEST = "earliest", "latest"
_SHOWN_MAX = 100
"""So many characters of a wrong value are told."""
SPARKS_OWN = ("checkpointLocation", "queryName", "outputMode", "header")
"""What Spark puts beside ours."""

ROWS_PER_FILE = 1024 * 1024
BYTES_PER_FILE = 90 * 1024**3
"""Lance's own defaults."""
BATCH_ROWS = 16 * 1024
ROWS_PER_PARTITION = 512 * 1024
TIMEOUT_SECONDS = 120.0
PRINCIPAL = "spark"
INTEGER_MAX = 2**63 - 1
BATCH_ROWS_MAX = 2**32 - 1
"""Lance's own limit."""
CONNECT_SECONDS = 30.0
"""How long a log may not answer, if option `timeoutSeconds` doesn't say it."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the log; hashable, so that a worker keeps one connection per value."""

    bootstrap_servers: str
    log: str
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    kafka_file: str = ""
    """A properties file with more settings, where secrets belong: only its path travels."""
    places: str = ""
    """Where what the log records is now, if it was moved."""
    connect_seconds: float = CONNECT_SECONDS
    principal: str = PRINCIPAL
    """In whose name it writes."""


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
    by_log: bool = False
    """Small batches go into the log as rows, instead of files of their own."""
    strict_repeats: bool = False
    """Fail where an earlier commit of this sequence has other rows, instead of warning."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a batch source needs to know."""

    connection: Connection
    table: str
    version: VersionWanted = VersionWanted()
    columns: tuple[str, ...] = ()
    predicate: str = ""
    """Lance's SQL: only rows for which it holds are read."""
    batch_rows: int = BATCH_ROWS
    rows_per_partition: int = ROWS_PER_PARTITION


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """What a stream of changes needs to know."""

    connection: Connection
    table: str
    columns: tuple[str, ...] = ()
    starting_version: str | None = None
    """A number, `earliest` or `latest`; None: the rows that are there, then what changes."""
    starting_time_ms: int | None = None
    ending_version: int | None = None
    """Of a batch: the last version; None is the head."""
    rows_per_trigger: int | None = None
    files_per_trigger: int | None = None


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What a reader of the log needs to know."""

    connection: Connection
    changes: bool = False
    """The changes of all tables, instead of the log itself."""
    starting: str = EARLIEST
    rows_per_trigger: int | None = None
    """At most so many outcomes in a batch."""


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
    return replace(_writing(values, _table(values)), application_sequence=sequence)


def _writing(values: Mapping[str, str], table: str) -> WriteOptions:
    """Return what all writes need to know."""
    application_id = values.get("txnappid", "")
    if problem := first_problem("txnAppId", (application_id,), key_problem):
        raise problem.error()
    return WriteOptions(
        connection=_connection(values),
        table=table,
        application_id=application_id,
        rows_per_file=_integer(values, "rowsPerFile", minimum=1) or ROWS_PER_FILE,
        bytes_per_file=_integer(values, "bytesPerFile", minimum=1) or BYTES_PER_FILE,
        timeout_seconds=_seconds(values),
        strict_repeats=_flag(values, "strictRepeats"),
        by_log=_by_log(values),
    )


def _by_log(values: Mapping[str, str]) -> bool:
    text = values.get("rows", ROWS_BY_FILES).lower()
    if text not in (ROWS_BY_FILES, ROWS_BY_LOG):
        raise _not("rows", text, "a write mode", f"Use {ROWS_BY_FILES} or {ROWS_BY_LOG}")
    return text == ROWS_BY_LOG


def parse_batches(options: Mapping[str, str]) -> WriteOptions:
    """Read the options of what names its tables itself: `foreachBatch` and `merge`."""
    others = ("table", "path", "txnVersion")
    names = tuple(name for name in COMMON + WRITE if name not in others)
    values = _known(options, names, use="foreachBatch or merge", others=others)
    return _writing(values, "")


def parse_reach(options: Mapping[str, str], *, use: str) -> Connection:
    """Read the options of what only has to reach the log; others, without effect, are refused."""
    others = COMMON + WRITE + READ + CHANGES + LOG
    return _connection(_known(options, REACH, use=use, others=others))


def parse_read(options: Mapping[str, str]) -> ReadOptions:
    """Read a batch source's options.

    Raises:
        InvalidTransaction: correct the option that `field` names.
    """
    values = _known(options, COMMON + READ, use="a read", others=WRITE + FOR_CHANGES)
    return ReadOptions(
        connection=_connection(values),
        table=_table(values),
        version=_version(values),
        columns=column_names(values.get("columns", "")),
        predicate=values.get("filter", ""),
        batch_rows=_integer(values, "batchRows", minimum=1, maximum=BATCH_ROWS_MAX) or BATCH_ROWS,
        rows_per_partition=_integer(values, "rowsPerPartition", minimum=1) or ROWS_PER_PARTITION,
    )


def parse_changes(options: Mapping[str, str]) -> ChangeOptions:
    """Read the options of a stream of changes.

    Raises:
        InvalidTransaction: correct the option that `field` names.
    """
    values = _known(options, COMMON + CHANGES, use="a stream of changes", others=WRITE + READ)
    start = values.get("startingversion", "").lower() or None
    if start not in (None, EARLIEST, LATEST):
        start = str(_integer(values, "startingVersion", minimum=1))
    time_ms = _time_ms(values, "startingTimestamp")
    rows = _integer(values, "maxRowsPerTrigger", minimum=1)
    files = _integer(values, "maxFilesPerTrigger", minimum=1)
    for one, other in (("startingVersion", "startingTimestamp"),
                       ("maxRowsPerTrigger", "maxFilesPerTrigger")):  # fmt: skip
        if values.get(one.lower()) and values.get(other.lower()):
            raise _bad(other, values[other.lower()], f"excludes {one!r}", "Give one of them")
    return ChangeOptions(
        connection=_connection(values),
        table=_table(values),
        columns=column_names(values.get("columns", "")),
        starting_version=start,
        starting_time_ms=time_ms,
        ending_version=_integer(values, "endingVersion", minimum=1),
        rows_per_trigger=rows,
        files_per_trigger=files,
    )


def what_to_read(options: Mapping[str, str]) -> str:
    """Return what a source is to read: a table, a table's changes, or the log.

    Raises:
        InvalidTransaction: there is nothing of this name.
    """
    given = {str(key).lower(): str(value) for key, value in options.items()}
    wanted = given.get("read", READ_TABLE).lower()
    known = (READ_TABLE, READ_CHANGES, READ_LOG)
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
        advice = f"Did you mean {near[0]!r}?" if near else f"Known are {', '.join(known)}"
        raise _not("read", wanted, "something that can be read", advice)
    is_all = wanted == READ_CHANGES and not (given.get("table") or given.get("path"))
    return READ_LOG if is_all else wanted


def parse_log(options: Mapping[str, str]) -> LogOptions:
    """Read the options of a source of the log, or of all tables' changes.

    Raises:
        InvalidTransaction: correct the option that `field` names.
    """
    values = _known(options, (*REACH, *LOG), use="a read of the log", others=COMMON + WRITE + READ)
    starting = values.get("startingposition", EARLIEST).lower()
    if starting not in (EARLIEST, LATEST):
        raise _not("startingPosition", starting, "a start", f"Use {EARLIEST} or {LATEST}")
    return LogOptions(
        connection=_connection(values),
        changes=values["read"].lower() == READ_CHANGES,
        starting=starting,
        rows_per_trigger=_integer(values, "maxRowsPerTrigger", minimum=1),
    )


def _known(
    options: Mapping[str, str], names: tuple[str, ...], *, use: str, others: tuple[str, ...]
) -> dict[str, str]:
    values = {str(key).lower(): str(value) for key, value in options.items()}
    values = sql_options(values) or values
    allowed = {name.lower(): name for name in names + SPARKS_OWN}
    for key, value in values.items():
        if not value.strip() and allowed.get(key, "table") not in COMMON + SPARKS_OWN:
            raise _bad(allowed[key], value, "is empty", "Give it a value, or leave it out")
        if key in allowed or key.startswith(KAFKA_PREFIX):
            continue
        if elsewhere := next((name for name in others if name.lower() == key), None):
            advice = "Leave it out" + ", or set read='changes'" * (elsewhere in FOR_CHANGES)
            raise _bad(elsewhere, value, f"is not an option of {use}", advice)
        raise _bad(key, value, "is unknown", advice_about(key, allowed, names))
    return values


def _connection(values: Mapping[str, str]) -> Connection:
    servers = values.get(BOOTSTRAP_SERVERS, "")
    if not servers:
        raise _bad(
            BOOTSTRAP_SERVERS, "", "is missing",
            f"Set .option({BOOTSTRAP_SERVERS!r}, 'HOST:PORT'), as `commitlog up` prints it",
        )  # fmt: skip
    file = values.get("kafkafile", "")
    if file and not PurePath(file).is_absolute():
        raise _bad("kafkaFile", file, "is not an absolute path", "Spark's processes work elsewhere")
    settings = sorted(
        (key.removeprefix(KAFKA_PREFIX), value)
        for key, value in values.items()
        if key.startswith(KAFKA_PREFIX) and key != BOOTSTRAP_SERVERS
    )
    return Connection(
        bootstrap_servers=servers,
        log=values.get("log") or "commitlog",
        settings=tuple(settings),
        kafka_file=file,
        places=values.get("places") or places_text(),
        connect_seconds=_seconds(values) if values.get("timeoutseconds") else CONNECT_SECONDS,
        principal=values.get("principal") or PRINCIPAL,
    )


def _table(values: Mapping[str, str]) -> str:
    named = {values[key] for key in ("table", "path") if values.get(key)}
    if len(named) != 1:
        problem = "is missing" if not named else f"names two tables: {', '.join(sorted(named))}"
        raise _bad("table", "", problem, "Set .option('table', 'namespace$table')")
    (table,) = named
    parse_table_id(table)
    return table


def _version(values: Mapping[str, str]) -> VersionWanted:
    given = [name for name in AS_OF if values.get(name.lower())]
    if len(given) > 1:
        raise _bad(given[1], values[given[1].lower()], f"conflicts with {given[0]}",
                   "Give one of them")  # fmt: skip
    return VersionWanted(
        version=_integer(values, "versionAsOf", minimum=1),
        time_ms=_time_ms(values, "timestampAsOf"),
        position=_integer(values, "positionAsOf", minimum=1),
        tag=values.get("tag") or None,
    )


def _time_ms(values: Mapping[str, str], name: str) -> int | None:
    """Read a time in ISO 8601; without a zone it is UTC."""
    text = values.get(name.lower(), "")
    if not text:
        return None
    try:
        # Python takes some milliseconds since 1970 for a date of 1796 and a time, without dashes.
        return milliseconds_of(datetime.fromisoformat("" if text.isdecimal() else text))
    except ValueError:
        raise _not(
            name, text, "a time", "Write it as 2013-07-01T12:00:00Z, or 2013-07-01"
        ) from None


def _flag(values: Mapping[str, str], name: str) -> bool:
    text = values.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise _not(name, text, "true or false", "Write one of them")
    return text == "true"


def _integer(
    values: Mapping[str, str], name: str, *, minimum: int, maximum: int = INTEGER_MAX
) -> int | None:
    text = values.get(name.lower(), "")
    if not text:
        return None
    try:
        number = int(text.replace("_", "."))  # Python takes `1_0` for 10
    except ValueError:
        number = minimum - 1
    if not minimum <= number <= maximum:
        numbers = f"from {minimum}" if number < minimum else f"up to {maximum}"
        raise _not(name, text, "a number that fits", f"Give a whole number {numbers}")
    return number


def _seconds(values: Mapping[str, str]) -> float:
    text = values.get("timeoutseconds", "")
    try:
        seconds = float(text) if text else TIMEOUT_SECONDS
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise _not("timeoutSeconds", text, "a time", "Give seconds above 0")
    return seconds


def _not(name: str, text: str, wanted: str, advice: str) -> InvalidTransaction:
    """Return the refusal of a value, which it tells; others may be secrets in a wrong place."""
    return _bad(name, text, f"is {text[:_SHOWN_MAX]!r}, not {wanted}", advice)


def _bad(name: str, value: object, problem: str, advice: str) -> InvalidTransaction:
    return InvalidTransaction(f"option {name!r} {problem}", field=name, value=value, advice=advice)
