"""Statements that Spark answers itself: refused where it would say OK and do nothing, or explained.

A Python data source does not hear of ALTER TABLE, COMMENT ON, nor of CREATE TABLE with columns:
Spark changes its own catalog and answers OK. It refuses UPDATE, DELETE, MERGE INTO, TRUNCATE and
VERSION AS OF, and cannot know what does the same here. So `SparkSession.sql` looks at such
statements, with Spark's own parser: at the first three before they run, at the others once Spark
has refused them. A statement of several INSERTs is refused, too: each would see what those before
it wrote, which would stay if a later one failed. An INSERT for which Spark hands over no options of
its table is run again with them. `writers` does the same for the methods of data frames.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.catalog import Catalog

from commitlog.errors import InvalidRequest
from commitlog.spark.sql_tables import KEPT, NO_OPTIONS

FORMAT = "commitlog"
_IS_CHECKED = "commitlog_checks_statements"
_MAY_DO_NOTHING = re.compile(
    rf"\balter\b|\bcomment\s+on\b|\bexecute\b|\b(?:create|replace)\b.*\b{FORMAT}\b"
    r"|\binsert\b.*\binsert\b|\bcreate\b.*\blike\b",
    re.I | re.S,
)
_SESSION_CATALOG = "spark.sql.catalog.spark_catalog"
_DELTA = "DeltaCatalog"
_CHANGES = ("ALTER TABLE", "COMMENT ON")
_NOT_WHOLE = ("UNSUPPORTED_FEATURE", "NON_PARTITION_COLUMN")
TIME_TRAVEL = "UNSUPPORTED_FEATURE.TIME_TRAVEL"
MAKE_IT = (
    "Make the table in the log (`CommitLog.create_table`), then CREATE TABLE … USING commitlog"
    " OPTIONS (…) without columns; INSERT INTO adds rows"
)
_ALTERED = (
    "Change columns in the log (`CommitLog.add_columns`, `alter_columns`, `drop_columns`), then run"
    " CREATE OR REPLACE TABLE … USING commitlog OPTIONS (…); set properties with"
    " `CommitLog.set_properties`"
)
_AS_OF = (
    "Write WITH (tag = '…') or WITH (positionAsOf = '…') after the table's name, or "
    "create a view: CREATE TEMPORARY VIEW … USING commitlog OPTIONS (…, versionAsOf "
    "'…'), or timestampAsOf"
)
_SOME_ROWS = (
    "INSERT that replaces some rows",
    "Use `CommitLog.delete` and INSERT INTO, or `commitlog.spark.merge`; INSERT OVERWRITE without a"
    " partition, and with spark.sql.sources.partitionOverwriteMode=static, replaces all rows",
)
_REFUSED = {
    "UpdateTable": ("UPDATE", "Use `CommitLog.update`"),
    "DeleteFromTable": ("DELETE", "Use `CommitLog.delete`"),
    "MergeIntoTable": ("MERGE INTO", "Use `commitlog.spark.merge`"),
    "TruncateTable": ("TRUNCATE TABLE", "Use `CommitLog.delete` with the predicate 'true'"),
    "TruncatePartition": ("partitions", "Use `CommitLog.delete`"),
    "ShowPartitions": ("partitions", "`CommitLog.open` lists the table's fragments"),
    "CreateIndex": ("CREATE INDEX", "Use `CommitLog.create_index`"),
    "DropIndex": ("DROP INDEX", "Use `CommitLog.open(table).drop_index(name)`"),
    "AddCheckConstraint": ("CHECK constraints", "Check rows before they are written"),
    "AnalyzeTable": ("ANALYZE TABLE", "Leave it out: Spark uses no statistics of it"),
    "AnalyzeColumn": ("ANALYZE TABLE", "Leave it out: Spark uses no statistics of it"),
    "RepairTable": ("partitions", "Use `commitlog verify`"),
    "LoadData": ("LOAD DATA", "Read the files with Spark, and use INSERT INTO"),
    "InsertIntoStatement": _SOME_ROWS,
    "OverwriteByExpression": _SOME_ROWS,  # REPLACE WHERE before Spark 4.3
}
"""What Spark refuses: the parsed statement's class, its name, and what to use instead."""
_OTHERS = re.compile(
    r"\s*(DESC(?:RIBE)?\s+(?:HISTORY|DETAIL)|OPTIMIZE|VACUUM|RESTORE(?:\s+TABLE)?)\s+([\w.`]+)",
    re.I,
)
_INSTEAD_OF_OTHERS = {
    "D": "Read the log (`read='log'`), or use `commitlog history`",
    "O": "Use `CommitLog.compact`, or `commitlog maintain`",
    "V": "Use `commitlog maintain`",
    "R": "Use `commitlog rollback`",
}
"""Statements of other formats, which Spark cannot parse or takes for something else."""


class NotInSql(InvalidRequest, AnalysisException):
    """A statement that tables of this format don't have; `advice` says what to use instead."""


def check_statements() -> None:
    """Have `SparkSession.sql` and `Catalog.createTable` refuse what would have no effect."""
    if not hasattr(SparkSession.sql, _IS_CHECKED):
        setattr(SparkSession, "sql", _checked_sql(SparkSession.sql))  # noqa: B010
        setattr(Catalog, "createTable", _checked_creation(Catalog.createTable))  # noqa: B010


def _checked_sql(plain: Any) -> Any:
    @functools.wraps(plain)
    def sql(self: SparkSession, sqlQuery: str, *args: Any, **kwargs: Any) -> Any:  # noqa: N803
        if _MAY_DO_NOTHING.search(sqlQuery):
            _refuse_without_effect(self, sqlQuery)
        try:
            return plain(self, sqlQuery, *args, **kwargs)
        except PySparkException as error:
            whole = _with_options(self, sqlQuery, error)
            if whole is not None:
                return plain(self, whole, *args, **kwargs)
            refusal = _explained(self, sqlQuery, error)
            if refusal is None:
                raise
            raise refusal from error

    setattr(sql, _IS_CHECKED, True)
    return sql


def _checked_creation(plain: Any) -> Any:
    @functools.wraps(plain)
    def create(
        self: Catalog, tableName: str, path: Any = None, source: Any = None,  # noqa: N803
        schema: Any = None, *args: Any, **options: Any,
    ) -> Any:  # fmt: skip
        if source is not None and source.lower() == FORMAT:
            session: Any = self._sparkSession
            _refuse_creation(session, "Catalog.createTable", has_columns=schema is not None)
        return plain(self, tableName, path, source, schema, *args, **options)

    return create


def _refuse_without_effect(session: Any, text: str) -> None:
    for plan in _statements(_parsed(session, text)):
        _refuse(session, plan)


def _statements(plan: Any) -> Iterator[Any]:
    """Yield a statement, or those of a script (`BEGIN … END`), its loops and branches."""
    kind = _kind(plan)
    if kind == "SingleStatement":
        yield _without_with(plan.parsedPlan())
    elif kind == "CompoundBody" or kind.endswith("Statement") and kind != "InsertIntoStatement":
        parts = plan.children()
        for position in range(parts.size()):
            yield from _statements(parts.apply(position))
    else:
        yield plan


def _refuse(session: Any, plan: Any) -> None:
    kind = _kind(plan)
    if kind == "UnresolvedExecuteImmediate":
        _refuse_without_effect(session, _constant(session, plan.sqlStmtStr().sql()))
    elif kind in ("CreateTable", "ReplaceTable"):
        if _provider(plan.tableSpec()) == FORMAT:
            _refuse_creation(session, "CREATE TABLE", has_columns=plan.columns().nonEmpty())
    elif kind in ("CreateTableAsSelect", "ReplaceTableAsSelect"):
        if _provider(plan.tableSpec()) == FORMAT:
            raise NotInSql(
                "CREATE TABLE … AS SELECT makes no table in the log",
                field="statement", value="CREATE TABLE … AS SELECT", advice=MAKE_IT,
            )  # fmt: skip
    elif kind.startswith("CreateTableLike"):
        _refuse_likeness(session, plan)
    elif kind == "Union":
        _refuse_several(session, plan)
    elif kind != "RenameTable":
        changes = next((each for each in _CHANGES if _command(plan).startswith(each)), None)
        name = _table_of(plan) if changes else None
        if name and is_ours(session, name):
            raise NotInSql(
                f"{changes} would change only Spark's catalog, not the table {name} of the log",
                field="statement", value=_command(plan), advice=_ALTERED,
            )  # fmt: skip


def _refuse_likeness(session: Any, plan: Any) -> None:
    """Refuse `CREATE TABLE … LIKE`: Spark 4.1 makes a name whose INSERTs go into the old table."""
    is_41 = _kind(plan) == "CreateTableLikeCommand"
    name = _text(plan.sourceTable().nameParts()) if is_41 else _name(plan.source())
    if name and is_ours(session, name) and _provider(plan) in ("", FORMAT):
        raise NotInSql(
            f"CREATE TABLE … LIKE makes no table in the log, but another name of {name}",
            field="statement", value="CREATE TABLE … LIKE", advice=MAKE_IT,
        )  # fmt: skip


def _refuse_several(session: Any, plan: Any) -> None:
    """Refuse `FROM … INSERT … INSERT …`, if it writes into a table of ours."""
    each = [plan.children().apply(position) for position in range(plan.children().size())]
    names = [_table_of(one) for one in each if _kind(one) == "InsertIntoStatement"]
    ours = next((name for name in names if name and is_ours(session, name)), None)
    if ours:
        raise NotInSql(
            "Spark would commit the INSERTs of this statement one after the other: each would read"
            f" what those before it wrote, and theirs would stay if it failed; {ours} is a table of"
            " the log",
            field="statement", value="FROM … INSERT … INSERT",
            advice="Write a statement for each INSERT, or commit them as one with"
            " `CommitLog.transact`",
        )  # fmt: skip


def _constant(session: Any, expression: str) -> str:
    """Return the text that EXECUTE IMMEDIATE runs; nothing, if Spark cannot tell."""
    try:
        return str(session.range(1).selectExpr(expression).first()[0])
    except PySparkException:  # Spark says what is wrong with it.
        return ""


def _with_options(session: Any, text: str, error: PySparkException) -> str | None:
    """Return an INSERT with the options of its table, which Spark hands over with some only."""
    if NO_OPTIONS not in str(error):
        return None
    plan = _parsed(session, text)
    if _kind(plan) != "InsertIntoStatement":
        return None
    options = options_of(session, str(_name(plan.table())))
    behind = plan.table().origin().stopIndex()
    if not options or not behind.isDefined():
        return None
    given = ", ".join(f"{_quoted(key)} = {_quoted(value)}" for key, value in options.items())
    end = int(behind.get()) + 1
    return f"{text[:end]} WITH ({given}){text[end:]}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _refuse_creation(session: SparkSession, statement: str, *, has_columns: bool) -> None:
    if has_columns:
        raise NotInSql(
            f"{statement} with columns does not create a table in the log: Spark would only "
            "store the columns in its catalog",
            field="statement", value=statement, advice=MAKE_IT,
        )  # fmt: skip
    catalog = str(session.conf.get(_SESSION_CATALOG, ""))
    if catalog.endswith(_DELTA):
        raise NotInSql(
            f"the session catalog {catalog} would create the name, but could not read"
            " the table",
            field=_SESSION_CATALOG, value=catalog,
            advice="Use CREATE TEMPORARY VIEW … USING commitlog OPTIONS (…), or spark.read",
        )  # fmt: skip


def _explained(session: SparkSession, text: str, error: PySparkException) -> NotInSql | None:
    """Return what to say instead of Spark's refusal; None if it isn't about a table of ours."""
    if error.getCondition() == TIME_TRAVEL:
        name = (error.getMessageParameters() or {}).get("relationId")
        statement, advice = "VERSION AS OF and TIMESTAMP AS OF", _AS_OF
    elif other := _OTHERS.match(text):
        statement, name = other[1].upper(), other[2]
        advice = _INSTEAD_OF_OTHERS[statement[0]]
    else:
        plan = _parsed(session, text)
        name = _table_of(plan)
        statement, advice = _REFUSED.get(_kind(plan), ("", ""))
        condition = str(error.getCondition())
        if _kind(plan) == "InsertIntoStatement" and not condition.startswith(_NOT_WHOLE):
            return None
    if not statement or not name or not is_ours(session, name):
        return None
    return NotInSql(
        f"Spark SQL does not support {statement} for the table {name} of the log",
        field="statement", value=statement, advice=advice,
    )  # fmt: skip


def _parsed(session: Any, text: str) -> Any:
    """Return the statement as Spark's parser reads it; None if it cannot."""
    try:
        return _without_with(session._jsparkSession.sessionState().sqlParser().parsePlan(text))
    except Exception:  # Spark says what is wrong with it.
        return None


def _without_with(plan: Any) -> Any:
    return plan.child() if _kind(plan) == "UnresolvedWith" else plan


def _kind(plan: Any) -> str:
    return "" if plan is None else str(plan.getClass().getSimpleName())


def _provider(made: Any) -> str:
    """Return the format that a statement, or what it says of its table, names."""
    provider = made.provider()
    return str(provider.get()).lower() if provider.isDefined() else ""


def _command(plan: Any) -> str:
    """Return what Spark calls a statement, such as `ALTER TABLE ... ADD COLUMN`."""
    try:
        return str(_first_leaf(plan).commandName())
    except Exception:  # Queries and such have no name.
        return ""


def _table_of(plan: Any) -> str | None:
    """Return the quoted name of the table that a statement is about."""
    try:
        return _name(plan.table() if _REFUSED.get(_kind(plan)) is _SOME_ROWS else _first_leaf(plan))
    except Exception:  # It is about none.
        return None


def _name(relation: Any) -> str | None:
    try:
        return _text(relation.multipartIdentifier())
    except Exception:  # An expression names it.
        return None


def _text(parts: Any) -> str:
    names = (str(parts.apply(position)) for position in range(parts.size()))
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def _first_leaf(plan: Any) -> Any:
    return plan.children().head().collectLeaves().head()


def is_ours(session: SparkSession, name: str) -> bool:
    """Return True if a name in Spark's catalog is a table or view of this format."""
    try:
        frame: Any = session.table(name)
        leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
        found = [leaves.apply(position) for position in range(leaves.size())]
        return any(
            _kind(leaf) == "DataSourceV2Relation" and leaf.table().name() == FORMAT
            for leaf in found
        )
    except Exception:  # No such table, or one that Spark cannot read.
        return False


def options_of(session: SparkSession, name: str) -> Mapping[str, str]:
    """Return the options of a table that SQL's CREATE TABLE made; none, if it is another."""
    if not is_ours(session, name):
        return {}
    kept = [f.metadata[KEPT] for f in session.table(name).schema if KEPT in (f.metadata or {})]
    return dict(json.loads(kept[0])) if kept else {}
