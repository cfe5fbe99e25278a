"""Tables that SQL made: `CREATE TABLE … USING commitlog`, whose options Spark does not pass on.

Spark keeps the options with the table in its catalog and gives them to this format once, at
CREATE TABLE. What it hands over when the table is read or written is the columns, with their
metadata, so the options are kept there. Metadata reaches plans, the schema of every frame that is
made from the table, and the footers of files written from it: no secret may be among them.

Spark answers some statements itself. It doesn't call this format for CREATE TABLE with columns, and
ALTER TABLE changes its catalog alone. `statements` refuses both in a Python driver; those that it
did not see are found out, and refused, at the next read or write.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import AtomicType, StructField, StructType

from commitlog.adapters.kafka_file import is_secret
from commitlog.errors import InvalidRequest, InvalidTransaction

SQL_PREFIX = "option."
KEPT = "commitlog.options"
COLUMNS = "commitlog.columns"
"""In every column's metadata: the options of CREATE TABLE, and a digest of the columns then."""
READ = "__CHAR_VARCHAR_TYPE_STRING"
"""Spark's own: a column's type as it was declared. Spark leaves it out of what it writes."""
NO_OPTIONS = "Spark passed no options for the table"
SPARKS_PROPERTIES = ("provider", "owner")
"""What Spark adds to the options of CREATE TABLE and of nothing else."""
SPARKS_OTHERS = ("external", "is_managed_location", "collation")
"""What it may add besides."""


def sql_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that `CREATE TABLE` was given; none, if SQL made no table here.

    It has them twice there, beside Spark's own properties (its owner...).
    """
    return {
        key.removeprefix(SQL_PREFIX): value
        for key, value in options.items()
        if key.startswith(SQL_PREFIX)
    }


def check_create_table(options: Mapping[str, str]) -> None:
    """Reject a CREATE TABLE that would keep a secret, or whose words have no effect.

    Raises:
        InvalidTransaction: says what to write instead.
    """
    made = sql_options(options)
    given = {key.lower(): value for key, value in options.items()}
    if not made:
        if all(name in given for name in SPARKS_PROPERTIES):
            raise InvalidTransaction(
                "CREATE TABLE … USING commitlog has no options", field="OPTIONS",
                advice="Write them as OPTIONS (…); TBLPROPERTIES are Spark's own",
            )  # fmt: skip
        return
    for name in (*made, *given):
        if is_secret(name):
            raise InvalidTransaction(
                f"option {name!r} is a secret: Spark shows the options of a table in its catalog,"
                " in plans, and in files written from the table", field=name,
                advice="Put it into a properties file that only Spark may read, and name that in"
                " option 'kafkaFile'. Put storage credentials into the file that"
                " COMMITLOG_STORAGE_FILE names",
            )  # fmt: skip
    if "location" in given:
        raise InvalidTransaction(
            "LOCATION has no effect: the log decides where a table is", field="LOCATION",
            value=given["location"], advice="Leave it out; option 'table' names the table",
        )  # fmt: skip
    known = {*SPARKS_PROPERTIES, *SPARKS_OTHERS, *(name.lower() for name in made)}
    lost = [n for n in given if n not in known and not n.startswith(SQL_PREFIX)]
    if lost:
        raise InvalidTransaction(
            f"COMMENT and TBLPROPERTIES have no effect: Spark would lose {', '.join(sorted(lost))}",
            field="TBLPROPERTIES", value=sorted(lost),
            advice="Leave them out, and set properties with `CommitLog.set_properties`",
        )  # fmt: skip


def keeping_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Put the options of SQL's `CREATE TABLE` into the schema."""
    made = sql_options(options)
    if not made:
        return schema
    kept = {KEPT: json.dumps(made, sort_keys=True), COLUMNS: _digest(schema)}
    fields = []
    for field in schema.fields:
        metadata = {**(field.metadata or {}), **kept}
        if isinstance(field.dataType, AtomicType):
            metadata[READ] = field.dataType.simpleString()
        fields.append(StructField(field.name, field.dataType, field.nullable, metadata))
    return StructType(fields)


def kept_for_reading(schema: StructType, options: Mapping[str, str], needed: str) -> dict[str, str]:
    """Return a read's options: those of SQL's table, unless the caller names a cluster (`needed`).

    Raises:
        InvalidTransaction: Spark has none, or ALTER TABLE changed columns in its catalog.
        InvalidRequest: the columns are those of something else than is to be read.
    """
    given = {key.lower(): value for key, value in options.items()}
    kept = [f for f in schema.fields if KEPT in (f.metadata or {})]
    if not kept:
        if not given:
            raise _without_options(needed)
        return given
    made = json.loads(kept[0].metadata[KEPT])
    found = given if given.get(needed) else _checked(schema, kept[0].metadata) | given
    wanted, made_for = (one.get("read", "table").lower() for one in (found, made))
    if wanted != made_for:
        what = {"table": "a table", "changes": "changes", "log": "the log"}
        raise InvalidRequest(
            f"the name has the columns of {what.get(made_for, made_for)}, not of"
            f" {what.get(wanted, wanted)}", field="read", value=wanted,
            advice="Make another name by CREATE TABLE … USING commitlog OPTIONS (…, read"
            f" {wanted!r}), or use .format('commitlog') and .load()",
        )  # fmt: skip
    return found


def kept_for_writing(schema: StructType, options: Mapping[str, str], needed: str) -> dict[str, str]:
    """Return a write's options, as `kept_for_reading`.

    The columns are the query's. Spark gives them the table's metadata if it has to fit them to the
    table; columns that fit by name and type come as they are, with the metadata of the table that
    they were read from, or none. Spark takes `READ` away from the metadata that it gives, so what
    still has it says where rows come from, and not where they go.
    """
    given = {key.lower(): value for key, value in options.items()}
    if given.get(needed):
        return given
    kept = [f.metadata for f in schema.fields if KEPT in (f.metadata or {})]
    if given and not kept:
        return given
    if not kept or any(READ in metadata or COLUMNS not in metadata for metadata in kept):
        raise _without_options(needed)
    return _checked(schema, kept[0]) | given


def _without_options(needed: str) -> InvalidTransaction:
    return InvalidTransaction(
        f"option {needed!r} is missing, and {NO_OPTIONS}: the table was"
        " made by CREATE TABLE with columns or AS SELECT; or rows are inserted from columns that"
        " have the names and types of the table's",
        field=needed,
        advice="In the first case DROP TABLE it, make the table in the log"
        " (`CommitLog.create_table`), then CREATE TABLE … USING commitlog OPTIONS (…) without"
        " columns. In the second name the table:"
        f" INSERT INTO … WITH (`{needed}` = '…', table = '…') SELECT …; with a data frame's writer,"
        " set both as its options",
    )


def _checked(schema: StructType, metadata: Mapping[str, Any]) -> dict[str, str]:
    kept: dict[str, str] = json.loads(metadata[KEPT])
    secret = next((name for name in kept if is_secret(name)), None)
    if secret is not None:
        raise InvalidTransaction(
            f"this table keeps the secret option {secret!r} in its columns", field=secret,
            advice="DROP TABLE it and CREATE TABLE it again with option 'kafkaFile'",
        )  # fmt: skip
    if metadata.get(COLUMNS, _digest(schema)) != _digest(schema):
        new = [f.name for f in schema.fields if KEPT not in (f.metadata or {})]
        raise InvalidTransaction(
            f"{kept.get('table') or kept.get('path')}: Spark's catalog has other columns than"
            f" when CREATE TABLE ran{': ' + ', '.join(new) + ' is new' if new else ''}. ALTER TABLE"
            " changes only the catalog, not the table",
            field="columns", value=schema.names,
            advice="Change columns in the log (`CommitLog.add_columns`, `alter_columns`,"
            " `drop_columns`), then DROP TABLE and CREATE TABLE again",
        )  # fmt: skip
    return kept


def _digest(schema: StructType) -> str:
    columns = [[f.name, f.dataType.simpleString()] for f in schema.fields]
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:16]
