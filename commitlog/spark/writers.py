"""Methods of data frames that Spark answers itself, as `statements` does for SQL.

`saveAsTable`, `toTable` and `writeTo(…).create()` would write the rows and leave a name in Spark's
catalog that cannot be used; without a format, the first makes the name of a table of the log one of
Parquet; streams would drop what `partitionBy` says, and continuous ones their rows. All of it is
refused before it runs. Where Spark refuses, the error says what to use instead.
A write into a name of SQL's `CREATE TABLE` for which Spark hands over no options is done again with
those of the table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from pyspark.errors import PySparkException
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.functions import lit
from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter, DataFrameWriterV2
from pyspark.sql.streaming.readwriter import DataStreamWriter

from commitlog.spark.sql_tables import NO_OPTIONS
from commitlog.spark.statements import FORMAT, MAKE_IT, TIME_TRAVEL, NotInSql, is_ours, options_of

_NOTED = "_commitlog_noted"
_SAVE = "Write with .format('commitlog'), option 'table' and .save(), or .start() of a stream"
_MERGE = "Use `commitlog.spark.merge`"
_STATIC = (
    "Set spark.sql.sources.partitionOverwriteMode=static, which replaces all rows: tables of the"
    " log have no partitions. To replace some, use `CommitLog.delete` and append, or"
    " `commitlog.spark.merge`"
)
_SOME = "Use `CommitLog.delete` and append, or `commitlog.spark.merge`; .overwrite(lit(True)) works"
_TRIGGERS = {
    "continuous": "Spark gives no rows of a continuous stream to a sink in Python, and takes them"
    " for written",
    "realTime": "Spark lets no real-time stream write into a sink in Python",
}

Method = Callable[..., Any]


def check_writers() -> None:
    """Have the writers of data frames refuse what would have no effect."""
    if hasattr(DataFrameWriter.format, "__wrapped__"):
        return
    for writer in (DataFrameWriter, DataStreamWriter):
        _wrap(writer, "format", _noting("format"))
        for name in ("partitionBy", "clusterBy", "bucketBy"):
            if hasattr(writer, name):
                _wrap(writer, name, _noting("places"))
    _wrap(DataFrameWriter, "mode", _noting("mode"))
    _wrap(DataStreamWriter, "trigger", _trigger)
    _wrap(DataStreamWriter, "outputMode", _noting("outputMode"))
    _wrap(DataFrameWriterV2, "using", _noting("format"))
    for name in ("partitionedBy", "clusterBy"):
        _wrap(DataFrameWriterV2, name, _noting("places"))
    _wrap(DataFrameWriter, "saveAsTable", _save_as_table)
    _wrap(DataFrameWriter, "insertInto", _insert_into)
    _wrap(DataStreamWriter, "toTable", _to_table)
    for name in ("create", "replace", "createOrReplace"):
        _wrap(DataFrameWriterV2, name, _creating(name))
    for name in ("append", "overwrite", "overwritePartitions"):
        _wrap(DataFrameWriterV2, name, _writing)
    _wrap(DataFrame, "writeTo", _write_to)
    _wrap(DataFrameReader, "table", _read_table)
    _wrap(DataFrame, "mergeInto", _merge_into)


def _wrap(kind: type, name: str, around: Callable[..., Any]) -> None:
    """Replace a method by `around`, which gets it, the object, and the arguments."""
    plain: Method = getattr(kind, name)

    @functools.wraps(plain)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        return around(plain, self, *args, **options)

    setattr(kind, name, method)


def _noted(writer: Any) -> dict[str, Any]:
    """Return what a writer was given; Spark keeps it out of sight."""
    noted: dict[str, Any] = writer.__dict__.setdefault(_NOTED, {})
    return noted


def _is_format(writer: Any) -> bool:
    return str(_noted(writer).get("format")).lower() == FORMAT


def _noting(what: str) -> Method:
    def method(plain: Method, writer: Any, *args: Any, **options: Any) -> Any:
        made = plain(writer, *args, **options)
        _noted(writer)[what] = args[0] if args else next(iter(options.values()), None)
        _check_stream(writer)
        if _is_format(writer) and "places" in _noted(writer):
            raise NotInSql(
                "tables of the log have no partitions, clusters or buckets", field="partitionBy",
                value=_noted(writer)["places"], advice="Leave it out",
            )  # fmt: skip
        return made

    return method


def _trigger(plain: Method, writer: Any, **given: Any) -> Any:
    made = plain(writer, **given)
    _noted(writer).update({kind: given.get(kind) for kind in _TRIGGERS})
    _check_stream(writer)
    return made


def _check_stream(writer: Any, table: str = "") -> None:
    noted = _noted(writer)
    trigger = next((kind for kind in _TRIGGERS if noted.get(kind)), "")
    mode = noted.get("outputMode")
    is_update = str(mode).lower() == "update"
    if not (trigger or is_update):
        return
    if not (_is_format(writer) or (table and is_ours(writer._spark, table))):
        return
    if trigger:
        raise NotInSql(
            _TRIGGERS[trigger], field=trigger, value=noted[trigger],
            advice="Use trigger(processingTime=…) or trigger(availableNow=True)",
        )  # fmt: skip
    raise NotInSql(
        "a stream into the log has output mode append or complete", field="outputMode", value=mode,
        advice="To update rows by their key, use foreachBatch with `commitlog.spark.upsert`",
    )  # fmt: skip


def _save_as_table(plain: Method, writer: Any, name: str, *args: Any, **options: Any) -> Any:
    given = dict(zip(("format", "mode", "partitionBy"), args, strict=False)) | options
    for what in ("format", "mode"):
        if given.get(what):
            _noted(writer)[what] = given[what]
    mode = str(_noted(writer).get("mode")).lower()
    session = writer._df.sparkSession
    if _is_format(writer) and (mode == "overwrite" or not session.catalog.tableExists(name)):
        _refuse_name("saveAsTable", name)
    if mode == "overwrite":
        _check_format(writer, session, "saveAsTable", name)
    return _with_options(writer, name, functools.partial(plain, writer, name, *args, **options))


def _insert_into(plain: Method, writer: Any, tableName: str, overwrite: Any = None) -> Any:  # noqa: N803
    try:
        return plain(writer, tableName, overwrite)
    except PySparkException as error:
        if _is_unsupported(error) and is_ours(writer._spark, tableName):
            raise NotInSql(
                f"insertInto cannot replace partitions of the table {tableName} of the log",
                field="partitionOverwriteMode", value=tableName, advice=_STATIC,
            ) from error  # fmt: skip
        options = options_of(writer._spark, tableName) if NO_OPTIONS in str(error) else {}
        if not options:
            raise
    # `insertInto` passes no options on. What lacks them are columns of the table's own names.
    again = writer._df.writeTo(tableName).options(**options)
    if overwrite is None:
        overwrite = str(_noted(writer).get("mode")).lower() == "overwrite"
    return again.overwrite(lit(True)) if overwrite else again.append()


def _to_table(plain: Method, writer: Any, tableName: str, *args: Any, **options: Any) -> Any:  # noqa: N803
    kind = args[0] if args else options.get("format")
    if kind:
        _noted(writer)["format"] = kind
    if _is_format(writer) and not writer._spark.catalog.tableExists(tableName):
        _refuse_name("toTable", tableName)
    _check_stream(writer, tableName)
    return plain(writer, tableName, *args, **options)


def _write_to(plain: Method, frame: Any, table: str) -> Any:
    writer = plain(frame, table)
    _noted(writer)["table"] = table
    return writer


def _creating(name: str) -> Method:
    def method(plain: Method, writer: Any) -> Any:
        if _is_format(writer):
            _refuse_name(f"writeTo(…).{name}", _noted(writer).get("table", ""))
        if name != "create":
            _check_format(writer, writer._spark, f"writeTo(…).{name}", _noted(writer)["table"])
        return plain(writer)

    return method


def _writing(plain: Method, writer: Any, *condition: Any) -> Any:
    table = _noted(writer).get("table", "")
    try:
        return _with_options(writer, table, functools.partial(plain, writer, *condition))
    except PySparkException as error:
        if not _is_unsupported(error) or not is_ours(writer._spark, table):
            raise
        raise NotInSql(
            f"writeTo(…).{plain.__name__} cannot replace a part of the table {table} of"
            " the log",
            field="writeTo", value=table, advice=_SOME,
        ) from error  # fmt: skip


def _merge_into(plain: Method, frame: Any, table: str, *args: Any, **options: Any) -> Any:
    if is_ours(frame.sparkSession, table):
        raise NotInSql(
            f"mergeInto does not support the table {table} of the log", field="mergeInto",
            value=table, advice=_MERGE,
        )  # fmt: skip
    return plain(frame, table, *args, **options)


def _read_table(plain: Method, reader: Any, tableName: str) -> Any:  # noqa: N803
    try:
        return plain(reader, tableName)
    except PySparkException as error:
        if error.getCondition() != TIME_TRAVEL or not is_ours(reader._spark, tableName):
            raise
        raise NotInSql(
            f"read.table does not read the table {tableName} of the log at a version",
            field="table", value=tableName,
            advice="Use read.format('commitlog') with the same options, option 'table' and .load()",
        ) from error  # fmt: skip


def _is_unsupported(error: PySparkException) -> bool:
    return "UNSUPPORTED_FEATURE" in str(error.getCondition())


def _check_format(writer: Any, session: Any, method: str, name: str) -> None:
    """Refuse to make a name of a table of the log one of Spark's default format, unasked."""
    if _noted(writer).get("format"):
        return
    catalog = session.catalog
    # A temporary view of that name is not what the writer would replace.
    place = f"`{catalog.currentCatalog()}`.`{catalog.currentDatabase()}`."
    if not is_ours(session, name if "." in name else place + name):
        return
    raise NotInSql(
        f"{method} without a format makes a table of format"
        f" {session.conf.get('spark.sql.sources.default')}, and {name!r} is a table of the log",
        field=method, value=name,
        advice=f"To replace its rows, use write.insertInto({name!r}, overwrite=True). To give the"
        " name to another table, DROP TABLE first, which leaves the log as it is",
    )  # fmt: skip


def _with_options(writer: Any, table: str, write: Callable[[], Any]) -> Any:
    try:
        return write()
    except PySparkException as error:
        options = options_of(writer._spark, table) if NO_OPTIONS in str(error) else {}
        if not options:
            raise
    writer.options(**options)
    return write()


def _refuse_name(method: str, name: str) -> NoReturn:
    raise NotInSql(
        f"{method} cannot create a table in the log: Spark would write the rows and keep "
        f"{name!r} as an unusable name", field=method, value=name, advice=f"{_SAVE}. {MAKE_IT}",
    )  # fmt: skip
